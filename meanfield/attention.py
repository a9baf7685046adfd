r"""The attention field A(θ): of a density, from its spectrum, and of tokens, by transforms or by direct summation.

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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
from threadpoolctl import ThreadpoolController

from .kernels import (
    LARGEST_BETA,
    LARGEST_UNNORMALIZED_BETA,
    band_limit,
    eigenvalue_derivatives,
    eigenvalues,
    gradient_eigenvalues,
)
from .space import Complexes, Floats, Space
from .sphere import LARGEST_LMAX, Sphere

KERNELS = ("softmax", "unnormalized")
FIELD_TOLERANCE = 1e-16
"""Kernel eigenvalues below this fraction of the largest are left out of the field."""
RESOLVED_KERNEL = 1e-3
"""A space resolves the attention kernel if Λ_l falls below this fraction of Λ_0 within its lmax."""
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


def smallest_lmax(attention: Attention, dimension: int = 3) -> int:
    """Smallest lmax of a space that resolves the kernel."""
    return band_limit(attention.beta, RESOLVED_KERNEL, dimension)


class SpectralField:
    """The attention field on the grid of a space, from the spectrum of the density.

    Three band-limited syntheses give Z and Z P A, a fourth ⟨θ, A⟩.  Results stand in preallocated arrays that the
    next call to `evaluate` overwrites.  P A itself is left undivided: who needs a product with 1/Z forms it in one
    pass over the grid.

    Attributes
    ----------
    partition : ndarray
        Z e^{−|β|} (softmax), or 1 (unnormalized).
    numerator : ndarray, shape (components, ...)
        partition · P A.
    radial : ndarray
        ⟨θ, A⟩, after ``evaluate(..., radial=True)``.

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
        degree = min(band_limit(attention.beta, FIELD_TOLERANCE, space.dimension), space.lmax)
        self.band = space.band(degree)
        self._positions = space.band_positions(self.band.lmax)
        arguments = (self.band.lmax, attention.beta, space.dimension)
        self._partition_factors = eigenvalues(*arguments)[self.band.degree]
        factor = attention.scale * attention.value
        self._numerator_factors = factor * gradient_eigenvalues(*arguments)[self.band.degree]
        self._radial_factors = factor * eigenvalue_derivatives(*arguments)[self.band.degree]
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
        Z e^{−|β|} (with a general QᵀK: Z e^{−|β| ‖QᵀK‖₂}), whether A is divided by Z or not.
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
            Unit vectors at which the field is wanted; by default the tokens themselves.
        """


class DenseEngine:
    r"""Direct summation, in any dimension and with general matrices.

    .. math:: A(\theta) = V\,\frac{\sum_j w_j y_j e^{\beta\langle\theta, B y_j\rangle}}
              {\sum_j w_j e^{\beta\langle\theta, B y_j\rangle}}, \qquad B = Q^TK,

    row by row with the largest exponent taken out, in O(N M) time and O(N) memory.  The rows are dealt to threads in
    chunks of a size that does not depend on their number, so that results do not either.

    Parameters
    ----------
    attention : Attention
        Kernel, β, and the factor v of the value matrix.
    dimension : int
        Ambient dimension d ≥ 2.
    query_key, value : ndarray, shape (d, d), optional
        B, and a matrix that A is multiplied by beside v; the identity by default.
    threads : int
        Threads, ≥ 1.

    Raises
    ------
    ValueError
        If a matrix is not d × d and finite, or e^{|β| ‖B‖₂} overflows in unnormalized attention.
    """

    name = "dense"

    def __init__(
        self,
        attention: Attention,
        dimension: int,
        query_key: Floats | None = None,
        value: Floats | None = None,
        threads: int = 1,
    ) -> None:
        for key, matrix in (("query_key", query_key), ("value", value)):
            if matrix is not None and not (matrix.shape == (dimension, dimension) and np.isfinite(matrix).all()):
                raise ValueError(
                    f"{key}: must be a finite matrix of shape {(dimension, dimension)}, got {matrix.shape}"
                )
        self.attention = attention
        self.dimension = dimension
        self.potential = query_key is None and value is None
        self.query_key = query_key
        self.value = value
        self.threads = threads
        #: The largest exponent there can be.
        self.bound = abs(attention.beta) * (1.0 if query_key is None else float(np.linalg.norm(query_key, 2)))
        if not attention.normalized and self.bound > LARGEST_UNNORMALIZED_BETA:
            raise ValueError(
                f"query_key: must have |beta| times its 2-norm <= {LARGEST_UNNORMALIZED_BETA:g} for unnormalized "
                f"attention (e^(beta x.y) overflows), got {self.bound:g}"
            )

    def evaluate(
        self, points: Floats, weights: Floats, radial: bool = True, targets: Floats | None = None
    ) -> TokenField:
        """Field of tokens at unit vectors; see `TokenEngine.evaluate`."""
        targets = points if targets is None else targets
        some = weights > 0.0  # a token without mass must not set the scale of a row
        sources, masses = (points, weights) if some.all() else (points[some], weights[some])
        keys = self.attention.beta * (sources if self.query_key is None else sources @ self.query_key.T).T
        payload = np.concatenate([masses[:, None] * sources, masses[:, None]], axis=1)
        sums = np.empty((len(targets), self.dimension + 1))
        tops = np.empty((len(targets), 1))
        chunks = list(_chunks(len(targets), len(sources)))
        threads = self.threads if len(targets) * len(sources) > WORTH_THREADS else 1
        queues = [chunks[first::threads] for first in range(threads)]

        def work(queue: list[slice]) -> None:
            buffer = np.empty(max((rows.stop - rows.start for rows in queue), default=0) * len(sources))
            for rows in queue:
                logits = buffer[: (rows.stop - rows.start) * len(sources)].reshape(-1, len(sources))
                np.matmul(targets[rows], keys, out=logits)
                np.max(logits, axis=1, keepdims=True, out=tops[rows])
                logits -= tops[rows]
                if 2.0 * self.bound > LARGEST_DROP:
                    np.maximum(logits, -LARGEST_DROP, out=logits)
                np.exp(logits, out=logits)
                np.matmul(logits, payload, out=sums[rows])

        with one_blas_thread():
            if threads > 1:
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(work, queues))
            else:
                work(chunks)
        return self._field(targets, sums, tops)

    def seconds(self, count: int) -> float:
        """What one evaluation takes; see `TokenEngine.seconds`."""
        return 1e-4 + (3.5e-9 + 1e-10 * self.dimension) * count**2

    def _field(self, targets: Floats, sums: Floats, tops: Floats) -> TokenField:
        totals = sums[:, -1:]
        field = sums[:, :-1] / totals if self.attention.normalized else sums[:, :-1] * np.exp(tops)
        if self.value is not None:
            field = field @ self.value.T
        field *= self.attention.value
        radial = np.einsum("ij,ij->i", targets, field)
        field -= radial[:, None] * targets
        return TokenField(field, radial, (totals * np.exp(tops - self.bound))[:, 0])


class FastEngine:
    r"""Non-uniform spherical-harmonic transforms on S², in O(N + b³) time for the kernel's band limit b.

    One adjoint transform gives the spectrum of the tokens up to degree b; Z, ∇Z/β and ∂_β Z are synthesized at the
    tokens.  The error is about 1e-15 ‖Z‖/Z, with the L² norm of Z on the sphere.  For β ≥ 0 a token sees itself,
    Z e^{−β} ≥ w, so that all is well up to a million equal tokens.  Tokens that see too little (`LONELY`) are summed
    directly, at the cost of N each.

    Parameters
    ----------
    attention : Attention
        Kernel, β and value factor.
    threads : int
        Threads for tokens that are summed directly; the transforms run on one.

    Raises
    ------
    ValueError
        If the band limit of the kernel is out of reach.
    """

    name = "fast"
    dimension = 3
    potential = True

    def __init__(self, attention: Attention, threads: int = 1) -> None:
        band = band_limit(attention.beta, FIELD_TOLERANCE)
        if band > LARGEST_LMAX:
            raise ValueError(
                f"beta: needs degrees up to {band} of {LARGEST_LMAX} in fast attention, got {attention.beta:g}"
            )
        self.attention = attention
        # One thread always: ducc0 chooses its interpolation, and rounds, by the number of threads.
        self.sphere = Sphere(band)
        degree = self.sphere.degree
        factor = attention.scale * attention.value
        self._partition_factors = eigenvalues(band, attention.beta)[degree]
        self._tangent_factors = factor * gradient_eigenvalues(band, attention.beta)[degree]
        self._radial_factors = factor * eigenvalue_derivatives(band, attention.beta)[degree]
        self._dense = DenseEngine(attention, 3, threads=threads)

    def seconds(self, count: int) -> float:
        """What one evaluation takes; see `TokenEngine.seconds`."""
        band = self.sphere.lmax
        return 5e-4 + 3.3e-7 * count + 6e-7 * band**2 + 6e-10 * band**3

    def evaluate(
        self, points: Floats, weights: Floats, radial: bool = True, targets: Floats | None = None
    ) -> TokenField:
        """Field of tokens at unit vectors; see `TokenEngine.evaluate`."""
        scattered = self.sphere.scattered(points)
        mu_lm = scattered.masses(weights)
        if targets is None:
            targets = points
        else:
            scattered = self.sphere.scattered(targets)
        z_lm = self._partition_factors * mu_lm
        partition = scattered.values(z_lm)
        tangent = scattered.gradient(self._tangent_factors * mu_lm)
        along = scattered.values(self._radial_factors * mu_lm) if radial else np.zeros(len(targets))
        if self.attention.normalized:
            scale = math.sqrt(float(np.sum(self.sphere.multiplicity * np.abs(z_lm) ** 2)))
            lonely = np.flatnonzero(~(partition > LONELY * scale))
            inverse = 1.0 / np.where(partition > 0.0, partition, 1.0)
            tangent *= inverse[:, None]
            along *= inverse
            if lonely.size:
                exact = self._dense.evaluate(points, weights, targets=targets[lonely])
                tangent[lonely], along[lonely], partition[lonely] = exact.tangent, exact.radial, exact.partition
        return TokenField(tangent, along, partition)


def token_engine(
    attention: Attention,
    count: int,
    dimension: int = 3,
    choice: str = "auto",
    query_key: Floats | None = None,
    value: Floats | None = None,
    threads: int = 1,
) -> TokenEngine:
    """Engine for ``count`` tokens: "fast", "dense", or "auto", whichever costs less.

    The costs are formulas whose coefficients were measured once, on one thread, not timings of the day: a run that is
    repeated must choose, and round, as before.

    Raises
    ------
    ValueError
        If fast attention is asked for what it cannot do: other dimensions than 3, general matrices, a huge β.
    """
    if choice not in ("auto", "fast", "dense"):
        raise ValueError(f"attention: must be auto, fast or dense, got {choice!r}")
    suited = dimension == 3 and query_key is None and value is None
    if choice == "fast":
        if not suited:
            raise ValueError(
                "attention: must be dense or auto unless the dimension is 3 and query_key and value are multiples of "
                "the identity, got 'fast'"
            )
        return FastEngine(attention, threads)
    dense = DenseEngine(attention, dimension, query_key, value, threads)
    if choice == "dense" or not suited:
        return dense
    try:
        fast = FastEngine(attention, threads)
    except ValueError:
        if choice == "fast":
            raise
        return dense
    return fast if choice == "fast" or fast.seconds(count) < dense.seconds(count) else dense


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
