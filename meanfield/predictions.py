r"""What theory says of one case: numbers for a table, and curves to be drawn over a run.

The first clusters come out of the noise of N tokens, or of what else the initial law is not uniform in.  With the
amplitude of a degree

.. math:: A_l = \Big(\tfrac{1}{N_l} \sum_m |a_{lm}|^2\Big)^{1/2}, \qquad A_l \le 1,

a_lm the coefficients with respect to harmonics that are orthonormal under the uniform law and N_l their number, N
independent uniform tokens have A_l = N^{−1/2} in the mean square at every degree, and tokens at one point have A_l = 1.
Linear theory multiplies A_l by the growth factor of its degree; the first degree that it carries to 1 makes the
clusters, and the time at which it does is their predicted time.  On the circle they are as many as the degree, at the
maxima of its wave.

Source: Bruno, Pasqualotto, Agazzi, Emergence of meta-stable clustering in mean-field transformer models (2024), arXiv
2410.23228, for number and places on the circle; the rest is derived.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from .initial import POLES, Equiangular, Law, ParticleCloud, PoissonKernel, Uniform, VonMisesFisherMixture
from .kernels import log_mean_kernel, multiplicities
from .normalization import ResidualScheme, Scheme
from .space import Floats
from .stationary import critical_beta, stable_states, transition_curvature
from .theory import (
    dominant_degree,
    equiangular_curve,
    equiangular_speed,
    equiangular_times,
    growth_exponents,
    noise_thresholds,
    poisson_mean,
    poisson_radius,
    shifted_fold_time,
    uniform_flow,
    uniform_radial,
)
from .zonal import gauss_gegenbauer

EARLIEST, LATEST = 1e-2, 1e6
"""Times between which a first estimate is sought; later clusters are not predicted."""
LEVELS = (0.5, 0.9, 0.99)
"""Cosines of equiangular tokens whose times are told."""
FOLD_NODES = 600


@dataclass(frozen=True)
class Model:
    """What a case says of the dynamics: scheme, β, kernel, noise κ, ambient dimension d, and radius r(0)."""

    scheme: Scheme
    beta: float
    kernel: str = "softmax"
    noise: float = 0.0
    dimension: int = 3
    initial_radius: float = 1.0

    @property
    def _attention(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "dimension": self.dimension}


@dataclass(frozen=True)
class Prediction:
    """One row of the table: a name, a number (or a few), and what they mean."""

    name: str
    value: float | tuple[float, ...]
    meaning: str


# ---- clusters out of small perturbations ---------------------------------------------------------------------


def amplitudes(power: ArrayLike, dimension: int = 3) -> Floats:
    """Amplitude A_l of each degree, from the power Σ_m |ρ_lm|² of degrees 0 … lmax in any normalization: (lmax+1,)."""
    power = np.asarray(power, dtype=np.float64)
    return np.asarray(np.sqrt(power / power[0] / multiplicities(len(power) - 1, dimension)))


def token_amplitudes(tokens: int, lmax: int) -> Floats:
    """Amplitude N^{−1/2} of each degree of N independent uniform tokens, 1 for l = 0: (lmax+1,)."""
    if tokens < 1:
        raise ValueError(f"tokens: must be at least 1, got {tokens}")
    return np.append(1.0, np.full(lmax, tokens**-0.5))


def clustering(model: Model, initial: Floats) -> tuple[int, float] | None:
    """Degree that linear theory is the first to carry to the amplitude 1, and when; None if none before t = 1e6.

    Parameters
    ----------
    model : Model
        The dynamics.
    initial : ndarray, shape (lmax + 1,)
        Amplitudes at t = 0, as from `amplitudes` or `token_amplitudes`.
    """
    lmax = len(initial) - 1
    with np.errstate(divide="ignore"):
        levels = np.log(initial[1:])

    def ahead(t: float) -> tuple[float, int]:
        exponents = (
            levels
            + growth_exponents(
                model.scheme, lmax, t, model.beta, model.initial_radius, noise=model.noise, **model._attention
            )[1:]
        )
        first = int(np.argmax(exponents))
        return float(exponents[first]), first + 1

    early, late = 0.0, EARLIEST
    try:
        while ahead(late)[0] < 0.0:
            early, late = late, 4.0 * late
            if late > LATEST:
                return None
    except ValueError:  # the radius or the field vanishes before
        return None
    if ahead(early)[0] >= 0.0:
        return ahead(0.0)[1], 0.0
    time = float(brentq(lambda t: ahead(t)[0], early, late, rtol=1e-11))
    return ahead(time)[1], time


def cluster_angles(coefficient: complex, degree: int) -> Floats:
    r"""Angles of the k predicted clusters on the circle, :math:`(2\pi j - \arg\hat\mu_k)/k` in [0, 2π), sorted: (k,).

    Parameters
    ----------
    coefficient : complex
        :math:`\hat\mu_k = \int e^{-ik\theta}\mu(d\theta)` of the initial law, up to a positive factor: a coefficient of
        the circle's spectrum.
    degree : int
        k ≥ 1, the degree that makes the clusters.
    """
    if degree < 1 or coefficient == 0.0:
        raise ValueError(f"needs a degree >= 1 and a coefficient other than 0, got {degree} and {coefficient}")
    angles = (2.0 * math.pi * np.arange(degree) - np.angle(coefficient)) / degree
    return np.sort(np.mod(angles, 2.0 * math.pi))


# ---- the fold ------------------------------------------------------------------------------------------------


def fold_time(model: Model, density: Callable[[Floats], Floats]) -> float | None:
    r"""Time at which the radius field folds, where it is known in closed form or by one integral, else None.

    The law must be symmetric about an axis e and rise towards it, and its antipodal token be pulled towards e, not held
    by its neighbours as at large β: it then runs straight through the origin.  Under Peri-LN it moves at speed 1:
    t* = r₀.  At β = 0 attention is the same at all tokens, and residual streams are shifted as a whole,
    x = r₀θ₀ + c(t)e, until c = r₀ (`meanfield.theory.shifted_fold_time`).

    Parameters
    ----------
    model : Model
        The dynamics; without noise.
    density : callable
        Density with respect to the uniform probability measure at heights x·e, (n,) → (n,).
    """
    if not isinstance(model.scheme, ResidualScheme) or model.noise > 0.0 or model.beta < 0.0:
        return None
    heights, weights = gauss_gegenbauer(FOLD_NODES, model.dimension)
    masses = weights * density(heights)
    pull = np.exp(-model.beta * (1.0 + heights)) * masses
    if not float(pull @ heights) > 0.0:  # of the antipodal token, towards e
        return None
    if model.scheme.name == "peri-ln":
        return model.initial_radius
    return shifted_fold_time(model.scheme, model.initial_radius, heights, masses) if model.beta == 0.0 else None


def axis_density(law: Law | None, dimension: int) -> Callable[[Floats], Floats] | None:
    """Density of a law that rises towards one axis, as a function of the height over its equator; else None."""
    concentrated = isinstance(law, VonMisesFisherMixture) and len(law.means) == 1 and law.concentrations[0] > 0.0
    if isinstance(law, VonMisesFisherMixture) and concentrated:
        axis: Any = law.means[0]
    elif isinstance(law, PoissonKernel) and law.radius > 0.0:
        axis = law.axis
    else:
        return None
    vector = np.array([*np.zeros(dimension - 1), POLES[axis]]) if isinstance(axis, str) else np.array(axis)
    vector /= np.linalg.norm(vector)
    across = np.eye(dimension)[int(np.argmin(np.abs(vector)))]
    across -= (across @ vector) * vector
    across /= np.linalg.norm(across)

    def density(heights: Floats) -> Floats:
        return law.relative_density(np.outer(heights, vector) + np.outer(np.sqrt(1.0 - heights**2), across))

    return density


# ---- energy --------------------------------------------------------------------------------------------------


def energy_bounds(beta: float, dimension: int = 3) -> tuple[float, float]:
    r"""Least and largest energy :math:`\frac{1}{2\beta}\iint e^{\beta x\cdot y - |\beta|}\rho\rho` of all laws.

    β ≥ 0: that of the uniform law, and 1/(2β) of tokens at one point; β = 0: 0 and ½.  β < 0: −(1 + e^{2β})/(4|β|)
    of two opposite points, and −e^{2β}/(2|β|) of one point.
    """
    if beta == 0.0:
        return 0.0, 0.5
    if beta > 0.0:
        return math.exp(log_mean_kernel(beta, dimension)) / (2.0 * beta), 0.5 / beta
    return (1.0 + math.exp(2.0 * beta)) / (4.0 * beta), math.exp(2.0 * beta) / (2.0 * beta)


# ---- all that is known of a case -----------------------------------------------------------------------------


def predictions(
    model: Model,
    law: Law | None = None,
    tokens: int | None = None,
    power: ArrayLike | None = None,
    circle_lm: NDArray[np.complex128] | None = None,
    final: float | None = None,
) -> list[Prediction]:
    """Numbers that are known of a case before it is run, those that apply.

    Parameters
    ----------
    model : Model
        The dynamics.
    law : Law, optional
        Initial law.
    tokens : int, optional
        N ≥ 1, the number of tokens that are drawn from the uniform law, or stand at equal angles.
    power : array_like, shape (lmax + 1,), optional
        Power of each degree of the initial density (``degree_power`` of a run), in any normalization.
    circle_lm : ndarray, optional
        Spectrum of the initial density on the circle, degrees 0 … lmax, for the places of its clusters.
    final : float, optional
        Last time.
    """
    found = _linear(model)
    found += _clusters(model, law, tokens, power, circle_lm)
    if isinstance(law, Equiangular) and tokens is not None and tokens > 1:
        found += _equiangular(model, tokens, law.cosine)
    density = axis_density(law, model.dimension)
    fold = None if density is None else fold_time(model, density)
    if fold is not None:
        found.append(Prediction("fold_time", fold, "when a token runs through the origin"))
    if final is not None and isinstance(law, PoissonKernel) and (mean := _poisson(model, law, [final])) is not None:
        found.append(Prediction("final_order_parameter", float(mean[0]), f"length of the mean token at t = {final:g}"))
    found += _noise(model)
    if model.noise == 0.0:
        lowest, highest = energy_bounds(model.beta, model.dimension)
        found.append(Prediction("energy_bounds", (lowest, highest), "least and largest energy of all laws"))
    return found


def curves(
    model: Model,
    times: ArrayLike,
    law: Law | None = None,
    tokens: int | None = None,
    power: ArrayLike | None = None,
) -> dict[str, tuple[Floats, Floats]]:
    """Predicted curves over a run, by the names of what they predict in its file: (times, values) of each.

    ``degree_power``, (times, lmax + 1), by linear theory from ``power``, up to where it leaves its range (NaN after);
    ``order_parameter`` of equiangular tokens, of the Poisson kernel at β = 0, or of the stable stationary states with
    noise, which do not depend on time; ``energy`` between its bounds, (times, 2); ``radius`` of a uniform law.
    Arguments are those of `predictions`.
    """
    times = np.asarray(times, dtype=np.float64)
    found: dict[str, tuple[Floats, Floats]] = {}
    if power is not None and (growth := _growth(model, len(np.atleast_1d(power)) - 1, times)) is not None:
        amplitude = amplitudes(power, model.dimension) * np.exp(np.minimum(growth, 300.0))
        grown = np.asarray(power) * np.exp(2.0 * np.minimum(growth, 300.0))
        beyond = amplitude[:, 1:].max(axis=1) > 1.0
        found["degree_power"] = (times, np.where(beyond[:, None], np.nan, grown))
    order: Floats | None = None
    if isinstance(law, Equiangular) and tokens is not None and tokens > 1 and model.noise == 0.0:
        cosine, _ = equiangular_curve(
            model.scheme, tokens, law.cosine, model.beta, model.initial_radius, times, model.kernel
        )
        order = np.sqrt(np.clip((1.0 + (tokens - 1) * cosine) / tokens, 0.0, None))
    elif isinstance(law, PoissonKernel):
        order = _poisson(model, law, times)
    elif model.noise > 0.0:
        stable = _stable_order_parameters(model)
        order = np.broadcast_to(stable, (times.size, len(stable))) if stable else None
    if order is not None:
        found["order_parameter"] = (times, order)
    if model.noise == 0.0:
        bounds = np.array(energy_bounds(model.beta, model.dimension))
        found["energy"] = (times, np.broadcast_to(bounds, (times.size, 2)))
    if model.scheme.reads_radius and isinstance(law, Uniform | ParticleCloud):
        with suppress(ValueError):  # it vanishes before the last time
            found["radius"] = (times, _flow(model, times)[1])
    return found


def _linear(model: Model) -> list[Prediction]:
    degree, rate = dominant_degree(model.beta, noise=model.noise, **model._attention)
    radial = uniform_radial(model.beta, model.dimension, model.kernel)
    return [
        Prediction("dominant_degree", degree, "degree that grows fastest about the uniform law"),
        Prediction("dominant_rate", rate, "its growth rate for tokens of unit speed"),
        Prediction("uniform_radial", radial, "radial attention of the uniform law"),
    ]


def _clusters(
    model: Model,
    law: Law | None,
    tokens: int | None,
    power: ArrayLike | None,
    circle_lm: NDArray[np.complex128] | None,
) -> list[Prediction]:
    lmax = 4 + 2 * dominant_degree(model.beta, noise=model.noise, **model._attention)[0]
    if circle_lm is not None:
        power = np.abs(circle_lm) ** 2 * np.where(np.arange(len(circle_lm)) == 0, 1.0, 2.0)
    if power is not None:
        initial = amplitudes(power, model.dimension)
    elif tokens is not None and (law is None or isinstance(law, Uniform | ParticleCloud)):
        initial = token_amplitudes(tokens, lmax)
    else:
        return []
    first = clustering(model, initial)
    if first is None:
        return []
    degree, time = first
    found = [
        Prediction("cluster_degree", degree, "degree that makes the first clusters, on the circle their number"),
        Prediction("clustering_time", time, "when linear theory carries its amplitude to 1"),
    ]
    if circle_lm is not None and time > 0.0:
        angles = cluster_angles(complex(circle_lm[degree]), degree)
        found.append(Prediction("cluster_angles", tuple(map(float, angles)), "where on the circle, in radians"))
    return found


def _equiangular(model: Model, tokens: int, cosine: float) -> list[Prediction]:
    arguments = model.scheme, tokens, cosine, model.beta, model.initial_radius
    speed = equiangular_speed(*arguments, kernel=model.kernel)
    found = [Prediction("equiangular_speed", speed, "rate at which the pairwise cosine begins to rise")]
    levels = [level for level in LEVELS if level > cosine]
    if cosine > -1.0 / (tokens - 1) and levels:
        times = equiangular_times(*arguments, levels, model.kernel)
        for level, time in zip(levels, times, strict=True):
            found.append(Prediction(f"equiangular_time_{level:g}", float(time), f"when the cosine is {level:g}"))
    return found


def _noise(model: Model) -> list[Prediction]:
    threshold = float(noise_thresholds(1, model.beta, model.kernel, model.dimension)[1])
    found = [Prediction("noise_threshold", threshold, "noise above which the uniform law is stable, at unit speed")]
    if model.kernel == "unnormalized" and model.beta > 0.0:
        critical = critical_beta(model.dimension)
        found.append(Prediction("critical_beta", critical, "β above which the transition at the threshold jumps"))
    curvature = transition_curvature(model.beta, model.kernel, model.dimension)
    found.append(Prediction("transition_curvature", curvature, "> 0: a continuous transition; < 0: of first order"))
    if model.noise > 0.0 and (stable := _stable_order_parameters(model)):
        found.append(Prediction("stationary_order_parameter", tuple(stable), "of the stable stationary states"))
    return found


def _stable_order_parameters(model: Model) -> list[float]:
    """Order parameters of the stable states that are known, of tokens of unit speed."""
    if model.scheme.name == "post-ln":
        with suppress(ValueError):  # they are too sharp
            states = stable_states(model.beta, model.noise, model.kernel, model.dimension)
            return [abs(state.order_parameter) for state in states]
    return []


def _poisson(model: Model, law: PoissonKernel, times: ArrayLike) -> Floats | None:
    """Mean token of the Poisson kernel, where it keeps its form."""
    if model.beta != 0.0 or model.noise > 0.0 or law.radius == 0.0:
        return None
    try:
        return poisson_mean(poisson_radius(times, law.radius, model.scheme, model.dimension), model.dimension)
    except ValueError:  # the scheme does not keep it
        return None


def _flow(model: Model, times: ArrayLike) -> tuple[Floats, Floats]:
    return uniform_flow(model.scheme, times, model.beta, model.initial_radius, **model._attention)


def _growth(model: Model, lmax: int, times: Floats) -> Floats | None:
    try:
        return growth_exponents(
            model.scheme, lmax, times, model.beta, model.initial_radius, noise=model.noise, **model._attention
        )
    except ValueError:  # radius or field vanishes before the last time
        return None
