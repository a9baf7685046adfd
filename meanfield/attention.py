r"""The attention field A(θ) of a density, from its spectrum.

With Z(x) = ∫ e^{β x·y} ρ(dy), the Funk–Hecke formula gives the whole field from one spectrum:

.. math:: Z_{lm} = \Lambda_l \rho_{lm}, \qquad P_\theta A = v\,\frac{\nabla Z}{\beta Z}, \qquad
          \langle\theta, A\rangle = v\,\frac{\partial_\beta Z}{Z}, \qquad
          \|A\|^2 = |P_\theta A|^2 + \langle\theta, A\rangle^2

for softmax attention; unnormalized attention leaves out the division by Z.  Λ_l falls faster than exponentially
past l ≈ β, so only the low degrees of ρ are read, whatever its small scales do.  Source: Karagodin, Ge, Polyanskiy,
Rigollet (2025), arXiv 2510.22026 (the model); the Funk–Hecke theorem.
"""

from __future__ import annotations

import math
from typing import Protocol, Self

import numpy as np

from .interaction import FIELD_TOLERANCE, Attention, Interaction
from .kernels import (
    band_limit,
    derivative_ratios,
    eigenvalue_ratios,
    gradient_ratios,
    log_mean_kernel,
)
from .space import Complexes, Floats, Space

RESOLVED_KERNEL = 1e-3
"""A space resolves the attention kernel if Λ_l falls below this fraction of Λ_0 within its lmax."""


def smallest_lmax(attention: Attention, dimension: int = 3) -> int:
    """Smallest lmax of a space that resolves the kernel."""
    return band_limit(attention.beta, RESOLVED_KERNEL, dimension)


class Fields(Protocol):
    """The attention field of a density in the course of time."""

    @property
    def space(self) -> Space:
        """Where the density lives."""

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which the interaction changes; at such a time the former one still holds."""

    def at(self, t: float) -> Field:
        """Field that holds at a time: itself, unless the interaction changes."""


class Field(Fields, Protocol):
    """The attention field of a density at one time, on the grid of a space.

    Results stand in arrays that the next call to `evaluate` overwrites, and that its caller may spend.  P A itself is
    left undivided: who needs a product with 1/Z forms it in one pass over the grid.
    """

    @property
    def interaction(self) -> Interaction:
        """What is evaluated."""

    @property
    def band(self) -> Space:
        """The degrees of the density that are read."""

    @property
    def energy_scale(self) -> float | None:
        """What numerator/v is multiplied by to be e^{−|β|} ∇Z/β, the gradient of the energy's variation.

        None if P A is no such gradient.
        """

    @property
    def partition(self) -> Floats:
        """Z times a positive factor: positive wherever softmax attention means something; 1 if unnormalized."""

    @property
    def numerator(self) -> Floats:
        """P A times ``partition``, shape (components, ...)."""

    @property
    def radial(self) -> Floats:
        """⟨θ, A⟩, after ``evaluate(..., radial=True)``."""

    def low_degrees(self, rho_lm: Complexes) -> Complexes:
        """Coefficients of a density that the field reads, a spectrum of ``band``."""

    def evaluate(self, rho_lm: Complexes, radial: bool) -> None:
        """Fill ``partition``, ``numerator`` and, if asked, ``radial`` from the spectrum of the density."""

    def norm(self, out: Floats) -> Floats:
        """‖A‖ = (|P A|² + ⟨θ, A⟩²)^{1/2} of the last evaluation that asked for the radial part."""


class ConstantField:
    """A field whose interaction is the same at all times."""

    breakpoints: tuple[float, ...] = ()

    def at(self, t: float) -> Self:
        """Field that holds at a time, this one; see `Fields.at`."""
        return self


class SpectralField(ConstantField):
    """The attention field on the grid of a space, from the spectrum of the density.

    Three band-limited syntheses give Z and Z P A, a fourth ⟨θ, A⟩.  See `Field`.

    Attributes
    ----------
    partition : ndarray
        Z over the mean of the kernel, so that it is 1 for the uniform density (softmax), or 1 (unnormalized).
    numerator : ndarray, shape (components, ...)
        partition · P A.
    radial : ndarray
        ⟨θ, A⟩, after ``evaluate(..., radial=True)``.
    energy_scale : float
        What numerator/v is multiplied by to be e^{−|β|} ∇Z/β, the gradient of the energy's variation.

    Raises
    ------
    ValueError
        If lmax is too small for the kernel to be resolved; the message names the smallest lmax.
    """

    def __init__(self, space: Space, attention: Attention) -> None:
        needed = smallest_lmax(attention, space.dimension)
        if space.lmax < needed:
            raise ValueError(
                f"beta = {attention.beta:g} needs lmax >= {needed}, got lmax = {space.lmax}: "
                "attention would act on scales that the space does not hold"
            )
        self.space = space
        self.attention = attention
        self.interaction = Interaction(attention, space.dimension)
        degree = min(band_limit(attention.beta, FIELD_TOLERANCE, space.dimension, of_dirac=True), space.lmax)
        self.band = space.band(degree)
        self._positions = space.band_positions(self.band.lmax)
        arguments = (self.band.lmax, attention.beta, space.dimension)
        # Λ_0 cancels in softmax attention, and may be no float in high dimensions.
        logarithm = 0.0 if attention.normalized else abs(attention.beta) + log_mean_kernel(*arguments[1:])
        factor = space.volume * math.exp(logarithm) * attention.value
        self._partition_factors = space.volume * eigenvalue_ratios(*arguments)[self.band.degree]
        self._numerator_factors = factor * gradient_ratios(*arguments)[self.band.degree]
        self._radial_factors = factor * derivative_ratios(*arguments)[self.band.degree]
        self.energy_scale: float | None = math.exp(log_mean_kernel(*arguments[1:]) - logarithm)
        self.partition = np.ones(space.shape)
        self.numerator = np.empty_like(self.band.gradient(self._zero_lm()))
        self.radial = np.empty(space.shape)
        self._scratch = np.empty(space.shape)
        self._low = self._zero_lm()
        self._product = self._zero_lm()

    def _zero_lm(self) -> Complexes:
        return np.zeros(self.band.spectral_shape, dtype=np.complex128)

    def low_degrees(self, rho_lm: Complexes) -> Complexes:
        """Coefficients of a density that the field reads, a spectrum of ``band``."""
        return np.asarray(rho_lm[self._positions])

    def evaluate(self, rho_lm: Complexes, radial: bool) -> None:
        """Fill ``partition``, ``numerator`` and, if asked, ``radial`` from the spectrum of the density."""
        np.take(rho_lm, self._positions, out=self._low, mode="clip")
        self.band.gradient(np.multiply(self._low, self._numerator_factors, out=self._product), out=self.numerator)
        if self.attention.normalized:
            self.band.synthesis(np.multiply(self._low, self._partition_factors, out=self._product), out=self.partition)
        if radial:
            self.band.synthesis(np.multiply(self._low, self._radial_factors, out=self._product), out=self.radial)
            self.radial /= self.partition

    @property
    def tangent(self) -> Floats:
        """P A, shape (components, ...)."""
        return np.asarray(self.numerator / self.partition)

    def norm(self, out: Floats) -> Floats:
        """‖A‖ = (|P A|² + ⟨θ, A⟩²)^{1/2} of the last evaluation that asked for the radial part."""
        np.multiply(self.numerator[0], self.numerator[0], out=out)
        for component in self.numerator[1:]:
            out += np.multiply(component, component, out=self._scratch)
        out /= np.multiply(self.partition, self.partition, out=self._scratch)
        out += np.multiply(self.radial, self.radial, out=self._scratch)
        return np.sqrt(out, out=out)
