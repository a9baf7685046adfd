r"""An absorbing layer in degree: it swallows the cascade that clusters send through the spectrum.

Where the flow contracts at the rate r, a structure of degree l moves to higher degrees as :math:`l' = r\,l`.  A sharp
end of the spectrum reflects it, and the reflection grows until the run blows up.  A damping

.. math:: \partial_t \rho_{lm} = \dots - \sigma_l\, \rho_{lm}, \qquad
          \sigma_l = s\,r \left(\frac{l - c}{L - c}\right)_+^p

swallows it instead: on its way from the cut c to l the cascade is weakened by :math:`e^{-\int \sigma/(r l)\,dl}`, by
many orders before L.  Degree 0 is never damped: mass is exact.  The high power p makes the onset smooth, which is
what keeps the low degrees right; the strength s, a multiple of the flow's own rate, keeps σ_L at what the longest
stable step of the transport allows anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CUT = 1.0 / 6.0
POWER = 6
STRENGTH = 60.0


@dataclass(frozen=True)
class AbsorbingLayer:
    """The layer for spectra up to ``lmax`` in a flow that contracts at most at the rate ``strain`` (per unit time)."""

    lmax: int
    strain: float

    @cached_property
    def damping(self) -> Floats:
        """Rates σ_l ≥ 0 for l = 0 … lmax."""
        return STRENGTH * self.strain * self._depth**POWER

    @cached_property
    def loss(self) -> Floats:
        """Fraction 1 − e^{−∫σ/(r l) dl} of a cascading amplitude of degree l that the layer has swallowed."""
        degree = np.arange(self.lmax + 1.0)
        rates = STRENGTH * self._depth**POWER / np.maximum(degree, 1.0)
        return np.asarray(-np.expm1(-np.concatenate(([0.0], np.cumsum(0.5 * (rates[1:] + rates[:-1]))))))

    @property
    def _depth(self) -> Floats:
        cut = CUT * self.lmax
        return np.clip((np.arange(self.lmax + 1.0) - cut) / (self.lmax - cut), 0.0, None)

    def fits(self, strain: float) -> bool:
        """Whether the layer still suits a flow of that rate."""
        return 0.75 * self.strain <= strain <= 1.33 * self.strain
