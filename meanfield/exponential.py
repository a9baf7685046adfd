r"""An Adams method that steps a diagonal linear part exactly, for densities that diffuse.

.. math:: y' = \lambda y + N(t, y), \qquad
          y(t + h) = e^{h\lambda} y(t) + \int_0^h e^{(h - s)\lambda}\, N(t + s)\, ds, \qquad \lambda \le 0,

with N replaced by the polynomial through its last k values.  Its integrals against the exponential are exact, so that
y' = λy is solved exactly, a stationary state stays one, and the step is bounded by how N varies along the solution and
not by λ: diffusion on a sphere, λ = −κ l(l + d − 2), costs the same for every lmax.  Explicit Runge–Kutta methods of
that kind reach order 4 or 5 for stiff λ at five to eight evaluations a step; this one has any order at two.

A step predicts with k values, evaluates N, corrects with k + 1 and evaluates again (PECE).  Step and order vary: the
polynomial is kept in Newton's form, by divided differences, whose last terms estimate the error.  The interface is that
of the steppers of scipy, as far as `meanfield.integrate` uses it.

Source: Hochbruck and Ostermann, Exponential multistep methods of Adams-type, BIT 51 (2011) 889–908, for the method;
Shampine and Gordon, Computer Solution of Ordinary Differential Equations (1975), for step and order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LARGEST_ORDER = 10
"""Beyond it the region of stability is so small that nothing is gained at the tolerances of float64."""
SAFETY = 0.1
"""Fraction of the tolerance that a step aims at."""
SLOWEST, FASTEST = 0.2, 2.0
"""A step is at most so much shorter, or longer, than the one before."""
SHORTER = 0.9
"""After a failure the step is at most so much of the one before."""
LARGE = 40.0
"""Quadrature gives way to the recurrence here."""

_POINTS, _WEIGHTS = legendre.leggauss(40)
_NODES, _NODE_WEIGHTS = 0.5 * (1.0 + _POINTS), 0.5 * _WEIGHTS


def exponential_moments(rates: Floats, count: int) -> Floats:
    r"""Integrals :math:`\int_0^1 e^{-x(1-s)} s^m\,ds = m!\,\varphi_{m+1}(-x)`, shape (count, len(rates)).

    Parameters
    ----------
    rates : ndarray
        x ≥ 0.
    count : int
        m = 0 … count − 1, less than 40.

    Notes
    -----
    Relative errors are round-off for every x: all terms of the quadrature are positive, and where it would need more
    points, x > 40, the recurrence J_m = (1 − m J_{m−1})/x damps errors.
    """
    small = np.minimum(rates, LARGE)
    powers = _NODE_WEIGHTS * _NODES ** np.arange(count)[:, None]
    moments = np.asarray(powers @ np.exp(-np.multiply.outer(1.0 - _NODES, small)))
    far = rates > LARGE
    if far.any():
        x = rates[far]
        value = -np.expm1(-x) / x
        for degree in range(count):
            moments[degree, far] = value
            value = (1.0 - (degree + 1) * value) / x
    return moments


class ExponentialAdams:
    r"""Stepper of y' = λy + N(t, y) with a diagonal λ ≤ 0.

    Parameters
    ----------
    tendency : callable
        The whole of y', (t, y) → ndarray; a new array every time.
    linear : ndarray, shape (n,)
        λ ≤ 0.
    t, y, bound
        First time, state there, and last time > t.
    rtol, atol
        A step is accepted if the root mean square of its error over atol + rtol |y| is at most 1.
    first_step : float, optional
        No first step is longer; a method of one point needs a short one anyway.

    Attributes
    ----------
    t, y, f
        Time, state, and tendency there.
    h_abs : float
        The next step to be tried.
    max_step : float
        No step is longer; may be set between steps.
    nfev : int
        Evaluations of the tendency so far.
    order : int
        Values of N that the next prediction reads.
    status : {"running", "finished", "failed"}
    """

    def __init__(
        self,
        tendency: Callable[[float, Floats], Floats],
        linear: Floats,
        t: float,
        y: Floats,
        bound: float,
        rtol: float,
        atol: float,
        first_step: float | None = None,
    ) -> None:
        self._tendency, self._linear = tendency, linear
        rates, self._position = np.unique(-linear, return_inverse=True)
        self._rates = np.asarray(rates, dtype=np.float64)
        self._rtol, self._atol = rtol, atol
        self.t, self.y, self.t_bound = float(t), np.array(y, dtype=np.float64), float(bound)
        self.t_old: float | None = None
        self.max_step = math.inf
        self.status = "running"
        self.order = 1
        self.nfev = 0
        self._starting = True
        self._since_change = 0
        self.f = self._evaluate(self.t, self.y)
        # Divided differences N[t_n, …, t_{n−i}], and the times of that they are made of.
        self._differences = np.empty((LARGEST_ORDER + 2, self.y.size))
        self._differences[0] = self._remainder(self.f, self.y)
        self._times = [self.t]
        self._last: tuple[float, Floats, list[float], Floats] = (self.t, self.y, [], self._differences[:1])
        self.h_abs = self._first_step()
        if first_step is not None:
            self.h_abs = min(self.h_abs, first_step)

    def step(self) -> str | None:
        """Advance by one accepted step; returns what is wrong if none succeeds, and then ``status`` is "failed"."""
        failures = 0
        while True:
            smallest = 10.0 * math.ulp(self.t)
            h = min(self.h_abs, self.max_step, self.t_bound - self.t)
            if h < smallest and self.t + h < self.t_bound:
                self.status = "failed"
                return "the step has become too small"
            if self._attempt(h):
                break
            failures += 1
            if failures == 3:  # the past says nothing of what is to come
                self.order = 1
        if self.t >= self.t_bound:
            self.status = "finished"
        return None

    def dense_output(self) -> Callable[[float], Floats]:
        """The last step as a function of time, of the method's own order: the polynomial, integrated up to there."""
        begin, start, nodes, differences = self._last
        count = len(nodes) + 1

        def state(t: float) -> Floats:
            reach = t - begin
            if reach == 0.0:
                return start.copy()
            moments = exponential_moments(reach * self._rates, count)
            return self._advance(reach, start, _newton_integrals(moments, reach, nodes), differences)

        return state

    @property
    def memory(self) -> dict[str, Floats]:
        """What the next step depends on beside ``t``, ``y``, ``h_abs`` and ``max_step``, as arrays."""
        count = len(self._times)
        choice = np.array([self.order, self._since_change, self._starting], dtype=np.float64)
        return {
            "slope": self.f,
            "differences": self._differences[:count].copy(),
            "times": np.array(self._times),
            "choice": choice,
        }

    def recall(self, memory: Mapping[str, Floats], step: float) -> None:
        """Go on, to the last bit, as the stepper did whose ``memory`` and ``h_abs`` these are."""
        self._times = [float(t) for t in memory["times"]]
        self._differences[: len(self._times)] = memory["differences"]
        order, since_change, starting = memory["choice"]
        self.order, self._since_change, self._starting = int(order), int(since_change), bool(starting)
        self.f, self.h_abs = memory["slope"], step

    # ------------------------------------------------------------------ one step

    def _attempt(self, h: float) -> bool:
        """Try one step of the length h, and choose the next step and order."""
        k = self.order
        time = self.t_bound if self.t + h >= self.t_bound else self.t + h
        h = time - self.t
        past = [t - self.t for t in self._times]  # 0, and earlier times
        moments = exponential_moments(h * self._rates, k + 2)
        integrals = _newton_integrals(moments, h, past[:k])
        predicted = self._advance(h, self.y, integrals[:k], self._differences[:k])
        fresh = self._remainder(self._evaluate(time, predicted), predicted)
        # Differences that begin at the new value: N[t+h, t, …], up to one past the order.
        available = min(k + 1, len(self._times))
        differences = self._prepended(fresh, h, past, available)
        corrected = predicted + integrals[k, self._position] * differences[k]

        scale = self._atol + self._rtol * np.maximum(np.abs(self.y), np.abs(corrected))
        errors = self._errors(moments, h, past, differences, scale)
        error = errors[k]
        if not error <= 1.0:
            lower = k - 1 if k > 1 and _factor(errors[k - 1], k - 1) > _factor(error, k) else k
            self._change_order(lower)
            self.h_abs = h * max(SLOWEST, min(SHORTER, _factor(error, k))) if error < math.inf else h * SLOWEST
            self._starting = False
            return False

        self._last = (self.t, self.y, past[:k], np.concatenate((self._differences[:k], differences[k : k + 1])))
        self.t_old, self.t, self.y = self.t, time, corrected
        self.f = self._evaluate(time, corrected)
        fresh = self._remainder(self.f, corrected)
        kept = min(len(self._times), LARGEST_ORDER + 1)
        self._differences[: kept + 1] = self._prepended(fresh, h, past, kept)
        self._times = [time, *self._times[:kept]]
        self._choose(h, errors)
        return True

    def _choose(self, h: float, errors: dict[int, float]) -> None:
        """Next order and step after a step that was accepted."""
        k = self.order
        self._since_change += 1
        factors = {order: _factor(error, order) for order, error in errors.items()}
        best = k
        if self._starting and k < LARGEST_ORDER and factors[k] >= 1.0:
            best = k + 1
            factors[best] = factors[k]
            self._starting = k == 1 or factors[k - 1] <= factors[k]
        else:
            self._starting = False
            if k > 1 and factors[k - 1] >= factors[k]:
                best = k - 1
            elif k + 1 in factors and k < LARGEST_ORDER and self._since_change > k and factors[k + 1] > factors[k]:
                best = k + 1
        factor = min(FASTEST, max(SLOWEST, factors[best]))
        self._change_order(best)
        self.h_abs = h * factor

    def _change_order(self, order: int) -> None:
        if order != self.order:
            self.order, self._since_change = order, 0

    def _advance(self, reach: float, start: Floats, integrals: Floats, differences: Floats) -> Floats:
        """State after ``reach``, by the variation of constants with N a polynomial in Newton's form."""
        decay = np.exp(-self._rates * reach)[self._position]
        return np.asarray(decay * start + np.einsum("in,in->n", integrals[:, self._position], differences))

    def _errors(
        self, moments: Floats, h: float, past: list[float], differences: Floats, scale: Floats
    ) -> dict[int, float]:
        """Estimated error of the step at this order and its neighbours: the last term of the corrector."""
        found = {}
        for order in range(max(1, self.order - 1), len(differences)):
            # (s − h)(s − past_0)(s − past_1) … vanishes where the corrector of one value less agrees with N.
            integral = _newton_integrals(moments, h, [h, *past[: order - 1]])[-1]
            error = integral[self._position] * differences[order] / scale
            found[order] = float(np.linalg.norm(error)) / math.sqrt(error.size)
        return found

    def _prepended(self, fresh: Floats, h: float, past: list[float], count: int) -> Floats:
        """Divided differences 0 … count of the values at h and before."""
        table = np.empty((count + 1, fresh.size))
        table[0] = fresh
        for i in range(count):
            np.subtract(table[i], self._differences[i], out=table[i + 1])
            table[i + 1] /= h - past[i]
        return table

    def _evaluate(self, t: float, y: Floats) -> Floats:
        self.nfev += 1
        return self._tendency(t, y)

    def _remainder(self, f: Floats, y: Floats) -> Floats:
        return f - self._linear * y

    def _first_step(self) -> float:
        """A first step whose error, by the change of N over a hundredth of it or so, is within the tolerance."""
        scale = self._atol + self._rtol * np.abs(self.y)
        size, slope, whole = np.linalg.norm(self.y / scale), np.linalg.norm(self.f / scale), self.t_bound - self.t
        short = min(1e-2 * float(size / slope) if size > 0.0 and slope > 0.0 else 1e-6, whole)
        y = self.y + short * self.f
        change = self._remainder(self._evaluate(self.t + short, y), y) - self._differences[0]
        curvature = float(np.linalg.norm(change / scale)) / (math.sqrt(change.size) * short)
        return math.sqrt(SAFETY / curvature) if curvature > 0.0 else whole


def _factor(error: float, order: int) -> float:
    """By how much the step may change at an order."""
    return float((SAFETY / max(error, 1e-30)) ** (1.0 / (order + 1)))


def _newton_integrals(moments: Floats, h: float, nodes: list[float]) -> Floats:
    r""":math:`\int_0^h e^{-x(h-s)} \prod_{j<i} (s - s_j)\,ds` for i = 0 … len(nodes), one row each.

    ``moments`` are those of x h, len(nodes) + 1 or more.
    """
    count = len(nodes) + 1
    polynomials = np.zeros((count, count))  # in s/h; row i is the product of i factors
    polynomials[0, 0] = 1.0
    for i, node in enumerate(nodes):
        polynomials[i + 1, 1:] = polynomials[i, :-1]
        polynomials[i + 1] -= (node / h) * polynomials[i]
    polynomials *= h ** np.arange(1.0, count + 1.0)[:, None]
    return np.asarray(polynomials @ moments[:count])
