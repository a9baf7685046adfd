"""All members of a sweep as one dataset along the swept coordinates."""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from . import __version__
from .dataset import CONVENTIONS, library_versions, open_run
from .plan import Member, Plan, State, value_text
from .space import Floats

CLUSTERED = 0.99
"""Length of the mean token from which the tokens are one cluster."""
PAIRED = 0.5
"""Fraction of close pairs from which most tokens have found a cluster."""

CURVES = (("time",), ("time", "axis"), ("seed", "time"), ("seed", "time", "axis"))
"""Dimensions of what is taken from the runs: numbers and vectors of each record."""
FACTS = {
    "stop_time": "time at which the member ended",
    "fold_time": "time at which the radius ceases to be a function of the direction",
    "unresolved_since": "time from which the gridded density is wrong",
    "wall_seconds": "seconds that the run took",
    "tendency_evaluations": "evaluations of the tendency",
}
"""Attributes of the runs that become variables."""
CROSSINGS = {
    "clustering_time": ("order_parameter", CLUSTERED, "time to cluster: the length of the mean token reaches 0.99"),
    "pairing_time": ("close_pairs", PAIRED, "time at which half of the pairs of tokens are close"),
}
"""Times that are read off a curve: which curve, what level."""


def gather(plan: Plan) -> xarray.Dataset:
    """Read every member of a sweep, whatever has become of it, into one dataset.

    Returns
    -------
    xarray.Dataset
        Over the swept coordinates (of a zipped sweep, over ``member``) and ``time``, the union of the members' times:
        the diagnostics of each record, NaN where there is none, of particles for each ``seed``; over the swept
        coordinates ``status``, ``message``, ``file``, ``stop_time``, ``clustering_time``, ``pairing_time`` (linear
        between records, NaN if never), and the cost.
    """
    coordinates = _coordinates(plan)
    dimensions = tuple(coordinates) if plan.mode == "product" else ("member",)
    shape = tuple(len(coordinates[name][1]) for name in dimensions)
    places = list(product(*map(range, shape)))
    times = np.array(sorted({t for member in plan.members if member.case for t in member.case.time.times}))
    table = _Table(dimensions, set(coordinates), shape, times)
    states = []
    for place, member in zip(places, plan.members, strict=True):
        states.append(table.take(place, member) if member.case and member.path.exists() else member.state())
        table.texts(place, {"status": states[-1].status, "message": states[-1].message, "file": member.path.name})
    data = xarray.Dataset(table.variables(), {**coordinates, **table.coordinates()})
    return data.assign_attrs(_attributes(plan, states, table))


def summary(states: Sequence[State]) -> str:
    """Count what has become of the members."""
    often = Counter(state.status for state in states)
    others = [f"{number} {status}" for status, number in sorted(often.items()) if status != "completed"]
    return ", ".join([f"{often['completed']} of {len(states)} members completed", *others])


def write(data: xarray.Dataset, path: Path) -> None:
    """Write a dataset whole or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        plain = {name: {"_FillValue": None} for name in data.coords if data[name].dtype != object}
        data.to_netcdf(draft, engine="netcdf4", encoding=plain)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def open_sweep(path: str | os.PathLike[str]) -> xarray.Dataset:
    """Open the members of a sweep together.

    Parameters
    ----------
    path : path
        Folder of a sweep, or the file beside it.

    Returns
    -------
    xarray.Dataset
        As `gather` describes it.

    Raises
    ------
    FileNotFoundError, PermissionError
        If there is no such file, or it may not be read.
    ValueError
        If it is not that of a sweep.
    """
    path = Path(path)
    if path.is_dir():
        path = path.with_name(f"{path.name}.nc")
    data = open_run(path)
    if "sweep" not in data.attrs:
        data.close()
        raise ValueError(f"{path}: not the file of a sweep (it lacks the attribute 'sweep')")
    return data  # type: ignore[no-any-return]


def first_crossing(times: Floats, values: Floats, level: float) -> float:
    """Time at which values first reach a level, linear between records; NaN if they never do."""
    reached = np.flatnonzero(values >= level)
    if not reached.size:
        return float("nan")
    index = int(reached[0])
    if index == 0 or not np.isfinite(values[index - 1]):
        return float(times[index])
    low, high = values[index - 1], values[index]
    return float(times[index - 1] + (level - low) / (high - low) * (times[index] - times[index - 1]))


class _Table:
    """Variables over the swept dimensions, filled member by member."""

    def __init__(self, dimensions: tuple[str, ...], swept: set[str], shape: tuple[int, ...], times: Floats) -> None:
        self.dimensions = dimensions
        self.swept = swept
        self.shape = shape
        self.times = times
        self.seeds = 0
        self.facts: dict[str, Floats] = {}
        self._curves: dict[str, dict[tuple[int, ...], Floats]] = {}
        self._rests: dict[str, tuple[str, ...]] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._axes: list[str] = []
        self._texts: dict[str, Any] = {}

    def texts(self, place: tuple[int, ...], values: dict[str, str]) -> None:
        for name, value in values.items():
            self._texts.setdefault(name, np.full(self.shape, "", dtype=object))[place] = value

    def take(self, place: tuple[int, ...], member: Member) -> State:
        """Read the run of a member: what has become of it, its facts, and its records at the times of its case."""
        try:
            with open_run(member.path) as run:
                state = member.judged(run.attrs)
                if state.status != "stranger":
                    self._take_facts(place, run)
                    self._take_curves(place, run)
                return state
        except ValueError as error:
            return State("stranger", str(error))

    def _take_facts(self, place: tuple[int, ...], run: xarray.Dataset) -> None:
        for name in FACTS:
            if name in run.attrs:
                self.facts.setdefault(name, np.full(self.shape, np.nan))[place] = run.attrs[name]

    def _take_curves(self, place: tuple[int, ...], run: xarray.Dataset) -> None:
        written = run["time"].values
        index = np.minimum(np.searchsorted(self.times, written), len(self.times) - 1)
        due = self.times[index] == written  # a run that stopped early has its last state besides
        for name, curve in run.data_vars.items():
            if curve.dims not in CURVES or name in self.swept:  # a swept lmax takes the name of the recorded one
                continue
            along = curve.dims.index("time")
            values = np.moveaxis(np.asarray(curve.values, dtype=np.float64), along, 0)
            spread = np.full((len(self.times), *values.shape[1:]), np.nan)
            spread[index[due]] = values[due]
            self._curves.setdefault(str(name), {})[place] = np.moveaxis(spread, 0, along)
            self._rests[str(name)] = tuple(map(str, curve.dims))
            self._attributes[str(name)] = dict(curve.attrs)
            if "axis" in curve.dims:
                self._axes = max(self._axes, list(run["axis"].values), key=len)
        self.seeds = max(self.seeds, run.sizes.get("seed", 0))

    def coordinates(self) -> dict[str, Any]:
        """Coordinates that the curves need."""
        columns = {
            "time": (self.times, {"long_name": "time (depth)", "units": "1"}),
            "seed": (np.arange(self.seeds, dtype="i4"), {"long_name": "number of the ensemble member", "units": "1"}),
            "axis": (np.array(self._axes, dtype=object), {"long_name": "Cartesian axis"}),
        }
        return {name: (name, *column) for name, column in columns.items() if len(column[0])}

    def variables(self) -> dict[str, Any]:
        """All variables, as xarray takes them."""
        sizes = {"time": len(self.times), "seed": self.seeds, "axis": len(self._axes)}
        found: dict[str, Any] = {}
        for name, members in self._curves.items():
            rest = self._rests[name]
            block = np.full((*self.shape, *(sizes[each] for each in rest)), np.nan)
            for place, curve in members.items():
                block[place][tuple(map(slice, curve.shape))] = curve
            found[name] = ((*self.dimensions, *rest), block, self._attributes[name])
        for name, (source, level, what) in CROSSINGS.items():
            if source in found:
                over, block, _ = found[source]
                curves = block.reshape(-1, len(self.times))
                reached = np.array([first_crossing(self.times, curve, level) for curve in curves])
                described = {"long_name": what, "units": "1", "comment": "linear between records, NaN if never"}
                found[name] = (over[:-1], reached.reshape(block.shape[:-1]), described)
        for name, fact in self.facts.items():
            found[name] = (self.dimensions, fact, {"long_name": FACTS[name], "units": "1"})
        if "wall_seconds" in found:
            found["wall_seconds"][2]["units"] = "s"
        long_names = {"status": "how the member ended", "message": "why", "file": "its file in the folder"}
        for name, texts in self._texts.items():
            found[name] = (self.dimensions, texts, {"long_name": long_names[name]})
        return found


def _coordinates(plan: Plan) -> dict[str, Any]:
    """Swept coordinates: numbers where all values are, else texts."""
    zipped = plan.mode == "zip"
    coordinates: dict[str, Any] = {}
    if zipped:
        labels = np.array([member.label for member in plan.members], dtype=object)
        coordinates["member"] = ("member", labels, {"long_name": "member of the sweep"})
    for key, values in plan.values.items():
        numbers = all(isinstance(value, int | float) for value in values)
        column = np.array(values) if numbers else np.array([value_text(value) for value in values], dtype=object)
        name = plan.names[key]
        described = {"long_name": key, **({"units": "1"} if numbers else {})}
        coordinates[name] = ("member" if zipped else name, column, described)
    return coordinates


def _attributes(plan: Plan, states: Sequence[State], table: _Table) -> dict[str, Any]:
    """Global attributes, those of a run and ``sweep``, the table as JSON."""
    statuses = {state.status for state in states}
    ended = not statuses & {"missing", "interrupted"}
    status = "running" if not ended else "completed" if statuses == {"completed"} else "failed"
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    release = f"meanfield {__version__}"
    case = plan.case.to_dict()
    return {
        "title": plan.case.title,
        "Conventions": CONVENTIONS,
        "history": f"{now} gathered by {release}",
        "source": release,
        "references": "Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026",
        "case": plan.case.to_json(),
        "sweep": json.dumps(case["sweep"], ensure_ascii=False),
        "status": status,
        "status_message": summary(states),
        "tendency_evaluations": int(np.nansum(table.facts.get("tendency_evaluations", 0))),
        "wall_seconds": float(np.nansum(table.facts.get("wall_seconds", 0.0))),
        "versions": library_versions(),
    }
