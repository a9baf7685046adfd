"""Laws that are clouds of tokens: given, drawn once, at equal angles, or in a file."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from .arguments import checked_integer, checked_number
from .laws import Law, counted, drawing, require_lmax, uniform_points
from .space import Complexes, Floats, Space, frozen


@dataclass(frozen=True, eq=False)
class Tokens(Law):
    """μ = Σ_i w_i δ(x_i), a given cloud on S²; its density is the projection of μ on degrees ≤ ``degree``.

    Few tokens have a projection that is negative somewhere: it is what a kernel of that band sees of them.
    For the count None `sample` returns the tokens themselves, to be used with their weights, as it does for
    their own number if they weigh the same.  Otherwise it draws them with replacement, by weight.

    Parameters
    ----------
    points : array_like, shape (N, D)
        Non-zero tokens, D ≥ 3; for D > 3 by their `principal_projection`.  Stored as unit vectors (N, 3).
    weights : array_like, shape (N,), optional
        Relative masses ≥ 0.  Stored with sum 1, or as None if they are equal.
    degree : int
        Largest degree of the density, ≥ 1.

    Attributes
    ----------
    variance_kept : float
        Share of the second moment that the projection kept; 1 for D = 3.
    given_dimension : int
        D.
    """

    points: Floats
    weights: Floats | None = None
    degree: int = 8
    variance_kept: float = field(init=False)
    given_dimension: int = field(init=False)

    _dimension = 3

    def __post_init__(self) -> None:
        points, variance_kept = principal_projection(self.points)
        given_dimension = np.shape(self.points)[1]
        weights = None if self.weights is None else _token_weights(self.weights, len(points))
        for array in (points, weights):
            if array is not None:
                frozen(array)
        degree = checked_integer("degree", self.degree, 1)
        kept = {"variance_kept": variance_kept, "given_dimension": given_dimension}
        self._set(points=points, weights=weights, degree=degree, **kept)

    def _density(self, points: Floats) -> Floats:
        from .sphere import Sphere  # here, for its compiled libraries are slow to load

        sphere = Sphere(self.degree)
        return np.asarray(sphere.volume * sphere.values_at(self.coefficients(sphere), points))

    def _coefficients(self, space: Space) -> Complexes:
        masses = np.full(len(self.points), 1.0 / len(self.points)) if self.weights is None else self.weights
        return _projected(space, self.points, masses, self.degree)

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        if count is None or (count == len(self.points) and self.weights is None):
            return self.points
        count, generator = drawing(count, generator)
        return self.points[generator.choice(len(self.points), size=count, p=self.weights)]


@dataclass(frozen=True)
class ParticleCloud(Law):
    """μ = (1/N) Σ_i δ(x_i) with x_i iid uniform, finite-N noise; its density is that of `Tokens`.

    Every sample is this same cloud: a density run and a particle run start from the same tokens.

    Parameters
    ----------
    count : int
        Number of tokens N ≥ 1.
    seed : int
        Seed of the cloud, ≥ 0.
    degree : int
        Largest degree of the density, ≥ 1.
    """

    count: int
    seed: int
    degree: int = 8

    name = "particles"

    def __post_init__(self) -> None:
        least = {"count": 1, "seed": 0, "degree": 1}
        self._set(**{key: checked_integer(key, getattr(self, key), low) for key, low in least.items()})

    def _cloud(self, dimension: int) -> Floats:
        return uniform_points(self.count, np.random.default_rng(self.seed), dimension)

    def _density(self, points: Floats) -> Floats:
        return Tokens(self._cloud(3), degree=self.degree).relative_density(points)

    def _coefficients(self, space: Space) -> Complexes:
        masses = np.full(self.count, 1.0 / self.count)
        return _projected(space, self._cloud(space.dimension), masses, self.degree)

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        if count not in (None, self.count):
            raise ValueError(f"count: must be {self.count}, the count of the initial law, got {count}")
        return self._cloud(dimension)


@dataclass(frozen=True)
class Equiangular(Law):
    """⟨x_i, x_j⟩ = γ for all i ≠ j: n tokens at equal angles, in a random frame if there is a generator.

    Parameters
    ----------
    cosine : float
        γ in [−1/(n − 1), 1).  The tokens span n dimensions, n − 1 at the lower end: d must be as large.
    """

    cosine: float

    name = "equiangular"
    has_density = False

    def __post_init__(self) -> None:
        self._set(cosine=checked_number("cosine", self.cosine, -1.0, 1.0, strict=True))

    def _density(self, points: Floats) -> Floats:
        raise ValueError("law: must have a density, got 'equiangular', which is for particles only")

    def _coefficients(self, space: Space) -> Complexes:
        raise ValueError("law: must have a density, got 'equiangular', which is for particles only")

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        n = counted(count)
        along = 1.0 + (n - 1) * self.cosine  # the Gram matrix has this eigenvalue for (1, …, 1), else 1 − γ
        if abs(along) < 4.0 * n * np.finfo(float).eps:
            along = 0.0
        if along < 0.0:
            raise ValueError(
                f"cosine: must be >= {-1 / (n - 1):.6g} = -1/(n - 1) for n = {n} tokens, got {self.cosine}"
            )
        rank = n if along > 0.0 else n - 1
        if dimension < rank:
            raise ValueError(
                f"dimension: must be >= {rank} for n = {n} tokens of cosine {self.cosine}, got {dimension}"
            )
        # A Householder reflection whose last column is (1, …, 1)/√n diagonalizes the Gram matrix.
        normal = np.full(n, n**-0.5)
        normal[-1] -= 1.0
        basis = np.eye(n) - (2.0 / (normal @ normal) * np.outer(normal, normal) if n > 1 else 0.0)
        points = (basis * np.sqrt(np.append(np.full(n - 1, 1.0 - self.cosine), along)))[:, :rank]
        if generator is None:
            return np.pad(points, ((0, 0), (0, dimension - rank)))
        frame, triangle = np.linalg.qr(generator.standard_normal((dimension, rank)))
        frame *= np.copysign(1.0, np.diag(triangle))  # uniform over frames, whatever signs QR chooses
        return np.asarray(points @ frame.T)


@dataclass(frozen=True)
class TokenFile(Law):
    """Tokens in a file: whoever reads it goes on with `Tokens`, or with the last record of an earlier run.

    Parameters
    ----------
    path : str
        A .npy, .csv or .nc file.
    degree : int
        Largest degree of the density, ≥ 1.
    """

    path: str
    degree: int = 8

    name = "file"

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ValueError(f"path: must be the name of a file, got {self.path!r}")
        self._set(degree=checked_integer("degree", self.degree, 1))

    def _density(self, points: Floats) -> Floats:
        raise self._unread

    def _coefficients(self, space: Space) -> Complexes:
        raise self._unread

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        raise self._unread

    @property
    def _unread(self) -> ValueError:
        return ValueError(f"path: must be read first, into Tokens, got the bare name {self.path!r}")


def principal_projection(tokens: ArrayLike, dimension: int = 3) -> tuple[Floats, float]:
    """Project tokens on the leading principal directions of Σ x xᵀ/|x|², then onto the unit sphere there.

    The second moment is not centred: attention sees inner products, so tokens are directions seen from the
    origin.  The sign of a principal direction makes its entry of largest magnitude positive.

    Parameters
    ----------
    tokens : array_like, shape (N, D)
        Non-zero vectors, D ≥ ``dimension``; in case of equality they are only normalized.
    dimension : int
        Dimension kept, ≥ 2.

    Returns
    -------
    points : ndarray, shape (N, dimension)
        Unit vectors.
    variance_kept : float
        Share of the second moment in the directions kept, in (0, 1].

    Raises
    ------
    ValueError
        If D is too small, or a token (its row is named) is not finite, zero or orthogonal to what is kept.
    """
    array = np.asarray(tokens)
    if array.dtype.kind not in "iuf" or array.ndim != 2 or len(array) == 0:
        raise ValueError(f"points: must be real numbers of shape (N, D), got {array.dtype} {array.shape}")
    size = array.shape[1]
    if size < dimension:
        raise ValueError(f"points: must have dimension D >= {dimension}, got D = {size}")
    unit = array.astype(np.float64)
    for fault, rows in (("not finite", ~np.isfinite(unit).all(axis=1)), ("zero", ~unit.any(axis=1))):
        if rows.any():
            raise ValueError(f"points: must be finite and non-zero, row {rows.argmax()} is {fault}")
    unit /= np.abs(unit).max(axis=1, keepdims=True)  # squares of huge or tiny entries would be lost
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    if size == dimension:
        return unit, 1.0
    # X and XᵀX have the same right singular vectors; the smaller matrix is the cheaper one.
    axes = np.linalg.svd(unit.T @ unit if len(unit) > size else unit, full_matrices=False)[2][:dimension]
    axes *= np.sign(np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1))
    points = np.pad(unit @ axes.T, ((0, 0), (0, dimension - len(axes))))
    lengths = np.linalg.norm(points, axis=1)
    if lengths.min() < 1e-12:
        raise ValueError(
            f"points: must not be orthogonal to the {dimension} principal directions, row {lengths.argmin()} is"
        )
    return points / lengths[:, None], min(float(np.mean(lengths**2)), 1.0)


def _projected(space: Space, points: Floats, masses: Floats, degree: int) -> Complexes:
    """Spectrum of weighted Diracs, cut above ``degree``."""
    require_lmax(space, degree)
    if space.axisymmetric:
        raise ValueError("law: must be symmetric about the axis on a zonal space, got a cloud of tokens")
    return np.where(space.degree <= degree, space.point_masses(points, masses), 0.0)


def _token_weights(weights: ArrayLike, count: int) -> Floats | None:
    array = np.asarray(weights)
    if array.dtype.kind not in "iuf" or array.shape != (count,):
        raise ValueError(f"weights: must be {count} real numbers, one for each token, got {array.dtype} {array.shape}")
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() > 0):
        raise ValueError(
            f"weights: must be finite, >= 0 and not all zero, got values from {array.min():g} to {array.max():g}"
        )
    scaled = array / array.max()
    return None if array.min() == array.max() else np.asarray(scaled / scaled.sum())
