"""The stepping loop: scipy's DOP853 driven step by step, with snapshots, watches and limits.

The only module that imports scipy.integrate.  It knows a problem by the protocol `meanfield.problem.Problem` alone.
Snapshots between steps come from the method's own interpolant (order 7), so that asking for more of them does not
change the run; the stepper restarts only at the problem's breakpoints.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import DOP853

from .problem import Observation, Problem, Stop

Floats = NDArray[np.float64]

SMALLEST_RTOL = 100 * float(np.finfo(float).eps)
"""Relative errors below this are round-off; smaller requests mean it."""


@dataclass(frozen=True)
class Tolerances:
    """Error allowed in one step: ``rtol`` of each component, plus ``atol`` in the Euclidean norm of the whole state."""

    rtol: float = 1e-9
    atol: float = 1e-9


@dataclass(frozen=True)
class Limits:
    """When to give up."""

    steps: int = 100_000
    wall_seconds: float = math.inf


@dataclass(frozen=True)
class Outcome:
    """How an integration ended, and what it cost."""

    status: str
    message: str
    stop_time: float
    evaluations: int
    steps: int
    wall_seconds: float
    facts: Mapping[str, float] = field(default_factory=dict)
    state: Floats = field(default_factory=lambda: np.empty(0))
    """The last sound state."""


def integrate(
    problem: Problem,
    state: Floats,
    times: Sequence[float],
    record: Callable[[float, Floats], None],
    tolerances: Tolerances = Tolerances(),
    limits: Limits = Limits(),
    report: Callable[[float], None] | None = None,
    trace: Callable[[int, float, Floats, Floats], None] | None = None,
) -> Outcome:
    """Step a problem from ``times[0]`` to ``times[-1]`` and hand every snapshot to ``record``.

    Parameters
    ----------
    problem : Problem
        What is stepped.
    state : ndarray
        Initial state; not modified.
    times : sequence of float
        Snapshot times, at least two, strictly increasing; they are recorded bitwise as given.
    record : callable
        Called with (t, y) for every snapshot.  If the run stops early, its last sound state is the last record.
    tolerances, limits
        Accuracy, and when to give up.
    report : callable, optional
        Called with t after every step.
    trace : callable, optional
        Called with (piece, t, y, y') at the beginning of every smooth piece and after each of its steps: what a
        continuous extension of the whole run needs.

    Returns
    -------
    Outcome
        Status "completed", that of the `Stop` which the problem asked for, or "failed" (non-finite numbers, a
        vanishing step, a limit reached).

    Raises
    ------
    ValueError
        If the times do not increase strictly.
    """
    if len(times) < 2 or any(later <= earlier for earlier, later in pairwise(times)):
        raise ValueError(f"times must be at least two and increase strictly, got {list(times)}")
    with np.errstate(all="ignore"):  # every accepted state is checked, and the outcome says what happened
        return _Run(problem, [float(t) for t in times], record, tolerances, limits, report, trace).go(state)


class _Run:
    """One integration: counters, the snapshots still due, and the loop over segments and steps."""

    def __init__(
        self,
        problem: Problem,
        times: list[float],
        record: Callable[[float, Floats], None],
        tolerances: Tolerances,
        limits: Limits,
        report: Callable[[float], None] | None,
        trace: Callable[[int, float, Floats, Floats], None] | None,
    ) -> None:
        self.problem = problem
        self.times = times
        self.record = record
        self.tolerances = tolerances
        self.limits = limits
        self.report = report
        self.trace = trace
        self.pieces = 0
        self.recorded = 0
        self.steps = self.evaluations = 0
        self.begin = time.monotonic()

    def go(self, state: Floats) -> Outcome:
        t, y = self.times[0], np.array(state, dtype=np.float64)
        stop = None if np.isfinite(y).all() else Stop("failed", "the initial state is not finite")
        if stop is None:
            self._record_due(t, y)
            self._observe(t, y)
            stop = self.stop
            final = self.times[-1]
            breaks = sorted(b for b in self.problem.breakpoints if t <= b < final)
            for begin, end in zip([t, *breaks], [*breaks, final], strict=True):
                if stop is None and begin < end:
                    # Just beyond a break the next law holds: the tendency is continuous from the left.
                    begin = math.nextafter(begin, math.inf) if begin in breaks else begin
                    t, y, stop = self._segment(begin, end, y)
        if stop is None:
            stop = Stop("completed", f"reached t = {t:g}")
        elif not stop.passing and t > self.times[max(self.recorded - 1, 0)]:
            self.record(t, y)
        seconds = time.monotonic() - self.begin
        return Outcome(stop.status, stop.message, t, self.evaluations, self.steps, seconds, stop.facts, y)

    def _segment(self, begin: float, end: float, y: Floats) -> tuple[float, Floats, Stop | None]:
        """Step over an interval without breakpoints; returns the last sound state, and why it is the last."""
        t, stop, step = begin, self.stop, None
        while stop is None and t < end:
            t, y, stop, step = self._smooth_piece(t, end, y, step)
        return t, y, stop

    def _smooth_piece(
        self, begin: float, end: float, y: Floats, first_step: float | None
    ) -> tuple[float, Floats, Stop | None, float]:
        """Step until the end, a stop or a restart; returns also the step to begin the next piece with."""
        t = begin
        solver = DOP853(
            self.problem.tendency,
            begin,
            y,
            end,
            rtol=max(self.tolerances.rtol, SMALLEST_RTOL),
            atol=self.tolerances.atol / math.sqrt(y.size),
            first_step=None if first_step is None else min(first_step, end - begin),
        )
        self.evaluations += solver.nfev
        if not np.isfinite(solver.f).all():
            return t, y, Stop("failed", f"the tendency is not finite at t = {t:g}"), 0.0
        self.restart = False
        self._trace(solver)
        while solver.status == "running" and not self.restart:
            counted = solver.nfev
            solver.max_step = self.longest_step
            complaint = solver.step()
            if solver.status == "failed" or not np.isfinite(solver.y).all():
                self.evaluations += solver.nfev - counted
                reason = complaint or "the state is not finite"
                stop = Stop("failed", f"no step from t = {t:g} succeeds ({reason.rstrip('.').lower()})")
                return t, y, stop, 0.0
            t, y = float(solver.t), solver.y
            self.steps += 1
            self._trace(solver)
            self._record_due(t, y, solver)
            self.evaluations += solver.nfev - counted
            self._observe(t, y)
            if self.report is not None:
                self.report(t)
            if self.stop is not None:
                break
        self.pieces += 1
        return t, y, self.stop, float(solver.h_abs)

    def _trace(self, solver: DOP853) -> None:
        if self.trace is not None:
            self.trace(self.pieces, float(solver.t), solver.y, solver.f)

    def _record_due(self, t: float, y: Floats, solver: DOP853 | None = None) -> None:
        """Record the snapshots due up to t."""
        interpolant = None
        while self.recorded < len(self.times) and self.times[self.recorded] <= t:
            due = self.times[self.recorded]
            if solver is None or due == t:
                self.record(due, y)
            else:
                interpolant = interpolant or solver.dense_output()
                self.record(due, interpolant(due))
            self.recorded += 1

    def _observe(self, t: float, y: Floats) -> None:
        observation: Observation = self.problem.observe(t, y)
        self.longest_step, self.restart = observation.longest_step, observation.restart
        self.stop = observation.stop
        if self.stop is not None and self.stop.passing and t >= self.times[-1]:
            self.stop = None  # nothing is left for another problem to do
        if self.stop is None and t < self.times[-1]:
            if self.steps >= self.limits.steps:
                self.stop = Stop("failed", f"the limit of {self.limits.steps} steps is reached at t = {t:g}")
            elif time.monotonic() - self.begin > self.limits.wall_seconds:
                self.stop = Stop("failed", f"the limit of {self.limits.wall_seconds:g} s is reached at t = {t:g}")
