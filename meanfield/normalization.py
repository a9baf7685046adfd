r"""Normalization schemes: every one has the same direction field P A and differs only in speed and radial growth.

A token x = rθ moves by

.. math:: \theta' = \mathrm{speed}(t, r, \langle\theta,A\rangle, \|A\|)\; P_\theta A,
          \qquad r' = \mathrm{growth}(t, r, \langle\theta,A\rangle, \|A\|),

where speed is 1/s of Table 1 of Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026.  Both are pointwise
and pure, so that one object serves a density on a grid and a cloud of tokens.  To add a scheme, subclass `Scheme`
(or `ResidualScheme`) with a name; the class is registered by being defined.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from inspect import isabstract
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .arguments import checked_number

Values: TypeAlias = float | NDArray[np.float64]
"""A number for all tokens, or one per token or grid point."""

SCHEMES: dict[str, type[Scheme]] = {}
"""Every defined scheme by its name in a case file."""


@dataclass(frozen=True)
class Scheme(ABC):
    """Where the normalization sits in a layer, as a local speed and a radial growth.

    The fields of a subclass are its parameters, and the keys of the case file's ``[normalization]`` table.
    """

    name: ClassVar[str]
    """Name in case files and on the command line."""
    reads_radius: ClassVar[bool] = False
    """Whether the speed depends on r, so that a density alone does not close."""
    reads_field: ClassVar[bool] = True
    """Whether speed or growth read ⟨θ, A⟩ or ‖A‖; where they do not, these are not computed."""
    speed_formula: ClassVar[str]
    growth_formula: ClassVar[str] = "0"
    summary: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if name is None:
            return
        if name in SCHEMES and SCHEMES[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"a normalization scheme named {name!r} exists already")
        SCHEMES[name] = cls

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which speed or growth is not smooth; the stepper restarts there."""
        return ()

    @abstractmethod
    def speed(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        """Local speed 1/s, the factor of P A.

        Parameters
        ----------
        t : float
            Time (depth), ≥ 0.
        r : float or ndarray
            Radius of the token, > 0.
        radial : float or ndarray
            ⟨θ, A⟩.
        norm : float or ndarray
            ‖A‖, radial part included.
        """

    def growth(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        """Rate r' of the radius; arguments as in `speed`."""
        return 0.0

    def displacement(self, t: float, r: Values, radial: Values, norm: Values) -> tuple[Values, Values]:
        """Coefficients (a, b) of the stream form x' = a A + b θ of the token x = rθ.

        From θ' = speed P A and r' = growth: a = r speed and b = growth − a ⟨θ, A⟩.
        """
        along = r * self.speed(t, r, radial, norm)
        return along, self.growth(t, r, radial, norm) - along * radial

    def layer(self, t: float, step: float, r: Values, radial: Values, norm: Values) -> tuple[Values, bool]:
        """Coefficient c of one discrete layer of depth ``step``, and whether the layer normalizes its output.

        x ← r N(θ + c A) if it does, with N(x) = x/|x|, else x ← x + c A.  For step → 0 layers become the flow.
        """
        return step * self.speed(t, r, radial, norm), True


@dataclass(frozen=True)
class ResidualScheme(Scheme):
    """A scheme whose residual stream is never normalized: x' = gain(t, ‖A‖) A(x/|x|), so s = r/gain.

    In stream form nothing is singular at r = 0.
    """

    reads_radius: ClassVar[bool] = True

    @abstractmethod
    def gain(self, t: float, norm: Values) -> Values:
        """Factor that the scheme puts on the branch output A."""

    def speed(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        return self.gain(t, norm) / r

    def growth(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        return self.gain(t, norm) * radial

    def displacement(self, t: float, r: Values, radial: Values, norm: Values) -> tuple[Values, Values]:
        return self.gain(t, norm), 0.0

    def layer(self, t: float, step: float, r: Values, radial: Values, norm: Values) -> tuple[Values, bool]:
        return step * self.gain(t, norm), False


@dataclass(frozen=True)
class PostLN(Scheme):
    """Normalize after the addition: tokens live on the sphere."""

    name = "post-ln"
    reads_field = False
    speed_formula = "1"
    summary = "normalize after the residual addition"

    def speed(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        return 1.0


@dataclass(frozen=True)
class PreLN(ResidualScheme):
    """Normalize what attention reads: the stream grows freely, x' = A."""

    name = "pre-ln"
    speed_formula = "1/r"
    growth_formula = "⟨θ,A⟩"
    summary = "normalize the input of attention"

    def gain(self, t: float, norm: Values) -> Values:
        return 1.0


@dataclass(frozen=True)
class MixLN(Scheme):
    """Post-LN up to and including ``switch_time``, Pre-LN after it."""

    switch_time: float

    name = "mix-ln"
    reads_radius = True
    speed_formula = "1 for t ≤ τ, then 1/r"
    growth_formula = "0, then ⟨θ,A⟩"
    summary = "Post-LN up to the switch time τ, then Pre-LN"

    def __post_init__(self) -> None:
        checked_number("switch_time", self.switch_time, low=0.0)

    @property
    def breakpoints(self) -> tuple[float, ...]:
        return (float(self.switch_time),)

    def speed(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        return 1.0 if t <= self.switch_time else 1.0 / r

    def growth(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        return 0.0 if t <= self.switch_time else radial

    def displacement(self, t: float, r: Values, radial: Values, norm: Values) -> tuple[Values, Values]:
        return (r, -r * radial) if t <= self.switch_time else (1.0, 0.0)

    def layer(self, t: float, step: float, r: Values, radial: Values, norm: Values) -> tuple[Values, bool]:
        # A layer spans [t, t + step]: its middle tells on which side of the switch it lies, whatever the rounding.
        return step, t + 0.5 * step < self.switch_time


@dataclass(frozen=True)
class PeriLN(ResidualScheme):
    """Normalize the input and the output of attention: x' = A/‖A‖."""

    name = "peri-ln"
    speed_formula = "1/(r‖A‖)"
    growth_formula = "⟨θ,A⟩/‖A‖"
    summary = "normalize the input and the output of attention"

    def gain(self, t: float, norm: Values) -> Values:
        return 1.0 / norm


@dataclass(frozen=True)
class NGPT(Scheme):
    """Normalize the attention output, step by a learned rate α(t), renormalize the stream.

    ``rate`` is a number or a table ((t, α), …) that is interpolated linearly and held constant outside.  A time that is
    given twice is a jump, after which the second rate holds: ((0, 1), (2, 1), (2, ½)) is 1 up to t = 2 and ½ from then
    on.  A discrete layer takes α at its beginning, on that side of a jump on which its middle lies.
    """

    rate: float | tuple[tuple[float, float], ...] = 1.0

    name = "ngpt"
    speed_formula = "α(t)/‖A‖"
    summary = "normalized output, learned rate α(t), normalized stream"

    def __post_init__(self) -> None:
        if isinstance(self.rate, tuple):
            if len(self.rate) < 1 or any(not isinstance(row, tuple) or len(row) != 2 for row in self.rate):
                raise ValueError("rate: must be a number or a list of pairs [t, α]")
            for time, value in self.rate:
                checked_number("rate", time, low=0.0)
                checked_number("rate", value, low=0.0)
            times = [time for time, _ in self.rate]
            jumps = {later for earlier, later in pairwise(times) if earlier == later}
            if times != sorted(times) or 0.0 in jumps or any(times.count(time) > 2 for time in jumps):
                raise ValueError(f"rate: times must increase strictly, got {times}")
        else:
            checked_number("rate", self.rate, low=0.0)

    @property
    def breakpoints(self) -> tuple[float, ...]:
        return tuple(dict.fromkeys(float(time) for time, _ in self.rate)) if isinstance(self.rate, tuple) else ()

    def rate_at(self, t: float, within: float | None = None) -> float:
        """α(t) ≥ 0, at a jump the rate before it; or that of the piece of the table that holds the time ``within``."""
        if not isinstance(self.rate, tuple):
            return float(self.rate)
        times, values = zip(*self.rate, strict=True)
        piece = bisect_left(times, t if within is None else within)
        if piece in (0, len(times)):
            return float(values[min(piece, len(times) - 1)])
        return float(np.interp(t, times[piece - 1 : piece + 1], values[piece - 1 : piece + 1]))

    def speed(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        return self.rate_at(t) / norm

    def layer(self, t: float, step: float, r: Values, radial: Values, norm: Values) -> tuple[Values, bool]:
        return step * self.rate_at(t, within=t + 0.5 * step) / norm, True


@dataclass(frozen=True)
class SqrtScaling(Scheme):
    """Post-LN whose branch is scaled by depth^{-1/2}: Post-LN run at the time 2(√(t+1) − 1)."""

    name = "sqrt-scaling"
    reads_field = False
    speed_formula = "1/√(t+1)"
    summary = "Post-LN with the branch scaled by depth^(-1/2)"

    def speed(self, t: float, r: Values, radial: Values, norm: Values) -> Values:
        return 1.0 / math.sqrt(t + 1.0)


@dataclass(frozen=True)
class LNScaling(ResidualScheme):
    """Pre-LN whose branch is scaled by depth^{-1/2}: x' = A/√(t+1)."""

    name = "ln-scaling"
    speed_formula = "1/(r√(t+1))"
    growth_formula = "⟨θ,A⟩/√(t+1)"
    summary = "Pre-LN with the branch scaled by depth^(-1/2)"

    def gain(self, t: float, norm: Values) -> Values:
        return 1.0 / math.sqrt(t + 1.0)


def make_scheme(name: str, **parameters: Any) -> Scheme:
    """Build the registered scheme ``name``; ValueError names the known ones."""
    try:
        kind = SCHEMES[name]
    except KeyError:
        raise ValueError(f"scheme: must be one of {', '.join(SCHEMES)}, got {name!r}") from None
    if isabstract(kind):
        raise ValueError(f"scheme: {name!r} does not define its speed")
    return kind(**parameters)
