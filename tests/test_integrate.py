"""The stepping loop on small problems with known answers, and every way in which a run can end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from meanfield.integrate import Cost, Limits, Moment, Outcome, Tolerances, integrate
from meanfield.problem import Observation, Stop


@dataclass
class Small:
    """y' = f(t, y), with what it says of accepted states."""

    f: Callable[[float, np.ndarray], np.ndarray]
    say: Callable[[float, np.ndarray], Observation] = lambda t, y: Observation()
    breakpoints: tuple[float, ...] = ()

    def tendency(self, t: float, y: np.ndarray) -> np.ndarray:
        return self.f(t, y)

    def observe(self, t: float, y: np.ndarray) -> Observation:
        return self.say(t, y)


def rotation(t: float, y: np.ndarray) -> np.ndarray:
    return np.array([-y[1], y[0]])


def run(
    problem: Small,
    times: list[float],
    tolerances: Tolerances = Tolerances(),
    limits: Limits = Limits(),
    start: tuple[float, ...] = (1.0, 0.0),
) -> tuple[list[tuple[float, np.ndarray]], Outcome]:
    records: list[tuple[float, np.ndarray]] = []
    outcome = integrate(problem, np.array(start), times, lambda t, y: records.append((t, y.copy())), tolerances, limits)
    return records, outcome


def test_snapshots_are_bitwise_where_they_were_asked_for_and_right() -> None:
    times = [k * 10.0 / 97 for k in range(97)] + [10.0]
    records, outcome = run(Small(rotation), times)
    assert [t for t, _ in records] == times
    for t, y in records:
        np.testing.assert_allclose(y, [math.cos(t), math.sin(t)], atol=1e-8)  # time stepping, 20 steps at 1e-9
    assert (outcome.status, outcome.stop_time) == ("completed", 10.0)


def test_snapshots_do_not_change_the_steps() -> None:
    few, one = run(Small(rotation), [0.0, 10.0])
    many, other = run(Small(rotation), list(np.linspace(0, 10, 301)))
    np.testing.assert_array_equal(few[-1][1], many[-1][1])
    assert one.steps == other.steps
    assert other.evaluations <= one.evaluations + 3 * one.steps  # the interpolant's own stages


@pytest.mark.parametrize("order_tolerance", [1e-4, 1e-6, 1e-8, 1e-10])
def test_error_follows_the_tolerance(order_tolerance: float) -> None:
    records, _ = run(Small(rotation), [0.0, 10.0], Tolerances(order_tolerance, order_tolerance))
    error = np.linalg.norm(records[-1][1] - [math.cos(10), math.sin(10)])
    assert error < 10 * order_tolerance  # time stepping, some ten steps


def test_tolerance_is_a_norm_of_the_whole_state() -> None:
    """A thousand idle components more change nothing: atol bounds the norm, not its mean over components."""

    def padded(t: float, y: np.ndarray) -> np.ndarray:
        change = np.zeros_like(y)
        change[:2] = rotation(t, y[:2])
        return change

    _, alone = run(Small(rotation), [0.0, 10.0], Tolerances(1e-14, 1e-8))
    _, company = run(Small(padded), [0.0, 10.0], Tolerances(1e-14, 1e-8), start=(1.0, 0.0, *np.zeros(1000)))
    assert abs(alone.steps - company.steps) <= 1


def test_breakpoints_restart_the_stepper() -> None:
    calls: list[float] = []

    def kinked(t: float, y: np.ndarray) -> np.ndarray:
        calls.append(t)
        return np.array([1.0 if t <= 1.0 else -5.0])

    problem = Small(kinked, breakpoints=(1.0,))
    records, outcome = run(problem, [0.0, 0.5, 1.0, 1.5, 2.0], start=(0.0,))
    np.testing.assert_allclose([y[0] for _, y in records], [0, 0.5, 1.0, -1.5, -4.0], atol=1e-12)  # round-off
    assert outcome.steps < 20
    assert calls[0] == 0.0
    for breakpoints in ((0.0,), (2.0,), (7.0,), (0.5, 1.5)):
        records, outcome = run(Small(rotation, breakpoints=breakpoints), [0.0, 2.0])
        assert outcome.status == "completed"
        np.testing.assert_allclose(records[-1][1], [math.cos(2), math.sin(2)], atol=1e-8)


def test_a_break_at_the_start_holds_from_there() -> None:
    problem = Small(lambda t, y: np.array([100.0 if t <= 0.0 else 1.0]), breakpoints=(0.0,))
    records, _ = run(problem, [0.0, 1.0], start=(0.0,))
    assert records[-1][1][0] == pytest.approx(1.0, abs=1e-12)


def test_stop_at_the_first_time_is_noticed() -> None:
    problem = Small(rotation, lambda t, y: Observation(Stop("fold", "at once", {"fold_time": 0.0})))
    records, outcome = run(problem, [0.0, 1.0])
    assert [t for t, _ in records] == [0.0]
    assert (outcome.status, outcome.stop_time, outcome.facts) == ("fold", 0.0, {"fold_time": 0.0})


def test_the_stop_state_is_the_last_record() -> None:
    seen: list[float] = []

    def say(t: float, y: np.ndarray) -> Observation:
        seen.append(t)
        return Observation(Stop("unresolved", "enough") if t > 3.3 else None, longest_step=0.25)

    records, outcome = run(Small(rotation, say), list(np.linspace(0, 10, 11)))
    times = [t for t, _ in records]
    assert times[:4] == [0.0, 1.0, 2.0, 3.0]
    assert times[-1] == outcome.stop_time == seen[-1]
    assert 3.3 < times[-1] <= 3.3 + 0.25
    assert (np.diff(times) > 0).all()
    np.testing.assert_allclose(records[-1][1], [math.cos(times[-1]), math.sin(times[-1])], atol=1e-8)


def test_a_stop_on_a_snapshot_is_recorded_once() -> None:
    problem = Small(rotation, lambda t, y: Observation(Stop("fold", "") if t >= 1.0 else None))
    records, outcome = run(problem, [0.0, 1.0])
    assert [t for t, _ in records] == [0.0, 1.0]
    assert outcome.status == "fold"


def test_a_problem_that_would_pass_the_run_on_at_its_end_completes_it() -> None:
    late = Small(rotation, lambda t, y: Observation(Stop("handover", "", passing=True) if t >= 1.0 else None))
    records, outcome = run(late, [0.0, 1.0])
    assert ([t for t, _ in records], outcome.status) == ([0.0, 1.0], "completed")
    early = Small(rotation, lambda t, y: Observation(Stop("handover", "", passing=True) if t >= 0.5 else None, 0.3))
    records, outcome = run(early, [0.0, 1.0])
    assert ([t for t, _ in records], outcome.status) == ([0.0], "handover")  # its state is no record
    np.testing.assert_allclose(outcome.state, [math.cos(outcome.stop_time), math.sin(outcome.stop_time)], atol=1e-8)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_end_the_run_soon(value: float) -> None:
    problem = Small(lambda t, y: rotation(t, y) if t < 0.5 else np.full(2, value))
    begin = time.monotonic()
    records, outcome = run(problem, list(np.linspace(0, 1, 11)))
    assert time.monotonic() - begin < 5
    assert outcome.status == "failed"
    assert "t = 0." in outcome.message
    assert 0.3 < outcome.stop_time <= 0.5
    assert all(np.isfinite(y).all() for _, y in records)
    assert records[-1][0] == outcome.stop_time


def test_a_tendency_that_there_is_not_ends_the_run_and_says_why() -> None:
    def lost(t: float, y: np.ndarray) -> np.ndarray:
        if t >= 0.5:
            raise ArithmeticError("there is no field")
        return rotation(t, y)

    records, outcome = run(Small(lost), list(np.linspace(0, 1, 11)))
    assert outcome.status == "failed"
    assert "there is no field" in outcome.message
    assert 0.3 < outcome.stop_time < 0.5
    assert records[-1][0] == outcome.stop_time
    _, outcome = run(Small(lost), [0.6, 1.0])
    assert (outcome.status, outcome.message) == ("failed", "there is no field at t = 0.6")


def test_a_start_that_is_not_finite_fails_without_a_record() -> None:
    records, outcome = run(Small(rotation), [0.0, 1.0], start=(math.nan, 0.0))
    assert (records, outcome.status) == ([], "failed")
    records, outcome = run(Small(lambda t, y: y * math.nan), [0.0, 1.0])
    assert (len(records), outcome.status, outcome.stop_time) == (1, "failed", 0.0)


def test_finite_time_blow_up_ends_the_run() -> None:
    records, outcome = run(Small(lambda t, y: y * y), [0.0, 2.0], start=(1.0,), limits=Limits(steps=2000))
    assert outcome.status == "failed"
    assert outcome.stop_time == pytest.approx(1.0, abs=1e-3)
    assert np.isfinite(records[-1][1]).all()


def test_limits_end_the_run() -> None:
    stiff = Small(lambda t, y: -1e9 * (y - math.cos(t)))
    records, outcome = run(stiff, [0.0, 1.0], limits=Limits(steps=50), start=(0.0,))
    assert (outcome.status, outcome.steps) == ("failed", 50)
    assert "50 steps" in outcome.message
    begin = time.monotonic()
    _, outcome = run(stiff, [0.0, 1.0], limits=Limits(wall_seconds=0.3), start=(0.0,))
    assert outcome.status == "failed"
    assert time.monotonic() - begin < 3
    assert records[-1][0] == pytest.approx(0.0, abs=1e-3)


def test_the_longest_step_is_kept() -> None:
    seen: list[float] = []

    def say(t: float, y: np.ndarray) -> Observation:
        seen.append(t)
        return Observation(longest_step=0.1)

    run(Small(lambda t, y: 0 * y, say), [0.0, 2.0])
    assert max(np.diff(seen)) <= 0.1 + 1e-12


@pytest.mark.parametrize("times", [[0.0], [0.0, 0.0], [1.0, 0.5], []])
def test_bad_times_are_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match="increase strictly"):
        run(Small(rotation), times)


def kinked(t: float, y: np.ndarray) -> np.ndarray:
    return rotation(t, y) * (1.0 if t <= 1.0 else 3.0) * math.cos(t)


@pytest.mark.parametrize("restarting", [False, True])
def test_it_goes_on_from_any_moment_to_the_same_bits(restarting: bool) -> None:
    """Also at the start, at a breakpoint, and where a problem asks for a restart."""

    def say(t: float, y: np.ndarray) -> Observation:
        return Observation(longest_step=0.3 + 0.1 * math.sin(7 * t), restart=restarting and math.sin(9 * t) > 0.5)

    problem, times = Small(kinked, say, breakpoints=(1.0,)), list(np.linspace(0.0, 3.0, 8))
    moments: list[Moment] = []
    rows: list[tuple[int, float, bytes, bytes]] = []
    records: list[tuple[float, bytes]] = []

    def trace(piece: int, t: float, y: np.ndarray, slope: np.ndarray) -> None:
        rows.append((piece, t, y.tobytes(), slope.tobytes()))

    def record(t: float, y: np.ndarray) -> None:
        records.append((t, y.tobytes()))

    counts: list[tuple[int, int]] = []

    def keep(moment: Moment) -> None:
        moments.append(moment)
        counts.append((len(rows), len(records)))

    whole = integrate(problem, np.array([1.0, 0.0]), times, record, trace=trace, keep=keep)
    all_rows, all_records = list(rows), list(records)
    assert len(moments) == whole.steps + 1 > 10
    for moment, (row, number) in zip(list(moments), list(counts), strict=True):
        rows, records = all_rows[:row], all_records[:number]
        plain, arrays = moment.parts()
        again = Moment.assembled(json.loads(json.dumps(plain)), arrays)
        outcome = integrate(problem, np.empty(0), times, record, trace=trace, begin=again)
        assert (outcome.evaluations, outcome.steps) == (whole.evaluations, whole.steps)
        assert rows == all_rows
        assert records == all_records
        assert outcome.wall_seconds >= moment.spent.seconds


def test_an_interruption_is_no_record_and_knows_its_moment() -> None:
    records: list[float] = []
    asked = iter(range(100))
    outcome = integrate(
        Small(rotation, lambda t, y: Observation(longest_step=0.1)),
        np.array([1.0, 0.0]),
        [0.0, 1.0],
        lambda t, y: records.append(t),
        keep=lambda moment: "enough" if next(asked) == 3 else None,
    )
    assert (outcome.status, outcome.steps, records) == ("interrupted", 3, [0.0])
    assert outcome.moment is not None
    assert outcome.message == f"enough at t = {outcome.stop_time:.6g}"
    assert outcome.moment.t == outcome.stop_time


def test_what_was_spent_before_counts() -> None:
    problem = Small(rotation, lambda t, y: Observation(longest_step=0.1))
    spent = Cost(100, 46, 50.0)
    state, times = np.array([1.0, 0.0]), [0.0, 1.0]
    outcome = integrate(problem, state, times, lambda t, y: None, limits=Limits(steps=50), begin=spent)
    assert (outcome.status, outcome.steps) == ("failed", 50)
    outcome = integrate(problem, state, times, lambda t, y: None, limits=Limits(wall_seconds=40.0), begin=spent)
    assert (outcome.status, outcome.stop_time) == ("failed", 0.0)
    assert outcome.moment is not None


STIFF = np.array([-1.0, -1e6])


def relaxing() -> Small:
    """y' = λ(y − cos t) − sin t, solved by cos t."""
    return Small(lambda t, y: STIFF * (y - math.cos(t)) - math.sin(t), lambda t, y: Observation(linear=STIFF))


def test_a_stiff_linear_part_does_not_bound_the_step() -> None:
    times = [0.0, 1.0, 2.5, 10.0]
    records, outcome = run(relaxing(), times, start=(1.0, 1.0))
    assert outcome.status == "completed"
    assert outcome.evaluations < 500
    assert [t for t, _ in records] == times
    for t, y in records:
        np.testing.assert_allclose(y, math.cos(t), atol=1e-8)  # time stepping at 1e-9


def test_a_stiff_run_goes_on_to_the_last_bit() -> None:
    moments: list[Moment] = []
    whole: list[np.ndarray] = []
    times = [0.0, 1.0, 10.0]
    integrate(relaxing(), np.ones(2), times, lambda t, y: whole.append(y), keep=lambda m: moments.append(m))
    for moment in moments[:-1:7]:
        again = Moment.assembled(*moment.parts())
        rest: list[np.ndarray] = []
        integrate(relaxing(), again.y, times, lambda t, y, rest=rest: rest.append(y), begin=again)
        np.testing.assert_array_equal(rest[-1], whole[-1])
