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
from dataclasses import dataclass

import numpy as np

from .kernels import LARGEST_BETA, band_limit, eigenvalue_derivatives, eigenvalues, gradient_eigenvalues
from .space import Complexes, Floats, Space

KERNELS = ("softmax", "unnormalized")
LARGEST_UNNORMALIZED_BETA = 700.0
"""e^β overflows a little above."""
FIELD_TOLERANCE = 1e-16
"""Kernel eigenvalues below this fraction of the largest are left out of the field."""
RESOLVED_KERNEL = 1e-3
"""A space resolves the attention kernel if Λ_l falls below this fraction of Λ_0 within its lmax."""


@dataclass(frozen=True)
class Attention:
    r"""Attention with kernel :math:`e^{\beta x\cdot y}` and value matrix v·1.

    Parameters
    ----------
    beta : float
        Inverse temperature, any sign; |β| ≤ 1e8, and ≤ 700 unnormalized (e^β overflows above).
    kernel : {"softmax", "unnormalized"}
        Whether A is divided by the partition function Z.
    value : float
        The factor v.
    """

    beta: float
    kernel: str = "softmax"
    value: float = 1.0

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise ValueError(f"kernel: must be one of {', '.join(KERNELS)}, got {self.kernel!r}")
        if not abs(self.beta) <= LARGEST_BETA:
            raise ValueError(f"beta: must be finite with |beta| <= {LARGEST_BETA:g}, got {self.beta!r}")
        if self.kernel == "unnormalized" and abs(self.beta) > LARGEST_UNNORMALIZED_BETA:
            raise ValueError(
                f"beta: must have |beta| <= {LARGEST_UNNORMALIZED_BETA:g} for unnormalized attention "
                f"(e^beta overflows), got {self.beta!r}"
            )
        if not math.isfinite(self.value):
            raise ValueError(f"value: must be finite, got {self.value!r}")

    @property
    def normalized(self) -> bool:
        """Whether the field is divided by Z."""
        return self.kernel == "softmax"

    @property
    def scale(self) -> float:
        """What the scaled eigenvalues must be multiplied by in A: 1 for softmax, where it cancels, or e^{|β|}."""
        return 1.0 if self.normalized else math.exp(abs(self.beta))


class SpectralField:
    """The attention field on the grid of a space, from the spectrum of the density.

    Three band-limited syntheses give Z and P A, a fourth ⟨θ, A⟩.  Results stand in preallocated arrays that the
    next call to `evaluate` overwrites.

    Attributes
    ----------
    partition : ndarray
        Z e^{−|β|} (softmax), or 1 (unnormalized): the density of the energy rate is partition · |P A|²/s.
    tangent : ndarray, shape (components, ...)
        P A.
    radial : ndarray
        ⟨θ, A⟩, after ``evaluate(..., radial=True)``.

    Raises
    ------
    ValueError
        If lmax is too small for the kernel to be resolved; the message names the smallest lmax.
    """

    def __init__(self, space: Space, attention: Attention) -> None:
        needed = band_limit(attention.beta, RESOLVED_KERNEL, space.dimension)
        if space.lmax < needed:
            raise ValueError(
                f"beta = {attention.beta:g} needs lmax >= {needed}, got lmax = {space.lmax}: "
                "attention would act on scales that the space does not hold"
            )
        self.space = space
        self.attention = attention
        degree = min(band_limit(attention.beta, FIELD_TOLERANCE, space.dimension), space.lmax)
        self.band = space.band(degree)
        self._positions = space.band_positions(self.band.lmax)
        arguments = (self.band.lmax, attention.beta, space.dimension)
        self._partition_factors = eigenvalues(*arguments)[self.band.degree]
        factor = attention.scale * attention.value
        self._tangent_factors = factor * gradient_eigenvalues(*arguments)[self.band.degree]
        self._radial_factors = factor * eigenvalue_derivatives(*arguments)[self.band.degree]
        self.partition = np.ones(space.shape)
        self.tangent = np.empty((len(self.band.gradient(self._zero_lm())), *space.shape))
        self.radial = np.empty(space.shape)
        self._inverse = np.empty(space.shape)
        self._low = self._zero_lm()
        self._product = self._zero_lm()

    def _zero_lm(self) -> Complexes:
        return np.zeros(self.band.spectral_shape, dtype=np.complex128)

    def evaluate(self, rho_lm: Complexes, radial: bool) -> None:
        """Fill ``partition``, ``tangent`` and, if asked, ``radial`` from the spectrum of the density."""
        np.take(rho_lm, self._positions, out=self._low, mode="clip")
        self.band.gradient(np.multiply(self._low, self._tangent_factors, out=self._product), out=self.tangent)
        if radial:
            self.band.synthesis(np.multiply(self._low, self._radial_factors, out=self._product), out=self.radial)
        if self.attention.normalized:
            self.band.synthesis(np.multiply(self._low, self._partition_factors, out=self._product), out=self.partition)
            np.divide(1.0, self.partition, out=self._inverse)
            self.tangent *= self._inverse
            if radial:
                self.radial *= self._inverse

    def norm(self, out: Floats) -> Floats:
        """‖A‖ = (|P A|² + ⟨θ, A⟩²)^{1/2} of the last evaluation that asked for the radial part."""
        np.multiply(self.radial, self.radial, out=out)
        for component in self.tangent:
            np.multiply(component, component, out=self._inverse)
            out += self._inverse
        return np.sqrt(out, out=out)
