r"""The attention field of weighted tokens: by direct summation, by non-uniform transforms, and doubly stochastic.

An engine evaluates an `Interaction` (`meanfield.interaction`) for a cloud of tokens.  Where the interaction reads the
order of the tokens (a causal mask, rotary positions), it is that of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from . import circle, sphere
from .interaction import FIELD_TOLERANCE, Attention, Interaction, Layers
from .kernels import band_limit, eigenvalue_derivatives, eigenvalues, gradient_eigenvalues
from .sinkhorn import balance
from .space import Floats

LONELY = 1e-6
"""Tokens whose Z is below this fraction of the L² norm of Z are summed directly: there the transforms' error, about
1e-15 of that norm, would be more than 1e-9 of A."""
CHUNK = 2**17
"""Kernel values that a thread holds at a time in direct summation: they stay in its cache."""
LARGEST_DROP = 600.0
"""Kernel values are kept above e^−600 of the largest: subnormal numbers are nothing, but slow."""
WORTH_THREADS = 2**20
"""Kernel values above which starting threads costs little beside them."""


@dataclass(frozen=True)
class TokenField:
    """The attention field of a cloud of weighted tokens, at tokens or at other points.

    Attributes
    ----------
    tangent : ndarray, shape (N, d)
        P_θ A.
    radial : ndarray, shape (N,)
        ⟨θ, A⟩, if it was asked for.
    partition : ndarray, shape (N,)
        Z e^{−|β|}, whether A is divided by Z or not; 1 unless the interaction is plain, where no energy is made of it.
    """

    tangent: Floats
    radial: Floats
    partition: Floats

    @property
    def norm(self) -> Floats:
        """‖A‖ = (|P_θ A|² + ⟨θ, A⟩²)^{1/2}."""
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", self.tangent, self.tangent) + self.radial**2))


class TokenEngine(Protocol):
    """A way to compute the attention field of weighted tokens."""

    @property
    def name(self) -> str:
        """Name in case files."""

    @property
    def attention(self) -> Attention:
        """Kernel, β and value factor."""

    @property
    def dimension(self) -> int:
        """Ambient dimension d."""

    @property
    def potential(self) -> bool:
        """Whether A comes from the kernel e^{β x·y} and a value matrix v·1: P A is then a gradient."""

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which the interaction changes."""

    def at(self, t: float) -> TokenEngine:
        """Engine that holds at a time: itself, unless the interaction changes with the layers."""

    def seconds(self, count: int) -> float:
        """What one evaluation for ``count`` tokens takes on one thread, to a factor of two or so."""

    def evaluate(
        self, points: Floats, weights: Floats, radial: bool = True, targets: Floats | None = None
    ) -> TokenField:
        """Field of tokens at unit vectors.

        Parameters
        ----------
        points : ndarray, shape (N, d)
            Tokens, unit vectors.
        weights : ndarray, shape (N,)
            Their masses ≥ 0, with sum 1.
        radial : bool
            Whether ⟨θ, A⟩ is needed.
        targets : ndarray, shape (M, d), optional
            Unit vectors at which the field is wanted; by default the tokens themselves.  They have no place in an
            order: where the interaction reads one, they are refused.
        """


class _Constant:
    """An engine whose interaction is the same at all times."""

    breakpoints: tuple[float, ...] = ()

    def at(self, t: float) -> Any:
        """Engine that holds at a time, this one; see `TokenEngine.at`."""
        return self


class DenseEngine(_Constant):
    r"""Direct summation of any interaction, in any dimension.

    .. math:: A(\theta) = \sum_h V_h\,\frac{\sum_j w_j y_j e^{\beta\langle\theta, B_h y_j\rangle}}
              {\sum_j w_j e^{\beta\langle\theta, B_h y_j\rangle}}, \qquad B = Q^TK,

    row by row with the largest exponent taken out, in O(N M) time and O(N) memory.  The rows are dealt to threads in
    chunks of a size that does not depend on their number, so that results do not either.

    Parameters
    ----------
    interaction : Interaction
        What is summed; not doubly stochastic attention, which is for `SinkhornEngine`.
    threads : int
        Threads, ≥ 1.
    """

    name = "dense"

    def __init__(self, interaction: Interaction, threads: int = 1) -> None:
        self.interaction = interaction
        self.attention = interaction.attention
        self.dimension = interaction.dimension
        self.potential = interaction.plain
        self.threads = threads
        # Frobenius norms bound the exponents, and are quick in high dimensions.
        norms = [1.0 if query_key is None else float(np.linalg.norm(query_key)) for query_key, _ in interaction.heads]
        self._clip = 2.0 * abs(self.attention.beta) * max(norms) > LARGEST_DROP

    def evaluate(
        self, points: Floats, weights: Floats, radial: bool = True, targets: Floats | None = None
    ) -> TokenField:
        """Field of tokens at unit vectors; see `TokenEngine.evaluate`.

        Raises
        ------
        ValueError
            If targets are given where the order counts, or the first token, which sees only itself, has no mass.
        """
        targets = self._targets(points, targets)
        if self.interaction.causal and not weights[0] > 0.0:
            raise ValueError("weights: the first token sees only itself under a causal mask, and must have mass")
        some = np.flatnonzero(weights > 0.0)  # a token without mass must not set the scale of a row
        sources, masses = (points, weights) if len(some) == len(points) else (points[some], weights[some])
        seen = np.cumsum(weights) if self.interaction.causal else np.ones(1)
        field, partition = np.zeros((len(targets), self.dimension)), np.ones(len(targets))
        for query_key, value in self.interaction.heads:
            queries, keys = self._queries_and_keys(targets, sources, some, query_key)
            sums, tops = self._sums(queries, keys, sources, masses, some)
            totals = sums[:, -1]
            mean = sums[:, :-1]
            mean *= ((1.0 / totals) if self.attention.normalized else (np.exp(tops) / seen))[:, None]
            field += mean if value is None else mean @ value.T
            if self.potential:
                partition = totals * np.exp(tops - abs(self.attention.beta))
        return self._field(targets, field, partition)

    def seconds(self, count: int) -> float:
        """What one evaluation takes; see `TokenEngine.seconds`."""
        interaction, d = self.interaction, self.dimension
        pairs = count**2 * (0.6 if interaction.causal else 1.0)
        products = 5e-11 * count * d**2 * ((interaction.query_key is not None) + (interaction.value is not None))
        return 1e-4 + len(interaction.heads) * ((3.5e-9 + 1e-10 * d) * pairs + products)

    def _targets(self, points: Floats, targets: Floats | None) -> Floats:
        if self.interaction.ordered and targets is not None:
            raise ValueError("targets: have no place in the order that a causal mask or rotary positions read")
        return points if targets is None else targets

    def _queries_and_keys(
        self, targets: Floats, sources: Floats, places: Any, query_key: Floats | None
    ) -> tuple[Floats, Floats]:
        """Queries, (M, d), and keys, (d, N), whose products are the exponents."""
        keys = self.attention.beta * (sources if query_key is None else sources @ query_key.T)
        if not self.interaction.rotary:
            return targets, keys.T
        frequencies = np.asarray(self.interaction.rotary)
        return _turned(targets, np.arange(len(targets)), frequencies), _turned(keys, places, frequencies).T

    def _sums(
        self, queries: Floats, keys: Floats, sources: Floats, masses: Floats, places: Any
    ) -> tuple[Floats, Floats]:
        """Σ_j w_j (y_j, 1) e^{exponent − top}, (M, d + 1), and the largest exponents, (M,), of the rows."""
        payload = np.concatenate([masses[:, None] * sources, masses[:, None]], axis=1)
        sums, tops = np.empty((len(queries), payload.shape[1])), np.empty((len(queries), 1))
        chunks = list(_chunks(len(queries), len(sources)))
        threads = self.threads if len(queries) * len(sources) > WORTH_THREADS else 1
        queues = [chunks[first::threads] for first in range(threads)]
        clip, causal = self._clip, self.interaction.causal

        def work(queue: list[slice]) -> None:
            buffer = np.empty(max((rows.stop - rows.start for rows in queue), default=0) * len(sources))
            for rows in queue:
                count = int(np.searchsorted(places, rows.stop)) if causal else len(sources)
                logits = buffer[: (rows.stop - rows.start) * count].reshape(-1, count)
                np.matmul(queries[rows], keys[:, :count], out=logits)
                if causal:
                    first = int(np.searchsorted(places, rows.start))
                    future = places[first:count] > np.arange(rows.start, rows.stop)[:, None]
                    logits[:, first:][future] = -np.inf
                np.max(logits, axis=1, keepdims=True, out=tops[rows])
                logits -= tops[rows]
                if clip:
                    np.maximum(logits, -LARGEST_DROP, out=logits)
                np.exp(logits, out=logits)
                np.matmul(logits, payload[:count], out=sums[rows])

        with one_blas_thread():
            if threads > 1:
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(work, queues))
            else:
                work(chunks)
        return sums, tops[:, 0]

    def _field(self, targets: Floats, field: Floats, partition: Floats) -> TokenField:
        field *= self.attention.value
        radial = np.einsum("ij,ij->i", targets, field)
        field -= radial[:, None] * targets
        return TokenField(field, radial, partition)


class SinkhornEngine(DenseEngine):
    r"""Doubly stochastic attention by direct summation.

    With the potentials g of `meanfield.sinkhorn.balance`, doubly stochastic attention is softmax attention of the
    masses :math:`w_j e^{g_j}`, and so it is defined at any point, not only at the tokens.  The kernels of a head are
    stored, N² numbers.
    """

    def evaluate(
        self, points: Floats, weights: Floats, radial: bool = True, targets: Floats | None = None
    ) -> TokenField:
        """Field of tokens at unit vectors; see `TokenEngine.evaluate`.

        Raises
        ------
        ArithmeticError
            If the scaling does not converge.
        """
        targets = self._targets(points, targets)
        some = np.flatnonzero(weights > 0.0)
        sources, masses = points[some], weights[some]
        field = np.zeros((len(targets), self.dimension))
        for query_key, value in self.interaction.heads:
            queries, keys = self._queries_and_keys(targets, sources, some, query_key)
            own = queries[some] if targets is points else sources
            symmetric = not self.interaction.rotary and (query_key is None or np.array_equal(query_key, query_key.T))
            with one_blas_thread():
                columns = balance(own @ keys, masses / masses.sum(), symmetric).columns
            # One coordinate more carries g_j into the exponents: as factors of the masses they might overflow.
            queries = np.concatenate([queries, np.ones((len(queries), 1))], axis=1)
            keys = np.concatenate([keys, columns[None]])
            sums, _ = self._sums(queries, keys, sources, masses, some)
            mean = sums[:, :-1] / sums[:, -1:]
            field += mean if value is None else mean @ value.T
        return self._field(targets, field, np.ones(len(targets)))

    def seconds(self, count: int) -> float:
        """What one evaluation takes; see `TokenEngine.seconds`."""
        return super().seconds(count) + len(self.interaction.heads) * 1e-7 * count**2


class FastEngine(_Constant):
    r"""Non-uniform transforms on S² and S¹, in O(N + b³) and O(N + b log b) time for the kernel's band limit b.

    One adjoint transform gives the spectrum of the tokens up to degree b; Z, ∇Z/β and ∂_β Z are synthesized at the
    tokens.  The error is about 1e-15 ‖Z‖/Z, with the L² norm of Z on the sphere.  For β ≥ 0 a token sees itself,
    Z e^{−β} ≥ w, so that all is well up to a million equal tokens.  Tokens that see too little (`LONELY`) are summed
    directly, at the cost of N each.

    Parameters
    ----------
    attention : Attention
        Kernel, β and value factor.
    dimension : int
        Ambient dimension, 2 or 3.
    threads : int
        Threads for tokens that are summed directly; the transforms run on one.

    Raises
    ------
    ValueError
        If the dimension is another one, or the band limit of the kernel is out of reach.
    """

    name = "fast"
    potential = True

    def __init__(self, attention: Attention, dimension: int = 3, threads: int = 1) -> None:
        if dimension not in (2, 3):
            raise ValueError(f"attention: fast attention is for dimension 2 and 3, got {dimension}")
        band = band_limit(attention.beta, FIELD_TOLERANCE, dimension)
        largest = circle.LARGEST_LMAX if dimension == 2 else sphere.LARGEST_LMAX
        if band > largest:
            raise ValueError(f"beta: needs degrees up to {band} of {largest} in fast attention, got {attention.beta:g}")
        self.attention = attention
        self.dimension = dimension
        # One thread always: ducc0 chooses its interpolation, and rounds, by the number of threads.
        self.space = circle.Circle(band) if dimension == 2 else sphere.Sphere(band)
        degree = self.space.degree
        factor = attention.scale * attention.value
        self._partition_factors = eigenvalues(band, attention.beta, dimension)[degree]
        self._tangent_factors = factor * gradient_eigenvalues(band, attention.beta, dimension)[degree]
        self._radial_factors = factor * eigenvalue_derivatives(band, attention.beta, dimension)[degree]
        self._dense = DenseEngine(Interaction(attention, dimension), threads)

    def seconds(self, count: int) -> float:
        """What one evaluation takes; see `TokenEngine.seconds`."""
        band = self.space.lmax
        if self.dimension == 2:
            return 3e-4 + 2.5e-7 * count + 1e-6 * band
        return 5e-4 + 3.3e-7 * count + 6e-7 * band**2 + 6e-10 * band**3

    def evaluate(
        self, points: Floats, weights: Floats, radial: bool = True, targets: Floats | None = None
    ) -> TokenField:
        """Field of tokens at unit vectors; see `TokenEngine.evaluate`."""
        scattered = self.space.scattered(points)
        mu_lm = scattered.masses(weights)
        if targets is None:
            targets = points
        else:
            scattered = self.space.scattered(targets)
        z_lm = self._partition_factors * mu_lm
        partition = scattered.values(z_lm)
        tangent = scattered.gradient(self._tangent_factors * mu_lm)
        along = scattered.values(self._radial_factors * mu_lm) if radial else np.zeros(len(targets))
        if self.attention.normalized:
            scale = math.sqrt(float(np.sum(self.space.multiplicity * np.abs(z_lm) ** 2)))
            lonely = np.flatnonzero(~(partition > LONELY * scale))
            inverse = 1.0 / np.where(partition > 0.0, partition, 1.0)
            tangent *= inverse[:, None]
            along *= inverse
            if lonely.size:
                exact = self._dense.evaluate(points, weights, targets=targets[lonely])
                tangent[lonely], along[lonely], partition[lonely] = exact.tangent, exact.radial, exact.partition
        return TokenField(tangent, along, partition)


class LayeredEngine:
    """Direct summation of an interaction whose matrices are drawn anew in every layer.

    Parameters
    ----------
    layers : Layers
        The interactions in the course of time.
    threads : int
        Threads, ≥ 1.
    """

    name = "dense"
    potential = False

    def __init__(self, layers: Layers, threads: int = 1) -> None:
        self.layers = layers
        self.attention = layers.interaction.attention
        self.dimension = layers.interaction.dimension
        self.breakpoints = layers.breakpoints
        self.threads = threads
        self._layer = 0
        self._engine = interaction_engine(layers.of(0), 1, "dense", threads)

    def at(self, t: float) -> TokenEngine:
        """Engine of the layer that holds at a time; see `Layers`."""
        layer = self.layers.layer(t)
        if layer != self._layer:
            self._engine = interaction_engine(self.layers.of(layer), 1, "dense", self.threads)
            self._layer = layer
        return self._engine

    def seconds(self, count: int) -> float:
        """What one evaluation takes; see `TokenEngine.seconds`."""
        return self._engine.seconds(count)

    def evaluate(
        self, points: Floats, weights: Floats, radial: bool = True, targets: Floats | None = None
    ) -> TokenField:
        """Field in the layer that `at` was last asked for, at first the first one; see `TokenEngine.evaluate`."""
        return self._engine.evaluate(points, weights, radial, targets)


def interaction_engine(
    interaction: Interaction | Layers, count: int, choice: str = "auto", threads: int = 1
) -> TokenEngine:
    """Engine for ``count`` tokens: "fast", "dense", or "auto", whichever costs less.

    The costs are formulas whose coefficients were measured once, on one thread, not timings of the day: a run that is
    repeated must choose, and round, as before.

    Raises
    ------
    ValueError
        If fast attention is asked for what it cannot do: other dimensions than 2 and 3, general matrices or a variant,
        a huge β.
    """
    if choice not in ("auto", "fast", "dense"):
        raise ValueError(f"attention: must be auto, fast or dense, got {choice!r}")
    suited = isinstance(interaction, Interaction) and interaction.plain and interaction.dimension in (2, 3)
    if choice == "fast" and not suited:
        raise ValueError(
            "attention: must be dense or auto unless the dimension is 3 or 2 and query_key and value are multiples of "
            "the identity, got 'fast'"
        )
    if isinstance(interaction, Layers):
        return LayeredEngine(interaction, threads)
    if interaction.balanced:
        return SinkhornEngine(interaction, threads)
    if choice == "fast":
        return FastEngine(interaction.attention, interaction.dimension, threads)
    dense = DenseEngine(interaction, threads)
    if choice == "dense" or not suited:
        return dense
    try:
        fast = FastEngine(interaction.attention, interaction.dimension, threads)
    except ValueError:
        return dense
    return fast if fast.seconds(count) < dense.seconds(count) else dense


def token_engine(
    attention: Attention,
    count: int,
    dimension: int = 3,
    choice: str = "auto",
    query_key: Floats | None = None,
    value: Floats | None = None,
    threads: int = 1,
) -> TokenEngine:
    """Engine of an interaction without variants; see `interaction_engine`."""
    return interaction_engine(Interaction(attention, dimension, query_key, value), count, choice, threads)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS on one thread: its products round by the number of threads, and these fight with other workers."""
    with _blas().limit(limits=1):
        yield


@cache
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    """Cut rows into chunks of `CHUNK` entries or so."""
    size = min(max(CHUNK // max(columns, 1), 8), 128)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _turned(vectors: Floats, places: Any, frequencies: Floats) -> Floats:
    """Vectors (N, d) turned by the angles place·ω_k in the planes of the coordinates (2k, 2k + 1)."""
    pairs = np.ascontiguousarray(vectors).view(np.complex128)
    return (pairs * np.exp(1j * np.outer(places, frequencies))).view(np.float64)
