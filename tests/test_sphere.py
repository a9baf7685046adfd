"""The sphere against dense matrices of spherical harmonics, and every size and layout it must refuse."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from meanfield.sphere import (
    Sphere,
    dealiased_grid,
    degrees,
    number_of_coefficients,
    orders,
    regular_grid,
    resize,
    to_lat_lon,
    to_points,
)

from . import oracles
from .measurements import random_points

ROUND_OFF = 2e-13


def random_spectrum(lmax: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    f_lm = generator.normal(size=number_of_coefficients(lmax)) + 1j * generator.normal(
        size=number_of_coefficients(lmax)
    )
    f_lm[orders(lmax) == 0] = f_lm[orders(lmax) == 0].real
    return f_lm


@pytest.fixture(scope="module")
def sphere() -> Sphere:
    return Sphere(15)


def test_order_of_the_coefficients(sphere: Sphere) -> None:
    l, m = oracles.degrees_and_orders(15)
    np.testing.assert_array_equal(sphere.degree, l)
    np.testing.assert_array_equal(sphere.order, m)


def test_synthesis_and_values_agree_with_harmonics(sphere: Sphere) -> None:
    f_lm = random_spectrum(15)
    reference = oracles.synthesis(f_lm, sphere.points.reshape(-1, 3)).reshape(sphere.shape)
    np.testing.assert_allclose(sphere.synthesis(f_lm), reference, atol=1e-12)  # round-off of some 100 terms
    points = random_points(50)
    np.testing.assert_allclose(sphere.values_at(f_lm, points), oracles.synthesis(f_lm, points), atol=1e-12)


def test_analysis_inverts_synthesis(sphere: Sphere) -> None:
    f_lm = random_spectrum(15)
    np.testing.assert_allclose(sphere.analysis(sphere.synthesis(f_lm)), f_lm, atol=ROUND_OFF)


def test_gradient_agrees_with_harmonics(sphere: Sphere) -> None:
    f_lm = random_spectrum(15)
    points = random_points(40)
    _, m = oracles.degrees_and_orders(15)
    gradients = oracles.harmonic_gradients(points, 15)
    reference = np.real(np.einsum("c,ncx->nx", f_lm * np.where(m == 0, 1, 2), gradients))
    np.testing.assert_allclose(sphere.gradient_at(f_lm, points), reference, atol=2e-11)  # round-off times lmax
    south, east = sphere.gradient(f_lm)
    on_grid = sphere.gradient_at(f_lm, sphere.points)
    lat, lon = np.radians(sphere.latitude)[:, None], np.radians(sphere.longitude)[None, :]
    e_south = np.stack(np.broadcast_arrays(np.sin(lat) * np.cos(lon), np.sin(lat) * np.sin(lon), -np.cos(lat)), -1)
    e_east = np.stack(np.broadcast_arrays(-np.sin(lon), np.cos(lon), 0 * lat), -1)
    np.testing.assert_allclose(np.sum(on_grid * e_south, -1), south, atol=2e-11)
    np.testing.assert_allclose(np.sum(on_grid * e_east, -1), east, atol=2e-11)


def test_divergence_of_gradient_is_the_laplacian(sphere: Sphere) -> None:
    f_lm = random_spectrum(15)
    laplacian = -sphere.degree * (sphere.degree + 1) * f_lm
    np.testing.assert_allclose(sphere.divergence(sphere.gradient(f_lm)), laplacian, atol=1e-10)  # round-off times l²


def test_divergence_has_no_mean(sphere: Sphere) -> None:
    assert sphere.divergence(np.random.default_rng(0).normal(size=(2, *sphere.shape)))[0] == 0.0


def test_quadrature(sphere: Sphere) -> None:
    assert np.sum(sphere.weights) == pytest.approx(4 * math.pi, rel=1e-14)  # round-off
    f_lm, g_lm = random_spectrum(15, 2), random_spectrum(15, 3)
    product = sphere.integrate(sphere.synthesis(f_lm) * sphere.synthesis(g_lm))
    assert product == pytest.approx(np.sum(sphere.multiplicity * np.real(f_lm * g_lm.conj())), rel=1e-12)
    points, weights = oracles.gauss_grid(sphere.nlat, sphere.nlon)
    np.testing.assert_allclose(sphere.points.reshape(-1, 3), points, atol=1e-14)
    np.testing.assert_allclose(sphere.weights.ravel(), weights, rtol=1e-12)


def test_first_row_is_north_and_a_bump_is_where_it_should_be(sphere: Sphere) -> None:
    assert sphere.latitude[0] > 80
    for lat, lon in ((45.0, 90.0), (-30.0, 200.0)):
        bump = sphere.point_masses(to_points(lat, lon)[None], np.ones(1))
        bump *= np.exp(-0.02 * sphere.degree * (sphere.degree + 1))
        field = sphere.synthesis(bump)
        row, column = np.unravel_index(np.argmax(field), field.shape)
        assert abs(sphere.latitude[row] - lat) < 180 / sphere.nlat
        assert abs(sphere.longitude[column] - lon) < 360 / sphere.nlon


def test_point_masses_are_the_adjoint_of_values(sphere: Sphere) -> None:
    points, masses = random_points(30), np.random.default_rng(4).uniform(size=30)
    spectrum = sphere.point_masses(points, masses)
    np.testing.assert_allclose(spectrum, oracles.harmonics(points, 15).conj().T @ masses, atol=1e-12)
    f_lm = random_spectrum(15, 5)
    pairing = np.sum(sphere.multiplicity * np.real(spectrum.conj() * f_lm))
    assert pairing == pytest.approx(masses @ sphere.values_at(f_lm, points), rel=1e-12)


def test_scattered_points_at_poles_and_seam(sphere: Sphere) -> None:
    f_lm = random_spectrum(15)
    points = np.array([[0, 0, 1.0], [0, 0, -1.0], [1, 0, 0], [1, -1e-17, 0], [-1, -0.0, 0], [-1, 0.0, 0]])
    values = sphere.values_at(f_lm, points)
    np.testing.assert_allclose(values, oracles.synthesis(f_lm, points), atol=1e-12)
    assert np.isfinite(sphere.gradient_at(f_lm, points)).all()
    assert sphere.values_at(f_lm, np.empty((0, 3))).shape == (0,)
    assert sphere.values_at(f_lm, points.reshape(2, 3, 3)).shape == (2, 3)
    for bad in (np.ones((4, 2)), np.array([[np.nan, 0, 1]])):
        with pytest.raises(ValueError, match="points must"):
            sphere.values_at(f_lm, bad)


def test_packed_norm_is_the_norm_on_the_sphere(sphere: Sphere) -> None:
    f_lm = random_spectrum(15)
    packed = sphere.pack(f_lm)
    assert packed.dtype == np.float64
    assert packed.shape == (sphere.packed_size,)
    np.testing.assert_allclose(sphere.unpack(packed), f_lm, atol=1e-15)
    f = sphere.synthesis(f_lm)
    assert packed @ packed == pytest.approx(sphere.integrate(f * f), rel=1e-12)


def test_band_is_the_same_field_at_a_lower_degree(sphere: Sphere) -> None:
    band = sphere.band(6)
    assert band.shape == sphere.shape
    low = random_spectrum(15)
    low[sphere.degree > 6] = 0
    short = low[sphere.band_positions(6)]
    np.testing.assert_allclose(band.synthesis(short), sphere.synthesis(low), atol=ROUND_OFF)
    np.testing.assert_allclose(band.gradient(short), sphere.gradient(low), atol=1e-12)
    np.testing.assert_array_equal(resize(low, 15, 6), short)
    np.testing.assert_array_equal(resize(short, 6, 15), low)
    assert sphere.band(15) is sphere
    assert sphere.band(99) is sphere


def test_pickles_by_its_parameters(sphere: Sphere) -> None:
    sphere.synthesis(random_spectrum(15))
    copy = pickle.loads(pickle.dumps(sphere))
    assert copy == sphere
    np.testing.assert_array_equal(copy.synthesis(random_spectrum(15)), sphere.synthesis(random_spectrum(15)))


@pytest.mark.parametrize("lmax", [1, 2, 5, 21, 31, 63, 100])
def test_default_grid_dealiases_products(lmax: int) -> None:
    nlat, nlon = dealiased_grid(lmax)
    assert 2 * nlat - 1 >= 3 * lmax
    assert nlon >= 3 * lmax + 1
    coarse, fine = Sphere(lmax), Sphere(lmax, 2 * nlat, 2 * nlon)
    a, b = random_spectrum(lmax, 1), random_spectrum(lmax, 2)
    product, flux = (
        [f(space) for space in (coarse, fine)]
        for f in (
            lambda space: space.analysis(space.synthesis(a) * space.synthesis(b)),
            lambda space: space.divergence(space.synthesis(a) * space.gradient(b)),
        )
    )
    for one, other in (product, flux):
        assert np.abs(one - other).max() <= 1e-12 * np.abs(other).max()  # round-off


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lmax": 0}, "lmax must lie in 1"),
        ({"lmax": -3}, "lmax must lie in 1"),
        ({"lmax": 10**6}, "lmax must lie in 1"),
        ({"lmax": 31.0}, "lmax must be an integer"),
        ({"lmax": True}, "lmax must be an integer"),
        ({"lmax": 63, "nlat": 63}, "at least 64 latitudes"),
        ({"lmax": 8, "nlat": 16}, "at least 32 latitudes"),
        ({"lmax": 63, "nlon": 126}, "at least 127 longitudes"),
        ({"lmax": 63, "nlat": -96}, "at least 64 latitudes"),
        ({"lmax": 31, "threads": 0}, "threads must lie"),
    ],
)
def test_illegal_sizes_are_refused_before_the_c_library_sees_them(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sphere(**arguments)


@pytest.mark.parametrize("size", [(31, 32, 63), (31, 33, 64), (31, 34, 70), (63, 64, 127), (1, 32, 3), (2, 33, 5)])
def test_odd_but_legal_sizes_work(size: tuple[int, int, int]) -> None:
    sphere = Sphere(*size)
    f_lm = random_spectrum(size[0])
    np.testing.assert_allclose(sphere.analysis(sphere.synthesis(f_lm)), f_lm, atol=ROUND_OFF)
    assert np.sum(sphere.weights) == pytest.approx(4 * math.pi, rel=1e-14)


def test_layouts_give_the_right_answer_or_a_refusal() -> None:
    sphere = Sphere(31, 64, 64)  # a square grid: the transposed field has the right shape
    f = sphere.synthesis(random_spectrum(31))
    expected = sphere.analysis(f)
    np.testing.assert_array_equal(sphere.analysis(np.asfortranarray(f)), expected)
    strided = np.empty((64, 128))
    strided[:, ::2] = f
    np.testing.assert_array_equal(sphere.analysis(strided[:, ::2]), expected)
    single = sphere.analysis(f.astype(np.float32))
    np.testing.assert_allclose(single, expected, atol=1e-5)  # single precision
    assert np.abs(sphere.analysis(f.T) - expected).max() > 0.1  # a transposed field is another field
    for bad in (f[:-1], f.ravel(), f[None], np.zeros((64, 32))):
        with pytest.raises(ValueError, match="expected an array of shape"):
            sphere.analysis(bad)
    with pytest.raises(ValueError, match="complex"):
        sphere.analysis(f + 0j)
    with pytest.raises(ValueError, match="expected an array of shape"):
        sphere.synthesis(np.zeros(10, complex))
    for kind, one, call in ((complex, expected, sphere.synthesis), (float, f, sphere.analysis)):
        misaligned = np.empty(one.size * (2 if kind is complex else 1) + 1)[1:].view(kind).reshape(one.shape)
        misaligned[...] = one
        assert misaligned.ctypes.data % 16 == 8
        np.testing.assert_array_equal(call(misaligned), call(one))
        with pytest.raises(ValueError, match="out must be"):
            (sphere.analysis if kind is complex else sphere.synthesis)(
                f if kind is complex else expected, out=misaligned
            )
    for out in (np.empty((64, 65)), np.empty((64, 64), np.float32), np.empty((64, 128))[:, ::2]):
        with pytest.raises(ValueError, match="out must be"):
            sphere.synthesis(expected, out=out)


def test_components_close_around_the_globe() -> None:
    sphere = Sphere(31)
    x, y, z = np.moveaxis(sphere.points, -1, 0)
    for mask, count in (
        (x > 0.9, 1),  # across the date line of the grid
        (np.abs(x) > 0.9, 2),
        (np.abs(z) > 0.9, 2),
        (np.abs(z) < 0.1, 1),
        (np.abs(y) < 0.2, 1),  # a ring over both poles
        ((np.abs(y) < 0.2) & (np.abs(z) < 0.9), 2),
        (np.zeros(sphere.shape, bool), 0),
    ):
        labels = sphere.components(mask)
        assert len(set(labels[mask])) == count
        assert not labels[~mask].any()


@pytest.mark.parametrize("shape", [(3, 4), (91, 180), (90, 181)])
def test_regular_grid_integrates(shape: tuple[int, int]) -> None:
    lat, lon, weights = regular_grid(*shape)
    assert lat[0] == 90
    assert lat[-1] == -90
    assert weights.shape == shape
    assert np.sum(weights) == pytest.approx(4 * math.pi, rel=1e-14)
    points = to_points(lat[:, None], lon[None, :])
    second = np.einsum("ij,ijk,ijl->kl", weights, points, points) if shape[0] > 3 else np.eye(3) * 4 * math.pi / 3
    np.testing.assert_allclose(second, np.eye(3) * 4 * math.pi / 3, atol=1e-13)
    with pytest.raises(ValueError, match="at least 3 latitudes"):
        regular_grid(2, 10)


def test_latitude_and_longitude_round_trip() -> None:
    points = np.concatenate([random_points(20), np.eye(3), -np.eye(3)])
    lat, lon = to_lat_lon(points)
    assert (lon >= 0).all()
    assert (lon < 360).all()
    np.testing.assert_allclose(to_points(lat, lon), points, atol=1e-15)
    tiny = to_lat_lon(np.array([1.0, -1e-300, 0.0]))[1]
    assert 0 <= tiny < 360


def test_degrees_are_shared_and_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        degrees(5)[0] = 1
