"""Diagnostics of runs against time, a panel for each: on their own, or below the maps of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

from .figures import (
    GRID,
    LABELS,
    Columns,
    fold_of,
    how_it_ended,
    in_its_unit,
    line_look,
    names_of,
    plain,
    record_times,
    row_height,
    run_figure,
    runs_of,
    style,
    ticks,
    unresolved_since,
    width_of,
)

__all__ = ["curve_panels", "curves_height", "draw_curves", "fill_curves", "notes_on"]

_PANELS = {
    LABELS["order_parameter"]: ["order_parameter"],
    LABELS["energy"]: ["energy"],
    LABELS["entropy"]: ["entropy"],
    LABELS["spectral_tail"]: ["spectral_tail"],
    f"{LABELS['radius']}, min and max": ["radius_min", "radius_max"],
    LABELS["density_min"]: ["density_min"],
    LABELS["clusters"]: ["clusters"],
}
_OF_THE_GRID = {LABELS[name] for name in ("entropy", "density_min", "clusters")}
"""Panels of what is read from the gridded density, and wrong where that is not resolved."""
_MOST_PANELS = 6


def draw_curves(datasets: Sequence[xr.Dataset], names: Sequence[str] | None = None, columns: Columns = 2) -> Figure:
    """Diagnostics against time: the order parameter, E, S, the spectral tail, least and greatest r, least ρ.

    There is a panel for each diagnostic that some run has; where one of these lacks, the number of clusters is the
    sixth. Several runs are overlaid, each with its colour and dashes. The curves of a run that did not complete end in
    a cross on a vertical line, and the legend (or for a single run the note below) says why; a dotted line stands at
    the fold of one that went on. Where the gridded density is not resolved, what is read from it stands on hatching
    (of several runs: is faint).

    Parameters
    ----------
    datasets : sequence of xarray.Dataset
        Density runs. Minimum and maximum of ``radius(time, lat, lon)`` are taken where they are not stored.
    names : sequence of str, optional
        One for each run. By default the schemes' names, or the numbered titles where two share a scheme.
    columns : {1, 2}
        Columns of a journal, 3.4 or 7 inches in all, that the figure is wide.

    Raises
    ------
    ValueError
        Without runs, with another number of names than of runs, or with nothing to draw.
    """
    datasets = runs_of(datasets)
    labels = [
        plain(name + _parenthesis(dataset)) for name, dataset in zip(names_of(datasets, names), datasets, strict=True)
    ]
    panels, width = curve_panels(datasets), width_of(columns)
    lines = [Line2D([], [], **line_look(number)) for number in range(len(datasets))]
    if any(math.isfinite(unresolved_since(dataset)) for dataset in datasets) and _OF_THE_GRID & set(panels):
        lines.append(Line2D([], [], color="0.3", alpha=0.35))
        labels.append("gridded density not resolved")
    legend_columns = max(1, min(4, int(16 * width / (max(map(len, labels)) + 8))))
    legend_rows = math.ceil(len(labels) / legend_columns) if len(datasets) > 1 else 0
    with style(columns):
        notes = notes_on(datasets[0], panels) if len(datasets) == 1 else []
        figure = run_figure(width, curves_height(panels, width) + 0.19 * legend_rows, datasets, notes)
        fill_curves(figure, datasets, panels, width)
        if legend_rows:
            figure.legend(lines, labels, loc="outside lower center", ncols=legend_columns, handlelength=3.0)
    return figure


def notes_on(dataset: xr.Dataset, panels: Sequence[str]) -> list[str]:
    """What must be said below the curves of a single run."""
    notes = [f"dotted: {fold}"] if panels and (fold := fold_of(dataset)) and not how_it_ended(dataset) else []
    if _OF_THE_GRID & set(panels) and math.isfinite(since := unresolved_since(dataset)):
        notes.append(f"hatched: gridded density not resolved from t = {since:.4g} on")
    return notes


def _parenthesis(dataset: xr.Dataset) -> str:
    if end := how_it_ended(dataset):
        return f" ({end})"
    return f" ({fold})" if (fold := fold_of(dataset)) else ""


def curve_panels(datasets: Sequence[xr.Dataset]) -> list[str]:
    """Titles of the panels, six at most, that some run has curves for.

    Raises
    ------
    ValueError
        If there is none, or a diagnostic is not a function of time only.
    """
    panels = [panel for panel in _PANELS if any(_curves(dataset, panel) for dataset in datasets)]
    if not panels:
        raise ValueError(f"no run has a diagnostic to draw; allowed: {', '.join(_PANELS)}")
    return panels[:_MOST_PANELS]


def curves_height(panels: Sequence[str], width: float) -> float:
    """Height in inches that the panels need on a figure of this width."""
    return 0.25 + row_height(width) * math.ceil(len(panels) / _panels_in_a_row(width)) if panels else 0.0


def _panels_in_a_row(width: float) -> int:
    return 3 if width > 5.0 else 2


def fill_curves(figure: FigureBase, datasets: Sequence[xr.Dataset], panels: Sequence[str], width: float) -> None:
    """Fill a figure of this width in inches with panels of curves."""
    columns = min(_panels_in_a_row(width), len(panels))
    axes = figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False, sharex=True).flat
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_title(in_its_unit(panel, datasets[0]))
        axis.grid(**GRID)
        axis.xaxis.set_major_locator(ticks(nbins=2 * columns))
        axis.yaxis.set_major_locator(ticks(integer=panel == LABELS["clusters"]))
        for number, dataset in enumerate(datasets):
            _fill_panel(axis, panel, dataset, number, alone=len(datasets) == 1)
        if panel == LABELS["spectral_tail"]:
            _scale_tails(axis, np.concatenate([v for dataset in datasets for v in _curves(dataset, panel)]))
    if all(dataset.sizes["time"] == 1 for dataset in datasets):
        axes[0].set_xlim(record_times(datasets[0])[0] - 1.0, record_times(datasets[-1])[0] + 1.0)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis in axes[max(0, len(panels) - columns) : len(panels)]:
        axis.set_xlabel(LABELS["time"])
        axis.tick_params(labelbottom=True)


def _fill_panel(axis: Axes, panel: str, dataset: xr.Dataset, number: int, alone: bool) -> None:
    """Curves of one run, with what befell it."""
    times, curves, look = record_times(dataset), _curves(dataset, panel), line_look(number)
    shape: dict[str, Any] = {
        "marker": "o" if len(times) <= 3 else None,
        "drawstyle": "steps-post" if "clusters" in panel else "default",
    }
    since = unresolved_since(dataset) if panel in _OF_THE_GRID else math.inf
    for values in curves:
        faint = not alone and since < times[-1]
        axis.plot(times, values, alpha=0.35 if faint else None, **shape, **look)
        if faint:
            axis.plot(times[times < since], values[times < since], **shape, **look)
    if not curves:
        return
    if alone and since <= times[-1]:
        axis.axvspan(since, times[-1], facecolor="0.93", edgecolor="0.6", hatch="///", linewidth=0.0, zorder=0.5)
    if how_it_ended(dataset):
        cross = {"color": look["color"], "zorder": 4.0, "markeredgecolor": "white", "markersize": 7.0}
        axis.plot([times[-1]] * len(curves), [values[-1] for values in curves], "X", **cross)
        axis.axvline(times[-1], color=look["color"], linestyle=":", linewidth=0.9, zorder=1.9)
    elif (fold := dataset.attrs.get("fold_time")) is not None:
        axis.axvline(fold, color="0.3" if alone else look["color"], linestyle=":", linewidth=0.9, zorder=1.9)


def _scale_tails(axis: Axes, tails: NDArray[np.float64]) -> None:
    """Whole decades; a tail below the square of round-off is zero and must not squeeze the rest."""
    positive = tails[tails > 0.0]
    if len(positive):
        axis.set_yscale("log", nonpositive="mask")
        axis.yaxis.set_minor_formatter(NullFormatter())
        low, high = np.log10(np.clip([positive.min(), positive.max()], 1e-34, 1.0))
        axis.set_ylim(10.0 ** np.floor(low), 10.0 ** max(np.ceil(high), np.floor(low) + 1.0))


def _curves(dataset: xr.Dataset, panel: str) -> list[NDArray[np.float64]]:
    """Curves of one run in one panel: none, one, or (for the radius) the least and the greatest."""
    curves = [dataset[name] for name in _PANELS[panel] if name in dataset]
    if not curves and panel.startswith(LABELS["radius"]) and "radius" in dataset:
        place = [dimension for dimension in dataset["radius"].dims if dimension != "time"]
        curves = [dataset["radius"].min(place), dataset["radius"].max(place)]
    for curve in curves:
        if curve.dims != ("time",):
            raise ValueError(f"{curve.name} has dimensions {curve.dims}; curves need functions of time only")
    return [curve.to_numpy().astype(float) for curve in curves]
