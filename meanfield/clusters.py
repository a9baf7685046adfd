r"""Clusters of a density: how many, where, of what mass, and with what basins.

The density is first smoothed by a heat kernel of width about 5/lmax, in which even a Dirac has no ripples of
truncation.  A maximum is a cluster if it exceeds its saddles, and the uniform density, by the factor `PROMINENCE`: the
superlevel sets are followed down a ladder of levels one prominence apart, and every component that holds none of the
level above is a new cluster.  Its basin is where steepest ascent leads to it; its mass and position are those of the
basin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .space import Complexes, Floats, Integers, Space

PROMINENCE = 1.25
SMOOTHING = 5.0
"""Width of the smoothing times √(lmax(lmax + d − 2)): degree lmax is left with e^{−12.5}."""
SPECTRAL_ERROR = 1e-9
"""Error of a spectrum relative to its L² norm, as of the default tolerances."""


@dataclass(frozen=True)
class Clusters:
    """Clusters of one density, the heaviest first.

    Attributes
    ----------
    positions : ndarray, shape (n, d)
        Directions of the mean token of each basin; on axisymmetric spaces, within one meridian.
    masses : ndarray, shape (n,)
        Masses of the basins; they sum to the mass of the density.
    basins : ndarray of int
        Number of its cluster for every point of the grid (−1 everywhere if there is none).
    """

    positions: Floats
    masses: Floats
    basins: Integers

    def __len__(self) -> int:
        return len(self.masses)


def find_clusters(space: Space, rho_lm: Complexes) -> Clusters:
    """Find the clusters of the density with spectrum ``rho_lm``."""
    smooth = _smoothed(space, rho_lm)
    peaks = _peaks(space, smooth)
    if not peaks:
        return Clusters(np.empty((0, space.dimension)), np.empty(0), np.full(space.shape, -1))
    summits = _ascend(space, smooth)
    centres = space.points.reshape(-1, space.dimension)
    # A summit that is no cluster of its own belongs to the nearest that is.
    found, place = np.unique(summits, return_inverse=True)
    nearest = np.argmax(centres[found] @ centres[peaks].T, axis=1)
    basins = nearest[place].reshape(space.shape)
    mass = space.weights * space.synthesis(rho_lm)
    masses = np.bincount(basins.ravel(), mass.ravel(), minlength=len(peaks))
    moments = np.stack(
        [np.bincount(basins.ravel(), (mass * x).ravel(), len(peaks)) for x in np.moveaxis(space.points, -1, 0)], axis=1
    )
    order = np.argsort(-masses, kind="stable")
    rank = np.argsort(order, kind="stable")
    lengths = np.linalg.norm(moments, axis=1, keepdims=True)
    positions = moments / np.where(lengths > 0.0, lengths, 1.0)
    return Clusters(positions[order], np.asarray(masses[order], dtype=np.float64), rank[basins])


def count_clusters(space: Space, rho_lm: Complexes) -> int:
    """Count the clusters of a density."""
    return len(_peaks(space, _smoothed(space, rho_lm), thinned=True))


def _smoothed(space: Space, rho_lm: Complexes) -> Floats:
    """Smoothed density, and 0 where it is below the error that the spectrum may have.

    A spectrum whose L² error is ε is known to about ε/√w at a grid point of weight w, which next to the poles of
    spheres of high dimension is more than the density of any cluster elsewhere.
    """
    rates = space.laplacian_eigenvalues
    smooth = space.synthesis(rho_lm * np.exp(-0.5 * SMOOTHING**2 * rates / np.min(rates)))
    error = SPECTRAL_ERROR * math.sqrt(float(np.sum(space.multiplicity * np.abs(rho_lm) ** 2)))
    return np.where(smooth * np.sqrt(space.weights) > error, smooth, 0.0)


def _peaks(space: Space, smooth: Floats, thinned: bool = False) -> list[int]:
    """Flat index on the (thinned) grid of the highest point of every cluster."""
    if thinned:  # every second point resolves what smoothing leaves
        smooth = smooth[tuple(slice(None, None, 2) for _ in space.shape)]
    uniform = 1.0 / space.volume
    top = float(smooth.max())
    if not top > PROMINENCE * uniform:
        return []
    steps = int(math.log(top / uniform) / math.log(PROMINENCE))
    peaks: list[int] = []
    above = np.zeros(smooth.shape, dtype=bool)
    for level in top * PROMINENCE ** -np.arange(1.0, steps + 1.0):
        mask = smooth > level
        labels = space.components(mask)
        new = np.setdiff1d(labels[mask], labels[above])
        peaks.extend(int(np.argmax(np.where(labels == label, smooth, -np.inf))) for label in new)
        above = mask
    return peaks


def _ascend(space: Space, smooth: Floats) -> Integers:
    """Flat index of the summit to which steepest ascent over the grid's neighbours leads from every point."""
    neighbours = space.neighbours
    rank = np.empty(smooth.size, dtype=np.int64)  # a strict order, so that no two equal points lead to each other
    rank[np.argsort(smooth, axis=None, kind="stable")] = np.arange(smooth.size)
    best = np.argmax(rank[neighbours], axis=1)
    step = np.take_along_axis(neighbours, best[:, None], axis=1)[:, 0]
    while True:
        further = step[step]
        if np.array_equal(further, step):
            return np.asarray(step)
        step = further
