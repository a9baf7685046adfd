"""Exact and linear solutions against closed forms, independent integrations, and the published numbers."""

import dataclasses

import numpy as np
import pytest

from meanfield.normalization import (
    NGPT,
    SCHEMES,
    LNScaling,
    MixLN,
    PeriLN,
    PostLN,
    PreLN,
    Scheme,
    SqrtScaling,
)
from meanfield.theory import (
    dominant_degree,
    equiangular_curve,
    equiangular_speed,
    equiangular_times,
    growth_factor,
    growth_rates,
    noise_thresholds,
    poisson_mean,
    poisson_radius,
    two_cluster_angle,
    uniform_flow,
    uniform_radial,
)

from . import oracles

SWITCH = 2.0
ALL = [PostLN(), PreLN(), MixLN(switch_time=SWITCH), PeriLN(), NGPT(), SqrtScaling(), LNScaling()]
PARAMETERS = {"mix-ln": {"switch_time": SWITCH}}
KERNELS = ["softmax", "unnormalized"]
every_scheme = pytest.mark.parametrize("scheme", ALL, ids=lambda scheme: scheme.name)

# Relative. The integrator asks each step for 1e-14; a few tens of steps add up.
INTEGRATED = 1e-12
# Relative. DOP853 at rtol 1e-13 on the side of the reference.
REFERENCE = 1e-10


def test_every_scheme_is_tested():
    assert {scheme.name for scheme in ALL} == set(oracles.SCHEMES) <= set(SCHEMES)


# ---- linear theory ------------------------------------------------------------------------------------------


def exact_rates(lmax, beta, kernel, dimension):
    """ω_l and a, from 40-digit Bessel functions."""
    mean = oracles.eigenvalue(0, beta, dimension, scaled=False)
    area = oracles.eigenvalue(0, 0.0, dimension)
    total = mean if kernel == "softmax" else area
    rates = [0.0]
    for degree in range(1, lmax + 1):
        value = oracles.eigenvalue(degree, beta, dimension, scaled=False)
        slope = value / beta if beta else (area / dimension if degree == 1 else 0.0)
        rates.append(float(degree * (degree + dimension - 2) * slope / total))
    return np.array(rates), float(oracles.eigenvalue(1, beta, dimension, scaled=False) / total)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dimension", [2, 3, 8, 512])
@pytest.mark.parametrize("beta", [0.0, 1e-8, 1.0, -2.0, 9.0, 64.0])
def test_growth_rates(beta, dimension, kernel):
    rates, radial = exact_rates(12, beta, kernel, dimension)
    # Round-off; 2e-13 is scipy's ₀F₁ at dimension 512.
    np.testing.assert_allclose(growth_rates(12, beta, kernel, dimension=dimension), rates, rtol=1e-12)
    assert uniform_radial(beta, dimension, kernel) == pytest.approx(radial, rel=1e-12)


@pytest.mark.parametrize(
    ("beta", "degree", "rate"), [(1, 1, 0.62607), (3, 2, 0.65673), (5, 3, 0.67235), (9, 4, 0.70314)]
)
def test_dominant_degree_on_the_sphere(beta, degree, rate):
    found = dominant_degree(beta)
    assert found[0] == degree
    assert found[1] == pytest.approx(rate, abs=5e-6)  # printed digits


@pytest.mark.parametrize("dimension", [2, 3, 8, 512])
@pytest.mark.parametrize("beta", [0.0, 1e-3, 2.0, -7.0, 100.0, 1e4])
def test_dominant_degree_is_the_largest_of_all(beta, dimension):
    rates = growth_rates(1000, beta, dimension=dimension)
    assert dominant_degree(beta, dimension=dimension) == (int(np.argmax(rates)), rates.max())


def test_many_clusters_at_large_beta():
    # ω = x e^{−x/2β}, x = l(l+1) for large β: l* → √(2β), ω* → 2/e, with corrections of order 1/β.
    degree, rate = dominant_degree(1e4)
    assert abs(degree - np.sqrt(2e4)) < 1.0
    assert rate == pytest.approx(2.0 / np.e, rel=1e-4)


def test_published_rates_of_the_circle():
    # Bruno, Pasqualotto, Agazzi (2024): unnormalized attention on the circle, 3 clusters at β = 5, 4 at β = 7.
    assert dominant_degree(5.0, "unnormalized", dimension=2)[0] == 3
    assert dominant_degree(7.0, "unnormalized", dimension=2)[0] == 4
    assert dominant_degree(5.0, "unnormalized", dimension=2)[1] == pytest.approx(18.596, abs=5e-4)
    assert dominant_degree(7.0, "unnormalized", dimension=2)[1] == pytest.approx(116.58, abs=5e-3)


@every_scheme
@pytest.mark.parametrize("beta", [-2.0, 0.0, 1.0, 4.0, 9.0])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("initial_radius", [1.0, 7.0])
def test_growth_is_that_of_the_closed_forms(scheme, beta, kernel, initial_radius):
    rates, radial = exact_rates(6, beta, kernel, 3)
    times = np.array([0.0, 0.3, 1.0, SWITCH, 3.5, 10.0])
    if scheme.name in ("peri-ln", "ngpt") and beta == 0.0:
        with pytest.raises(ValueError, match="past 0: radius or field vanishes"):
            growth_factor(scheme, 6, times, beta, initial_radius, kernel)
        return
    if radial < 0.0 and scheme.reads_radius:
        times = times[times < 0.9 * collapse_time(scheme, radial, initial_radius)]
    found = growth_factor(scheme, 6, times, beta, initial_radius, kernel)
    assert found.shape == (times.size, 7)
    for t, factor in zip(times, found, strict=True):
        exact = oracles.growth_exponent(scheme.name, rates, radial, t, initial_radius, SWITCH)
        kept = np.abs(exact) < 700.0  # others are 0 or ∞ as floats
        # Integration error of the exponent.
        np.testing.assert_allclose(np.log(factor[kept]), exact[kept], rtol=INTEGRATED, atol=INTEGRATED)


def collapse_time(scheme, radial, initial_radius):
    """When r₀ = 0, for a < 0."""
    speed = initial_radius / abs(radial)
    return {
        "pre-ln": speed,
        "mix-ln": SWITCH + speed,
        "peri-ln": initial_radius,
        "ln-scaling": (1.0 + speed / 2.0) ** 2 - 1.0,
    }[scheme.name]


@pytest.mark.parametrize("scheme", [PreLN(), MixLN(SWITCH), PeriLN(), LNScaling()], ids=lambda s: s.name)
def test_no_growth_past_the_collapse_of_the_radius(scheme):
    end = collapse_time(scheme, uniform_radial(-2.0), 0.7)
    _, radius = uniform_flow(scheme, 0.999 * end, -2.0, 0.7)
    assert 0.0 < radius < 0.01
    with pytest.raises(ValueError, match=f"no solution past {end:.6g}"):
        uniform_flow(scheme, 1.001 * end, -2.0, 0.7)


@every_scheme
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("beta", [1.0, 4.0, -1.0])
def test_rates_are_those_of_the_equation_itself(scheme, kernel, beta):
    # The continuity equation, by dense quadrature, at a density a little off the uniform one: truncation O(ε).
    epsilon, radius, t = 1e-7, 0.6, 3.0
    degree, _ = oracles.degrees_and_orders(4)
    density = np.full(degree.size, epsilon, dtype=complex)
    density[0] = 1.0 / np.sqrt(4.0 * np.pi)
    tendency, _ = oracles.density_tendency(
        density, beta, scheme.name, t, lambda x: np.full(len(x), radius), kernel, nlat=16,
        **PARAMETERS.get(scheme.name, {}),
    )  # fmt: skip
    radial = uniform_radial(beta, 3, kernel)
    speed = scheme.speed(t, radius, radial, abs(radial))
    expected = growth_rates(4, beta, kernel)[degree] * speed * epsilon
    np.testing.assert_allclose(tendency, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@every_scheme
def test_growth_follows_the_radius_in_residual_streams(scheme):
    # (r/r₀)^{ω/a}, whatever the scheme; mix-ln starts to read r at its switch.
    clock, radius = uniform_flow(scheme, [0.5, 9.0], 4.0, 0.4)
    if scheme.name == "mix-ln":
        clock = clock - np.minimum([0.5, 9.0], SWITCH)
    if scheme.reads_radius:
        np.testing.assert_allclose(np.log(radius / 0.4) / uniform_radial(4.0), clock, rtol=0, atol=INTEGRATED)
    else:
        np.testing.assert_array_equal(radius, 0.4)


def test_noise_lowers_the_rates_and_stops_them_at_the_threshold():
    degree = np.arange(6)
    for kernel in KERNELS:
        thresholds = noise_thresholds(5, 4.0, kernel)
        rates, _ = exact_rates(5, 4.0, kernel, 3)
        np.testing.assert_allclose(degree * (degree + 1) * thresholds, rates, rtol=1e-14)  # round-off
        assert np.argmax(thresholds) == 1
        for mode in range(1, 6):
            assert growth_rates(5, 4.0, kernel, noise=thresholds[mode])[mode] == 0.0
    # Diffusion runs on time, transport on the clock.
    times = np.array([0.5, 3.0])
    quiet, noisy = (growth_factor(SqrtScaling(), 5, times, 4.0, noise=kappa) for kappa in (0.0, 0.1))
    expected = quiet * np.exp(-0.1 * degree * (degree + 1) * times[:, None])
    np.testing.assert_allclose(noisy, expected, rtol=1e-14)  # round-off


def test_growth_of_any_scheme_and_shape():
    ramp = NGPT(rate=((0.5, 0.0), (1.5, 2.0)))
    times = np.array([[4.0, 0.25], [1.0, 1.0]])
    clock, _ = uniform_flow(ramp, times, 3.0)
    # ∫α = 0, 0.25, 1 + 2(t − 1.5)
    np.testing.assert_allclose(clock * uniform_radial(3.0), [[6.0, 0.0], [0.25, 0.25]], rtol=INTEGRATED, atol=0)
    assert growth_factor(ramp, 3, times, 3.0).shape == (2, 2, 4)
    assert growth_factor(ramp, 3, 1.0, 3.0).shape == (4,)
    assert growth_factor(PostLN(), 3, 1e6, 3.0)[2] == np.inf


def test_a_scheme_defined_elsewhere_needs_no_formula(monkeypatch):
    monkeypatch.setattr("meanfield.normalization.SCHEMES", dict(SCHEMES))

    @dataclasses.dataclass(frozen=True)
    class Stepped(Scheme):
        """A speed that jumps, and a radius it does not read."""

        name = "stepped"
        speed_formula = "1, then 3"
        growth_formula = "r"
        summary = "a test"

        @property
        def breakpoints(self):
            return (1.0,)

        def speed(self, t, r, radial, norm):
            return 1.0 if t < 1.0 else 3.0

        def growth(self, t, r, radial, norm):
            return r

    clock, radius = uniform_flow(Stepped(), [0.5, 1.0, 2.0], 3.0)
    np.testing.assert_allclose(clock, [0.5, 1.0, 4.0], rtol=1e-15)  # round-off
    np.testing.assert_allclose(radius, np.exp([0.5, 1.0, 2.0]), rtol=1e-15)  # round-off
    post = equiangular_curve(PostLN(), 5, 0.1, 3.0, 1.0, [1.0, 4.0])[0]
    np.testing.assert_allclose(equiangular_curve(Stepped(), 5, 0.1, 3.0, 1.0, [1.0, 2.0])[0], post, rtol=INTEGRATED)
    np.testing.assert_allclose(equiangular_times(Stepped(), 5, 0.1, 3.0, 1.0, post), [1.0, 2.0], rtol=INTEGRATED)
    np.testing.assert_allclose(
        poisson_radius([1.0, 2.0], 0.3, Stepped()), poisson_radius([1.0, 4.0], 0.3), rtol=INTEGRATED
    )


# ---- equiangular tokens -------------------------------------------------------------------------------------

LEVELS = (0.1, 0.5, 0.9, 0.99)
# β = 5, n = 256, γ(0) = 0, r₀ = α = 1, τ = 2: γ'(0) and the times at which γ reaches each level.
TABLE = {
    "post-ln": (0.00495770, (2.5474, 3.8186, 4.9307, 6.1305)),
    "pre-ln": (0.00495770, (4.1818, 8.1592, 14.8432, 35.2495)),
    "mix-ln": (0.00495770, (2.6021, 4.5340, 7.7804, 17.6919)),
    "peri-ln": (0.01339856, (1.5765, 3.7141, 9.5231, 29.5986)),
    "ngpt": (0.01339856, (0.9558, 1.6231, 2.5718, 3.7475)),
    "sqrt-scaling": (0.00495770, (4.1696, 7.4641, 11.0087, 15.5264)),
}


@pytest.mark.parametrize("scheme", ALL[:-1], ids=lambda scheme: scheme.name)
def test_equiangular_table(scheme):
    speed, times = TABLE[scheme.name]
    assert equiangular_speed(scheme, 256, 0.0, 5.0) == pytest.approx(speed, abs=5.1e-9)  # printed digits
    np.testing.assert_allclose(  # printed digits
        equiangular_times(scheme, 256, 0.0, 5.0, 1.0, LEVELS), times, rtol=0, atol=5.1e-5
    )


@every_scheme
def test_equiangular_times_by_root_finding(scheme):
    parameters = PARAMETERS.get(scheme.name, {})
    found = equiangular_times(scheme, 256, 0.0, 5.0, 1.0, LEVELS)
    expected = oracles.equiangular_times(scheme.name, 256, 0.0, 5.0, LEVELS, 400.0, **parameters)
    np.testing.assert_allclose(found, expected, rtol=1e-9)  # dense output of the reference
    curve, _ = equiangular_curve(scheme, 256, 0.0, 5.0, 1.0, found)
    np.testing.assert_allclose(curve, LEVELS, rtol=INTEGRATED)


@every_scheme
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("tokens", "cosine", "beta"), [(2, -0.8, 1.0), (3, 0.2, 0.0), (10, -0.05, 4.0), (7, 0.5, -2.0)]
)
def test_equiangular_curve(scheme, kernel, tokens, cosine, beta):
    times = np.array([0.0, 0.1, 1.0, SWITCH, 5.0])
    found = equiangular_curve(scheme, tokens, cosine, beta, 0.7, times, kernel)
    expected = oracles.equiangular(
        scheme.name, tokens, cosine, beta, times, 0.7, kernel, **PARAMETERS.get(scheme.name, {})
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=REFERENCE)


def test_initial_speeds_from_orthogonal_tokens():
    beta, n, r0 = 5.0, 256, 0.3
    post, peri = 2.0 / (np.exp(beta) + n - 1), 2.0 / np.sqrt(np.exp(2 * beta) + n - 1)
    alpha = 2.5
    expected = {
        "post-ln": post,
        "pre-ln": post / r0,
        "mix-ln": post,
        "peri-ln": peri / r0,
        "ngpt": alpha * peri,
        "sqrt-scaling": post,
        "ln-scaling": post / r0,
    }
    for scheme in ALL:
        scheme = NGPT(rate=((0.0, alpha), (1.0, 0.0))) if scheme.name == "ngpt" else scheme
        found = equiangular_speed(scheme, n, 0.0, beta, r0)
        assert found == pytest.approx(expected[scheme.name], rel=1e-14)  # round-off


@every_scheme
def test_terminal_speed(scheme):
    # Var' = −2 Var/s, s of tokens that have met: A = θ.
    clocks = {
        "post-ln": lambda t: t,
        "pre-ln": np.log,
        "mix-ln": np.log,
        "peri-ln": np.log,
        "ngpt": lambda t: t,
        "sqrt-scaling": lambda t: 2.0 * np.sqrt(t),
        "ln-scaling": lambda t: np.log(np.sqrt(t)),
    }
    times = np.array([12.0, 14.0]) if scheme.name in ("post-ln", "ngpt") else np.array([1e4, 2e4])
    if scheme.name == "sqrt-scaling":
        times = np.array([40.0, 50.0])
    gamma, _ = equiangular_curve(scheme, 4, 0.0, 1.0, 1.0, times)
    slope = np.log((1 - gamma[1]) / (1 - gamma[0])) / np.diff(clocks[scheme.name](times))[0]
    assert slope == pytest.approx(-2.0, rel=0.02)  # asymptotic; √(t+1) against √t is 1 % at t = 40


def test_equilibria_stay():
    for scheme in ALL:
        for cosine in (1.0, -1.0 / 4.0):
            gamma, _ = equiangular_curve(scheme, 5, cosine, 2.0, 1.0, [0.0, 30.0])
            np.testing.assert_allclose(gamma, cosine, rtol=1e-15)  # round-off


def test_extreme_equiangular_tokens():
    # e^{−β} is zero as a float: nothing moves, and nothing overflows.
    assert equiangular_curve(PostLN(), 4, 0.0, 1e4, 1.0, 1e3)[0] == pytest.approx(0.0, abs=1e-15)
    gamma, radius = equiangular_curve(PeriLN(), 10**6, 0.0, 1.0, 1e-6, 1e6)
    assert gamma == pytest.approx(1.0, abs=1e-9)
    assert radius == pytest.approx(1e6, rel=1e-5)


def test_levels_need_not_be_sorted():
    scheme = MixLN(switch_time=3.0)
    levels = np.array([[0.9, 0.0], [0.5, 0.1]])
    found = equiangular_times(scheme, 256, 0.0, 5.0, 1.0, levels)
    assert found[0, 1] == 0.0
    for index in np.ndindex(2, 2):
        alone = equiangular_times(scheme, 256, 0.0, 5.0, 1.0, levels[index])
        assert alone == pytest.approx(found[index], rel=INTEGRATED)


# ---- two clusters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 1.0, 6.0, -1.5])
@pytest.mark.parametrize("masses", [(0.5, 0.5), (0.9, 0.1)])
def test_two_clusters(beta, masses):
    times = np.array([0.0, 0.5, 2.0, 10.0])
    expected = oracles.two_clusters(2.5, masses, beta, times)
    np.testing.assert_allclose(two_cluster_angle(times, 2.5, masses, beta), expected, rtol=0, atol=REFERENCE)
    scaled = (3.0 * masses[0], 3.0 * masses[1])
    np.testing.assert_allclose(two_cluster_angle(times, 2.5, scaled, beta), expected, rtol=0, atol=REFERENCE)


@every_scheme
def test_two_equal_clusters_are_two_equiangular_tokens(scheme):
    times = np.array([0.0, 0.5, 2.0, 5.0, 30.0])
    angle = two_cluster_angle(times, 2.2, (1.0, 1.0), 3.0, scheme, 0.6)
    gamma, _ = equiangular_curve(scheme, 2, np.cos(2.2), 3.0, 0.6, times)
    np.testing.assert_allclose(np.cos(angle), gamma, rtol=0, atol=INTEGRATED)


@every_scheme
def test_two_unequal_clusters_against_tokens(scheme):
    # The direct sum over two weighted tokens in R³, integrated as a cloud.
    parameters = PARAMETERS.get(scheme.name, {})
    masses = np.array([0.7, 0.3])
    start = 0.8 * np.array([[1.0, 0.0, 0.0], [np.cos(1.9), np.sin(1.9), 0.0]])
    times = np.array([0.0, 1.0, 3.0])

    def velocity(t, flat):
        tokens = flat.reshape(2, 3)
        return oracles.particle_velocity(scheme.name, t, tokens, masses, 2.0, **parameters).ravel()

    states = oracles.integrate(velocity, start.ravel(), times, scheme.name, parameters, 1e-12)
    first, second = np.moveaxis(states.reshape(-1, 2, 3), 1, 0)
    expected = np.arctan2(np.linalg.norm(np.cross(first, second), axis=-1), np.sum(first * second, axis=-1))
    found = two_cluster_angle(times, 1.9, (0.7, 0.3), 2.0, scheme, 0.8)
    np.testing.assert_allclose(found, expected, rtol=0, atol=REFERENCE)


def test_small_angles_keep_their_digits():
    # φ' = −sin φ for Post-LN close by: the relative accuracy survives e^{−100}.
    early, late = two_cluster_angle([20.0, 120.0], 1.0, (0.5, 0.5), 2.0)
    assert late / early == pytest.approx(np.exp(-100.0), rel=1e-10)  # integration error of the exponent
    assert np.all(two_cluster_angle([0.0, 5.0], 0.0, (0.5, 0.5), 2.0) == 0.0)


# ---- the Poisson kernel -------------------------------------------------------------------------------------


def test_poisson_table():
    means = poisson_mean(poisson_radius([0.0, 1.0, 2.0, 4.0], 0.3))
    np.testing.assert_allclose(means, [0.3927045, 0.6473419, 0.8683198, 0.9935316], rtol=0, atol=5.1e-8)  # printed


@pytest.mark.parametrize("dimension", [2, 3, 4, 8])
def test_poisson_mean(dimension):
    radii = np.array([0.01, 0.3, 0.6, 0.9])
    expected = [oracles.poisson_mean(radius, dimension) for radius in radii]
    np.testing.assert_allclose(poisson_mean(radii, dimension), expected, rtol=1e-12)  # round-off of quadrature
    assert poisson_mean(1e-12, dimension) == pytest.approx(2 * (dimension - 1) / dimension * 1e-12, rel=1e-14)
    assert poisson_mean(1.0, dimension) == pytest.approx(1.0, rel=1e-14)  # round-off
    assert poisson_mean(0.0, dimension) == 0.0


def test_poisson_mean_in_closed_form():
    radii = np.array([0.2, 0.5, 0.99, 1 - 1e-9])
    np.testing.assert_allclose(poisson_mean(radii, 2), radii, rtol=1e-15)  # round-off
    log = np.log((1 + radii) / (1 - radii))
    closed = (1 + radii**2) / (2 * radii) - (1 - radii**2) ** 2 / (4 * radii**2) * log
    np.testing.assert_allclose(poisson_mean(radii, 3), closed, rtol=1e-13)  # cancellation in the closed form


@pytest.mark.parametrize("dimension", [2, 3, 8])
@pytest.mark.parametrize("scheme", [PostLN(), NGPT(), SqrtScaling()], ids=lambda scheme: scheme.name)
def test_poisson_radius(scheme, dimension):
    times = np.array([0.0, 0.5, 1.0, 3.0])
    found = poisson_radius(times, 0.3, scheme, dimension)
    expected = oracles.poisson_radius(times, 0.3, scheme.name, dimension)
    np.testing.assert_allclose(found, expected, rtol=0, atol=REFERENCE)


@pytest.mark.parametrize("dimension", [2, 3, 512])
def test_poisson_radius_in_closed_form(dimension):
    times = np.array([3.0, 0.0, 0.5, 1.0])
    ngpt = poisson_radius(times, 0.3, NGPT(rate=2.0), dimension)
    np.testing.assert_allclose(ngpt, np.tanh(times + np.arctanh(0.3)), rtol=INTEGRATED)
    post = poisson_radius(2.0 * (np.sqrt(times + 1.0) - 1.0), 0.3, PostLN(), dimension)
    np.testing.assert_allclose(poisson_radius(times, 0.3, SqrtScaling(), dimension), post, rtol=INTEGRATED)


def test_the_poisson_kernel_solves_the_equation():
    # ∂ρ/∂t at β = 0 by dense quadrature, against a central difference in R along R(t): truncation h².
    h, axis, points = 1e-4, np.array([0.6, 0.0, 0.8]), oracles.gauss_grid(32)[0]
    weights = oracles.gauss_grid(32)[1]
    radius = poisson_radius([1.0 - h, 1.0, 1.0 + h], 0.2)
    spectra = [
        oracles.analysis(oracles.poisson_kernel(points, R, axis) / (4 * np.pi), points, weights, 20) for R in radius
    ]
    tendency, _ = oracles.density_tendency(spectra[1], 0.0, nlat=32, lmax=8)
    difference = (spectra[2] - spectra[0]) / (2 * h)
    degree, order = oracles.degrees_and_orders(20)
    kept = degree <= 8
    assert np.array_equal(np.stack([degree[kept], order[kept]]), oracles.degrees_and_orders(8))
    np.testing.assert_allclose(tendency, difference[kept], rtol=0, atol=1e-7)


@pytest.mark.parametrize("scheme", [PreLN(), MixLN(SWITCH), PeriLN(), LNScaling()], ids=lambda s: s.name)
def test_other_schemes_do_not_keep_the_poisson_kernel(scheme):
    with pytest.raises(ValueError, match=scheme.name):
        poisson_radius([1.0], 0.3, scheme)


# ---- the references themselves ------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "length"), [("peri-ln", 0.951893273), ("pre-ln", 0.940755542)])
def test_labelled_continuum_passes_the_fold(scheme, length):
    tokens, masses = oracles.zonal_labelled_continuum(
        lambda x: oracles.vmf_mixture(x, [1.0], [3.0], [[0, 0, 1]]), [0.0, 2.0], scheme, 1.0, nlat=100, rtol=1e-9
    )
    directions = tokens[-1] / np.linalg.norm(tokens[-1], axis=-1, keepdims=True)
    assert masses @ directions[:, 1] == pytest.approx(length, abs=2e-9)  # truncation, of the quadrature


@pytest.mark.parametrize(
    ("scheme", "height", "error"),
    # Truncation: error of a grid of 12 latitudes, less than a percent of what tells schemes apart.
    [
        ("post-ln", 0.0796324607, 1e-6),
        ("ngpt", 0.0941216806, 1e-4),
        ("peri-ln", 0.0662660425, 1e-5),
        ("pre-ln", 0.0619074218, 1e-6),
        ("mix-ln", 0.0734525601, 1e-6),
    ],
)
def test_labelled_continuum_of_three_bumps(scheme, height, error):
    tokens, masses = oracles.labelled_continuum(oracles.three_bumps, [0.0, 2.0], scheme, 4.0, nlat=12)
    directions = tokens[-1] / np.linalg.norm(tokens[-1], axis=-1, keepdims=True)
    assert masses.sum() == pytest.approx(1.0, abs=1e-12)  # truncation
    assert (masses @ directions)[2] == pytest.approx(height, abs=error)


# ---- arguments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: growth_rates(3, np.nan), "beta"),
        (lambda: growth_rates(3, 701.0, "unnormalized"), "beta"),
        (lambda: growth_rates(-1, 1.0), "lmax"),
        (lambda: growth_rates(3, 1.0, dimension=1), "dimension"),
        (lambda: growth_rates(3, 1.0, "linear"), "kernel"),
        (lambda: growth_rates(3, 1.0, noise=-0.1), "noise"),
        (lambda: growth_factor(PostLN(), 3, 1.0, 1.0, noise=np.inf), "noise"),
        (lambda: dominant_degree(np.inf), "beta"),
        (lambda: uniform_flow(PostLN(), [0.0, -1.0], 1.0), "times"),
        (lambda: uniform_flow(PostLN(), np.nan, 1.0), "times"),
        (lambda: uniform_flow(PreLN(), 1.0, 1.0, 0.0), "initial_radius"),
        (lambda: equiangular_curve(PostLN(), 1, 0.0, 1.0, 1.0, 1.0), "tokens"),
        (lambda: equiangular_curve(PostLN(), 5, -0.26, 1.0, 1.0, 1.0), "cosine"),
        (lambda: equiangular_curve(PostLN(), 5, 0.0, 1.0, np.inf, 1.0), "initial_radius"),
        (lambda: equiangular_curve(PostLN(), 5, 0.0, 1.0, 1.0, np.inf), "times"),
        (lambda: equiangular_times(PostLN(), 5, 0.2, 1.0, 1.0, 0.1), "levels"),
        (lambda: equiangular_times(PostLN(), 5, 0.2, 1.0, 1.0, 1.0), "levels"),
        (lambda: equiangular_times(PostLN(), 5, -0.25, 1.0, 1.0, 0.5), "levels"),
        (lambda: equiangular_speed(PostLN(), 5, 2.0, 1.0), "cosine"),
        (lambda: two_cluster_angle(1.0, 4.0, (0.5, 0.5), 1.0), "angle"),
        (lambda: two_cluster_angle(1.0, 1.0, (0.5, 0.0), 1.0), "masses"),
        (lambda: two_cluster_angle(1.0, 1.0, (0.5, 0.5), np.nan), "beta"),
        (lambda: poisson_radius(1.0, 0.0), "radius"),
        (lambda: poisson_radius(1.0, 0.5, dimension=1), "dimension"),
        (lambda: poisson_mean(1.1), "radius"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
