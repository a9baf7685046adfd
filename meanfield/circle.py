r"""The circle S¹: grid, quadrature, Fourier transforms, derivative, values at scattered points.

Conventions.  A point is (cos φ, sin φ).  A real field is :math:`f = f_0 Y_0 + 2\,\mathrm{Re}\sum_{k>0} f_k Y_k` with
the orthonormal :math:`Y_k = e^{ik\varphi}/\sqrt{2\pi}`, and k = 0 … lmax is stored: all fields, with sines and cosines,
not only even ones.  Degree and order of a coefficient are both k, so that `multiplicity` is that of the sphere.  Grid
fields have shape (nlon,), from φ = 0 counterclockwise; tangent vectors have shape (1, nlon), along e_φ =
(−sin φ, cos φ).  The non-uniform transforms are those of ducc0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import ducc0
import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage

from .arguments import checked_integer
from .space import Complexes, Floats, Integers, checked_array, checked_output, frozen, padded

LARGEST_LMAX = 2**16 - 1
SCATTERED_TOLERANCE = 1e-14
"""Accuracy asked of the non-uniform transforms (relative, L²)."""
WORTH_TRANSFORMING = 2**14
"""Points times degrees up to which sums of exponentials are formed one by one, exactly."""
NORM = 1.0 / math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class Circle:
    r"""S¹ with fields of degree ≤ ``lmax`` on an equidistant grid.

    By default the grid is fine enough (nlon ≥ 3 lmax + 1) that the product of two fields, and the divergence of a field
    times a gradient, have no aliasing error in degrees ≤ lmax.

    Parameters
    ----------
    lmax : int
        Largest degree, 1 … 65535.
    nlon : int, optional
        Grid size, at least 2 lmax + 1; 0 means de-aliased.
    threads : int
        Threads of transforms at scattered points.

    Raises
    ------
    ValueError
        If a size is out of range; the message names the smallest grid allowed.
    """

    lmax: int
    nlon: int = 0
    threads: int = 1

    kind = "circle"
    dimension = 2
    volume = 2.0 * math.pi
    axisymmetric = False

    def __post_init__(self) -> None:
        for name, least in (("lmax", 1), ("nlon", 0), ("threads", 1)):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), least))
        if self.lmax > LARGEST_LMAX:
            raise ValueError(f"lmax: must lie in 1 … {LARGEST_LMAX}, got {self.lmax}")
        if self.nlon == 0:
            object.__setattr__(self, "nlon", int(fft.next_fast_len(3 * self.lmax + 1, real=True)))
        if not 2 * self.lmax + 1 <= self.nlon <= 8 * LARGEST_LMAX:
            raise ValueError(
                f"nlon: must be at least {2 * self.lmax + 1} for lmax = {self.lmax} "
                f"(and at most {8 * LARGEST_LMAX}), got {self.nlon}"
            )

    def __getstate__(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    # ------------------------------------------------------------------ grid and coefficients

    @property
    def shape(self) -> tuple[int]:
        """Shape (nlon,) of a grid field."""
        return (self.nlon,)

    @property
    def spectral_shape(self) -> tuple[int]:
        """Shape of a spectrum."""
        return (self.lmax + 1,)

    @property
    def packed_size(self) -> int:
        """Number of real degrees of freedom, 2 lmax + 1."""
        return 2 * self.lmax + 1

    @cached_property
    def degree(self) -> Integers:
        """Degree k of each coefficient."""
        return frozen(np.arange(self.lmax + 1))

    @property
    def order(self) -> Integers:
        """Order of each coefficient, its degree."""
        return self.degree

    @cached_property
    def multiplicity(self) -> Floats:
        """1 for k = 0 and 2 for k > 0: ∫ f g = Σ multiplicity Re(f_k conj g_k)."""
        return frozen(np.where(self.degree == 0, 1.0, 2.0))

    @cached_property
    def laplacian_eigenvalues(self) -> Floats:
        """−k² for each coefficient."""
        return frozen(-(self.degree.astype(np.float64) ** 2))

    @cached_property
    def angle(self) -> Floats:
        """Angles φ of the grid in radians, from 0 counterclockwise, shape (nlon,)."""
        return frozen(np.linspace(0.0, 2.0 * math.pi, self.nlon, endpoint=False))

    @cached_property
    def points(self) -> Floats:
        """Unit vectors of the grid, shape (nlon, 2)."""
        return frozen(np.stack([np.cos(self.angle), np.sin(self.angle)], axis=-1))

    @cached_property
    def weights(self) -> Floats:
        """Quadrature weights, shape (nlon,), with sum 2π."""
        return frozen(np.full(self.nlon, 2.0 * math.pi / self.nlon))

    def integrate(self, f: Floats) -> float:
        """∫ f over the circle, exact for fields of degree < nlon."""
        return float(np.sum(f)) * (2.0 * math.pi / self.nlon)

    def first_moment(self, f: Floats) -> Floats:
        """∫ x f, shape (2,)."""
        return np.asarray((self.weights * f) @ self.points)

    def second_moment(self, f: Floats) -> Floats:
        """∫ x xᵀ f, shape (2, 2); its trace is ∫ f."""
        return np.asarray((self.points * (self.weights * f)[:, None]).T @ self.points)

    def components(self, mask: NDArray[np.bool_]) -> Integers:
        """Label the arcs of a set of points on the ring; 0 outside the set.  The grid may be thinned."""
        labels, count = ndimage.label(mask)
        if labels[0] and labels[-1]:
            labels[labels == count] = labels[0]
        return np.asarray(labels, dtype=np.int64)

    @cached_property
    def neighbours(self) -> Integers:
        """Indices of every grid point and its two neighbours, (nlon, 3)."""
        return frozen((np.arange(self.nlon)[:, None] + np.array([-1, 0, 1])) % self.nlon)

    # ------------------------------------------------------------------ transforms

    def synthesis(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Grid values of a spectrum."""
        f_lm = checked_array(f_lm, self.spectral_shape, np.complex128)
        return self._to_grid(NORM * f_lm, self.shape, out)

    def analysis(self, f: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of grid values, f_k = ∫ f conj(Y_k)."""
        return self._to_spectrum(checked_array(f, self.shape, np.float64), 1.0 / NORM, out)

    def gradient(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Derivative df/dφ of a spectrum on the grid, shape (1, nlon)."""
        f_lm = checked_array(f_lm, self.spectral_shape, np.complex128)
        return self._to_grid(self._slopes * f_lm, (1, self.nlon), out)

    def divergence(self, v: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of dv/dφ of a tangent field on the grid."""
        return self._to_spectrum(checked_array(v, (1, self.nlon), np.float64)[0], self._rates, out)

    @cached_property
    def _slopes(self) -> Complexes:
        return np.asarray(1j * NORM * self.degree)

    @cached_property
    def _rates(self) -> Complexes:
        return np.asarray(1j / NORM * self.degree)

    def _to_grid(self, scaled: Complexes, shape: tuple[int, ...], out: Floats | None) -> Floats:
        values = fft.irfft(scaled, self.nlon, norm="forward").reshape(shape)
        if out is None:
            return np.asarray(values)
        checked_output(out, shape, np.float64)[...] = values
        return out

    def _to_spectrum(self, f: Floats, scale: Complexes | float, out: Complexes | None) -> Complexes:
        low = fft.rfft(f, norm="forward")[: self.lmax + 1]
        return np.asarray(np.multiply(low, scale, out=checked_output(out, self.spectral_shape, np.complex128)))

    def band(self, degree: int) -> Circle:
        """The same grid with fields of degree ≤ ``degree`` only."""
        return self if degree >= self.lmax else _band(degree, self.nlon, self.threads)

    def resized(self, f_lm: Complexes, lmax: int) -> Complexes:
        """A spectrum of largest degree ``lmax``, cut or filled with zeros to that of this space."""
        return padded(f_lm, lmax, self.lmax)

    def band_positions(self, degree: int) -> Integers:
        """Positions of the coefficients of ``band(degree)`` among those of this space."""
        return np.arange(min(degree, self.lmax) + 1)

    # ------------------------------------------------------------------ the state as a real vector

    def pack(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Real vector of 2 lmax + 1 numbers whose Euclidean norm is the L² norm of the field.

        First the real coefficient k = 0, then Re and Im of √2 f_k for k > 0.
        """
        out = np.empty(self.packed_size) if out is None else out
        out[0] = f_lm[0].real
        np.multiply(f_lm[1:].real, math.sqrt(2.0), out=out[1::2])
        np.multiply(f_lm[1:].imag, math.sqrt(2.0), out=out[2::2])
        return out

    def unpack(self, y: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of a packed vector; the inverse of `pack`."""
        out = checked_output(out, self.spectral_shape, np.complex128)
        out[0] = y[0]
        np.multiply(y[1::2], math.sqrt(0.5), out=out.real[1:])
        np.multiply(y[2::2], math.sqrt(0.5), out=out.imag[1:])
        return out

    # ------------------------------------------------------------------ scattered points

    def values_at(self, f_lm: Complexes, points: Floats) -> Floats:
        """Values of a spectrum at unit vectors (…, 2); result (…)."""
        return self.scattered(points).values(f_lm)

    def gradient_at(self, f_lm: Complexes, points: Floats) -> Floats:
        """Gradient of a spectrum at unit vectors (…, 2), as tangent vectors of R²; result (…, 2)."""
        return self.scattered(points).gradient(f_lm)

    def point_masses(self, points: Floats, weights: Floats) -> Complexes:
        """Spectrum Σ_i w_i conj(Y_k(x_i)) of weighted Diracs at unit vectors (N, 2)."""
        return self.scattered(points).masses(weights)

    def scattered(self, points: Floats) -> ScatteredPoints:
        """Transforms between spectra and unit vectors (…, 2) off the grid, whose angles are computed once."""
        return ScatteredPoints(self, points)


class ScatteredPoints:
    """Non-uniform transforms between the spectra of a circle and fixed points; made by `Circle.scattered`.

    Few points and degrees are summed directly, to round-off; more of them by ducc0, to `SCATTERED_TOLERANCE`.
    """

    def __init__(self, circle: Circle, points: Floats) -> None:
        points = np.asarray(points, dtype=np.float64)
        if points.shape[-1:] != (2,):
            raise ValueError(f"points must have shape (…, 2), got {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError("points must be finite")
        self.shape = points.shape[:-1]
        self._circle = circle
        self._vectors = points.reshape(-1, 2)
        self._angles = np.arctan2(self._vectors[:, 1], self._vectors[:, 0])
        self._few = len(self._angles) * circle.lmax <= WORTH_TRANSFORMING
        self._options = {"epsilon": SCATTERED_TOLERANCE, "nthreads": circle.threads, "fft_order": True}

    @cached_property
    def _waves(self) -> Complexes:
        """e^{ikφ} at every point, (N, lmax + 1)."""
        return np.exp(1j * np.outer(self._angles, self._circle.degree))

    def masses(self, weights: Any) -> Complexes:
        """Spectrum Σ_i w_i conj(Y_k(x_i)); the weights have the shape of the points, or are one number."""
        values = np.broadcast_to(np.asarray(weights, float), self.shape).ravel()
        if self._few:
            spectrum = NORM * (values @ self._waves.conj())
        else:
            grid = np.empty(2 * self._circle.lmax + 2, dtype=np.complex128)
            ducc0.nufft.nu2u(
                points=values.astype(np.complex128),
                coord=self._angles[:, None],
                forward=True,
                out=grid,
                **self._options,
            )
            spectrum = NORM * grid[: self._circle.lmax + 1]
        spectrum[0] = spectrum[0].real
        return spectrum

    def values(self, f_lm: Complexes) -> Floats:
        """Values of a spectrum."""
        f_lm = checked_array(f_lm, self._circle.spectral_shape, np.complex128)
        return self._sum(NORM * self._circle.multiplicity * f_lm).reshape(self.shape)

    def gradient(self, f_lm: Complexes) -> Floats:
        """Gradient of a spectrum as tangent vectors of R², shape (…, 2)."""
        f_lm = checked_array(f_lm, self._circle.spectral_shape, np.complex128)
        slopes = self._sum(2.0 * self._circle._slopes * f_lm)
        tangents = np.stack([-np.sin(self._angles), np.cos(self._angles)], axis=-1)
        return np.asarray((slopes[:, None] * tangents).reshape((*self.shape, 2)))

    def _sum(self, factors: Complexes) -> Floats:
        """Re Σ_k factors_k e^{ikφ} at every point."""
        if self._few:
            return np.asarray((self._waves @ factors).real)
        grid = np.zeros(2 * self._circle.lmax + 2, dtype=np.complex128)
        grid[: len(factors)] = factors
        values = ducc0.nufft.u2nu(grid=grid, coord=self._angles[:, None], forward=False, **self._options)
        return np.asarray(values.real)


@lru_cache(maxsize=32)
def _band(degree: int, nlon: int, threads: int) -> Circle:
    return Circle(max(degree, 1), nlon, threads)
