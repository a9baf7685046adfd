r"""What tokens do to each other, as data: kernel, β, heads with their matrices, mask, rotation, balance.

.. math:: A_i = v \sum_h V_h \sum_j p^h_{ij}\, y_j, \qquad
          p^h_{ij} \propto w_j\, e^{\beta\langle R_i\theta_i,\, R_j B_h y_j\rangle}, \qquad B_h = Q_h^T K_h,

with :math:`\sum_j p_{ij} = 1` for softmax attention.  Fields (`meanfield.attention`, `meanfield.general`) and engines
(`meanfield.engines`) evaluate it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .arguments import checked_integer
from .kernels import LARGEST_BETA, LARGEST_UNNORMALIZED_BETA
from .matrices import Draw
from .space import Floats

KERNELS = ("softmax", "unnormalized")
FIELD_TOLERANCE = 1e-16
"""Kernel eigenvalues below this fraction of the largest are left out of the field."""


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


@dataclass(frozen=True, eq=False)
class Interaction:
    r"""Attention with matrices, several heads, and the variants of the literature.

    Parameters
    ----------
    attention : Attention
        Kernel, β and factor v.
    dimension : int
        Ambient dimension d ≥ 2.
    query_key, value : ndarray, shape (d, d) or (heads, d, d), optional
        B and V of every head, which are summed over; the identity by default.
    causal : bool
        Token i sees the tokens j ≤ i only, in the order of the rows.  Unnormalized attention is then divided by the
        mass that is seen, :math:`\sum_{j\le i} w_j`, so that it remains a mean over what is seen.
    rotary : tuple of float
        Rotary position embedding: frequencies :math:`\omega_k`, k = 0 … d/2 − 1.  Queries θ_i and keys B y_j are
        turned by the angles :math:`i\,\omega_k` and :math:`j\,\omega_k` in the plane of the coordinates (2k, 2k + 1),
        so that the exponent depends on i − j alone.  Su et al. (2021), arXiv 2104.09864, with Q = 1 and K = B.
    balanced : bool
        Doubly stochastic attention: the weights of rows and columns are scaled (Sinkhorn's algorithm) until
        :math:`\sum_j p_{ij} = 1` and :math:`\sum_i w_i p_{ij} = w_j`.  Sander, Ablin, Blondel, Peyré (2022),
        arXiv 2110.11773.

    Raises
    ------
    ValueError
        If a matrix does not fit or is not finite, the frequencies do not fit, balance is asked for together with a
        mask or unnormalized attention, or e^{|β| ‖B‖₂} overflows in unnormalized attention.
    """

    attention: Attention
    dimension: int = 3
    query_key: Floats | None = None
    value: Floats | None = None
    causal: bool = False
    rotary: tuple[float, ...] = ()
    balanced: bool = False

    def __post_init__(self) -> None:
        checked_integer("dimension", self.dimension, low=2)
        shape = (self.dimension, self.dimension)
        for key, matrix in (("query_key", self.query_key), ("value", self.value)):
            if matrix is not None and not (
                matrix.ndim in (2, 3) and matrix.shape[-2:] == shape and len(matrix) and np.isfinite(matrix).all()
            ):
                raise ValueError(f"{key}: must be a finite matrix of shape {shape}, or several, got {matrix.shape}")
        counts = {len(matrix) for matrix in (self.query_key, self.value) if matrix is not None and matrix.ndim == 3}
        if len(counts) > 1:
            raise ValueError(f"value: must have as many heads as query_key, got {sorted(counts)}")
        if self.rotary and (2 * len(self.rotary) != self.dimension or not np.isfinite(self.rotary).all()):
            raise ValueError(
                f"rotary: must be d/2 finite frequencies in an even dimension d, got {len(self.rotary)} "
                f"in dimension {self.dimension}"
            )
        if self.balanced and (self.causal or not self.attention.normalized):
            raise ValueError("balanced: doubly stochastic attention has no causal mask and no unnormalized kernel")
        if not self.attention.normalized and self.bound > LARGEST_UNNORMALIZED_BETA:
            raise ValueError(
                f"query_key: must have |beta| times its 2-norm <= {LARGEST_UNNORMALIZED_BETA:g} for unnormalized "
                f"attention (e^(beta x.y) overflows), got {self.bound:g}"
            )

    @property
    def heads(self) -> tuple[tuple[Floats | None, Floats | None], ...]:
        """The matrices (B, V) of every head; None is the identity."""
        stacks = [
            [None] if matrix is None else list(matrix.reshape(-1, self.dimension, self.dimension))
            for matrix in (self.query_key, self.value)
        ]
        count = max(len(stack) for stack in stacks)
        query_keys, values = (stack * (count // len(stack)) for stack in stacks)
        return tuple(zip(query_keys, values, strict=True))

    @cached_property
    def bound(self) -> float:
        """The largest exponent there can be, |β| max_h ‖B_h‖₂."""
        norm = 1.0 if self.query_key is None else float(np.max(np.linalg.norm(self.query_key, 2, axis=(-2, -1))))
        return abs(self.attention.beta) * norm

    @property
    def ordered(self) -> bool:
        """Whether it matters in which order the tokens stand."""
        return self.causal or bool(self.rotary)

    @property
    def needs_tokens(self) -> bool:
        """Whether no density can have it: it reads an order, or is balanced and has matrices."""
        return self.ordered or (self.balanced and not (self.query_key is None and self.value is None))

    @property
    def plain(self) -> bool:
        """Whether it is the kernel e^{β x·y} and a value matrix v·1 alone: P A is then a gradient."""
        return self.query_key is None and self.value is None and not self.ordered and not self.balanced


@dataclass(frozen=True, eq=False)
class Layers:
    r"""An interaction whose matrices are drawn at random, anew in every layer of the given depth.

    Layer k = 0, 1, … holds for :math:`k\,\mathrm{depth} < t \le (k+1)\,\mathrm{depth}` (the first one also at t = 0;
    the last one goes on).

    Parameters
    ----------
    interaction : Interaction
        What does not change.
    query_key, value : Draw, optional
        Laws of B and V; what has none stays as it is in ``interaction``.
    heads : int
        Number of heads that are drawn.
    depth : float
        Time that a layer takes, > 0.
    count : int
        Number of layers, ≥ 1; with one the matrices are drawn and stay.
    """

    interaction: Interaction
    query_key: Draw | None = None
    value: Draw | None = None
    heads: int = 1
    depth: float = 1.0
    count: int = 1

    def __post_init__(self) -> None:
        checked_integer("heads", self.heads, low=1)
        checked_integer("layers", self.count, low=1)
        if not (math.isfinite(self.depth) and self.depth > 0.0):
            raise ValueError(f"depth: must be a finite number > 0, got {self.depth!r}")

    plain = False

    @property
    def attention(self) -> Attention:
        """Kernel, β and factor v."""
        return self.interaction.attention

    @property
    def needs_tokens(self) -> bool:
        """Whether no density can have it; see `Interaction.needs_tokens`."""
        return self.interaction.ordered or self.interaction.balanced

    @cached_property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which a new layer begins."""
        return tuple(self.depth * layer for layer in range(1, self.count))

    def layer(self, t: float) -> int:
        """Layer that holds at a time; at its end a layer still holds."""
        return bisect_left(self.breakpoints, t)

    def of(self, layer: int) -> Interaction:
        """Interaction of a layer: the same whenever it is asked for."""
        query_key, value = self.interaction.query_key, self.interaction.value
        if self.query_key is not None:
            query_key = self.query_key.query_keys(self.interaction.dimension, self.heads, layer)
        if self.value is not None:
            value = self.value.values(self.interaction.dimension, self.heads, layer)
        return replace(self.interaction, query_key=query_key, value=value)


def interaction_of(table: Mapping[str, Any], dimension: int, final: float) -> Interaction | Layers:
    """Interaction that the table ``[attention]`` of a case describes.

    Multiples of the identity become factors of β and of A, so that the interaction is plain if it can be.

    Parameters
    ----------
    table : mapping
        Its keys, as in the JSON of a case; those that are not there have their defaults.
    dimension : int
        Ambient dimension d.
    final : float
        Last time: layers share it equally.

    Raises
    ------
    ValueError
        One line that begins with the key, if they do not go together.
    """
    factors, matrices, draws = {}, {}, {}
    for key in ("query_key", "value"):
        given = table.get(key)
        draws[key] = Draw(given["draw"], given.get("seed", 0)) if isinstance(given, Mapping) else None
        matrix = None if given is None or draws[key] else np.array(given, dtype=np.float64)
        factors[key] = 1.0
        if matrix is not None and matrix.ndim == 2 and np.array_equal(matrix, matrix[0, 0] * np.eye(len(matrix))):
            factors[key], matrix = float(matrix[0, 0]), None
        matrices[key] = matrix
    rotary = table.get("rotary", False)
    if isinstance(rotary, bool):
        rotary = rotary_frequencies(dimension) if rotary else ()
    elif isinstance(rotary, int | float):
        rotary = rotary_frequencies(dimension, rotary)
    interaction = Interaction(
        Attention(table["beta"] * factors["query_key"], table["kernel"], factors["value"]),
        dimension,
        **matrices,
        causal=table.get("causal", False),
        rotary=tuple(rotary),
        balanced=table.get("balanced", False),
    )
    if not any(draws.values()):
        return interaction
    layers = table.get("layers", 1)
    return Layers(interaction, **draws, heads=table.get("heads", 1), depth=final / layers, count=layers)


def rotary_frequencies(dimension: int, base: float = 1e4) -> tuple[float, ...]:
    """Frequencies ω_k = base^{−2k/d}, k = 0 … d/2 − 1.  Su et al. (2021), arXiv 2104.09864."""
    return tuple(base ** (-2.0 * k / dimension) for k in range(dimension // 2))
