"""The spectral attention field against direct quadrature of its integral."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield.attention import SpectralField
from meanfield.interaction import Attention
from meanfield.kernels import eigenvalue_ratios
from meanfield.sphere import Sphere

from . import oracles

BUMPS = ((0.5, 2.0, (1.0, 0.0, 0.3)), (0.3, 3.0, (-0.2, 1.0, 0.1)), (0.2, 1.0, (0.0, -0.5, -1.0)))


def three_bumps(space: Sphere) -> np.ndarray:
    """Spectrum of the three bumps, by Funk–Hecke."""
    total = np.zeros(space.spectral_shape, complex)
    for weight, concentration, mean in BUMPS:
        centre = np.array(mean) / np.linalg.norm(mean)
        ratios = eigenvalue_ratios(space.lmax, concentration)[space.degree]
        total += ratios * space.point_masses(centre[None], np.array([weight]))
    return total


def cartesian(space: Sphere, tangent: np.ndarray) -> np.ndarray:
    """Tangent components (south, east) as vectors of R³."""
    lat, lon = np.radians(space.latitude)[:, None], np.radians(space.longitude)[None, :]
    zero = np.zeros(space.shape)
    south = np.stack([np.sin(lat) * np.cos(lon), np.sin(lat) * np.sin(lon), -np.cos(lat) + zero], -1)
    east = np.stack([-np.sin(lon) + zero, np.cos(lon) + zero, zero], -1)
    return tangent[0][..., None] * south + tangent[1][..., None] * east


@pytest.mark.parametrize("kernel", ["softmax", "unnormalized"])
@pytest.mark.parametrize("beta", [-2.0, -1e-7, 0.0, 1e-9, 0.5, 1.0, 4.0, 16.0, 64.0])
def test_field_is_the_integral(beta: float, kernel: str) -> None:
    space = Sphere(31)
    rho_lm = three_bumps(space)
    field = SpectralField(space, Attention(beta, kernel, value=-0.7))
    field.evaluate(rho_lm, radial=True)
    points, weights = oracles.gauss_grid(80)
    masses = oracles.three_bumps(points) * weights
    rows = slice(None, None, 7)
    targets = space.points[rows, ::11].reshape(-1, 3)
    reference = oracles.attention(targets, points, masses, beta, kernel=kernel, value=-0.7 * np.eye(3))
    tangent, radial, norm = oracles.split(targets, reference)
    # Truncation of the density's spectrum (1e-13 at lmax 31) and round-off, relative to the field.
    tolerance = {"rtol": 0, "atol": 1e-12 * np.abs(reference).max()}
    np.testing.assert_allclose(cartesian(space, field.tangent)[rows, ::11].reshape(-1, 3), tangent, **tolerance)
    np.testing.assert_allclose(field.radial[rows, ::11].ravel(), radial, **tolerance)
    np.testing.assert_allclose(field.norm(np.empty(space.shape))[rows, ::11].ravel(), norm, **tolerance)


def test_beta_zero_is_the_mean_token() -> None:
    space = Sphere(15)
    field = SpectralField(space, Attention(0.0))
    field.evaluate(three_bumps(space), radial=True)
    points, weights = oracles.gauss_grid(40)
    mean = (oracles.three_bumps(points) * weights) @ points
    vectors = cartesian(space, field.tangent) + field.radial[..., None] * space.points
    np.testing.assert_allclose(vectors, np.broadcast_to(mean, vectors.shape), atol=1e-14)  # round-off


@pytest.mark.parametrize("beta", [300.0, 1000.0])
def test_large_beta_is_finite_and_right_where_lmax_allows(beta: float) -> None:
    space = Sphere(127)
    field = SpectralField(space, Attention(beta))
    field.evaluate(three_bumps(space), radial=True)
    # Laplace: A = θ + ∇log ρ/β + O(1/β) in the radial direction, O(β^-2) in the tangential.
    slope = space.gradient(three_bumps(space)) / space.synthesis(three_bumps(space)) / beta
    assert np.abs(field.tangent - slope).max() < 20 / beta**2
    assert np.abs(field.radial - 1).max() < 5 / beta


@pytest.mark.parametrize(("beta", "lmax"), [(1000.0, 63), (-400.0, 31), (16.0, 5)])
def test_kernel_finer_than_the_space_is_refused(beta: float, lmax: int) -> None:
    with pytest.raises(ValueError, match=rf"beta = {beta:g} needs lmax >= (\d+), got lmax = {lmax}") as caught:
        SpectralField(Sphere(lmax), Attention(beta))
    needed = int(str(caught.value).split("lmax >= ")[1].split(",")[0])
    SpectralField(Sphere(needed), Attention(beta))


def test_only_low_degrees_are_read() -> None:
    space = Sphere(63)
    smooth = three_bumps(space)
    rough = smooth + np.where(space.degree > 30, 1e-2, 0.0)
    fields = [SpectralField(space, Attention(4.0)) for _ in range(2)]
    for field, rho_lm in zip(fields, (smooth, rough), strict=True):
        field.evaluate(rho_lm, radial=True)
    assert fields[0].band.lmax < 31
    np.testing.assert_array_equal(fields[0].tangent, fields[1].tangent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": np.nan}, "beta: must be finite"),
        ({"beta": np.inf}, "beta: must be finite"),
        ({"beta": 1e9}, "beta: must be finite"),
        ({"beta": 800.0, "kernel": "unnormalized"}, "overflows"),
        ({"beta": 1.0, "kernel": "linear"}, "kernel: must be one of softmax, unnormalized"),
        ({"beta": 1.0, "value": np.nan}, "value: must be finite"),
    ],
)
def test_bad_attention_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attention(**arguments)
