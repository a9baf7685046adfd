r"""The fraction of close pairs: how likely two tokens point the same way to within a small angle.

.. math:: F = \iint 1[x\cdot y > c]\,\rho(x)\rho(y)\,dx\,dy, \qquad c = 0.999,

0 for tokens spread in a high dimension, 1 for a single cluster, Σ p_i² for clusters of masses p_i.
Source: Geshkovski, Letrouit, Polyanskiy, Rigollet (2023), arXiv 2312.10794, whose phase diagrams draw it over (t, β).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.spatial import cKDTree
from scipy.special import betainc

from .space import Complexes, Floats, Space, frozen
from .zonal import polynomials

CLOSE_COSINE = 0.999
"""Two tokens are close if their cosine is larger."""
SAMPLE = 8192
"""Of more tokens than this a fixed random sample is counted, with a standard error below SAMPLE^(-1/2) = 0.011."""
LARGEST_TREE_DIMENSION = 8
"""In higher dimensions a tree prunes nothing, and products of matrices are quicker."""


@lru_cache(maxsize=16)
def cap_eigenvalues(lmax: int, cosine: float, dimension: int = 3) -> Floats:
    r"""Funk–Hecke eigenvalues of the indicator of a cap, 1[x·y > c], on :math:`S^{d-1}`.

    .. math:: \lambda_0 = \tfrac12 I_{1-c^2}(\tfrac{d-1}{2}, \tfrac12), \qquad
              \lambda_l = \frac{|B^{d-1}|}{|S^{d-1}|}\,(1-c^2)^{(d-1)/2}\, P^{(d+2)}_{l-1}(c), \quad l \ge 1,

    with the Legendre polynomial of two dimensions more, P(1) = 1; on S², (P_{l−1}(c) − P_{l+1}(c))/(2(2l+1)).

    Parameters
    ----------
    lmax : int
        Largest degree, ≥ 1.
    cosine : float
        c in [0, 1].
    dimension : int
        Ambient dimension d ≥ 2.

    Returns
    -------
    ndarray, shape (lmax + 1,)
        With respect to the uniform probability measure.
    """
    power, sine2 = (dimension - 1) / 2, (1.0 - cosine) * (1.0 + cosine)
    ball = 0.5 * math.exp(math.lgamma(dimension / 2) - math.lgamma(power + 1.0)) / math.sqrt(math.pi)
    values = polynomials(lmax - 1, np.array([cosine, 1.0]), dimension + 2)
    zeroth = 0.5 * float(betainc(power, 0.5, sine2))
    return frozen(np.concatenate(([zeroth], ball * sine2**power * values[:, 0] / values[:, 1])))


def close_pairs_of_density(space: Space, rho_lm: Complexes) -> float:
    r"""F of a density, :math:`\sum_l \lambda_l \sum_m |\rho_{lm}|^2` over l ≤ lmax, cut to [0, 1].

    Right as long as the density is resolved.  A Dirac, cut off at lmax, reads 1 − J₀(0.0447 lmax) instead of 1: 0.43 at
    lmax 31, and 1 within a tenth only beyond lmax ≈ 200, if no absorbing layer has taken its high degrees.  Labelled
    tokens do not have this limit.
    """
    factors = space.volume * cap_eigenvalues(space.lmax, CLOSE_COSINE, space.dimension)
    power = space.multiplicity * np.abs(rho_lm) ** 2
    return min(max(float(np.sum(factors[space.degree] * power)), 0.0), 1.0)


def close_pairs_of_tokens(points: Floats, weights: Floats) -> float:
    r"""F of weighted tokens, over pairs of different ones: :math:`\sum_{i\ne j} w_i w_j 1[x_i\cdot x_j > c]` over
    :math:`\sum_{i\ne j} w_i w_j`.

    Parameters
    ----------
    points : ndarray, shape (N, d)
        Unit vectors.
    weights : ndarray, shape (N,)
        Masses ≥ 0.

    Returns
    -------
    float
        Exact up to `SAMPLE` tokens.  If only one has a mass, there are no pairs, and all of them are close: 1.
    """  # noqa: D205
    if len(points) > SAMPLE:
        drawn = np.random.default_rng(0).choice(len(points), SAMPLE, replace=False)
        points, weights = points[drawn], weights[drawn]
    masses = weights / weights.max()
    own = float(masses @ masses)
    pairs = float(masses.sum()) ** 2 - own
    if not pairs > 0.0:
        return 1.0
    near = _near(points, None if (masses == 1.0).all() else masses)
    return min(max((near - own) / pairs, 0.0), 1.0)


def _near(points: Floats, masses: Floats | None) -> float:
    """Sum of the products of masses, by default 1, over ordered pairs that are close, each token with itself among."""
    if points.shape[1] <= LARGEST_TREE_DIMENSION:
        # A tree counts pairs of its cells at once that are near or far as a whole: a collapsed cloud is the quickest.
        tree = cKDTree(points, balanced_tree=False)
        chord = math.sqrt(2.0 * (1.0 - CLOSE_COSINE))
        return float(tree.count_neighbors(tree, chord, weights=None if masses is None else (masses, masses)))
    masses = np.ones(len(points)) if masses is None else masses
    blocks = (slice(first, first + 512) for first in range(0, len(points), 512))
    return sum(float(masses[block] @ ((points[block] @ points.T > CLOSE_COSINE) @ masses)) for block in blocks)
