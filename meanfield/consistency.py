"""Keys of a case that are right alone but not together, and sizes that no machine holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .kernels import LARGEST_UNNORMALIZED_BETA
from .tables import TABLES, Attention, Drawn, shape_of_operator
from .validation import Fault, show

if TYPE_CHECKING:
    from .case import Case

_LARGEST_NUMBER = 1e100  # products of several numbers of a case, and their inverses, stay finite
_MOST_IN_MEMORY = 2**31  # numbers: 16 GiB
_MOST_ON_DISK = 2**40  # numbers: 8 TiB
_MOST_STEPS = 10**8  # of a fixed length


def disagreements(case: Case) -> Iterator[Fault]:
    """Keys that are right alone but not together."""
    attention, time, d = case.attention, case.time, case.space.dimension
    for section, table in case.to_dict().items():
        for key, value in table.items() if section in TABLES else ():
            for at, number in _extreme(value):
                what = f"a number of magnitude {1 / _LARGEST_NUMBER:g} ... {_LARGEST_NUMBER:g}"
                yield Fault((section, key), f"expected {what}, got {number:g}", at)
    yield from _excesses(case)
    if attention.kernel == "unnormalized" and abs(attention.beta) > LARGEST_UNNORMALIZED_BETA:
        what = f"|beta| <= {LARGEST_UNNORMALIZED_BETA:g} with kernel 'unnormalized', as e^beta overflows"
        yield Fault(("attention", "beta"), f"expected {what}, got {attention.beta:g}")
    yield from _misfits(attention, d)
    if case.initial.dimension not in (None, d):
        what = f"a law in dimension {d}, as space.dimension is"
        yield Fault(("initial", "law"), f"expected {what}, got one in {case.initial.dimension}")
    if case.space.kind != "sphere" and case.output.grid != "gauss":
        what = f"'gauss', the solver's grid, on space.kind = {case.space.kind!r}"
        yield Fault(("output", "grid"), f"expected {what}, got {show(case.output.grid)}")
    if isinstance(time.snapshots, int):
        return
    for index, (t, later) in enumerate(zip(time.snapshots, (*time.snapshots[1:], math.inf), strict=True)):
        if not (0.0 <= t <= time.final and t < later):
            what = f"strictly increasing times within [0, final = {time.final:g}]"
            yield Fault(("time", "snapshots"), f"expected {what}, got {t:g} before {later:g}", (index,))
            return


def contradictions(case: Case) -> list[Fault]:
    """What attention says of its own keys, once they are sound."""
    try:
        _ = case.interaction
    except ValueError as error:
        key, _, text = str(error).partition(": ")
        return [Fault(("attention", key), text)]
    return []


def _misfits(attention: Attention, dimension: int) -> Iterator[Fault]:
    """Matrices that are not of this dimension, or not as many as there are heads; draws that are of nothing."""
    drawn, counts = False, {}
    for key in ("query_key", "value"):
        operator = getattr(attention, key)
        drawn = drawn or isinstance(operator, Drawn)
        if operator is None or isinstance(operator, Drawn):
            continue
        several = shape_of_operator(operator) == "heads"
        for index, matrix in enumerate(operator if several else (operator,)):
            if {len(matrix), *map(len, matrix)} != {dimension}:
                columns = " or ".join(str(n) for n in sorted({len(row) for row in matrix})) or "0"
                what = f"{dimension} rows of {dimension} numbers, as in space"
                at = (index,) if several else ()
                yield Fault(("attention", key), f"expected {what}, got {len(matrix)} rows of {columns}", at)
        if several:
            counts[key] = len(operator)
    for key in () if drawn else ("layers",) if counts else ("heads", "layers"):
        if (number := getattr(attention, key)) > 1:
            yield Fault(("attention", key), f"expected 1 unless query_key or value is drawn, got {number}")
    if drawn or attention.heads > 1:
        counts["heads"] = attention.heads
    if len(set(counts.values())) > 1:
        got = " and ".join(f"{number} of {key}" for key, number in counts.items())
        yield Fault(("attention", [*counts][-1]), f"expected as many heads as matrices in a list, got {got}")


def _excesses(case: Case) -> Iterator[Fault]:
    """Sizes that no machine holds: refused before memory is taken."""
    particles, grid, d = case.particles, case.output.grid, case.space.dimension
    records = case.time.snapshots if isinstance(case.time.snapshots, int) else len(case.time.snapshots)
    points = 0.0 if grid == "gauss" else float(grid[0]) * grid[1]
    sizes = (
        (("particles", "count"), float(max(particles.count)) * d, _MOST_IN_MEMORY),
        (("particles", "seeds"), sum(map(float, particles.count)) * d * particles.seeds * records, _MOST_ON_DISK),
        (("initial", "count"), float(getattr(case.initial, "count", 0)) * d, _MOST_IN_MEMORY),
        (("output", "grid"), points, _MOST_IN_MEMORY),
        (("output", "grid"), points * records, _MOST_ON_DISK),
    )
    for path, numbers, most in sizes:
        if numbers > most:
            yield Fault(path, f"expected at most {most:.1e} numbers to hold, got {numbers:.1e}")
    if particles.step is not None and case.time.final / particles.step > _MOST_STEPS:
        least = case.time.final / _MOST_STEPS
        yield Fault(
            ("particles", "step"), f"expected at least final / {_MOST_STEPS:.0e} = {least:g}, got {particles.step:g}"
        )


def _extreme(value: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], float]]:
    """Numbers in a value that are too large or too small to compute with, and their indices within it."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _extreme(item, (*at, index))
    elif isinstance(value, float) and value and not 1 / _LARGEST_NUMBER <= abs(value) <= _LARGEST_NUMBER:
        yield at, value
