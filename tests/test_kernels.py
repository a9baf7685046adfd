"""Funk–Hecke eigenvalues against 40-digit Bessel functions, quadrature, and the integral they stand for."""

import numpy as np
import pytest

from meanfield.kernels import (
    LARGEST_BETA,
    band_limit,
    eigenvalue_derivatives,
    eigenvalue_ratios,
    eigenvalues,
    gradient_eigenvalues,
    surface_area,
)

from . import oracles

LMAX = 60
DEGREES = (0, 1, 2, 5, 20, LMAX)
BETAS = (0.0, 1e-8, 1.0, -1.0, 4.0, 16.0, 700.0, 1e4, -1e4)
ROUND_OFF = 4e-15  # relative: a running product of at most LMAX factors
SMALLEST = 1e-290  # below it a number has no full set of digits


def assert_close(found, expected):
    for value, exact in zip(found, expected, strict=True):
        exact = float(exact)
        assert abs(value - exact) <= ROUND_OFF * abs(exact) + SMALLEST


@pytest.mark.parametrize("dimension", [2, 3, 4, 8])
@pytest.mark.parametrize("beta", BETAS)
def test_eigenvalues_to_round_off(dimension, beta):
    exact = [oracles.eigenvalue(degree, beta, dimension) for degree in DEGREES]
    slopes = [oracles.eigenvalue_derivative(degree, beta, dimension) for degree in DEGREES]
    found = eigenvalues(LMAX, beta, dimension)
    assert found.shape == (LMAX + 1,)
    assert_close(found[list(DEGREES)], exact)
    assert_close(eigenvalue_derivatives(LMAX, beta, dimension)[list(DEGREES)], slopes)
    assert_close(eigenvalue_ratios(LMAX, beta, dimension)[list(DEGREES)], [e / exact[0] for e in exact])
    if beta != 0.0:
        gradients = [0.0, *(e / beta for e in exact[1:])]
        assert_close(gradient_eigenvalues(LMAX, beta, dimension)[list(DEGREES)], gradients)


@pytest.mark.parametrize("beta", BETAS)
def test_high_dimension(beta):
    # The area of S^511 is not a float, so that only ratios make sense there.
    exact = [oracles.eigenvalue(degree, beta, 512) for degree in DEGREES]
    assert_close(eigenvalue_ratios(LMAX, beta, 512)[list(DEGREES)], [e / exact[0] for e in exact])


@pytest.mark.parametrize("dimension", [2, 3, 5, 8])
@pytest.mark.parametrize("beta", [0.0, 0.3, -2.0, 16.0, 64.0])
def test_eigenvalues_by_quadrature(dimension, beta):
    expected = [oracles.eigenvalue_by_quadrature(degree, beta, dimension) for degree in range(13)]
    # Round-off of the quadrature weights, 6e-13 of Λ_0.
    np.testing.assert_allclose(eigenvalues(12, beta, dimension), expected, rtol=0, atol=2e-12 * expected[0])


@pytest.mark.parametrize("beta", [2.0, -2.0])
def test_they_are_the_eigenvalues_of_the_kernel(beta):
    points, weights = oracles.gauss_grid(24)
    targets = points[::97]
    harmonics = oracles.harmonics(points, 6)
    degree, _ = oracles.degrees_and_orders(6)
    kernel = np.exp(beta * targets @ points.T - abs(beta))
    convolved = (kernel * weights) @ harmonics
    radial = (kernel * (targets @ points.T) * weights) @ harmonics
    there = oracles.harmonics(targets, 6)
    # Round-off: e^{2x·y} is a polynomial of degree 40 to 1e-16.
    np.testing.assert_allclose(convolved, eigenvalues(6, beta)[degree] * there, rtol=0, atol=1e-14)
    np.testing.assert_allclose(radial, eigenvalue_derivatives(6, beta)[degree] * there, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_parity_in_beta(dimension):
    sign = (-1.0) ** np.arange(LMAX + 1)
    for beta in (1e-8, 1.0, 16.0, 1e4):
        for function in (eigenvalues, eigenvalue_ratios):
            np.testing.assert_array_equal(function(LMAX, -beta, dimension), sign * function(LMAX, beta, dimension))
        for function in (eigenvalue_derivatives, gradient_eigenvalues):
            expected = -sign * function(LMAX, beta, dimension)
            np.testing.assert_array_equal(function(LMAX, -beta, dimension)[1:], expected[1:])


@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_zero_beta_is_a_real_case(dimension):
    area = surface_area(dimension)
    first = np.array([0.0, area / dimension, 0.0, 0.0])
    np.testing.assert_array_equal(eigenvalues(3, 0.0, dimension), [area, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(gradient_eigenvalues(3, 0.0, dimension), first, rtol=1e-15)  # round-off
    np.testing.assert_allclose(eigenvalue_derivatives(3, 0.0, dimension), first, rtol=1e-15)  # round-off


@pytest.mark.parametrize("beta", [0.0, 1e-300, 1e-8, 1.0, 709.0, 1e4, LARGEST_BETA])
@pytest.mark.parametrize("sign", [1, -1])
def test_finite_and_silent(beta, sign):
    for dimension in (2, 3, 8, 64):
        for lmax in (0, 1, 1000):
            for function in (eigenvalues, eigenvalue_derivatives, gradient_eigenvalues, eigenvalue_ratios):
                values = function(lmax, sign * beta, dimension)
                assert values.shape == (lmax + 1,)
                assert np.all(np.isfinite(values))


def test_results_are_independent_of_each_other():
    first = eigenvalues(4, 3.0)
    kept = first.copy()
    first[:] = 0.0
    np.testing.assert_array_equal(eigenvalues(4, 3.0), kept)


@pytest.mark.parametrize(("beta", "largest"), [(4.0, 25), (-4.0, 25), (16.0, 40)])
def test_band_limit_of_the_field(beta, largest):
    assert band_limit(beta, 1e-15) <= largest


@pytest.mark.parametrize("beta", [0.0, 1e-8, 0.5, 4.0, 64.0, -4.0, 1e4])
@pytest.mark.parametrize("tolerance", [1e-16, 1e-10, 1e-3])
@pytest.mark.parametrize("dimension", [2, 3, 8])
def test_band_limit_is_sharp(beta, tolerance, dimension):
    limit = band_limit(beta, tolerance, dimension)
    both = np.abs([f(limit + 20, beta, dimension) for f in (eigenvalues, gradient_eigenvalues)])
    size = both.max(axis=0) / both[0, 0]
    assert np.all(size[limit + 1 :] < tolerance)
    assert limit == 1 or size[limit] >= tolerance


@pytest.mark.parametrize(("beta", "dimension"), [(4.0, 512), (700.0, 400)])
def test_band_limit_in_high_dimension(beta, dimension):
    limit = band_limit(beta, 1e-10, dimension)
    ratios = eigenvalue_ratios(limit + 1, beta, dimension)
    assert ratios[limit + 1] < 1e-10 <= ratios[limit]


def test_surface_area():
    expected = [2 * np.pi, 4 * np.pi, 2 * np.pi**2, 8 * np.pi**2 / 3]
    np.testing.assert_allclose([surface_area(d) for d in (2, 3, 4, 5)], expected, rtol=1e-15)  # round-off


@pytest.mark.parametrize("beta", [np.nan, np.inf, -np.inf, 2 * LARGEST_BETA])
def test_bad_beta_is_refused(beta):
    for function in (eigenvalues, eigenvalue_derivatives, gradient_eigenvalues, eigenvalue_ratios):
        with pytest.raises(ValueError, match="beta"):
            function(3, beta)
    with pytest.raises(ValueError, match="beta"):
        band_limit(beta)


def test_bad_sizes_are_refused():
    for function in (eigenvalues, eigenvalue_derivatives, gradient_eigenvalues, eigenvalue_ratios):
        with pytest.raises(ValueError, match="lmax"):
            function(-2, 1.0)
        with pytest.raises(ValueError, match="dimension"):
            function(3, 1.0, 1)
    for tolerance in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="tolerance"):
            band_limit(1.0, tolerance)


def test_eigenvalues_below_the_smallest_float_are_refused_not_zero() -> None:
    for function in (eigenvalues, gradient_eigenvalues, eigenvalue_derivatives):
        with pytest.raises(ValueError, match="below the smallest float"):
            function(4, 2.0, 600)
    assert eigenvalue_ratios(4, 2.0, 600)[1] == pytest.approx(2 / 600, rel=1e-2)
