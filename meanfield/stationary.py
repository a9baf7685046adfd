r"""Stationary densities of attention with noise: branches by continuation in κ, with their stability.

For tokens of unit speed the flow of density is :math:`\rho\,\nabla(\Phi - \kappa \log\rho)` with

.. math:: \Phi = \log(Z)/\beta \quad\text{(softmax)}, \qquad \Phi = Z/\beta \quad\text{(unnormalized)},
          \qquad Z(x) = \int e^{\beta x\cdot y}\rho(dy).

In a stationary state it vanishes, so that ρ is a Gibbs law of its own potential,
:math:`\rho \propto e^{\Phi[\rho]/\kappa}`, and Φ is known by the few low moments of ρ that the kernel passes.  States
that are symmetric about an axis of S^{d−1} (on the circle: even) then are the zeros of a small smooth system for
the moments :math:`a_l = \int \rho\, p_l`, with :math:`p_l` the orthonormal zonal polynomials.  The uniform density is
one for every κ; degree l branches off where κ = κ_l (`meanfield.theory.noise_thresholds`).

Source: Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026, for the model; everything else is derived.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvals
from scipy.optimize import brentq

from .kernels import band_limit, eigenvalue_ratios
from .theory import noise_thresholds
from .zonal import gauss_gegenbauer, polynomials

Floats = NDArray[np.float64]

NODES = 160
"""Latitudes of the quadrature, at least."""
LARGEST_NODES = 1500
RESOLVED = 1e-9
"""A branch ends where the density's moments at the largest degree reach this fraction of the first."""
HELD = 1e-11
"""A density has the degrees whose moments are above this fraction of the first."""
CONVERGED = 1e-12
"""Change, relative to the moments, at which Newton's method has arrived."""
FIRST_ARC, SMALLEST_ARC, LARGEST_ARC = 0.02, 1e-6, 0.1
STRAIGHT, STRAIGHTER = 0.9, 0.99
"""Cosine of the angle by which a branch may turn in a step, and above which the next is longer."""
MARGINAL = 1e-7
"""Growth rates up to this multiple of κ_1(d − 1) count as 0: a state may be turned at no cost."""


@dataclass(frozen=True)
class State:
    """One axisymmetric stationary density.

    Attributes
    ----------
    noise : float
        κ > 0.
    moments : ndarray, shape (B,)
        a_l for l = 1 … B, with respect to orthonormal polynomials: a_1 = √d ⟨x·e⟩.
    order_parameter : float
        ⟨x·e⟩, the signed length of the mean token.
    tangent : ndarray, shape (B + 1,)
        Direction of the branch, of unit length: the change of the moments, and of log(1/κ).
    """

    noise: float
    moments: Floats
    order_parameter: float
    tangent: Floats


class NoisyAttention:
    r"""Axisymmetric stationary densities on S^{d−1}, and the growth of perturbations of them.

    Parameters
    ----------
    beta : float
        Inverse temperature β, |β| ≤ 1e6 (unnormalized: 700).
    kernel : {"softmax", "unnormalized"}
        Whether attention is divided by Z.
    dimension : int
        Ambient dimension d ≥ 2.
    nodes : int, optional
        Latitudes of the quadrature; they bound the sharpness of the states within reach.

    Attributes
    ----------
    band : int
        Number B of the moments that the potential reads.
    largest_noise : float
        κ_1, above which the uniform density is stable.

    Raises
    ------
    ValueError
        If an argument is out of range, or the quadrature does not hold the kernel.
    """

    def __init__(self, beta: float, kernel: str = "softmax", dimension: int = 3, nodes: int | None = None) -> None:
        self.largest_noise = float(noise_thresholds(1, beta, kernel, dimension)[1])
        self.beta, self.kernel, self.dimension = beta, kernel, dimension
        self.band = max(2, band_limit(beta, 1e-16, dimension, of_dirac=True))
        self.nodes = max(NODES, 3 * self.band) if nodes is None else nodes
        if 2 * self.band > self.nodes:
            raise ValueError(f"nodes: beta = {beta:g} needs at least {2 * self.band}, got {nodes}")
        ratios = eigenvalue_ratios(self.band, beta, dimension)[1:]
        # Φ/κ_1 is w = Σ (Λ_l/Λ_1) a_l p_l, or log(1 + sw)/s with s = Λ_1/Λ_0.
        self._mean = float(ratios[0]) if kernel == "softmax" else 0.0
        self._factors = ratios / ratios[0] if beta != 0.0 else np.eye(1, self.band)[0]
        self._heights, self._weights = gauss_gegenbauer(self.nodes, dimension)
        self._polynomials = polynomials(self.band, self._heights, dimension)[1:]

    # ------------------------------------------------------------------ states

    def uniform(self, noise: float) -> State:
        """The uniform density at a noise κ > 0."""
        return State(noise, np.zeros(self.band), 0.0, np.append(np.zeros(self.band), 1.0))

    def density(self, state: State, heights: Floats) -> Floats:
        """Density with respect to the uniform probability measure at heights t = x·e, shape (n,)."""
        strength = self.largest_noise / state.noise
        exponent = strength * self._potential(self._factors * state.moments @ self._polynomials)
        top = float(exponent.max())
        mass = float(self._weights @ np.exp(exponent - top))
        wave = self._factors * state.moments @ polynomials(self.band, heights, self.dimension)[1:]
        return np.asarray(np.exp(strength * self._potential(wave) - top) / mass)

    def at(self, noise: float, moments: Floats) -> State:
        """State of this κ that Newton's method reaches from the moments ``moments``.

        Raises
        ------
        ValueError
            If it does not converge.
        """
        moments = np.array(moments, dtype=np.float64)
        log_strength = math.log(self.largest_noise / noise)
        for _ in range(30):
            with np.errstate(all="ignore"):
                defect, slopes = self._equation(moments, log_strength)
            if not (np.isfinite(defect).all() and np.isfinite(slopes).all()):
                break
            change = np.linalg.solve(slopes[:, :-1], defect)
            moments = moments - change
            if np.linalg.norm(change) <= CONVERGED * max(1.0, float(np.linalg.norm(moments))):
                return self._state(moments, log_strength, np.append(np.zeros(self.band), 1.0))
        raise ValueError(f"no stationary state of noise = {noise:g} is found from these moments")

    def _potential(self, wave: Floats) -> Floats:
        """Φ/κ_1, up to a constant, from w."""
        return np.asarray(np.log1p(self._mean * wave) / self._mean) if self._mean else wave

    def _equation(self, moments: Floats, log_strength: float) -> tuple[Floats, Floats]:
        """Defect a − E_ρ p with ρ ∝ e^{sΦ/κ_1}, s = κ_1/κ, and its derivatives in a and log s: (B,) and (B, B + 1)."""
        strength = math.exp(log_strength)
        wave = self._factors * moments @ self._polynomials
        exponent = strength * self._potential(wave)
        mass = self._weights * np.exp(exponent - exponent.max())
        mass /= mass.sum()
        means = self._polynomials @ mass
        weighted = (self._polynomials - means[:, None]) * mass
        response = self._polynomials / (1.0 + self._mean * wave)
        slopes = np.empty((self.band, self.band + 1))
        slopes[:, :-1] = np.eye(self.band) - strength * self._factors * (weighted @ response.T)
        slopes[:, -1] = -weighted @ exponent
        return moments - means, slopes

    def _state(self, moments: Floats, log_strength: float, along: Floats) -> State:
        """State with the tangent that continues the direction ``along``."""
        _, slopes = self._equation(moments, log_strength)
        tangent = np.linalg.svd(slopes)[2][-1]
        tangent *= math.copysign(1.0, float(tangent @ along))
        noise = self.largest_noise * math.exp(-log_strength)
        return State(noise, moments, float(moments[0]) / math.sqrt(self.dimension), tangent)

    # ------------------------------------------------------------------ branches

    def branch(self, degree: int = 1, sign: int = 1, smallest_noise: float = 0.2, steps: int = 400) -> Branch:
        r"""States that branch off the uniform density at κ_degree, by pseudo-arclength continuation.

        Parameters
        ----------
        degree : int
            l ≥ 1 with κ_l > 0.
        sign : {1, −1}
            Sign of a_l at the start: of two branches one and the same for odd l, and on the circle.
        smallest_noise : float
            The branch is followed down to this fraction of κ_1.
        steps : int
            Most states.

        Raises
        ------
        ValueError
            If the degree does not branch off at a noise > 0.
        """
        threshold = 0.0
        if 1 <= degree <= self.band:
            threshold = float(noise_thresholds(degree, self.beta, self.kernel, self.dimension)[degree])
        if not threshold > 0.0:
            raise ValueError(f"degree: must be one of 1 … {self.band} with a threshold > 0, got {degree}")
        tangent = np.zeros(self.band + 1)
        tangent[degree - 1] = math.copysign(1.0, sign)
        bound = -math.log(min(smallest_noise, threshold / self.largest_noise))
        start = State(threshold, np.zeros(self.band), 0.0, tangent)
        return Branch(self, degree, tuple(self._continued(start, bound, steps)))

    def _continued(self, state: State, bound: float, steps: int) -> Iterator[State]:
        yield state
        arc = FIRST_ARC
        for _ in range(steps):
            found = self.advanced(state, arc)
            while found is None or found.tangent @ state.tangent < STRAIGHT:
                arc /= 2.0
                if arc < SMALLEST_ARC:
                    return
                found = self.advanced(state, arc)
            if not self._resolves(found):
                return
            yield found
            if math.log(self.largest_noise / found.noise) > bound:
                return
            easy = found.tangent @ state.tangent > STRAIGHTER
            arc = min(LARGEST_ARC * max(1.0, float(np.linalg.norm(found.moments))), 1.5 * arc if easy else arc)
            state = found

    def advanced(self, state: State, arc: float) -> State | None:
        """State at the distance ``arc`` along the tangent of another, or None if Newton's method does not reach it."""
        begin = np.append(state.moments, math.log(self.largest_noise / state.noise))
        point = begin + arc * state.tangent
        for _ in range(12):
            with np.errstate(all="ignore"):
                defect, slopes = self._equation(point[:-1], float(point[-1]))
            if not (np.isfinite(defect).all() and np.isfinite(slopes).all()):
                return None
            system = np.vstack([slopes, state.tangent])
            change = np.linalg.solve(system, np.append(defect, state.tangent @ (point - begin) - arc))
            point = point - change
            if np.linalg.norm(change) <= CONVERGED * max(1.0, float(np.linalg.norm(point))):
                return self._state(point[:-1], float(point[-1]), state.tangent)
        return None

    def _resolves(self, state: State) -> bool:
        """Whether the quadrature holds the density."""
        spectrum = self._spectrum(state)
        return bool(spectrum[-2:].sum() <= RESOLVED * spectrum.max())

    def _spectrum(self, state: State) -> Floats:
        """Moduli of the moments of a density, as far as the quadrature knows them."""
        return np.asarray(np.abs(self._analysis @ self.density(state, self._heights)))

    @cached_property
    def _analysis(self) -> Floats:
        return polynomials(self.nodes - 1, self._heights, self.dimension) * self._weights

    # ------------------------------------------------------------------ stability

    def growth_rates(self, state: State, order: int = 0, count: int | None = None) -> NDArray[np.complex128]:
        r"""Growth rates of small perturbations :math:`f(t)\,Y_m(\omega)` of a state, by falling real part.

        They are the eigenvalues of :math:`\delta \mapsto \kappa\Delta\delta - \nabla\cdot(\delta\nabla\Phi +
        \rho\nabla\Phi'[\delta])` on the functions of order m about the axis, m = 0 being axisymmetric ones.

        Parameters
        ----------
        state : State
            What is perturbed.
        order : int
            m ≥ 0, with ω on S^{d−2}; on the circle m = 0 are even functions and m = 1 odd ones.
        count : int, optional
            Size of the basis; by default somewhat more than the density's own degrees.
        """
        if order < 0 or (self.dimension == 2 and order > 1):
            raise ValueError(f"order: must be >= 0, and at most 1 on the circle, got {order}")
        d, m = self.dimension, order
        if count is None:
            spectrum = self._spectrum(state)
            held = int(np.flatnonzero(spectrum > HELD * spectrum.max())[-1])
            count = min(self.nodes // 2, self.band + 3 * held // 2 + 8)
        basis = _basis(self.nodes, count, d, m)
        factors = np.zeros(count + m + 1)
        kept = min(self.band, count + m)
        factors[1 : kept + 1] = self.largest_noise * self._factors[:kept]
        passed = factors[basis.degree.astype(int)][:, None]
        wave = self._factors * state.moments @ polynomials(self.band, basis.heights, d)[1:]
        wave_slope = self._factors * state.moments @ _slopes(self.band, basis.heights, d)[1:]
        partition = 1.0 + self._mean * wave
        # Φ, and the response of Φ to each function: values, and derivatives in t.
        force = self.largest_noise * wave_slope / partition
        response = passed * basis.values / partition
        response_slope = (passed * basis.slopes - self._mean * wave_slope * response) / partition
        # (1 − t²)^{1 − m/2} times the whole derivative, with that of the first factor
        rise = basis.square * basis.slopes - m * basis.heights * basis.values
        response_rise = basis.square * response_slope - m * basis.heights * response
        density = basis.measure * self.density(state, basis.heights) / basis.square
        matrix = rise @ (basis.measure * force * basis.values + density * response_rise).T
        matrix += m * (m + d - 3) * (basis.values @ (density * response).T)
        matrix -= state.noise * np.diag(basis.degree * (basis.degree + d - 2.0))
        rates = np.asarray(eigvals(matrix), dtype=np.complex128)
        return rates[np.argsort(-rates.real)]

    def growth_rate(self, state: State, orders: int = 3) -> float:
        """Largest real part of the growth rates of the orders m < ``orders`` (on the circle: of all)."""
        count = min(orders, 2) if self.dimension == 2 else orders
        return max(float(self.growth_rates(state, order)[0].real) for order in range(count))

    def is_stable(self, state: State, orders: int = 3) -> bool:
        """Whether no perturbation of an order m < ``orders`` grows."""
        return self.growth_rate(state, orders) <= MARGINAL * self.largest_noise * (self.dimension - 1)


@dataclass(frozen=True)
class Branch:
    """Stationary states from the uniform density at κ_degree on, in the order in which they were found."""

    attention: NoisyAttention
    degree: int
    states: tuple[State, ...]

    @cached_property
    def noise(self) -> Floats:
        """κ of each state."""
        return np.array([state.noise for state in self.states])

    @cached_property
    def order_parameter(self) -> Floats:
        """⟨x·e⟩ of each state."""
        return np.array([state.order_parameter for state in self.states])

    @cached_property
    def growth(self) -> Floats:
        """Largest growth rate of perturbations of each state."""
        return np.array([self.attention.growth_rate(state) for state in self.states])

    @property
    def stable(self) -> NDArray[np.bool_]:
        """Whether each state is stable."""
        return self.growth <= MARGINAL * self.attention.largest_noise * (self.attention.dimension - 1)

    def folds(self) -> list[State]:
        """States at which the branch turns around in κ, found to round-off."""
        found = []
        for state, following in zip(self.states[1:], self.states[2:], strict=False):
            if state.tangent[-1] * following.tangent[-1] < 0.0:
                found.append(self._turning_point(state, following))
        return found

    def _turning_point(self, state: State, following: State) -> State:
        whole = float(state.tangent @ _step(state, following))

        def there(arc: float) -> State:
            reached = self.attention.advanced(state, arc)
            if reached is None:
                raise ValueError("the branch is lost at its fold")
            return reached

        arc = brentq(lambda arc: there(arc).tangent[-1], 0.0, whole, xtol=1e-14)
        return there(float(arc))

    def at(self, noise: float) -> list[State]:
        """States of the branch at a noise κ, in the order of the branch; none outside it."""
        found = []
        for state, following in zip(self.states, self.states[1:], strict=False):
            if (state.noise - noise) * (following.noise - noise) < 0.0 or noise == following.noise:
                share = math.log(noise / state.noise) / math.log(following.noise / state.noise)
                guess = state.moments + share * (following.moments - state.moments)
                found.append(self.attention.at(noise, guess))
        return found


def _step(state: State, following: State) -> Floats:
    return np.append(following.moments - state.moments, math.log(state.noise / following.noise))


def stationary_states(beta: float, noise: float, kernel: str = "softmax", dimension: int = 3) -> tuple[State, ...]:
    """Stationary states at a noise κ > 0: the uniform density, and those of the branch of degree 1.

    Raises
    ------
    ValueError
        If they are too sharp for a quadrature of `LARGEST_NODES`.
    """
    return _states_at(beta, noise, kernel, dimension)[1]


def stable_states(beta: float, noise: float, kernel: str = "softmax", dimension: int = 3) -> tuple[State, ...]:
    """Those of `stationary_states` that are stable; arguments and errors are the same."""
    attention, states = _states_at(beta, noise, kernel, dimension)
    return tuple(state for state in states if attention.is_stable(state))


def _states_at(beta: float, noise: float, kernel: str, dimension: int) -> tuple[NoisyAttention, tuple[State, ...]]:
    attention = NoisyAttention(beta, kernel, dimension)
    share = min(0.99 * noise / attention.largest_noise, 1.0)
    while True:
        branch = attention.branch(1, smallest_noise=share)
        if min(branch.noise[-1], attention.largest_noise) <= noise:
            return attention, (attention.uniform(noise), *branch.at(noise))
        if 3 * attention.nodes > LARGEST_NODES:
            raise ValueError(f"noise: stationary states of {noise:g} are too sharp for {attention.nodes} latitudes")
        attention = NoisyAttention(beta, kernel, dimension, 3 * attention.nodes)


# ---- how a branch begins -------------------------------------------------------------------------------------


def transition_curvature(beta: float, kernel: str = "unnormalized", dimension: int = 3) -> float:
    r"""Curvature c of the first branch at its start, :math:`\kappa_1/\kappa = 1 + c\,a_1^2 + \dots`, a_1 = √d ⟨x·e⟩.

    With q = Λ_2/Λ_1 = I_{d/2+1}/I_{d/2} and s = Λ_1/Λ_0,

    .. math:: c = \frac{1}{d + 2}\left(1 - (d - 1)\frac{q}{1 - q}\right) \text{ (unnormalized)}, \qquad
              c = \frac{1 - s}{d + 2}\left(1 + s d - (1 - s)(d - 1)\frac{q}{1 - q}\right) \text{ (softmax)}.

    The transition is continuous where c > 0, and of first order where c < 0: the branch then begins unstable,
    towards larger noise.  Under softmax attention c > 0 for every β.
    """
    noise_thresholds(1, beta, kernel, dimension)  # checks the arguments
    ratios = eigenvalue_ratios(2, beta, dimension)
    mean = float(ratios[1])
    quotient = float(ratios[2] / ratios[1]) if beta else 0.0
    push = (dimension - 1) * quotient / (1.0 - quotient)
    if kernel == "unnormalized":
        return (1.0 - push) / (dimension + 2)
    return (1.0 - mean) * (1.0 + mean * dimension - (1.0 - mean) * push) / (dimension + 2)


def critical_beta(dimension: int = 3) -> float:
    r"""β* up to which unnormalized attention with noise has a continuous transition: I_{d/2+1}/I_{d/2}(β*) = 1/d.

    2.446918 on the circle, 1.816155 on S².
    """
    return float(brentq(lambda beta: transition_curvature(beta, "unnormalized", dimension), 1e-3, 4.0, xtol=1e-13))


# ---- bases ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Basis:
    r"""Functions :math:`(1 - t^2)^{m/2} q_j(t)\,Y_m(\omega)` on S^{d−1}, orthonormal up to one factor, j = first, ….

    The q_j are the zonal polynomials of dimension d + 2m.  Functions are (number, n); their first factor is left out.
    """

    degree: Floats
    heights: Floats
    square: Floats
    measure: Floats
    """Weights in the sense of which the q_j are orthonormal."""
    values: Floats
    slopes: Floats


@lru_cache(maxsize=16)
def _basis(nodes: int, count: int, dimension: int, order: int) -> _Basis:
    own = dimension + 2 * order
    # Products of slopes hold a factor 1/(1 − t²) more than products of values: the quadrature has room for it.
    heights, weights = gauss_gegenbauer(nodes, max(own - 2, dimension))
    square = (1.0 - heights) * (1.0 + heights)
    measure = weights * square * ((own - 2) / (own - 3)) if order else weights
    first = 0 if order else 1  # the constant carries mass, which is not perturbed
    values, slopes = polynomials(count, heights, own)[first:], _slopes(count, heights, own)[first:]
    return _Basis(np.arange(float(first), count + 1) + order, heights, square, measure, values, slopes)


def _slopes(lmax: int, heights: Floats, dimension: int) -> Floats:
    """Derivatives of the zonal polynomials, which are zonal polynomials of dimension d + 2: (lmax + 1, n)."""
    degree = np.arange(1.0, lmax + 1.0)
    scale = np.sqrt(degree * (degree + dimension - 2.0) * dimension / (dimension - 1.0))
    slopes = np.zeros((lmax + 1, heights.size))
    slopes[1:] = scale[:, None] * polynomials(lmax - 1, heights, dimension + 2)
    return slopes
