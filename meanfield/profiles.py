"""Densities of one coordinate, on the circle or about an axis: over time and place, and as curves at several times."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import Locator, MultipleLocator
from numpy.typing import NDArray

from .curves import curve_panels, curves_height, fill_curves, notes_on
from .figures import (
    GRID,
    LABELS,
    SMALL,
    Columns,
    chosen_records,
    fold_of,
    how_it_ended,
    in_its_unit,
    names_of,
    plain,
    record_times,
    run_figure,
    runs_of,
    style,
    ticks,
    unresolved_since,
    width_of,
)
from .maps import COLOUR_MAPS, Field, add_scale, common_norm

__all__ = ["draw_profile_run", "draw_profile_schemes", "draw_profiles", "is_profile"]

PLACES = {"lon": "angle φ (°)", "lat": "latitude (°)"}
"""Label of each coordinate."""
NEGLIGIBLE = 1e-3
"""Mass at either end of the latitudes that is not worth ink: in high dimensions all of it lives at the equator."""
LARGEST_RANGE = 30.0
"""Curves are drawn on a logarithmic scale if the density rises above so many times the uniform one."""

Floats = NDArray[np.float64]


def is_profile(dataset: xr.Dataset) -> bool:
    """Whether the density of a run is a function of time and one coordinate."""
    return "density" in dataset and set(dataset["density"].dims) in ({"time", "lon"}, {"time", "lat"})


def draw_profiles(
    dataset: xr.Dataset, times: Iterable[float] | None = None, field: Field = "density", columns: Columns = 2
) -> Figure:
    """A field over time and place, and beside it (in one column: below) its curves at several times.

    Parameters
    ----------
    dataset : xarray.Dataset
        A density run with ``field(time, lon)`` or ``field(time, lat)``.
    times : iterable of float, optional
        Times of the curves, each of the nearest record; by default six, spread evenly along the run's evolution.
    field : {"density", "radius"}
        ρ per radian, or on zonal spaces with respect to the uniform law; or the dimensionless r.
    columns : {1, 2}
        Columns of a journal, 3.4 or 7 inches in all, that the figure is wide.

    Raises
    ------
    ValueError
        For a missing field, one that is not finite, or a time outside the run.
    """
    return _draw(dataset, times, [field], [], columns)


def draw_profile_run(dataset: xr.Dataset, times: Iterable[float] | None = None, columns: Columns = 2) -> Figure:
    """The density and, where there is one, the radius as `draw_profiles` does, over the curves of the run."""
    fields: list[Field] = ["density", "radius"] if "radius" in dataset else ["density"]
    return _draw(dataset, times, fields, curve_panels([dataset]), columns)


def draw_profile_schemes(
    datasets: Sequence[xr.Dataset], names: Sequence[str] | None = None, columns: Columns = 2
) -> Figure:
    """The density of several runs over time and place, one below the other, all on one colour scale.

    Raises
    ------
    ValueError
        If the runs are not on spaces of one kind and dimension, or a density is missing or not finite.
    """
    datasets, width = runs_of(datasets), width_of(columns)
    kinds = [tuple(dataset.attrs.get(f"space_{key}") for key in ("kind", "dimension")) for dataset in datasets]
    if len(set(kinds)) > 1 or not all(map(is_profile, datasets)):
        spaces = ", ".join(f"{kind} of dimension {dimension}" for kind, dimension in kinds)
        raise ValueError(f"schemes are drawn side by side on one space, got {spaces}")
    values = [_values(dataset, "density") for dataset in datasets]
    lowest, highest = min(map(np.min, values)), max(map(np.max, values))
    norm = common_norm(lowest, highest, "density", _uniform(datasets[0]))
    with style(columns):
        figure = run_figure(width, 0.4 + 1.15 * len(datasets), datasets, [])
        axes = figure.subplots(len(datasets), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
        for axis, dataset, name in zip(axes, datasets, names_of(datasets, names), strict=True):
            image = _paint(axis, dataset, "density", norm)
            axis.set_title(plain(textwrap.shorten(name, round(12 * width))), loc="left")
        axes[-1].set_xlabel(LABELS["time"])
        _scale(figure, image, list(axes), datasets[0], "density", lowest, 1.15 * len(datasets) * 10.0 / width)
    return figure


def _draw(
    dataset: xr.Dataset,
    times: Iterable[float] | None,
    fields: Sequence[Field],
    panels: Sequence[str],
    columns: Columns,
) -> Figure:
    records, width = chosen_records(dataset, times), width_of(columns)
    for field in fields:
        _values(dataset, field)
    rows = 1 if columns == 2 else 2
    height = 2.3 if columns == 2 else 1.9
    heights = [rows * height * len(fields), curves_height(panels, width)]
    notes = notes_on(dataset, panels)
    if not panels:
        notes = [fold] if (fold := fold_of(dataset)) and not how_it_ended(dataset) else []
        if (since := unresolved_since(dataset)) <= record_times(dataset)[-1]:
            notes.append(f"hatched: gridded density not resolved from t = {since:.4g} on")
    with style(columns):
        figure = run_figure(width, sum(heights), [dataset], notes)
        upper: Any = figure
        if panels:
            upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=heights))
            fill_curves(lower, [dataset], panels, width)
        shape = {"width_ratios": [1.25, 1.0]} if columns == 2 else {}
        axes = upper.subplots(rows * len(fields), 2 if columns == 2 else 1, squeeze=False, **shape).reshape(-1, 2)
        for (left, right), field in zip(axes, fields, strict=True):
            _fill(upper, left, right, dataset, field, records, 10.0 * height / width)
    return figure


def _fill(
    figure: FigureBase,
    left: Axes,
    right: Axes,
    dataset: xr.Dataset,
    field: Field,
    records: Sequence[int],
    height: float,
) -> None:
    """Fill one row: the field over time and place, and its curves at the records."""
    values, uniform, place = _values(dataset, field), _uniform(dataset), _place(dataset, field)
    lowest, highest = float(values.min()), float(values.max())
    image = _paint(left, dataset, field, common_norm(lowest, highest, field, uniform))
    left.set_xlabel(LABELS["time"])
    _scale(figure, image, [left], dataset, field, lowest, 0.8 * height)
    times, colours = record_times(dataset), matplotlib.colormaps["viridis"].resampled(256)
    for number, record in enumerate(records):
        colour = colours(0.92 * number / max(len(records) - 1, 1))
        faint = field == "density" and times[record] >= unresolved_since(dataset)
        look: dict[str, Any] = {"color": colour, "alpha": 0.4 if faint else None}
        right.plot(dataset[place], values[record], label=f"{times[record]:.4g}", **look)
        left.axvline(times[record], color=colour, linewidth=0.8, ymax=0.03)
    _limit(right.set_xlim, dataset, place)
    right.set_xlabel(PLACES[place])
    right.xaxis.set_major_locator(_place_ticks(place))
    right.set_title(in_its_unit(LABELS[field], dataset))
    right.grid(**GRID)
    if field == "density" and highest > LARGEST_RANGE * uniform:
        right.set_yscale("log", nonpositive="mask")
        right.set_ylim(uniform / 50.0, 2.0 * highest)
    beside: dict[str, Any] = {
        "title": "t",
        "title_fontsize": SMALL,
        "ncols": 1 + len(records) // 10,
        "handlelength": 1.0,
    }
    beside |= {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "borderaxespad": 0.2}
    right.legend(**beside)


def _paint(axis: Axes, dataset: xr.Dataset, field: Field, norm: Normalize) -> QuadMesh:
    """Paint a field over time and place."""
    place, times = _place(dataset, field), record_times(dataset)
    order = np.argsort(dataset[place].to_numpy(), kind="stable")
    edges = _edges(times), _edges(dataset[place].to_numpy()[order])
    values = np.maximum(_values(dataset, field)[:, order], norm.vmin or 0.0)
    image = axis.pcolormesh(*edges, values.T, norm=norm, cmap=COLOUR_MAPS[field], rasterized=True)
    axis.set_ylabel(PLACES[place])
    axis.yaxis.set_major_locator(_place_ticks(place))
    _limit(axis.set_ylim, dataset, place)
    axis.set_xlim(edges[0][0], edges[0][-1])
    since = unresolved_since(dataset)
    if field == "density" and since <= times[-1]:
        axis.axvspan(since, edges[0][-1], facecolor="none", edgecolor="0.7", hatch="////", linewidth=0.0, alpha=0.6)
    return image


def _scale(
    figure: FigureBase,
    image: QuadMesh,
    axes: list[Axes],
    dataset: xr.Dataset,
    field: Field,
    lowest: float,
    height: float,
) -> None:
    add_scale(figure, image, axes, field, lowest, height, in_its_unit(LABELS[field], dataset), _uniform(dataset))


def _place(dataset: xr.Dataset, field: str) -> str:
    return next(str(dimension) for dimension in dataset[field].dims if dimension != "time")


def _values(dataset: xr.Dataset, field: str) -> Floats:
    """Values (time, place) of a field, all of them finite."""
    if field not in dataset:
        has = ", ".join(name for name in COLOUR_MAPS if name in dataset) or "neither density nor radius"
        raise ValueError(f"the run has no {field} to draw; it has {has}")
    values = dataset[field].transpose("time", ...).to_numpy().astype(float)
    if values.ndim != 2:
        raise ValueError(f"{field} has dimensions {dataset[field].dims}; profiles need (time, lon) or (time, lat)")
    if not np.isfinite(values).all():
        raise ValueError(f"{field} is not finite; pictures need finite values")
    return values


def _uniform(dataset: xr.Dataset) -> float:
    """The uniform density, one over the measure of the space."""
    return 1.0 / (2.0 * math.pi) if "lon" in dataset["density"].dims else 1.0


def _limit(set_limits: Any, dataset: xr.Dataset, place: str) -> None:
    """Show the whole circle, or the latitudes where there is mass at some time."""
    if place == "lon":
        set_limits(0.0, 360.0)
        return
    latitude = dataset["lat"].to_numpy()
    if "quadrature_weight" not in dataset:
        set_limits(-90.0, 90.0)
        return
    mass = _values(dataset, "density") * dataset["quadrature_weight"].to_numpy()
    from_north, from_south = (np.cumsum(part, axis=1) for part in (mass, mass[:, ::-1]))
    north = latitude[np.argmax(from_north > NEGLIGIBLE, axis=1)].max()
    south = latitude[::-1][np.argmax(from_south > NEGLIGIBLE, axis=1)].min()
    margin = 0.05 * (north - south)
    set_limits(max(south - margin, -90.0), min(north + margin, 90.0))


def _place_ticks(place: str) -> Locator:
    return MultipleLocator(90.0) if place == "lon" else ticks()


def _edges(centres: Floats) -> Floats:
    """Borders between rising places, and beyond the first and the last."""
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = 0.5 * (centres[1:] + centres[:-1])
    return np.concatenate(([2.0 * centres[0] - middle[0]], middle, [2.0 * centres[-1] - middle[-1]]))
