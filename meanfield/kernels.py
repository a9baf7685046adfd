r"""Funk–Hecke eigenvalues of zonal kernels on :math:`S^{d-1}`: attention’s :math:`e^{\beta x\cdot y}`, and Poisson’s.

Convolution with a zonal kernel multiplies every spherical harmonic of degree l by one number,

.. math:: \int_{S^{d-1}} e^{\beta x\cdot y}\, Y_l(y)\, dy = \Lambda_l(\beta)\, Y_l(x), \qquad
          \Lambda_l = |S^{d-1}|\; \Gamma(d/2)\, (2/\beta)^{\nu}\, I_{l+\nu}(\beta), \qquad \nu = d/2 - 1,

on S²: :math:`4\pi\, i_l(\beta)` with the modified spherical Bessel function.  Eigenvalues are multiplied by
:math:`e^{-|\beta|}`: the factor cancels in softmax attention, and nothing overflows.  In high dimensions the area
:math:`|S^{d-1}|` and Λ_0 itself leave the range of floats, and only ratios to Λ_0 make sense, with respect to whatever
uniform measure.

The ratios of consecutive Bessel functions come from their continued fraction, run backwards, which is stable for
every order and argument and works in :math:`\beta^2`, so that β = 0 and β < 0 need no case of their own.

Source: Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026 (the model); DLMF 10.29.1 and 10.33.1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from .space import Floats, frozen

LARGEST_UNNORMALIZED_BETA = 700.0
"""e^β overflows a little above."""
LARGEST_BETA = 1e8
"""The continued fraction needs O(√β) terms; beyond this no spectrum in reach resolves the kernel."""


def surface_area(dimension: int) -> float:
    r"""Area :math:`2\pi^{d/2}/\Gamma(d/2)` of the unit sphere in ``dimension`` d ≥ 2."""
    area = (2.0 if dimension % 2 == 0 else 4.0) * math.pi
    for lower in range(2 + dimension % 2, dimension, 2):
        area *= 2.0 * math.pi / lower
    return area


def eigenvalues(lmax: int, beta: float, dimension: int = 3) -> Floats:
    r"""Scaled eigenvalues :math:`\Lambda_l(\beta)\,e^{-|\beta|}` for l = 0 … ``lmax``.

    Parameters
    ----------
    lmax : int
        Largest degree, ≥ 0.
    beta : float
        Inverse temperature, |β| ≤ 1e8; Λ_l(−β) = (−1)^l Λ_l(β).
    dimension : int
        Ambient dimension d ≥ 2.

    Returns
    -------
    ndarray, shape (lmax + 1,)
        With respect to the surface measure, exact to a few units of round-off each.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    return _zeroth(beta, dimension) * eigenvalue_ratios(lmax, beta, dimension)


def gradient_eigenvalues(lmax: int, beta: float, dimension: int = 3) -> Floats:
    r"""Scaled :math:`\Lambda_l(\beta)\,e^{-|\beta|}/\beta`, which turns a density into the potential of P A.

    The limit β → 0 is |S^{d−1}|/d at l = 1 and 0 above.  The entry l = 0, which no gradient sees, is 0.
    Arguments, shape and errors are those of `eigenvalues`.
    """
    return _zeroth(beta, dimension) * gradient_ratios(lmax, beta, dimension)


def eigenvalue_derivatives(lmax: int, beta: float, dimension: int = 3) -> Floats:
    r"""Scaled :math:`\Lambda_l'(\beta)\,e^{-|\beta|} = (\Lambda_{l+1} + (l/\beta)\Lambda_l)\,e^{-|\beta|}`.

    These are the eigenvalues of :math:`x\cdot y\,e^{\beta x\cdot y}`: they give the radial part ⟨θ, A⟩.
    The scale factor is not differentiated.  Arguments, shape and errors are those of `eigenvalues`.
    """
    return _zeroth(beta, dimension) * derivative_ratios(lmax, beta, dimension)


def eigenvalue_ratios(lmax: int, beta: float, dimension: int = 3) -> Floats:
    r""":math:`\Lambda_l(\beta)/\Lambda_0(\beta)`, the moments of the von Mises–Fisher law with concentration β."""
    steps = _continued_fraction(lmax, beta, dimension)[1]
    return np.concatenate(([1.0], np.cumprod(beta * steps[:lmax])))


def gradient_ratios(lmax: int, beta: float, dimension: int = 3) -> Floats:
    r""":math:`\Lambda_l(\beta)/(\beta\Lambda_0(\beta))`, with the limits and the zero of `gradient_eigenvalues`."""
    steps = _continued_fraction(lmax, beta, dimension)[1]
    quotients = np.zeros(lmax + 1)
    if lmax >= 1:
        quotients[1:] = steps[0] * np.concatenate(([1.0], np.cumprod(beta * steps[1:lmax])))
    return quotients


def derivative_ratios(lmax: int, beta: float, dimension: int = 3) -> Floats:
    r""":math:`\Lambda_l'(\beta)/\Lambda_0(\beta)`."""
    degree = np.arange(lmax + 1)
    return eigenvalue_ratios(lmax + 1, beta, dimension)[1:] + degree * gradient_ratios(lmax, beta, dimension)


def log_mean_kernel(beta: float, dimension: int = 3) -> float:
    r"""Logarithm of the mean of :math:`e^{\beta x\cdot y - |\beta|}` over y: of Λ_0 e^{−|β|} per unit area."""
    return _continued_fraction(0, beta, dimension)[0]


def multiplicities(lmax: int, dimension: int = 3) -> Floats:
    r"""Numbers of independent harmonics of degree l = 0 … ``lmax``: 2l + 1 on S², 2 on the circle (l ≥ 1).

    .. math:: N_l = \frac{2l+d-2}{l+d-2}\binom{l+d-2}{l},

    as floats: they grow as l^{d−2}, and are infinite where that is no float.
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.cumprod(_multiplicity_steps(lmax, dimension)))


def band_limit(beta: float, tolerance: float = 1e-16, dimension: int = 3, of_dirac: bool = False) -> int:
    r"""Smallest degree b ≥ 1 beyond which max(|Λ_l|, |Λ_l/β|)/Λ_0 stays below ``tolerance``.

    The attention field of any density is, to that tolerance, a function of its degrees l ≤ b alone.  With ``of_dirac``
    the ratio is multiplied by N_l (`multiplicities`), as in the field of a Dirac where it stands: it matters in high
    dimensions, where N_l is huge.
    """
    if not 0.0 < tolerance < 1.0:
        raise ValueError(f"tolerance must lie in (0, 1), got {tolerance}")
    lmax = 16
    while True:
        _, steps = _continued_fraction(lmax, beta, dimension)
        factors = np.concatenate((steps[:1], abs(beta) * steps[1:lmax]))  # |Λ_l/β|/Λ_0 is their product, l ≥ 1
        if of_dirac:
            factors *= _multiplicity_steps(lmax, dimension)[1:]
        with np.errstate(divide="ignore"):
            logarithms = np.cumsum(np.log(factors)) + max(0.0, math.log(abs(beta)) if beta else 0.0)
        if logarithms[-1] < math.log(tolerance):
            above = np.flatnonzero(logarithms >= math.log(tolerance))
            return 1 + int(above[-1]) if above.size else 1
        lmax *= 2


def poisson_moments(lmax: int, radius: float, dimension: int = 3) -> Floats:
    r"""Moments a_l, l = 0 … ``lmax``, of the Poisson kernel with R = ``radius`` in [0, 1).

    With ν = d/2 − 1 and u = (R + 1/R)/2, the decaying solution of a three-term recurrence:

    .. math:: a_l = R^l\,\frac{(2\nu+1)_l}{(\nu+1)_l}\;{}_2F_1(-\nu, l; l+\nu+1; R^2), \qquad
              l\,a_{l+1} - (2l+d-2)\,u\,a_l + (l+d-2)\,a_{l-1} = 0,

    on S² the Legendre function :math:`-(1-R^2)^2/(4R^2)\,Q_l'(u)`.  Downwards, in the steps a_l/a_{l+1} − 1,
    all terms are positive and nothing cancels.  If d ≠ 3, the work grows as 1/(1 − R).  Source: DLMF 14.10.3.
    """
    if radius < 1e-150:  # 1/R² would overflow, and a_1 is of the order of R
        return np.append(1.0, np.zeros(lmax))
    excess = (1.0 - radius) ** 2 / (2.0 * radius)  # u − 1
    decay = -math.log(radius)
    if dimension == 3 and lmax * decay < 1.0:
        # Near a Dirac the way down is long; upwards, from a known a_0 − a_1, round-off has no room to grow.
        fall = excess * ((2.0 + excess) * 2.0 * math.atanh(radius) - 1.0)
        moments = np.ones(lmax + 1)
        for degree in range(1, lmax + 1):
            moments[degree] = moments[degree - 1] - fall
            fall = ((degree + 1) * fall - (2 * degree + 1) * excess * moments[degree]) / degree
        return moments
    steps = np.zeros(lmax + 1)
    step = (1.0 - radius) / radius  # its limit at high degrees
    for degree in range(lmax + math.ceil(20.0 / decay), 0, -1):
        step = degree * step / (1.0 + step) + (2 * degree + dimension - 2) * excess
        step /= degree + dimension - 2
        if degree <= lmax:
            steps[degree] = step
    return np.asarray(np.cumprod(1.0 / (1.0 + steps)))


@lru_cache(maxsize=64)
def _continued_fraction(lmax: int, beta: float, dimension: int) -> tuple[float, Floats]:
    r"""Logarithm of Λ_0 e^{−|β|}, uniform probability measure, and q_l = I_{l+1+ν}(β)/(β I_{l+ν}(β)), l = 0 … lmax.

    With μ the order, q_μ = 1/(2(μ + 1) + β² q_{μ+1}); an error made at the start is damped by I_{μ+1}²/I_μ² a step.
    The recurrence is run down to the order 0 or 1/2, whose Λ_0 is elementary, and Λ_0 is carried back up to d by
    Λ_0^{(d+2)}/Λ_0^{(d)} = d q^{(d)}.
    """
    if lmax < 0 or dimension < 2:
        raise ValueError(f"needs lmax >= 0 and dimension >= 2, got {lmax} and {dimension}")
    if not abs(beta) <= LARGEST_BETA:
        raise ValueError(f"beta must be finite with |beta| <= {LARGEST_BETA:g}, got {beta}")
    size = abs(beta)
    base = 0.0 if dimension % 2 == 0 else 0.5
    offset = round(dimension / 2 - 1 - base)
    start = offset + lmax + 40 + int(8 * math.sqrt(size))
    order = start + base + 1.0
    steps = np.empty(start)
    below = 1.0 / (order + math.hypot(order, size))  # Amos's bound: within O(1/order²) of the ratio
    for index in range(start - 1, -1, -1):
        below = 1.0 / (2.0 * (index + base + 1.0) + size * size * below)
        steps[index] = below
    climb = 2.0 * (np.arange(offset) + base + 1.0) * steps[:offset]
    logarithm = math.log(_scaled_mean_kernel(size, base)) + float(np.sum(np.log(climb)))
    return logarithm, frozen(steps[offset : offset + lmax + 1])


def _zeroth(beta: float, dimension: int) -> float:
    """Λ_0 e^{−|β|} with respect to the surface measure."""
    zeroth = surface_area(dimension) * math.exp(log_mean_kernel(beta, dimension))
    if zeroth == 0.0:
        raise ValueError(
            f"the eigenvalues of beta = {beta:g} in dimension {dimension} are below the smallest float; "
            "their ratios are available"
        )
    return zeroth


def _multiplicity_steps(lmax: int, dimension: int) -> Floats:
    """N_0 and then N_l/N_{l−1} for l = 1 … lmax."""
    degree = np.arange(2.0, lmax + 1.0)
    steps = (2.0 * degree + dimension - 2.0) * (degree + dimension - 3.0) / (degree * (2.0 * degree + dimension - 4.0))
    return np.concatenate(([1.0, float(dimension)], steps))[: lmax + 1]


def _scaled_mean_kernel(size: float, base: float) -> float:
    """Mean of e^{β x·y − |β|} over the circle (base 0) or the sphere S² (base 1/2)."""
    if base == 0.0:
        from scipy.special import i0e

        return float(i0e(size))
    return -math.expm1(-2.0 * size) / (2.0 * size) if size > 1e-300 else 1.0
