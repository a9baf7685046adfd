r"""Labels of the continuum: quadrature points of the initial law on S², each to carry one token.

A Gauss grid is the best for what is smooth on all of the sphere.  Where the flow map stretches, at the borders of
basins, cells on the faces of a cube can be split instead, until the moments of a run are right to a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull

from .space import Complexes, Floats, Integers, Space
from .sphere import Sphere

LARGEST_NEGATIVE_MASS = 1e-6
"""Negative mass of a density up to which it counts as truncation or round-off, and is clipped."""
NEGLIGIBLE_WEIGHT = 1e-18
"""Labels below this fraction of the largest weight are left out: even a million of them move no moment."""
NODES = 8
"""Gauss points along a side of a cell."""


# ---- quadratures ---------------------------------------------------------------------------------------------


class Quadrature(Protocol):
    """Points and weights on S², a triangulation of the points, and an error estimate."""

    @property
    def points(self) -> Floats:
        """Unit vectors (M, 3)."""

    @property
    def weights(self) -> Floats:
        """Weights (M,) > 0 with sum 4π."""

    @property
    def triangles(self) -> Integers:
        """Corners (T, 3) of a closed triangulation, outward oriented."""

    def errors(self, masses: Floats) -> Floats:
        """Estimates of the errors of Σ masses, by parts of the sphere; ``masses``, (M, k), hold the weights."""


@dataclass(frozen=True)
class GaussGrid:
    """The Gauss grid of a sphere: the best for what is smooth on all of it."""

    sphere: Sphere

    @property
    def points(self) -> Floats:
        """Unit vectors (M, 3), row by row."""
        return self.sphere.points.reshape(-1, 3)

    @property
    def weights(self) -> Floats:
        """Weights (M,)."""
        return self.sphere.weights.ravel()

    @property
    def triangles(self) -> Integers:
        """Two triangles for each cell of the grid and a fan over each polar cap."""
        return _grid_triangles(*self.sphere.shape)

    def thinned(self, every: int) -> Floats:
        """Share (M,) of every weight in the quadrature on every second (fourth, ...) row and column; 0 elsewhere."""
        nlat, nlon = self.sphere.shape
        rows = np.arange(nlat)[every // 2 :: every]
        z, gauss = np.polynomial.legendre.leggauss(nlat)
        # Interpolatory in latitude: exact for as many degrees as there are rows.
        polynomials = np.polynomial.legendre.legvander(z[rows], len(rows) - 1).T
        share = np.zeros((nlat, nlon))
        columns = np.arange(nlon)[::every]
        new = np.linalg.solve(polynomials, 2.0 * (np.arange(len(rows)) == 0)) / gauss[rows]
        share[rows[:, None], columns] = new[:, None] * (nlon / len(columns))
        return share.ravel()

    def errors(self, masses: Floats) -> Floats:
        r"""One estimate, (1,): every second and every fourth row and column have the errors :math:`e_2, e_4`.

        The error itself is taken for :math:`e_2 \min(1, e_2/e_4)`, as if it fell by one factor at each refinement.
        """
        fine = masses.sum(axis=0)
        second, fourth = (float(np.linalg.norm(self.thinned(every) @ masses - fine)) for every in (2, 4))
        return np.array([second * min(1.0, second / fourth) if fourth > 0.0 else 0.0])


@dataclass(frozen=True, eq=False)
class Cells:
    """Square cells on the faces of a cube, seen from its centre, each with `NODES`² Gauss points.

    They may be split where the flow map stretches: at basin boundaries, or about the point that a fold opens.

    Attributes
    ----------
    face : ndarray of int, shape (n,)
        0 … 5: +x, −x, +y, −y, +z, −z.
    corner : ndarray, shape (n, 2)
        Lower angles in [−π/4, π/4) along the two axes of the face.
    size : ndarray, shape (n,)
        Angle along a side.
    """

    face: Integers
    corner: Floats
    size: Floats

    @classmethod
    def uniform(cls, divisions: int = 3) -> Cells:
        """Each face in ``divisions``² equal cells."""
        size = 0.5 * math.pi / divisions
        face, row, column = np.indices((6, divisions, divisions)).reshape(3, -1)
        corner = np.asarray(np.stack([row, column], axis=1) * size - 0.25 * math.pi, dtype=np.float64)
        return cls(face, corner, np.full(len(face), size))

    def split(self, chosen: NDArray[np.bool_]) -> Cells:
        """The same cells, the chosen ones quartered."""
        half = 0.5 * self.size[chosen]
        corners = [self.corner[chosen] + half[:, None] * np.array(at) for at in ((0, 0), (0, 1), (1, 0), (1, 1))]
        return Cells(
            np.concatenate([self.face[~chosen], *4 * [self.face[chosen]]]),
            np.concatenate([self.corner[~chosen], *corners]),
            np.concatenate([self.size[~chosen], *4 * [half]]),
        )

    @cached_property
    def _nodes(self) -> tuple[Floats, Floats]:
        node, weight = np.polynomial.legendre.leggauss(NODES)
        along = np.tan(self.corner[:, :, None] + 0.5 * self.size[:, None, None] * (node + 1.0))
        u, v = np.broadcast_arrays(along[:, 0, :, None], along[:, 1, None, :])
        square = 1.0 + u * u + v * v
        cube = np.stack([np.where(self.face % 2, -1.0, 1.0)[:, None, None] + 0.0 * u, u, v], axis=-1)
        cube /= np.sqrt(square)[..., None]
        for axis in (1, 2):  # the first component goes along the axis of the face
            of_axis = self.face // 2 == axis
            cube[of_axis] = np.roll(cube[of_axis], axis, axis=-1)
        weights = (1.0 + u * u) * (1.0 + v * v) / square**1.5 * np.outer(weight, weight)
        weights *= (0.5 * self.size[:, None, None]) ** 2
        return cube.reshape(-1, 3), weights.ravel()

    @property
    def points(self) -> Floats:
        """Unit vectors (M, 3), cell by cell."""
        return self._nodes[0]

    @property
    def weights(self) -> Floats:
        """Weights (M,)."""
        return self._nodes[1]

    @cached_property
    def triangles(self) -> Integers:
        """Triangulation of Delaunay: the convex hull of points on a sphere."""
        triangles = np.asarray(ConvexHull(self.points).simplices, dtype=np.int64)
        inward = determinant(*(self.points[corner] for corner in triangles.T)) < 0.0
        triangles[inward] = triangles[inward][:, ::-1]
        return triangles

    def errors(self, masses: Floats) -> Floats:
        """One estimate per cell, (n,): of the integrand's Legendre series at twice the degree that the nodes resolve.

        With the norms q of all coefficients and q' of those of the two highest degrees, 8 q' min(1, q'/q).
        """
        node, _ = np.polynomial.legendre.leggauss(NODES)
        basis = np.polynomial.legendre.legvander(node, NODES - 1) * np.sqrt(np.arange(NODES) + 0.5)
        values = masses.reshape(len(self.size), NODES, NODES, -1)
        series = np.einsum("ai,bj,nabk->nijk", basis, basis, values, optimize=True)
        power = np.sum(series**2, axis=-1)
        total = power.sum(axis=(1, 2))
        tail = np.sqrt(power[:, -2:].sum(axis=(1, 2)) + power[:, :-2, -2:].sum(axis=(1, 2)))
        return np.asarray(8.0 * tail * np.minimum(1.0, tail / np.sqrt(np.where(total > 0.0, total, 1.0))))


@lru_cache(maxsize=4)
def _grid_triangles(nlat: int, nlon: int) -> Integers:
    row, column = np.meshgrid(np.arange(nlat - 1), np.arange(nlon), indexing="ij")
    west, east = row * nlon + column, row * nlon + (column + 1) % nlon
    fan = np.arange(1, nlon - 1)
    last = (nlat - 1) * nlon
    corners = [
        (west, west + nlon, east),
        (east, west + nlon, east + nlon),
        (0 * fan, fan, fan + 1),
        (0 * fan + last, last + fan + 1, last + fan),
    ]
    return np.concatenate([np.stack([np.ravel(corner) for corner in three], axis=1) for three in corners])


# ---- labels --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Labels:
    """Quadrature points of an initial law, each to carry one token.

    Attributes
    ----------
    quadrature : Quadrature
        Its points are the labels.
    kept : ndarray of int, shape (N,)
        Which of them carry tokens; labels of negligible weight are left out.
    points : ndarray, shape (N, 3)
        Initial directions.
    weights : ndarray, shape (N,)
        Masses ρ₀ q, with sum 1.
    radii : ndarray, shape (N,)
        Initial radii.
    clipped : float
        Negative mass of the density that was set to 0.
    defect : float
        Mass by the quadrature, less 1, before the weights were divided by it: its error for ρ₀ itself.
    """

    quadrature: Quadrature
    kept: Integers
    points: Floats
    weights: Floats
    radii: Floats
    clipped: float
    defect: float

    @cached_property
    def triangles(self) -> Integers:
        """Corners, (T, 3), of a triangulation of the labels; where none is left out it is closed."""
        number = np.full(len(self.quadrature.points), -1)
        number[self.kept] = np.arange(len(self.kept))
        corners = number[self.quadrature.triangles]
        return np.ascontiguousarray(corners[(corners >= 0).all(axis=1)])

    def errors(self, values: Floats) -> Floats:
        """Estimates of the quadrature error of ∫ values dμ, (N, k), by parts of the sphere."""
        masses = np.zeros((len(self.quadrature.points), values.shape[1]))
        masses[self.kept] = self.weights[:, None] * values
        return self.quadrature.errors(masses)


def make_labels(
    quadrature: Quadrature, density: Callable[[Floats], Floats], radius: float | Callable[[Floats], Floats] = 1.0
) -> Labels:
    """Labels for a density and a radius field.

    Parameters
    ----------
    quadrature : Quadrature
        `GaussGrid` or `Cells`.
    density : callable
        ρ₀ at unit vectors (M, 3), per steradian.
    radius : float or callable
        R > 0, a number or at unit vectors.

    Raises
    ------
    ValueError
        If the density is negative by more than `LARGEST_NEGATIVE_MASS`, or a radius is not positive.
    """
    points = quadrature.points
    masses = np.asarray(density(points)) * quadrature.weights
    if not np.isfinite(masses).all():
        raise ValueError("density: must be finite at every label")
    clipped = float(-masses[masses < 0.0].sum()) + 0.0
    if clipped > LARGEST_NEGATIVE_MASS:
        raise ValueError(
            f"density: must be >= 0, or negative with a mass of at most {LARGEST_NEGATIVE_MASS:g}, to be carried by "
            f"labelled tokens, got a negative mass of {clipped:.2g}"
        )
    masses = np.maximum(masses, 0.0)
    kept = np.flatnonzero(masses > NEGLIGIBLE_WEIGHT * masses.max())
    if kept.size == 0:
        raise ValueError("density: must have mass at some label, got none")
    points, masses = points[kept], masses[kept]
    radii = np.broadcast_to(np.asarray(radius(points) if callable(radius) else radius, dtype=np.float64), kept.shape)
    if not (np.isfinite(radii).all() and radii.min() > 0.0):
        raise ValueError(f"radius: must be finite and > 0 at every label, got {radii.min():.6g}")
    total = float(masses.sum())
    return Labels(quadrature, kept, points, masses / total, radii, clipped, total - 1.0)


def relabel(quadrature: Quadrature, space: Space, rho_lm: Complexes, radius_lm: Complexes | None = None) -> Labels:
    """Labels that start anew from the spectra of an Eulerian run, where these are still resolved.

    Raises
    ------
    ValueError
        As `make_labels`.
    """
    return make_labels(
        quadrature,
        lambda points: space.values_at(rho_lm, points),
        1.0 if radius_lm is None else lambda points: space.values_at(radius_lm, points),
    )


def determinant(a: Floats, b: Floats, c: Floats) -> Floats:
    """Determinants of triples of vectors, rows of (n, 3) arrays."""
    return np.asarray(np.einsum("ij,ij->i", a, np.cross(b, c)))
