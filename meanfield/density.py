r"""The continuum as an Eulerian problem: the density ρ(θ, t), and the radius field R(θ, t) where the scheme reads it.

.. math:: \partial_t \rho + \nabla\cdot(\rho u) = \kappa \Delta\rho, \qquad
          \partial_t R + u\cdot\nabla R = \mathrm{growth}, \qquad u = \mathrm{speed}\; P_\theta A,

written once for every space and scheme.  The state is one real vector: the packed spectrum of ρ, followed by that of
R.  Source: Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026.

**The fold.**  A radius field exists only while the sheet r = R(θ, t) is a graph over θ.  Behind the cluster
⟨θ, A⟩ < 0: r shrinks, runs through 0, and θ flips to the other side; from that time on there are two radii in one
direction.  At the minimum of R the transport term vanishes, so min R falls at the known rate growth(θ_min), and the
time at which it reaches 0 is extrapolated from it.  `DensityProblem.observe` stops the run shortly before.
"""

from __future__ import annotations

import math

import numpy as np

from .absorption import AbsorbingLayer
from .attention import Field, Fields, SpectralField
from .interaction import Attention
from .kernels import eigenvalue_ratios
from .normalization import Scheme
from .problem import Observation, Stop
from .space import Complexes, Floats, Space

RESOLVED_ERROR = 1e-3
"""Relative L² error up to which the gridded density counts as resolved."""
LAYER_TAIL = 1e-10
"""Tail at which the absorbing layer comes on: the cascade has reached the end of the spectrum."""
GROWTH_TAIL = 1e-14
"""Tail, of the density or the radius, at which a run of growing lmax asks for more degrees."""
LARGEST_TAIL = 1e-2
"""Tail above which a truncated run is stopped: from here the reflected cascade reaches the low degrees."""
LARGEST_FIELD_ERROR = 1e-5
"""Estimated error of the attention field, some ten times too low, at which a run with an absorbing layer is stopped."""
LARGEST_RADIUS_TAIL = 1e-5
"""The same for the radius field, which the velocity reads at all degrees."""
HANDOVER_RADIUS, HANDOVER_TAIL = 0.15, 1e-12
"""Labelled tokens take over once min R is this fraction of the mean of R, or the tail of R reaches this."""
FOLD_RADIUS = 0.01
"""A run is at its fold once min R is this fraction of the mean of R."""
IMMINENT = 0.1
"""... or once R loses its resolution and min R would reach 0 within this fraction of the time run so far."""
STABLE_PHASE, STABLE_DECAY = 8.0, 6.0
"""Steps longer than these over √(lmax(lmax+d−2))·max|u| and the fastest decay are rejected by the order-8 method
anyway."""


class DensityProblem:
    r"""Density (and radius) on a space under one scheme, ready to be stepped.

    Parameters
    ----------
    space : Space
        Where the fields live.
    attention : Attention or Fields
        Kernel, β and value factor; or the attention field in the course of time, on the same space.
    scheme : Scheme
        Normalization scheme.
    noise : float
        Diffusivity κ ≥ 0 (per unit time).
    absorbing : bool
        Whether an absorbing layer in degree may come on when the density outgrows lmax.
    growing : bool
        Whether to stop once more degrees are needed, with the status "outgrown", for a problem of larger lmax.
    yielding : bool
        Whether to stop, with the status "handover", well before the radius field folds or outgrows lmax: labelled
        tokens go on from there (`meanfield.labelled`).

    Attributes
    ----------
    size : int
        Length of the state vector.
    field : Field
        The attention field, of the last evaluation.
    layer : AbsorbingLayer or None
        The layer, once it is on: with t and the state vector, all that the future of a run depends on.

    Raises
    ------
    ValueError
        If lmax does not hold the kernel, or the field is on another space, or noise is asked of a scheme that reads
        the radius: diffusing tokens of one direction come from many, so that no radius field R(θ, t) exists.
    """

    def __init__(
        self,
        space: Space,
        attention: Attention | Fields,
        scheme: Scheme,
        noise: float = 0.0,
        absorbing: bool = True,
        growing: bool = False,
        yielding: bool = False,
    ) -> None:
        if not (math.isfinite(noise) and noise >= 0.0):
            raise ValueError(f"noise: must be a finite number >= 0, got {noise!r}")
        if noise > 0.0 and scheme.reads_radius:
            raise ValueError(
                f"noise: must be 0 with {scheme.name}: under noise tokens of one direction have many "
                f"radii, and no radius field exists; got {noise!r}"
            )
        self.fields = SpectralField(space, attention) if isinstance(attention, Attention) else attention
        if self.fields.space != space:
            raise ValueError(f"attention: must be a field on {space}, got one on {self.fields.space}")
        self.space = space
        self.field: Field = self.fields.at(0.0)
        self.attention = self.field.interaction.attention
        self.scheme = scheme
        self.noise = noise
        self.size = space.packed_size * (2 if scheme.reads_radius else 1)
        self._rho_part = slice(0, space.packed_size)
        self._radius_part = slice(space.packed_size, self.size)
        self._rho_lm, self._radius_lm, self._change_lm = (
            np.zeros(space.spectral_shape, dtype=np.complex128) for _ in range(3)
        )
        self._rho, self._norm, self._mobility, self._scratch = (np.empty(space.shape) for _ in range(4))
        self._radius = np.ones(space.shape)
        self._slope = np.empty_like(self.field.numerator)
        self.absorbing = absorbing
        self.growing = growing
        self.yielding = yielding and scheme.reads_radius
        self.layer: AbsorbingLayer | None = None
        self._diffusion = noise * space.laplacian_eigenvalues
        self._decay = self._diffusion if noise else None
        self._wavenumber = math.sqrt(-float(np.min(space.laplacian_eigenvalues)))  # the largest

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Times at which the stepper restarts."""
        return tuple(sorted({*self.scheme.breakpoints, *self.fields.breakpoints}))

    # ------------------------------------------------------------------ state

    def pack(self, rho_lm: Complexes, radius_lm: Complexes | None = None) -> Floats:
        """State vector of the spectra of ρ and, for schemes that read it, R."""
        if (radius_lm is not None) != self.scheme.reads_radius:
            raise ValueError(f"{self.scheme.name} {'needs' if self.scheme.reads_radius else 'has no'} radius field")
        y = np.empty(self.size)
        self.space.pack(rho_lm, out=y[self._rho_part])
        if radius_lm is not None:
            self.space.pack(radius_lm, out=y[self._radius_part])
        return y

    def density_lm(self, y: Floats) -> Complexes:
        """Spectrum of ρ in a state vector."""
        return self.space.unpack(y[self._rho_part])

    def radius_lm(self, y: Floats) -> Complexes | None:
        """Spectrum of R in a state vector, if the scheme has one."""
        return self.space.unpack(y[self._radius_part]) if self.scheme.reads_radius else None

    # ------------------------------------------------------------------ dynamics

    def velocity(self, t: float, y: Floats) -> Floats:
        """Velocity u = speed P A on the grid, shape (components, ...)."""
        mobility = self._evaluate(t, y)
        return np.asarray(self.field.numerator * mobility)

    def _evaluate(self, t: float, y: Floats) -> Floats:
        """Evaluate field and radius, and return the mobility speed/Z: u is its product with the field's numerator."""
        self.field = self.fields.at(t)
        field, scheme = self.field, self.scheme
        self.space.unpack(y[self._rho_part], out=self._rho_lm)
        field.evaluate(self._rho_lm, radial=scheme.reads_field)
        if scheme.reads_field:
            field.norm(out=self._norm)
        if scheme.reads_radius:
            self.space.unpack(y[self._radius_part], out=self._radius_lm)
            self.space.synthesis(self._radius_lm, out=self._radius)
        speed = scheme.speed(t, self._radius, field.radial, self._norm)
        return np.divide(speed, field.partition, out=self._mobility)

    def _growth(self, t: float) -> Floats | float:
        """Growth r' on the grid, after `_evaluate` at the same time and state."""
        return self.scheme.growth(t, self._radius, self.field.radial, self._norm)

    def tendency(self, t: float, y: Floats) -> Floats:
        """Time derivative of the state vector.

        Transforms: one synthesis and one divergence at lmax and the band-limited ones of the field; with a radius
        field one synthesis, one gradient and one analysis more.

        Raises
        ------
        ArithmeticError
            If there is no field, doubly stochastic attention having not converged.
        """
        change = np.empty(self.size)
        mobility = self._evaluate(t, y)
        flux = self.field.numerator
        if self.scheme.reads_radius:
            slope = self.space.gradient(self._radius_lm, out=self._slope)
            slope *= flux
            rate = np.sum(slope, axis=0, out=self._scratch)
            rate *= mobility
            np.subtract(self._growth(t), rate, out=rate)
            self.space.analysis(rate, out=self._change_lm)
            self.space.pack(self._change_lm, out=change[self._radius_part])
        mobility *= self.space.synthesis(self._rho_lm, out=self._rho)
        flux *= mobility  # the field is spent
        self.space.divergence(flux, out=self._change_lm)
        np.negative(self._change_lm, out=self._change_lm)
        if self._decay is not None:
            self._rho_lm *= self._decay
            self._change_lm += self._rho_lm
        self.space.pack(self._change_lm, out=change[self._rho_part])
        return change

    # ------------------------------------------------------------------ watches

    def observe(self, t: float, y: Floats) -> Observation:
        """What the stepper must know of an accepted state: whether to stop, and the longest useful step."""
        u = self.velocity(t, y)
        restart = self.absorbing and not (self.growing or self.yielding) and self._absorb(u)
        fastest = math.sqrt(np.max(np.sum(u * u, axis=0)))
        fading = 0.0 if self._decay is None else -float(np.min(self._decay))
        rate = self._wavenumber * fastest / STABLE_PHASE + fading / STABLE_DECAY
        linear = self._linear()
        longest = 1.0 / rate if rate > 0.0 and linear is None else math.inf
        stop = self._outgrown(t) or self._handover(t) or self._fold(t) or self._unresolved(t)
        return Observation(stop, longest, restart, linear)

    def _linear(self) -> Floats | None:
        """Diagonal of diffusion, and of the layer beside it, in the state vector; the layer alone is not stiff."""
        if self._decay is None or self.noise == 0.0:
            return None
        ones = np.full(self.space.spectral_shape, 1.0 + 1.0j)
        return np.asarray(self.space.pack(self._decay * ones) / self.space.pack(ones))

    def _outgrown(self, t: float) -> Stop | None:
        if not self.growing:
            return None
        tail = spectral_tail(self.space, self._rho_lm)
        if self.scheme.reads_radius:
            tail = max(tail, spectral_tail(self.space, self._radius_lm))
        if tail <= GROWTH_TAIL:
            return None
        return Stop("outgrown", f"more degrees than {self.space.lmax} are needed from t = {t:.6g} on", passing=True)

    def _absorb(self, u: Floats) -> bool:
        """Put the absorbing layer on once the cascade arrives, and keep it fit for the flow; tells of a change."""
        if self.layer is None and spectral_tail(self.space, self._rho_lm) < LAYER_TAIL:
            return False
        contraction = self.space.synthesis(self.space.divergence(u, out=self._change_lm), out=self._scratch)
        strain = float(np.max(np.abs(contraction))) / (self.space.dimension - 1)  # alike in all directions
        if strain == 0.0 or (self.layer is not None and self.layer.fits(strain)):
            return False
        self.absorb(strain)
        return True

    def absorb(self, strain: float) -> None:
        """Put on the absorbing layer for a flow that contracts at most at the rate ``strain``."""
        self.layer = AbsorbingLayer(self.space.lmax, strain)
        self._decay = self._diffusion - self.layer.damping[self.space.degree]

    def _field_error(self) -> float:
        """Estimate of the relative error of ∫ e^{β x·y} ρ(y) dy: what the layer has swallowed of it."""
        assert self.layer is not None
        size = eigenvalue_ratios(self.space.lmax, self.field.interaction.bound, self.space.dimension) ** 2
        power = degree_energy(self.space, self._rho_lm) * size
        return math.sqrt(float(np.sum(self.layer.loss**2 * power) / np.sum(power)))

    def density_error(self, rho_lm: Complexes) -> float:
        """Estimate of the relative L² error of a gridded density: what stands in degrees that cannot be trusted.

        These are the top eighth of degrees, or, with an absorbing layer, each to the extent that the layer has
        swallowed of it.
        """
        degree = np.arange(self.space.lmax + 1)
        doubt = np.where(degree > 7 * self.space.lmax / 8, 1.0, 0.0) if self.layer is None else self.layer.loss
        power = self.space.multiplicity * np.abs(rho_lm) ** 2
        return math.sqrt(float(np.sum(doubt[self.space.degree] ** 2 * power) / np.sum(power)))

    def _handover(self, t: float) -> Stop | None:
        if not self.yielding:
            return None
        smallest = float(np.min(self._radius)) * self.space.volume / self.space.integrate(self._radius)
        tails = [spectral_tail(self.space, f_lm) for f_lm in (self._rho_lm, self._radius_lm)]
        if smallest >= HANDOVER_RADIUS and tails[0] <= LAYER_TAIL and tails[1] <= HANDOVER_TAIL:
            return None
        return Stop("handover", f"labelled tokens go on from t = {t:.6g}", passing=True)

    def _fold(self, t: float) -> Stop | None:
        if not self.scheme.reads_radius:
            return None
        radius = self._radius
        where = np.unravel_index(np.argmin(radius), radius.shape)
        smallest, mean = float(radius[where]), self.space.integrate(radius) / self.space.volume
        rate = float(np.broadcast_to(self._growth(t), radius.shape)[where])
        remaining = max(smallest, 0.0) / -rate if rate < 0.0 else math.inf
        tail = spectral_tail(self.space, self._radius_lm)
        if smallest > FOLD_RADIUS * mean and not (tail > LARGEST_RADIUS_TAIL and remaining < IMMINENT * t):
            return None
        time = t + remaining if math.isfinite(remaining) else t
        return Stop(
            "fold",
            f"the radius field folds at t* = {time:.6g}: a token runs through the origin, and from then on one "
            "direction holds two radii",
            {"fold_time": time},
        )

    def _unresolved(self, t: float) -> Stop | None:
        lowest = float(np.min(self.field.partition))
        if not lowest > 0.0:
            return Stop(
                "unresolved",
                f"the density is so negative somewhere at t = {t:.6g} that ∫ e^(β x·y) ρ(y) dy = {lowest:.2g} there, "
                "and softmax attention means nothing; raise lmax, or the degree of a projected cloud",
            )
        if self.layer is not None and self._field_error() > LARGEST_FIELD_ERROR:
            return Stop(
                "unresolved",
                f"the density is no longer resolved at lmax = {self.space.lmax}: at t = {t:.6g} the absorbing layer "
                f"reaches into the degrees that attention of beta = {self.attention.beta:g} reads; raise lmax",
            )
        checks = [("density", self._rho_lm, LARGEST_TAIL)]
        if self.scheme.reads_radius:
            checks.append(("radius field", self._radius_lm, LARGEST_RADIUS_TAIL))
        for name, f_lm, limit in checks:
            tail = spectral_tail(self.space, f_lm)
            if not tail <= limit:
                return Stop(
                    "unresolved",
                    f"the {name} is no longer resolved at lmax = {self.space.lmax}: at t = {t:.6g} the top eighth of "
                    f"degrees holds {tail:.1e} of its energy (at most {limit:g} is sound); raise lmax",
                )
        return None


def degree_energy(space: Space, f_lm: Complexes) -> Floats:
    """Energy Σ_m |f_lm|² of each degree l = 0 … lmax; the sum over l is ∫f²."""
    energies = space.multiplicity * np.abs(f_lm) ** 2
    return np.asarray(np.bincount(space.degree, energies, minlength=space.lmax + 1), dtype=np.float64)


def spectral_tail(space: Space, f_lm: Complexes) -> float:
    """Fraction of ∫f² in the top eighth of degrees, l > 7 lmax/8."""
    energy = space.multiplicity * np.abs(f_lm) ** 2
    total = float(np.sum(energy))
    return float(np.sum(energy[space.degree > 7 * space.lmax / 8])) / total if total > 0.0 else 0.0
