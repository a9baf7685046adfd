"""A run beside what theory said of it: growth of the degrees, order parameter, energy, radius, and when it folds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from .case import Case
from .figures import COLOURS, DPI, GRID, LABELS, Columns, record_times, row_height, run_figure, style, ticks, width_of
from .forecast import forecast, model_of, tokens_of
from .predictions import curves

__all__ = ["draw_theory"]

Floats = NDArray[np.float64]

_THEORY: dict[str, Any] = {"color": "0.15", "linestyle": (0, (4.0, 2.0)), "linewidth": 1.1, "zorder": 3.0}
_MOST_DEGREES = 5
_LEAST_POWER = 1e-30
"""Powers below are round-off, and not worth ink."""


def draw_theory(data: xr.Dataset | xr.DataTree, columns: Columns = 2) -> Figure:
    """A run in colours, and predictions of it dashed: linear growth, closed forms, bounds of the energy.

    Of the degrees those are drawn that linear theory makes largest, up to where it has one of them reach its bound.
    Dotted lines stand at the predicted times of clustering and of the fold.

    Parameters
    ----------
    data : xarray.Dataset or xarray.DataTree
        A density run, or a particle run, whose members are drawn one by one.
    columns : {1, 2}
        Columns of a journal that the figure is wide.

    Raises
    ------
    ValueError
        If the run does not tell its case, or nothing is known of its attention.
    """
    if "case" not in data.attrs:
        raise ValueError("kind = 'theory' needs the case of the run, and the file does not tell it")
    case = Case.from_json(str(data.attrs["case"]))
    model = model_of(case)
    groups = list(_groups(data))
    power = next((g["degree_power"].to_numpy()[0] for g in groups if "degree_power" in g), None)
    count = groups[0].sizes.get("particle")
    told = {each.name: each.value for each in forecast(case, power, count=count)}
    final = float(record_times(groups[0])[-1])
    times = np.linspace(0.0, final, 201) if final > 0.0 else np.zeros(1)
    panels: dict[str, Any] = {}
    for number, group in enumerate(groups):
        tokens = tokens_of(case, group.sizes.get("particle"))
        foreseen = curves(model, times, case.initial, tokens, power)
        for name, (_, values) in foreseen.items():
            if name == "degree_power" and name in group:
                panels.setdefault("power of degrees l", []).append(partial(_fill_powers, group, times, values))
            elif any(key in group for key in _MEASURED.get(name, ())):
                panels.setdefault(LABELS[name], []).append(partial(_fill, name, group, times, values, number))
    if not panels:
        raise ValueError("kind = 'theory' finds nothing in the run of which anything is known beforehand")
    marks = [float(value) for key in ("clustering_time", "fold_time") if isinstance(value := told.get(key), float)]
    width = width_of(columns)
    across = min(len(panels), 3 if width > 5.0 else 2)
    rows = math.ceil(len(panels) / across)
    with style(columns):
        datasets = [groups[0].assign_attrs(data.attrs)]
        figure = run_figure(width, 0.25 + 1.25 * row_height(width) * rows, datasets, _notes(told, final))
        axes = figure.subplots(rows, across, squeeze=False).flat
        for axis, (title, fillers) in zip(axes, panels.items(), strict=False):
            axis.set_title(title)
            axis.set_xlabel(LABELS["time"])
            axis.grid(**GRID)
            axis.xaxis.set_major_locator(ticks())
            for fill in fillers:
                fill(axis)
            for mark in marks:
                if 0.0 < mark <= final:
                    axis.axvline(mark, color="0.3", linestyle=":", linewidth=0.9, zorder=1.9)
        for axis in list(axes)[len(panels) :]:
            axis.remove()
    return figure


_MEASURED = {
    "order_parameter": ("order_parameter",),
    "energy": ("energy",),
    "radius": ("radius_mean", "radius"),
}
"""What a run has of that which curves are predicted of."""


def _groups(data: xr.Dataset | xr.DataTree) -> Iterator[xr.Dataset]:
    if isinstance(data, xr.Dataset):
        yield data
        return
    for child in data.children.values():
        yield child.to_dataset()


def _fill(name: str, run: xr.Dataset, times: Floats, values: Floats, number: int, axis: Axes) -> None:
    """One quantity of a run: a line for each member, and what theory says."""
    key = next(key for key in _MEASURED[name] if key in run)
    measured = run[key].mean(set(run[key].dims) - {"time", "seed"}).transpose("time", ...).to_numpy()
    label = f"N = {run.sizes['particle']}" if "particle" in run.sizes else "run"
    own = np.reshape(measured, (len(measured), -1))
    lines = axis.plot(record_times(run), own, color=COLOURS[number % len(COLOURS)], linewidth=1.6, alpha=0.75)
    lines[0].set_label(label)
    for index, curve in enumerate(np.reshape(values, (len(times), -1)).T):
        line = axis.plot(times, curve, **_THEORY)[0]
        if index == 0 and number == 0:
            line.set_label("bounds" if name == "energy" else "theory")
    axis.legend(loc="best", handlelength=2.2)


def _fill_powers(run: xr.Dataset, times: Floats, grown: Floats, axis: Axes) -> None:
    """Powers of the degrees that theory makes largest."""
    largest = np.nanmax(np.where(np.isfinite(grown), grown, -np.inf), axis=0)
    chosen = np.sort(1 + np.argsort(-largest[1:])[:_MOST_DEGREES])
    chosen = chosen[largest[chosen] > _LEAST_POWER]
    measured = run["degree_power"].to_numpy()
    for number, degree in enumerate(chosen):
        colour = COLOURS[number % len(COLOURS)]
        own = np.where(measured[:, degree] > _LEAST_POWER, measured[:, degree], np.nan)
        axis.plot(record_times(run), own, color=colour, alpha=0.75, label=f"l = {degree}")
        axis.plot(times, grown[:, degree], **_THEORY | {"color": colour})
    axis.set_yscale("log")
    seen = measured[:, chosen]
    axis.set_ylim(bottom=0.03 * float(seen[seen > _LEAST_POWER].min(initial=1.0)))
    across, below = (5, -0.2) if axis.get_window_extent().width > 2.0 * DPI else (3, -0.28)
    # Below the panel, which the curves fill.
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, below), ncols=across, handlelength=1.2, columnspacing=0.9)


def _notes(told: dict[str, Any], final: float) -> list[str]:
    """What is predicted, in words."""
    notes = []
    if (time := told.get("clustering_time")) is not None and time > 0.0:
        notes.append(f"linear theory has degree {told['cluster_degree']} make clusters at t = {time:.4g}")
    if (fold := told.get("fold_time")) is not None:
        notes.append(f"fold predicted at t* = {fold:.6g}")
    if (orders := told.get("stationary_order_parameter")) is not None:
        notes.append(f"stable stationary states: |m| = {', '.join(f'{order:.4g}' for order in orders)}")
        notes.append(f"threshold of noise {told['noise_threshold']:.4g}")
    return ["solid: the run; dashed: theory", *(["; ".join(notes)] if notes else [])]
