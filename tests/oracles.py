"""Slow, clear references for everything the package computes. Nothing here imports meanfield.

Spectra are those of the package: complex (nlm,), m >= 0, m-major, orthonormal, Condon–Shortley phase. Points
are unit vectors (n, d), tokens x = rθ are (n, d), masses sum to 1. A scheme is given by its name;
``switch_time`` belongs to mix-ln and ``rate``, a number or a function α(t), to ngpt.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import comb
from typing import Any

import mpmath
import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import i0e, i1e, roots_chebyt, roots_gegenbauer, sph_harm_y

Array = np.ndarray[Any, np.dtype[Any]]

SCHEMES = ("post-ln", "pre-ln", "mix-ln", "peri-ln", "ngpt", "sqrt-scaling", "ln-scaling")

TIGHT = {"method": "DOP853", "rtol": 1e-13, "atol": 1e-14}
"""Tolerances of solve_ivp for scalar equations: their error is round-off times the number of steps."""


# ---- kernel --------------------------------------------------------------------------------------


def eigenvalue(degree: int, beta: float, dimension: int = 3, scaled: bool = True) -> mpmath.mpf:
    """Λ_l(β) of e^{βx·y} on S^{d−1}, surface measure, times e^{−|β|} if scaled: to 40 digits."""
    with mpmath.workdps(40):
        half, size = mpmath.mpf(dimension) / 2, abs(mpmath.mpf(beta))
        area = 2 * mpmath.pi**half / mpmath.gamma(half)
        if size == 0:
            return area if degree == 0 else mpmath.mpf(0)
        bessel = mpmath.besseli(degree + half - 1, size)
        value = area * mpmath.gamma(half) * (2 / size) ** (half - 1) * bessel
        sign = (-1) ** degree if beta < 0 else 1
        return sign * value * (mpmath.exp(-size) if scaled else 1)


def eigenvalue_derivative(degree: int, beta: float, dimension: int = 3) -> mpmath.mpf:
    """Λ_l'(β) e^{−|β|}, the eigenvalue of t e^{βt}, from (2l+d−2) t P_l = (l+d−2) P_{l+1} + l P_{l−1}."""
    up = eigenvalue(degree + 1, beta, dimension)
    if degree == 0:
        return up
    down = eigenvalue(degree - 1, beta, dimension)
    return ((degree + dimension - 2) * up + degree * down) / (2 * degree + dimension - 2)


def eigenvalue_by_quadrature(degree: int, beta: float, dimension: int = 3, nodes: int = 200) -> float:
    """Λ_l(β) e^{−|β|} = |S^{d−2}| ∫ e^{βt−|β|} C_l(t)/C_l(1) (1−t²)^{(d−3)/2} dt, by Gauss quadrature."""
    nu = dimension / 2 - 1
    t, w = roots_chebyt(nodes) if dimension == 2 else roots_gegenbauer(nodes, nu)
    equator = float(2 * mpmath.pi ** (nu + 0.5) / mpmath.gamma(nu + 0.5))
    return equator * float(np.sum(w * np.exp(beta * t - abs(beta)) * gegenbauer(degree, t, dimension)))


def gegenbauer(degree: int, t: Array, dimension: int) -> Array:
    """C_l(t)/C_l(1), the zonal polynomial that is 1 at t = 1, by its recurrence."""
    before, here = np.zeros_like(t), np.ones_like(t)
    for n in range(degree):
        up = 1.0 if n == 0 else (n + dimension - 2) / (2 * n + dimension - 2)
        before, here = here, (t * here - (1.0 - up) * before) / up
    return here


# ---- spherical harmonics on S² -------------------------------------------------------------------


def gauss_grid(nlat: int, nlon: int | None = None) -> tuple[Array, Array]:
    """Points (nlat·nlon, 3), north to south and then by longitude from 0, and weights that sum to 4π."""
    nlon = 2 * nlat if nlon is None else nlon
    z, w = np.polynomial.legendre.leggauss(nlat)
    z, lon = np.meshgrid(z[::-1], 2 * np.pi * np.arange(nlon) / nlon, indexing="ij")
    across = np.sqrt((1.0 - z) * (1.0 + z))
    points = np.stack([across * np.cos(lon), across * np.sin(lon), z], axis=-1)
    return points.reshape(-1, 3), np.repeat(w, nlon) * 2 * np.pi / nlon


def degrees_and_orders(lmax: int) -> tuple[Array, Array]:
    """l and m of each coefficient."""
    pairs = [(degree, order) for order in range(lmax + 1) for degree in range(order, lmax + 1)]
    degree, order = np.array(pairs).T
    return degree, order


def harmonics(points: Array, lmax: int) -> Array:
    """Y_lm at the points: (n, nlm)."""
    degree, order = degrees_and_orders(lmax)
    colatitude = np.arctan2(np.hypot(points[:, 0], points[:, 1]), points[:, 2])[:, None]
    longitude = np.arctan2(points[:, 1], points[:, 0])[:, None]
    return sph_harm_y(degree, order, colatitude, longitude)


def harmonic_gradients(points: Array, lmax: int) -> Array:
    """∇Y_lm at the points, none of them a pole, as tangent vectors in R³: (n, nlm, 3)."""
    degree, order = degrees_and_orders(lmax)
    across = np.hypot(points[:, 0], points[:, 1])[:, None]
    colatitude = np.arctan2(across, points[:, 2:])
    longitude = np.arctan2(points[:, 1:2], points[:, 0:1])
    _, slopes = sph_harm_y(degree, order, colatitude, longitude, diff_n=1)
    zero = np.zeros_like(across)
    south = np.concatenate([points[:, 2:] * points[:, :2] / across, -across], axis=1)
    east = np.concatenate([-points[:, 1:2] / across, points[:, 0:1] / across, zero], axis=1)
    return slopes[..., 0:1] * south[:, None, :] + (slopes[..., 1] / across)[..., None] * east[:, None, :]


def synthesis(f_lm: Array, points: Array) -> Array:
    """f = Σ f_l0 Y_l0 + 2 Re Σ_{m>0} f_lm Y_lm at the points."""
    lmax = _lmax(f_lm)
    twice = np.where(degrees_and_orders(lmax)[1] > 0, 2.0, 1.0)
    return (harmonics(points, lmax) @ (twice * f_lm)).real


def analysis(f: Array, points: Array, weights: Array, lmax: int) -> Array:
    """f_lm = ∫ f conj(Y_lm) dΩ by quadrature."""
    return np.conj(harmonics(points, lmax)).T @ (weights * f)


def _lmax(f_lm: Array) -> int:
    return int(np.sqrt(8 * f_lm.size + 1) - 3) // 2


# ---- the model -----------------------------------------------------------------------------------


def attention(
    points: Array,
    sources: Array,
    masses: Array,
    beta: float,
    kernel: str = "softmax",
    query_key: Array | None = None,
    value: Array | None = None,
) -> Array:
    """A = V Σ_j m_j y_j e^{β x·(query_key y_j)} (/ Σ_j m_j e^{…} if softmax) at the points: (n, d)."""
    keys = sources if query_key is None else sources @ query_key.T
    logits = beta * points @ keys.T
    shift = logits.max(axis=1, keepdims=True) if kernel == "softmax" else 0.0
    kernel_matrix = np.exp(logits - shift) * masses
    total = kernel_matrix.sum(axis=1, keepdims=True) if kernel == "softmax" else 1.0
    mean = kernel_matrix @ sources / total
    return mean if value is None else mean @ value.T


def attention_by_loops(
    points: Array,
    masses: Array,
    beta: float,
    kernel: str = "softmax",
    heads: Any = ((None, None),),
    causal: bool = False,
    frequencies: Any = (),
) -> Array:
    """A of every token, token by token, head by head: (n, d).

    Causal tokens see themselves and those before them, and unnormalized sums are divided by the mass that is seen.
    With frequencies, the coordinates (2k, 2k + 1) of query and key of token i are turned by i times the k-th of them.
    """
    count, dimension = points.shape
    field = np.zeros((count, dimension))
    for query_key, value in heads:
        matrix = np.eye(dimension) if query_key is None else query_key
        for i in range(count):
            mean, total, seen = np.zeros(dimension), 0.0, 0.0
            query = position_rotation(i, frequencies, dimension) @ points[i]
            for j in range(i + 1 if causal else count):
                key = position_rotation(j, frequencies, dimension) @ (matrix @ points[j])
                weight = masses[j] * np.exp(beta * float(query @ key))
                mean, total, seen = mean + weight * points[j], total + weight, seen + masses[j]
            mean = mean / (total if kernel == "softmax" else seen if causal else 1.0)
            field[i] += mean if value is None else value @ mean
    return field


def position_rotation(place: int, frequencies: Any, dimension: int) -> Array:
    """The rotation by place·ω_k in the planes of the coordinates (2k, 2k + 1), as a matrix."""
    rotation = np.eye(dimension)
    for k, frequency in enumerate(frequencies):
        c, s = np.cos(place * frequency), np.sin(place * frequency)
        rotation[2 * k : 2 * k + 2, 2 * k : 2 * k + 2] = [[c, -s], [s, c]]
    return rotation


def doubly_stochastic(kernel: Array, masses: Array, sweeps: int = 5000) -> Array:
    """P = diag(u) K diag(v) with Σ_j P_ij m_j = 1 and Σ_i m_i P_ij = 1, by scaling rows and columns in turn."""
    u, v = np.ones(len(masses)), np.ones(len(masses))
    for _ in range(sweeps):
        u = 1.0 / (kernel @ (masses * v))
        v = 1.0 / (kernel.T @ (masses * u))
    return u[:, None] * kernel * v


def split(points: Array, field: Array) -> tuple[Array, Array, Array]:
    """P_θA, ⟨θ,A⟩ and ‖A‖ of a field A at the points."""
    radial = np.sum(points * field, axis=-1)
    return field - radial[..., None] * points, radial, np.linalg.norm(field, axis=-1)


def slowness(scheme: str, t: float, r: Any, norm: Any, switch_time: float = 1.0, rate: Any = 1.0) -> Any:
    """s of each scheme: θ' = P A / s."""
    alpha = rate(t) if callable(rate) else rate
    return {
        "post-ln": lambda: 1.0,
        "pre-ln": lambda: r,
        "mix-ln": lambda: 1.0 if t <= switch_time else r,
        "peri-ln": lambda: r * norm,
        "ngpt": lambda: norm / alpha,
        "sqrt-scaling": lambda: np.sqrt(t + 1.0),
        "ln-scaling": lambda: r * np.sqrt(t + 1.0),
    }[scheme]()


def radius_growth(scheme: str, t: float, radial: Any, norm: Any, switch_time: float = 1.0) -> Any:
    """r' of each scheme."""
    return {
        "post-ln": lambda: 0.0 * radial,
        "pre-ln": lambda: radial,
        "mix-ln": lambda: 0.0 * radial if t <= switch_time else radial,
        "peri-ln": lambda: radial / norm,
        "ngpt": lambda: 0.0 * radial,
        "sqrt-scaling": lambda: 0.0 * radial,
        "ln-scaling": lambda: radial / np.sqrt(t + 1.0),
    }[scheme]()


def stream_velocity(scheme: str, t: float, tokens: Array, field: Array, **parameters: Any) -> Array:
    """x' of tokens x = rθ in a field A given at θ: residual-stream schemes are regular at x = 0."""
    switched = scheme == "mix-ln" and t > parameters.get("switch_time", 1.0)
    if scheme == "pre-ln" or switched:
        return field
    norm = np.linalg.norm(field, axis=-1, keepdims=True)
    if scheme == "peri-ln":
        return field / norm
    if scheme == "ln-scaling":
        return field / np.sqrt(t + 1.0)
    radius = np.linalg.norm(tokens, axis=-1, keepdims=True)
    tangential, _, _ = split(tokens / radius, field)
    return radius * tangential / slowness(scheme, t, radius, norm, **parameters)


def particle_velocity(
    scheme: str,
    t: float,
    tokens: Array,
    masses: Array,
    beta: float,
    kernel: str = "softmax",
    query_key: Array | None = None,
    value: Array | None = None,
    **parameters: Any,
) -> Array:
    """x' of weighted tokens (n, d), by direct summation over all pairs."""
    points = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    field = attention(points, points, masses, beta, kernel, query_key, value)
    return stream_velocity(scheme, t, tokens, field, **parameters)


def energy(points: Array, masses: Array, beta: float) -> float:
    """(1/2β) Σ m_i m_j e^{β(x_i·x_j) − |β|}; ½|mean|² at β = 0."""
    if beta == 0.0:
        return 0.5 * float(np.sum((masses @ points) ** 2))
    return float(masses @ np.exp(beta * points @ points.T - abs(beta)) @ masses) / (2.0 * beta)


def density_tendency(
    density_lm: Array,
    beta: float,
    scheme: str = "post-ln",
    t: float = 0.0,
    radius: Callable[[Array], Array] | None = None,
    kernel: str = "softmax",
    noise: float = 0.0,
    nlat: int = 32,
    lmax: int | None = None,
    **parameters: Any,
) -> tuple[Array, Array]:
    """∂ρ_lm/∂t and ∂(ρR)_lm/∂t of the continuity equation, l <= lmax, on a Gauss grid nlat × 2 nlat.

    Everything is dense and direct: A by quadrature of the kernel, the divergence in its weak form
    (∇·F)_lm = −∫ F·∇conj(Y_lm). ``radius`` is R as a function of points; 1 if not given.
    """
    points, weights = gauss_grid(nlat)
    lmax = _lmax(density_lm) if lmax is None else lmax
    density = synthesis(density_lm, points)
    r = np.ones(len(points)) if radius is None else radius(points)
    field = attention(points, points, weights * density, beta, kernel)
    tangential, radial, norm = split(points, field)
    flux = (density / slowness(scheme, t, r, norm, **parameters))[:, None] * tangential
    growth = radius_growth(scheme, t, radial, norm, parameters.get("switch_time", 1.0))
    slopes = np.conj(harmonic_gradients(points, lmax))
    transport = np.einsum("n,nk,nlk->l", weights, flux, slopes)
    moment = np.einsum("n,nk,nlk->l", weights * r, flux, slopes)
    moment = moment + analysis(density * growth, points, weights, lmax)
    degree, _ = degrees_and_orders(lmax)
    padded = np.zeros(degree.size, dtype=complex)
    for index, pair in enumerate(zip(*degrees_and_orders(_lmax(density_lm)), strict=True)):
        if pair[0] <= lmax:
            padded[_position(lmax, *pair)] = density_lm[index]
    return transport - noise * degree * (degree + 1) * padded, moment


def _position(lmax: int, degree: int, order: int) -> int:
    return order * (2 * lmax + 3 - order) // 2 + degree - order


# ---- labelled continuum --------------------------------------------------------------------------


def vmf_mixture(points: Array, weights: Any, concentrations: Any, means: Any) -> Array:
    """Mixture of von Mises–Fisher laws on S², per steradian: κ e^{κ(m·x − 1)} / (2π (1 − e^{−2κ}))."""
    density = np.zeros(points.shape[:-1])
    for weight, kappa, mean in zip(weights, concentrations, means, strict=True):
        direction = np.asarray(mean, dtype=float) / np.linalg.norm(mean)
        peak = kappa / (2 * np.pi * -np.expm1(-2 * kappa))
        density += weight * peak * np.exp(kappa * (points @ direction - 1.0))
    return density


def three_bumps(points: Array) -> Array:
    """0.5·vMF(2, [1, 0, .3]) + 0.3·vMF(3, [−.2, 1, .1]) + 0.2·vMF(1, [0, −.5, −1])."""
    return vmf_mixture(points, (0.5, 0.3, 0.2), (2.0, 3.0, 1.0), ([1, 0, 0.3], [-0.2, 1, 0.1], [0, -0.5, -1]))


def labelled_continuum(
    density: Callable[[Array], Array],
    times: Any,
    scheme: str,
    beta: float,
    initial_radius: float = 1.0,
    nlat: int = 24,
    kernel: str = "softmax",
    rtol: float = 1e-10,
    **parameters: Any,
) -> tuple[Array, Array]:
    """Tokens x(α, t), (nt, n, 3), that start on a Gauss grid with the masses ρ₀(α)w(α), (n,), also returned.

    The mean token converges spectrally in nlat before a fold, as 1/nlat or so after it.
    """
    points, weights = gauss_grid(nlat)
    masses = weights * density(points)

    def velocity(t: float, flat: Array) -> Array:
        tokens = flat.reshape(points.shape)
        return particle_velocity(scheme, t, tokens, masses, beta, kernel, **parameters).ravel()

    states = integrate(velocity, initial_radius * points.ravel(), times, scheme, parameters, rtol)
    return states.reshape(-1, *points.shape), masses


def zonal_labelled_continuum(
    density: Callable[[Array], Array],
    times: Any,
    scheme: str,
    beta: float,
    initial_radius: float = 1.0,
    nlat: int = 200,
    rtol: float = 1e-10,
    **parameters: Any,
) -> tuple[Array, Array]:
    """The same for a law that depends on z alone: (x, z) of tokens in their meridian plane, (nt, nlat, 2).

    The average over longitude is a Bessel function, so that many latitudes are cheap. Softmax attention only.
    """
    z, w = np.polynomial.legendre.leggauss(nlat)
    start = np.stack([np.sqrt((1.0 - z) * (1.0 + z)), z], axis=-1)
    masses = 2 * np.pi * w * density(np.stack([start[:, 0], np.zeros(nlat), z], axis=-1))

    def velocity(t: float, flat: Array) -> Array:
        tokens = flat.reshape(-1, 2)
        across, along = (tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)).T
        turn = beta * np.outer(across, across)
        weight = np.exp(beta * np.outer(along, along) + np.abs(turn) - abs(beta)) * masses
        total = np.sum(weight * i0e(turn), axis=1)
        field = np.stack([(weight * i1e(turn)) @ across, (weight * i0e(turn)) @ along], axis=-1) / total[:, None]
        return stream_velocity(scheme, t, tokens, field, **parameters).ravel()

    states = integrate(velocity, initial_radius * start.ravel(), times, scheme, parameters, rtol)
    return states.reshape(-1, nlat, 2), masses


def integrate(
    velocity: Callable[[float, Array], Array],
    start: Array,
    times: Any,
    scheme: str,
    parameters: dict[str, Any],
    rtol: float,
) -> Array:
    """States at increasing times, the first of them 0; the integration restarts where mix-ln switches."""
    times = np.asarray(times, dtype=float)
    switch = parameters.get("switch_time", 1.0) if scheme == "mix-ln" else np.inf
    options: dict[str, Any] = {"method": "DOP853", "rtol": rtol, "atol": rtol}
    early, late = times[times <= switch], times[times > switch]
    states = [start]
    stop = np.unique(np.append(early, min(switch, times[-1])))
    if stop[-1] > 0.0:
        run = solve_ivp(velocity, (0.0, stop[-1]), start, t_eval=stop, **options)
        states = list(run.y.T)
    at_switch = states[-1]
    states = states[: early.size]
    if late.size:
        # Just past the switch: at the switch itself mix-ln still is Post-LN.
        run = solve_ivp(velocity, (np.nextafter(switch, np.inf), late[-1]), at_switch, t_eval=late, **options)
        states += list(run.y.T)
    return np.array(states)


# ---- exact solutions -----------------------------------------------------------------------------


def growth_exponent(
    scheme: str,
    rates: Array,
    radial: float,
    t: float,
    initial_radius: float = 1.0,
    switch_time: float = 1.0,
    rate: float = 1.0,
) -> Array:
    """Logarithm of the growth of modes of unit-speed rates ω about the uniform law, where A = aθ: closed forms."""
    a, r0, root = radial, initial_radius, 2.0 * (np.sqrt(t + 1.0) - 1.0)

    def stream(elapsed: float) -> float:  # Pre-LN's (1 + at/r₀)^{1/a}, a of either sign
        return elapsed / r0 if a == 0.0 else np.log1p(a * elapsed / r0) / a

    return (
        rates
        * {
            "post-ln": lambda: t,
            "pre-ln": lambda: stream(t),
            "mix-ln": lambda: min(t, switch_time) + stream(max(t - switch_time, 0.0)),
            "peri-ln": lambda: np.log1p(np.sign(a) * t / r0) / a,
            "ngpt": lambda: rate * t / abs(a),
            "sqrt-scaling": lambda: root,
            "ln-scaling": lambda: stream(root),
        }[scheme]()
    )


def growth_factor(*arguments: Any, **parameters: Any) -> Array:
    """Growth of each mode, the exponential of `growth_exponent`."""
    return np.exp(growth_exponent(*arguments, **parameters))


def equiangular(
    scheme: str,
    tokens: int,
    cosine: float,
    beta: float,
    times: Any,
    initial_radius: float = 1.0,
    kernel: str = "softmax",
    **parameters: Any,
) -> tuple[Array, Array]:
    """γ(t) and r(t) of equiangular tokens at increasing times, the first 0, by the ODE for γ itself."""
    velocity = _equiangular_velocity(scheme, tokens, beta, kernel, parameters)
    states = integrate(velocity, np.array([cosine, initial_radius]), times, scheme, parameters, 1e-13)
    return states[:, 0], states[:, 1]


def equiangular_times(
    scheme: str,
    tokens: int,
    cosine: float,
    beta: float,
    levels: Any,
    horizon: float,
    initial_radius: float = 1.0,
    **parameters: Any,
) -> Array:
    """Times at which γ reaches the levels, all before the horizon, by root finding on dense output."""
    velocity = _equiangular_velocity(scheme, tokens, beta, "softmax", parameters)
    switch = parameters.get("switch_time", 1.0) if scheme == "mix-ln" else horizon
    first = solve_ivp(velocity, (0.0, switch), [cosine, initial_radius], dense_output=True, **TIGHT)
    curves = [(0.0, switch, first.sol)]
    if switch < horizon:
        after = np.nextafter(switch, np.inf)
        second = solve_ivp(velocity, (after, horizon), first.y[:, -1], dense_output=True, **TIGHT)
        curves.append((after, horizon, second.sol))
    times = []
    for level in levels:
        start, stop, curve = next(c for c in curves if c[2](c[1])[0] >= level)
        times.append(brentq(lambda t, c=curve, v=level: c(t)[0] - v, start, stop, xtol=1e-13, rtol=1e-14))
    return np.array(times)


def _equiangular_velocity(
    scheme: str, tokens: int, beta: float, kernel: str, parameters: dict[str, Any]
) -> Callable[[float, Array], Array]:
    def velocity(t: float, state: Array) -> Array:
        gamma, r = state
        own, other, n = np.exp(beta), np.exp(beta * gamma), tokens
        total = own + (n - 1) * other if kernel == "softmax" else n
        radial = (own + (n - 1) * gamma * other) / total
        squared = own**2 + 2 * (n - 1) * gamma * own * other + (n - 1) * other**2 * (1 + (n - 2) * gamma)
        norm = np.sqrt(squared) / total
        s = slowness(scheme, t, r, norm, **parameters)
        growth = radius_growth(scheme, t, radial, norm, parameters.get("switch_time", 1.0))
        return np.array([2 / s * other * (1 - gamma) * (1 + (n - 1) * gamma) / total, growth])

    return velocity


def two_clusters(angle: float, masses: tuple[float, float], beta: float, times: Any) -> Array:
    """φ(t) of two point clusters under Post-LN and softmax attention, by the ODE for φ itself."""
    p, q = masses

    def velocity(t: float, state: Array) -> Array:
        phi = state[0]
        other = np.exp(beta * (np.cos(phi) - 1.0))
        return np.array([-(q * other / (p + q * other) + p * other / (q + p * other)) * np.sin(phi)])

    return integrate(velocity, np.array([angle]), times, "post-ln", {}, 1e-13)[:, 0]


def poisson_kernel(points: Array, radius: float, axis: Array) -> Array:
    """((1−R²)/|x−Re|²)^{d−1}, a density with respect to the uniform probability measure."""
    distance = np.sum((points - radius * axis) ** 2, axis=-1)
    return ((1.0 - radius**2) / distance) ** (points.shape[-1] - 1)


@lru_cache
def _gauss_legendre(nodes: int) -> tuple[Array, Array]:
    return np.polynomial.legendre.leggauss(nodes)


def poisson_mean(radius: float, dimension: int = 3, nodes: int = 400) -> float:
    """M_d(R), the length of the mean of the Poisson kernel, by quadrature in the angle from its axis."""
    x, w = _gauss_legendre(nodes)
    angle, w = 0.5 * np.pi * (x + 1.0), w * np.sin(0.5 * np.pi * (x + 1.0)) ** (dimension - 2)
    points = np.zeros((nodes, dimension))
    points[:, 0], points[:, 1] = np.cos(angle), np.sin(angle)
    kernel = poisson_kernel(points, radius, np.eye(dimension)[0])
    return float(np.sum(w * np.cos(angle) * kernel) / np.sum(w))


def poisson_radius(times: Any, radius: float, scheme: str = "post-ln", dimension: int = 3, **parameters: Any) -> Array:
    """R(t) at increasing times, the first 0, from R' = (1−R²) M_d(R) / (2s) with M_d by quadrature."""

    def velocity(t: float, state: Array) -> Array:
        mean = poisson_mean(state[0], dimension)
        return np.array([0.5 * (1.0 - state[0] ** 2) * mean / slowness(scheme, t, 1.0, mean, **parameters)])

    return integrate(velocity, np.array([radius]), times, scheme, parameters, 1e-13)[:, 0]


# ---- circle, and axisymmetric densities in any dimension -------------------------------------------------------


def circle_density_tendency(
    density: Callable[[Array], Array],
    beta: float,
    scheme: str,
    t: float,
    radius: Callable[[Array], Array],
    kernel: str = "softmax",
    lmax: int = 12,
    nodes: int = 400,
    **parameters: Any,
) -> tuple[Array, Array]:
    """∂ρ_k/∂t and ∂(ρR)_k/∂t, k <= lmax, on S¹ with e^{ikφ}/√(2π); density and radius are functions of points."""
    angle = 2 * np.pi * np.arange(nodes) / nodes
    points, weight = np.stack([np.cos(angle), np.sin(angle)], axis=-1), 2 * np.pi / nodes
    rho, r = density(points), radius(points)
    tangential, radial, norm = split(points, attention(points, points, weight * rho, beta, kernel))
    along = np.sum(tangential * np.stack([-np.sin(angle), np.cos(angle)], axis=-1), axis=-1)
    flux = rho * along / slowness(scheme, t, r, norm, **parameters)
    growth = radius_growth(scheme, t, radial, norm, parameters.get("switch_time", 1.0))
    degree = np.arange(lmax + 1)[:, None]
    waves = weight * np.exp(-1j * degree * angle) / np.sqrt(2 * np.pi)
    slopes = -1j * degree * waves
    return slopes @ flux, slopes @ (flux * r) + waves @ (rho * growth)


def zonal_grid(nodes: int, dimension: int) -> tuple[Array, Array]:
    """Angles from the axis of S^{d−1} and their probabilities under the uniform law."""
    x, w = _gauss_legendre(nodes)
    angle = 0.5 * np.pi * (x + 1.0)
    w = w * np.sin(angle) ** (dimension - 2)
    return angle, w / np.sum(w)


def zonal_attention(
    angle: Array, masses: Array, beta: float, dimension: int, kernel: str = "softmax", nodes: int = 64
) -> tuple[Array, Array]:
    """Components of A along e_θ and along θ at angles from the axis, of axisymmetric masses at the same angles."""
    turn, weight = (np.array([0.0, np.pi]), np.full(2, 0.5)) if dimension == 2 else zonal_grid(nodes, dimension - 1)
    u, s = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    v, c = np.cos(angle)[:, None], np.sin(angle)[:, None] * np.cos(turn)
    along = u * v + s * c
    matrix = np.exp(beta * along - (abs(beta) if kernel == "softmax" else 0.0)) * masses[:, None] * weight
    total = np.sum(matrix, axis=(1, 2)) if kernel == "softmax" else 1.0
    return np.sum(matrix * (u * c - s * v), axis=(1, 2)) / total, np.sum(matrix * along, axis=(1, 2)) / total


def zonal_density_tendency(
    density: Callable[[Array], Array],
    beta: float,
    dimension: int,
    scheme: str,
    t: float,
    radius: Callable[[Array], Array],
    kernel: str = "softmax",
    lmax: int = 12,
    nodes: int = 200,
    **parameters: Any,
) -> tuple[Array, Array]:
    """∂ρ_l/∂t and ∂(ρR)_l/∂t, l <= lmax, of axisymmetric fields, functions of cos θ, on S^{d−1}.

    Density and harmonics are those of the uniform probability measure: p_l(1)² is the number of harmonics.
    """
    angle, probability = zonal_grid(nodes, dimension)
    u = np.cos(angle)
    rho, r = density(u), radius(u)
    south, radial = zonal_attention(angle, probability * rho, beta, dimension, kernel)
    norm = np.hypot(south, radial)
    flux = rho * south / slowness(scheme, t, r, norm, **parameters)
    growth = radius_growth(scheme, t, radial, norm, parameters.get("switch_time", 1.0))
    size = [np.sqrt(number_of_harmonics(l, dimension)) for l in range(lmax + 1)]
    waves = probability * np.array([size[l] * gegenbauer(l, u, dimension) for l in range(lmax + 1)])
    slopes = np.zeros_like(waves)
    for l in range(1, lmax + 1):
        factor = size[l] * l * (l + dimension - 2) / (dimension - 1)
        slopes[l] = -probability * np.sin(angle) * factor * gegenbauer(l - 1, u, dimension + 2)
    return slopes @ flux, slopes @ (flux * r) + waves @ (rho * growth)


def mean_kernel(beta: float, dimension: int) -> float:
    """Mean of e^{βx·y} over y on S^{d−1}, by its hypergeometric series 0F1(; d/2; β²/4)."""
    with mpmath.workdps(30):
        return float(mpmath.hyp0f1(mpmath.mpf(dimension) / 2, mpmath.mpf(beta) ** 2 / 4))


def number_of_harmonics(degree: int, dimension: int) -> int:
    """Dimension of the harmonics of one degree: polynomials of that degree less those of degree − 2."""
    low = comb(degree + dimension - 3, dimension - 1) if degree >= 2 else 0
    return comb(degree + dimension - 1, dimension - 1) - low
