r"""Weighted tokens: finitely many of equal mass, or the labelled continuum with the masses ρ₀(α) w(α) of a quadrature.

A token is kept in stream form x = rθ, which is regular where r runs through 0 and θ flips to the other side:

.. math:: x' = a\,A(\theta) + b\,\theta, \qquad \theta = x/|x|,

with the coefficients (a, b) of the scheme (`Scheme.displacement`).  Where the scheme does not read the radius,
x' = |x| · speed · P A, so that an error of the length stays without effect.  With noise κ, directions perform Brownian
motion of generator κΔ besides.  Source: Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026, Table 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.random import Generator

from .engines import TokenEngine, TokenField
from .normalization import Scheme, Values
from .pairs import close_pairs_of_tokens
from .problem import Observation
from .space import Floats


class ParticleProblem:
    """Weighted tokens under one scheme, ready to be stepped; the state is the flattened array x, (N·d,).

    Parameters
    ----------
    engine : TokenEngine
        How attention is computed.
    scheme : Scheme
        Normalization scheme.
    weights : ndarray, shape (N,)
        Masses ≥ 0 of the tokens, with sum 1.
    noise : float
        Diffusivity κ ≥ 0 on the sphere, read by `walk` alone.

    Raises
    ------
    ValueError
        If the weights are no masses, or the noise is negative.
    """

    def __init__(self, engine: TokenEngine, scheme: Scheme, weights: Floats, noise: float = 0.0) -> None:
        if weights.ndim != 1 or not (np.isfinite(weights).all() and (weights >= 0.0).all()):
            raise ValueError(f"weights: must be finite numbers >= 0, one for each token, got shape {weights.shape}")
        if not abs(float(weights.sum()) - 1.0) <= 1e-9:
            raise ValueError(f"weights: must have the sum 1, got {float(weights.sum())}")
        if not (math.isfinite(noise) and noise >= 0.0):
            raise ValueError(f"noise: must be a finite number >= 0, got {noise!r}")
        self.engine = engine
        self.scheme = scheme
        self.weights = weights
        self.noise = noise

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which the stepper restarts."""
        return tuple(sorted({*self.scheme.breakpoints, *self.engine.breakpoints}))

    # ------------------------------------------------------------------ state

    def pack(self, points: Floats, radius: Values = 1.0) -> Floats:
        """State of tokens at the unit vectors (N, d); the radius counts only where the scheme reads it."""
        shape = (len(self.weights), self.engine.dimension)
        if points.shape != shape:
            raise ValueError(f"points: must have shape {shape}, got {points.shape}")
        scale = np.asarray(radius if self.scheme.reads_radius else 1.0, dtype=np.float64)
        return np.ravel(scale[..., None] * points)

    def unpack(self, y: Floats) -> tuple[Floats, Floats]:
        """Directions θ, (N, d), and radii r, (N,), of a state; a token at the very origin points anywhere."""
        x = y.reshape(len(self.weights), -1)
        radius = np.sqrt(np.einsum("ij,ij->i", x, x))
        lost = radius == 0.0
        points = x / np.where(lost, 1.0, radius)[:, None]
        points[lost] = np.eye(1, x.shape[1])
        return points, radius

    # ------------------------------------------------------------------ dynamics

    def _field(self, t: float, points: Floats, radial: bool) -> tuple[TokenField, Values]:
        """Attention at the tokens, and ‖A‖ if the scheme reads it."""
        field = self.engine.at(t).evaluate(points, self.weights, radial)
        return field, field.norm if self.scheme.reads_field else 0.0

    def tendency(self, t: float, y: Floats) -> Floats:
        """Rate x' of the state: one evaluation of attention."""
        points, radius = self.unpack(y)
        field, norm = self._field(t, points, radial=self.scheme.reads_field)
        along, back = self.scheme.displacement(t, radius, field.radial, norm)
        change = _column(along) * field.tangent
        change += _column(along * field.radial + back) * points
        return change.ravel()

    def observe(self, t: float, y: Floats) -> Observation:
        """Nothing stops tokens: they have no fold, and the stepper itself sees non-finite numbers."""
        return Observation()

    def layer(self, t: float, step: float, y: Floats) -> Floats:
        """State after one discrete layer of depth ``step`` (1 in a real network)."""
        points, radius = self.unpack(y)
        # The middle of a layer tells which matrices are its own, whatever the rounding.
        field, norm = self._field(t + 0.5 * step, points, radial=True)
        gain, normalizes = self.scheme.layer(t, step, radius, field.radial, norm)
        change = _column(gain) * (field.tangent + field.radial[:, None] * points)
        if not normalizes:
            return y + change.ravel()
        points += change
        points *= (radius / np.linalg.norm(points, axis=1))[:, None]
        return points.ravel()

    def walk(self, begin: float, end: float, y: Floats, generator: Generator) -> Floats:
        """State after one step of the flow with noise.

        Half of the Brownian motion, the flow by Heun's method, the other half (Strang's splitting): expectations are
        right to second order in the step, and so are paths without noise.
        """
        step = end - begin
        y = self.diffuse(y, 0.5 * self.noise * step, generator)
        slope = self.tendency(begin, y)
        y = y + (0.5 * step) * (slope + self.tendency(end, y + step * slope))
        return self.diffuse(y, 0.5 * self.noise * step, generator)

    def diffuse(self, y: Floats, spread: float, generator: Generator) -> Floats:
        """State after Brownian motion of the directions, of generator κΔ for a time τ with κτ = ``spread``."""
        points, radius = self.unpack(y)
        points = brownian(points, spread, generator.standard_normal(points.shape))
        return (points * radius[:, None] if self.scheme.reads_radius else points).ravel()


def brownian(points: Floats, spread: float, normals: Floats) -> Floats:
    r"""Brownian motion on the sphere, one geodesic step of second weak order in ``spread`` = κτ.

    A step along the geodesic of a tangent Gaussian of variance 2κτ diffuses too fast by curvature; shortened by
    :math:`e^{-(d-2)\kappa\tau/6}`, the first two moments of :math:`1 - x\cdot x_0` are right to :math:`O(\tau^3)`,
    and with them :math:`E f(x) = e^{\tau\kappa\Delta} f` for every harmonic.

    Parameters
    ----------
    points : ndarray, shape (N, d)
        Unit vectors.
    spread : float
        κτ ≥ 0.
    normals : ndarray, shape (N, d)
        Standard normal numbers.
    """
    scale = math.sqrt(2.0 * spread) * math.exp(-(points.shape[1] - 2) * spread / 6.0)
    tangent = scale * (normals - np.einsum("ij,ij->i", normals, points)[:, None] * points)
    angle = np.sqrt(np.einsum("ij,ij->i", tangent, tangent))[:, None]
    moved = np.cos(angle) * points + np.sinc(angle / np.pi) * tangent
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True))


# ---- numbers from a state ------------------------------------------------------------------------------------


def describe_tokens(problem: ParticleProblem, t: float, y: Floats) -> dict[str, Any]:
    r"""Positions and diagnostics of one state, by their names in the file.

    With Z the partition function scaled as the energy, and self terms included,

    .. math:: E = \frac{1}{2\beta}\sum_i w_i Z_i, \qquad
              E' = \sum_i w_i Z_i \langle P A, \theta' \rangle_i / v
                 = \sum_i w_i \frac{Z_i}{s_i} |P A|_i^2 / v

    (β = 0: E = ½|Σ w x|²; unnormalized: Z → 1).  They are left out where A is no multiple of the gradient of this
    energy, that is, with general matrices QᵀK or V; noise adds to E', in the mean, what is not counted here.
    """
    engine, weights = problem.engine, problem.weights
    points, radius = problem.unpack(y)
    first = weights @ points
    values: dict[str, Any] = {
        "position": points,
        "mass": float(weights.sum()),
        "moment1": first,
        "moment2": (weights[:, None] * points).T @ points,
        "order_parameter": math.hypot(*first),
        "close_pairs": close_pairs_of_tokens(points, weights),
    }
    if problem.scheme.reads_radius:
        values["radius"] = radius
    if engine.potential:
        attention = engine.attention
        field = engine.evaluate(points, weights, radial=True)
        along, _ = problem.scheme.displacement(t, radius, field.radial, field.norm)
        speed = along / np.where(radius > 0.0, radius, 1.0)
        work = speed * np.einsum("ij,ij->i", field.tangent, field.tangent)
        if attention.normalized:
            work *= field.partition
        unit = attention.value * attention.scale
        pairs = float(weights @ field.partition)
        values["energy"] = pairs / (2.0 * attention.beta) if attention.beta else 0.5 * float(first @ first)
        values["energy_rate"] = float(weights @ work) / unit if unit else 0.0
    return values


def _column(values: Values) -> Floats:
    """A number per token, or one for all, as a factor of vectors."""
    return np.asarray(values, dtype=np.float64)[..., None]
