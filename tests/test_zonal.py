"""Axisymmetric fields in every dimension: Gauss–Gegenbauer, laws, and the density solver on them."""

from __future__ import annotations

import math
import pickle
import re

import numpy as np
import pytest
from scipy import stats
from scipy.special import roots_chebyt, roots_gegenbauer

from meanfield import diagnostics
from meanfield.attention import SpectralField, smallest_lmax
from meanfield.circle import Circle
from meanfield.clusters import find_clusters
from meanfield.density import spectral_tail
from meanfield.initial import Law, ParticleCloud, PoissonKernel, Uniform, VonMisesFisherMixture, ZonalHarmonics
from meanfield.interaction import Attention
from meanfield.kernels import log_mean_kernel, multiplicities
from meanfield.sphere import Sphere
from meanfield.zonal import Zonal, dealiased_nodes, gauss_gegenbauer, largest_lmax, polynomials

from . import oracles
from .measurements import seconds
from .spaces import (
    ATTENTIONS,
    POISSON_KERNELS,
    POLES,
    difference,
    growth_error,
    mean_token,
    poisson_mean_error,
    problem_on,
    solve,
    start_of,
    truncation_error,
)

DIMENSIONS = (2, 3, 4, 8, 64, 512, 1024)
UNLIKELY = 1e-5
"""A test statistic of a fixed seed must not be rarer than this: a statistical tolerance."""


def random_spectrum(lmax: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=lmax + 1).astype(complex)


def on_meridian(cosine: np.ndarray, dimension: int) -> np.ndarray:
    points = np.zeros((len(cosine), dimension))
    points[:, 0], points[:, -1] = np.sqrt((1 - cosine) * (1 + cosine)), cosine
    return points


def random_points(count: int, dimension: int) -> np.ndarray:
    points = np.random.default_rng(5).normal(size=(count, dimension))
    return points / np.linalg.norm(points, axis=1, keepdims=True)


# ---- quadrature and transforms -------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [2, 3, 4, 8, 20])
def test_nodes_and_weights_are_those_of_scipy(dimension: int) -> None:
    for nodes in (1, 2, 7, 48):
        cosine, weights = gauss_gegenbauer(nodes, dimension)
        u, w = roots_chebyt(nodes) if dimension == 2 else roots_gegenbauer(nodes, dimension / 2 - 1)
        np.testing.assert_allclose(cosine, u[::-1], atol=1e-15)  # round-off
        np.testing.assert_allclose(weights, w[::-1] / w.sum(), rtol=1e-11)  # round-off of scipy near the poles


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_moments_of_the_uniform_law(dimension: int) -> None:
    space, d = Zonal(31, dimension), dimension
    for power, exact in ((0, 1.0), (2, 1 / d), (4, 3 / (d * (d + 2))), (8, 105 / (d * (d + 2) * (d + 4) * (d + 6)))):
        assert space.integrate(space.cosine**power) == pytest.approx(exact, rel=1e-13)  # round-off
    assert space.volume == 1.0
    assert np.sum(space.weights) == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_polynomials_are_orthonormal_and_finite_up_to_the_largest_degree(dimension: int) -> None:
    space = Zonal(min(largest_lmax(dimension), 255), dimension)
    values = space.synthesis(random_spectrum(space.lmax))
    assert np.isfinite(values).all()
    unit = np.eye(space.lmax + 1, dtype=complex)[:: max(space.lmax // 20, 1)]
    for f_lm in unit:
        np.testing.assert_allclose(space.analysis(space.synthesis(f_lm)), f_lm, atol=1e-13)  # round-off
    poles = polynomials(space.lmax, np.array([1.0, -1.0]), dimension)
    size = np.sqrt([float(oracles.number_of_harmonics(l, dimension)) for l in range(space.lmax + 1)])
    np.testing.assert_allclose(poles[:, 0], size, rtol=1e-12)  # round-off times lmax
    np.testing.assert_allclose(poles[:, 1], size * (-1.0) ** space.degree, rtol=1e-12)
    np.testing.assert_allclose(np.sqrt(multiplicities(space.lmax, dimension)), size, rtol=1e-12)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_transforms_agree_with_gegenbauer_polynomials(dimension: int) -> None:
    space, f_lm = Zonal(15, dimension), random_spectrum(15)
    size = [math.sqrt(oracles.number_of_harmonics(l, dimension)) for l in range(16)]

    def values(u: np.ndarray) -> np.ndarray:
        return sum(f_lm[l].real * size[l] * oracles.gegenbauer(l, u, dimension) for l in range(16))

    scale = np.abs(values(space.cosine))
    np.testing.assert_allclose(space.synthesis(f_lm), values(space.cosine), atol=1e-12 * scale.max())  # round-off
    points = random_points(20, dimension)
    found = space.values_at(f_lm, points)
    np.testing.assert_allclose(found, values(points[:, -1]), atol=1e-12 * np.abs(found).max())
    np.testing.assert_array_equal(space.values_at_cosines(f_lm, points[:, -1]), found)
    # Along a tangent, by a central difference: its truncation is h² times a third derivative, some l³.
    tangent = random_points(1, dimension)[0] + np.eye(dimension)[-1]
    tangent = tangent - (points @ tangent)[:, None] * points
    h = 1e-5 / math.sqrt(dimension)
    around = [np.cos(h) * points + s * np.sin(h) * tangent for s in (-1, 1)]
    slope = (values(around[1][:, -1]) - values(around[0][:, -1])) / (2 * h)
    gradient = space.gradient_at(f_lm, points)
    np.testing.assert_allclose(np.sum(gradient * tangent, axis=1), slope, atol=1e-5 * np.abs(slope).max())
    np.testing.assert_allclose(np.sum(gradient * points, axis=1), 0.0, atol=1e-12 * np.abs(gradient).max())
    # On the grid the gradient is that at the points of the meridian, along e_θ = (cos θ, …, −sin θ).
    south = np.zeros((space.nodes, dimension))
    south[:, 0], south[:, -1] = space.cosine, -space.sine
    on_grid = np.sum(space.gradient_at(f_lm, space.points) * south, axis=1)
    np.testing.assert_allclose(space.gradient(f_lm)[0], on_grid, atol=1e-12 * np.abs(on_grid).max())


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_divergence_is_the_adjoint_of_the_gradient(dimension: int) -> None:
    space, f_lm = Zonal(31, dimension), random_spectrum(31)
    rates = -space.laplacian_eigenvalues
    np.testing.assert_array_equal(rates, space.degree * (space.degree + dimension - 2))
    laplacian = space.divergence(space.gradient(f_lm))
    np.testing.assert_allclose(laplacian, -rates * f_lm, atol=1e-14 * rates.max())  # round-off
    assert space.divergence(np.random.default_rng(0).normal(size=(1, *space.shape)))[0] == 0.0
    points = random_points(30, dimension)
    masses = np.random.default_rng(4).uniform(size=30)
    spectrum = space.point_masses(points, masses)
    assert spectrum @ f_lm == pytest.approx(masses @ space.values_at(f_lm, points), rel=1e-11)


@pytest.mark.parametrize("dimension", [2, 3, 8, 1024])
@pytest.mark.parametrize("lmax", [1, 2, 31])
def test_default_grid_dealiases_products(dimension: int, lmax: int) -> None:
    assert 2 * dealiased_nodes(lmax) - 1 >= 3 * lmax
    a, b = random_spectrum(lmax, 1), random_spectrum(lmax, 2)
    products, fluxes = zip(
        *(
            (
                space.analysis(space.synthesis(a) * space.synthesis(b)),
                space.divergence(space.synthesis(a) * space.gradient(b)),
            )
            for space in (Zonal(lmax, dimension), Zonal(lmax, dimension, 2 * dealiased_nodes(lmax)))
        ),
        strict=True,
    )
    for one, other in (products, fluxes):
        assert np.abs(one - other).max() <= 1e-12 * np.abs(other).max()  # round-off


def test_state_band_and_grid() -> None:
    space, f_lm = Zonal(15, 5), random_spectrum(15)
    packed = space.pack(f_lm)
    assert packed.shape == (space.packed_size,)
    np.testing.assert_array_equal(space.unpack(packed), f_lm)
    f = space.synthesis(f_lm)
    assert packed @ packed == pytest.approx(space.integrate(f * f), rel=1e-13)
    band, low = space.band(6), np.where(space.degree > 6, 0, f_lm)
    short = low[space.band_positions(6)]
    np.testing.assert_allclose(band.synthesis(short), space.synthesis(low), atol=1e-13)
    np.testing.assert_allclose(band.gradient(short), space.gradient(low), atol=1e-12)
    assert space.band(15) is space
    assert space.latitude[0] > 60
    np.testing.assert_allclose(np.linalg.norm(space.points, axis=1), 1.0, rtol=1e-15)
    assert pickle.loads(pickle.dumps(space)) == space
    labels = space.components(np.abs(space.cosine) > 0.5)
    assert labels[0] != labels[-1]
    np.testing.assert_array_equal(space.neighbours[[0, 3, -1]], [[0, 0, 1], [2, 3, 4], [22, 23, 23]])
    with pytest.raises(ValueError, match="expected an array of shape"):
        space.synthesis(f_lm[:-1])
    with pytest.raises(ValueError, match="out must be"):
        space.analysis(f, out=np.empty(3, complex))
    with pytest.raises(ValueError, match="points must have shape"):
        space.values_at(f_lm, np.ones((3, 4)))


def test_moments_of_a_density() -> None:
    space = Zonal(31, 5)
    law = VonMisesFisherMixture(concentrations=(2.0,), means=("south",))
    rho = space.synthesis(law.coefficients(space))
    tokens = law.sample(200_000, np.random.default_rng(0), 5)
    # Statistical: standard deviations below 1/√N.
    np.testing.assert_allclose(space.first_moment(rho), tokens.mean(axis=0), atol=5e-3)
    second = space.second_moment(rho)
    np.testing.assert_allclose(second, tokens.T @ tokens / len(tokens), atol=5e-3)
    assert np.trace(second) == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lmax": 0}, "lmax: must be an integer >= 1, got 0"),
        ({"lmax": 3000}, "lmax: must lie in 1 … 2047 for zonal densities in dimension 3, got 3000"),
        ({"lmax": 400, "dimension": 512}, "lmax: must lie in 1 … 326 for zonal densities in dimension 512, got 400"),
        ({"lmax": 4, "dimension": 1}, "dimension: must be an integer >= 2, got 1"),
        ({"lmax": 4, "dimension": 5000}, "dimension: must lie in 2 … 4096, got 5000"),
        ({"lmax": 31, "nodes": 31}, "nodes: must be at least 32 for lmax = 31 (and at most 8188), got 31"),
    ],
)
def test_illegal_sizes_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        Zonal(**arguments)


# ---- laws ----------------------------------------------------------------------------------------

LAWS = {
    "uniform": Uniform(),
    "poles": POLES,
    "poisson": PoissonKernel(0.05),
    "south": PoissonKernel(0.03, "south"),
    "zonal": ZonalHarmonics([(1, -0.03), (2, 0.5), (4, 0.2)]),
}


@pytest.mark.parametrize("dimension", [2, 3, 8, 1024])
@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_density_coefficients_and_samples_are_one_law(law: Law, dimension: int) -> None:
    space, fine = Zonal(63, dimension), Zonal(63, dimension, 200)
    rho = law.relative_density(fine.points)
    assert rho.min() > 0
    rho_lm = law.coefficients(space)
    assert rho_lm[0] == 1.0
    np.testing.assert_allclose(rho_lm, fine.analysis(rho), atol=1e-12 * np.linalg.norm(rho_lm))  # round-off
    tokens = law.sample(1000 if dimension > 100 else 4000, np.random.default_rng(3), dimension)
    expected = space.first_moment(space.synthesis(rho_lm))
    height = tokens[:, -1]
    # Statistical: five standard errors.
    assert abs(height.mean() - expected[-1]) < 5 * height.std() / math.sqrt(len(height))
    grid = np.linspace(-1.0, 1.0, 4001)
    middle = 0.5 * (grid[1:] + grid[:-1])
    density = law.relative_density(on_meridian(middle, dimension))
    steps = np.diff(stats.beta(0.5 * (dimension - 1), 0.5 * (dimension - 1)).cdf(0.5 * (1 + grid)))
    cdf = np.concatenate([[0.0], np.cumsum(density * steps)])  # midpoint rule: far below the statistical error
    assert cdf[-1] == pytest.approx(1.0, abs=2e-3)
    assert stats.kstest(height, lambda u: np.interp(u, grid, cdf)).pvalue > UNLIKELY
    across = tokens[:, 0] / np.sqrt(1 - height**2)  # no direction about the axis is special
    if dimension > 2:
        half = 0.5 * (dimension - 2)
        assert stats.kstest(across, lambda x: stats.beta(half, half).cdf(0.5 * (1 + x))).pvalue > UNLIKELY


def test_only_what_is_symmetric_about_the_axis_fits() -> None:
    space = Zonal(15, 3)
    message = r'means: must be "north" or "south", along the axis, on a zonal space, got a direction of component 0.6'
    with pytest.raises(ValueError, match="^" + message):
        VonMisesFisherMixture(concentrations=(2.0,), means=((0.8, 0.0, 0.6),)).coefficients(space)
    with pytest.raises(ValueError, match=r'^axis: must be "north" or "south"'):
        PoissonKernel(0.3, (1.0, 0.0, 0.0)).coefficients(space)
    with pytest.raises(ValueError, match=r"^law: must be symmetric about the axis on a zonal space"):
        ParticleCloud(30, 1).coefficients(space)
    vector = PoissonKernel(0.3, (0.0, 0.0, 2.0)).coefficients(space)
    np.testing.assert_array_equal(vector, PoissonKernel(0.3).coefficients(space))
    with pytest.raises(ValueError, match=r"^harmonics: must keep the density >= 0"):
        ZonalHarmonics([(1, 0.7)]).coefficients(space)
    ZonalHarmonics([(1, 0.7)]).coefficients(Zonal(15, 2))  # p_1(−1) = −√d
    with pytest.raises(ValueError, match=r"^points: must have a dimension in which the area"):
        POLES.density(np.eye(600))


# ---- the attention field -------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
@pytest.mark.parametrize("beta", [-2.0, 0.0, 1e-9, 8.0])
@pytest.mark.parametrize("dimension", [2, 3, 9, 64])
def test_field_is_the_integral(dimension: int, beta: float, kernel: str) -> None:
    space = Zonal(47, dimension)
    field = SpectralField(space, Attention(beta, kernel, value=-0.7))
    field.evaluate(POLES.coefficients(space), radial=True)
    angle, probability = oracles.zonal_grid(120, dimension)
    masses = probability * POLES.relative_density(on_meridian(np.cos(angle), dimension))
    at = np.abs(space.cosine) < 0.9  # where the oracle's grid is fine enough in high dimensions
    south, radial = oracles.zonal_attention(angle, masses, beta, dimension, kernel)
    spline = [np.polynomial.chebyshev.Chebyshev.fit(np.cos(angle), f, 60) for f in (south / np.sin(angle), radial)]
    size = np.hypot(south, radial).max()
    # Interpolation of the oracle from its own nodes, and round-off.
    np.testing.assert_allclose(
        field.tangent[0][at], -0.7 * (space.sine * spline[0](space.cosine))[at], atol=1e-9 * size
    )
    np.testing.assert_allclose(field.radial[at], -0.7 * spline[1](space.cosine)[at], atol=1e-9 * size)


@pytest.mark.parametrize("beta", [1e-8, 1.0, -30.0, 512**0.5, 700.0, 1e4])
@pytest.mark.parametrize("dimension", [64, 512, 1024])
def test_field_of_the_uniform_law_in_high_dimensions(dimension: int, beta: float) -> None:
    lmax = max(smallest_lmax(Attention(beta), dimension), 31)
    if lmax > largest_lmax(dimension):
        with pytest.raises(ValueError, match="needs lmax >= "):
            SpectralField(Zonal(63, dimension), Attention(beta))
        return
    space = Zonal(lmax, dimension)
    field = SpectralField(space, Attention(beta))
    field.evaluate(Uniform().coefficients(space), radial=True)
    ratio = float(oracles.eigenvalue(1, beta, dimension) / oracles.eigenvalue(0, beta, dimension))
    np.testing.assert_allclose(field.partition, 1.0, rtol=1e-14)  # round-off
    np.testing.assert_allclose(field.radial, ratio, rtol=1e-13)
    assert not field.numerator.any()
    exact = math.log(oracles.mean_kernel(beta, dimension)) - abs(beta) if abs(beta) < 700 else None
    if exact is not None:
        assert log_mean_kernel(beta, dimension) == pytest.approx(exact, rel=1e-11, abs=1e-13)


# ---- the density solver --------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", oracles.SCHEMES)
@pytest.mark.parametrize("dimension", [2, 5, 64])
def test_tendency_agrees_with_dense_quadrature(dimension: int, scheme: str) -> None:
    space, t = Zonal(63, dimension), 1.5

    def radius(u: np.ndarray) -> np.ndarray:
        return 1.3 + 0.2 * u - 0.3 * u**2 if problem.scheme.reads_radius else np.ones_like(u)

    for kernel in ("softmax", "unnormalized"):
        problem = problem_on(space, 1.5, scheme, kernel)
        rho_lm = POLES.coefficients(space)
        y = problem.pack(rho_lm, space.analysis(radius(space.cosine)) if problem.scheme.reads_radius else None)
        change = problem.tendency(t, y)
        rho_rate, moment_rate = oracles.zonal_density_tendency(
            lambda u: POLES.relative_density(on_meridian(u, dimension)),
            1.5,
            dimension,
            scheme,
            t,
            radius,
            kernel,
            lmax=8,
            nodes=96,
            switch_time=0.5,
        )
        scale = np.abs(rho_rate).max()
        # Round-off; where 1/‖A‖ is large, truncation of it at degree 63.
        np.testing.assert_allclose(problem.density_lm(change)[:9], rho_rate, atol=1e-10 * scale)
        radius_rate = problem.radius_lm(change)
        if radius_rate is not None:
            moment = radius(space.cosine) * space.synthesis(problem.density_lm(change))
            moment += space.synthesis(rho_lm) * space.synthesis(radius_rate)
            np.testing.assert_allclose(space.analysis(moment)[:9], moment_rate, atol=1e-10 * scale)


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_tendency_equals_that_of_a_finer_grid(dimension: int) -> None:
    spaces, rho_lm = (Zonal(31, dimension), Zonal(31, dimension, 96)), random_spectrum(31)
    # Unnormalized attention makes the flux a polynomial: nothing may alias.
    one, other = (
        problem.tendency(0.0, problem.pack(rho_lm))
        for problem in (problem_on(space, 4.0, "post-ln", "unnormalized") for space in spaces)
    )
    assert np.abs(one - other).max() < 1e-12 * np.abs(other).max()  # round-off


@pytest.mark.parametrize("scheme", oracles.SCHEMES)
@pytest.mark.parametrize("dimension", [2, 3, 8, 512])
def test_small_perturbations_grow_at_the_known_rates(dimension: int, scheme: str) -> None:
    for beta, kernel in ATTENTIONS:
        # Nonlinear terms, of the size of the perturbation 1e-9 over ‖A‖, and time stepping at 1e-12.
        assert growth_error(Zonal(15, dimension), scheme, beta, kernel) < 1e-6


@pytest.mark.parametrize("scheme", ["post-ln", "ngpt"])
@pytest.mark.parametrize(("dimension", "radius", "final", "lmax"), POISSON_KERNELS)
def test_poisson_kernel_keeps_its_form_at_beta_zero(
    dimension: int, radius: float, final: float, lmax: int, scheme: str
) -> None:
    # Time stepping at 1e-12 of a norm of up to 20; truncation: R^lmax.
    assert poisson_mean_error(Zonal(lmax, dimension), PoissonKernel(radius), scheme, final) < 1e-10


@pytest.mark.parametrize(
    ("scheme", "beta"), [*((scheme, 4.0) for scheme in oracles.SCHEMES), ("ngpt", 0.0), ("pre-ln", -2.0)]
)
def test_circle_and_sphere_agree(scheme: str, beta: float) -> None:
    for pair in ((Zonal(31, 2), Circle(31)), (Zonal(31, 3), Sphere(31))):
        # Time stepping at 1e-12, in different norms.
        assert difference(pair, POLES, beta, scheme, 0.2) < 1e-10


@pytest.mark.parametrize(("kind", "dimension"), [(Circle, 2), (Sphere, 3)])
def test_zonal_densities_are_as_accurate_as_those_on_circle_and_sphere(kind: type, dimension: int) -> None:
    other = truncation_error(kind(15), kind(63))
    assert 1e-6 < other < 1e-4
    zonal = truncation_error(Zonal(15, dimension), Zonal(63, dimension))
    assert zonal == pytest.approx(other, rel=1e-3)  # time stepping


@pytest.mark.parametrize("dimension", [4, 64])
def test_error_falls_exponentially_with_lmax(dimension: int) -> None:
    ends, degrees = [], (15, 19, 23, 27, 63)
    law = PoissonKernel(0.05 if dimension == 64 else 0.3)
    for lmax in degrees:
        problem = problem_on(Zonal(lmax, dimension), 2.0, "post-ln")
        y = solve(problem, start_of(problem, law.coefficients(problem.space)), (0.0, 0.4))[-1]
        ends.append(np.pad(y, (0, 63 - lmax)))
    errors = np.linalg.norm(np.array(ends[:-1]) - ends[-1], axis=1) / np.linalg.norm(ends[-1])
    assert (errors[1:] < 0.3 * errors[:-1]).all(), errors  # truncation
    assert errors[-1] < 1e-6


def test_low_degrees_outlive_the_collapse_and_mass_is_exact() -> None:
    means = []
    for lmax in (63, 127):
        problem = problem_on(Zonal(lmax, 5), 4.0, "post-ln")
        problem.absorbing = True
        start = PoissonKernel(0.2).coefficients(problem.space)
        y = solve(problem, start_of(problem, start), (0.0, 5.0), 1e-9, 1e-9)[-1]
        assert problem.layer is not None
        assert problem.density_lm(y)[0] == 1.0
        means.append(mean_token(problem, y)[-1])
    assert means[1] > 0.99
    assert means[0] == pytest.approx(means[1], abs=1e-5)  # what the layer swallows


@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_the_fold_is_found(dimension: int) -> None:
    problem = problem_on(Zonal(31, dimension), 1.0, "peri-ln")
    law = VonMisesFisherMixture(concentrations=(3.0,), means=("north",))
    y = start_of(problem, law.coefficients(problem.space))
    # The antipodal token moves at speed 1 through the origin, at t = 1 exactly; extrapolation from 32 degrees.
    with pytest.raises(AssertionError, match=r"the radius field folds at t\* = (1.0|0.99|0.98)"):
        solve(problem, y, (0.0, 2.0), 1e-9, 1e-9)


@pytest.mark.parametrize("dimension", [3, 512])
def test_everything_is_described(dimension: int) -> None:
    space = Zonal(31, dimension)
    problem = problem_on(space, 3.0, "peri-ln")
    values = diagnostics.describe_density(problem, 0.0, start_of(problem, POLES.coefficients(space)))
    assert values["mass"] == 1.0
    assert values["order_parameter"] == values["moment1"][-1] > 0.0
    assert values["entropy"] <= 0.0  # relative to uniform
    assert values["radius_mean"] == pytest.approx(1.0)
    assert values["energy_rate"] > 0.0
    y, step = start_of(problem, POLES.coefficients(space)), 1e-4
    change = problem.density_lm(problem.tendency(0.0, y))
    around = [diagnostics.energy(space, problem.attention, problem.density_lm(y) + s * step * change) for s in (-1, 1)]
    # E is quadratic: truncation of u at lmax, and round-off of the difference.
    assert values["energy_rate"] == pytest.approx((around[1] - around[0]) / (2 * step), rel=1e-6)
    if dimension == 3:
        sphere = Sphere(31)
        other = problem_on(sphere, 3.0, "peri-ln")
        same = diagnostics.describe_density(other, 0.0, start_of(other, POLES.coefficients(sphere)))
        for name in ("energy", "energy_rate", "radius_mean", "spectral_tail", "close_pairs"):
            np.testing.assert_allclose(values[name], same[name], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose([0.0, 0.0, *values["moment1"]], same["moment1"], atol=1e-14)  # round-off
        along, across = values["moment2"]
        np.testing.assert_allclose(np.diag([across, across, along]), same["moment2"], atol=1e-14)  # round-off
        assert values["entropy"] + math.log(4 * math.pi) == pytest.approx(same["entropy"], rel=1e-10)
        pair = VonMisesFisherMixture(concentrations=(60.0, 60.0), means=("south", "north"), weights=(0.7, 0.3))
        clusters = find_clusters(Zonal(63, 3), pair.coefficients(Zonal(63, 3)))
        np.testing.assert_allclose(clusters.masses, [0.7, 0.3], atol=1e-6)  # tails across the border
        assert clusters.positions[0, -1] < -0.9
        assert clusters.positions[1, -1] > 0.9


def test_a_density_that_degrees_do_not_hold_is_seen() -> None:
    space = Zonal(63, 512)
    law = VonMisesFisherMixture(concentrations=(512.0,), means=("north",))
    assert spectral_tail(space, law.coefficients(space)) > 1e-2
    assert problem_on(space, 4.0, "post-ln").observe(0.0, law.coefficients(space).real).stop is not None


@pytest.mark.benchmark
@pytest.mark.parametrize("lmax", [31, 63, 127, 255])
def test_what_a_tendency_costs_beside_the_sphere(lmax: int) -> None:
    """One tendency of Post-LN at β = 4 on each space, for the same axisymmetric law, and its error in degrees ≤ 8."""
    costs = {}
    for space in (Sphere(lmax), Zonal(lmax, 3), Circle(lmax), Zonal(lmax, 2), Zonal(lmax, 64)):
        problem = problem_on(space, 4.0, "post-ln")
        y = start_of(problem, POLES.coefficients(space))
        change = problem.density_lm(problem.tendency(0.0, y))
        low = change[:9]  # on the sphere those of order 0
        if isinstance(space, Circle):  # i^k turns the axis to φ = 0, and √2 f_k belongs to the normalized cosine
            low = low * 1j ** np.arange(9) * np.where(np.arange(9) > 0, math.sqrt(2.0), 1.0)
        exact, _ = oracles.zonal_density_tendency(
            lambda u, d=space.dimension: POLES.relative_density(on_meridian(u, d)),
            4.0,
            space.dimension,
            "post-ln",
            0.0,
            np.ones_like,
            lmax=8,
            nodes=120,
        )
        error = np.abs(low.real * math.sqrt(space.volume) - exact).max() / np.abs(exact).max()
        name = f"{type(space).__name__.lower()} d = {space.dimension}"
        costs[name] = seconds(lambda problem=problem, y=y: problem.tendency(0.0, y))
        print(f"\nlmax {lmax}, {name}: {costs[name] * 1e6:.0f} µs, relative error {error:.1e}", end="")
        assert error < 1e-10
    assert costs["zonal d = 3"] < costs["sphere d = 3"]
    assert costs["circle d = 2"] < costs["sphere d = 3"]
