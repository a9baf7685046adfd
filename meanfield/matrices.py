r"""Random matrices for queries, keys and values, d × d, drawn once or anew in every layer.

==========  ================================================================================================
gaussian    independent :math:`N(0, 1/d)` entries (Ginibre): :math:`\|M x\| \approx \|x\|`
kaiming     independent entries, uniform on :math:`\pm\sqrt{6/d}`, of variance 2/d: He, Zhang, Ren, Sun (2015),
            arXiv 1502.01852, with fan-in d
wigner      symmetric, independent :math:`N(0, 1/d)` entries on and above the diagonal
goe         :math:`(G + G^T)/\sqrt 2` with G gaussian: variance 1/d off the diagonal and 2/d on it, a law that no
            rotation changes
==========  ================================================================================================

The spectra of the symmetric ones tend to the semicircle on [−2, 2].  A matrix is a function of its seed, layer, head
and place alone, so that a run that is resumed needs no state of a stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from .arguments import checked_integer

Floats = NDArray[np.float64]

SYMMETRIC = ("wigner", "goe")
KINDS = ("gaussian", "kaiming", *SYMMETRIC)
"""Kinds of random matrices."""
QUERY, KEY, VALUE = range(3)
"""Places of a matrix, in its seed."""


@dataclass(frozen=True)
class Draw:
    """Random matrices of one kind from one seed.

    Parameters
    ----------
    kind : {"gaussian", "kaiming", "wigner", "goe"}
        Their law.
    seed : int
        Seed ≥ 0.
    """

    kind: str
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"draw: must be one of {', '.join(KINDS)}, got {self.kind!r}")
        checked_integer("seed", self.seed, low=0)

    def _matrix(self, dimension: int, *place: int) -> Floats:
        return draw(self.kind, dimension, np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=place)))

    def query_keys(self, dimension: int, heads: int = 1, layer: int = 0) -> Floats:
        """Matrices B = QᵀK of a layer, shape (heads, d, d): of two draws each, or symmetric ones themselves."""
        return np.stack(
            [
                self._matrix(dimension, layer, head, QUERY)
                if self.kind in SYMMETRIC
                else self._matrix(dimension, layer, head, QUERY).T @ self._matrix(dimension, layer, head, KEY)
                for head in range(heads)
            ]
        )

    def values(self, dimension: int, heads: int = 1, layer: int = 0) -> Floats:
        """Matrices V of a layer, shape (heads, d, d)."""
        return np.stack([self._matrix(dimension, layer, head, VALUE) for head in range(heads)])


def draw(kind: str, dimension: int, generator: Generator) -> Floats:
    """One random matrix, shape (d, d), of a kind of this module's table.

    Raises
    ------
    ValueError
        If there is no such kind.
    """
    shape = (dimension, dimension)
    if kind == "kaiming":
        bound = math.sqrt(6.0 / dimension)
        return generator.uniform(-bound, bound, shape)
    matrix = generator.standard_normal(shape) / math.sqrt(dimension)
    if kind == "gaussian":
        return matrix
    if kind == "wigner":
        upper = np.triu(matrix)
        return np.asarray(upper + np.triu(matrix, 1).T)
    if kind == "goe":
        return np.asarray((matrix + matrix.T) / math.sqrt(2.0))
    raise ValueError(f"draw: must be one of {', '.join(KINDS)}, got {kind!r}")
