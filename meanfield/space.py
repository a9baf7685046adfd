"""What the equation asks of a space: grid, quadrature, transforms, gradient and divergence.

`meanfield.sphere.Sphere` is S², `meanfield.circle.Circle` is S¹, and `meanfield.zonal.Zonal` are the fields on S^{d−1}
that depend on the distance from one axis only.  A spectrum is a complex array; a grid field has the shape ``shape``; a
tangent field has one leading axis more, of as many components as the space has directions.

Each space has one uniform measure, of total mass ``volume``: densities, integrals and the orthonormality of harmonics
are with respect to it.  On S² and S¹ it is the surface measure; on zonal spaces it is the probability measure, since
|S^{d−1}| is below the smallest float from d ≈ 440 on.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Complexes = NDArray[np.complex128]
Integers = NDArray[np.int64]
Array = TypeVar("Array", bound=NDArray[Any])


class Space(Protocol):
    """A sphere S^{d−1} with fields of degree ≤ lmax on a quadrature grid."""

    @property
    def kind(self) -> str:
        """Name in a case: "sphere", "circle" or "zonal"."""

    @property
    def dimension(self) -> int:
        """Ambient dimension d."""

    @property
    def volume(self) -> float:
        """Total mass of the measure: the uniform density is its inverse."""

    @property
    def axisymmetric(self) -> bool:
        """Whether all fields depend on the distance from the last axis alone."""

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
        """Unit vectors of the grid, shape (*shape, d); on axisymmetric spaces those of one meridian."""

    @property
    def weights(self) -> Floats:
        """Quadrature weights, shape ``shape``, with sum ``volume``."""

    def integrate(self, f: Floats) -> float:
        """∫ f."""

    def first_moment(self, f: Floats) -> Floats:
        """∫ x f, shape (d,)."""

    def second_moment(self, f: Floats) -> Floats:
        """∫ x xᵀ f, shape (d, d)."""

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

    def resized(self, f_lm: Complexes, lmax: int) -> Complexes:
        """A spectrum of largest degree ``lmax``, cut or filled with zeros to that of this space."""

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


def padded(f_lm: Complexes, lmax_from: int, lmax_to: int) -> Complexes:
    """A spectrum with one coefficient for each degree, cut or filled with zeros to another largest degree."""
    if f_lm.shape != (lmax_from + 1,):
        raise ValueError(f"a spectrum of degree {lmax_from} has {lmax_from + 1} coefficients, got shape {f_lm.shape}")
    other = np.zeros(lmax_to + 1, dtype=np.complex128)
    kept = min(lmax_from, lmax_to) + 1
    other[:kept] = f_lm[:kept]
    return other


def frozen(array: Array) -> Array:
    """The array, made read-only: spaces share what they have computed."""
    array.flags.writeable = False
    return array


def checked_array(array: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of the right shape, converted to the right type; no real field may be complex."""
    if array.shape != shape:
        raise ValueError(f"expected an array of shape {shape}, got {array.shape}")
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "c" and np.dtype(dtype).kind == "f":
        raise ValueError("expected a real field, got a complex one")
    return array.astype(dtype)


def checked_output(out: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array, or the caller's own if it has the right shape and type."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype:
        raise ValueError(f"out must be a {np.dtype(dtype)} array of shape {shape}, got {out.dtype} {out.shape}")
    return out
