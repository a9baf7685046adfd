"""The exponential Adams method: exactness, order, cost and stiffness, on small systems and on the density."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import meanfield.exponential
from meanfield.density import DensityProblem
from meanfield.exponential import ExponentialAdams, exponential_moments
from meanfield.interaction import Attention
from meanfield.normalization import NGPT, PostLN, Scheme
from meanfield.sphere import Sphere

from . import oracles

Array = np.ndarray

RATES = np.array([0.0, 1.0, 30.0, 1e3, 1e6])


def wave(t: float) -> Array:
    return np.cos(t + np.arange(RATES.size)) + 2.0


def stiff(t: float, y: Array) -> Array:
    """y' = −λ(y − w) + w' − (y² − w²)/4, solved by the wave w."""
    slope = -np.sin(t + np.arange(RATES.size))
    return -RATES * (y - wave(t)) + slope - 0.25 * (y - wave(t)) * (y + wave(t))


def run(
    tendency: Callable[[float, Array], Array],
    linear: Array,
    start: Array,
    final: float,
    tolerance: float = 1e-9,
    checks: tuple[float, ...] = (),
) -> tuple[ExponentialAdams, int, list[Array]]:
    """The stepper at its end, its steps, and the states that its interpolants give at the times ``checks``."""
    stepper = ExponentialAdams(tendency, linear, 0.0, start, final, tolerance, tolerance / math.sqrt(start.size))
    steps, between = 0, []
    due = list(checks)
    while stepper.status == "running":
        assert stepper.step() is None
        steps += 1
        while due and due[0] <= stepper.t:
            between.append(stepper.dense_output()(due.pop(0)))
    assert stepper.t == final
    return stepper, steps, between


# ---- the integrals of the exponential ------------------------------------------------------------


def test_moments_of_the_exponential() -> None:
    rates = np.array([0.0, 1e-12, 1e-3, 0.7, 5.0, 39.9, 40.0, 40.1, 300.0, 1e8])
    found = exponential_moments(rates, 13)
    with mpmath.workdps(40):
        for column, rate in enumerate(rates):
            for degree in range(13):
                exact = mpmath.hyp1f1(1, degree + 2, -mpmath.mpf(rate)) / (degree + 1)
                assert found[degree, column] == pytest.approx(float(exact), rel=1e-14)  # round-off


# ---- small systems -------------------------------------------------------------------------------


def test_decay_is_exact_and_takes_one_step() -> None:
    linear = -np.array([0.0, 0.3, 17.0, 900.0])
    start = np.array([1.0, -2.0, 3.0, 1.0])
    stepper, steps, (half,) = run(lambda t, y: linear * y, linear, start, 2.0, checks=(0.7,))
    np.testing.assert_allclose(stepper.y, np.exp(2.0 * linear) * start, rtol=1e-12, atol=1e-300)  # round-off of λh
    np.testing.assert_allclose(half, np.exp(0.7 * linear) * start, rtol=1e-12)
    assert steps <= 5


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-8, 1e-10, 1e-12])
def test_the_error_follows_the_tolerance_whatever_the_stiffness(tolerance: float) -> None:
    checks = tuple(np.linspace(0.05, 9.95, 40))
    stepper, _, between = run(stiff, -RATES, wave(0.0), 10.0, tolerance, checks)
    # Time stepping: the rate (y + w)/4 < 1.5 of the component λ = 0 amplifies errors of single steps.
    assert np.abs(stepper.y - wave(10.0))[1:].max() < 10.0 * tolerance
    for t, state in zip(checks, between, strict=True):
        assert np.abs(state - wave(t))[2:].max() < 10.0 * tolerance  # the interpolant is as good as the steps


def test_cost_does_not_depend_on_stiffness() -> None:
    costs = []
    for factor in (1.0, 1e2, 1e4):
        rates = factor * np.array([0.5, 1.0, 2.0])

        def tendency(t: float, y: Array, rates: Array = rates) -> Array:
            return rates * (np.cos(t) - y) + np.sin(3.0 * y[::-1])

        stepper, _, _ = run(tendency, -rates, np.array([0.3, 0.1, -0.2]), 5.0)
        costs.append(stepper.nfev)
    # Explicit methods need some λ/6 steps a unit of time: 1e4 here.
    assert max(costs) < 600


@pytest.mark.parametrize(("order", "step"), [(2, 1 / 32), (4, 1 / 8), (6, 1 / 4), (8, 1 / 4)])
def test_order(order: int, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With k values the corrector is of order k + 1, on stiff components too, and so is its interpolant."""
    errors, between = [], []
    for h in (step, step / 2.0):
        monkeypatch.setattr(meanfield.exponential, "_factor", lambda error, order: 1.0)
        stepper = ExponentialAdams(stiff, -RATES, 0.0, wave(0.0), 2.0, 1e9, 1e9)
        # A past on the exact solution: the order is that of the method, not of its start.
        stepper._times = [-i * h for i in range(order + 2)]
        values = [stiff(t, wave(t)) + RATES * wave(t) for t in stepper._times]
        for i in range(order + 2):
            stepper._differences[i] = values[0]
            values = [(a - b) / ((i + 1) * h) for a, b in pairwise(values)]
        stepper._starting = False
        while stepper.status == "running":
            stepper.order, stepper.h_abs = order, h
            stepper.step()
        errors.append(np.abs(stepper.y - wave(2.0))[1:].max())
        middle = 2.0 - 0.37 * h
        between.append(np.abs(stepper.dense_output()(middle) - wave(middle))[1:].max())
    for error in (errors, between):
        slope = math.log(error[0] / error[1]) / math.log(2.0)
        assert slope > order + 0.3, slope  # asymptotically k + 1


def test_a_stationary_state_stays() -> None:
    linear = -np.array([1.0, 50.0, 1e4])
    still = np.array([0.4, -1.0, 2.0])

    def tendency(t: float, y: Array) -> Array:
        return linear * (y - still) + (y - still)[::-1] ** 2

    stepper, _, _ = run(tendency, linear, still, 50.0)
    np.testing.assert_allclose(stepper.y, still, rtol=1e-14)  # round-off


def test_the_longest_step_is_kept_and_the_end_is_hit() -> None:
    stepper = ExponentialAdams(lambda t, y: -y, -np.ones(1), 0.0, np.ones(1), 1.0, 1e-9, 1e-9)
    times = [0.0]
    while stepper.status == "running":
        stepper.max_step = 0.3
        stepper.step()
        times.append(stepper.t)
    assert max(np.diff(times)) <= 0.3 + 1e-15
    assert (stepper.status, times[-1]) == ("finished", 1.0)


@pytest.mark.parametrize("stop", [1, 3, 12, 30])
def test_memory_carries_a_run_on_to_the_last_bit(stop: int) -> None:
    def begun(t: float, y: Array) -> ExponentialAdams:
        return ExponentialAdams(stiff, -RATES, t, y, 3.0, 1e-9, 1e-9)

    whole = begun(0.0, wave(0.0))
    for _ in range(stop):
        whole.step()
    rest = begun(whole.t, whole.y)
    rest.recall(whole.memory, whole.h_abs)
    while whole.status == "running":
        whole.step()
        rest.step()
        assert (rest.t, rest.h_abs, rest.order) == (whole.t, whole.h_abs, whole.order)
        np.testing.assert_array_equal(rest.y, whole.y)
    assert rest.status == "finished"


def test_a_jump_is_stepped_over_with_error_control() -> None:
    def tendency(t: float, y: Array) -> Array:
        return np.array([-1000.0 * y[0] + (1000.0 if t < 0.5 else -1000.0)])

    stepper, steps, _ = run(tendency, np.array([-1000.0]), np.ones(1), 1.0)
    assert stepper.y[0] == pytest.approx(-1.0, abs=1e-8)
    assert steps < 400


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_make_it_fail(value: float) -> None:
    stepper = ExponentialAdams(
        lambda t, y: -y if t < 0.5 else np.full(1, value), -np.ones(1), 0.0, np.ones(1), 1.0, 1e-9, 1e-9
    )
    complaint = None
    with np.errstate(all="ignore"):
        for _ in range(1000):
            complaint = stepper.step()
            if stepper.status != "running":
                break
    assert stepper.status == "failed"
    assert complaint is not None
    assert 0.3 < stepper.t <= 0.5
    assert np.isfinite(stepper.y).all()


# ---- the density ---------------------------------------------------------------------------------


def noisy(lmax: int, noise: float, scheme: Scheme | None = None) -> tuple[DensityProblem, Array, Array]:
    """A problem of three bumps at β = 4, its state, and the diagonal of its diffusion."""
    space = Sphere(lmax)
    problem = DensityProblem(space, Attention(4.0), scheme or PostLN(), noise, absorbing=False)
    points = space.points.reshape(-1, 3)
    state = problem.pack(space.analysis(oracles.three_bumps(points).reshape(space.shape)))
    linear = problem.observe(0.0, state).linear
    assert linear is not None
    return problem, state, linear


def test_the_density_tells_of_its_diffusion() -> None:
    problem, state, linear = noisy(15, 0.1)
    degree = problem.space.degree
    for l in (0, 1, 7, 15):
        for m in {0, min(l, 3)}:
            f_lm = np.zeros(degree.size, complex)
            f_lm[(degree == l) & (problem.space.order == m)] = 1.0
            packed = problem.pack(f_lm)
            np.testing.assert_allclose(linear * packed, -0.1 * l * (l + 1) * packed, rtol=1e-14)
    assert problem.observe(0.0, state).longest_step == math.inf
    quiet = DensityProblem(Sphere(15), Attention(4.0), PostLN())
    assert quiet.observe(0.0, state).linear is None


@pytest.mark.parametrize("scheme", [PostLN(), NGPT()], ids=lambda scheme: scheme.name)
def test_the_noisy_density_agrees_with_an_explicit_method(scheme: Scheme) -> None:
    problem, state, linear = noisy(15, 0.02, scheme)
    exact = solve_ivp(problem.tendency, (0.0, 2.0), state, method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    stepper, _, _ = run(problem.tendency, linear, state, 2.0)
    assert np.linalg.norm(stepper.y - exact) < 4e-9  # time stepping at 1e-9


def test_steps_of_the_noisy_density_do_not_depend_on_lmax() -> None:
    counts = []
    for lmax in (15, 31, 63):  # κ lmax² from 22 to 400
        problem, state, linear = noisy(lmax, 0.1)
        stepper, steps, _ = run(problem.tendency, linear, state, 1.0)
        counts.append(steps)
        low = problem.density_lm(stepper.y)[:3]
    assert max(counts) - min(counts) <= 2, counts
    assert counts[-1] < 40
    assert abs(low[0] - 1.0 / math.sqrt(4.0 * math.pi)) < 1e-15


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
def test_small_perturbations_decay_at_the_known_rates(kernel: str) -> None:
    space, noise, beta = Sphere(31), 0.5, 2.0
    problem = DensityProblem(space, Attention(beta, kernel), PostLN(), noise)
    rho_lm = np.where((space.degree > 0) & (space.order == 0), 1e-9, 0.0).astype(complex)
    rho_lm[0] = 1.0 / math.sqrt(4.0 * math.pi)
    state = problem.pack(rho_lm)
    linear = problem.observe(0.0, state).linear
    assert linear is not None
    # Tight enough for the perturbation of 1e-9.
    stepper = ExponentialAdams(problem.tendency, linear, 0.0, state, 1.0, 1e-9, 1e-18)
    while stepper.status == "running":
        stepper.step()
    found = problem.density_lm(stepper.y)
    unit = oracles.eigenvalue(0, beta) if kernel == "softmax" else 4 * mpmath.pi * mpmath.exp(-beta)
    for l in range(1, 8):
        rate = l * (l + 1) * (float(oracles.eigenvalue(l, beta) / (beta * unit)) - noise)
        at = (space.degree == l) & (space.order == 0)
        # Relative: nonlinear terms of 1e-9, round-off 1e-16 of the whole against what is left of 1e-9.
        assert found[at][0].real == pytest.approx(1e-9 * math.exp(rate), rel=2e-6, abs=1e-16)
