"""Tokens under a scheme against the model, and against exact and labelled solutions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import roots_genlaguerre

from meanfield.engines import DenseEngine, TokenField, token_engine
from meanfield.initial import VonMisesFisherMixture
from meanfield.integrate import Tolerances, integrate
from meanfield.interaction import Attention, Interaction
from meanfield.normalization import make_scheme
from meanfield.particles import ParticleProblem, brownian, describe_tokens
from meanfield.sphere import Sphere

from . import measurements, oracles
from .test_engines import cloud, gauss_tokens, unit

Array = np.ndarray[Any, np.dtype[Any]]

SCHEMES = oracles.SCHEMES
SWITCH = 0.3


def scheme_of(name: str, switch_time: float = SWITCH) -> Any:
    return make_scheme(name, **({"switch_time": switch_time} if name == "mix-ln" else {}))


def problem_of(
    name: str, points: Array, weights: Array | None = None, beta: float = 4.0, noise: float = 0.0, **parameters: float
) -> ParticleProblem:
    weights = np.full(len(points), 1.0 / len(points)) if weights is None else weights
    engine = token_engine(Attention(beta), len(points), points.shape[1])
    return ParticleProblem(engine, scheme_of(name, **parameters), weights, noise)


def run(problem: ParticleProblem, state: Array, times: Any, rtol: float = 1e-10) -> Array:
    """States at the times."""
    states: list[Array] = []
    outcome = integrate(
        problem,
        state,
        times,
        lambda t, y: states.append(y.copy()),
        Tolerances(rtol, rtol * math.sqrt(len(problem.weights))),
    )
    assert outcome.status == "completed"
    return np.array(states)


# ---- tokens under a scheme -----------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [0.1, SWITCH, 0.5])
@pytest.mark.parametrize("name", SCHEMES)
def test_the_tendency_is_that_of_the_model(name: str, t: float) -> None:
    points, weights = cloud(120)
    radius = np.random.default_rng(2).uniform(0.2, 3.0, 120)
    problem = problem_of(name, points, weights)
    state = problem.pack(points, radius)
    tokens = (radius if problem.scheme.reads_radius else np.ones(120))[:, None] * points
    expected = oracles.particle_velocity(name, t, tokens, weights, 4.0, switch_time=SWITCH)
    np.testing.assert_allclose(problem.tendency(t, state), expected.ravel(), atol=1e-13)  # round-off


@pytest.mark.parametrize("name", SCHEMES)
def test_a_length_that_does_not_count_has_no_effect(name: str) -> None:
    points, weights = cloud(50)
    problem = problem_of(name, points, weights)
    state = problem.pack(points)
    if not problem.scheme.reads_radius:
        np.testing.assert_allclose(problem.tendency(0.1, 1.5 * state), 1.5 * problem.tendency(0.1, state), atol=1e-15)
        along = np.sum(problem.tendency(0.1, state).reshape(-1, 3) * points, axis=1)
        assert np.abs(along).max() < 1e-15  # round-off


@pytest.mark.parametrize("name", ["pre-ln", "peri-ln", "ln-scaling", "post-ln"])
def test_a_token_at_the_very_origin_is_no_accident(name: str) -> None:
    points, weights = cloud(9)
    problem = problem_of(name, points, weights)
    state = problem.pack(points)
    state[:3] = 0.0
    assert np.isfinite(problem.tendency(0.0, state)).all()
    values = describe_tokens(problem, 0.0, state)
    assert all(np.isfinite(value).all() for value in values.values())
    np.testing.assert_allclose(np.linalg.norm(values["position"], axis=1), 1.0, rtol=1e-15)


def by_hand(name: str, t: float, step: float, tokens: Array, beta: float) -> Array:
    """One layer, as the model has it."""

    def attention(points: Array) -> Array:
        return oracles.attention(points, points, np.full(len(points), 1.0 / len(points)), beta)

    if name == "mix-ln":
        name = "post-ln" if t + step <= SWITCH + 1e-12 else "pre-ln"
    return {
        "post-ln": lambda: unit(tokens + step * attention(tokens)),
        "pre-ln": lambda: tokens + step * attention(unit(tokens)),
        "peri-ln": lambda: tokens + step * unit(attention(unit(tokens))),
        "ngpt": lambda: unit(tokens + step * unit(attention(tokens))),
        "sqrt-scaling": lambda: unit(tokens + step / math.sqrt(t + 1.0) * attention(tokens)),
        "ln-scaling": lambda: tokens + step / math.sqrt(t + 1.0) * attention(unit(tokens)),
    }[name]()


@pytest.mark.parametrize("step", [1.0, 0.1])
@pytest.mark.parametrize("name", SCHEMES)
def test_layers_are_those_of_a_transformer(name: str, step: float) -> None:
    points, _ = cloud(40)
    problem = problem_of(name, points)
    state, tokens = problem.pack(points), points
    for number in range(5):
        tokens = by_hand(name, number * step, step, tokens, 4.0)
        state = problem.layer(number * step, step, state)
    np.testing.assert_allclose(state.reshape(-1, 3), tokens, atol=1e-14 * np.abs(tokens).max())  # round-off


@pytest.mark.parametrize("name", SCHEMES)
def test_layers_become_the_flow_at_first_order(name: str) -> None:
    points, _ = cloud(30)
    problem = problem_of(name, points)
    state = problem.pack(points, 0.7)
    flow = problem.unpack(run(problem, state, [0.0, 1.2])[-1])[0]
    errors = []
    for number in (16, 32, 64):
        y = state
        for index in range(number):
            y = problem.layer(index * 1.2 / number, 1.2 / number, y)
        errors.append(np.abs(problem.unpack(y)[0] - flow).max())
    assert errors[0] < 0.2
    # Truncation of the next order; mix-ln switches at a layer's end.
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("name", SCHEMES)
def test_energy_grows_at_the_rate_of_its_identity(name: str) -> None:
    points, weights = cloud(40)
    problem = problem_of(name, points, weights)
    times = np.linspace(0.0, 3.0, 301)
    states = run(problem, problem.pack(points, 0.4), times)  # residual streams fold at this radius
    values = [describe_tokens(problem, t, y) for t, y in zip(times, states, strict=True)]
    energies, rates = (np.array([value[name] for value in values]) for name in ("energy", "energy_rate"))
    assert energies[0] == pytest.approx(oracles.energy(points, weights, 4.0), rel=1e-13)  # round-off
    assert np.diff(energies).min() > -1e-15  # round-off
    assert rates.min() >= 0.0
    smooth = slice(1, 29) if name == "mix-ln" else slice(1, -1)
    change = (energies[2:] - energies[:-2]) / (times[2:] - times[:-2])
    error = np.abs(change[smooth] - rates[1:-1][smooth])
    assert np.median(error) < 1e-4 * rates.max()  # truncation of the difference quotient; a fold is a kink


def test_energy_with_beta_zero_and_unnormalized() -> None:
    points, weights = cloud(60)
    for attention in (Attention(0.0), Attention(2.0, "unnormalized"), Attention(-1.0), Attention(3.0, value=-1.0)):
        problem = ParticleProblem(DenseEngine(Interaction(attention)), scheme_of("post-ln"), weights)
        state, step = problem.pack(points), 1e-4
        before, here, after = (
            describe_tokens(problem, 0.0, state + shift * problem.tendency(0.0, state)) for shift in (-step, 0.0, step)
        )
        assert here["energy"] == pytest.approx(oracles.energy(points, weights, attention.beta), rel=1e-13)  # round-off
        rate = (after["energy"] - before["energy"]) / (2 * step)
        assert here["energy_rate"] == pytest.approx(rate, rel=1e-6)  # truncation of the difference quotient


def test_general_matrices_have_no_energy() -> None:
    points, weights = cloud(20)
    engine = DenseEngine(Interaction(Attention(1.0), value=np.diag([1.0, 2.0, 3.0])))
    problem = ParticleProblem(engine, scheme_of("post-ln"), weights)
    assert not {"energy", "energy_rate"} & set(describe_tokens(problem, 0.0, problem.pack(points)))


def test_diagnostics_are_weighted_sums() -> None:
    points, weights = cloud(30, 4)
    problem = problem_of("pre-ln", points, weights)
    values = describe_tokens(problem, 0.0, problem.pack(points, 0.5))
    np.testing.assert_allclose(values["position"], points, atol=1e-15)
    np.testing.assert_allclose(values["radius"], 0.5, rtol=1e-15)
    np.testing.assert_allclose(values["moment1"], np.einsum("i,ij->j", weights, points), atol=1e-15)
    np.testing.assert_allclose(values["moment2"], np.einsum("i,ij,ik->jk", weights, points, points), atol=1e-15)
    assert values["mass"] == pytest.approx(1.0, abs=1e-15)
    assert values["order_parameter"] == pytest.approx(float(np.linalg.norm(values["moment1"])))


def test_two_tokens_follow_their_own_equation() -> None:
    masses, angle, times = (0.3, 0.7), 2.5, np.linspace(0.0, 4.0, 9)
    points = np.array([[0.0, 0.0, 1.0], [math.sin(angle), 0.0, math.cos(angle)]])
    problem = problem_of("post-ln", points, np.array(masses), beta=2.0)
    states = run(problem, problem.pack(points), times, 1e-12).reshape(-1, 2, 3)
    cross = np.linalg.norm(np.cross(states[:, 0], states[:, 1]), axis=1)
    found = np.arctan2(cross, np.sum(states[:, 0] * states[:, 1], axis=1))
    np.testing.assert_allclose(found, oracles.two_clusters(angle, masses, 2.0, times), atol=1e-9)  # truncation in time


@pytest.mark.parametrize("name", ["post-ln", "ngpt", "pre-ln"])
def test_the_sphere_is_kept_for_a_thousand_times(name: str) -> None:
    points, _ = cloud(12)
    problem = problem_of(name, points)
    state = run(problem, problem.pack(points), [0.0, 1000.0], 1e-6)[-1]
    assert np.abs(np.linalg.norm(problem.unpack(state)[0], axis=1) - 1.0).max() < 1e-12  # round-off
    if name != "pre-ln":  # whose time is the logarithm of ours
        assert describe_tokens(problem, 1000.0, state)["order_parameter"] == pytest.approx(1.0, abs=1e-9)  # truncation


@pytest.mark.parametrize(("name", "mean"), measurements.PUBLISHED_MEANS.items())
def test_labelled_tokens_are_the_continuum(name: str, mean: float) -> None:
    """Three bumps, β = 4: the z-component of the mean token at t = 2, from another program.

    The quadrature's error falls spectrally, but for nGPT, whose speed 1/‖A‖ is singular where A vanishes.
    """
    sphere = Sphere(21, 32, 64)
    points, weights = gauss_tokens(sphere, oracles.three_bumps(sphere.points))
    problem = problem_of(name, points, weights, switch_time=1.0)
    state = run(problem, problem.pack(points), [0.0, 2.0], 1e-8)[-1]
    assert describe_tokens(problem, 2.0, state)["moment1"][2] == pytest.approx(
        mean, abs=3e-5 if name == "ngpt" else 3e-7
    )  # truncation of the quadrature


@pytest.mark.parametrize(("name", "length"), [("peri-ln", 0.951893273), ("pre-ln", 0.940755542)])
def test_labelled_tokens_go_on_behind_the_fold(name: str, length: float) -> None:
    """β = 1, one von Mises–Fisher bump of concentration 3, r₀ = 1: folds at t = 1 and 1.344; |∫x dμ| at t = 2."""
    z, w = np.polynomial.legendre.leggauss(64)
    longitude = 2 * np.pi * np.arange(20) / 20
    across = np.sqrt((1.0 - z) * (1.0 + z))
    points = np.stack(
        [np.outer(across, np.cos(longitude)), np.outer(across, np.sin(longitude)), np.outer(z, np.ones(20))], axis=-1
    ).reshape(-1, 3)
    law = VonMisesFisherMixture(concentrations=(3.0,), means=((0.0, 0.0, 1.0),))
    weights = np.repeat(w, 20) * law.density(points)
    problem = problem_of(name, points, weights / weights.sum(), beta=1.0)
    state = run(problem, problem.pack(points), [0.0, 2.0], 1e-7)[-1]
    found = describe_tokens(problem, 2.0, state)["order_parameter"]
    assert found == pytest.approx(length, abs=2e-8)  # truncation of the quadrature across the fold


def test_bad_states_are_refused() -> None:
    points, weights = cloud(5)
    engine = DenseEngine(Interaction(Attention(1.0)))
    for bad, match in ((-weights, "weights"), (2 * weights, "sum 1"), (weights[:, None], "weights")):
        with pytest.raises(ValueError, match=match):
            ParticleProblem(engine, scheme_of("post-ln"), bad)
    with pytest.raises(ValueError, match="noise: must be a finite number >= 0"):
        ParticleProblem(engine, scheme_of("post-ln"), weights, -1.0)
    with pytest.raises(ValueError, match=r"points: must have shape \(5, 3\)"):
        ParticleProblem(engine, scheme_of("post-ln"), weights).pack(points[:4])


# ---- noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [2, 3, 6])
def test_brownian_motion_decays_harmonics_to_third_order_in_a_step(dimension: int) -> None:
    """E P_l(x·x₀) = e^{−l(l+d−2)κτ}, with the expectation by Gauss quadrature over the length of the step."""
    half, weights = roots_genlaguerre(40, 0.5 * (dimension - 1) - 1.0)
    start, tangent = np.eye(dimension)[:2]
    for degree in (1, 2, 3):
        errors = []
        for spread in (0.005, 0.0025):
            normals = np.sqrt(2.0 * half)[:, None] * tangent
            moved = brownian(np.tile(start, (len(half), 1)), spread, normals)
            mean = np.sum(weights * oracles.gegenbauer(degree, moved @ start, dimension)) / weights.sum()
            errors.append(abs(mean - math.exp(-degree * (degree + dimension - 2) * spread)))
        if dimension == 2:
            assert max(errors) < 1e-13  # on the circle it is exact, to round-off
        else:
            assert errors[0] / errors[1] == pytest.approx(8.0, rel=0.1)  # the next order of the step


class Wind:
    """A constant field A = e_z: tokens are independent, and their law has exact moments."""

    name, attention, dimension, potential = "wind", Attention(1.0), 3, False
    breakpoints: tuple[float, ...] = ()

    def at(self, t: float) -> Any:
        return self

    def evaluate(self, points: Array, weights: Array, radial: bool = True, targets: Any = None) -> TokenField:
        field = np.tile([0.0, 0.0, 1.0], (len(points), 1))
        return TokenField(field - points[:, 2:] * points, points[:, 2].copy(), np.ones(len(points)))

    def seconds(self, count: int) -> float:
        return 0.0


def wind_moments(noise: float, height: float, t: float, lmax: int = 40) -> Array:
    """E P_l(z), from d/dt E P_l = E (1 − z²) P_l' − κ l(l+1) E P_l and its three-term form."""
    rates = np.zeros((lmax, lmax))
    for l in range(1, lmax):
        rates[l, l] = -noise * l * (l + 1)
        rates[l, l - 1] = l * (l + 1) / (2 * l + 1)
        if l + 1 < lmax:
            rates[l, l + 1] = -l * (l + 1) / (2 * l + 1)
    start = np.array([float(oracles.gegenbauer(l, np.array(height), 3)) for l in range(lmax)])
    return np.asarray(expm(rates * t) @ start)


def test_noisy_steps_have_weak_order_two() -> None:
    count, noise, height = 300_000, 0.5, -0.3
    problem = ParticleProblem(Wind(), scheme_of("post-ln"), np.full(count, 1.0 / count), noise)
    points = np.tile([math.sqrt(1.0 - height**2), 0.0, height], (count, 1))
    exact = wind_moments(noise, height, 1.0)
    errors = []
    for number in (1, 2, 4):
        generator, y = np.random.default_rng(number), problem.pack(points)
        for index in range(number):
            y = problem.walk(index / number, (index + 1) / number, y, generator)
        errors.append(abs(float(np.mean(y.reshape(-1, 3)[:, 2])) - exact[1]))
    # Statistical: a standard deviation of the mean is 9e-4, of these ratios 0.4 and 1.8.
    assert errors[0] / errors[1] == pytest.approx(3.6, abs=1.5)
    assert errors[2] < 0.0018 + 4 * 9e-4


def test_without_noise_a_walk_is_the_flow_at_second_order() -> None:
    points, _ = cloud(20)
    problem = problem_of("pre-ln", points)
    state = problem.pack(points)
    flow = run(problem, state, [0.0, 1.0])[-1]
    errors = []
    for number in (20, 40):
        y = state
        for index in range(number):
            y = problem.walk(index / number, (index + 1) / number, y, np.random.default_rng(0))
        errors.append(np.abs(y - flow).max())
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.15)  # truncation of the next order
