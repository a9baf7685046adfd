"""What all figures share: sizes and letters, colours, the names of quantities, and what a figure says of its runs.

A figure is made at the size it is printed, one or two columns of a journal wide, with letters of 8 points at least.
No display is needed, and no global state of matplotlib is read or changed.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import matplotlib.style
import numpy as np
import xarray as xr
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

__all__ = [
    "COLOURS",
    "DASHES",
    "DPI",
    "GRID",
    "LABELS",
    "SMALL",
    "Columns",
    "blank_figure",
    "chosen_records",
    "fold_of",
    "how_it_ended",
    "in_its_unit",
    "label_of",
    "line_look",
    "names_of",
    "plain",
    "record_times",
    "row_height",
    "run_figure",
    "runs_of",
    "style",
    "ticks",
    "times_within",
    "unresolved_since",
    "width_of",
]

Columns = Literal[1, 2]
"""Columns of a journal that a figure spans."""
_WIDTHS: dict[int, float] = {1: 3.4, 2: 7.0}  # inches
DPI = 220
"""Pixels per inch of a PNG: 1540 of them across two columns."""
SMALL, _LETTERS, _TITLE = 8.0, 9.0, 10.5
"""Sizes of letters in points; the smallest is that of tick labels and legends."""
_STYLE: dict[str, Any] = {
    **dict.fromkeys(["font.size", "axes.titlesize", "axes.labelsize", "figure.labelsize"], _LETTERS),
    **dict.fromkeys(["xtick.labelsize", "ytick.labelsize", "legend.fontsize"], SMALL),
    **dict.fromkeys(["axes.spines.top", "axes.spines.right", "legend.frameon"], False),
    "figure.titlesize": _TITLE,
    "axes.titlepad": 4.0,
    "axes.linewidth": 0.6,
    "axes.formatter.limits": (-3, 4),
    "axes.formatter.use_mathtext": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
    **dict.fromkeys(["xtick.major.width", "ytick.major.width", "xtick.minor.width", "ytick.minor.width"], 0.6),
    "hatch.linewidth": 0.5,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    # The same picture is the same file, and letters in a PDF remain letters.
    "svg.hashsalt": "meanfield",
    "pdf.fonttype": 42,
}


# Okabe and Ito's colours without the yellow, which is lost on white. Seven colours and four dashes have no
# common factor, so the first 28 runs all look different.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
DASHES = ("-", (0, (5.0, 1.5)), (0, (1.2, 1.2)), (0, (6.0, 1.5, 1.2, 1.5)))
_MARKERS = "osD^vPX"
GRID: dict[str, Any] = {"color": "0.9", "linewidth": 0.5}
ticks = partial(MaxNLocator, nbins=5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1)

LABELS = {
    "time": "time t",
    "density": "density ρ (sr⁻¹)",
    "density_min": "density ρ, min (sr⁻¹)",
    "density_max": "density ρ, max (sr⁻¹)",
    "radius": "radius r",
    "order_parameter": "order parameter |m|",
    "energy": "energy E",
    "entropy": "entropy S (nats)",
    "spectral_tail": "spectral tail",
    "clusters": "clusters",
    "close_pairs": "fraction of close pairs",
    "clustering_time": "time to cluster",
    "pairing_time": "time to close pairs",
    "stop_time": "time of the end",
    "wall_seconds": "wall time (s)",
    "beta": "inverse temperature β",
    "scheme": "scheme",
    "noise": "diffusivity κ",
    "initial_radius": "initial radius r₀",
    "lmax": "largest degree lmax",
    "count": "tokens N",
}
"""Label of a quantity by its name in the file: the name, its symbol and its unit."""


_DENSITY_UNITS: dict[Any, str] = {"sr-1": "sr⁻¹", "rad-1": "rad⁻¹", "1": "uniform = 1"}


def style(columns: int = 2) -> AbstractContextManager[None]:
    """Context in which a figure is drawn and saved: matplotlib's defaults and ours, whatever the user's settings."""
    return matplotlib.style.context(["default", _STYLE, {"axes.titlesize": _LETTERS if columns > 1 else SMALL}])


def width_of(columns: int) -> float:
    """Width of a figure in inches.

    Raises
    ------
    ValueError
        For a number of columns other than 1 and 2.
    """
    if columns not in _WIDTHS:
        raise ValueError(f"columns = {columns!r} given; allowed: {', '.join(map(str, _WIDTHS))}")
    return _WIDTHS[columns]


def row_height(width: float) -> float:
    """Height in inches of a row of panels with axes, their titles and labels."""
    return 1.75 if width > _WIDTHS[1] else 1.4


def in_its_unit(label: str, dataset: xr.Dataset) -> str:
    """Label of a density, with the unit that it has in this run."""
    found = (dataset[name].attrs.get("units") for name in ("density", "density_min") if name in dataset)
    return label.replace(f"({_DENSITY_UNITS['sr-1']})", f"({_DENSITY_UNITS.get(next(found, None), 'sr⁻¹')})")


def label_of(name: str, variable: xr.DataArray | None = None) -> str:
    """Label of a quantity; of one without a label of its own, its long name and unit."""
    if name in LABELS or variable is None:
        return LABELS.get(name, name.replace("_", " "))
    label = str(variable.attrs.get("long_name", name.replace("_", " ")))
    unit = str(variable.attrs.get("units", "1"))
    return plain(textwrap.fill(label if unit == "1" else f"{label} ({unit})", 28))


def line_look(number: int, marker: bool = False) -> dict[str, Any]:
    """Colour and dashes of the run of this number, and a marker if it is to have one."""
    look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
    return look | ({"marker": _MARKERS[number % len(_MARKERS)]} if marker else {})


def blank_figure(width: float, height: float) -> Figure:
    """White figure of a size in inches, on a canvas that needs no display."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def run_figure(width: float, height: float, datasets: Sequence[xr.Dataset], notes: Sequence[str] = ()) -> Figure:
    """White figure with the title that all runs share and, of a single run, what befell it.

    Parameters
    ----------
    width, height : float
        Inches; title and notes come on top of the height.
    datasets : sequence of xarray.Dataset
        The runs.
    notes : sequence of str
        Further lines below.
    """
    titles = {str(dataset.attrs.get("title", "")) for dataset in datasets}
    title = textwrap.wrap(titles.pop(), round(11.5 * width)) if len(titles) == 1 else []
    lines, colour = [*notes], "0.25"
    if len(datasets) == 1 and (end := how_it_ended(datasets[0])):
        message, colour = str(datasets[0].attrs.get("status_message", "")), "#B03000"
        lines.insert(0, f"{end} ({message})" if message else end)
    rows = [row for line in lines for row in textwrap.wrap(line, round(13 * width), max_lines=3, placeholder=" …")]
    figure = blank_figure(width, height + 0.2 * len(title) + 0.18 * len(rows))
    if title:
        figure.suptitle(plain("\n".join(title)))
    if rows:
        figure.supxlabel(plain("\n".join(rows)), color=colour)
    return figure


def runs_of(datasets: xr.Dataset | Sequence[xr.Dataset]) -> list[xr.Dataset]:
    """Runs as a list, of which one at least is needed."""
    runs = [datasets] if isinstance(datasets, xr.Dataset) else list(datasets)
    if not runs:
        raise ValueError("no run was given; at least one is needed")
    return runs


def names_of(datasets: Sequence[xr.Dataset], names: Sequence[str] | None) -> list[str]:
    """A name for each run: those given, or the schemes', or the numbered titles where two share a scheme."""
    if names is None:
        cases = [json.loads(dataset.attrs.get("case", "{}")) for dataset in datasets]
        names = [str(case.get("normalization", {}).get("scheme", "")) for case in cases]
        if len(set(names) - {""}) < len(datasets):
            titles = [str(dataset.attrs.get("title", "run")) for dataset in datasets]
            names = titles if len(titles) == 1 else [f"{number}: {title}" for number, title in enumerate(titles, 1)]
    if len(names) != len(datasets):
        raise ValueError(f"{len(names)} names were given for {len(datasets)} runs; one for each is needed")
    return list(names)


def fold_of(dataset: xr.Dataset) -> str:
    """Where the radius folded, "" if it did not: "fold at t* = 1.344"."""
    fold = dataset.attrs.get("fold_time")
    return "" if fold is None else f"fold at t* = {fold:.4g}"


def how_it_ended(dataset: xr.Dataset) -> str:
    """How and when a run ended, "" if it completed: "fold at t = 1.344"."""
    status, time = (dataset.attrs.get(name) for name in ("status", "stop_time"))
    time = time if time is not None and math.isfinite(time) else record_times(dataset)[-1]
    return "" if status in (None, "completed") else f"{status} at t = {time:.4g}"


def unresolved_since(dataset: xr.Dataset) -> float:
    """Time from which the gridded density is not resolved; infinite if it is to the end."""
    return float(dataset.attrs.get("unresolved_since", math.inf))


def plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def record_times(dataset: xr.Dataset) -> NDArray[np.float64]:
    """Times of the records, of which one at least is needed."""
    if not dataset.sizes.get("time"):
        raise ValueError("the run has no record; at least one time is needed")
    return dataset["time"].to_numpy().astype(float)


def times_within(times: Iterable[float], first: float, last: float) -> NDArray[np.float64]:
    """Times in order, each once, if all are from first to last."""
    checked = np.unique(np.asarray(list(times), dtype=float))
    outside = ", ".join(f"{time:g}" for time in checked if not first <= time <= last)
    if outside or not len(checked):
        raise ValueError(f"times = {outside or 'none'} given; allowed: from {first:g} to {last:g}")
    return checked


def chosen_records(dataset: xr.Dataset, times: Iterable[float] | None, count: int = 6) -> list[int]:
    """Numbers of the records nearest to `times`, or of `count` records spread evenly along the evolution.

    The way between two records is the sum of the changes of time, order parameter, energy and entropy, each
    measured by its total variation.
    """
    own = record_times(dataset)
    if times is not None:
        return sorted({int(np.abs(own - time).argmin()) for time in times_within(times, own[0], own[-1])})
    order = np.arange(min(count, len(own)))
    way = np.zeros(len(own))
    for name in ("time", "order_parameter", "energy", "entropy"):
        if name in dataset:
            steps = np.nan_to_num(np.abs(np.diff(dataset[name].to_numpy().astype(float))), posinf=0.0)
            way[1:] += np.cumsum(steps) / (steps.sum() or 1.0)
    nearest = np.abs(way - np.linspace(0.0, way[-1], len(order))[:, np.newaxis]).argmin(axis=1)
    # Strictly rising, and leaving room for those to come.
    rising = np.maximum.accumulate(nearest - order) + order
    return [int(record) for record in np.minimum(rising, len(own) - len(order) + order)]
