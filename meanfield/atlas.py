"""Maps of runs: one run at several times, with its curves below or alone, and runs of several schemes side by side."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import xarray as xr
from matplotlib.figure import Figure, FigureBase

from .curves import curve_panels, curves_height, fill_curves, notes_on
from .figures import (
    Columns,
    chosen_records,
    fold_of,
    how_it_ended,
    names_of,
    plain,
    record_times,
    run_figure,
    runs_of,
    style,
    times_within,
    unresolved_since,
    width_of,
)
from .maps import Field, check_field, closed_snapshot, hatch, map_axes, paint

__all__ = ["draw_maps", "draw_run", "draw_schemes"]


def draw_maps(
    dataset: xr.Dataset, times: Iterable[float] | None = None, field: Field = "density", columns: Columns = 2
) -> Figure:
    """Mollweide maps of ρ(θ, t) or r(θ, t), one panel for each time, all on one colour scale.

    The scale of a density that rises above eight times the uniform one is logarithmic, stretched around the uniform
    density. What lies below its bottom has its lowest colour, and the colour bar says so. Maps of a density that its
    grid does not resolve are hatched.

    Parameters
    ----------
    dataset : xarray.Dataset
        A density run with ``field(time, lat, lon)``, latitudes in any order.
    times : iterable of float, optional
        Times within the run; each shows its nearest record, once. By default six records (or all, if there are
        fewer), the first and the last among them, spread evenly along the run's evolution.
    field : {"density", "radius"}
        ρ per steradian, or the dimensionless r.
    columns : {1, 2}
        Columns of a journal, 3.4 or 7 inches in all, that the figure is wide.

    Raises
    ------
    ValueError
        For an unknown or missing field, one that is not finite, or a time outside the run.
    """
    return _draw(dataset, {field: chosen_records(dataset, times)}, [], columns)


def draw_run(dataset: xr.Dataset, times: Iterable[float] | None = None, columns: Columns = 2) -> Figure:
    """Maps of the density, a row of maps of the radius where there is one, and curves of one run in one figure.

    Parameters and exceptions are those of `draw_maps`.
    """
    records = chosen_records(dataset, times)
    shown: dict[Field, list[int]] = {"density": records}
    if "radius" in dataset:
        row = np.linspace(0, len(records) - 1, _maps_in_a_row(len(records), columns)).round().astype(int)
        shown["radius"] = [records[position] for position in row]
    return _draw(dataset, shown, curve_panels([dataset]), columns)


def draw_schemes(
    datasets: Sequence[xr.Dataset],
    names: Sequence[str] | None = None,
    times: Iterable[float] | None = None,
    columns: Columns = 2,
) -> Figure:
    """Mollweide maps of ρ(θ, t), a row for each run and a column for each time, all on one colour scale.

    Parameters
    ----------
    datasets, names, columns
        Density runs, a name for each, and the columns of a journal, as in `draw_curves`.
    times : iterable of float, optional
        Times within at least one run, by default four (in one column two) of the longest. A run shows its record
        nearest to the time, and the title says so where the two differ; where it had stopped by then, a grey panel.

    Raises
    ------
    ValueError
        As `draw_curves`, for a run without a finite density, and for a time outside all runs.
    """
    datasets, width = runs_of(datasets), width_of(columns)
    for dataset in datasets:
        check_field(dataset, "density")
    longest = max(datasets, key=lambda dataset: float(record_times(dataset)[-1]))
    if times is None:
        shown = record_times(longest)[chosen_records(longest, None, count=2 * columns)]
    else:
        first = min(float(record_times(dataset)[0]) for dataset in datasets)
        shown = times_within(times, first, float(record_times(longest)[-1]))
    unresolved = any(unresolved_since(dataset) <= shown[-1] for dataset in datasets)
    notes = ["hatched: gridded density not resolved"] if unresolved else []
    with style(columns):
        height = 0.3 + len(datasets) * (0.375 * width / len(shown) + 0.05)
        figure = run_figure(width, height, datasets, notes)
        axes = map_axes(figure, len(datasets), len(shown))
        painted = {}
        for number, (dataset, name) in enumerate(zip(datasets, names_of(datasets, names), strict=True)):
            label = plain(textwrap.fill(name, 8 * columns))
            axes[number, 0].set_ylabel(label, rotation=0.0, ha="right", va="center", labelpad=4.0)
            own = record_times(dataset)
            for axis, time in zip(axes[number], shown, strict=True):
                title = f"t = {time:.4g}" if number == 0 else ""
                record = int(np.abs(own - time).argmin())
                if own[0] <= time <= own[-1]:
                    painted[axis] = closed_snapshot(dataset, "density", record)
                    if abs(own[record] - time) > 1e-3 * float(np.ptp(shown)):
                        title += f" (at {own[record]:.4g})"
                    if own[record] >= unresolved_since(dataset):
                        hatch(axis)
                else:
                    axis.set_facecolor("0.93")
                    note = how_it_ended(dataset).replace(" at ", "\n") or "not run"
                    axis.text(0.0, 0.0, note, ha="center", va="center", color="0.3")
                axis.set_title(title.strip())
        paint(figure, painted, axes, "density")
    return figure


def _draw(dataset: xr.Dataset, shown: Mapping[Field, Sequence[int]], panels: Sequence[str], columns: Columns) -> Figure:
    """Maps of the records shown of each field and, under them, the panels of curves."""
    for field in shown:
        check_field(dataset, field)
    width = width_of(columns)
    in_a_row = _maps_in_a_row(max(map(len, shown.values())), columns)
    rows = sum(math.ceil(len(records) / in_a_row) for records in shown.values())
    heights = [0.1 + rows * (0.42 * width / in_a_row + 0.25), curves_height(panels, width)]
    notes = notes_on(dataset, panels)
    if not panels:
        last = record_times(dataset)[max(next(iter(shown.values())))]
        notes = [fold] if (fold := fold_of(dataset)) and not how_it_ended(dataset) else []
        if "density" in shown and last >= (since := unresolved_since(dataset)):
            notes.append(f"hatched: gridded density not resolved from t = {since:.4g} on")
    with style(columns):
        figure = run_figure(width, sum(heights), [dataset], notes)
        if panels:
            upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=heights))
            fill_curves(lower, [dataset], panels, width)
        _fill_maps(upper if panels else figure, dataset, shown, in_a_row)
    return figure


def _maps_in_a_row(panels: int, columns: int) -> int:
    return {1: 1, 2: 2, 4: 2}.get(panels, 1 + columns)


def _fill_maps(figure: FigureBase, dataset: xr.Dataset, shown: Mapping[Field, Sequence[int]], columns: int) -> None:
    """Fill rows of a common grid with each field's records, so that the columns of all fields are aligned."""
    rows = {field: math.ceil(len(records) / columns) for field, records in shown.items()}
    axes = map_axes(figure, sum(rows.values()), columns)
    for field, records in shown.items():
        block, axes = axes[: rows[field]], axes[rows[field] :]
        for axis in block.flat[len(records) :]:
            axis.remove()
        painted = {}
        for axis, record in zip(block.flat, records, strict=False):
            time = record_times(dataset)[record]
            axis.set_title(f"t = {time:.4g}")
            painted[axis] = closed_snapshot(dataset, field, record)
            if field == "density" and time >= unresolved_since(dataset):
                hatch(axis)
        paint(figure, painted, block, field)
