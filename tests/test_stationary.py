"""Stationary densities with noise: against the equation by dense quadrature, closed forms, runs and tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.random import default_rng
from scipy.optimize import brentq
from scipy.special import ive

from meanfield.density import DensityProblem
from meanfield.exponential import ExponentialAdams
from meanfield.interaction import Attention
from meanfield.normalization import PostLN
from meanfield.sphere import Sphere
from meanfield.stationary import (
    NoisyAttention,
    State,
    critical_beta,
    stable_states,
    stationary_states,
    transition_curvature,
)
from meanfield.theory import growth_rates, noise_thresholds

from . import oracles

Array = np.ndarray
KERNELS = ["softmax", "unnormalized"]


def bessel_ratio(order: float, x: float) -> float:
    """I_{order+1}(x)/I_order(x)."""
    return float(ive(order + 1, x) / ive(order, x))


def measured_curvature(attention: NoisyAttention, arc: float) -> float:
    """(κ_1/κ − 1)/a_1² a little along the first branch, with its next order in the arc taken out."""

    def quotient(arc: float) -> float:
        start = attention.branch(steps=0).states[0]
        state = attention.advanced(start, arc)
        assert state is not None
        return float((attention.largest_noise / state.noise - 1.0) / state.moments[0] ** 2)

    return (4.0 * quotient(arc / 2.0) - quotient(arc)) / 3.0


def spectrum(space: Sphere, attention: NoisyAttention, state: State) -> Array:
    """Coefficients on S² of a state about the z-axis."""
    rho = attention.density(state, space.points[:, 0, 2]) / (4.0 * math.pi)
    return space.analysis(np.repeat(rho[:, None], space.nlon, axis=1))


# ---- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("beta", "kernel"), [(1.0, "unnormalized"), (3.0, "softmax"), (-2.0, "softmax"), (-2.0, "unnormalized")]
)
def test_states_solve_the_equation(beta: float, kernel: str) -> None:
    attention = NoisyAttention(beta, kernel)
    branch = attention.branch(smallest_noise=0.7)
    state = branch.states[-1]
    assert state.order_parameter > 0.5
    space = Sphere(23)
    change, _ = oracles.density_tendency(
        spectrum(space, attention, state), beta, "post-ln", 0.0, None, kernel, state.noise, nlat=24, lmax=10
    )
    # Truncation of the density at degree 23, relative to what noise alone would do.
    assert np.abs(change).max() < 1e-7 * state.noise * np.sqrt(4.0 * math.pi)


@pytest.mark.parametrize("dimension", [2, 3, 8, 64, 1024])
def test_states_at_beta_zero_in_closed_form(dimension: int) -> None:
    # A is the mean token: ρ is von Mises–Fisher of concentration m/κ, and m its own mean.
    attention = NoisyAttention(0.0, "softmax", dimension)
    assert attention.largest_noise == pytest.approx(1.0 / dimension, rel=1e-15)
    noise = 0.7 / dimension
    _, state = stationary_states(0.0, noise, "softmax", dimension)

    def defect(length: float) -> float:
        return bessel_ratio(0.5 * dimension - 1.0, length / noise) - length

    assert state.order_parameter == pytest.approx(brentq(defect, 0.1, 1.0, xtol=1e-14), rel=1e-10)  # round-off


def test_only_the_uniform_density_is_stationary_where_noise_is_large() -> None:
    for kernel in KERNELS:
        largest = noise_thresholds(1, 1.0, kernel)[1]
        assert len(stationary_states(1.0, 1.01 * largest, kernel)) == 1
        assert len(stationary_states(1.0, 0.9 * largest, kernel)) == 2


def test_branches_of_other_degrees() -> None:
    attention = NoisyAttention(8.0, "softmax", 2)
    for degree in (2, 3):
        branch = attention.branch(degree, smallest_noise=0.3)
        assert branch.noise[0] == noise_thresholds(degree, 8.0, dimension=2)[degree]
        moments = branch.states[-1].moments
        others = np.arange(1, attention.band + 1) % degree != 0
        assert np.abs(moments[others]).max() < 1e-10  # it keeps the symmetry of k clusters
        assert abs(moments[degree - 1]) > 0.5
        # Clusters attract each other: more than one is not stable.
        assert not branch.stable[1:].any()


# ---- the transition ------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [2, 3, 8, 64])
def test_critical_beta(dimension: int) -> None:
    critical = critical_beta(dimension)
    assert bessel_ratio(0.5 * dimension, critical) == pytest.approx(1.0 / dimension, rel=1e-11)  # root finding
    printed = {2: 2.446918, 3: 1.816155}
    if dimension in printed:
        assert critical == pytest.approx(printed[dimension], abs=6e-7)  # printed digits


@pytest.mark.parametrize("dimension", [2, 3])
def test_the_branch_itself_turns_at_critical_beta(dimension: int) -> None:
    found = brentq(
        lambda beta: measured_curvature(NoisyAttention(beta, "unnormalized", dimension), 0.02), 1.0, 4.0, xtol=1e-9
    )
    assert found == pytest.approx(critical_beta(dimension), abs=1e-6)  # truncation: the fourth power of the arc


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dimension", [2, 3, 8, 512])
@pytest.mark.parametrize("beta", [0.0, 0.5, 2.0, 6.0, -1.0])
def test_curvature_at_the_start(beta: float, dimension: int, kernel: str) -> None:
    found = measured_curvature(NoisyAttention(beta, kernel, dimension), 0.04)
    # Truncation: the fourth power of the arc.
    assert found == pytest.approx(transition_curvature(beta, kernel, dimension), rel=1e-4, abs=1e-5)


def test_softmax_attention_has_a_continuous_transition_always() -> None:
    for dimension in (2, 3, 8, 64, 1024):
        for beta in np.geomspace(1e-3, 1e6, 60):
            assert transition_curvature(float(beta), "softmax", dimension) > 0.0


@pytest.mark.parametrize(("dimension", "beta"), [(2, 2.0), (3, 1.5)])
def test_below_critical_beta_the_transition_is_continuous(dimension: int, beta: float) -> None:
    branch = NoisyAttention(beta, "unnormalized", dimension).branch(smallest_noise=0.7)
    assert branch.folds() == []
    assert (np.diff(branch.noise[1:]) < 0.0).all()
    assert branch.stable.all()


@pytest.mark.parametrize(("dimension", "beta"), [(2, 5.0), (3, 5.0)])
def test_above_critical_beta_there_is_hysteresis(dimension: int, beta: float) -> None:
    attention = NoisyAttention(beta, "unnormalized", dimension)
    branch = attention.branch(smallest_noise=0.95)
    (fold,) = branch.folds()
    assert fold.noise > 1.1 * attention.largest_noise
    assert abs(float(attention.growth_rates(fold)[0].real)) < 1e-6 * attention.largest_noise  # round-off of a root
    above = branch.order_parameter > fold.order_parameter
    np.testing.assert_array_equal(branch.stable[1:], above[1:])
    # Between threshold and fold: uniform and cluster both stable, and an unstable state between them.
    uniform, middle, cluster = stationary_states(
        beta, 0.5 * (attention.largest_noise + fold.noise), "unnormalized", dimension
    )
    assert [attention.is_stable(state) for state in (uniform, middle, cluster)] == [True, False, True]
    assert [state.order_parameter for state in stable_states(beta, uniform.noise, "unnormalized", dimension)] == [
        0.0,
        cluster.order_parameter,
    ]
    assert 0.0 < middle.order_parameter < fold.order_parameter < cluster.order_parameter


# ---- stability -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dimension", [2, 3, 7, 300])
def test_the_uniform_density_has_the_known_growth_rates(kernel: str, dimension: int) -> None:
    attention = NoisyAttention(3.0, kernel, dimension)
    noise = 0.1 * attention.largest_noise
    expected = growth_rates(12, 3.0, kernel, noise, dimension)
    for order in range(2 if dimension == 2 else 4):
        found = attention.growth_rates(attention.uniform(noise), order, count=12)
        known = np.sort(expected[max(order, 1) :])[::-1]
        # Round-off of the eigenvalues.
        np.testing.assert_allclose(found[:5].real, known[:5], rtol=0, atol=1e-11 * np.abs(expected).max())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_turning_a_state_costs_nothing(kernel: str, dimension: int) -> None:
    attention = NoisyAttention(2.0, kernel, dimension)
    for state in attention.branch(smallest_noise=0.6).states[2::5]:
        turned = attention.growth_rates(state, order=1)[0]
        assert abs(turned) < 1e-9 * attention.largest_noise * dimension  # round-off of the eigenvalues


@pytest.mark.parametrize("kernel", KERNELS)
def test_growth_rates_are_those_of_the_solver(kernel: str) -> None:
    """Eigenvalues of the derivative of the density solver's tendency, order by order."""
    beta, space = 3.0, Sphere(23)
    attention = NoisyAttention(beta, kernel)
    state = attention.branch(smallest_noise=0.7).states[-1]
    problem = DensityProblem(space, Attention(beta, kernel), PostLN(), state.noise)
    rho_lm = spectrum(space, attention, state)
    y = problem.pack(rho_lm)
    for order in range(3):
        chosen = np.flatnonzero((space.order == order) & (space.degree > 0))
        jacobian = np.empty((chosen.size, chosen.size))
        for column, position in enumerate(chosen):
            bump = np.zeros(rho_lm.size, complex)
            bump[position] = 1e-5
            step = problem.pack(bump)
            change = problem.tendency(0.0, y + step) - problem.tendency(0.0, y - step)
            jacobian[:, column] = problem.density_lm(change)[chosen].real / 2e-5
        expected = np.sort(np.linalg.eigvals(jacobian).real)[::-1]
        found = attention.growth_rates(state, order)
        # Truncation at degree 23, of the solver's; central differences make 1e-10.
        np.testing.assert_allclose(found[:4].real, expected[:4], rtol=1e-6, atol=1e-8)


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_run_ends_in_the_stable_state(kernel: str) -> None:
    beta, space = 2.0, Sphere(15)
    noise = 0.6 * float(noise_thresholds(1, beta, kernel)[1])
    problem = DensityProblem(space, Attention(beta, kernel), PostLN(), noise)
    start = problem.pack(space.analysis(oracles.three_bumps(space.points.reshape(-1, 3)).reshape(space.shape)))
    linear = problem.observe(0.0, start).linear
    assert linear is not None
    stepper = ExponentialAdams(problem.tendency, linear, 0.0, start, 12.0 / noise, 1e-7, 1e-8)
    while stepper.status == "running":
        stepper.step()
    rho_lm = problem.density_lm(stepper.y)
    mean = (
        space.integrate(space.synthesis(rho_lm) * space.points[..., 2]),
        *(space.integrate(space.synthesis(rho_lm) * space.points[..., axis]) for axis in (0, 1)),
    )
    *_, state = stationary_states(beta, noise, kernel)
    assert math.hypot(*mean) == pytest.approx(state.order_parameter, abs=1e-6)  # what is left of the transient


def test_noisy_tokens_settle_there() -> None:
    """Unnormalized attention in R⁴ at β = 0: tokens that walk, averaged over time."""
    from meanfield.particles import brownian

    count, noise, step = 2000, 0.15, 0.1
    _, state = stationary_states(0.0, noise, "unnormalized", 4)
    generator = default_rng(7)
    points = generator.standard_normal((count, 4)) + np.eye(4)[3]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    lengths = []
    for index in range(400):
        for _ in range(2):
            mean = points.mean(axis=0)
            middle = points + 0.25 * step * (mean - (points @ mean)[:, None] * points)
            mean = middle.mean(axis=0)
            points = points + 0.5 * step * (mean - np.einsum("ij,j->i", middle, mean)[:, None] * middle)
            points /= np.linalg.norm(points, axis=1, keepdims=True)
            points = brownian(points, 0.5 * noise * step, generator.standard_normal(points.shape))
        if index >= 150:
            lengths.append(float(np.linalg.norm(points.mean(axis=0))))
    # Statistical: the mean of 2000 tokens wanders by some 0.02, and ten times are independent; splitting: O(step).
    assert np.mean(lengths) == pytest.approx(state.order_parameter, abs=0.02)


# ---- arguments -----------------------------------------------------------------------------------


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="kernel"):
        NoisyAttention(1.0, "linear")
    with pytest.raises(ValueError, match="nodes: beta = 50 needs at least"):
        NoisyAttention(50.0, nodes=40)
    with pytest.raises(ValueError, match="degree: must be one of"):
        NoisyAttention(1.0).branch(0)
    with pytest.raises(ValueError, match="degree: must be one of"):
        NoisyAttention(-1.0).branch(2)  # even degrees decay
    with pytest.raises(ValueError, match="too sharp for 1440 latitudes"):
        stationary_states(1.0, 1e-5)
    attention = NoisyAttention(1.0, dimension=2)
    with pytest.raises(ValueError, match="order: must be >= 0, and at most 1"):
        attention.growth_rates(attention.uniform(0.1), 2)
    with pytest.raises(ValueError, match="no stationary state"):
        attention.at(0.01, np.full(attention.band, 1e3))
