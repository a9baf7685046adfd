"""What is known exactly: growth about the uniform law, equiangular tokens, two clusters, Poisson kernels.

Every scheme has the same direction field, so each result is one function of a clock ∫dt/s. The clock is
integrated from the scheme's own speed and growth: a scheme defined elsewhere needs no formula here.

Common arguments: ``scheme``, a `Scheme`; ``beta``, the inverse temperature β of either sign; ``kernel``,
"softmax" or "unnormalized" (then |β| <= 700, since e^{|β|} must be a float); ``noise``, the diffusivity
κ >= 0 on the sphere; ``dimension``, the ambient dimension d >= 2; ``initial_radius``, r(0) > 0; ``times``,
t >= 0 of any shape. Each is checked before any work; ValueError names what was given and what is allowed.

Source: Karagodin, Ge, Polyanskiy, Rigollet, "Normalization in Attention Dynamics" (2025), arXiv 2510.22026,
for the model and the equiangular tokens; everything else is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import ArrayLike
from scipy.special import expit, hyp0f1, hyp2f1, logit

from .kernels import LARGEST_UNNORMALIZED_BETA, eigenvalue_ratios
from .normalization import PostLN, ResidualScheme, Scheme
from .space import Floats

Rate = Callable[[float, Floats], Sequence[float]]

# ---- linear theory about the uniform law -------------------------------------------------------------------


def growth_rates(lmax: int, beta: float, kernel: str = "softmax", noise: float = 0.0, dimension: int = 3) -> Floats:
    """Growth rate ω_l of each degree l <= lmax about the uniform law, for tokens of unit speed: (lmax+1,).

    ω_l = l(l+d−2) (Λ_l/(βΛ_0) − κ) for softmax attention; unnormalized attention has Λ_l of the uniform
    probability measure in place of Λ_l/Λ_0. It follows from ∂ρ/∂t + ∇·(ρ ∇Z/(βZ)) = κΔρ, linearized. Even
    degrees decay if β < 0; only degree 1 grows at β = 0.
    """
    _require(0.0 <= noise < np.inf, f"noise must be finite and >= 0, got {noise}")
    return _laplacian(lmax, dimension) * (noise_thresholds(lmax, beta, kernel, dimension) - noise)


def noise_thresholds(lmax: int, beta: float, kernel: str = "softmax", dimension: int = 3) -> Floats:
    """Noise κ_l at which degree l neither grows nor decays about the uniform law: (lmax+1,), κ_0 = 0.

    κ_l = Λ_l/(βΛ_0) (softmax) or Λ_l/β (unnormalized) for tokens of unit speed, κ_l/s for others. Degree 1 is
    the last to become stable, whatever β: the uniform law is stable where κ > κ_1.
    """
    scale = _mean_kernel(beta, kernel, dimension)
    thresholds = eigenvalue_ratios(lmax, beta, dimension)
    thresholds[0] = 0.0  # no gradient sees it
    if beta == 0.0:
        thresholds[1:2] = 1.0 / dimension
    else:
        thresholds /= beta
    return scale * thresholds


def dominant_degree(beta: float, kernel: str = "softmax", noise: float = 0.0, dimension: int = 3) -> tuple[int, float]:
    """Degree l* >= 1 that grows fastest about the uniform law, and its rate ω_l* at unit speed.

    Every scheme has the same l*, since all degrees share one clock.
    """
    _check_kernel(beta, kernel)
    # ω_l behaves as x e^{−x/2|β|} with x = l(l+d−2), which is largest at x = 2|β|: twice that l is far enough.
    rates = growth_rates(4 + int(3.0 * abs(beta) ** 0.5), beta, kernel, noise, dimension)
    degree = 1 + int(np.argmax(rates[1:]))
    return degree, float(rates[degree])


def uniform_radial(beta: float, dimension: int = 3, kernel: str = "softmax") -> float:
    """Radial attention a of the uniform law, A(θ) = aθ, of the sign of β.

    a = Λ_1/Λ_0 = I_{d/2}(β)/I_{d/2−1}(β) (softmax), or Λ_1 of the uniform probability measure (unnormalized).
    """
    return float(_mean_kernel(beta, kernel, dimension) * eigenvalue_ratios(1, beta, dimension)[1])


def uniform_flow(
    scheme: Scheme,
    times: ArrayLike,
    beta: float,
    initial_radius: float = 1.0,
    kernel: str = "softmax",
    dimension: int = 3,
) -> tuple[Floats, Floats]:
    """Clock ∫₀ᵗ dt/s₀ and radius r₀ at `times` of tokens spread uniformly on the sphere.

    s₀ and r₀' are those of the scheme at (t, r₀, a, |a|) with a from `uniform_radial`; accurate to about
    1e-13.

    Raises
    ------
    ValueError
        If the scheme is singular before the last time: Peri-LN and nGPT divide by ‖A‖ = 0 at β = 0, and the
        radius of residual-stream schemes reaches zero if β < 0.
    """
    _require(0.0 < initial_radius < np.inf, f"initial_radius must be finite and > 0, got {initial_radius}")
    radial = uniform_radial(beta, dimension, kernel)

    def rate(time: float, state: Floats) -> tuple[float, float]:
        return _speed_and_growth(scheme, time, state[1], radial, abs(radial))

    states = _solve(rate, [0.0, np.log(initial_radius)], _checked(times), scheme.breakpoints)
    return states[..., 0], np.exp(states[..., 1])


def growth_factor(
    scheme: Scheme,
    lmax: int,
    time: ArrayLike,
    beta: float,
    initial_radius: float = 1.0,
    kernel: str = "softmax",
    noise: float = 0.0,
    dimension: int = 3,
) -> Floats:
    """Factor by which a small perturbation of each degree has grown by `time`: time.shape + (lmax+1,).

    The exponential of `growth_exponents`, ∞ where that overflows.
    """
    exponents = growth_exponents(scheme, lmax, time, beta, initial_radius, kernel, noise, dimension)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(exponents))


def growth_exponents(
    scheme: Scheme,
    lmax: int,
    time: ArrayLike,
    beta: float,
    initial_radius: float = 1.0,
    kernel: str = "softmax",
    noise: float = 0.0,
    dimension: int = 3,
) -> Floats:
    """Logarithm of the growth of a small perturbation of each degree by `time`: time.shape + (lmax+1,).

    ω_l ∫₀ᵗ dt/s₀ − κ l(l+d−2) t with ω_l free of noise and the clock of `uniform_flow`.
    """
    _require(0.0 <= noise < np.inf, f"noise must be finite and >= 0, got {noise}")
    rates = growth_rates(lmax, beta, kernel, dimension=dimension)
    clock, _ = uniform_flow(scheme, time, beta, initial_radius, kernel, dimension)
    diffusion = noise * np.multiply.outer(_checked(time), _laplacian(lmax, dimension))
    return np.asarray(np.multiply.outer(clock, rates) - diffusion)


def _laplacian(lmax: int, dimension: int) -> Floats:
    """Eigenvalues l(l+d−2) of −Δ on the sphere."""
    degree = np.arange(lmax + 1.0)
    return degree * (degree + dimension - 2)


def _mean_kernel(beta: float, kernel: str, dimension: int) -> float:
    """Factor from softmax to this attention at the uniform law: 1, or the mean of e^{βx·y} if unnormalized."""
    _check_kernel(beta, kernel)
    return 1.0 if kernel == "softmax" else float(hyp0f1(0.5 * dimension, 0.25 * beta**2))


# ---- equiangular tokens ------------------------------------------------------------------------------------


def equiangular_curve(
    scheme: Scheme,
    tokens: int,
    cosine: float,
    beta: float,
    initial_radius: float,
    times: ArrayLike,
    kernel: str = "softmax",
) -> tuple[Floats, Floats]:
    """Pairwise cosine γ(t) and radius r(t) of n = `tokens` tokens whose cosines all start at `cosine`.

    γ' = (2/s) e^{βγ}(1−γ)(1+(n−1)γ)/Z, Z = e^β + (n−1)e^{βγ} (softmax) or n (unnormalized). Integrated as
    (logit p)' = (2n/s) e^{βγ}/Z with p = (1+(n−1)γ)/n, the squared length of the mean token: no stiffness as
    γ → 1. γ(0) lies in [−1/(n−1), 1], and both ends are equilibria.
    """
    rate, state = _equiangular(scheme, tokens, cosine, beta, initial_radius, kernel)
    states = _solve(rate, state, _checked(times), scheme.breakpoints)
    gap = tokens / (tokens - 1) * expit(-_log_odds(cosine, tokens) - states[..., 0])
    return 1.0 - gap, np.exp(states[..., 1])


def equiangular_times(
    scheme: Scheme,
    tokens: int,
    cosine: float,
    beta: float,
    initial_radius: float,
    levels: ArrayLike,
    kernel: str = "softmax",
) -> Floats:
    """Time at which the pairwise cosine of equiangular tokens reaches each of `levels`, in [γ(0), 1).

    The inverse of `equiangular_curve`, from dt/d(logit p): no root is searched. γ(0) must exceed −1/(n−1).
    """
    rate, state = _equiangular(scheme, tokens, cosine, beta, initial_radius, kernel)
    levels = np.asarray(levels, dtype=np.float64)
    allowed = cosine > -1.0 / (tokens - 1) and bool(np.all((levels >= cosine) & (levels < 1.0)))
    _require(allowed, f"levels must lie in [cosine, 1), cosine > -1/(tokens-1); got {levels}, {cosine}")
    ascent = _log_odds(levels, tokens) - _log_odds(cosine, tokens)

    def inverse_rate(log_odds: float, state: Floats) -> tuple[float, float]:
        climb, growth = rate(state[0], np.array([log_odds, state[1]]))
        return 1.0 / climb, growth / climb

    # A breakpoint is a time, not a level: the pieces between two of them are solved one by one.
    starts = np.array([0.0, *(b for b in scheme.breakpoints if b > 0.0)])
    states = _solve(rate, state, starts, scheme.breakpoints)
    piece = np.searchsorted(states[:, 0], ascent, side="right") - 1
    times = np.empty_like(ascent)
    for k in np.unique(piece):
        here = piece == k
        times[here] = _solve(inverse_rate, [starts[k], states[k, 1]], ascent[here], start=states[k, 0])[:, 0]
    return times


def equiangular_speed(
    scheme: Scheme,
    tokens: int,
    cosine: float,
    beta: float,
    initial_radius: float = 1.0,
    kernel: str = "softmax",
) -> float:
    """Speed γ'(0) at the start of equiangular tokens, by the formula of `equiangular_curve`.

    From orthogonal tokens: 2/(e^β+n−1) for Post-LN, 2α(0)/√(e^{2β}+n−1) for nGPT.
    """
    rate, state = _equiangular(scheme, tokens, cosine, beta, initial_radius, kernel)
    climb, _ = rate(0.0, state)
    return float(climb * (1.0 - cosine) * (1.0 + (tokens - 1) * cosine) / tokens)


def _equiangular(
    scheme: Scheme, tokens: int, cosine: float, beta: float, initial_radius: float, kernel: str
) -> tuple[Rate, Floats]:
    """Rate and start of (logit p − its start, log r), by which an equilibrium, logit p = ±∞, stays one."""
    _require(tokens >= 2, f"tokens must be at least 2, got {tokens}")
    others = tokens - 1
    _require(-1.0 / others <= cosine <= 1.0, f"cosine must lie in [-1/(tokens-1), 1], got {cosine}")
    _require(0.0 < initial_radius < np.inf, f"initial_radius must be finite and > 0, got {initial_radius}")
    _check_kernel(beta, kernel)
    log_odds = _log_odds(cosine, tokens)

    def rate(time: float, state: Floats) -> tuple[float, float]:
        # A = δθ + (1−δ) mean token, without cancellation: δ = (1−e^{−β(1−γ)})/(1+(n−1)e^{−β(1−γ)}).
        squared = expit(log_odds + state[0])
        lift = beta * tokens / others * expit(-log_odds - state[0])  # β(1−γ)
        decay = np.expm1(-abs(lift))
        own = -decay / (tokens + others * decay) if lift >= 0.0 else decay / (tokens + decay)
        scale = 1.0 if kernel == "softmax" else (np.exp(beta) + others * np.exp(beta - lift)) / tokens
        radial = own + (1.0 - own) * squared
        norm = np.sqrt(own**2 + (1.0 - own**2) * squared)
        speed, growth = _speed_and_growth(scheme, time, state[1], scale * radial, scale * norm)
        return 2.0 * (1.0 - own) * scale * speed, growth

    return rate, np.array([0.0, np.log(initial_radius)])


def _log_odds(cosine: ArrayLike, tokens: int) -> Floats:
    """log(p/(1−p)) of the squared length p = (1+(n−1)γ)/n of the mean token."""
    return np.asarray(logit((1.0 + (tokens - 1) * np.asarray(cosine, dtype=np.float64)) / tokens))


# ---- two point clusters ------------------------------------------------------------------------------------


def two_cluster_angle(
    times: ArrayLike,
    angle: float,
    masses: tuple[float, float],
    beta: float,
    scheme: Scheme | None = None,
    initial_radius: float = 1.0,
) -> Floats:
    """Angle φ(t) in [0, π] between two clusters of relative masses p, q > 0 under softmax attention.

    φ' = −[q e^{β cos φ}/(s_p (p e^β + q e^{β cos φ})) + p e^{β cos φ}/(s_q (q e^β + p e^{β cos φ}))] sin φ,
    where each cluster has its own radius; Post-LN (s = 1) if no scheme is given. Integrated as log tan(φ/2),
    which keeps the relative accuracy of φ → 0.
    """
    scheme = PostLN() if scheme is None else scheme
    _require(0.0 <= angle <= np.pi, f"angle must lie in [0, pi], got {angle}")
    _require(min(masses) > 0.0 and sum(masses) < np.inf, f"masses must be finite and > 0, got {masses}")
    _require(0.0 < initial_radius < np.inf, f"initial_radius must be finite and > 0, got {initial_radius}")
    _check_kernel(beta, "softmax")
    log_ratio = np.log(masses[1] / masses[0])
    tangent = np.tan(angle / 2.0)

    def rate(time: float, state: Floats) -> tuple[float, float, float]:
        gap = 2.0 * np.sin(np.arctan(tangent * np.exp(state[0]))) ** 2  # 1 − cos φ
        speeds, growths = [], []
        for log_odds, log_radius in zip((log_ratio, -log_ratio), state[1:], strict=True):
            share = expit(log_odds - beta * gap)  # softmax weight of the other cluster
            radial, norm = 1.0 - share * gap, np.sqrt(1.0 - 2.0 * share * (1.0 - share) * gap)
            speed, growth = _speed_and_growth(scheme, time, log_radius, radial, norm)
            speeds.append(share * speed)
            growths.append(growth)
        return -sum(speeds), growths[0], growths[1]

    start = [0.0, np.log(initial_radius), np.log(initial_radius)]
    states = _solve(rate, start, _checked(times), scheme.breakpoints)
    return np.asarray(2.0 * np.arctan(tangent * np.exp(states[..., 0])))


# ---- the Poisson kernel at β = 0 ---------------------------------------------------------------------------


def poisson_radius(times: ArrayLike, radius: float, scheme: Scheme | None = None, dimension: int = 3) -> Floats:
    """Parameter R(t) of the Poisson kernel ((1−R²)/|x−Re|²)^{d−1}, which β = 0 keeps; 0 < R(0) < 1.

    (2 artanh R)' = M_d(R)/s, since A is the mean token M_d(R) e everywhere and moves tokens by Möbius maps of
    the sphere; nGPT has R = tanh(½∫α + artanh R(0)) in any dimension. Post-LN if no scheme is given.

    Raises
    ------
    ValueError
        If the speed depends on r or ⟨θ, A⟩: the kernel then does not keep its form.
    """
    scheme = PostLN() if scheme is None else scheme
    _require(0.0 < radius < 1.0, f"radius must lie in (0, 1), got {radius}")
    start = np.arctanh(radius)

    def rate(time: float, state: Floats) -> tuple[float]:
        mean = poisson_mean(np.tanh(start + 0.5 * state[0]), dimension)
        unread = np.float64(np.nan)  # makes the speed NaN if it depends on what is not uniform
        return (float(mean * scheme.speed(time, unread, unread, mean)),)

    uniform = not (scheme.reads_radius or np.isnan(rate(0.0, np.zeros(1))[0]))
    _require(uniform, f"{scheme.name} does not keep the Poisson kernel: its speed depends on the token")
    return np.asarray(np.tanh(start + 0.5 * _solve(rate, [0.0], _checked(times), scheme.breakpoints)[..., 0]))


def poisson_mean(radius: ArrayLike, dimension: int = 3) -> Floats:
    """Length M_d(R) of the mean token of the Poisson kernel ((1−R²)/|x−Re|²)^{d−1}, 0 <= R <= 1.

    M_d = (2(d−1)/d) R ₂F₁(1, 1−d/2; 1+d/2; R²); M_2 = R.
    """
    radius = np.asarray(radius, dtype=np.float64)
    _require(dimension >= 2, f"dimension must be at least 2, got {dimension}")
    _require(bool(np.all((radius >= 0.0) & (radius <= 1.0))), f"radius must lie in [0, 1], got {radius}")
    half = 0.5 * dimension
    return np.asarray((dimension - 1) / half * radius * hyp2f1(1.0, 1.0 - half, 1.0 + half, radius**2))


# ---- residual streams at β = 0 -----------------------------------------------------------------------------


def shifted_fold_time(scheme: ResidualScheme, initial_radius: float, heights: Floats, masses: Floats) -> float:
    """Time at which a token runs through the origin at β = 0, where residual streams are shifted as a whole.

    From x = r₀θ₀ + c(t)e with c' = gain(t, M) M, M(c) = ⟨(r₀t + c)/√(r₀² + 2r₀ct + c²)⟩ over the initial heights
    t = θ₀·e, of an axisymmetric law whose mean token points to e: the antipodal token has c = r₀ at t* = ∫₀^{r₀} dt/dc.
    Peri-LN: t* = r₀.

    Parameters
    ----------
    scheme : ResidualScheme
        A scheme without breakpoints.
    initial_radius : float
        r₀ > 0.
    heights, masses : ndarray, shape (n,)
        Quadrature of the initial law; masses sum to 1.
    """
    _require(0.0 < initial_radius < np.inf, f"initial_radius must be finite and > 0, got {initial_radius}")

    def rate(shift: float, state: Floats) -> tuple[float]:
        length = np.sqrt(initial_radius**2 + 2.0 * initial_radius * shift * heights + shift**2)
        mean = masses @ ((initial_radius * heights + shift) / length)
        return (float(1.0 / (scheme.gain(float(state[0]), mean) * mean)),)

    return float(_solve(rate, [0.0], np.array(initial_radius))[0])


# ---- the integrator: these few numbers are wanted to round-off ---------------------------------------------

_STAGES = 8
_TOLERANCE = 1e-14
_POINTS, _POINT_WEIGHTS = legendre.leggauss(_STAGES)
_NODES, _WEIGHTS = 0.5 * (1.0 + _POINTS), 0.5 * _POINT_WEIGHTS
# Row i integrates the interpolant through the nodes from 0 to node i.
_COLLOCATION = 0.5 * (
    legendre.legvander(_POINTS, _STAGES)
    @ legendre.legint(np.eye(_STAGES), lbnd=-1)
    @ np.linalg.inv(legendre.legvander(_POINTS, _STAGES - 1))
)


def _speed_and_growth(
    scheme: Scheme, time: float, log_radius: float, radial: float, norm: float
) -> tuple[float, float]:
    """1/s and (log r)' = r'/r; the logarithm keeps r positive and its relative accuracy."""
    radius = np.exp(log_radius)
    arguments = radius, np.float64(radial), np.float64(norm)  # of numpy: 1/0 is ∞, not an exception
    return float(scheme.speed(time, *arguments)), float(scheme.growth(time, *arguments) / radius)


def _solve(
    rate: Rate, state: ArrayLike, stops: Floats, breakpoints: Sequence[float] = (), start: float = 0.0
) -> Floats:
    """Solve y' = rate(t, y), y(start) = state, for y at `stops` >= start: stops.shape + (len(y),).

    Gauss–Legendre collocation of order 16; a step must agree with its two halves. Stages are interior and
    steps end at every breakpoint, so that a rate is never sampled where it jumps.
    """
    inside = [b for b in breakpoints if start < b < np.max(stops, initial=start)]
    ends = np.union1d(stops, inside)
    with np.errstate(all="ignore"):
        states = np.array(list(_march(rate, np.asarray(state, dtype=np.float64), ends, start)))
    return np.asarray(states[np.searchsorted(ends, stops)])


def _march(rate: Rate, state: Floats, ends: Floats, start: float) -> Iterator[Floats]:
    length = 0.01 / np.max(np.abs(rate(start, state)), initial=1e-300)  # no leap over a transient
    for end in ends:
        while start < end:
            step = min(length, end - start)
            whole = _collocate(rate, start, state, step)
            middle = _collocate(rate, start, state, step / 2.0)
            halves = _collocate(rate, start + step / 2.0, middle, step / 2.0)
            error = float(np.max(np.abs(halves - whole) / (1.0 + np.abs(halves)))) / _TOLERANCE
            if error <= 1.0:
                start, state = (end if step == end - start else start + step), halves
                length = max(length, 2.0 * step)
            else:
                length = step / 4.0
                _require(start + length > start, f"no solution past {start:.6g}: radius or field vanishes")
        yield state


def _collocate(rate: Rate, start: float, state: Floats, step: float) -> Floats:
    """One step, stages found by fixed-point iteration; NaN if one is singular or they do not settle."""
    stages = np.tile(state, (_STAGES, 1))
    for _ in range(40):
        slopes = np.array([rate(start + step * node, y) for node, y in zip(_NODES, stages, strict=True)])
        previous, stages = stages, state + step * (_COLLOCATION @ slopes)
        change = np.max(np.abs(stages - previous) / (1.0 + np.abs(stages)))
        if not change < np.inf:
            break
        if change <= 0.2 * _TOLERANCE:
            return np.asarray(state + step * (_WEIGHTS @ slopes))
    return np.full_like(state, np.nan)


# ---- arguments ---------------------------------------------------------------------------------------------


def _require(allowed: bool, message: str) -> None:
    if not allowed:
        raise ValueError(message)


def _check_kernel(beta: float, kernel: str) -> None:
    _require(kernel in ("softmax", "unnormalized"), f"kernel must be softmax or unnormalized, got {kernel!r}")
    largest = 1e6 if kernel == "softmax" else LARGEST_UNNORMALIZED_BETA
    _require(abs(beta) <= largest, f"beta must lie in [-{largest:g}, {largest:g}] for {kernel}, got {beta}")


def _checked(times: ArrayLike) -> Floats:
    times = np.asarray(times, dtype=np.float64)
    _require(bool(np.all((times >= 0.0) & (times < np.inf))), f"times must be finite and >= 0, got {times}")
    return times
