"""What the equation asks of a space: grid, quadrature, transforms, gradient and divergence.

`meanfield.sphere.Sphere` is S².  A spectrum is a complex array; a grid field has the shape ``shape``; a tangent
field has one leading axis more, of as many components as the space has directions.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.int64]


class Space(Protocol):
    """A sphere S^{d−1} with fields of degree ≤ lmax on a quadrature grid."""

    @property
    def dimension(self) -> int:
        """Ambient dimension d."""

    @property
    def lmax(self) -> int:
        """Largest degree."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a grid field."""

    @property
    def spectral_shape(self) -> tuple[int, ...]:
        """Shape of a spectrum."""

    @property
    def packed_size(self) -> int:
        """Length of a packed spectrum."""

    @property
    def degree(self) -> Integers:
        """Degree of each coefficient."""

    @property
    def order(self) -> Integers:
        """Order of each coefficient."""

    @property
    def multiplicity(self) -> Floats:
        """∫ f g = Σ multiplicity Re(f_lm conj g_lm)."""

    @property
    def laplacian_eigenvalues(self) -> Floats:
        """−l(l + d − 2) for each coefficient."""

    @property
    def points(self) -> Floats:
        """Unit vectors of the grid, shape (*shape, d)."""

    @property
    def weights(self) -> Floats:
        """Quadrature weights, shape ``shape``, with sum |S^{d−1}|."""

    def integrate(self, f: Floats) -> float:
        """∫ f."""

    @property
    def neighbours(self) -> Integers:
        """Flat indices of every grid point and its neighbours, one row a point."""

    def components(self, mask: NDArray[np.bool_]) -> Integers:
        """Label the connected components of a set of grid points; 0 outside the set."""

    def synthesis(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Grid values of a spectrum."""

    def analysis(self, f: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of grid values."""

    def gradient(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Gradient of a spectrum on the grid."""

    def divergence(self, v: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of the divergence of a tangent field."""

    def band(self, degree: int) -> Space:
        """The same grid with fields of lower degree, at the cost of that degree."""

    def band_positions(self, degree: int) -> Integers:
        """Positions of the coefficients of `band` among those of this space."""

    def pack(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Real vector whose Euclidean norm is the L² norm."""

    def unpack(self, y: Floats, out: Complexes | None = None) -> Complexes:
        """Inverse of `pack`."""

    def values_at(self, f_lm: Complexes, points: Floats) -> Floats:
        """Values at unit vectors."""

    def gradient_at(self, f_lm: Complexes, points: Floats) -> Floats:
        """Gradient at unit vectors, as vectors of R^d."""

    def point_masses(self, points: Floats, weights: Floats) -> Complexes:
        """Spectrum of weighted Diracs."""
