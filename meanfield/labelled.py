r"""The continuum by labelled tokens: right through the fold, where no radius field R(θ, t) exists.

Every label α carries one token in stream form, x(α, t) = rθ, and the law is what the initial density makes of them,

.. math:: \int F\,d\mu_t = \int F\bigl(x(\alpha,t)\bigr)\,\rho_0(\alpha)\,d\alpha
          \approx \sum_i w_i\,F(x_i), \qquad w_i = \rho_0(\alpha_i)\,q_i,

with the Gauss weights q of the label grid.  Nothing is singular where the sheet x(·, t) runs through the origin: one
label does, at one time, and its neighbours' directions turn fast.  The directions θ(α, t) may cover a direction
several times or never; the spectrum of μ, its moments and the radius of its tokens make sense all the same.
Source: Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026 (the model).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.interpolate import KroghInterpolator
from scipy.spatial import cKDTree

from .density import spectral_tail
from .engines import token_engine
from .integrate import Tolerances, integrate
from .interaction import FIELD_TOLERANCE, Attention
from .kernels import band_limit, eigenvalue_derivatives, eigenvalues, gradient_eigenvalues
from .labels import Cells, Labels, determinant, make_labels
from .normalization import Scheme
from .particles import ParticleProblem, describe_tokens
from .problem import Observation
from .space import Complexes, Floats, Integers
from .sphere import LARGEST_LMAX, Sphere

PROBES = 2000
"""Directions in which the sheets are counted."""
STENCIL = 4
"""Steps whose spectra and rates are interpolated in time, to the order of the stepper's own interpolant."""
DEPARTURE = 1e-6
"""Part of its way back from the origin that a token takes in one straight step."""
SOURCE_TOLERANCE = 1e-3
"""Angle to which the direction of that step is found; backwards in time the flow corrects it."""
ARRIVAL_TOLERANCE = 1e-9
"""Error of the way back, relative to the initial radius."""
DIFFERENCE = 1e-4
"""Displacement of the tokens by which the rate of a spectrum is differenced, to about the fourth power of it."""


# ---- the problem ---------------------------------------------------------------------------------------------


class LabelledProblem:
    """The continuum by labelled tokens under one scheme, ready to be stepped; the state is that of `ParticleProblem`.

    Parameters
    ----------
    space : Sphere
        Space of the spectra of μ; it does not enter the dynamics.
    attention : Attention
        Kernel, β and value factor.
    scheme : Scheme
        Normalization scheme.
    labels : Labels
        Where the tokens start, and what they weigh.
    threads : int
        Threads of attention.

    Attributes
    ----------
    particles : ParticleProblem
        The tokens.
    state : ndarray
        Initial state.
    """

    def __init__(self, space: Sphere, attention: Attention, scheme: Scheme, labels: Labels, threads: int = 1) -> None:
        self.space = space
        self.attention = attention
        self.scheme = scheme
        self.labels = labels
        engine = token_engine(attention, len(labels.weights), threads=threads)
        self.particles = ParticleProblem(engine, scheme, labels.weights)
        self.state = self.particles.pack(labels.points, labels.radii)

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which the stepper restarts."""
        return self.scheme.breakpoints

    def tolerances(self, rtol: float) -> Tolerances:
        """Tolerances that allow an error of ``rtol`` in each coordinate, root mean square over the labels.

        Relative to a token's own length they would make the stepper dwell on tokens near the origin.
        """
        return Tolerances(rtol, rtol * math.sqrt(self.state.size))

    def tendency(self, t: float, y: Floats) -> Floats:
        """Rate of the state."""
        return self.particles.tendency(t, y)

    def observe(self, t: float, y: Floats) -> Observation:
        """Nothing stops labelled tokens."""
        return self.particles.observe(t, y)

    def density_lm(self, y: Floats) -> Complexes:
        """Spectrum of μ, with ρ_00 = (4π)^{−1/2} to the last bit."""
        points, _ = self.particles.unpack(y)
        rho_lm = self.space.point_masses(points, self.labels.weights)
        rho_lm[0] = 1.0 / math.sqrt(4.0 * math.pi)
        return rho_lm

    def observables(self, t: float, y: Floats) -> dict[str, Any]:
        """Spectrum and diagnostics of one state, by their names in the file."""
        values = describe_tokens(self.particles, t, y)
        del values["position"]
        rho_lm = self.density_lm(y)
        power = self.space.multiplicity * np.abs(rho_lm) ** 2
        values |= {
            "density_lm": rho_lm,
            "spectral_tail": spectral_tail(self.space, rho_lm),
            "degree_power": np.bincount(self.space.degree, power, minlength=self.space.lmax + 1),
        }
        if self.scheme.reads_radius:
            radius, weights = values.pop("radius"), self.labels.weights
            mean = float(weights @ radius)
            values |= {
                "radius_min": float(radius.min()),
                "radius_max": float(radius.max()),
                "radius_mean": mean,
                "radius_spread": math.sqrt(float(weights @ (radius - mean) ** 2)),
                "sheets": self.sheets(y),
            }
        return values

    def moment_errors(self, y: Floats) -> Floats:
        """Estimates of the error of ∫ θ dμ by the quadrature over the labels, for each of its parts."""
        points, _ = self.particles.unpack(y)
        return self.labels.errors(points)

    # ------------------------------------------------------------------ the shape of the sheet

    def coverings(self, y: Floats, probes: Floats) -> Integers:
        """How many tokens the sheet has in each of the directions ``probes``, unit vectors (M, 3).

        The sheet is triangulated over its labels; a direction p meets the triangle (a, b, c) if p is a combination
        of its corners with coefficients ≥ 0.
        """
        points, _ = self.particles.unpack(y)
        a, b, c = (points[corner] for corner in self.labels.triangles.T)
        centre = a + b + c
        length = np.sqrt(np.einsum("ij,ij->i", centre, centre))
        centre /= np.where(length > 0.0, length, 1.0)[:, None]
        reach = np.max([np.einsum("ij,ij->i", corner - centre, corner - centre) for corner in (a, b, c)], axis=0)
        # The cap about the centre through the farthest corner holds a triangle that fits in a hemisphere.
        near = cKDTree(probes).query_ball_point(centre, np.where(reach < 2.0, np.sqrt(reach) + 1e-9, 3.0))
        counts = np.fromiter(map(len, near), dtype=np.int64, count=len(near))
        triangle = np.repeat(np.arange(len(near)), counts)
        probe = np.concatenate([np.asarray(found, dtype=np.int64) for found in near])
        p, a, b, c = probes[probe], a[triangle], b[triangle], c[triangle]
        sign = np.sign(determinant(a, b, c))
        inside = sign != 0.0
        for sides in ((p, b, c), (a, p, c), (a, b, p)):
            inside &= sign * determinant(*sides) >= 0.0
        return np.bincount(probe[inside], minlength=len(probes))

    def sheets(self, y: Floats) -> int:
        """Largest number of tokens over one of `PROBES` directions.

        1 until the fold.  Once the sheet has passed the origin, directions hold an even number: 2 where it is seen,
        0 elsewhere.  A sheet that bends over without passing the origin has 3 over some directions, 1 over the rest.
        """
        return int(self.coverings(y, _fibonacci_points(PROBES)).max())

    def winding(self, y: Floats) -> float:
        r"""Times that the sheet winds round the origin, :math:`\frac{1}{4\pi}\sum\Omega` over its triangles.

        An integer, 1 at first, unless labels have been left out; it jumps by one when the sheet passes the origin.
        Solid angle of a triangle: van Oosterom and Strackee (1983), IEEE Trans. Biomed. Eng. 30, 125.
        """
        points, _ = self.particles.unpack(y)
        a, b, c = (points[corner] for corner in self.labels.triangles.T)
        cosines = [np.einsum("ij,ij->i", *pair) for pair in ((a, b), (b, c), (c, a))]
        angles = 2.0 * np.arctan2(determinant(a, b, c), 1.0 + sum(cosines))
        return float(angles.sum()) / (4.0 * math.pi)


@lru_cache(maxsize=2)
def _fibonacci_points(count: int) -> Floats:
    """Nearly uniform points, turned so that none lies on a meridian of a grid."""
    index = np.arange(count) + 0.5
    z, longitude = 1.0 - 2.0 * index / count, math.pi * (3.0 - math.sqrt(5.0)) * index + 0.4142
    across = np.sqrt(1.0 - z * z)
    return np.stack([across * np.cos(longitude), across * np.sin(longitude), z], axis=-1)


# ---- the time of the fold ------------------------------------------------------------------------------------


class FoldWatch:
    """Notices that the sheet passes the origin, and says when, to the accuracy of the run.

    Pass `trace` to `meanfield.integrate.integrate`, and ask for `fold_time` after the run.  The winding number of
    the sheet tells the step.  Then the one token that meets the origin is followed back in time, in the field that
    the run had.  It arrives along a direction θ with P A = 0 and ⟨θ, A⟩ < 0, from which the flow leads away, so that
    backwards every error of the direction dies out.  The time of its arrival is right if it started on the sheet.

    Parameters
    ----------
    problem : LabelledProblem
        What is stepped.
    radius : float or callable
        R at the first time, as in `make_labels`.
    """

    def __init__(self, problem: LabelledProblem, radius: float | Callable[[Floats], Floats] = 1.0) -> None:
        self.problem = problem
        self.radius = radius
        self._field = _RecordedField(problem.attention)
        self._winding = math.nan
        self._step: tuple[float, float] | None = None
        self._direction = np.zeros(3)

    def trace(self, piece: int, t: float, y: Floats, slope: Floats) -> None:
        """Take in an accepted step."""
        if not self.problem.scheme.reads_radius or self._field.steps_after(self._step) > 0:
            return  # there is no fold, or all is known of it
        points, radius = self.problem.particles.unpack(y)
        self._field.append(piece, t, self._spectrum(y), self._spectrum_rate(y, slope))
        if self._step is None:
            winding = self.problem.winding(y)
            if abs(winding - self._winding) > 0.5:
                self._step = (self._field.times[-2], t)
            else:
                self._winding = winding
                self._direction = points[np.argmin(radius)]

    def _spectrum(self, y: Floats) -> Complexes:
        points, _ = self.problem.particles.unpack(y)
        return self._field.sphere.point_masses(points, self.problem.labels.weights)

    def _spectrum_rate(self, y: Floats, slope: Floats) -> Complexes:
        """Rate of the spectrum, by a central difference of fourth order."""
        _, radius = self.problem.particles.unpack(y)
        turn = np.linalg.norm(slope.reshape(-1, 3), axis=1) / np.where(radius > 0.0, radius, 1.0)
        step = DIFFERENCE / max(float(turn.max()), 1e-300)
        near, far = (self._spectrum(y + k * step * slope) - self._spectrum(y - k * step * slope) for k in (1, 2))
        return np.asarray((8.0 * near - far) / (12.0 * step))

    def history(self) -> dict[str, Any]:
        """All that has been taken in, as arrays."""
        return {
            **self._field.history(),
            "winding": np.array(self._winding),
            "step": np.array(self._step or ()),
            "direction": self._direction,
        }

    def recall(self, history: Mapping[str, Any]) -> None:
        """Take in at once what another watch of this problem had."""
        self._field.recall(history)
        self._winding = float(history["winding"])
        self._step = (float(history["step"][0]), float(history["step"][1])) if history["step"].size else None
        self._direction = history["direction"]

    @property
    def folded(self) -> bool:
        """Whether the sheet has passed the origin."""
        return self._step is not None

    def fold_time(self) -> float | None:
        """Time t* at which the first token runs through the origin; None if none has."""
        if self._step is None:
            return None
        (early, late), (before, after) = self._step, map(self._miss, self._step)
        for _ in range(20):  # by secants: the miss is nearly linear in the time of arrival
            if before == after or abs(late - early) < ARRIVAL_TOLERANCE * late:
                break
            early, late = late, late - after * (late - early) / (after - before)
            before, after = after, self._miss(late)
        return late

    def _miss(self, arrival: float) -> float:
        """Initial radius of the token that meets the origin at time ``arrival``, less that of the sheet there."""
        start = self._field.times[0]
        scheme = self.problem.scheme
        back = _Backwards(self._field, scheme, arrival)
        step = DEPARTURE * (arrival - start)
        x = -step * back.rate(arrival, self._field.source(arrival, self._direction))
        reached, scale = arrival - step, float(np.linalg.norm(x)) / DEPARTURE
        for begin in sorted({start, *(b for b in scheme.breakpoints if start < b < reached)}, reverse=True):
            back.earliest = math.nextafter(begin, math.inf)
            times = (arrival - reached, arrival - begin)
            states: dict[float, Floats] = {}
            integrate(back, x, times, states.__setitem__, Tolerances(ARRIVAL_TOLERANCE, ARRIVAL_TOLERANCE * scale))
            x, reached = states[times[-1]], begin
        length = float(np.linalg.norm(x))
        sheet = self.radius((x / length)[None])[0] if callable(self.radius) else self.radius
        return length - float(sheet)


class _RecordedField:
    """The attention field of a run at any time, from the low degrees of μ at its steps."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.sphere = Sphere(min(band_limit(attention.beta, FIELD_TOLERANCE), LARGEST_LMAX))
        band, degree = self.sphere.lmax, self.sphere.degree
        factor = attention.scale * attention.value
        self._partition = eigenvalues(band, attention.beta)[degree]
        self._tangent = factor * gradient_eigenvalues(band, attention.beta)[degree]
        self._radial = factor * eigenvalue_derivatives(band, attention.beta)[degree]
        self.times: list[float] = []
        self._pieces: list[int] = []
        self._spectra: list[Complexes] = []
        self._rates: list[Complexes] = []
        self._nodes = slice(0, 0)

    def append(self, piece: int, t: float, spectrum: Complexes, rate: Complexes) -> None:
        self.times.append(t)
        self._pieces.append(piece)
        self._spectra.append(spectrum)
        self._rates.append(rate)

    def history(self) -> dict[str, Any]:
        shape = (-1, self.sphere.degree.size)
        return {
            "times": np.array(self.times),
            "pieces": np.array(self._pieces, dtype=np.int64),
            "spectra": np.array(self._spectra, dtype=np.complex128).reshape(shape),
            "rates": np.array(self._rates, dtype=np.complex128).reshape(shape),
        }

    def recall(self, history: Mapping[str, Any]) -> None:
        self.times, self._pieces = history["times"].tolist(), history["pieces"].tolist()
        self._spectra, self._rates = list(history["spectra"]), list(history["rates"])

    def steps_after(self, step: tuple[float, float] | None) -> int:
        return 0 if step is None else sum(t > step[1] for t in self.times)

    def spectrum(self, t: float) -> Complexes:
        """Low degrees of μ at a time, by the Hermite polynomial through the nearest steps of its smooth piece."""
        index = min(max(int(np.searchsorted(self.times, t, side="left")), 1), len(self.times) - 1)
        same = np.flatnonzero(np.array(self._pieces) == self._pieces[index])
        first = min(max(index - STENCIL // 2, same[0]), max(same[-1] + 1 - STENCIL, same[0]))
        nodes = slice(first, min(first + STENCIL, same[-1] + 1))
        if nodes != self._nodes:
            data = np.stack([self._spectra[nodes], self._rates[nodes]], axis=1)
            times = np.repeat(self.times[nodes], 2)
            self._nodes = nodes
            self._polynomial = KroghInterpolator(times, data.reshape(len(times), -1))
        return np.asarray(self._polynomial(t))

    def at(self, t: float, point: Floats) -> tuple[Floats, float]:
        """P A and ⟨θ, A⟩ at a time and unit vector."""
        mu_lm = self.spectrum(t)
        there = self.sphere.scattered(point[None])
        divisor = there.values(self._partition * mu_lm)[0] if self.attention.normalized else 1.0
        return (
            there.gradient(self._tangent * mu_lm)[0] / divisor,
            float(there.values(self._radial * mu_lm)[0] / divisor),
        )

    def source(self, t: float, near: Floats) -> Floats:
        """Direction with P A = 0 that the flow leads away from, reached against the flow from ``near``."""
        point = near
        slope = abs(self.attention.beta * self.attention.value) * self.attention.scale
        for _ in range(100):
            tangent, radial = self.at(t, point)
            if math.hypot(*tangent) < SOURCE_TOLERANCE * abs(radial):
                break
            # P A grows away from the source at the rate −⟨θ, A⟩ + β Cov, where no covariance of directions exceeds 1.
            point = point - tangent / (abs(radial) + slope)
            point = point / np.linalg.norm(point)
        return point


class _Backwards:
    """One token of a recorded run in reversed time τ = arrival − t, never before ``earliest``."""

    breakpoints: tuple[float, ...] = ()

    def __init__(self, field: _RecordedField, scheme: Scheme, arrival: float) -> None:
        self.field = field
        self.scheme = scheme
        self.arrival = arrival
        self.earliest = -math.inf

    def rate(self, t: float, x: Floats) -> Floats:
        """Forward rate x' of the token."""
        radius = float(np.linalg.norm(x))
        point = x / radius
        tangent, radial = self.field.at(t, point)
        along, back = self.scheme.displacement(t, radius, radial, math.hypot(*tangent, radial))
        return np.asarray(along * tangent + (along * radial + back) * point)

    def tendency(self, t: float, y: Floats) -> Floats:
        return -self.rate(max(self.arrival - t, self.earliest), y)

    def observe(self, t: float, y: Floats) -> Observation:
        return Observation()


# ---- labels that suit the flow -------------------------------------------------------------------------------


def refined_labels(
    space: Sphere,
    attention: Attention,
    scheme: Scheme,
    density: Callable[[Floats], Floats],
    final: float,
    tolerance: float,
    radius: float | Callable[[Floats], Floats] = 1.0,
    rounds: int = 8,
) -> tuple[Labels, float]:
    """Labels whose quadrature holds the mean token to a tolerance at the final time.

    Pilot runs to the final time, each with those cells split in whose parts the error is largest.

    Returns
    -------
    labels : Labels
        The labels of the last round.
    error : float
        The estimate that they reached, which may exceed ``tolerance`` after ``rounds``.
    """
    cells = Cells.uniform(2)
    rtol = max(min(1e-2 * tolerance, 1e-6), 1e-12)
    while True:
        problem = LabelledProblem(space, attention, scheme, make_labels(cells, density, radius))
        outcome = integrate(problem, problem.state, (0.0, final), lambda t, y: None, problem.tolerances(rtol))
        errors = problem.moment_errors(outcome.state)
        error = float(errors.sum())
        rounds -= 1
        if error <= tolerance or rounds == 0:
            return problem.labels, error
        cells = cells.split(errors > tolerance / len(errors))
