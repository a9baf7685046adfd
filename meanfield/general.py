r"""The attention field of a density with general matrices, on S² and S¹, and its doubly stochastic form.

.. math:: A(\theta) = \sum_h V_h\,\frac{N_h(\theta)}{Z_h(\theta)}, \qquad Z(\theta) = \int e^{w\cdot y}\rho(y)\,dy,
          \qquad N(\theta) = \int y\,e^{w\cdot y}\rho(y)\,dy, \qquad w = \beta B^T\theta, \quad B = Q^TK.

The kernel is band limited in both its arguments, to degree b of :math:`R = |\beta|\,\|B\|_2`.  So a matrix that depends
on β and B alone turns the packed spectrum of ρ into that of Z, and those of the products :math:`y_i\rho` into N; the
grid enters by low-degree transforms only.

Z itself ranges over :math:`e^R`, and a spectrum keeps only the absolute size of errors.  So the matrix is that of
:math:`e^{w\cdot y - P(w)}`, with a polynomial P of second degree in :math:`|w|^2` near the logarithm of the mean of
:math:`e^{w\cdot y}` over y, which is of the same size for all θ; the factor cancels in A.  Since the kernel does not
change if both θ and y change sign, even degrees come from even ones and odd from odd: the matrix has two blocks.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.polynomial import Chebyshev

from .attention import RESOLVED_KERNEL, ConstantField, Fields, SpectralField
from .circle import Circle
from .interaction import FIELD_TOLERANCE, Attention, Interaction, Layers
from .kernels import band_limit, eigenvalue_ratios, log_mean_kernel
from .sinkhorn import MOST_ITERATIONS
from .space import Complexes, Floats, Integers, Space
from .sphere import Sphere

LARGEST_EXPONENT = 80.0
"""Largest R: P leaves a range of e^{R/9} in the size of the kernel, by which round-off grows.  Tokens have no limit."""
BALANCED = 1e-13
"""Largest relative error of the rows of a doubly stochastic kernel."""


class GeneralField(ConstantField):
    """The attention field on the grid of a space, of any heads; its interface is `meanfield.attention.Field`.

    Neither P A nor A itself is a gradient: there is no energy and no identity for its rate, and linear theory about the
    uniform density does not hold.

    Parameters
    ----------
    space : Space
        The sphere or the circle.
    interaction : Interaction
        Kernel, β, and the matrices of every head.

    Attributes
    ----------
    partition : ndarray
        The smallest Z_h, times a positive factor: positive wherever A means something (softmax), or 1 (unnormalized).
    numerator : ndarray, shape (components, ...)
        partition · P A.
    radial : ndarray
        ⟨θ, A⟩.
    band : Space
        The degrees of the density that are read.

    Raises
    ------
    ValueError
        If the space is axisymmetric, R is too large, the interaction is one for tokens only, or lmax is too small.
    """

    energy_scale = None

    def __init__(self, space: Space, interaction: Interaction) -> None:
        _require_room(space, interaction)
        self.space = space
        self.interaction = interaction
        self.attention = interaction.attention
        reach = band_limit(interaction.bound, FIELD_TOLERANCE, space.dimension)
        self.band = space.band(min(reach + 1, space.lmax))  # y ρ needs one degree more than ρ
        self._positions = space.band_positions(self.band.lmax)
        self._compact = compact_space(space.dimension, self.band.lmax + 1)
        self._heads = [
            _Head(space, self._compact.lmax, self.attention.beta, query_key, value)
            for query_key, value in interaction.heads
        ]
        axes = np.moveaxis(space.points, -1, 0)
        # The gradient of the coordinate x_i is P e_i: its components are those of the frame along e_i.
        linear = space.band(1)
        self._frame = np.stack([linear.gradient(linear.analysis(np.ascontiguousarray(axis))) for axis in axes], axis=1)
        self._axes = axes
        self.partition = np.ones(space.shape)
        self.numerator = np.empty((len(self._frame), *space.shape))
        self.radial = np.empty(space.shape)
        self._scratch = np.empty(space.shape)

    def low_degrees(self, rho_lm: Complexes) -> Complexes:
        """Coefficients of a density that the field reads, a spectrum of ``band``."""
        return np.asarray(rho_lm[self._positions])

    def _moments(self, rho_lm: Complexes) -> Floats:
        """Packed spectra of ρ and y_i ρ, one in a row."""
        compact = self._compact
        low_lm = np.zeros(compact.spectral_shape, dtype=np.complex128)
        low_lm[compact.band_positions(self.band.lmax)] = rho_lm[self._positions]
        rho = compact.synthesis(low_lm)
        rows = np.empty((1 + self.space.dimension, compact.packed_size))
        compact.pack(low_lm, out=rows[0])
        for axis in range(self.space.dimension):
            compact.pack(compact.analysis(rho * compact.points[..., axis]), out=rows[1 + axis])
        return rows

    def evaluate(self, rho_lm: Complexes, radial: bool) -> None:
        """Fill ``partition``, ``numerator`` and ``radial`` from the spectrum of the density."""
        moments = self._moments(rho_lm)
        field = np.zeros((self.space.dimension, *self.space.shape))
        self.partition.fill(np.inf if self.attention.normalized else 1.0)
        for head in self._heads:
            partition, numerator = head.evaluate(moments)
            if self.attention.normalized:
                numerator /= partition
                np.minimum(self.partition, partition, out=self.partition)
            else:
                numerator *= head.scale
            field += np.tensordot(head.value, numerator, axes=1)
        field *= self.attention.value
        np.einsum("i...,i...->...", self._axes, field, out=self.radial)
        np.einsum("ki...,i...->k...", self._frame, field, out=self.numerator)
        self.numerator *= self.partition

    @property
    def tangent(self) -> Floats:
        """P A, shape (components, ...)."""
        return np.asarray(self.numerator / self.partition)

    def norm(self, out: Floats) -> Floats:
        """‖A‖ = (|P A|² + ⟨θ, A⟩²)^{1/2} of the last evaluation."""
        np.einsum("k...,k...->...", self.numerator, self.numerator, out=out)
        out /= np.multiply(self.partition, self.partition, out=self._scratch)
        out += np.multiply(self.radial, self.radial, out=self._scratch)
        return np.sqrt(out, out=out)


class _Head:
    """One head: the matrix from packed spectra of a density to those of Z, and V."""

    def __init__(self, space: Space, degree: int, beta: float, query_key: Floats | None, value: Floats | None) -> None:
        identity = np.eye(space.dimension)
        key = beta * (identity if query_key is None else query_key)
        self.value = identity if value is None else value
        reach = float(np.linalg.norm(key, 2))
        blocks, highest = kernel_blocks(space.dimension, degree, space.lmax, key)
        self.band = space.band(highest)
        self._blocks = blocks
        w = space.points @ key
        #: What Z and N are to be multiplied by, e^P.
        self.scale = np.exp(_size(w, reach))

    def evaluate(self, moments: Floats) -> tuple[Floats, Floats]:
        """Z and N on the grid, scaled, from the packed spectra of ρ and y ρ."""
        packed = np.empty((len(moments), self.band.packed_size))
        for into, of, block in self._blocks:
            packed[:, into] = moments[:, of] @ block
        grid = [self.band.synthesis(self.band.unpack(row)) for row in packed]
        return grid[0], np.stack(grid[1:])


def _size(w: Floats, reach: float) -> Floats:
    """P(w), near the logarithm of the mean of e^{w·y} over y, for |w| ≤ ``reach``."""

    def logarithm(squares: Floats) -> Floats:
        lengths = reach * np.sqrt(squares)
        return np.array([log_mean_kernel(length, w.shape[-1]) + length for length in lengths])

    fit = Chebyshev.interpolate(logarithm, 2, domain=[0.0, 1.0])
    return np.asarray(fit(np.einsum("...i,...i->...", w, w) / reach**2 if reach else np.zeros(w.shape[:-1])))


def kernel_blocks(
    dimension: int, degree: int, lmax: int, key: Floats
) -> tuple[list[tuple[Integers, Integers, Floats]], int]:
    r"""The matrix of the kernel :math:`e^{w\cdot y - P(w)}`, w = key^T θ, between packed spectra.

    Parameters
    ----------
    dimension : int
        2 or 3.
    degree, lmax : int
        Largest degree in y, and largest degree in θ that is wanted.
    key : ndarray, shape (d, d)
        β B, of 2-norm R.

    Returns
    -------
    blocks : list
        For even and odd degrees: positions in the result, positions in the argument, and the block, transposed.
    highest : int
        Largest degree in θ: ``lmax``, or that beyond which the kernel is negligible.
    """
    reach = float(np.linalg.norm(key, 2))
    source = compact_space(dimension, degree)
    # The product with e^{−P} is narrower than the kernel itself, by some √2.
    target = compact_space(dimension, math.ceil(1.5 * band_limit(reach, FIELD_TOLERANCE, dimension)) + 6)
    size = _size(target.points @ key, reach)
    # First over θ for every node y of one half, then over y for every coefficient of the result.
    half = source.points[: source.shape[0] // 2]
    spectra = np.empty((*half.shape[:-1], target.packed_size))
    for place in np.ndindex(half.shape[:-1]):
        target.pack(target.analysis(np.exp(target.points @ (key @ half[place]) - size)), out=spectra[place])
    degrees = packed_degrees(target)
    opposite = np.where(degrees % 2, -1.0, 1.0) * spectra
    if dimension == 3:  # the antipode of a node stands in the opposite row, half a turn away
        opposite = np.roll(opposite[::-1], source.shape[1] // 2, axis=1)
    values = np.concatenate([spectra, opposite]).reshape(-1, target.packed_size)
    result = compact_space(dimension, min(target.lmax, lmax))
    columns = np.ascontiguousarray(values[:, degrees <= result.lmax].T).reshape(-1, *source.shape)
    matrix = np.stack([source.pack(source.analysis(column)) for column in columns])
    odd = [packed_degrees(space) % 2 for space in (result, source)]
    places = [[np.flatnonzero(mask == parity) for mask in odd] for parity in (0, 1)]
    return [(rows, of, np.ascontiguousarray(matrix[np.ix_(rows, of)].T)) for rows, of in places], result.lmax


def packed_degrees(space: Space) -> Integers:
    """Degree of every entry of a packed spectrum."""
    marks = np.where(space.order == 0, 1.0, (1.0 + 1.0j) / np.sqrt(2.0))
    return np.asarray(np.rint(space.pack(marks * space.degree.astype(np.complex128))), dtype=np.int64)


@lru_cache(maxsize=16)
def compact_space(dimension: int, degree: int) -> Space:
    """The sphere or the circle on the smallest grid whose quadrature is exact for products of fields of a degree."""
    if dimension == 2:
        return Circle(degree, 2 * degree + 2)
    return Sphere(degree, max(degree + 2 - degree % 2, 32), 2 * degree + 4 - 2 * degree % 4)


def smallest_general_lmax(interaction: Interaction | Layers) -> int:
    """Smallest lmax of a space that resolves the kernel with its matrices, in all layers."""
    if isinstance(interaction, Layers):
        return max(smallest_general_lmax(interaction.of(layer)) for layer in range(interaction.count))
    return band_limit(interaction.bound, RESOLVED_KERNEL, interaction.dimension)


def _require_room(space: Space, interaction: Interaction) -> None:
    """Refuse an interaction that a density on this space cannot have."""
    if space.dimension != interaction.dimension or space.dimension not in (2, 3) or space.axisymmetric:
        raise ValueError("query_key: general matrices need tokens, or a density on the sphere or the circle")
    if interaction.balanced:
        raise ValueError("balanced: doubly stochastic attention with general matrices needs tokens")
    if interaction.ordered:
        raise ValueError("attention: causal masks and rotary positions are for tokens, which have an order")
    needed = smallest_general_lmax(interaction)
    if space.lmax < needed:
        raise ValueError(
            f"beta: |beta| times the 2-norm of query_key is {interaction.bound:g}, which needs lmax >= {needed}, "
            f"got lmax = {space.lmax}: attention would act on scales that the space does not hold"
        )
    if interaction.bound > LARGEST_EXPONENT:
        raise ValueError(
            f"query_key: must have |beta| times its 2-norm <= {LARGEST_EXPONENT:g} in a density, "
            f"got {interaction.bound:g}"
        )


class LayeredField:
    """The fields of an interaction whose matrices are drawn anew in every layer; that of one layer at a time is kept.

    Parameters
    ----------
    space : Space
        The sphere or the circle.
    layers : Layers
        The interactions in the course of time.

    Raises
    ------
    ValueError
        If the space has no room for one of the layers; see `GeneralField`.
    """

    def __init__(self, space: Space, layers: Layers) -> None:
        for layer in range(layers.count):
            _require_room(space, layers.of(layer))
        self.space = space
        self.layers = layers
        self.breakpoints = layers.breakpoints
        self._layer = 0
        self._field = GeneralField(space, layers.of(0))

    def at(self, t: float) -> GeneralField:
        """Field of the layer that holds at a time; see `Layers`."""
        layer = self.layers.layer(t)
        if layer != self._layer:
            self._field = GeneralField(self.space, self.layers.of(layer))
            self._layer = layer
        return self._field


class BalancedField(SpectralField):
    r"""Doubly stochastic attention of a density, with the kernel :math:`u(x)\,e^{\beta x\cdot y}\,u(y)`.

    The factor u solves :math:`u(x)\int e^{\beta x\cdot y} u(y) \rho(y)\,dy = 1`; then A is softmax attention of the
    measure uρ.  The iteration :math:`u \leftarrow (u/K[u\rho])^{1/2}` contracts by (1 − σ)/2 ≤ 1/2, β ≥ 0, in a mode
    of the result with the eigenvalue σ, so that some 40 pairs of band-limited transforms suffice.

    Its energy is not that of softmax attention, but :math:`-\frac{1}{\beta}\int\log u\,d\rho`, the entropic cost of
    transport of ρ to itself: its variation is :math:`-\log(u)/\beta`, up to a constant, of which P A/v is the gradient.
    Source: Sander, Ablin, Blondel, Peyré (2022), arXiv 2110.11773.
    """

    def __init__(self, space: Space, attention: Attention) -> None:
        interaction = Interaction(attention, space.dimension, balanced=True)
        super().__init__(space, attention)
        self.interaction = interaction
        self.energy_scale = None
        self._factors = eigenvalue_ratios(self.band.lmax, attention.beta, space.dimension)[self.band.degree]

    def evaluate(self, rho_lm: Complexes, radial: bool) -> None:
        """Fill ``partition``, ``numerator`` and, if asked, ``radial``; see `SpectralField.evaluate`.

        Raises
        ------
        ArithmeticError
            If the iteration does not converge, as for a density with large negative values.
        """
        rho = self.space.synthesis(rho_lm)
        factor = np.ones(self.space.shape)
        for _ in range(MOST_ITERATIONS):
            balanced_lm = self.band.analysis(factor * rho)
            sums = factor * self.band.synthesis(self._factors * balanced_lm)
            if not sums.min() > 0.0:
                break
            if np.abs(sums - 1.0).max() <= BALANCED:
                full_lm = np.zeros_like(rho_lm)
                full_lm[self.space.band_positions(self.band.lmax)] = balanced_lm
                return super().evaluate(full_lm, radial)
            factor /= np.sqrt(sums)
        raise ArithmeticError("doubly stochastic attention has not converged: the density is negative somewhere")


def interaction_field(space: Space, interaction: Interaction | Layers) -> Fields:
    """Field of a density under an interaction.

    Raises
    ------
    ValueError
        If a density on this space cannot have it: a mask, rotary positions, matrices together with balance or on an
        axisymmetric space, or a kernel that the space does not hold.
    """
    if isinstance(interaction, Layers):
        return LayeredField(space, interaction)
    if interaction.plain:
        return SpectralField(space, interaction.attention)
    if interaction.balanced and interaction.query_key is None and interaction.value is None:
        return BalancedField(space, interaction.attention)
    return GeneralField(space, interaction)
