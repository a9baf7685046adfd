r"""What an initial law is: a density, its spectrum, and an unbiased sampler of the same law.

To add a law, subclass `Law` with a name: it is registered by being defined, and its fields are the keys of
``[initial]`` in a case file.  `meanfield.initial` gathers them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from .arguments import checked_direction, checked_integer
from .kernels import surface_area
from .space import Complexes, Floats, Space

POLES = {"north": 1.0, "south": -1.0}
"""Directions by name, and their component along the last axis."""
Direction = tuple[float, ...] | str
"""A vector, or the name of a pole."""

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
        """Density ρ per steradian, ∫ρ = 1: `relative_density` over the area of the sphere.

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
            If the points are not unit vectors in the dimension of the law, or the law has no density, or the area of
            the sphere is below the smallest float (d > 440 or so).
        """
        relative = self.relative_density(points)
        dimension = np.shape(points)[-1]
        area = surface_area(dimension)
        if area < np.finfo(float).tiny:
            raise ValueError(
                f"points: must have a dimension in which the area of the sphere is a float, got {dimension}; "
                "relative_density is"
            )
        return np.asarray(relative / area)

    def relative_density(self, points: ArrayLike) -> Floats:
        """Density with respect to the uniform probability measure, 1 for the uniform law; arguments as in `density`."""
        points = np.asarray(points, dtype=np.float64)
        if points.ndim == 0 or points.shape[-1] < 2 or self.dimension not in (None, points.shape[-1]):
            allowed = self.dimension or "d >= 2"
            raise ValueError(f"points: must have shape (..., {allowed}), got {points.shape}")
        lengths = np.linalg.norm(points, axis=-1)
        if not np.all(unit := np.abs(lengths - 1.0) < 1e-5):
            raise ValueError(f"points: must be unit vectors, got one of length {lengths[~unit][0]:g}")
        return self._density(points)

    def coefficients(self, space: Space) -> Complexes:
        r"""Spectrum ρ_lm = ∫ ρ conj(Y_lm) on ``space``, with ρ_00 = volume^{−1/2} to the last bit.

        Raises
        ------
        ValueError
            If the space has another dimension than the law or too small an lmax, or cannot hold the law for its
            symmetry, or the law has no density.
        """
        self._require_dimension(space.dimension)
        rho_lm = self._coefficients(space)
        rho_lm[0] = 1.0 / math.sqrt(space.volume)
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

    def _set(self, **values: Any) -> None:
        """Set fields while the law is made."""
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def _require_dimension(self, dimension: int) -> None:
        if self.dimension not in (None, dimension):
            raise ValueError(f"dimension: must be {self.dimension}, that of the initial law, got {dimension}")

    @abstractmethod
    def _density(self, points: Floats) -> Floats:
        """Density with respect to the uniform probability measure."""

    @abstractmethod
    def _coefficients(self, space: Space) -> Complexes: ...

    @abstractmethod
    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats: ...


# ---- what laws share ----------------------------------------------------------------------------------------


def checked_axis(key: str, direction: Any) -> Direction:
    """The name of a pole, or a vector that is not zero."""
    if isinstance(direction, str) and direction in POLES:
        return direction
    return checked_direction(key, direction)


def unit_vector(vector: Direction, dimension: int) -> Floats:
    """Unit vector of a direction in a dimension."""
    if isinstance(vector, str):
        pole = np.zeros(dimension)
        pole[-1] = POLES[vector]
        return pole
    scaled = np.array(vector) / max(map(abs, vector))  # squares of huge or tiny entries would be lost
    return np.asarray(scaled / np.linalg.norm(scaled))


def counted(count: int | None) -> int:
    """The number of tokens, which must be given."""
    if count is None:
        raise ValueError("count: must be an integer >= 1, got None: this law has no tokens of its own")
    return count


def drawing(count: int | None, generator: Generator | None) -> tuple[int, Generator]:
    """The number of tokens and the source of randomness, which must both be given."""
    if not isinstance(generator, Generator):
        raise ValueError(f"generator: must be a numpy.random.Generator, got {generator!r}")
    return counted(count), generator


def uniform_points(count: int, generator: Generator, dimension: int) -> Floats:
    """Independent uniform tokens, shape (count, dimension)."""
    points = generator.standard_normal((count, dimension))
    return np.asarray(points / np.linalg.norm(points, axis=-1, keepdims=True))


def scattered_about(drop: Floats, mean: Floats, generator: Generator) -> Floats:
    """Tokens at 1 − x·μ = ``drop``, shape (N, 1), in random directions about the means."""
    # A uniform tangent at the mean is a projected Gaussian: no frame, hence no special axis.
    tangent = generator.standard_normal((len(drop), mean.shape[-1]))
    tangent -= np.sum(tangent * mean, axis=-1, keepdims=True) * mean
    tangent /= np.linalg.norm(tangent, axis=-1, keepdims=True)
    return np.asarray((1.0 - drop) * mean + np.sqrt(drop * (2.0 - drop)) * tangent)


def zonal_spectrum(key: str, space: Space, centre: Floats, moments: Floats) -> Complexes:
    """Spectrum a_l conj(Y_lm(μ)) of a law zonal about μ, which an axisymmetric space holds if μ is a pole."""
    if space.axisymmetric and centre[:-1].any():
        raise ValueError(
            f'{key}: must be "north" or "south", along the axis, on a zonal space, '
            f"got a direction of component {centre[-1]:.6g} along it"
        )
    return moments[space.degree] * space.point_masses(centre[None], np.ones(1))


def require_lmax(space: Space, degree: int) -> None:
    """Refuse a space that does not hold the degree of a law."""
    if degree > space.lmax:
        raise ValueError(f"lmax: must be >= {degree}, the degree of the initial law, got {space.lmax}")
