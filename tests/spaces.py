"""Runs of the density solver on any space, and their errors: what the tests of circle and zonal bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meanfield.density import DensityProblem
from meanfield.initial import Law, PoissonKernel, VonMisesFisherMixture
from meanfield.integrate import Tolerances, integrate
from meanfield.interaction import Attention
from meanfield.normalization import make_scheme
from meanfield.space import Space

from . import oracles
from .measurements import seconds

POLES = VonMisesFisherMixture(concentrations=(2.0, 3.0), means=("north", "south"), weights=(0.6, 0.4))
"""Two bumps about the axis."""
POISSON_KERNELS = ((2, 0.3, 0.8, 127), (3, 0.3, 0.8, 127), (4, 0.3, 0.8, 127), (8, 0.3, 0.6, 95), (64, 0.1, 0.4, 63))
"""Dimension, initial radius, final time, and lmax that holds the kernel until then."""
ATTENTIONS = ((4.0, "softmax"), (-2.0, "softmax"), (1.0, "unnormalized"))
"""Inverse temperature and kernel under which growth is measured."""


def problem_on(space: Space, beta: float, scheme: str, kernel: str = "softmax", switch: float = 0.5) -> DensityProblem:
    """A density problem; mix-ln switches at ``switch``."""
    parameters = {"switch_time": switch} if scheme == "mix-ln" else {}
    return DensityProblem(space, Attention(beta, kernel), make_scheme(scheme, **parameters), absorbing=False)


def start_of(problem: DensityProblem, rho_lm: np.ndarray, radius: float = 1.0) -> np.ndarray:
    """State of a density with all tokens at one radius."""
    radius_lm = np.zeros_like(rho_lm)
    radius_lm[0] = radius * math.sqrt(problem.space.volume)
    return problem.pack(rho_lm, radius_lm if problem.scheme.reads_radius else None)


def solve(problem: DensityProblem, state: np.ndarray, times: Any, rtol: float = 1e-12, atol: float = 1e-12) -> Any:
    """States at several times, the first of them that of the start."""
    states: list[np.ndarray] = []
    outcome = integrate(problem, state, times, lambda t, y: states.append(y.copy()), Tolerances(rtol, atol))
    assert outcome.status == "completed", outcome.message
    return states


def mean_token(problem: DensityProblem, y: np.ndarray) -> np.ndarray:
    """∫ xρ."""
    return problem.space.first_moment(problem.space.synthesis(problem.density_lm(y)))


def growth_error(space: Space, scheme: str, beta: float, kernel: str = "softmax", radius: float = 0.8) -> float:
    """Largest relative error of the growth of the modes l = 1 … 4 about the uniform density (PHYSICS §3).

    The final time is that at which the fastest has grown, or faded, by e.
    """
    d, modes = space.dimension, np.arange(1, 5)
    scale = 1.0 if kernel == "softmax" else oracles.mean_kernel(beta, d)
    ratios = [scale * float(oracles.eigenvalue(l, beta, d) / oracles.eigenvalue(0, beta, d)) for l in modes]
    rates = modes * (modes + d - 2) * np.array(ratios) / beta

    def exponents(time: float) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):  # past the time at which the radius would be 0
            return oracles.growth_exponent(scheme, rates, ratios[0], time, radius, switch_time=time / 2)

    final = 1.0
    while np.abs(exponents(final)).max() > 1.0 or not np.isfinite(exponents(final)).all():
        final *= 0.7
    problem = problem_on(space, beta, scheme, kernel, final / 2)
    rho_lm = np.zeros(space.spectral_shape, dtype=np.complex128)
    rho_lm[0] = space.volume**-0.5
    places = [int(np.flatnonzero(space.degree == l)[-1]) for l in modes]  # of the largest order there is
    phases = np.exp(1j * modes) if space.order[places].all() else np.ones(4)
    rho_lm[places] = 1e-9 * phases / (1 + modes)
    end = problem.density_lm(solve(problem, start_of(problem, rho_lm, radius), (0.0, final), atol=1e-16)[-1])
    return float(np.abs(end[places] / rho_lm[places] / np.exp(exponents(final)) - 1).max())


def poisson_mean_error(space: Space, law: PoissonKernel, scheme: str, final: float) -> float:
    """Largest error of the length of the mean token of a Poisson kernel at β = 0 (PHYSICS §4)."""
    problem = problem_on(space, 0.0, scheme)
    times = np.array([0.0, final / 2, final])
    states = solve(problem, start_of(problem, law.coefficients(space)), times)
    if scheme == "ngpt":
        radii = np.tanh(0.5 * times + math.atanh(law.radius))
    else:
        radii = oracles.poisson_radius(times, law.radius, scheme, space.dimension)
    exact = [oracles.poisson_mean(radius, space.dimension) for radius in radii]
    return float(max(abs(np.linalg.norm(mean_token(problem, y)) - e) for y, e in zip(states, exact, strict=True)))


def difference(spaces: tuple[Space, Space], law: Law, beta: float, scheme: str, final: float) -> float:
    """Largest difference of mean token and, relative to its maximum, of density between runs on two spaces."""
    cosine = np.linspace(-1.0, 1.0, 41)
    points = np.zeros((41, spaces[0].dimension))
    points[:, 0], points[:, -1] = np.sqrt(1 - cosine**2), cosine
    means, densities = [], []
    for space in spaces:
        problem = problem_on(space, beta, scheme, switch=final / 2)
        y = solve(problem, start_of(problem, law.coefficients(space)), (0.0, final))[-1]
        means.append(mean_token(problem, y))
        densities.append(space.volume * space.values_at(problem.density_lm(y), points))
    gap = np.abs(densities[0] - densities[1]).max() / densities[0].max()
    return float(max(np.abs(means[0] - means[1]).max(), gap))


def truncation_error(space: Space, finer: Space) -> float:
    """Error of the density of `POLES` at t = 1, Post-LN and β = 4, against a finer run: relative, in the L² norm."""
    ends = []
    for each in (space, finer):
        problem = problem_on(each, 4.0, "post-ln")
        y = solve(problem, start_of(problem, POLES.coefficients(each)), (0.0, 1.0))[-1]
        ends.append(finer.pack(finer.resized(problem.density_lm(y), each.lmax)))
    return float(np.linalg.norm(ends[0] - ends[1]) / np.linalg.norm(ends[1]))


def tendency_seconds(space: Space) -> float:
    """Time of one tendency of the same."""
    problem = problem_on(space, 4.0, "post-ln")
    y = start_of(problem, POLES.coefficients(space))
    return seconds(lambda: problem.tendency(0.0, y))
