r"""Laws that are zonal about a direction, or sums of such, in every dimension.

By Funk–Hecke a law that is zonal about μ has the spectrum of a Dirac at μ, damped degree by degree,

.. math:: \rho_{lm} = a_l\, \overline{Y_{lm}(\mu)}, \qquad
          a_l = \int_{S^{d-1}} \rho(x)\, P_l^{(d)}(x\cdot\mu)\, dx, \qquad a_0 = 1,

with the Legendre polynomial of dimension d, :math:`P_l^{(d)}(1) = 1`: exact on every space, no quadrature.
A direction is a vector, or in every dimension "north" or "south", the last axis and its opposite: the only ones that an
axisymmetric space (`meanfield.zonal`) can hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from .arguments import checked_number, checked_numbers, checked_sequence
from .kernels import LARGEST_BETA, eigenvalue_ratios, log_mean_kernel, poisson_moments
from .laws import (
    Direction,
    Law,
    checked_axis,
    drawing,
    scattered_about,
    uniform_points,
    unit_vector,
    zonal_spectrum,
)
from .space import Complexes, Floats, Space


@dataclass(frozen=True)
class Uniform(Law):
    """The uniform law, a stationary state."""

    name = "uniform"

    def _density(self, points: Floats) -> Floats:
        return np.ones(points.shape[:-1])

    def _coefficients(self, space: Space) -> Complexes:
        return np.zeros(space.spectral_shape, dtype=np.complex128)

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        return uniform_points(*drawing(count, generator), dimension)


@dataclass(frozen=True, kw_only=True)
class VonMisesFisherMixture(Law):
    r"""ρ(x) = Σ_i w_i e^{κ_i (x·μ_i − 1)} / (Λ_0(κ_i) e^{−κ_i}): bumps of width ((d − 1)/κ_i)^{1/2}.

    On S² the constant is 2π(1 − e^{−2κ})/κ.  In every dimension a_l = Λ_l(κ)/Λ_0(κ).

    Parameters
    ----------
    concentrations : sequence of float
        κ_i in [0, LARGEST_BETA]; 0 is uniform.
    means : sequence of vectors, or of "north" and "south"
        Directions μ_i: poles, or non-zero vectors of one length d ≥ 2, normalized when used.
    weights : sequence of float, optional
        Relative masses w_i ≥ 0; equal by default.
    """

    concentrations: tuple[float, ...]
    means: tuple[Direction, ...]
    weights: tuple[float, ...] | None = None

    name = "vmf-mixture"

    def __post_init__(self) -> None:
        kappas = checked_numbers("concentrations", self.concentrations, 0.0, LARGEST_BETA)
        means = tuple(checked_axis("means", mean) for mean in checked_sequence("means", self.means))
        weights = None if self.weights is None else checked_numbers("weights", self.weights, 0.0)
        for key, values in (("means", means), ("weights", weights)):
            if values is not None and len(values) != len(kappas):
                raise ValueError(f"{key}: must be {len(kappas)}, as concentrations, got {len(values)}")
        lengths = [len(mean) for mean in means if not isinstance(mean, str)]
        if len(set(lengths)) > 1:
            raise ValueError(f"means: must all have the same length, got {lengths}")
        if weights is not None and not 0.0 < sum(weights) < math.inf:
            raise ValueError(f"weights: must have a positive, finite sum, got {list(weights)}")
        self._set(concentrations=kappas, means=means, weights=weights)

    @property
    def _dimension(self) -> int | None:  # type: ignore[override]
        return next((len(mean) for mean in self.means if not isinstance(mean, str)), None)

    def _bumps(self, dimension: int) -> tuple[Floats, Floats, Floats]:
        """Masses that sum to 1, concentrations, unit mean directions."""
        masses = np.ones(len(self.means)) if self.weights is None else np.array(self.weights)
        means = np.array([unit_vector(mean, dimension) for mean in self.means])
        return masses / masses.sum(), np.array(self.concentrations), means

    def _density(self, points: Floats) -> Floats:
        rho = np.zeros(points.shape[:-1])
        for mass, kappa, mean in zip(*self._bumps(points.shape[-1]), strict=True):
            # x·μ − 1 = −|x − μ|²/2 keeps its digits where a sharp bump lives.
            exponent = -0.5 * kappa * np.sum((points - mean) ** 2, axis=-1)
            rho += mass * np.exp(exponent - log_mean_kernel(kappa, points.shape[-1]))
        return rho

    def _coefficients(self, space: Space) -> Complexes:
        rho_lm = np.zeros(space.spectral_shape, dtype=np.complex128)
        for mass, kappa, mean in zip(*self._bumps(space.dimension), strict=True):
            rho_lm += mass * zonal_spectrum("means", space, mean, eigenvalue_ratios(space.lmax, kappa, space.dimension))
        return rho_lm

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        count, generator = drawing(count, generator)
        masses, kappas, means = self._bumps(dimension)
        chosen = generator.choice(len(masses), size=count, p=masses)
        drop = _von_mises_fisher_drop(kappas[chosen], generator, dimension)[:, None]
        return scattered_about(drop, means[chosen], generator)


@dataclass(frozen=True)
class PoissonKernel(Law):
    r"""ρ(x) = ((1 − R²)/|x − R e|²)^{d−1} with respect to the uniform probability measure.

    It keeps its form under Post-LN and nGPT at β = 0.  It is the image of the uniform law under a Möbius map
    of the sphere, and is sampled as such.

    Parameters
    ----------
    radius : float
        R in [0, 1); 0 is uniform.
    axis : vector, or "north" or "south"
        e: a pole, north by default, or a non-zero vector of length d ≥ 2, normalized when used.
    """

    radius: float
    axis: Direction = "north"

    name = "poisson"

    def __post_init__(self) -> None:
        radius = checked_number("radius", self.radius, 0.0, 1.0, strict=True)
        self._set(radius=radius, axis=checked_axis("axis", self.axis))

    @property
    def _dimension(self) -> int | None:  # type: ignore[override]
        return None if isinstance(self.axis, str) else len(self.axis)

    def _density(self, points: Floats) -> Floats:
        gap = 1.0 - self.radius
        # |x − R e|² without cancellation near e:
        axis = unit_vector(self.axis, points.shape[-1])
        squared = gap**2 + self.radius * np.sum((points - axis) ** 2, axis=-1)
        return np.asarray((gap * (1.0 + self.radius) / squared) ** (points.shape[-1] - 1))

    def _coefficients(self, space: Space) -> Complexes:
        moments = poisson_moments(space.lmax, self.radius, space.dimension)
        return zonal_spectrum("axis", space, unit_vector(self.axis, space.dimension), moments)

    def _sample(self, count: int | None, generator: Generator | None, dimension: int) -> Floats:
        shift = self.radius * unit_vector(self.axis, dimension)
        shifted = uniform_points(*drawing(count, generator), dimension) + shift
        gap = (1.0 - self.radius) * (1.0 + self.radius)
        return np.asarray(gap * shifted / np.sum(shifted**2, axis=-1, keepdims=True) + shift)


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
