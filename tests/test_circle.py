"""The circle against sums of sines and cosines, and the density solver on it against direct quadrature."""

from __future__ import annotations

import math
import pickle
import re

import numpy as np
import pytest
from scipy import stats

from meanfield import diagnostics
from meanfield.circle import Circle
from meanfield.clusters import find_clusters
from meanfield.initial import (
    FourierSeries,
    Law,
    ParticleCloud,
    PoissonKernel,
    Uniform,
    VonMisesFisherMixture,
    ZonalHarmonics,
)

from . import oracles
from .spaces import growth_error, mean_token, poisson_mean_error, problem_on, solve, start_of

BUMPS = VonMisesFisherMixture(
    weights=(0.5, 0.3, 0.2), concentrations=(2.0, 3.0, 1.0), means=((1.0, 0.3), (-0.2, 1.0), (-0.5, -1.0))
)
UNLIKELY = 1e-5
"""A test statistic of a fixed seed must not be rarer than this: a statistical tolerance."""


def random_spectrum(lmax: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    f_lm = generator.normal(size=lmax + 1) + 1j * generator.normal(size=lmax + 1)
    f_lm[0] = f_lm[0].real
    return f_lm


def random_points(count: int, seed: int = 1) -> np.ndarray:
    points = np.random.default_rng(seed).normal(size=(count, 2))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def series(f_lm: np.ndarray, points: np.ndarray, derivative: bool = False) -> np.ndarray:
    """Values or derivatives of a spectrum by its sum of sines and cosines."""
    angle = np.arctan2(points[:, 1], points[:, 0])
    total = np.zeros(len(points)) if derivative else np.full(len(points), f_lm[0].real)
    for k in range(1, len(f_lm)):
        cosine, sine = np.cos(k * angle), np.sin(k * angle)
        a, b = 2 * f_lm[k].real, -2 * f_lm[k].imag
        total += k * (b * cosine - a * sine) if derivative else a * cosine + b * sine
    return total / math.sqrt(2 * math.pi)


# ---- transforms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lmax", [1, 2, 3, 31, 100])
def test_transforms_agree_with_sums(lmax: int) -> None:
    circle, f_lm = Circle(lmax), random_spectrum(lmax)
    f = circle.synthesis(f_lm)
    # Round-off of some 200 terms, times lmax for derivatives.
    np.testing.assert_allclose(f, series(f_lm, circle.points), atol=1e-12)
    slope = circle.gradient(f_lm)
    assert slope.shape == (1, *circle.shape)
    np.testing.assert_allclose(slope[0], series(f_lm, circle.points, True), atol=1e-12 * lmax)
    np.testing.assert_allclose(circle.analysis(f), f_lm, atol=1e-13)
    np.testing.assert_allclose(circle.divergence(slope), circle.laplacian_eigenvalues * f_lm, atol=1e-13 * lmax**2)
    assert circle.analysis(f)[0].imag == 0.0
    assert circle.divergence(np.random.default_rng(0).normal(size=(1, *circle.shape)))[0] == 0.0
    packed = circle.pack(f_lm)
    assert packed.shape == (circle.packed_size,)
    np.testing.assert_allclose(circle.unpack(packed), f_lm, atol=1e-15)
    assert packed @ packed == pytest.approx(circle.integrate(f * f), rel=1e-12)
    g_lm = random_spectrum(lmax, 1)
    product = np.sum(circle.multiplicity * np.real(f_lm * g_lm.conj()))
    assert circle.integrate(f * circle.synthesis(g_lm)) == pytest.approx(product, rel=1e-12, abs=1e-12)


def test_results_land_in_the_arrays_given() -> None:
    circle, f_lm = Circle(31), random_spectrum(31)
    f, slope, spectrum = np.empty(circle.shape), np.empty((1, *circle.shape)), np.empty(32, complex)
    assert circle.synthesis(f_lm, out=f) is f
    assert circle.gradient(f_lm, out=slope) is slope
    np.testing.assert_array_equal(slope, circle.gradient(f_lm))
    assert circle.divergence(slope, out=spectrum) is spectrum
    assert circle.analysis(f, out=spectrum) is spectrum
    np.testing.assert_array_equal(spectrum, circle.analysis(f))
    for call, bad in ((circle.synthesis, f_lm[:-1]), (circle.analysis, f[:-1]), (circle.divergence, f)):
        with pytest.raises(ValueError, match="expected an array of shape"):
            call(bad)
    with pytest.raises(ValueError, match="complex"):
        circle.analysis(f + 0j)
    with pytest.raises(ValueError, match="out must be"):
        circle.synthesis(f_lm, out=np.empty(5))


@pytest.mark.parametrize("count", [0, 1, 40, 3000])  # few are summed directly, many transformed
def test_scattered_points(count: int) -> None:
    circle, f_lm, points = Circle(63), random_spectrum(63), random_points(count)
    # Round-off, and 1e-14 of the norm by the transforms; times lmax for derivatives.
    np.testing.assert_allclose(circle.values_at(f_lm, points), series(f_lm, points), atol=2e-12)
    tangents = np.stack([-points[:, 1], points[:, 0]], axis=-1)
    slopes = series(f_lm, points, True)[:, None] * tangents
    np.testing.assert_allclose(circle.gradient_at(f_lm, points), slopes, atol=1e-10)
    masses = np.random.default_rng(4).uniform(size=count) / max(count, 1)
    spectrum = circle.point_masses(points, masses)
    pairing = np.sum(circle.multiplicity * np.real(spectrum.conj() * f_lm))
    assert pairing == pytest.approx(masses @ circle.values_at(f_lm, points), abs=1e-12)
    assert spectrum[0] == pytest.approx(masses.sum() / math.sqrt(2 * math.pi), abs=1e-14)
    assert spectrum[0].imag == 0.0


def test_scattered_points_of_any_shape() -> None:
    circle, f_lm = Circle(7), random_spectrum(7)
    points = random_points(6).reshape(2, 3, 2)
    assert circle.values_at(f_lm, points).shape == (2, 3)
    assert circle.gradient_at(f_lm, points).shape == (2, 3, 2)
    for bad in (np.ones((4, 3)), np.array([[np.nan, 1.0]])):
        with pytest.raises(ValueError, match="points must"):
            circle.values_at(f_lm, bad)


@pytest.mark.parametrize("lmax", [1, 2, 5, 31, 100])
def test_default_grid_dealiases_products(lmax: int) -> None:
    coarse = Circle(lmax)
    assert coarse.nlon >= 3 * lmax + 1
    fine = Circle(lmax, 2 * coarse.nlon)
    a, b = random_spectrum(lmax, 1), random_spectrum(lmax, 2)
    products, fluxes = zip(
        *(
            (
                space.analysis(space.synthesis(a) * space.synthesis(b)),
                space.divergence(space.synthesis(a) * space.gradient(b)),
            )
            for space in (coarse, fine)
        ),
        strict=True,
    )
    for one, other in (products, fluxes):
        assert np.abs(one - other).max() <= 1e-12 * np.abs(other).max()  # round-off


def test_many_degrees() -> None:
    circle, f_lm = Circle(4096), random_spectrum(4096)
    np.testing.assert_allclose(circle.analysis(circle.synthesis(f_lm)), f_lm, atol=1e-12)  # round-off
    points = random_points(5)
    # The angle k φ loses k units of round-off.
    np.testing.assert_allclose(circle.values_at(f_lm, points), series(f_lm, points), atol=1e-9)


def test_band_is_the_same_field_at_a_lower_degree() -> None:
    circle = Circle(31)
    band, low = circle.band(6), np.where(circle.degree > 6, 0, random_spectrum(31))
    assert band.shape == circle.shape
    short = low[circle.band_positions(6)]
    np.testing.assert_allclose(band.synthesis(short), circle.synthesis(low), atol=1e-14)
    np.testing.assert_allclose(band.gradient(short), circle.gradient(low), atol=1e-13)
    assert circle.band(31) is circle
    assert circle.band(0).lmax == 1


def test_grid_and_quadrature() -> None:
    circle = Circle(15)
    assert np.sum(circle.weights) == pytest.approx(circle.volume, rel=1e-14)
    np.testing.assert_allclose(circle.points[0], [1.0, 0.0])
    assert circle.points[1, 1] > 0  # counterclockwise
    f_lm = BUMPS.coefficients(circle)
    f = circle.synthesis(f_lm)
    mean = math.sqrt(2 * math.pi) * np.array([f_lm[1].real, -f_lm[1].imag])
    np.testing.assert_allclose(circle.first_moment(f), mean, atol=1e-14)
    second = circle.second_moment(f)
    assert np.trace(second) == pytest.approx(1.0, abs=1e-14)
    assert second[0, 1] == pytest.approx(-0.5 * math.sqrt(2 * math.pi) * f_lm[2].imag, abs=1e-14)  # ∫ ½ sin 2φ ρ
    assert pickle.loads(pickle.dumps(circle)) == circle


def test_components_close_around_the_ring() -> None:
    circle = Circle(31)
    x, y = circle.points.T
    for mask, count in ((x > 0.9, 1), (np.abs(x) > 0.9, 2), (np.abs(y) > 0.9, 2), (x > 2, 0), (x < 2, 1)):
        for thinned in (mask, mask[::2]):
            labels = circle.components(thinned)
            assert len(set(labels[thinned])) == count
            assert not labels[~thinned].any()
    np.testing.assert_array_equal(circle.neighbours[0], [circle.nlon - 1, 0, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lmax": 0}, "lmax: must be an integer >= 1, got 0"),
        ({"lmax": True}, "lmax: must be an integer >= 1, got True"),
        ({"lmax": 10**6}, "lmax: must lie in 1 … 65535, got 1000000"),
        ({"lmax": 31, "nlon": 62}, "nlon: must be at least 63 for lmax = 31 (and at most 524280), got 62"),
        ({"lmax": 31, "threads": 0}, "threads: must be an integer >= 1, got 0"),
    ],
)
def test_illegal_sizes_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        Circle(**arguments)


# ---- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "law",
    [
        Uniform(),
        BUMPS,
        PoissonKernel(0.5, (1.0, -2.0)),
        PoissonKernel(0.4),
        FourierSeries([(1, 0.05, -0.02), (3, 0.0, 0.04), (2, 0.03)]),
        ZonalHarmonics([(1, 0.2), (4, -0.1)], "south"),
    ],
    ids=["uniform", "bumps", "poisson", "north", "fourier", "zonal"],
)
def test_density_coefficients_and_samples_are_one_law(law: Law) -> None:
    circle, fine = Circle(31), Circle(31, 4096)
    rho = law.density(fine.points)
    assert rho.min() > 0
    rho_lm = law.coefficients(circle)
    assert rho_lm[0] == 1.0 / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(rho_lm, fine.analysis(rho), atol=1e-14)  # round-off
    tokens = law.sample(20_000, np.random.default_rng(3), 2)
    angle = np.arctan2(tokens[:, 1], tokens[:, 0]) % (2 * math.pi)
    observed = np.histogram(angle, 32, (0, 2 * math.pi))[0]
    shifted = Circle(31, 4096).synthesis(rho_lm * np.exp(1j * circle.degree * math.pi / 4096))  # midpoints
    expected = shifted.reshape(32, -1).sum(axis=1)
    assert stats.chisquare(observed, expected / expected.sum() * len(tokens)).pvalue > UNLIKELY


def test_a_cloud_is_projected() -> None:
    circle, cloud = Circle(15), ParticleCloud(40, 1, degree=9)
    rho_lm = cloud.coefficients(circle)
    tokens = cloud.sample(None, None, 2)
    angle = np.arctan2(tokens[:, 1], tokens[:, 0])
    expected = np.exp(-1j * np.outer(circle.degree, angle)).mean(axis=1) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(rho_lm, np.where(circle.degree > 9, 0, expected), atol=1e-15)


@pytest.mark.parametrize(
    ("harmonics", "message"),
    [
        ([(1, 0.3)], "harmonics: must keep the density >= 0, got a minimum of -0.504 times uniform; amplitudes"),
        ([(0, 0.1)], "harmonics: must be an integer >= 1, got 0"),
        ([(2, 0.1), (2, 0.1)], "harmonics: must have each k of 1 … 4095 at most once, got [2, 0.1]"),
        ([(2, 0.1, 0.1, 0.1)], "harmonics: must be [k, re, im], got [2, 0.1, 0.1, 0.1]"),
        ([], "harmonics: must be a list that is not empty, got []"),
    ],
)
def test_bad_series_are_refused(harmonics: list, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        FourierSeries(harmonics)


# ---- the density solver --------------------------------------------------------------------------


def smooth_radius(points: np.ndarray) -> np.ndarray:
    return 1.3 + 0.2 * points[..., 0] - 0.3 * points[..., 1]


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
@pytest.mark.parametrize("scheme", oracles.SCHEMES)
def test_tendency_agrees_with_dense_quadrature(scheme: str, kernel: str) -> None:
    circle, t = Circle(63), 1.5
    problem = problem_on(circle, 1.5, scheme, kernel)
    radius_lm = circle.analysis(smooth_radius(circle.points))
    y = problem.pack(BUMPS.coefficients(circle), radius_lm if problem.scheme.reads_radius else None)
    change = problem.tendency(t, y)
    rho_rate, moment_rate = oracles.circle_density_tendency(
        BUMPS.density,
        1.5,
        scheme,
        t,
        smooth_radius if problem.scheme.reads_radius else lambda points: np.ones(len(points)),
        kernel,
        switch_time=0.5,
    )
    np.testing.assert_allclose(problem.density_lm(change)[:13], rho_rate, atol=1e-12)  # round-off
    radius_rate = problem.radius_lm(change)
    if radius_rate is not None:
        radius, rho = smooth_radius(circle.points), circle.synthesis(BUMPS.coefficients(circle))
        moment = radius * circle.synthesis(problem.density_lm(change)) + rho * circle.synthesis(radius_rate)
        np.testing.assert_allclose(circle.analysis(moment)[:13], moment_rate, atol=1e-12)


def test_tendency_equals_that_of_a_finer_grid() -> None:
    spaces, rho_lm = (Circle(31), Circle(31, 192)), random_spectrum(31)
    # Unnormalized attention makes the flux a polynomial: nothing may alias.
    one, other = (
        problem.tendency(0.0, problem.pack(rho_lm))
        for problem in (problem_on(space, 4.0, "post-ln", "unnormalized") for space in spaces)
    )
    assert np.abs(one - other).max() < 1e-12 * np.abs(other).max()  # round-off


@pytest.mark.parametrize("scheme", oracles.SCHEMES)
def test_small_perturbations_grow_at_the_known_rates(scheme: str) -> None:
    for beta, kernel in ((1.0, "softmax"), (4.0, "softmax"), (-2.0, "softmax"), (4.0, "unnormalized")):
        # Nonlinear terms, of the size of the perturbation 1e-9 over ‖A‖, and time stepping at 1e-12.
        assert growth_error(Circle(15), scheme, beta, kernel) < 1e-6


@pytest.mark.parametrize("scheme", ["post-ln", "ngpt", "sqrt-scaling"])
def test_poisson_kernel_keeps_its_form_at_beta_zero(scheme: str) -> None:
    # Time stepping at 1e-12; truncation: R^127 at R < 0.6.
    assert poisson_mean_error(Circle(127), PoissonKernel(0.3, (0.6, -0.8)), scheme, 0.7) < 1e-10


@pytest.mark.parametrize("scheme", ["post-ln", "peri-ln"])
def test_rotation_and_reflection_commute_with_the_run(scheme: str) -> None:
    circle, turn = Circle(63), 0.7
    problem, rho_lm = problem_on(circle, 4.0, scheme), BUMPS.coefficients(circle)
    waves = np.exp(-1j * turn * circle.degree)
    end, turned, mirrored = (
        problem.density_lm(solve(problem, start_of(problem, start), (0.0, 0.5))[-1])
        for start in (rho_lm, waves * rho_lm, rho_lm.conj())
    )
    np.testing.assert_allclose(turned, waves * end, atol=1e-10)  # time stepping at 1e-12
    np.testing.assert_allclose(mirrored, end.conj(), atol=1e-10)


def test_error_falls_exponentially_with_lmax() -> None:
    ends = {}
    for lmax in (11, 15, 19, 23, 95):
        circle = Circle(lmax)
        problem = problem_on(circle, 4.0, "post-ln")
        y = solve(problem, start_of(problem, BUMPS.coefficients(circle)), (0.0, 1.0))[-1]
        ends[lmax] = circle.values_at(problem.density_lm(y), random_points(200))
    errors = np.array([np.abs(ends[lmax] - ends[95]).max() for lmax in (11, 15, 19, 23)])
    assert (errors[1:] < 0.5 * errors[:-1]).all(), errors  # truncation
    assert errors[-1] < 1e-2 * ends[95].max()


def test_low_degrees_outlive_the_collapse() -> None:
    means = []
    for lmax in (63, 255):
        problem = problem_on(Circle(lmax), 4.0, "post-ln")
        problem.absorbing = True
        y = solve(problem, start_of(problem, BUMPS.coefficients(problem.space)), (0.0, 6.0), 1e-9, 1e-9)[-1]
        assert problem.layer is not None
        means.append(mean_token(problem, y))
    np.testing.assert_allclose(means[0], means[1], atol=1e-5)  # what the layer swallows


def test_the_fold_is_found() -> None:
    problem = problem_on(Circle(31), 1.0, "peri-ln")
    law = VonMisesFisherMixture(concentrations=(3.0,), means=((0.6, 0.8),))
    y = start_of(problem, law.coefficients(problem.space))
    # The antipodal token moves at speed 1 through the origin, at t = 1 exactly.
    near = solve(problem, y, (0.0, 0.9), 1e-9, 1e-9)[-1]
    assert problem.observe(0.9, near).stop is None
    with pytest.raises(AssertionError, match="the radius field folds at t"):
        solve(problem, y, (0.0, 2.0), 1e-9, 1e-9)


def test_everything_is_described() -> None:
    circle = Circle(63)
    problem = problem_on(circle, 3.0, "pre-ln")
    rho_lm = BUMPS.coefficients(circle)
    values = diagnostics.describe_density(problem, 0.0, start_of(problem, rho_lm))
    angle = 2 * math.pi * np.arange(200) / 200
    points = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    masses = BUMPS.density(points) * 2 * math.pi / 200
    assert values["mass"] == pytest.approx(1.0, abs=1e-15)
    np.testing.assert_allclose(values["moment1"], masses @ points, atol=1e-14)
    np.testing.assert_allclose(values["moment2"], (points.T * masses) @ points, atol=1e-14)
    assert values["energy"] == pytest.approx(oracles.energy(points, masses, 3.0), rel=1e-12)
    assert values["entropy"] == pytest.approx(-masses @ np.log(BUMPS.density(points)), rel=1e-12)
    pair = VonMisesFisherMixture(concentrations=(60.0, 60.0), means=((1.0, 0.1), (-0.3, -1.0)), weights=(0.7, 0.3))
    clusters = find_clusters(circle, pair.coefficients(circle))
    np.testing.assert_allclose(clusters.masses, [0.7, 0.3], atol=1e-3)  # tails across the border of the basins
    expected = np.array([[1.0, 0.1], [-0.3, -1.0]])
    np.testing.assert_allclose(clusters.positions, expected / np.linalg.norm(expected, axis=1)[:, None], atol=1e-3)
