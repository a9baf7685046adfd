"""What commands print: lines, tables, numbers for people and for JSON, and what a file holds."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr


def say(text: str) -> None:
    """Write one line to stderr, whatever line breaks the text has."""
    print(f"meanfield: {' '.join(text.split())}", file=sys.stderr)


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_paths(paths: Iterable[Path]) -> None:
    """Print files that were written, a line each."""
    for path in paths:
        print(path)


def plain(value: Any) -> Any:
    """Turn a nest of mappings, lists and NumPy values into what JSON knows, with null for what is not finite."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def figure_text(value: Any) -> str:
    """Write a value for people."""
    if isinstance(value, list) and len(value) > 4:
        return f"[{', '.join(map(figure_text, value[:3]))}, ... ({len(value)})]"
    if isinstance(value, list):
        return f"[{', '.join(map(figure_text, value))}]"
    return f"{value:.10g}" if isinstance(value, float) else "-" if value is None else str(value)


def values_text(value: float | tuple[float, ...]) -> str:
    """Write a prediction, one number or several."""
    return ", ".join(f"{number:.8g}" for number in (value if isinstance(value, tuple) else (value,)))


def groups_of(run: xr.Dataset | xr.DataTree) -> Iterator[tuple[str, Any]]:
    """Datasets of a run by name: one of its own, or one per number of particles."""
    if run.data_vars:
        yield "", run
    yield from getattr(run, "children", {}).items()


def describe_group(data: Any) -> dict[str, Any]:
    """Sizes, times and the last value of every diagnostic (a list over seeds if there are seeds)."""
    times = plain(data["time"].values) if "time" in data else []
    last = {
        name: plain(variable.isel(time=-1).values)
        for name, variable in data.data_vars.items()
        if times and "time" in variable.dims and set(variable.dims) <= {"time", "seed"}
    }
    return {"sizes": {str(key): int(size) for key, size in data.sizes.items()}, "times": times, "last": last}
