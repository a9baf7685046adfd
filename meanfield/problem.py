"""What a problem and the stepping loop say to each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Stop:
    """Why a problem ends before its final time: a status word, a sentence, and facts for the file.

    ``passing`` tells that another problem goes on from there, so that the state is no record of its own.
    """

    status: str
    message: str
    facts: Mapping[str, float] = field(default_factory=dict)
    passing: bool = False


@dataclass(frozen=True)
class Observation:
    """What a problem says of an accepted state.

    Attributes
    ----------
    stop : Stop or None
        Whether to stop there.
    longest_step : float
        The longest useful next step.
    restart : bool
        Whether the tendency has changed its law at this state, so that the stepper must begin anew.
    linear : ndarray, optional
        Diagonal λ ≤ 0 of a stiff linear part λy of the tendency, by which a step should not be bounded; it changes at
        restarts alone.
    """

    stop: Stop | None = None
    longest_step: float = math.inf
    restart: bool = False
    linear: Floats | None = None


class Problem(Protocol):
    """An initial value problem y' = tendency(t, y).

    1. ``tendency`` returns a new array, which the stepper keeps.
    2. ``observe`` is called at the first time and after every accepted step, never at rejected states.
    3. The tendency is smooth between breakpoints and restarts, and continuous from the left at each breakpoint.
    """

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which the tendency is not smooth."""

    def tendency(self, t: float, y: Floats) -> Floats:
        """Time derivative of the state."""

    def observe(self, t: float, y: Floats) -> Observation:
        """Stop conditions and the longest useful step at an accepted state."""
