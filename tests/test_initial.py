"""Initial laws: density, spectrum and sampler are three descriptions of one law."""

from __future__ import annotations

import dataclasses
import math
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from meanfield.initial import (
    LAWS,
    Equiangular,
    Harmonics,
    ParticleCloud,
    PoissonKernel,
    TokenFile,
    Tokens,
    Uniform,
    VonMisesFisherMixture,
    ZonalHarmonics,
    principal_projection,
)
from meanfield.kernels import poisson_moments
from meanfield.sphere import Sphere

from . import oracles

ROUND_OFF = 1e-13
UNLIKELY = 1e-5
"""A test statistic of a fixed seed must not be rarer than this: a statistical tolerance."""

DIRECTIONS = {"+x": (1, 0, 0), "+y": (0, 1, 0), "-z": (0, 0, -1), "oblique": (1, -2, 0.5)}
SMOOTH_LAWS = {
    "uniform": Uniform(),
    "bump": VonMisesFisherMixture(concentrations=(4.0,), means=((0.3, -1.0, 0.2),)),
    "three bumps": VonMisesFisherMixture(
        weights=(0.5, 0.3, 0.2), concentrations=(2.0, 3.0, 1.0), means=((1, 0, 0.3), (-0.2, 1, 0.1), (0, -0.5, -1))
    ),
    "poisson": PoissonKernel(0.4, (1.0, 2.0, -0.5)),
    "harmonics": Harmonics(((1, 1, 0.01, -0.02), (2, 0, 0.02), (3, 2, -0.01, 0.015), (5, 5, 0.01))),
}


def bump(mean, kappa=4.0):
    return VonMisesFisherMixture(concentrations=(kappa,), means=(mean,))


def mean_vector(rho_lm):
    """∫ xρ from the three coefficients of degree 1, at positions l and lmax + 1."""
    lmax = int(math.sqrt(2 * rho_lm.size)) - 1
    across = math.sqrt(8 * math.pi / 3) * rho_lm[lmax + 1]
    return np.array([-across.real, across.imag, math.sqrt(4 * math.pi / 3) * rho_lm[1].real])


def unit(vector):
    return np.asarray(vector, float) / np.linalg.norm(vector)


def generator(seed=1):
    return np.random.default_rng(seed)


# ---- conventions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", DIRECTIONS.values(), ids=DIRECTIONS)
@pytest.mark.parametrize("make", [bump, lambda mean: PoissonKernel(0.6, mean)], ids=["vmf", "poisson"])
def test_mean_from_coefficients_grid_and_samples(make, direction):
    law, space = make(direction), Sphere(47)
    from_coefficients = mean_vector(law.coefficients(space))
    rho = law.density(space.points)
    from_grid = np.einsum("ij,ij,ijk->k", space.weights, rho, space.points)
    np.testing.assert_allclose(from_grid, from_coefficients, atol=ROUND_OFF)
    np.testing.assert_allclose(unit(from_coefficients), unit(direction), atol=ROUND_OFF)
    tokens = law.sample(40_000, generator(), 3)
    # Statistical: each component has a standard deviation of at most 1/√N.
    np.testing.assert_allclose(tokens.mean(axis=0), from_coefficients, atol=4.0 / math.sqrt(40_000))


@pytest.mark.parametrize("law", SMOOTH_LAWS.values(), ids=SMOOTH_LAWS)
def test_coefficients_and_density_against_quadrature(law):
    points, weights = oracles.gauss_grid(40)
    rho = law.density(points)
    assert rho.min() > 0
    # Round-off; the grid integrates degree 79, beyond which these densities are below 1e-16.
    assert np.sum(weights * rho) == pytest.approx(1.0, abs=ROUND_OFF)
    space = Sphere(16)
    expected = oracles.analysis(rho, points, weights, 16)
    np.testing.assert_allclose(law.coefficients(space), expected, atol=ROUND_OFF)


def test_density_against_oracles():
    points, _ = oracles.gauss_grid(12)
    np.testing.assert_allclose(SMOOTH_LAWS["three bumps"].density(points), oracles.three_bumps(points), rtol=ROUND_OFF)
    poisson = oracles.poisson_kernel(points, 0.4, unit((1.0, 2.0, -0.5))) / (4 * math.pi)
    np.testing.assert_allclose(SMOOTH_LAWS["poisson"].density(points), poisson, rtol=ROUND_OFF)
    harmonics = np.zeros(21, complex)
    pairs = list(zip(*oracles.degrees_and_orders(5), strict=True))
    for degree, order, *amplitude in SMOOTH_LAWS["harmonics"].harmonics:
        harmonics[pairs.index((degree, order))] = complex(*amplitude)
    expected = 1 / (4 * math.pi) + oracles.synthesis(harmonics, points)
    np.testing.assert_allclose(SMOOTH_LAWS["harmonics"].density(points), expected, rtol=ROUND_OFF)


@pytest.mark.parametrize(
    "law",
    [*SMOOTH_LAWS.values(), ParticleCloud(50, 3), Tokens(np.eye(3), [1, 2, 4])],
    ids=[*SMOOTH_LAWS, "cloud", "tokens"],
)
def test_mass_is_exact_and_order_zero_is_real(law):
    rho_lm = law.coefficients(Sphere(12))
    assert rho_lm[0] == 1.0 / math.sqrt(4.0 * math.pi)
    assert np.abs(rho_lm[:13].imag).max() < 1e-15  # round-off


def test_density_takes_any_shape_and_float32():
    points, _ = oracles.gauss_grid(4)
    law = SMOOTH_LAWS["three bumps"]
    expected = law.density(points)
    np.testing.assert_array_equal(law.density(points.reshape(4, 8, 3)), expected.reshape(4, 8))
    np.testing.assert_array_equal(law.density(np.asfortranarray(points)), expected)
    assert law.density(points[0]).shape == ()
    single = law.density(points.astype(np.float32))
    assert single.dtype == np.float64
    np.testing.assert_allclose(single, expected, rtol=1e-6)  # round-off of the float32 input


# ---- zonal moments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1e-3, 0.3, 0.9, 0.999, 0.9999, 1 - 1e-7])
def test_poisson_moments_against_quadrature(radius):
    """With x·e = −tanh s the kernel is a shifted sech², and the trapezoidal rule converges geometrically."""
    shift = math.log1p(radius) - math.log1p(-radius)
    s = np.arange(-shift - 22.0, 22.0, 0.01)
    mass = 0.5 * 0.01 / np.cosh(s + shift) ** 2
    expected = [np.sum(mass * oracles.gegenbauer(degree, -np.tanh(s), 3)) for degree in range(0, 129, 4)]
    # Round-off of the oracle's sum; its truncation is e^{−44}.
    np.testing.assert_allclose(poisson_moments(128, radius)[::4], expected, atol=ROUND_OFF)


@pytest.mark.parametrize("radius", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("dimension", [2, 4, 8])
def test_poisson_moments_in_other_dimensions(radius, dimension):
    """In even dimensions the integrand is periodic in the angle, and the midpoint rule converges geometrically."""
    cosine, sine = (f((np.arange(10_000) + 0.5) * math.pi / 10_000) for f in (np.cos, np.sin))
    kernel = ((1 - radius**2) / (1 + radius**2 - 2 * radius * cosine)) ** (dimension - 1)
    mass = sine ** (dimension - 2) / np.sum(sine ** (dimension - 2))
    expected = [np.sum(mass * kernel * oracles.gegenbauer(degree, cosine, dimension)) for degree in range(31)]
    np.testing.assert_allclose(poisson_moments(30, radius, dimension), expected, atol=1e-12)  # oracle's round-off


def test_poisson_moments_do_not_depend_on_lmax():
    """Across the switch between the upward and the downward recurrence, at lmax = 1/(1 − R)."""
    for radius in (0.5, 0.99, 0.999, 1 - 1e-4):
        long = poisson_moments(1100, radius)
        for lmax in (0, 1, 2, 50, 100, 101, 999, 1000, 1001):
            np.testing.assert_allclose(poisson_moments(lmax, radius), long[: lmax + 1], rtol=ROUND_OFF)
    assert poisson_moments(1000, 1 - 1e-12)[-1] == pytest.approx(1.0, abs=1e-11)


# ---- extremes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [bump((0, 0, 1), 0.0), PoissonKernel(0.0)], ids=["vmf", "poisson"])
def test_no_concentration_is_uniform(law):
    points, _ = oracles.gauss_grid(6)
    np.testing.assert_allclose(law.density(points), 1 / (4 * math.pi), rtol=1e-15)
    space = Sphere(8)
    np.testing.assert_allclose(law.coefficients(space), Uniform().coefficients(space), atol=1e-15)
    assert stats.kstest(law.sample(20_000, generator(), 3)[:, 2], stats.uniform(-1, 2).cdf).pvalue > UNLIKELY


@pytest.mark.parametrize("kappa", [1e-300, 1e-9, 1.0, 700.0, 1e5, 1e8])
@pytest.mark.parametrize("mean", DIRECTIONS.values(), ids=DIRECTIONS)
def test_von_mises_fisher_at_every_concentration(kappa, mean):
    law, axis = bump(mean, kappa), unit(mean)
    peak = kappa / (2 * math.pi * -math.expm1(-2 * kappa))
    assert law.density(axis) == pytest.approx(peak, rel=ROUND_OFF)
    assert law.density(-axis) == pytest.approx(peak * math.exp(-2 * kappa), rel=1e-12)
    rho_lm = law.coefficients(Sphere(20))
    concentrated = 1 / math.tanh(kappa) - 1 / kappa if kappa > 1e-3 else kappa / 3
    np.testing.assert_allclose(mean_vector(rho_lm), concentrated * axis, atol=ROUND_OFF)
    tokens = law.sample(20_000, generator(), 3)
    assert np.abs(np.linalg.norm(tokens, axis=1) - 1).max() < 4e-16  # round-off
    drop = 0.5 * np.sum((tokens - axis) ** 2, axis=1)
    survival = stats.kstest(drop, lambda w: np.expm1(-kappa * w) / np.expm1(-2 * kappa) if kappa > 1e-12 else w / 2)
    assert survival.pvalue > UNLIKELY


@pytest.mark.parametrize("radius", [0.0, 1e-9, 0.3, 0.999, 0.9999])
@pytest.mark.parametrize("axis", DIRECTIONS.values(), ids=DIRECTIONS)
def test_poisson_at_every_radius(radius, axis):
    law, e = PoissonKernel(radius, axis), unit(axis)
    assert law.density(e) == pytest.approx(((1 + radius) / (1 - radius)) ** 2 / (4 * math.pi), rel=1e-12)
    assert law.density(-e) == pytest.approx(((1 - radius) / (1 + radius)) ** 2 / (4 * math.pi), rel=1e-12)
    tokens = law.sample(20_000, generator(), 3)
    drop = 0.5 * np.sum((tokens - e) ** 2, axis=1)
    # ∫ of the density over the cap 1 − x·e ≤ w.
    cap = stats.kstest(drop, lambda w: (1 + radius) ** 2 * w / (2 * ((1 - radius) ** 2 + 2 * radius * w)))
    assert cap.pvalue > UNLIKELY
    around = np.linalg.svd(e[None])[2][1:]  # two tangents
    angle = np.arctan2(tokens @ around[0], tokens @ around[1])
    assert stats.kstest(angle, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > UNLIKELY


def test_poisson_mean_is_the_known_one():
    assert np.linalg.norm(mean_vector(PoissonKernel(0.3).coefficients(Sphere(8)))) == pytest.approx(0.3927045, abs=5e-8)


def test_poles_are_directions_in_every_dimension():
    for dimension in (2, 3, 40):
        north, south = np.eye(dimension)[-1], -np.eye(dimension)[-1]
        points = Uniform().sample(20, generator(), dimension)
        named = VonMisesFisherMixture(concentrations=(2.0, 5.0), means=("north", "south"), weights=(1, 3))
        vectors = VonMisesFisherMixture(concentrations=(2.0, 5.0), means=(north, south), weights=(1, 3))
        assert named.dimension is None
        np.testing.assert_array_equal(named.density(points), vectors.density(points))
        np.testing.assert_array_equal(PoissonKernel(0.1).density(points), PoissonKernel(0.1, north).density(points))
        np.testing.assert_array_equal(
            PoissonKernel(0.1, "south").sample(5, generator(), dimension),
            PoissonKernel(0.1, south).sample(5, generator(), dimension),
        )
    mixed = VonMisesFisherMixture(concentrations=(2.0, 5.0), means=("north", (1, 0, 0, 0)))
    assert mixed.dimension == 4


def test_zonal_harmonics_on_the_sphere_are_those_of_order_zero():
    law = ZonalHarmonics([(1, 0.2), (3, -0.1)])
    same = Harmonics([(1, 0, 0.2 / math.sqrt(4 * math.pi)), (3, 0, -0.1 / math.sqrt(4 * math.pi))])
    np.testing.assert_allclose(law.coefficients(Sphere(5)), same.coefficients(Sphere(5)), atol=1e-16)
    points, _ = oracles.gauss_grid(6)
    np.testing.assert_allclose(law.density(points), same.density(points), rtol=ROUND_OFF)
    tilted = ZonalHarmonics([(1, 0.2), (3, -0.1)], (1.0, -2.0, 0.5))
    rho = Sphere(5).synthesis(tilted.coefficients(Sphere(5)))
    np.testing.assert_allclose(rho, tilted.density(Sphere(5).points), rtol=1e-12)


def test_huge_and_tiny_vectors_are_directions():
    for law in (bump((1e300, 1e300, 0.0)), bump((1e-320, 1e-320, 0.0))):
        np.testing.assert_allclose(law.density((1, 0, 0)), bump((1, 1, 0)).density((1, 0, 0)), rtol=1e-3)  # subnormal


# ---- samplers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", SMOOTH_LAWS.values(), ids=SMOOTH_LAWS)
def test_sampler_has_the_density(law):
    """Chi-square over 6 × 8 cells of equal area, poles included, with expectations by quadrature."""
    tokens = law.sample(30_000, generator(7), 3)
    z, lon = (np.arange(240) + 0.5) / 120 - 1, (np.arange(320) + 0.5) * math.pi / 160
    z, lon = np.meshgrid(z, lon, indexing="ij")
    across = np.sqrt(1 - z**2)
    midpoints = np.stack([across * np.cos(lon), across * np.sin(lon), z], axis=-1)
    # The midpoint rule is right to 1e-4: truncation, far below the statistical 1/√(30000/48).
    expected = law.density(midpoints).reshape(6, 40, 8, 40).sum(axis=(1, 3)) * 4 * math.pi / z.size
    longitude = np.arctan2(tokens[:, 1], tokens[:, 0]) % (2 * math.pi)
    observed, _, _ = np.histogram2d(tokens[:, 2], longitude, bins=(6, 8), range=((-1, 1), (0, 2 * math.pi)))
    assert stats.chisquare(observed.ravel(), expected.ravel() / expected.sum() * len(tokens)).pvalue > UNLIKELY


@pytest.mark.parametrize("dimension", [2, 3, 4, 7, 50])
def test_uniform_in_every_dimension(dimension):
    tokens = Uniform().sample(20_000, generator(), dimension)
    assert tokens.shape == (20_000, dimension)
    square = stats.beta(0.5, 0.5 * (dimension - 1)).cdf
    for column in tokens.T[:4]:  # no axis is crowded
        assert stats.kstest(column**2, square).pvalue > UNLIKELY
        assert stats.binomtest(int((column > 0).sum()), 20_000).pvalue > UNLIKELY


@pytest.mark.parametrize("kappa", [0.0, 1.0, 30.0, 1e8])
@pytest.mark.parametrize("dimension", [2, 5, 40])
def test_von_mises_fisher_in_other_dimensions(dimension, kappa):
    mean = np.arange(1.0, dimension + 1.0)
    tokens = bump(tuple(mean), kappa).sample(20_000, generator(3), dimension)
    drop = 0.5 * np.sum((tokens - unit(mean)) ** 2, axis=1)
    power = 0.5 * (dimension - 3)
    # The law of w = 1 − x·μ is ∝ e^{−κw} (w(2−w))^{(d−3)/2}; its CDF by Gauss–Jacobi-free substitution w = 2 sin²(a/2).
    top = min(math.pi, 20.0 / math.sqrt(kappa)) if kappa else math.pi
    angle = np.linspace(0.0, top, 20_001)
    pdf = np.exp(-2 * kappa * np.sin(angle / 2) ** 2) * np.sin(angle) ** (2 * power + 1)
    cdf = np.concatenate([[0.0], np.cumsum(0.5 * (pdf[1:] + pdf[:-1]))])  # truncation 1e-8
    measured = 2 * np.arcsin(np.sqrt(drop / 2))
    assert stats.kstest(measured, lambda a: np.interp(a, angle, cdf / cdf[-1])).pvalue > UNLIKELY


def test_poisson_on_the_circle():
    tokens = PoissonKernel(0.5, (0.0, 1.0)).sample(20_000, generator(), 2)
    # On the circle the kernel is the wrapped Cauchy law, and its mean is R e.
    angle = np.arctan2(tokens[:, 0], tokens[:, 1]) % (2 * math.pi)
    assert stats.kstest(angle, stats.wrapcauchy(0.5).cdf).pvalue > UNLIKELY
    assert PoissonKernel(0.5, (0.0, 1.0)).density((0.0, 1.0)) == pytest.approx(1.5 / 0.5 / (2 * math.pi))


def test_mixture_weights_are_relative_and_default_to_equal():
    poles = {"concentrations": [200.0, 200.0], "means": [[0, 0, 1], [0, 0, -1]]}
    tokens = VonMisesFisherMixture(weights=[3, 1], **poles).sample(10_000, generator(), 3)
    assert stats.binomtest(int((tokens[:, 2] > 0).sum()), 10_000, 0.75).pvalue > UNLIKELY
    space = Sphere(6)
    np.testing.assert_array_equal(
        VonMisesFisherMixture(**poles).coefficients(space),
        VonMisesFisherMixture(weights=[7.0, 7.0], **poles).coefficients(space),
    )
    first = VonMisesFisherMixture(weights=[1, 0], **poles)
    np.testing.assert_allclose(first.coefficients(space), bump((0, 0, 1), 200.0).coefficients(space), atol=1e-15)


def test_samples_are_reproducible_and_single_tokens_work():
    for law in SMOOTH_LAWS.values():
        np.testing.assert_array_equal(law.sample(5, generator(4), 3), law.sample(5, generator(4), 3))
        assert law.sample(1, generator(), 3).shape == (1, 3)


# ---- harmonics ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harmonics",
    [[(1, 0, 1.0)], [(3, 3, 1.0)], [(64, 1, 1.0)], [(60, 60, 1.0)], [(2, 1, 0.3, 0.4), (7, 4, 0.5, -0.2), (9, 0, 0.4)]],
)
def test_harmonics_are_refused_where_negative(harmonics):
    with pytest.raises(ValueError, match=r"^harmonics: must keep the density >= 0, got a minimum of -") as refusal:
        Harmonics(harmonics)
    largest = float(re.search(r"at most (\S+) ", str(refusal.value)).group(1))

    split = [(*entry[:2], entry[2:]) for entry in harmonics]

    def scaled(factor):
        return Harmonics([(*mode, *(factor * a for a in amplitude)) for *mode, amplitude in split])

    # Rounded down by 1e-5 so that the number printed is one that works.
    points, _ = oracles.gauss_grid(100)
    assert scaled(largest).density(points).min() >= 0
    with pytest.raises(ValueError, match="minimum"):
        scaled(largest * (1 + 2e-5))


def test_smallest_density_is_found_exactly():
    # 1/4π + c √(3/4π) z is zero at a pole for c = 1/√(12π); about x̂ + ŷ, off the grid, for the coefficient of Y_11.
    Harmonics([(1, 0, 1 / math.sqrt(12 * math.pi))])
    tilted = 1 / math.sqrt(24 * math.pi) * np.exp(0.377j)
    Harmonics([(1, 1, tilted.real, tilted.imag)])
    with pytest.raises(ValueError, match="minimum"):
        Harmonics([(1, 1, tilted.real * (1 + 1e-9), tilted.imag * (1 + 1e-9))])


# ---- particles ------------------------------------------------------------------------------------------------


def test_cloud_is_one_cloud():
    cloud = ParticleCloud(count=64, seed=2**70, degree=5)
    tokens = cloud.sample(64, None, 3)
    np.testing.assert_array_equal(tokens, cloud.sample(None, generator(), 3))
    assert cloud.sample(64, None, 17).shape == (64, 17)
    space = Sphere(9)
    rho_lm = cloud.coefficients(space)
    expected = np.conj(oracles.harmonics(tokens, 9)).mean(axis=0)
    np.testing.assert_allclose(rho_lm, np.where(space.degree <= 5, expected, 0.0), atol=ROUND_OFF)
    assert np.all(rho_lm[space.degree > 5] == 0.0)
    np.testing.assert_allclose(cloud.density(tokens), oracles.synthesis(rho_lm, tokens), atol=1e-12)  # round-off
    with pytest.raises(ValueError, match=r"^count: must be 64, .*got 65"):
        cloud.sample(65, generator(), 3)


def test_tokens_are_returned_or_drawn_by_weight():
    points = unit([1, 2, 3]) * [[1.0], [-2.0], [0.5]] + np.eye(3)
    tokens = Tokens(points)
    normalized = points / np.linalg.norm(points, axis=1, keepdims=True)
    for count in (None, 3):
        np.testing.assert_allclose(tokens.sample(count, None, 3), normalized, atol=1e-15)
    assert tokens.variance_kept == 1.0
    weighted = Tokens(points, weights=[2, 1, 1])
    np.testing.assert_allclose(weighted.sample(None, None, 3), normalized, atol=1e-15)
    drawn = weighted.sample(10_000, generator(), 3)
    nearest = np.argmax(drawn @ normalized.T, axis=1)
    assert stats.chisquare(np.bincount(nearest), [5000, 2500, 2500]).pvalue > UNLIKELY
    assert weighted.sample(3, generator(), 3).shape == (3, 3)
    expected = np.average(np.conj(oracles.harmonics(normalized, 8)), axis=0, weights=[2, 1, 1])
    np.testing.assert_allclose(weighted.coefficients(Sphere(8)), expected, atol=ROUND_OFF)
    assert Tokens(points, weights=[5, 5, 5]).weights is None
    assert weighted == weighted
    assert weighted != Tokens(points, weights=[2, 1, 1])
    with pytest.raises(ValueError, match="read-only"):
        weighted.points[0] = 0.0
    points[0] = 0.0  # the law has its own copy
    np.testing.assert_array_equal(weighted.points[0], tokens.points[0])


@pytest.mark.parametrize("count", [4, 200])  # fewer and more tokens than dimensions
def test_principal_projection(count):
    rng = generator(5)
    rotation = np.linalg.qr(rng.standard_normal((10, 10)))[0]
    tokens = rng.standard_normal((count, 10)) * [9, 7, 5, 1, 1, 1, 1, 1, 1, 1] @ rotation
    points, kept = principal_projection(tokens)
    normalized = tokens / np.linalg.norm(tokens, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(normalized.T @ normalized)
    assert kept == pytest.approx(values[-3:].sum() / values.sum(), abs=1e-12)
    axes = vectors[:, :-4:-1]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1, 2]])
    expected = normalized @ axes
    np.testing.assert_allclose(points, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-10)
    np.testing.assert_allclose(Tokens(tokens).points, points, atol=0)
    np.testing.assert_allclose(principal_projection(tokens * 1e200)[0], points, atol=1e-12)


def test_projection_keeps_what_lies_in_a_subspace():
    rng = generator(6)
    inside = rng.standard_normal((30, 3))
    tokens = inside @ np.linalg.qr(rng.standard_normal((20, 3)))[0].T
    points, kept = principal_projection(tokens)
    inside /= np.linalg.norm(inside, axis=1, keepdims=True)
    np.testing.assert_allclose(points @ points.T, inside @ inside.T, atol=ROUND_OFF)  # round-off
    assert kept == pytest.approx(1.0, abs=ROUND_OFF)
    pair, _ = principal_projection(tokens[:2])  # two tokens span a plane
    assert pair.shape == (2, 3)
    assert pair[0] @ pair[1] == pytest.approx(inside[0] @ inside[1], abs=ROUND_OFF)


@pytest.mark.parametrize(
    ("n", "cosine", "dimension"),
    [
        (1, 0.3, 3),
        (2, -1.0, 3),
        (3, -0.5, 2),
        (4, -1 / 3, 3),
        (3, 0.0, 3),
        (3, -0.2, 3),
        (11, -0.1, 10),
        (256, 0.0, 256),
        (100, 0.999999, 128),
    ],
)
@pytest.mark.parametrize("source", [None, 8])
def test_equiangular(n, cosine, dimension, source):
    tokens = Equiangular(cosine).sample(n, None if source is None else generator(source), dimension)
    assert tokens.shape == (n, dimension)
    gram = np.where(np.eye(n) == 1, 1.0, cosine)
    np.testing.assert_allclose(tokens @ tokens.T, gram, atol=4e-15)  # round-off


def test_equiangular_frame_is_random():
    tokens = np.array([Equiangular(0.2).sample(2, generator(seed), 3)[0] for seed in range(2000)])
    for column in tokens.T:
        assert stats.kstest(column, stats.uniform(-1, 2).cdf).pvalue > UNLIKELY


# ---- the registry and errors ----------------------------------------------------------------------------------


def test_registry():
    assert {name: [f.name for f in dataclasses.fields(law) if f.init] for name, law in LAWS.items()} == {
        "uniform": [],
        "vmf-mixture": ["concentrations", "means", "weights"],
        "poisson": ["radius", "axis"],
        "harmonics": ["harmonics"],
        "fourier": ["harmonics"],
        "zonal-harmonics": ["harmonics", "axis"],
        "particles": ["count", "seed", "degree"],
        "equiangular": ["cosine"],
        "file": ["path", "degree"],
    }
    assert [name for name, law in LAWS.items() if not law.has_density] == ["equiangular"]


def test_laws_are_frozen_hashable_and_picklable():
    listed = VonMisesFisherMixture(concentrations=[2, 3], means=[[1, 0, 0], np.array([0, 1, 0])], weights=[1, 1])
    frozen = VonMisesFisherMixture(
        concentrations=(2.0, 3.0), means=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)), weights=(1.0, 1.0)
    )
    assert listed == frozen
    assert hash(listed) == hash(frozen)
    assert hash(Harmonics([[2, 0, 0.01], [2.0, 1, 0.01, 0]])) == hash(Harmonics(((2, 0, 0.01), (2, 1, 0.01, 0.0))))
    for law in (listed, PoissonKernel(0.5, [0, 0, 2]), ParticleCloud(3, 1), Equiangular(0), TokenFile("a.npy")):
        assert pickle.loads(pickle.dumps(law)) == law
    with pytest.raises(dataclasses.FrozenInstanceError):
        listed.weights = (1.0,)


def test_import_is_light():
    """Case files are validated without loading the transform libraries."""
    code = "import sys, meanfield.initial; sys.exit('ducc0' in sys.modules or 'shtns' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def mixture(concentrations=(1.0,), means=((0, 0, 1),), weights=None):
    return VonMisesFisherMixture(concentrations=concentrations, means=means, weights=weights)


SQUARE = np.ones((4, 4))
REFUSED = [
    (lambda: mixture([-3.0]), "concentrations: must be >= 0, got -3.0"),
    (lambda: mixture([math.nan]), "concentrations: must be a finite number, got nan"),
    (lambda: mixture([math.inf]), "concentrations: must be a finite number, got inf"),
    (lambda: mixture([10**400]), "concentrations: must be a finite number, got 1000"),
    (lambda: mixture([True]), "concentrations: must be a finite number, got True"),
    (lambda: mixture(["1"]), "concentrations: must be a finite number, got '1'"),
    (lambda: mixture(1.0), "concentrations: must be a list that is not empty, got 1.0"),
    (lambda: mixture([]), "concentrations: must be a list that is not empty, got []"),
    (lambda: mixture([1e12]), "concentrations: must be <= "),
    (lambda: mixture([1, 2]), "means: must be 2, as concentrations, got 1"),
    (lambda: mixture(means=[(0, 0, 0)]), "means: must be a non-zero vector of length >= 2, got [0.0, 0.0, 0.0]"),
    (lambda: mixture(means=[(1,)]), "means: must be a non-zero vector of length >= 2, got [1.0]"),
    (lambda: mixture(means=["xyz"]), "means: must be a list that is not empty, got 'xyz'"),
    (lambda: mixture([1, 2], [(1, 0, 0), (1, 0)]), "means: must all have the same length, got [3, 2]"),
    (lambda: mixture(weights=[1, 1]), "weights: must be 1, as concentrations, got 2"),
    (lambda: mixture(weights=[0]), "weights: must have a positive, finite sum, got [0.0]"),
    (lambda: mixture(weights=[-1]), "weights: must be >= 0, got -1"),
    (lambda: PoissonKernel(1.0), "radius: must be < 1, got 1.0"),
    (lambda: PoissonKernel(-0.1), "radius: must be >= 0, got -0.1"),
    (lambda: PoissonKernel(0.5, (0, 0, 0)), "axis: must be a non-zero vector"),
    (lambda: Harmonics([]), "harmonics: must be a list that is not empty, got []"),
    (lambda: Harmonics([(0, 0, 0.1)]), "harmonics: must have 1 <= l <= 4095 and m <= l, got [0, 0, 0.1]"),
    (lambda: Harmonics([(1, 2, 0.1)]), "harmonics: must have 1 <= l <= 4095 and m <= l, got [1, 2, 0.1]"),
    (lambda: Harmonics([(10**9, 0, 0.1)]), "harmonics: must have 1 <= l <= 4095 and m <= l, got [1000000000, 0, 0.1]"),
    (lambda: Harmonics([(2, -1, 0.1)]), "harmonics: must be an integer >= 0, got -1"),
    (lambda: Harmonics([(2.5, 1, 0.1)]), "harmonics: must be an integer >= 0, got 2.5"),
    (lambda: Harmonics([(2, 0, 0.1, 0)]), "harmonics: must be real for m = 0, [l, 0, re], got [2, 0, 0.1, 0]"),
    (lambda: Harmonics([(2, 1)]), "harmonics: must be [l, m, re] or [l, m, re, im], got [2, 1]"),
    (lambda: Harmonics([(2, 1, 0.0), (2, 1, 0.1)]), "harmonics: must have each (l, m) once, got (2, 1) twice"),
    (lambda: Harmonics([(2, 1, math.inf)]), "harmonics: must be a finite number, got inf"),
    (lambda: Harmonics([(2, 1, 0.01)]).coefficients(Sphere(1)), "lmax: must be >= 2, "),
    (lambda: ParticleCloud(0, 1), "count: must be an integer >= 1, got 0"),
    (lambda: ParticleCloud(3, -1), "seed: must be an integer >= 0, got -1"),
    (lambda: ParticleCloud(3, True), "seed: must be an integer >= 0, got True"),
    (lambda: ParticleCloud(3, 1, 0), "degree: must be an integer >= 1, got 0"),
    (lambda: ParticleCloud(3, 1, 9).coefficients(Sphere(8)), "lmax: must be >= 9, the degree of the initial law, "),
    (lambda: Equiangular(1.0), "cosine: must be < 1, got 1.0"),
    (lambda: Equiangular(-1.5), "cosine: must be >= -1, got -1.5"),
    (lambda: Equiangular(-0.6).sample(3, None, 3), "cosine: must be >= -0.5 = -1/(n - 1) for n = 3 tokens, got -0.6"),
    (lambda: Equiangular(0.5).sample(4, None, 3), "dimension: must be >= 4 for n = 4 tokens of cosine 0.5, got 3"),
    (lambda: Equiangular(0.5).sample(None, None, 3), "count: must be an integer >= 1, got None"),
    (lambda: Equiangular(0.5).density((0, 0, 1)), "law: must have a density, got 'equiangular'"),
    (lambda: Equiangular(0.5).coefficients(Sphere(3)), "law: must have a density, got 'equiangular'"),
    (lambda: TokenFile(""), "path: must be the name of a file, got ''"),
    (lambda: TokenFile("a.npy").coefficients(Sphere(3)), "path: must be read first, into Tokens, got the bare name"),
    (lambda: TokenFile("a.npy").sample(3, generator()), "path: must be read first"),
    (lambda: Tokens(np.eye(2)), "points: must have dimension D >= 3, got D = 2"),
    (lambda: Tokens([1.0, 2.0, 3.0]), "points: must be real numbers of shape (N, D), got float64 (3,)"),
    (lambda: Tokens(np.empty((0, 3))), "points: must be real numbers of shape (N, D), got float64 (0, 3)"),
    (lambda: Tokens(SQUARE.astype(complex)), "points: must be real numbers of shape (N, D), got complex128 (4, 4)"),
    (lambda: Tokens(SQUARE * [[1], [1], [0], [1]]), "points: must be finite and non-zero, row 2 is zero"),
    (lambda: Tokens(SQUARE * [[1], [math.nan], [0], [1]]), "points: must be finite and non-zero, row 1 is not "),
    (
        lambda: Tokens(np.diag([4.0, 1, 1, 1, 1])[[0, 0, 1, 1, 2, 2, 3]]),
        "points: must not be orthogonal to the 3 principal directions, row 6 is",
    ),
    (lambda: Tokens(SQUARE, [1.0]), "weights: must be 4 real numbers, one for each token, got float64 (1,)"),
    (lambda: Tokens(SQUARE, [1, 1, 1, -1]), "weights: must be finite, >= 0 and not all zero, got values from -1 to 1"),
    (lambda: Tokens(SQUARE, [0, 0, 0, 0]), "weights: must be finite, >= 0 and not all zero, got values from 0 to 0"),
    (lambda: Tokens(SQUARE, [1, 1, 1, math.nan]), "weights: must be finite, >= 0 and not all zero"),
    (lambda: Uniform().sample(0, generator()), "count: must be an integer >= 1, got 0"),
    (lambda: Uniform().sample(True, generator()), "count: must be an integer >= 1, got True"),
    (lambda: Uniform().sample(None, generator()), "count: must be an integer >= 1, got None"),
    (lambda: Uniform().sample(3, 7), "generator: must be a numpy.random.Generator, got 7"),
    (lambda: Uniform().sample(3, generator(), 1), "dimension: must be an integer >= 2, got 1"),
    (lambda: Uniform().density(np.ones((3, 1))), "points: must have shape (..., d >= 2), got (3, 1)"),
    (lambda: Uniform().density([[0, 0, 1.0], [3, 0, 4]]), "points: must be unit vectors, got one of length 5"),
    (lambda: Uniform().density((0, 0, math.nan)), "points: must be unit vectors, got one of length nan"),
    (lambda: mixture().sample(3, generator(), 4), "dimension: must be 3, that of the initial law, got 4"),
    (lambda: mixture().density(np.ones((3, 2))), "points: must have shape (..., 3), got (3, 2)"),
    (lambda: PoissonKernel(0.1, (1, 0)).coefficients(Sphere(3)), "dimension: must be 2, that of the initial law"),
]


@pytest.mark.parametrize(("action", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_bad_input_is_refused(action, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)) as refusal:
        action()
    assert "\n" not in str(refusal.value)
