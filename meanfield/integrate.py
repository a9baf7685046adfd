"""The stepping loop: a stepper driven step by step, with snapshots, watches and limits.

The stepper is scipy's DOP853, or `meanfield.exponential.ExponentialAdams` where a problem tells of a stiff linear part.
The only module that imports scipy.integrate.  It knows a problem by the protocol `meanfield.problem.Problem` alone.
Snapshots between steps come from the method's own interpolant, so that asking for more of them does not
change the run; the stepper restarts only at the problem's breakpoints.  Between two steps a `Moment` holds all that the
rest of the integration depends on: from there it goes on to the last bit as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import DOP853

from .exponential import ExponentialAdams
from .problem import Observation, Problem, Stop

Floats = NDArray[np.float64]

Stepper: TypeAlias = DOP853 | ExponentialAdams

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

    def exceeded(self, spent: Cost) -> str | None:
        """The limit that is reached, in words."""
        if spent.steps >= self.steps:
            return f"the limit of {self.steps} steps"
        return f"the limit of {self.wall_seconds:g} s" if spent.seconds > self.wall_seconds else None


@dataclass(frozen=True)
class Cost:
    """What has been spent."""

    evaluations: int = 0
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Moment:
    """A place between two steps: with the problem as it is then, all that the rest of an integration depends on.

    Attributes
    ----------
    t, y
        Time and state.
    slope : ndarray or None
        The tendency there, as the stepper has it; None before the first step.
    step : float
        Length of the step to try next.
    longest_step : float
        The longest useful one.
    restart : bool
        Whether a new smooth piece begins.
    linear : ndarray or None
        Diagonal of the stiff linear part, if there is one.
    memory : mapping of str to ndarray
        What a stepper that looks back remembers.
    pieces, recorded : int
        Smooth pieces that are over, and snapshots that are recorded.
    spent : Cost
        Cost so far, of earlier integrations too.
    """

    t: float
    y: Floats
    slope: Floats | None = None
    step: float = 0.0
    longest_step: float = math.inf
    restart: bool = False
    pieces: int = 0
    recorded: int = 1
    spent: Cost = Cost()
    linear: Floats | None = None
    memory: Mapping[str, Floats] = field(default_factory=dict)

    def parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Plain numbers, and arrays, from which `assembled` makes the moment again."""
        kept = ("y", "slope", "linear")
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*kept, "memory", "spent")}
        arrays = {name: getattr(self, name) for name in kept if getattr(self, name) is not None}
        arrays |= {f"memory.{name}": array for name, array in self.memory.items()}
        return {**plain, "spent": [self.spent.evaluations, self.spent.steps, self.spent.seconds]}, arrays

    @classmethod
    def assembled(cls, plain: Mapping[str, Any], arrays: Mapping[str, Floats]) -> Moment:
        """Moment of its parts."""
        memory = {name.removeprefix("memory."): array for name, array in arrays.items() if name.startswith("memory.")}
        own = {name: arrays.get(name) for name in ("y", "slope", "linear")}
        return cls(**{**plain, **own, "spent": Cost(*plain["spent"]), "memory": memory})


@dataclass(frozen=True)
class Outcome:
    """How an integration ended, and what it and those before it cost."""

    status: str
    message: str
    stop_time: float
    evaluations: int
    steps: int
    wall_seconds: float
    facts: Mapping[str, float] = field(default_factory=dict)
    state: Floats = field(default_factory=lambda: np.empty(0))
    """The last sound state."""
    moment: Moment | None = None
    """Where it may go on, if it was interrupted or a limit was reached."""

    @property
    def spent(self) -> Cost:
        """Cost, for what goes on from here."""
        return Cost(self.evaluations, self.steps, self.wall_seconds)


def integrate(
    problem: Problem,
    state: Floats,
    times: Sequence[float],
    record: Callable[[float, Floats], None],
    tolerances: Tolerances = Tolerances(),
    limits: Limits = Limits(),
    report: Callable[[float], None] | None = None,
    trace: Callable[[int, float, Floats, Floats], None] | None = None,
    keep: Callable[[Moment], str | None] | None = None,
    begin: Moment | Cost = Cost(),
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
    keep : callable, optional
        Called before the first step and after every step with the `Moment`; a reason that it returns interrupts the
        integration there.
    begin : Moment or Cost, optional
        Where to go on, instead of from ``state``, with the same ``times``; or what has been spent by others before,
        which counts for the limits and in the outcome.

    Returns
    -------
    Outcome
        Status "completed", that of the `Stop` which the problem asked for, "interrupted", or "failed" (non-finite
        numbers, a vanishing step, a limit reached).

    Raises
    ------
    ValueError
        If the times do not increase strictly.
    """
    if len(times) < 2 or any(later <= earlier for earlier, later in pairwise(times)):
        raise ValueError(f"times must be at least two and increase strictly, got {list(times)}")
    run = _Run(problem, [float(t) for t in times], record, tolerances, limits, report, trace, keep)
    with np.errstate(all="ignore"):  # every accepted state is checked, and the outcome says what happened
        return run.go_on(begin) if isinstance(begin, Moment) else run.go(state, begin)


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
        keep: Callable[[Moment], str | None] | None,
    ) -> None:
        self.problem = problem
        self.times = times
        self.record = record
        self.tolerances = tolerances
        self.limits = limits
        self.report = report
        self.trace = trace
        self.keep = keep
        self.pieces = 0
        self.recorded = 0
        self.complaint = ""
        self.stop: Stop | None = None
        self.moment: Moment | None = None

    def go(self, state: Floats, spent: Cost) -> Outcome:
        """From the first time to the last."""
        self._count_from(spent)
        t, y = self.times[0], np.array(state, dtype=np.float64)
        if np.isfinite(y).all():
            self._record_due(t, y)
            self._observe(t, y)
            self._pause(Moment(t, y, longest_step=self.longest_step, spent=self._spent(), linear=self.linear))
        else:
            self.stop = Stop("failed", "the initial state is not finite")
        return self._finish(*self._segments(t, y, None))

    def go_on(self, moment: Moment) -> Outcome:
        """From a moment to the last time."""
        self._count_from(moment.spent)
        self.pieces, self.recorded = moment.pieces, moment.recorded
        self.longest_step, self.linear = moment.longest_step, moment.linear
        self._pause(moment)
        return self._finish(*self._segments(moment.t, moment.y, moment))

    def _count_from(self, spent: Cost) -> None:
        self.evaluations, self.steps = spent.evaluations, spent.steps
        self.begin = time.monotonic() - spent.seconds

    def _spent(self) -> Cost:
        return Cost(self.evaluations, self.steps, time.monotonic() - self.begin)

    def _segments(self, t: float, y: Floats, moment: Moment | None) -> tuple[float, Floats]:
        """Step over the intervals between breakpoints; returns the last sound state."""
        first, final = self.times[0], self.times[-1]
        breaks = sorted(b for b in self.problem.breakpoints if first <= b < final)
        for begin, end in zip([first, *breaks], [*breaks, final], strict=True):
            if self.stop is None and begin < end and t < end:
                if t <= begin:  # just beyond a break the next law holds: the tendency is continuous from the left
                    t, moment = math.nextafter(begin, math.inf) if begin in breaks else begin, None
                t, y = self._segment(t, end, y, moment)
        return t, y

    def _finish(self, t: float, y: Floats) -> Outcome:
        stop = self.stop or Stop("completed", f"reached t = {t:g}")
        if self.stop is not None and not stop.passing and t > self.times[max(self.recorded - 1, 0)]:
            self.record(t, y)
        spent = self._spent()
        numbers = (spent.evaluations, spent.steps, spent.seconds)
        return Outcome(stop.status, stop.message, t, *numbers, stop.facts, y, self.moment)

    def _segment(self, t: float, end: float, y: Floats, moment: Moment | None) -> tuple[float, Floats]:
        """Step over an interval without breakpoints."""
        step = None
        if moment is not None and moment.restart:
            step, moment = moment.step, None
        while self.stop is None and t < end:
            t, y, step = self._smooth_piece(t, end, y, step, moment)
            moment = None
        return t, y

    def _smooth_piece(
        self, begin: float, end: float, y: Floats, first_step: float | None, moment: Moment | None
    ) -> tuple[float, Floats, float]:
        """Step until the end, a stop or a restart; returns also the step to begin the next piece with."""
        t = begin
        if moment is not None:
            first_step = end - begin
        elif first_step is not None:
            first_step = min(first_step, end - begin)
        solver = self._stepper(begin, y, end, first_step)
        if moment is not None and isinstance(solver, ExponentialAdams):
            solver.recall(moment.memory, moment.step)
        elif moment is not None:  # in a piece; the stepper's own slope may differ from this in the last bit
            solver.f, solver.h_abs = moment.slope, moment.step
        else:
            self.evaluations += solver.nfev
            if not np.isfinite(solver.f).all():
                reason = self.complaint or "the tendency is not finite"
                self.stop = Stop("failed", f"{reason} at t = {t:g}")
                return t, y, 0.0
            self._trace(solver)
        restart = False
        while self.stop is None and solver.status == "running" and not restart:
            counted, self.complaint = solver.nfev, ""
            solver.max_step = self.longest_step
            complaint = solver.step()
            if solver.status == "failed" or not np.isfinite(solver.y).all():
                self.evaluations += solver.nfev - counted
                reason = self.complaint or complaint or "the state is not finite"
                self.stop = Stop("failed", f"no step from t = {t:g} succeeds ({reason.rstrip('.').lower()})")
                return t, y, 0.0
            t, y = float(solver.t), solver.y
            self.steps += 1
            self._trace(solver)
            self._record_due(t, y, solver)
            self.evaluations += solver.nfev - counted
            restart = self._observe(t, y)
            if self.report is not None:
                self.report(t)
            pieces = self.pieces + (restart or solver.status != "running")
            self._pause(
                Moment(
                    t,
                    y,
                    solver.f,
                    float(solver.h_abs),
                    self.longest_step,
                    restart,
                    pieces,
                    self.recorded,
                    self._spent(),
                    self.linear,
                    solver.memory if isinstance(solver, ExponentialAdams) else {},
                )
            )
        self.pieces += 1
        return t, y, float(solver.h_abs)

    def _stepper(self, begin: float, y: Floats, end: float, first_step: float | None) -> Stepper:
        options: dict[str, Any] = {
            "rtol": max(self.tolerances.rtol, SMALLEST_RTOL),
            "atol": self.tolerances.atol / math.sqrt(y.size),
            "first_step": first_step,
        }
        if self.linear is None:
            return DOP853(self._tendency, begin, y, end, **options)
        return ExponentialAdams(self._tendency, self.linear, begin, y, end, **options)

    def _tendency(self, t: float, y: Floats) -> Floats:
        """Rate of the problem; where it has none, what it says is kept, and a shorter step may do."""
        try:
            return self.problem.tendency(t, y)
        except ArithmeticError as error:
            self.complaint = str(error)
            return np.full_like(y, np.nan)

    def _trace(self, solver: Stepper) -> None:
        if self.trace is not None:
            self.trace(self.pieces, float(solver.t), solver.y, solver.f)

    def _record_due(self, t: float, y: Floats, solver: Stepper | None = None) -> None:
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

    def _observe(self, t: float, y: Floats) -> bool:
        """Hear what the problem says of a state; whether the stepper must begin anew."""
        observation: Observation = self.problem.observe(t, y)
        self.longest_step, self.linear = observation.longest_step, observation.linear
        self.stop = observation.stop
        if self.stop is not None and self.stop.passing and t >= self.times[-1]:
            self.stop = None  # nothing is left for another problem to do
        return observation.restart

    def _pause(self, moment: Moment) -> None:
        """Offer a moment to be kept, and see whether to go on from it."""
        if self.stop is not None:
            return
        reason = None if self.keep is None else self.keep(moment)
        if moment.t >= self.times[-1]:
            return
        if reason is not None:
            self.stop = Stop("interrupted", f"{reason} at t = {moment.t:.6g}", passing=True)
        elif (exceeded := self.limits.exceeded(self._spent())) is not None:
            self.stop = Stop("failed", f"{exceeded} is reached at t = {moment.t:g}")
        if self.stop is not None:
            self.moment = moment
