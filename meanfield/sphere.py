r"""The sphere S²: grid, quadrature, spherical-harmonic transforms, gradient, divergence, values at scattered points.

The only module that knows SHTns (transforms on the grid) and ducc0 (transforms at scattered points).

Conventions.  A real field is :math:`f = \sum_l f_{l0} Y_{l0} + 2\,\mathrm{Re}\sum_{m>0} f_{lm} Y_{lm}` with orthonormal
Y_lm that carry the Condon–Shortley phase (as scipy.special.sph_harm_y), and m ≥ 0 is stored, order by order:
(0,0) … (L,0), (1,1) … (L,1), …  Grid fields have shape (nlat, nlon), rows from north to south; tangent vectors
have shape (2, nlat, nlon): the components to the south (e_θ) and to the east (e_φ).
"""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import ducc0
import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, sparse

from .space import Complexes, Floats, frozen

with contextlib.redirect_stdout(io.StringIO()):  # SHTns announces itself on stdout, which carries results only
    import shtns


SMALLEST_NLAT = 32
"""SHTns's vectorized transforms end the process below 32 latitudes on processors with wide registers."""
ALIGNMENT = 16
"""Bytes: SHTns ends the process on a spectrum that lies elsewhere, as a slice may; new arrays of NumPy never do."""
LARGEST_LMAX = 4095
SCATTERED_TOLERANCE = 1e-14
"""Accuracy asked of the non-uniform transforms (relative, in the maximum norm)."""


def number_of_coefficients(lmax: int) -> int:
    """Number of stored coefficients, (lmax + 1)(lmax + 2)/2."""
    return (lmax + 1) * (lmax + 2) // 2


def lmax_of(f_lm: Complexes) -> int:
    """Largest degree of a stored spectrum, from its length."""
    return (math.isqrt(8 * f_lm.shape[-1] + 1) - 3) // 2


def _positions(lmax: int, order: int) -> slice:
    """Where the coefficients l = order … lmax of one order are stored."""
    start = order * (lmax + 1) - order * (order - 1) // 2
    return slice(start, start + lmax + 1 - order)


@lru_cache(maxsize=32)
def degrees(lmax: int) -> NDArray[np.int64]:
    """Degree l of every stored coefficient."""
    return frozen(np.concatenate([np.arange(m, lmax + 1) for m in range(lmax + 1)]))


@lru_cache(maxsize=32)
def orders(lmax: int) -> NDArray[np.int64]:
    """Order m of every stored coefficient."""
    return frozen(np.repeat(np.arange(lmax + 1), np.arange(lmax + 1, 0, -1)))


@lru_cache(maxsize=64)
def truncation(lmax: int, lower: int) -> NDArray[np.int64]:
    """Positions of the coefficients of degree ≤ ``lower`` among those of degree ≤ ``lmax``, in storage order."""
    return frozen(np.flatnonzero(degrees(lmax) <= lower))


def resize(f_lm: Complexes, lmax_from: int, lmax_to: int) -> Complexes:
    """Cut a spectrum, or fill it with zeros, to another largest degree."""
    if f_lm.shape != (number_of_coefficients(lmax_from),):
        raise ValueError(
            f"a spectrum of degree {lmax_from} has {number_of_coefficients(lmax_from)} "
            f"coefficients, got shape {f_lm.shape}"
        )
    if lmax_to <= lmax_from:
        return f_lm[truncation(lmax_from, lmax_to)]
    wider = np.zeros(number_of_coefficients(lmax_to), dtype=np.complex128)
    wider[truncation(lmax_to, lmax_from)] = f_lm
    return wider


def to_points(lat: Any, lon: Any) -> Floats:
    """Unit vectors (…, 3) of latitudes and longitudes in degrees, broadcast together."""
    lat, lon = np.broadcast_arrays(np.radians(np.asarray(lat, float)), np.radians(np.asarray(lon, float)))
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def to_lat_lon(points: Floats) -> tuple[Floats, Floats]:
    """Latitude and longitude in [0, 360) (degrees) of vectors (…, 3) of any non-zero length."""
    x, y, z = np.moveaxis(np.asarray(points, float), -1, 0)
    lon = np.degrees(np.arctan2(y, x)) % 360.0
    return np.degrees(np.arctan2(z, np.hypot(x, y))), np.where(lon == 360.0, 0.0, lon)


@dataclass(frozen=True)
class Sphere:
    r"""S² with fields of degree ≤ ``lmax`` on a Gauss–Legendre grid.

    By default the grid is fine enough (nlat ≥ 3(lmax + 1)/2, nlon ≥ 3 lmax + 1) that the product of two fields, and
    the divergence of a field times a gradient, have no aliasing error in degrees ≤ lmax.

    Parameters
    ----------
    lmax : int
        Largest degree, 1 … 4095.
    nlat, nlon : int, optional
        Grid size, at least lmax + 1 (and 32) latitudes and 2 lmax + 1 longitudes; 0 means de-aliased.
    threads : int
        OpenMP threads; one is fastest below lmax ≈ 255.

    Raises
    ------
    ValueError
        If a size is out of range; the message names the smallest grid allowed.
    """

    lmax: int
    nlat: int = 0
    nlon: int = 0
    threads: int = 1

    kind = "sphere"
    dimension = 3
    volume = 4.0 * math.pi
    axisymmetric = False

    def __post_init__(self) -> None:
        for name in ("lmax", "nlat", "nlon", "threads"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise ValueError(f"{name} must be an integer, got {value!r}")
            object.__setattr__(self, name, int(value))
        if not 1 <= self.lmax <= LARGEST_LMAX:
            raise ValueError(f"lmax must lie in 1 … {LARGEST_LMAX}, got {self.lmax}")
        if not 1 <= self.threads <= 1024:
            raise ValueError(f"threads must lie in 1 … 1024, got {self.threads}")
        nlat, nlon = dealiased_grid(self.lmax)
        object.__setattr__(self, "nlat", self.nlat or nlat)
        object.__setattr__(self, "nlon", self.nlon or nlon)
        for name, plural, smallest in (
            ("nlat", "latitudes", max(self.lmax + 1, SMALLEST_NLAT)),
            ("nlon", "longitudes", 2 * self.lmax + 1),
        ):
            size = getattr(self, name)
            if not smallest <= size <= 8 * LARGEST_LMAX:
                raise ValueError(
                    f"lmax = {self.lmax} needs at least {smallest} {plural} "
                    f"(and at most {8 * LARGEST_LMAX}), got {name} = {size}"
                )

    def __getstate__(self) -> dict[str, int]:
        # The C object neither pickles nor survives a fork: only the parameters travel.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    # ------------------------------------------------------------------ grid and coefficients

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (nlat, nlon) of a grid field."""
        return self.nlat, self.nlon

    @property
    def spectral_shape(self) -> tuple[int]:
        """Shape of a spectrum."""
        return (number_of_coefficients(self.lmax),)

    @property
    def packed_size(self) -> int:
        """Number of real degrees of freedom, (lmax + 1)²."""
        return (self.lmax + 1) ** 2

    @property
    def degree(self) -> NDArray[np.int64]:
        """Degree l of each coefficient."""
        return degrees(self.lmax)

    @property
    def order(self) -> NDArray[np.int64]:
        """Order m of each coefficient."""
        return orders(self.lmax)

    @cached_property
    def multiplicity(self) -> Floats:
        """1 for m = 0 and 2 for m > 0: ∫ f g = Σ multiplicity Re(f_lm conj g_lm)."""
        return frozen(np.where(self.order == 0, 1.0, 2.0))

    @cached_property
    def latitude(self) -> Floats:
        """Latitudes in degrees, north to south."""
        sine = self._transforms.cos_theta
        return frozen(np.degrees(np.arctan2(sine, np.sqrt((1.0 - sine) * (1.0 + sine)))))

    @cached_property
    def longitude(self) -> Floats:
        """Longitudes in degrees, from 0 eastwards."""
        return frozen(np.linspace(0.0, 360.0, self.nlon, endpoint=False))

    @cached_property
    def points(self) -> Floats:
        """Unit vectors of the grid, shape (nlat, nlon, 3)."""
        return frozen(to_points(self.latitude[:, None], self.longitude[None, :]))

    @cached_property
    def weights(self) -> Floats:
        """Gauss quadrature weights, shape (nlat, nlon), with sum 4π."""
        half = self._transforms.gauss_wts()  # the northern half, the equator included
        rows = np.concatenate([half, half[: self.nlat // 2][::-1]])
        rows *= 2.0 / rows.sum()
        return frozen(np.repeat(rows[:, None] * (2.0 * math.pi / self.nlon), self.nlon, axis=1))

    def integrate(self, f: Floats) -> float:
        """∫ f over the sphere, exact for fields of degree ≤ 2 nlat − 1."""
        return float(np.sum(self.weights * f))

    def first_moment(self, f: Floats) -> Floats:
        """∫ x f, shape (3,)."""
        return np.tensordot(self.weights * f, self.points, axes=2)

    def second_moment(self, f: Floats) -> Floats:
        """∫ x xᵀ f, shape (3, 3); its trace is ∫ f."""
        points = self.points.reshape(-1, 3)
        return (points * (self.weights * f).reshape(-1, 1)).T @ points

    def cartesian(self, v: Floats) -> Floats:
        """Components (x, y, z) of a tangent field (south, east) on the grid, shape (3, nlat, nlon)."""
        south, east = v
        lat, lon = np.radians(self.latitude)[:, None], np.radians(self.longitude)[None, :]
        horizontal = np.sin(lat) * south
        return np.stack(
            [
                horizontal * np.cos(lon) - east * np.sin(lon),
                horizontal * np.sin(lon) + east * np.cos(lon),
                -np.cos(lat) * south,
            ]
        )

    def components(self, mask: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Label the connected components of grid points, across the date line and over the poles.

        The grid may be thinned.  Returns labels of its shape, 0 outside the set; labels need not be consecutive.
        """
        # One row more at each pole, in which any point of the first or last row meets all others.
        poles = [np.full((1, mask.shape[1]), mask[row].any()) for row in (0, -1)]
        rows = np.concatenate([poles[0], mask, poles[1]])
        labels, count = ndimage.label(rows, structure=np.ones((3, 3)))
        west, east = labels[:, 0], labels[:, -1]  # neighbours across the date line, diagonal ones included
        seams = ((west, east), (west[1:], east[:-1]), (west[:-1], east[1:]))
        pairs = np.concatenate([np.stack(seam) for seam in seams], axis=1)
        pairs = pairs[:, (pairs > 0).all(axis=0)]
        graph = sparse.coo_array((np.ones(pairs.shape[1]), tuple(pairs)), shape=(count + 1, count + 1))
        _, merged = sparse.csgraph.connected_components(graph, directed=False)
        return np.where(mask, merged[labels[1:-1]] + 1, 0)

    @cached_property
    def neighbours(self) -> NDArray[np.int64]:
        """Flat indices of every grid point and its eight neighbours, (nlat·nlon, 9), across date line and poles.

        A point of the first or last row also has the one opposite it over the pole.
        """
        row, column = np.divmod(np.arange(self.nlat * self.nlon), self.nlon)
        found = []
        for south in (-1, 0, 1):
            for east in (-1, 0, 1):
                beyond = (row + south < 0) | (row + south >= self.nlat)
                across = (column + east + np.where(beyond, self.nlon // 2, 0)) % self.nlon
                found.append(np.clip(row + south, 0, self.nlat - 1) * self.nlon + across)
        return frozen(np.stack(found, axis=1))

    # ------------------------------------------------------------------ transforms

    @cached_property
    def _transforms(self) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            transforms = shtns.sht(self.lmax, self.lmax, 1, shtns.sht_orthonormal, self.threads)
            # Quick initialization plans by rule, not by timing: the same numbers in every run.
            transforms.set_grid(self.nlat, self.nlon, shtns.sht_quick_init | shtns.SHT_PHI_CONTIGUOUS, 0.0)
        return transforms

    @cached_property
    def _zero_lm(self) -> Complexes:
        return frozen(np.zeros(self.spectral_shape, dtype=np.complex128))

    @cached_property
    def _scratch_lm(self) -> Complexes:
        return np.zeros(self.spectral_shape, dtype=np.complex128)

    @cached_property
    def laplacian_eigenvalues(self) -> Floats:
        """−l(l + 1) for each coefficient."""
        return frozen(-(self.degree * (self.degree + 1.0)))

    def synthesis(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Grid values of a spectrum."""
        out = _output(out, self.shape, np.float64)
        self._transforms.SH_to_spat(_checked(f_lm, self.spectral_shape, np.complex128), out)
        return out

    def analysis(self, f: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of grid values, f_lm = ∫ f conj(Y_lm)."""
        out = _output(out, self.spectral_shape, np.complex128)
        self._transforms.spat_to_SH(_checked(f, self.shape, np.float64), out)
        return out

    def gradient(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Surface gradient of a spectrum on the grid, components (south, east)."""
        out = _output(out, (2, *self.shape), np.float64)
        self._transforms.SHsph_to_spat(_checked(f_lm, self.spectral_shape, np.complex128), out[0], out[1])
        return out

    def divergence(self, v: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of the surface divergence of a tangent field (south, east) on the grid."""
        out = _output(out, self.spectral_shape, np.complex128)
        v = _checked(v, (2, *self.shape), np.float64)
        self._transforms.spat_to_SHsphtor(v[0], v[1], out, self._scratch_lm)
        out *= self.laplacian_eigenvalues
        return out

    def band(self, degree: int) -> Sphere:
        """The same grid with fields of degree ≤ ``degree`` only, whose transforms cost what that degree costs."""
        if degree >= self.lmax:
            return self
        return _band(degree, self.shape, self.threads)

    def resized(self, f_lm: Complexes, lmax: int) -> Complexes:
        """A spectrum of largest degree ``lmax``, cut or filled with zeros to that of this space."""
        return resize(f_lm, lmax, self.lmax)

    def band_positions(self, degree: int) -> NDArray[np.int64]:
        """Positions of the coefficients of ``band(degree)`` among those of this space."""
        return truncation(self.lmax, min(degree, self.lmax))

    # ------------------------------------------------------------------ the state as a real vector

    def pack(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Real vector of (lmax + 1)² numbers whose Euclidean norm is the L² norm of the field.

        First the real coefficients m = 0, then Re and Im of √2 f_lm for m > 0.
        """
        out = np.empty(self.packed_size) if out is None else out
        zonal = self.lmax + 1
        out[:zonal] = f_lm[:zonal].real
        np.multiply(f_lm[zonal:], math.sqrt(2.0), out=out[zonal:].view(np.complex128))
        return out

    def unpack(self, y: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of a packed vector; the inverse of `pack`."""
        out = _output(out, self.spectral_shape, np.complex128)
        zonal = self.lmax + 1
        out[:zonal] = y[:zonal]
        np.multiply(y[zonal:].view(np.complex128), math.sqrt(0.5), out=out[zonal:])
        return out

    # ------------------------------------------------------------------ scattered points

    def values_at(self, f_lm: Complexes, points: Floats) -> Floats:
        """Values of a spectrum at unit vectors (…, 3); result (…)."""
        return self.scattered(points).values(f_lm)

    def gradient_at(self, f_lm: Complexes, points: Floats) -> Floats:
        """Surface gradient of a spectrum at unit vectors (…, 3), as tangent vectors of R³; result (…, 3)."""
        return self.scattered(points).gradient(f_lm)

    def point_masses(self, points: Floats, weights: Floats) -> Complexes:
        """Spectrum Σ_i w_i conj(Y_lm(x_i)) of weighted Diracs at unit vectors (N, 3)."""
        return self.scattered(points).masses(weights)

    def scattered(self, points: Floats) -> ScatteredPoints:
        """Transforms between spectra and unit vectors (…, 3) off the grid, whose angles are computed once."""
        return ScatteredPoints(self, points)


class ScatteredPoints:
    """Non-uniform transforms between the spectra of a sphere and fixed points; made by `Sphere.scattered`.

    ducc0 chooses its interpolation by the number of threads: results of one and of two agree to round-off only.
    """

    def __init__(self, sphere: Sphere, points: Floats) -> None:
        points = np.asarray(points, dtype=np.float64)
        if points.shape[-1:] != (3,):
            raise ValueError(f"points must have shape (…, 3), got {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError("points must be finite")
        self.shape = points.shape[:-1]
        self._sphere = sphere
        self._components = np.ascontiguousarray(points.reshape(-1, 3).T)  # contiguous: arctan2 is vectorized
        x, y, z = self._components
        self._cos_lat = np.sqrt(x * x + y * y)
        # Colatitude and longitude by arctan2: no loss near the poles.
        self._location = np.empty((len(x), 2))
        self._location[:, 0] = np.arctan2(self._cos_lat, z)
        longitude = np.arctan2(y, x)
        self._location[:, 1] = longitude + (2.0 * math.pi) * (longitude < 0.0)
        self._options = {
            "loc": self._location,
            "lmax": sphere.lmax,
            "mmax": sphere.lmax,
            "epsilon": SCATTERED_TOLERANCE,
            "nthreads": sphere.threads,
        }

    def masses(self, weights: Any) -> Complexes:
        """Spectrum Σ_i w_i conj(Y_lm(x_i)); the weights have the shape of the points, or are one number."""
        values = np.ascontiguousarray(np.broadcast_to(np.asarray(weights, float), self.shape)).reshape(1, -1)
        if values.size == 0:
            return np.zeros(self._sphere.spectral_shape, dtype=np.complex128)
        spectrum: Complexes = ducc0.sht.adjoint_synthesis_general(map=values, spin=0, **self._options)[0]
        spectrum[: self._sphere.lmax + 1].imag = 0.0  # Y_l0 is real, to the last bit
        return spectrum

    def values(self, f_lm: Complexes) -> Floats:
        """Values of a spectrum."""
        f_lm = _checked(f_lm, self._sphere.spectral_shape, np.complex128)
        if len(self._location) == 0:
            return np.empty(self.shape)
        values = ducc0.sht.synthesis_general(alm=f_lm[None], spin=0, **self._options)
        return np.asarray(values[0]).reshape(self.shape)

    def gradient(self, f_lm: Complexes) -> Floats:
        """Surface gradient of a spectrum as tangent vectors of R³, shape (…, 3)."""
        f_lm = _checked(f_lm, self._sphere.spectral_shape, np.complex128)
        if len(self._location) == 0:
            return np.empty((*self.shape, 3))
        south, east = ducc0.sht.synthesis_general(alm=f_lm[None], spin=1, mode="DERIV1", **self._options)
        cos_lon, sin_lon = self._directions
        vectors = np.empty((len(south), 3))
        vectors[:, 2] = -south * self._cos_lat
        south *= self._components[2]
        vectors[:, 0] = south * cos_lon - east * sin_lon
        vectors[:, 1] = south * sin_lon + east * cos_lon
        return vectors.reshape((*self.shape, 3))

    @cached_property
    def _directions(self) -> tuple[Floats, Floats]:
        """Cosine and sine of the longitudes, which are 0 at the poles."""
        x, y, _ = self._components
        away = self._cos_lat > 0.0
        return (
            np.divide(x, self._cos_lat, out=np.ones_like(x), where=away),
            np.divide(y, self._cos_lat, out=np.zeros_like(y), where=away),
        )


@lru_cache(maxsize=32)
def _band(degree: int, shape: tuple[int, int], threads: int) -> Sphere:
    return Sphere(max(degree, 1), *shape, threads)


def regular_grid(nlat: int, nlon: int) -> tuple[Floats, Floats, Floats]:
    """Equidistant latitudes (north to south, poles included) and longitudes (degrees), and quadrature weights.

    The weights, shape (nlat, nlon), are those of Clenshaw and Curtis: their sum is 4π, and they are exact for degrees
    below nlat.
    """
    if nlat < 3 or nlon < 4:
        raise ValueError(f"a regular grid has at least 3 latitudes and 4 longitudes, got {nlat} and {nlon}")
    rows: Floats = ducc0.sht.get_gridweights("CC", nlat)
    weights = np.repeat((rows * (4.0 * math.pi / rows.sum() / nlon))[:, None], nlon, axis=1)
    return np.linspace(90.0, -90.0, nlat), np.linspace(0.0, 360.0, nlon, endpoint=False), weights


def dealiased_grid(lmax: int) -> tuple[int, int]:
    """Smallest comfortable grid (nlat, nlon) on which quadratic products are exact up to degree ``lmax``.

    2 nlat − 1 ≥ 3 lmax, and nlon ≥ 3 lmax + 1 without prime factors above 5.
    """
    nlat = max((3 * lmax + 2) // 2, SMALLEST_NLAT)
    nlat += -nlat % 16  # whole vector registers, also for half the latitudes
    nlon = max(3 * lmax + 1, 8)
    while not _smooth(nlon):
        nlon += 1
    return nlat, nlon


def _smooth(number: int) -> bool:
    if number % 4:
        return False
    for prime in (2, 3, 5):
        while number % prime == 0:
            number //= prime
    return number == 1


def _checked(array: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A C-contiguous, aligned array of the right type: the C library takes any buffer for one."""
    if array.shape != shape:
        raise ValueError(f"expected an array of shape {shape}, got {array.shape}")
    if array.dtype != dtype:
        if array.dtype.kind == "c" and np.dtype(dtype).kind == "f":
            raise ValueError("expected a real field, got a complex one")
        array = array.astype(dtype)
    array = np.ascontiguousarray(array)
    return array if _aligned(array) else array.copy()


def _aligned(array: Any) -> bool:
    return array.base is None or array.ctypes.data % ALIGNMENT == 0  # an array of its own is, and asking is slow


def _output(out: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array, or the caller's own if the C library may write into it."""
    if out is None:
        return np.empty(shape, dtype)
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous or not _aligned(out):
        raise ValueError(
            f"out must be a C-contiguous {np.dtype(dtype)} array of shape {shape}, aligned to {ALIGNMENT} bytes"
        )
    return out
