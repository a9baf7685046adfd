r"""At low temperature tokens follow the equation of zero temperature, and then stand on the law that it projects to.

For β → ∞ softmax attention of a positive density is :math:`A = V B^T\theta/|B^T\theta|`.  With V = 1 and the projection
B on the equator, latitudes obey λ' = −sin λ, and the law is projected along the meridians.  Alcalde, Bungert, Riedl,
Roith (2026), arXiv 2605.10931: the Wasserstein distance to the projected law is at most
:math:`C\sqrt{\log(\beta+1)/\beta}\,e^{Ct} + e^{-ct}`.  Distances here are those of tokens with the same label, which
no transport plan exceeds.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from meanfield.engines import DenseEngine
from meanfield.integrate import Tolerances, integrate
from meanfield.interaction import Attention, Interaction
from meanfield.normalization import make_scheme
from meanfield.particles import ParticleProblem

from . import oracles

Array = np.ndarray[Any, np.dtype[Any]]

BETAS = (10.0, 30.0, 100.0, 300.0)
RATES = np.array([math.sqrt(math.log(beta + 1.0) / beta) for beta in BETAS])
EQUATOR = np.diag([1.0, 1.0, 0.0])


def projected(points: Array, t: float) -> Array:
    """Tokens of zero temperature at a time: tan(λ/2) falls as e^{−t}."""
    latitude = 2.0 * np.arctan(np.tan(0.5 * np.arcsin(points[:, 2])) * math.exp(-t))
    across = points[:, :2] / np.linalg.norm(points[:, :2], axis=1, keepdims=True)
    return np.concatenate([np.cos(latitude)[:, None] * across, np.sin(latitude)[:, None]], axis=1)


def distance(masses: Array, tokens: Array, others: Array) -> float:
    """At least the 2-Wasserstein distance of the laws."""
    return math.sqrt(float(masses @ np.sum((tokens - others) ** 2, axis=1)))


@cache
def flow(beta: float) -> tuple[Array, Array, Array, Array]:
    """Tokens at t = 0, 1 and ½ log β, and their masses."""
    points, weights = oracles.gauss_grid(24)
    masses = weights * oracles.three_bumps(points)
    masses /= masses.sum()
    engine = DenseEngine(Interaction(Attention(beta), 3, EQUATOR))
    problem = ParticleProblem(engine, make_scheme("post-ln"), masses)
    found: list[Array] = []
    integrate(
        problem,
        problem.pack(points),
        [0.0, 1.0, 0.5 * math.log(beta)],
        lambda t, y: found.append(problem.unpack(y)[0]),
        Tolerances(1e-5, 1e-5 * math.sqrt(len(masses))),
    )
    return found[0], found[1], found[2], masses


def test_the_distance_to_zero_temperature_falls_with_beta() -> None:
    distances = np.array([distance(m, one, projected(start, 1.0)) for start, one, _, m in map(flow, BETAS)])
    assert (distances < 0.25 * RATES).all()
    assert (np.diff(distances / RATES) < 0.0).all()
    # A smooth positive law does better than the bound: 1/β, by Laplace's method.
    slope = np.polyfit(np.log(BETAS), np.log(distances), 1)[0]
    assert -1.2 < slope < -0.8  # the quadrature of 24 latitudes is 10 % off at β = 300


def test_after_a_time_of_order_log_beta_the_law_is_the_projected_one() -> None:
    distances = np.array([distance(m, late, projected(start, 99.0)) for start, _, late, m in map(flow, BETAS)])
    assert (distances < 0.6 * RATES).all()
    assert (np.diff(distances / RATES) < 0.0).all()
