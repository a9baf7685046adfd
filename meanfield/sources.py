"""What a file or dataset is, a density run, a particle run or a comparison, and what to call it among others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import xarray

from .comparison import SECTIONS
from .space import Floats

__all__ = ["MOMENTS", "Data", "Run", "leaves", "named", "recognize"]

Data = xarray.Dataset | xarray.DataTree
Kind = Literal["density", "particles", "comparison"]
MOMENTS = {"fold_time": "fold at", "unresolved_since": "unresolved since", "labels_since": "labelled tokens since"}
"""Attributes that say when something happened."""


@dataclass(frozen=True)
class Run:
    """A source: what it is, its case, and its parts by number of tokens (one part for a density or a comparison)."""

    kind: Kind
    attributes: Mapping[str, Any]
    case: Mapping[str, Any]
    parts: Mapping[int, xarray.Dataset]
    file: str
    name: str = ""

    @property
    def data(self) -> xarray.Dataset:
        """The part with most tokens, or the only one."""
        return self.parts[max(self.parts)]

    @property
    def times(self) -> Floats:
        """Times of the records."""
        return np.asarray(self.data["time"].values, dtype=float)

    @property
    def law(self) -> str:
        """What a density and particles share if one is the limit of the other."""
        return json.dumps([self.case.get(section) for section in SECTIONS], sort_keys=True)

    @property
    def status(self) -> str:
        """How it ended."""
        return str(self.attributes.get("status", "completed"))

    @property
    def remarkable(self) -> bool:
        """Whether there is more to say of its end than that it came."""
        return self.status != "completed" or any(key in self.attributes for key in MOMENTS)


def recognize(data: Data, file: str) -> Run:
    """Tell what a dataset holds by its variables; `file`, if it has a name, is told when it is refused.

    Raises
    ------
    ValueError
        If it is not a density run, a particle run or a comparison, or has no record.
    """
    attributes = dict(data.attrs)
    origin = file or str(attributes.get("title", "dataset"))
    try:
        case = json.loads(attributes["case"])
        _ = case["normalization"]["scheme"], case["attention"]["beta"], case["initial"]["law"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{origin}: not a meanfield run (it has no attribute 'case' that holds a case)") from None
    if isinstance(data, xarray.DataTree):
        parts = [child.to_dataset() for child in data.children.values()] or [data.to_dataset()]
    else:
        parts = [data]
    kind: Kind
    if "case_particles" in attributes and "count" in parts[0].dims:
        kind = "comparison"
    elif all({"seed", "time", "particle"} <= set(part.get("position", part).dims) for part in parts):
        kind = "particles"
    elif len(parts) == 1 and "order_parameter" in parts[0] and parts[0]["order_parameter"].dims == ("time",):
        kind = "density"
    else:
        raise ValueError(f"{origin}: expected a density run, a particle run or a comparison, got none of these")
    if not all(part.sizes["time"] for part in parts):
        raise ValueError(f"{origin}: has no record yet, and there is nothing to show")
    return Run(kind, attributes, case, {part.sizes.get("particle", 0): part for part in parts}, file)


def named(runs: Sequence[Run]) -> list[Run]:
    """Name the runs of each kind by what tells them apart."""
    found = []
    for kind in ("density", "particles", "comparison"):
        alike = [run for run in runs if run.kind == kind]
        for run, name in zip(alike, _names([run.case for run in alike]), strict=True):
            found.append(replace(run, name=name))
    return found


def _names(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """The schemes, or the keys that differ, or else numbers."""
    names = [str(case["normalization"]["scheme"]) for case in cases]
    if len(set(names)) < len(cases):
        tables = [{key: value for key, value in leaves(case) if key not in ("title", "name")} for case in cases]
        keys = [key for key in tables[0] if len({table.get(key) for table in tables}) > 1][:3]
        names = [", ".join(f"{key.split('.')[-1]} = {table.get(key)}" for key in keys) for table in tables]
        if len(set(names)) < len(cases) or max(map(len, names)) > 40:
            names = [f"{number}: {case.get('title', 'run')}" for number, case in enumerate(cases, start=1)]
    return names


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys of a case, and values as TOML writes them; what is not set is left out."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", json.dumps(value, ensure_ascii=False)
