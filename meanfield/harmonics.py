"""Perturbations of the uniform density by harmonics: on the sphere, on the circle, and zonal in every dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import betainc, betaln, sph_harm_y

from .arguments import checked_integer, checked_numbers, checked_sequence
from .kernels import multiplicities
from .laws import (
    Direction,
    Law,
    checked_axis,
    drawing,
    require_lmax,
    scattered_about,
    uniform_points,
    unit_vector,
    zonal_spectrum,
)
from .space import Complexes, Floats, Space
from .zonal import polynomials

SPHERE = 4.0 * math.pi
"""Area of S²."""
LARGEST_DEGREE = 4095
"""Largest degree of a harmonic; no sphere resolves more."""
LARGEST_AMPLITUDE = 1e100
"""Far beyond any density, and no overflow when that is found out."""


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
        self._set(harmonics=tuple(entries.values()))
        mean, lowest = 1.0 / SPHERE, self._lowest_perturbation()
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
        return 1.0 + SPHERE * self._perturbation(colatitude, longitude)

    def _coefficients(self, space: Space) -> Complexes:
        if space.axisymmetric:
            raise ValueError("law: must be 'zonal-harmonics' or another law about the axis on a zonal space")
        require_lmax(space, max(entry[0] for entry in self.harmonics))
        rho_lm = np.zeros(space.spectral_shape, dtype=np.complex128)
        for degree, order, *amplitude in self.harmonics:
            of_degree = np.flatnonzero(space.degree == degree)  # by growing order
            rho_lm[of_degree[order]] = complex(*amplitude)
        return rho_lm

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        count, generator = drawing(count, generator)
        # By the addition theorem |Y_l0|² ≤ (2l + 1)/4π, and half of it for m > 0.
        ceiling = 1.0 + sum(
            abs(factor) * math.sqrt(SPHERE * (2 * degree + 1) / (2.0 if order else 1.0))
            for degree, order, factor in self._terms
        )
        return _by_rejection(count, ceiling, lambda n: uniform_points(n, generator, 3), self._density, generator)


@dataclass(frozen=True)
class FourierSeries(Law):
    r"""ρ = 1/2π + 2 Re Σ_k c_k e^{ikφ}/√(2π) ≥ 0 on the circle: the uniform density, perturbed.

    Parameters
    ----------
    harmonics : sequence of (k, re) or (k, re, im)
        Coefficients c_k = re + i im with 1 ≤ k ≤ 4095, each k once.
    """

    harmonics: tuple[tuple[int, float] | tuple[int, float, float], ...]

    name = "fourier"
    _dimension = 2

    def __post_init__(self) -> None:
        self._set(harmonics=_checked_series(self.harmonics, ("k", "re", "im")))
        step = math.pi / (6.0 * self.harmonics[-1][0])
        _require_density(_lowest(lambda angle: self._relative(angle) - 1.0, 2.0 * math.pi, step))

    def _relative(self, angle: Floats) -> Floats:
        total = np.ones(np.shape(angle))
        for degree, *amplitude in self.harmonics:
            total += 2.0 * math.sqrt(2.0 * math.pi) * (complex(*amplitude) * np.exp(1j * degree * angle)).real
        return total

    def _density(self, points: Floats) -> Floats:
        return self._relative(np.arctan2(points[..., 1], points[..., 0]))

    def _coefficients(self, space: Space) -> Complexes:
        require_lmax(space, self.harmonics[-1][0])
        if space.axisymmetric:
            raise ValueError("law: must be symmetric about the axis on a zonal space, got 'fourier'")
        rho_lm = np.zeros(space.spectral_shape, dtype=np.complex128)
        for degree, *amplitude in self.harmonics:
            rho_lm[space.degree == degree] = complex(*amplitude)
        return rho_lm

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        count, generator = drawing(count, generator)
        sizes = [abs(complex(*amplitude)) for _, *amplitude in self.harmonics]
        ceiling = 1.0 + 2.0 * math.sqrt(2.0 * math.pi) * sum(sizes)
        return _by_rejection(count, ceiling, lambda n: uniform_points(n, generator, 2), self._density, generator)


@dataclass(frozen=True)
class ZonalHarmonics(Law):
    r"""ρ(x) = 1 + Σ_l c_l p_l(x·e) ≥ 0 with respect to the uniform probability measure, in every dimension.

    The p_l are the polynomials of `meanfield.zonal`, orthonormal in that measure: p_l(1)² is the number of harmonics of
    degree l.  Whether the density is ≥ 0 depends on the dimension, and is checked when it is known.

    Parameters
    ----------
    harmonics : sequence of (l, c)
        Coefficients with 1 ≤ l ≤ 4095, each l once.
    axis : vector, or "north" or "south"
        e: a pole, north by default, or a non-zero vector of length d ≥ 2, normalized when used.
    """

    harmonics: tuple[tuple[int, float], ...]
    axis: Direction = "north"

    name = "zonal-harmonics"

    def __post_init__(self) -> None:
        harmonics = _checked_series(self.harmonics, ("l", "c"))
        self._set(harmonics=harmonics, axis=checked_axis("axis", self.axis))

    @property
    def _dimension(self) -> int | None:  # type: ignore[override]
        return None if isinstance(self.axis, str) else len(self.axis)

    def _spectrum(self, dimension: int) -> Floats:
        """Coefficients c_l, l = 0 …, of a density that is ≥ 0 in this dimension."""
        lmax = self.harmonics[-1][0]
        spectrum = np.zeros(lmax + 1)
        for degree, amplitude in self.harmonics:
            spectrum[degree] = amplitude
        step = math.pi / (6.0 * math.sqrt(lmax * (lmax + dimension - 2.0)))
        _require_density(_lowest(lambda angle: spectrum @ polynomials(lmax, np.cos(angle), dimension), math.pi, step))
        spectrum[0] = 1.0
        return spectrum

    def _density(self, points: Floats) -> Floats:
        cosine = np.clip(points @ unit_vector(self.axis, points.shape[-1]), -1.0, 1.0)
        spectrum = self._spectrum(points.shape[-1])
        values = spectrum @ polynomials(len(spectrum) - 1, cosine.ravel(), points.shape[-1])
        return np.asarray(values.reshape(cosine.shape))

    def _coefficients(self, space: Space) -> Complexes:
        require_lmax(space, self.harmonics[-1][0])
        moments = np.zeros(space.lmax + 1)
        spectrum = self._spectrum(space.dimension)
        moments[: len(spectrum)] = spectrum / np.sqrt(multiplicities(len(spectrum) - 1, space.dimension))
        return zonal_spectrum("axis", space, unit_vector(self.axis, space.dimension), moments)

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        count, generator = drawing(count, generator)
        spectrum = self._spectrum(dimension)
        cosine = _bisect(lambda u: _zonal_distribution(spectrum, u, dimension), generator.random(count))
        return scattered_about(1.0 - cosine[:, None], unit_vector(self.axis, dimension), generator)


def _by_rejection(
    count: int,
    ceiling: float,
    propose: Callable[[int], Floats],
    density: Callable[[Floats], Floats],
    generator: Generator,
) -> Floats:
    """Draw from a density ≤ ``ceiling`` relative to that of the proposals."""
    accepted: list[Floats] = []
    missing = count
    while missing > 0:
        candidates = propose(min(int(1.1 * missing * ceiling) + 16, 1_000_000))
        kept = candidates[generator.random(len(candidates)) * ceiling < density(candidates)]
        accepted.append(kept[:missing])
        missing -= len(accepted[-1])
    return np.concatenate(accepted)


def _zonal_distribution(spectrum: Floats, cosine: Floats, dimension: int) -> Floats:
    """Probability of x·e ≤ u, by ∫ p_l = −(1 − u²)^{(d−1)/2} p_l'(u) / (l(l+d−2) B), B = B((d−1)/2, 1/2)."""
    half, degree = 0.5 * (dimension - 1), np.arange(1.0, len(spectrum))
    # p_l' = √(l(l+d−2) d/(d−1)) p_{l−1} of dimension d + 2.
    factors = spectrum[1:] * np.sqrt(dimension / ((dimension - 1.0) * degree * (degree + dimension - 2.0)))
    slopes = factors @ polynomials(len(spectrum) - 2, cosine, dimension + 2)
    with np.errstate(divide="ignore"):
        weight = np.exp(half * (np.log1p(cosine) + np.log1p(-cosine)) - betaln(half, 0.5))
    return np.asarray(betainc(half, half, 0.5 * (1.0 + cosine)) - weight * slopes)


def _bisect(distribution: Callable[[Floats], Floats], probability: Floats) -> Floats:
    """Quantiles in [−1, 1] of a distribution function, to round-off."""
    low, high = np.full_like(probability, -1.0), np.ones_like(probability)
    for _ in range(54):
        middle = 0.5 * (low + high)
        below = distribution(middle) < probability
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray(0.5 * (low + high))


def _lowest(function: Callable[[Floats], Floats], length: float, step: float) -> float:
    """Minimum of a smooth function on [0, length], on a grid and then ever closer about its lowest point."""
    grid = np.linspace(0.0, length, math.ceil(length / step) + 1)
    values = function(grid)
    best, place = float(values.min()), float(grid[values.argmin()])
    zoom = np.linspace(-1.0, 1.0, 5)
    for _ in range(40):
        near = np.clip(place + step * zoom, 0.0, length)
        values = function(near)
        if values.min() < best:
            best, place = float(values.min()), float(near[values.argmin()])
        step *= 0.6
    return best


def _require_density(lowest: float) -> None:
    """Refuse a perturbation, relative to the uniform density, with a minimum below −1."""
    if lowest < -1.0 - 1e-12:
        raise ValueError(
            f"harmonics: must keep the density >= 0, got a minimum of {1.0 + lowest:.4g} times uniform; "
            f"amplitudes times at most {-1.0 / lowest * (1.0 - 1e-5):.6g} would"  # rounded down
        )


def _checked_series(harmonics: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Entries (degree, amplitude, …) by growing degree, each once; amplitudes after the first are optional."""
    form = "[" + ", ".join(names) + "]"
    entries: dict[int, Any] = {}
    for given in checked_sequence("harmonics", harmonics):
        entry = checked_sequence("harmonics", given)
        if not 2 <= len(entry) <= len(names):
            raise ValueError(f"harmonics: must be {form}, got {list(entry)}")
        degree = checked_integer("harmonics", entry[0], 1)
        if degree > LARGEST_DEGREE or degree in entries:
            raise ValueError(
                f"harmonics: must have each {names[0]} of 1 … {LARGEST_DEGREE} at most once, got {list(entry)}"
            )
        amplitudes = checked_numbers("harmonics", entry[1:])
        if max(map(abs, amplitudes)) > LARGEST_AMPLITUDE:
            raise ValueError(f"harmonics: must have amplitudes up to {LARGEST_AMPLITUDE:g}, got {list(entry)}")
        entries[degree] = (degree, *amplitudes)
    return tuple(entries[degree] for degree in sorted(entries))
