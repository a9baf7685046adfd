r"""Initial laws of the tokens: the density, its spectrum, and an unbiased sampler of the same law.

A law that is zonal about μ has, by Funk–Hecke, the spectrum of a Dirac at μ damped degree by degree,

.. math:: \rho_{lm} = a_l\, \overline{Y_{lm}(\mu)}, \qquad
          a_l = \int_{S^{d-1}} \rho(x)\, P_l^{(d)}(x\cdot\mu)\, dx, \qquad a_0 = 1,

with the Legendre polynomial of dimension d, :math:`P_l^{(d)}(1) = 1`: exact on every space, no quadrature.
To add a law, subclass `Law` with a name: it is registered by being defined, and its fields are the keys of
``[initial]`` in a case file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy.special import sph_harm_y

from .arguments import checked_direction, checked_integer, checked_number, checked_numbers, checked_sequence
from .kernels import LARGEST_BETA, eigenvalue_ratios, eigenvalues, poisson_moments, surface_area
from .space import Complexes, Floats, Space

LARGEST_DEGREE = 4095
"""Largest degree of a harmonic; no sphere resolves more."""

LAWS: dict[str, type[Law]] = {}
"""Every law of a case file by its name there."""


@dataclass(frozen=True, eq=False)
class Law(ABC):
    """A probability law on the unit sphere of R^d.

    A law checks its parameters when it is made: ValueError with the key, what is allowed and what was given.
    The public methods check their arguments; `_density`, `_coefficients` and `_sample` are the mathematics.
    """

    name: ClassVar[str]
    """Name in case files."""
    has_density: ClassVar[bool] = True
    """Whether there is a density to evolve; if not, the law is for particles only."""
    _dimension: ClassVar[int | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if name in LAWS and LAWS[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"an initial law named {name!r} exists already")
        if name is not None:
            LAWS[name] = cls

    @property
    def dimension(self) -> int | None:
        """Ambient dimension d of the law's own data; None if the law makes sense in every d ≥ 2."""
        return self._dimension

    def density(self, points: ArrayLike) -> Floats:
        """Density ρ per steradian, ∫ρ = 1.

        Parameters
        ----------
        points : array_like, shape (..., d)
            Unit vectors.

        Returns
        -------
        ndarray, shape (...)

        Raises
        ------
        ValueError
            If the points are not unit vectors in the dimension of the law, or the law has no density.
        """
        points = np.asarray(points, dtype=np.float64)
        if points.ndim == 0 or points.shape[-1] < 2 or self.dimension not in (None, points.shape[-1]):
            allowed = self.dimension or "d >= 2"
            raise ValueError(f"points: must have shape (..., {allowed}), got {points.shape}")
        lengths = np.linalg.norm(points, axis=-1)
        if not np.all(unit := np.abs(lengths - 1.0) < 1e-5):
            raise ValueError(f"points: must be unit vectors, got one of length {lengths[~unit][0]:g}")
        return self._density(points)

    def coefficients(self, space: Space) -> Complexes:
        r"""Spectrum ρ_lm = ∫ ρ conj(Y_lm) on ``space``, with ρ_00 = |S^{d−1}|^{−1/2} to the last bit.

        Raises
        ------
        ValueError
            If the space has another dimension than the law or too small an lmax, or the law has no density.
        """
        self._require_dimension(space.dimension)
        rho_lm = self._coefficients(space)
        rho_lm[0] = 1.0 / math.sqrt(surface_area(space.dimension))
        return rho_lm

    def sample(self, count: int | None, generator: Generator | None, dimension: int = 3) -> Floats:
        """Draw independent tokens from the law.

        Parameters
        ----------
        count : int or None
            Number of tokens, ≥ 1; None asks a law that has tokens of its own for these.
        generator : numpy.random.Generator or None
            Source of randomness; None will do for a law that draws nothing.
        dimension : int
            Ambient dimension d ≥ 2.

        Returns
        -------
        ndarray, shape (count, d)
            Unit vectors.

        Raises
        ------
        ValueError
            If an argument is out of range, or the law is not in that dimension.
        """
        dimension = checked_integer("dimension", dimension, 2)
        self._require_dimension(dimension)
        count = None if count is None else checked_integer("count", count, 1)
        points = self._sample(count, generator, dimension)
        return np.asarray(points / np.linalg.norm(points, axis=-1, keepdims=True))

    def _require_dimension(self, dimension: int) -> None:
        if self.dimension not in (None, dimension):
            raise ValueError(f"dimension: must be {self.dimension}, that of the initial law, got {dimension}")

    @abstractmethod
    def _density(self, points: Floats) -> Floats: ...

    @abstractmethod
    def _coefficients(self, space: Space) -> Complexes: ...

    @abstractmethod
    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats: ...


@dataclass(frozen=True)
class Uniform(Law):
    """ρ = 1/|S^{d−1}|, a stationary state."""

    name = "uniform"

    def _density(self, points: Floats) -> Floats:
        return np.full(points.shape[:-1], 1.0 / surface_area(points.shape[-1]))

    def _coefficients(self, space: Space) -> Complexes:
        return np.zeros(space.spectral_shape, dtype=np.complex128)

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        return _uniform_points(*_drawing(count, generator), dimension)


@dataclass(frozen=True, kw_only=True)
class VonMisesFisherMixture(Law):
    r"""ρ(x) = Σ_i w_i e^{κ_i (x·μ_i − 1)} / (Λ_0(κ_i) e^{−κ_i}): bumps of width κ_i^{−1/2}.

    On S² the constant is 2π(1 − e^{−2κ})/κ.  In every dimension a_l = Λ_l(κ)/Λ_0(κ).

    Parameters
    ----------
    concentrations : sequence of float
        κ_i in [0, LARGEST_BETA]; 0 is uniform.
    means : sequence of vectors
        Directions μ_i: non-zero vectors of one length d ≥ 2, normalized when used.
    weights : sequence of float, optional
        Relative masses w_i ≥ 0; equal by default.
    """

    concentrations: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...] | None = None

    name = "vmf-mixture"

    def __post_init__(self) -> None:
        kappas = checked_numbers("concentrations", self.concentrations, 0.0, LARGEST_BETA)
        means = tuple(checked_direction("means", mean) for mean in checked_sequence("means", self.means))
        weights = None if self.weights is None else checked_numbers("weights", self.weights, 0.0)
        for key, values in (("means", means), ("weights", weights)):
            if values is not None and len(values) != len(kappas):
                raise ValueError(f"{key}: must be {len(kappas)}, as concentrations, got {len(values)}")
        if len({len(mean) for mean in means}) > 1:
            raise ValueError(f"means: must all have the same length, got {[len(mean) for mean in means]}")
        if weights is not None and not 0.0 < sum(weights) < math.inf:
            raise ValueError(f"weights: must have a positive, finite sum, got {list(weights)}")
        _set(self, concentrations=kappas, means=means, weights=weights)

    @property
    def _dimension(self) -> int:  # type: ignore[override]
        return len(self.means[0])

    @property
    def _bumps(self) -> tuple[Floats, Floats, Floats]:
        """Masses that sum to 1, concentrations, unit mean directions."""
        masses = np.ones(len(self.means)) if self.weights is None else np.array(self.weights)
        means = np.array([_unit(mean) for mean in self.means])
        return masses / masses.sum(), np.array(self.concentrations), means

    def _density(self, points: Floats) -> Floats:
        rho = np.zeros(points.shape[:-1])
        for mass, kappa, mean in zip(*self._bumps, strict=True):
            # x·μ − 1 = −|x − μ|²/2 keeps its digits where a sharp bump lives.
            exponent = -0.5 * kappa * np.sum((points - mean) ** 2, axis=-1)
            rho += mass / eigenvalues(0, kappa, self._dimension)[0] * np.exp(exponent)
        return rho

    def _coefficients(self, space: Space) -> Complexes:
        rho_lm = np.zeros(space.spectral_shape, dtype=np.complex128)
        for mass, kappa, mean in zip(*self._bumps, strict=True):
            rho_lm += mass * _zonal(space, mean, eigenvalue_ratios(space.lmax, kappa, self._dimension))
        return rho_lm

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        count, generator = _drawing(count, generator)
        masses, kappas, means = self._bumps
        chosen = generator.choice(len(masses), size=count, p=masses)
        drop = _von_mises_fisher_drop(kappas[chosen], generator, dimension)[:, None]
        # A uniform tangent at the mean is a projected Gaussian: no frame, hence no special axis.
        tangent = generator.standard_normal((count, dimension))
        tangent -= np.sum(tangent * means[chosen], axis=-1, keepdims=True) * means[chosen]
        tangent /= np.linalg.norm(tangent, axis=-1, keepdims=True)
        return (1.0 - drop) * means[chosen] + np.sqrt(drop * (2.0 - drop)) * tangent


@dataclass(frozen=True)
class PoissonKernel(Law):
    r"""ρ(x) = ((1 − R²)/|x − R e|²)^{d−1} / |S^{d−1}|.

    It keeps its form under Post-LN and nGPT at β = 0.  It is the image of the uniform law under a Möbius map
    of the sphere, and is sampled as such.

    Parameters
    ----------
    radius : float
        R in [0, 1); 0 is uniform.
    axis : vector
        e, a non-zero vector of length d ≥ 2, normalized when used; north by default.
    """

    radius: float
    axis: tuple[float, ...] = (0.0, 0.0, 1.0)

    name = "poisson"

    def __post_init__(self) -> None:
        radius = checked_number("radius", self.radius, 0.0, 1.0, strict=True)
        _set(self, radius=radius, axis=checked_direction("axis", self.axis))

    @property
    def _dimension(self) -> int:  # type: ignore[override]
        return len(self.axis)

    def _density(self, points: Floats) -> Floats:
        gap = 1.0 - self.radius
        # |x − R e|² without cancellation near e:
        squared = gap**2 + self.radius * np.sum((points - _unit(self.axis)) ** 2, axis=-1)
        kernel = (gap * (1.0 + self.radius) / squared) ** (self._dimension - 1)
        return np.asarray(kernel / surface_area(self._dimension))

    def _coefficients(self, space: Space) -> Complexes:
        return _zonal(space, _unit(self.axis), poisson_moments(space.lmax, self.radius, self._dimension))

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        shift = self.radius * _unit(self.axis)
        shifted = _uniform_points(*_drawing(count, generator), dimension) + shift
        gap = (1.0 - self.radius) * (1.0 + self.radius)
        return np.asarray(gap * shifted / np.sum(shifted**2, axis=-1, keepdims=True) + shift)


@dataclass(frozen=True)
class Harmonics(Law):
    """ρ = 1/4π + Σ c_l0 Y_l0 + 2 Re Σ_{m>0} c_lm Y_lm ≥ 0 on S²: the uniform density, perturbed.

    Parameters
    ----------
    harmonics : sequence of (l, m, re) or (l, m, re, im)
        Coefficients c_lm = re + i im with 1 ≤ l ≤ 4095, 0 ≤ m ≤ l, each (l, m) once; im only for m > 0.
    """

    harmonics: tuple[tuple[int, int, float] | tuple[int, int, float, float], ...]

    name = "harmonics"
    _dimension = 3

    def __post_init__(self) -> None:
        entries: dict[tuple[int, int], Any] = {}
        for given in checked_sequence("harmonics", self.harmonics):
            entry = checked_sequence("harmonics", given)
            if len(entry) not in (3, 4):
                raise ValueError(f"harmonics: must be [l, m, re] or [l, m, re, im], got {list(entry)}")
            degree, order = (checked_integer("harmonics", number, 0) for number in entry[:2])
            if not 1 <= degree <= LARGEST_DEGREE or order > degree:
                raise ValueError(f"harmonics: must have 1 <= l <= {LARGEST_DEGREE} and m <= l, got {list(entry)}")
            if order == 0 and len(entry) == 4:
                raise ValueError(f"harmonics: must be real for m = 0, [l, 0, re], got {list(entry)}")
            if (degree, order) in entries:
                raise ValueError(f"harmonics: must have each (l, m) once, got ({degree}, {order}) twice")
            entries[degree, order] = (degree, order, *checked_numbers("harmonics", entry[2:]))
        _set(self, harmonics=tuple(entries.values()))
        mean, lowest = 1.0 / surface_area(3), self._lowest_perturbation()
        if lowest < -mean * (1.0 + 1e-12):
            largest = -mean / lowest * (1.0 - 1e-5)  # rounded down
            raise ValueError(
                f"harmonics: must keep the density >= 0, got a minimum of {mean + lowest:.4g}; "
                f"amplitudes times at most {largest:.6g} would"
            )

    @property
    def _terms(self) -> list[tuple[int, int, complex]]:
        """Degree, order, and the factor of Y_lm whose real part counts."""
        return [
            (degree, order, (2.0 if order else 1.0) * complex(*amplitude))
            for degree, order, *amplitude in self.harmonics
        ]

    def _perturbation(self, colatitude: Any, longitude: Any) -> Floats:
        """ρ − 1/4π; the angles broadcast."""
        total = np.zeros(np.broadcast_shapes(np.shape(colatitude), np.shape(longitude)))
        for degree, order, factor in self._terms:
            wave = (factor * np.exp(1j * order * longitude)).real
            total += sph_harm_y(degree, order, colatitude, 0.0).real * wave
        return total

    def _lowest_on(self, colatitude: Floats, longitude: Floats) -> tuple[float, float, float]:
        """Lowest perturbation on a grid, its colatitude and its longitude."""
        values = self._perturbation(colatitude[:, None], longitude)
        i, j = np.unravel_index(values.argmin(), values.shape)
        return float(values[i, j]), float(colatitude[i]), float(longitude[j])

    def _lowest_perturbation(self) -> float:
        """Minimum over a grid of 12 points to the shortest wave, then ever closer about its lowest point."""
        rows = 6 * max(8, max(entry[0] for entry in self.harmonics)) + 1
        columns = 12 * max(entry[1] for entry in self.harmonics) + 1
        longitude = np.linspace(0.0, 2.0 * math.pi, columns)
        blocks = np.array_split(np.linspace(0.0, math.pi, rows), 1 + rows * columns // 1_000_000)
        best = min(self._lowest_on(block, longitude) for block in blocks)
        steps, zoom = np.array([math.pi / rows, 2.0 * math.pi / columns]), np.linspace(-1.0, 1.0, 5)
        for _ in range(40):
            best = min(best, self._lowest_on(best[1] + steps[0] * zoom, best[2] + steps[1] * zoom))
            steps *= 0.6
        return best[0]

    def _density(self, points: Floats) -> Floats:
        x, y, z = np.moveaxis(points, -1, 0)
        colatitude, longitude = np.arctan2(np.hypot(x, y), z), np.arctan2(y, x)
        return 1.0 / surface_area(3) + self._perturbation(colatitude, longitude)

    def _coefficients(self, space: Space) -> Complexes:
        _require_lmax(space, max(entry[0] for entry in self.harmonics))
        rho_lm = np.zeros(space.spectral_shape, dtype=np.complex128)
        for degree, order, *amplitude in self.harmonics:
            of_degree = np.flatnonzero(space.degree == degree)  # by growing order
            rho_lm[of_degree[order]] = complex(*amplitude)
        return rho_lm

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        count, generator = _drawing(count, generator)
        mean = 1.0 / surface_area(3)
        # By the addition theorem |Y_l0|² ≤ (2l + 1)/4π, and half of it for m > 0.
        ceiling = mean + sum(
            abs(factor) * math.sqrt((2 * degree + 1) * mean / (2.0 if order else 1.0))
            for degree, order, factor in self._terms
        )
        accepted = np.empty((0, 3))
        while len(accepted) < count:
            wanted = int(1.1 * (count - len(accepted)) * ceiling / mean) + 16
            candidates = _uniform_points(min(wanted, 1_000_000), generator, 3)
            kept = generator.random(len(candidates)) * ceiling < self._density(candidates)
            accepted = np.concatenate([accepted, candidates[kept]])
        return accepted[:count]


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
                array.flags.writeable = False
        degree = checked_integer("degree", self.degree, 1)
        kept = {"variance_kept": variance_kept, "given_dimension": given_dimension}
        _set(self, points=points, weights=weights, degree=degree, **kept)

    def _density(self, points: Floats) -> Floats:
        from .sphere import Sphere  # here, for its compiled libraries are slow to load

        sphere = Sphere(self.degree)
        return sphere.values_at(self.coefficients(sphere), points)

    def _coefficients(self, space: Space) -> Complexes:
        masses = np.full(len(self.points), 1.0 / len(self.points)) if self.weights is None else self.weights
        return _projected(space, self.points, masses, self.degree)

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        if count is None or (count == len(self.points) and self.weights is None):
            return self.points
        count, generator = _drawing(count, generator)
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
        _set(self, **{key: checked_integer(key, getattr(self, key), low) for key, low in least.items()})

    def _cloud(self, dimension: int) -> Floats:
        return _uniform_points(self.count, np.random.default_rng(self.seed), dimension)

    def _density(self, points: Floats) -> Floats:
        return Tokens(self._cloud(3), degree=self.degree).density(points)

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
        _set(self, cosine=checked_number("cosine", self.cosine, -1.0, 1.0, strict=True))

    def _density(self, points: Floats) -> Floats:
        raise ValueError("law: must have a density, got 'equiangular', which is for particles only")

    def _coefficients(self, space: Space) -> Complexes:
        raise ValueError("law: must have a density, got 'equiangular', which is for particles only")

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        n = _counted(count)
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
        _set(self, degree=checked_integer("degree", self.degree, 1))

    def _density(self, points: Floats) -> Floats:
        raise self._unread

    def _coefficients(self, space: Space) -> Complexes:
        raise self._unread

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        raise self._unread

    @property
    def _unread(self) -> ValueError:
        return ValueError(f"path: must be read first, into Tokens, got the bare name {self.path!r}")


# ---- mathematics ------------------------------------------------------------------------------------------


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


def _zonal(space: Space, centre: Floats, moments: Floats) -> Complexes:
    """Spectrum a_l conj(Y_lm(μ)) of a law zonal about μ."""
    return moments[space.degree] * space.point_masses(centre[None], np.ones(1))


def _projected(space: Space, points: Floats, masses: Floats, degree: int) -> Complexes:
    """Spectrum of weighted Diracs, cut above ``degree``."""
    _require_lmax(space, degree)
    return np.where(space.degree <= degree, space.point_masses(points, masses), 0.0)


def _require_lmax(space: Space, degree: int) -> None:
    if degree > space.lmax:
        raise ValueError(f"lmax: must be >= {degree}, the degree of the initial law, got {space.lmax}")


def _uniform_points(count: int, generator: Generator, dimension: int) -> Floats:
    points = generator.standard_normal((count, dimension))
    return np.asarray(points / np.linalg.norm(points, axis=-1, keepdims=True))


def _von_mises_fisher_drop(kappas: Floats, generator: Generator, dimension: int) -> Floats:
    """1 − x·μ of one token for each concentration, to full relative precision however small.

    On S² by inversion; else by rejection from a function of a beta variable: Wood (1994), "Simulation of the
    von Mises Fisher distribution", rewritten for 1 − x·μ.
    """
    if dimension == 3:
        uniform, flat = generator.random(len(kappas)), kappas < 1e-17
        kappas = np.where(flat, 1.0, kappas)
        drops = np.where(flat, 2.0 * uniform, -np.log1p(uniform * np.expm1(-2.0 * kappas)) / kappas)
        return np.minimum(drops, 2.0)
    power = dimension - 1
    drops, missing = np.empty(len(kappas)), np.arange(len(kappas))
    while len(missing):
        kappa = kappas[missing]
        ratio = power / (2.0 * kappa + np.hypot(2.0 * kappa, power))
        mode, gap = (1.0 - ratio) / (1.0 + ratio), 2.0 * ratio / (1.0 + ratio)  # x₀ and 1 − x₀
        beta = generator.beta(power / 2, power / 2, len(kappa))
        drop = 2.0 * ratio * beta / (1.0 - (1.0 - ratio) * beta)
        score = kappa * (gap - drop) + power * np.log((gap + mode * drop) / (gap * (1.0 + mode)))
        accepted = score >= -generator.standard_exponential(len(kappa))
        drops[missing[accepted]] = drop[accepted]
        missing = missing[~accepted]
    return np.minimum(drops, 2.0)


# ---- arguments -------------------------------------------------------------------------------------------


def _unit(vector: tuple[float, ...]) -> Floats:
    scaled = np.array(vector) / max(map(abs, vector))  # squares of huge or tiny entries would be lost
    return np.asarray(scaled / np.linalg.norm(scaled))


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


def _counted(count: int | None) -> int:
    if count is None:
        raise ValueError("count: must be an integer >= 1, got None: this law has no tokens of its own")
    return count


def _drawing(count: int | None, generator: Generator | None) -> tuple[int, Generator]:
    if not isinstance(generator, Generator):
        raise ValueError(f"generator: must be a numpy.random.Generator, got {generator!r}")
    return _counted(count), generator


def _set(law: Law, **values: Any) -> None:
    for key, value in values.items():
        object.__setattr__(law, key, value)
