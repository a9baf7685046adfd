"""Fixed steps from record to record: layers of one depth, or strides of at most one length."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeAlias

import numpy as np

from .integrate import Cost, Limits, Moment, Outcome
from .problem import Stop
from .space import Floats

Stride: TypeAlias = tuple[float, float, float | None]
"""Begin and end of one step, and the time of the record due at its end."""


def march(
    advance: Callable[[Floats, float, float], Floats],
    evaluations: int,
    begin: Moment,
    first: bool,
    strides: Iterator[Stride],
    write: Callable[[float, Floats], None],
    limits: Limits,
    report: Callable[[float], None],
    keep: Callable[[Moment], str | None],
) -> Outcome:
    """Take fixed steps, ``evaluations`` of attention each, from record to record; at first the start is one too."""
    clock = time.monotonic() - begin.spent.seconds
    t, y, steps = begin.t, begin.y, begin.spent.steps

    def spent() -> Cost:
        return Cost(evaluations * steps, steps, time.monotonic() - clock)

    stop: Stop | None = None
    moment: Moment | None = None
    with np.errstate(all="ignore"):  # every state is checked, and the outcome says what happened
        if first:
            write(t, y)
        for start, end, due in islice(strides, steps, None):
            now = Moment(t, y, spent=spent())
            if (reason := keep(now)) is not None:
                stop, moment = Stop("interrupted", f"{reason} at t = {t:.6g}"), now
                break
            if (exceeded := limits.exceeded(now.spent)) is not None:
                stop, moment = Stop("failed", f"{exceeded} is reached at t = {t:g}"), now
                break
            following = advance(y, start, end)
            steps += 1
            if not np.isfinite(following).all():
                stop = Stop("failed", f"the state is not finite after t = {t:g}")
                break
            t, y = end, following
            if due is not None:
                write(due, y)
            report(t)
    stop = stop or Stop("completed", f"reached t = {t:g}")
    cost = spent()
    return Outcome(stop.status, stop.message, t, cost.evaluations, cost.steps, cost.seconds, moment=moment)


def layer_steps(times: Sequence[float], step: float) -> Iterator[Stride]:
    """Layers of one depth, counted in integers; every record must lie at the end of one."""
    numbers = [round(t / step) for t in times]
    for t, number in zip(times, numbers, strict=True):
        if abs(t - number * step) > 1e-9 * step or (t > 0.0 and number == 0):
            below = math.floor(t / step)
            raise ValueError(
                f'time.snapshots: with particles.update = "layers" must be multiples of particles.step = {step:g}, '
                f"such as {below * step:g} and {(below + 1) * step:g}, got {t:g}"
            )
    for (first, last), due in zip(pairwise(numbers), times[1:], strict=True):
        for number in range(first, last):
            final = number + 1 == last
            yield number * step, due if final else (number + 1) * step, due if final else None


def equal_steps(times: Sequence[float], breakpoints: Sequence[float], step: float) -> Iterator[Stride]:
    """Equal steps, none longer than ``step``, between the records and the breakpoints."""
    breaks = {b for b in breakpoints if times[0] <= b < times[-1]}
    for begin, end in pairwise(sorted({*times, *breaks})):
        number = max(1, math.ceil((end - begin) / step * (1.0 - 1e-12)))
        knots = [begin + k * (end - begin) / number for k in range(number)] + [end]
        if begin in breaks:  # just beyond a break the next law holds: the tendency is continuous from the left
            knots[0] = math.nextafter(begin, math.inf)
        for index, (start, stop) in enumerate(pairwise(knots)):
            yield start, stop, end if index == number - 1 and end in times else None
