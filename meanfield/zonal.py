r"""Fields on S^{d−1} that depend on u = cos θ, the distance from the last axis, alone: Gauss–Gegenbauer quadrature.

Conventions.  The measure is the uniform probability measure (volume 1), since the area of S^{d−1} is no float in high
dimensions: the uniform density is 1, and

.. math:: \int f = \frac{\int_{-1}^1 f(u)\,(1-u^2)^{(d-3)/2}\,du}{\int_{-1}^1 (1-u^2)^{(d-3)/2}\,du}, \qquad
          f(u) = \sum_l f_l\,p_l(u), \qquad \int p_k p_l = \delta_{kl}, \qquad p_l(1) = \sqrt{N_l},

with the number N_l of harmonics of degree l.  A spectrum is complex with zero imaginary part, as on every space.  The
coefficients of one law on S² are √(4π) times those on `meanfield.sphere`, whose densities are per steradian.
Grid fields have shape (n,), from north (u = 1) to south, and tangent vectors (1, n), to the south (e_θ).

The polynomials come from their three-term recurrence, and the matrices of the transforms hold their values at the
nodes: nothing else depends on d.  Derivatives are polynomials of dimension d + 2,

.. math:: p_l' = \sqrt{l(l+d-2)\,d/(d-1)}\; p_{l-1}^{(d+2)},

so that nothing cancels near the poles.

**High dimensions.**  The uniform law lives at |u| ≲ 1/√d, where the nodes are.  A law elsewhere is large there: its L²
norm, and with it the coefficients √N_l a_l of N_l harmonics, grows exponentially in d.  Those of a Poisson kernel
grow up to l of the order of dR before they fall as R^l: to 1e-12 it needs lmax = 34 for R = 0.3 in d = 8, 80 in d = 64
and 291 in d = 512, where R = 0.1 needs 79.  Measured in d = 64, its mean token is right to 1e-12 while the norm is
below 2e6, to 1e-8 at 2e10: a cluster in high dimensions is for tokens, not for a density.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, ndimage

from .arguments import checked_integer
from .space import Complexes, Floats, Integers, checked_array, checked_output, frozen, padded

LARGEST_LMAX = 2047
"""The matrices of its transforms take 100 MB."""
LARGEST_DIMENSION = 4096
LARGEST_PEAK = 1e300
"""Largest value of what a grid must hold, the projection of a Dirac on the degrees that it integrates."""


@dataclass(frozen=True)
class Zonal:
    r"""Axisymmetric fields of degree ≤ ``lmax`` on S^{d−1}, on Gauss–Gegenbauer nodes.

    By default there are enough nodes, n ≥ 3 lmax/2 + 1, that the product of two fields, and the divergence of a field
    times a gradient, have no aliasing error in degrees ≤ lmax.

    Parameters
    ----------
    lmax : int
        Largest degree, 1 … 2047, less in high dimensions (326 for d = 512, 193 for d = 1024).
    dimension : int
        Ambient dimension d, 2 … 4096.  On the circle, d = 2, these are the fields even about the last axis.
    nodes : int, optional
        Number of nodes, at least lmax + 1; 0 means de-aliased.

    Raises
    ------
    ValueError
        If a size is out of range; the message names the largest or smallest allowed.
    """

    lmax: int
    dimension: int = 3
    nodes: int = 0

    kind = "zonal"
    volume = 1.0
    axisymmetric = True

    def __post_init__(self) -> None:
        for name, least in (("lmax", 1), ("dimension", 2), ("nodes", 0)):
            object.__setattr__(self, name, checked_integer(name, getattr(self, name), least))
        if self.dimension > LARGEST_DIMENSION:
            raise ValueError(f"dimension: must lie in 2 … {LARGEST_DIMENSION}, got {self.dimension}")
        largest = largest_lmax(self.dimension)
        if self.lmax > largest:
            raise ValueError(
                f"lmax: must lie in 1 … {largest} for zonal densities in dimension {self.dimension}, got {self.lmax}"
            )
        object.__setattr__(self, "nodes", self.nodes or dealiased_nodes(self.lmax))
        if not self.lmax + 1 <= self.nodes <= 4 * LARGEST_LMAX:
            raise ValueError(
                f"nodes: must be at least {self.lmax + 1} for lmax = {self.lmax} "
                f"(and at most {4 * LARGEST_LMAX}), got {self.nodes}"
            )

    def __getstate__(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    # ------------------------------------------------------------------ grid and coefficients

    @property
    def shape(self) -> tuple[int]:
        """Shape (n,) of a grid field."""
        return (self.nodes,)

    @property
    def spectral_shape(self) -> tuple[int]:
        """Shape of a spectrum."""
        return (self.lmax + 1,)

    @property
    def packed_size(self) -> int:
        """Number of real degrees of freedom, lmax + 1."""
        return self.lmax + 1

    @cached_property
    def degree(self) -> Integers:
        """Degree l of each coefficient."""
        return frozen(np.arange(self.lmax + 1))

    @cached_property
    def order(self) -> Integers:
        """Order of each coefficient, 0."""
        return frozen(np.zeros(self.lmax + 1, dtype=np.int64))

    @cached_property
    def multiplicity(self) -> Floats:
        """1 for each coefficient: ∫ f g = Σ Re(f_l conj g_l)."""
        return frozen(np.ones(self.lmax + 1))

    @cached_property
    def laplacian_eigenvalues(self) -> Floats:
        """−l(l + d − 2) for each coefficient."""
        return frozen(-(self.degree * (self.degree + self.dimension - 2.0)))

    @property
    def cosine(self) -> Floats:
        """Nodes u = cos θ, from north to south, shape (n,)."""
        return gauss_gegenbauer(self.nodes, self.dimension)[0]

    @cached_property
    def sine(self) -> Floats:
        """Sin θ at the nodes."""
        return frozen(np.sqrt((1.0 - self.cosine) * (1.0 + self.cosine)))

    @cached_property
    def latitude(self) -> Floats:
        """Latitudes 90° − θ in degrees, north to south."""
        return frozen(np.degrees(np.arctan2(self.cosine, self.sine)))

    @cached_property
    def points(self) -> Floats:
        """Unit vectors (sin θ, 0, …, 0, cos θ) of one meridian, shape (n, d)."""
        points = np.zeros((self.nodes, self.dimension))
        points[:, 0], points[:, -1] = self.sine, self.cosine
        return frozen(points)

    @property
    def weights(self) -> Floats:
        """Quadrature weights, shape (n,), with sum 1."""
        return gauss_gegenbauer(self.nodes, self.dimension)[1]

    def integrate(self, f: Floats) -> float:
        """∫ f, exact for fields of degree ≤ 2n − 1."""
        return float(self.weights @ f)

    def first_moment(self, f: Floats) -> Floats:
        """∫ x f, shape (d,), along the axis."""
        moment = np.zeros(self.dimension)
        moment[-1] = self.weights @ (self.cosine * f)
        return moment

    def second_moment(self, f: Floats) -> Floats:
        """∫ x xᵀ f, shape (d, d), diagonal; its trace is ∫ f."""
        along, across = self.principal_moments(f)
        moment = np.diag(np.full(self.dimension, across))
        moment[-1, -1] = along
        return moment

    def principal_moments(self, f: Floats) -> Floats:
        """∫ u² f along the axis and ∫ (1 − u²) f/(d − 1) in every direction across it, shape (2,)."""
        along, across = self.weights @ (self.cosine**2 * f), self.weights @ (self.sine**2 * f)
        return np.array([along, across / (self.dimension - 1)])

    def components(self, mask: NDArray[np.bool_]) -> Integers:
        """Label the caps and rings of a set of points; 0 outside the set.  The grid may be thinned."""
        return np.asarray(ndimage.label(mask)[0], dtype=np.int64)

    @cached_property
    def neighbours(self) -> Integers:
        """Indices of every grid point and its neighbours to the north and to the south, itself at the ends, (n, 3)."""
        return frozen(np.clip(np.arange(self.nodes)[:, None] + np.array([-1, 0, 1]), 0, self.nodes - 1))

    # ------------------------------------------------------------------ transforms

    @cached_property
    def _values(self) -> Floats:
        """Matrix p_l(u_i), (lmax + 1, n)."""
        return polynomials(self.lmax, self.cosine, self.dimension)

    @cached_property
    def _slopes(self) -> Floats:
        """Matrix −sin θ_i p_l'(u_i), (lmax + 1, n)."""
        slopes = np.zeros((self.lmax + 1, self.nodes))
        slopes[1:] = polynomials(self.lmax - 1, self.cosine, self.dimension + 2)
        slopes *= self._slope_factors[:, None] * -self.sine
        return slopes

    @property
    def _slope_factors(self) -> Floats:
        """Factors of p_{l−1} of dimension d + 2 in the derivative of p_l."""
        return np.sqrt(-self.laplacian_eigenvalues * (self.dimension / (self.dimension - 1.0)))

    def synthesis(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Grid values of a spectrum."""
        out = checked_output(out, self.shape, np.float64)
        return np.matmul(checked_array(f_lm, self.spectral_shape, np.complex128).real, self._values, out=out)

    def analysis(self, f: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of grid values, f_l = ∫ f p_l."""
        out = checked_output(out, self.spectral_shape, np.complex128)
        out[...] = self._values @ (self.weights * checked_array(f, self.shape, np.float64))
        return out

    def gradient(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Derivative df/dθ of a spectrum on the grid, shape (1, n)."""
        out = checked_output(out, (1, self.nodes), np.float64)
        np.matmul(checked_array(f_lm, self.spectral_shape, np.complex128).real, self._slopes, out=out[0])
        return out

    def divergence(self, v: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of the divergence of a tangent field v e_θ on the grid, −∫ v·∇p_l."""
        out = checked_output(out, self.spectral_shape, np.complex128)
        out[...] = self._slopes @ (-self.weights * checked_array(v, (1, self.nodes), np.float64)[0])
        return out

    def band(self, degree: int) -> Zonal:
        """The same grid with fields of degree ≤ ``degree`` only, whose transforms cost what that degree costs."""
        return self if degree >= self.lmax else _band(degree, self.dimension, self.nodes)

    def resized(self, f_lm: Complexes, lmax: int) -> Complexes:
        """A spectrum of largest degree ``lmax``, cut or filled with zeros to that of this space."""
        return padded(f_lm, lmax, self.lmax)

    def band_positions(self, degree: int) -> Integers:
        """Positions of the coefficients of ``band(degree)`` among those of this space."""
        return np.arange(min(degree, self.lmax) + 1)

    # ------------------------------------------------------------------ the state as a real vector

    def pack(self, f_lm: Complexes, out: Floats | None = None) -> Floats:
        """Real vector of lmax + 1 numbers whose Euclidean norm is the L² norm of the field."""
        out = np.empty(self.packed_size) if out is None else out
        out[...] = f_lm.real
        return out

    def unpack(self, y: Floats, out: Complexes | None = None) -> Complexes:
        """Spectrum of a packed vector; the inverse of `pack`."""
        out = checked_output(out, self.spectral_shape, np.complex128)
        out[...] = y
        return out

    # ------------------------------------------------------------------ scattered points

    def values_at(self, f_lm: Complexes, points: Floats) -> Floats:
        """Values of a spectrum at unit vectors (…, d); result (…)."""
        return self.values_at_cosines(f_lm, self._checked_points(points)[..., -1])

    def values_at_cosines(self, f_lm: Complexes, cosine: Floats) -> Floats:
        """Values of a spectrum at any u = cos θ in [−1, 1]; result of the same shape."""
        cosine = np.clip(np.asarray(cosine, dtype=np.float64), -1.0, 1.0)
        values = f_lm.real @ polynomials(self.lmax, cosine.ravel(), self.dimension)
        return np.asarray(values).reshape(cosine.shape)

    def gradient_at(self, f_lm: Complexes, points: Floats) -> Floats:
        """Gradient f'(u) (e − u x) of a spectrum at unit vectors x (…, d), as tangent vectors of R^d; result (…, d)."""
        points = self._checked_points(points)
        cosine = points[..., -1]
        factors = f_lm.real[1:] * self._slope_factors[1:]
        slopes = factors @ polynomials(self.lmax - 1, np.clip(cosine, -1.0, 1.0).ravel(), self.dimension + 2)
        vectors = -cosine[..., None] * points
        vectors[..., -1] += 1.0
        return np.asarray(slopes.reshape(cosine.shape)[..., None] * vectors)

    def point_masses(self, points: Floats, weights: Floats) -> Complexes:
        """Spectrum Σ_i w_i p_l(u_i) of weighted Diracs at unit vectors (N, d), averaged over turns about the axis."""
        cosine = np.clip(self._checked_points(points)[..., -1], -1.0, 1.0)
        masses = np.broadcast_to(np.asarray(weights, float), cosine.shape).ravel()
        return np.asarray(polynomials(self.lmax, cosine.ravel(), self.dimension) @ masses, dtype=np.complex128)

    def _checked_points(self, points: Floats) -> Floats:
        points = np.asarray(points, dtype=np.float64)
        if points.shape[-1:] != (self.dimension,):
            raise ValueError(f"points must have shape (…, {self.dimension}), got {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError("points must be finite")
        return points


@lru_cache(maxsize=32)
def _band(degree: int, dimension: int, nodes: int) -> Zonal:
    return Zonal(max(degree, 1), dimension, nodes)


def dealiased_nodes(lmax: int) -> int:
    """Smallest even number of nodes on which quadratic products are exact up to degree ``lmax``: 2n − 1 ≥ 3 lmax."""
    nodes = (3 * lmax) // 2 + 1
    return nodes + nodes % 2


@lru_cache(maxsize=64)
def largest_lmax(dimension: int) -> int:
    """Largest degree whose de-aliased grid resolves no more than floats can hold, at most `LARGEST_LMAX`.

    The peak of a Dirac cut at degree n is the number of harmonics of degree ≤ n, C(n+d−1, d−1) + C(n+d−2, d−1).
    """
    lmax = LARGEST_LMAX
    while lmax > 1:
        degree = dealiased_nodes(lmax) - 1
        peak = math.lgamma(degree + dimension) - math.lgamma(dimension) - math.lgamma(degree + 1)
        if peak + math.log(2.0) < math.log(LARGEST_PEAK):
            break
        lmax -= 1
    return lmax


@lru_cache(maxsize=32)
def gauss_gegenbauer(nodes: int, dimension: int) -> tuple[Floats, Floats]:
    r"""Nodes, from 1 to −1, and weights, with sum 1, of the quadrature exact for degrees ≤ 2n − 1.

    The nodes are the eigenvalues of the Jacobi matrix (Golub and Welsch, 1969), improved by a step of Newton; the
    weights are 1/Σ_{l<n} p_l(u_i)², a sum of positive terms.
    """
    off_diagonal = _recurrence(nodes, dimension)
    cosine = linalg.eigvalsh_tridiagonal(np.zeros(nodes), off_diagonal[: nodes - 1])[::-1]
    values = polynomials(nodes, cosine, dimension)
    # Christoffel and Darboux: p_n' p_{n−1} b_n = Σ p_l² at the zeros of p_n.
    cosine = cosine - values[nodes] * values[nodes - 1] * off_diagonal[nodes - 1] / np.sum(values[:nodes] ** 2, axis=0)
    cosine = 0.5 * (cosine - cosine[::-1])
    weights = 1.0 / np.sum(polynomials(nodes - 1, cosine, dimension) ** 2, axis=0)
    return frozen(cosine), frozen(weights / np.sum(weights))


def _recurrence(count: int, dimension: int) -> Floats:
    """b_1 … b_count of u p_l = b_{l+1} p_{l+1} + b_l p_{l−1}."""
    degree = np.arange(2.0, count + 1.0)
    twice = 2.0 * degree + dimension
    squares = degree * (degree + dimension - 3.0) / ((twice - 2.0) * (twice - 4.0))
    return np.asarray(np.sqrt(np.concatenate(([1.0 / dimension], squares)))[:count])


def polynomials(lmax: int, cosine: Floats, dimension: int) -> Floats:
    """Orthonormal polynomials p_l(u), l = 0 … ``lmax``, at n numbers u, shape (lmax + 1, n)."""
    factors = _recurrence(max(lmax, 1), dimension)
    values = np.ones((lmax + 1, len(cosine)))
    if lmax >= 1:
        values[1] = cosine / factors[0]
    for degree in range(1, lmax):
        values[degree + 1] = (cosine * values[degree] - factors[degree - 1] * values[degree - 1]) / factors[degree]
    return values
