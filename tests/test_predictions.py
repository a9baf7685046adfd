"""Predictions of a case against closed forms, independent runs of tokens on the circle, and labelled tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import default_rng
from scipy.integrate import quad, solve_ivp
from scipy.special import iv

from meanfield.initial import Equiangular, Law, ParticleCloud, PoissonKernel, Uniform, VonMisesFisherMixture
from meanfield.normalization import NGPT, LNScaling, MixLN, PeriLN, PostLN, PreLN, Scheme, SqrtScaling
from meanfield.predictions import (
    Model,
    Prediction,
    amplitudes,
    axis_density,
    cluster_angles,
    clustering,
    curves,
    energy_bounds,
    fold_time,
    predictions,
    token_amplitudes,
)

from . import oracles

Array = np.ndarray
SCHEMES = (PostLN(), PreLN(), PeriLN(), NGPT(), LNScaling())
BUMP = VonMisesFisherMixture(concentrations=(3.0,), means=((0.0, 0.6, 0.8),))


def named(found: list[Prediction]) -> dict[str, float | tuple[float, ...]]:
    return {row.name: row.value for row in found}


# ---- clusters ------------------------------------------------------------------------------------


def circle_run(beta: float, count: int, seed: int, times: Array) -> Array:
    """Moments μ̂_k, k ≤ 12, of iid tokens under unnormalized attention on the circle: (times, 13)."""
    size = 18
    degree = np.arange(1, size + 1)
    factors = 2.0 * degree * iv(degree, beta) / beta

    def waves(angles: Array) -> Array:
        return np.cumprod(np.broadcast_to(np.exp(1j * angles), (size, count)), axis=0)

    def velocity(angles: Array) -> Array:
        wave = waves(angles)
        return -((factors * wave.mean(axis=1).conj()) @ wave).imag

    angles = default_rng(seed).uniform(0.0, 2.0 * math.pi, count)
    moments = []
    for step in np.diff(times, append=times[-1]):
        moments.append(np.append(1.0, waves(angles)[:12].mean(axis=1).conj()))
        slopes = [velocity(angles)]
        for share in (0.5, 0.5, 1.0):
            slopes.append(velocity(angles + share * step * slopes[-1]))
        angles = angles + step / 6.0 * (slopes[0] + 2.0 * slopes[1] + 2.0 * slopes[2] + slopes[3])
    return np.array(moments)


@pytest.mark.parametrize(("beta", "degree", "published"), [(5.0, 3, 0.30), (7.0, 4, 0.045)])
def test_published_clusters_on_the_circle(beta: float, degree: int, published: float) -> None:
    # Bruno, Pasqualotto, Agazzi (2024): 2·10⁴ iid tokens.
    found = named(predictions(Model(PostLN(), beta, "unnormalized", dimension=2), Uniform(), tokens=20_000))
    assert found["cluster_degree"] == found["dominant_degree"] == degree
    # The time of a root mean square draw, at amplitude 1, against one that was read off a picture.
    assert found["clustering_time"] == pytest.approx(published, rel=0.15)


@pytest.mark.parametrize(("beta", "degree", "seed", "final"), [(5.0, 3, 3, 0.36), (7.0, 4, 1, 0.055)])
def test_clusters_of_a_run_on_the_circle(beta: float, degree: int, seed: int, final: float) -> None:
    times = np.linspace(0.0, final, 25)
    moments = circle_run(beta, 20_000, seed, times)
    model = Model(PostLN(), beta, "unnormalized", dimension=2)
    found = named(predictions(model, circle_lm=moments[0]))
    assert found["cluster_degree"] == degree
    # Linear theory reaches 1 while the wave, which saturates, passes from a half to three quarters.
    half, most = (float(np.interp(level, np.abs(moments[:, degree]), times)) for level in (0.5, 0.75))
    assert half < found["clustering_time"] < most
    places = cluster_angles(complex(moments[times.searchsorted(half), degree]), degree)
    apart = np.angle(np.exp(1j * (places - np.array(found["cluster_angles"]))))
    assert np.abs(apart).max() < 0.15 * 2.0 * math.pi / degree  # nonlinear terms, and other degrees


def test_clustering_time_in_closed_form() -> None:
    model = Model(PostLN(), 5.0, "unnormalized", dimension=2)
    degree, time = clustering(model, token_amplitudes(400, 8)) or (0, 0.0)
    rate = degree**2 * iv(degree, 5.0) / 5.0
    assert time == pytest.approx(math.log(20.0) / rate, rel=1e-10)  # root finding
    later = clustering(Model(SqrtScaling(), 5.0, "unnormalized", dimension=2), token_amplitudes(400, 8))
    assert later is not None
    assert 2.0 * (math.sqrt(later[1] + 1.0) - 1.0) == pytest.approx(time, rel=1e-9)
    noisy = clustering(Model(PostLN(), 5.0, "unnormalized", 0.5, 2), token_amplitudes(400, 8))
    assert noisy is not None
    assert noisy[1] == pytest.approx(math.log(20.0) / (rate - 0.5 * degree**2), rel=1e-9)


def test_the_degree_that_leads_need_not_be_the_one_that_grows_fastest() -> None:
    model = Model(PostLN(), 9.0)
    initial = np.append(1.0, np.full(8, 1e-6))
    assert (clustering(model, initial) or (0,))[0] == 4
    initial[2] = 0.3
    degree, _ = clustering(model, initial) or (0, 0.0)
    assert degree == 2


def test_no_clusters_where_nothing_grows() -> None:
    strong = Model(PostLN(), 2.0, noise=1.0)
    assert clustering(strong, token_amplitudes(100, 6)) is None
    assert "clustering_time" not in named(predictions(strong, Uniform(), tokens=100))
    assert clustering(Model(PreLN(), -2.0), token_amplitudes(10**6, 6)) is None  # the radius vanishes before


def test_amplitudes() -> None:
    # Tokens at one point have the amplitude 1 at every degree; on S² the power is (2l+1)/4π.
    np.testing.assert_allclose(amplitudes((2 * np.arange(6) + 1) / (4.0 * math.pi)), 1.0, rtol=1e-14)  # round-off
    np.testing.assert_allclose(amplitudes([1.0, 2.0, 2.0], dimension=2), 1.0, rtol=1e-14)


# ---- the fold ------------------------------------------------------------------------------------


def test_peri_ln_folds_at_its_radius() -> None:
    for beta in (0.0, 1.0, 2.5):
        found = named(predictions(Model(PeriLN(), beta, initial_radius=0.7), BUMP))
        assert found["fold_time"] == pytest.approx(0.7, rel=1e-12)
    # Beyond the concentration of the law, attention at the antipode looks at the antipode.
    assert "fold_time" not in named(predictions(Model(PeriLN(), 6.0, initial_radius=0.7), BUMP))


@pytest.mark.parametrize("scheme", [PreLN(), LNScaling(), PeriLN()], ids=lambda scheme: scheme.name)
def test_fold_time_at_beta_zero(scheme: Scheme) -> None:
    """The height of the antipodal token, x' = gain M e, by adaptive quadrature over the heights of S²."""
    radius, concentration = 0.6, 3.0

    def mean(shift: float) -> float:
        def weighted(t: float) -> float:
            return (
                math.exp(concentration * (t - 1.0))
                * (radius * t + shift)
                / math.sqrt(max(radius**2 + 2.0 * radius * shift * t + shift**2, 1e-300))
            )

        norm = (1.0 - math.exp(-2.0 * concentration)) / concentration
        return quad(weighted, -1.0, 1.0, epsabs=1e-12, epsrel=1e-12)[0] / norm

    def slope(shift: float, time: Array) -> Array:
        size = mean(shift)
        gain = {"pre-ln": 1.0, "ln-scaling": 1.0 / math.sqrt(time[0] + 1.0), "peri-ln": 1.0 / size}[scheme.name]
        return np.array([1.0 / (gain * size)])

    expected = solve_ivp(slope, (0.0, radius), [0.0], rtol=1e-10, atol=1e-12).y[0, -1]
    found = fold_time(Model(scheme, 0.0, initial_radius=radius), axis_density(BUMP, 3) or (lambda t: t))
    assert found == pytest.approx(expected, rel=1e-7)  # quadrature: the antipodal token is a corner at the end


def test_no_fold_is_told_where_none_is_known() -> None:
    density = axis_density(BUMP, 3)
    assert density is not None
    for model in (
        Model(PostLN(), 1.0),
        Model(MixLN(1.0), 0.0),
        Model(PreLN(), 1.0),
        Model(PeriLN(), -1.0),
    ):
        assert fold_time(model, density) is None
    two = VonMisesFisherMixture(concentrations=(3.0, 3.0), means=((0.0, 0.0, 1.0), (1.0, 0.0, 0.0)))
    assert axis_density(two, 3) is None
    assert axis_density(Uniform(), 3) is None


@pytest.mark.parametrize(
    "law", [BUMP, PoissonKernel(0.4), VonMisesFisherMixture(concentrations=(2.0,), means=("south",))]
)
def test_axis_density(law: Law) -> None:
    density = axis_density(law, 3)
    assert density is not None
    heights = np.linspace(-0.99, 0.99, 7)
    if isinstance(law, PoissonKernel):
        expected = ((1 - 0.16) / (1 + 0.16 - 0.8 * heights)) ** 2
    else:
        kappa = law.concentrations[0]
        expected = kappa / math.sinh(kappa) * np.exp(kappa * heights)
    np.testing.assert_allclose(density(heights), expected, rtol=1e-12)  # round-off


# ---- energy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [2, 3, 8])
@pytest.mark.parametrize("beta", [-3.0, 0.0, 2.0, 9.0])
def test_energy_bounds(beta: float, dimension: int) -> None:
    lowest, highest = energy_bounds(beta, dimension)
    generator = default_rng(3)

    def energy(points: Array) -> float:
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
        inner = points @ points.T
        return float(np.mean(np.exp(beta * inner - abs(beta)))) / (2.0 * beta) if beta else 0.5 * float(inner.mean())

    axis = np.eye(dimension)[:1]
    extremes = {"one": energy(axis), "two": energy(np.concatenate([axis, -axis]))}
    assert highest == pytest.approx(extremes["one"], rel=1e-14)
    if beta < 0.0:
        assert lowest == pytest.approx(extremes["two"], rel=1e-14)
    else:
        many = generator.standard_normal((1500, dimension))
        # Statistical: tokens have self terms, 1/N of the largest energy.
        assert lowest == pytest.approx(energy(many), abs=2e-3)
    for count in (1, 2, 5, 50):
        for spread in (0.1, 1.0, 10.0):
            points = generator.standard_normal((count, dimension)) * spread + axis
            assert lowest - 1e-15 <= energy(points) <= highest + 1e-15


# ---- the whole -----------------------------------------------------------------------------------


def test_noise_is_told_of() -> None:
    found = named(predictions(Model(PostLN(), 1.0, "unnormalized", 0.2, 2), Uniform(), tokens=100))
    assert found["noise_threshold"] == pytest.approx(iv(1, 1.0), rel=1e-13)
    assert found["critical_beta"] == pytest.approx(2.446918, abs=6e-7)  # printed digits
    assert found["transition_curvature"] > 0.0
    (order,) = found["stationary_order_parameter"]
    assert 0.5 < order < 1.0
    quiet = named(predictions(Model(PostLN(), 1.0, "unnormalized", 2.0, 2)))
    assert quiet["stationary_order_parameter"] == (0.0,)
    assert "stationary_order_parameter" not in named(predictions(Model(PostLN(), 1.0, noise=1e-5)))
    fold = Model(PostLN(), 5.0, "unnormalized", 1.05 * float(iv(1, 5.0)) / 5.0, 2)
    both = named(predictions(fold))["stationary_order_parameter"]
    assert len(both) == 2  # hysteresis: uniform, and a cluster
    assert both[0] == 0.0


def test_equiangular_tokens() -> None:
    found = named(predictions(Model(PostLN(), 5.0, dimension=256), Equiangular(0.0), tokens=256))
    assert found["equiangular_speed"] == pytest.approx(0.00495770, abs=5.1e-9)  # printed digits
    for level, time in ((0.5, 3.8186), (0.9, 4.9307), (0.99, 6.1305)):
        assert found[f"equiangular_time_{level:g}"] == pytest.approx(time, abs=5.1e-5)
    times = np.array([0.0, 3.8186, 6.1305])
    _, order = curves(Model(PostLN(), 5.0, dimension=256), times, Equiangular(0.0), tokens=256)["order_parameter"]
    np.testing.assert_allclose(order**2, (1.0 + 255.0 * np.array([0.0, 0.5, 0.99])) / 256.0, atol=1e-4)


@pytest.mark.parametrize("scheme", [PostLN(), NGPT()], ids=lambda scheme: scheme.name)
def test_poisson_kernel(scheme: Scheme) -> None:
    times = np.array([0.0, 1.0])
    _, order = curves(Model(scheme, 0.0), times, PoissonKernel(0.3))["order_parameter"]
    expected = [oracles.poisson_mean(radius) for radius in oracles.poisson_radius(times, 0.3, scheme.name)]
    np.testing.assert_allclose(order, expected, rtol=1e-9)  # integration of the reference


def test_curves_of_linear_theory_end_where_it_does() -> None:
    power = np.append(1.0, np.full(6, 1e-8)) / (4.0 * math.pi)
    times = np.linspace(0.0, 30.0, 61)
    found = curves(Model(PostLN(), 5.0), times, Uniform(), power=power)
    grown = found["degree_power"][1]
    rates, _ = exact_rates(6, 5.0)
    np.testing.assert_allclose(grown[4], power * np.exp(2.0 * rates * times[4]), rtol=1e-11)
    assert np.isnan(grown[-1]).all()
    first = clustering(Model(PostLN(), 5.0), amplitudes(power))
    assert first is not None
    np.testing.assert_array_equal(np.isnan(grown[:, 1]), times > first[1])
    assert found["energy"][1].shape == (61, 2)
    assert "radius" not in found
    radius = curves(Model(PreLN(), 5.0, initial_radius=0.5), times, ParticleCloud(10, 0))["radius"][1]
    assert radius[0] == 0.5
    assert "radius" not in curves(Model(PreLN(), -5.0), times, Uniform())  # it vanishes


def exact_rates(lmax: int, beta: float) -> tuple[Array, float]:
    unit = oracles.eigenvalue(0, beta)
    rates = [l * (l + 1) * float(oracles.eigenvalue(l, beta) / unit) / beta for l in range(lmax + 1)]
    return np.array(rates), float(oracles.eigenvalue(1, beta) / unit)


@pytest.mark.parametrize(
    ("scheme", "dimension"),
    [*((scheme, 3) for scheme in SCHEMES), *((PreLN(), dimension) for dimension in (2, 64)), (NGPT(), 1024)],
)
def test_every_dimension_and_scheme(scheme: Scheme, dimension: int) -> None:
    for beta in {1.0, math.sqrt(dimension) if dimension > 3 else 1.0}:
        model = Model(scheme, beta, dimension=dimension)
        found = named(predictions(model, Uniform(), tokens=1000, final=3.0))
        assert found["clustering_time"] > 0.0
        assert all(np.isfinite(value).all() for value in found.values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: token_amplitudes(0, 3), "tokens"),
        (lambda: cluster_angles(0.0, 3), "coefficient"),
        (lambda: cluster_angles(1.0, 0), "degree"),
        (lambda: predictions(Model(PostLN(), 1e7)), "beta"),
        (lambda: predictions(Model(PostLN(), 1.0, "linear")), "kernel"),
        (lambda: predictions(Model(PostLN(), 1.0, noise=-1.0)), "noise"),
    ],
)
def test_bad_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
