r"""Doubly stochastic scaling of a kernel, by Sinkhorn's algorithm.

For a kernel :math:`e^{L_{ij}}` and masses w it finds potentials f, g with

.. math:: \sum_j w_j\, e^{L_{ij} + f_i + g_j} = 1, \qquad \sum_i w_i\, e^{L_{ij} + f_i + g_j} = 1.

Scaling factors multiply a stored kernel; once they outgrow `LARGEST_FACTOR` they are absorbed into it, so that the
potentials may be of any size.  Source: Sinkhorn, Knopp (1967); Schmitzer (2019), arXiv 1610.06519 (absorption).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .space import Floats

TOLERANCE = 1e-13
"""Largest error of a column sum at which the scaling is done."""
MOST_ITERATIONS = 20_000
LARGEST_FACTOR = 1e30
SMALLEST_LOGARITHM = -600.0
"""Kernel values are kept above e^−600: subnormal numbers are nothing, but slow."""


@dataclass(frozen=True)
class Balance:
    """Potentials of a doubly stochastic kernel.

    Attributes
    ----------
    rows, columns : ndarray, shape (N,)
        f and g.
    iterations : int
        Sweeps over rows and columns.
    error : float
        Largest deviation of a column sum from 1.
    """

    rows: Floats
    columns: Floats
    iterations: int
    error: float


def balance(logarithms: Floats, masses: Floats, symmetric: bool = False) -> Balance:
    r"""Scale the kernel e^L, (N, N), to be doubly stochastic for masses > 0 with sum 1.

    Rows and columns in turn converge by the square of the second singular value of the result, slowly where tokens form
    clusters that hardly see each other.  A symmetric kernel has f = g, and the mean of both, in logarithms, converges
    by (1 − σ)/2 in a mode of eigenvalue σ: by half, whatever the tokens do, if the kernel is positive.

    Raises
    ------
    ArithmeticError
        If it has not converged after `MOST_ITERATIONS`.
    """
    columns = -0.5 * logarithms.max(axis=0)
    rows = columns if symmetric else -np.max(logarithms + columns, axis=1)
    iterations = 0
    while True:
        kernel = logarithms + rows[:, None]
        kernel += columns
        np.exp(np.maximum(kernel, SMALLEST_LOGARITHM, out=kernel), out=kernel)
        left, right = np.ones(len(masses)), np.ones(len(masses))
        while True:
            if not symmetric:
                left = 1.0 / (kernel @ (masses * right))
            sums = right * (kernel.T @ (masses * left))
            error = float(np.max(np.abs(sums - 1.0)))
            if error <= TOLERANCE:
                return Balance(rows + np.log(left), columns + np.log(right), iterations, error)
            if iterations == MOST_ITERATIONS:
                raise ArithmeticError(
                    f"doubly stochastic attention has not converged: after {iterations} sweeps a column has the sum "
                    f"1 ± {error:.1e}"
                )
            iterations += 1
            right = right / (np.sqrt(sums) if symmetric else sums)
            if symmetric:
                left = right
            if max(right.max(), 1.0 / right.min()) > LARGEST_FACTOR:
                break
        rows, columns = rows + np.log(left), columns + np.log(right)
