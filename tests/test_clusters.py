"""Clusters: counted, placed and weighed where the answer is plain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meanfield.clusters import count_clusters, find_clusters
from meanfield.initial import PoissonKernel, VonMisesFisherMixture
from meanfield.sphere import Sphere
from meanfield.zonal import Zonal

SPACE = Sphere(31)


def bumps(means: list[tuple[float, float, float]], concentration: float = 60.0) -> np.ndarray:
    space = Sphere(63)
    law = VonMisesFisherMixture(concentrations=(concentration,) * len(means), means=tuple(means))
    return law.coefficients(space)


@pytest.mark.parametrize(
    ("means", "count"),
    [
        ([(0, 0, 1.0)], 1),
        ([(0, 0, 1.0), (0, 0, -1.0)], 2),
        ([(1.0, 0.001, 0)], 1),
        ([(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)], 6),
        ([(1, 0, 0), (1, 0.05, 0)], 1),
    ],
)
def test_clusters_are_counted(means: list, count: int) -> None:
    assert count_clusters(Sphere(63), bumps([tuple(map(float, m)) for m in means])) == count


def test_a_nearly_uniform_density_has_no_cluster_and_a_ring_is_one() -> None:
    uniform = np.zeros(SPACE.spectral_shape, complex)
    uniform[0] = 1 / math.sqrt(4 * math.pi)
    assert count_clusters(SPACE, uniform) == 0
    uniform[SPACE.degree == 2] += 0.01
    assert count_clusters(SPACE, uniform) == 0
    ring = SPACE.analysis(np.exp(-20 * SPACE.points[..., 2] ** 2))
    assert count_clusters(SPACE, ring / (ring[0].real * math.sqrt(4 * math.pi))) == 1


@pytest.mark.parametrize("dimension", [3, 64])
def test_errors_of_the_spectrum_next_to_the_poles_are_no_clusters(dimension: int) -> None:
    """One bump about a high latitude, with errors as the stepper leaves them: a ten-billionth of its norm."""
    space = Zonal(63, dimension)
    rho_lm = PoissonKernel(radius=0.4).coefficients(space)
    noise = np.random.default_rng(0).standard_normal(space.spectral_shape)
    errors = 1e-10 * np.linalg.norm(rho_lm) * noise / np.linalg.norm(noise)
    assert count_clusters(space, rho_lm + errors) == 1


def test_positions_masses_and_basins() -> None:
    space = Sphere(63)
    means = ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (-0.6, 0.8, -0.3))
    law = VonMisesFisherMixture(weights=(0.2, 0.5, 0.3), concentrations=(80.0,) * 3, means=means)
    found = find_clusters(space, law.coefficients(space))
    np.testing.assert_allclose(found.masses, [0.5, 0.3, 0.2], atol=1e-3)  # tails across the borders
    assert found.masses.sum() == pytest.approx(1.0, abs=1e-12)
    expected = np.array([means[1], means[2], means[0]])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(np.sum(found.positions * expected, axis=1), 1.0, atol=1e-5)
    # Equal bumps: the border lies halfway, so the basins are those of the nearest centre.
    nearest = np.argmax(space.points @ expected.T, axis=-1)
    heavy = space.synthesis(law.coefficients(space)) > 1e-3
    assert np.mean(found.basins[heavy] == nearest[heavy]) > 0.97


def test_a_density_without_clusters_has_none() -> None:
    uniform = np.zeros(SPACE.spectral_shape, complex)
    uniform[0] = 1 / math.sqrt(4 * math.pi)
    found = find_clusters(SPACE, uniform)
    assert len(found) == 0
    assert found.positions.shape == (0, 3)
    assert (found.basins == -1).all()


def test_neighbours_meet_over_the_poles() -> None:
    neighbours = SPACE.neighbours
    assert neighbours.shape == (SPACE.nlat * SPACE.nlon, 9)
    points = SPACE.points.reshape(-1, 3)
    cosines = np.sum(points[neighbours] * points[:, None], axis=-1)
    assert cosines.min() > math.cos(math.radians(2.9 * 180 / SPACE.nlat))
    for index in (0, SPACE.nlon // 3, SPACE.nlat * SPACE.nlon - 1):
        assert all(index in neighbours[other] for other in neighbours[index])


@pytest.mark.parametrize("axis", [(0.0, 0.0, 1.0), (0.0, 0.0, -1.0), (1.0, 0.0, 0.0)])
def test_ties_about_an_axis_end(axis: tuple[float, float, float]) -> None:
    law = VonMisesFisherMixture(concentrations=(30.0,), means=(axis,))
    found = find_clusters(SPACE, law.coefficients(SPACE))
    np.testing.assert_allclose(found.positions, [axis], atol=1e-8)
    assert found.masses[0] == pytest.approx(1.0)
