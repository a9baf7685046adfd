"""Tokens against the density: where they lie, how far they are from it, and the ensemble's curves over its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, StrMethodFormatter
from numpy.typing import NDArray

from .comparison import token_groups
from .figures import (
    COLOURS,
    DASHES,
    GRID,
    LABELS,
    SMALL,
    Columns,
    record_times,
    row_height,
    run_figure,
    style,
    ticks,
    unresolved_since,
    width_of,
)
from .maps import DOT, check_field, closed_snapshot, dot_tokens, hatch, map_axes, paint, thinned

__all__ = ["draw_comparison"]

_DISTANCES = {
    "moment1": "mean token",
    "moment2": "second moment",
    "sobolev": "Sobolev H⁻²",
    "field_mean": "attention field, mean",
    "field_max": "attention field, max",
    "energy": "energy E, distance",
    "wasserstein": "Wasserstein W₂",
}
_FIRST: dict[str, Any] = {"color": COLOURS[1], "marker": "s"}
_LAST: dict[str, Any] = {"color": COLOURS[0], "marker": "o"}
_GUIDE: dict[str, Any] = {"color": "0.55", "linestyle": (0, (4.0, 2.0)), "linewidth": 1.0}


def draw_comparison(
    comparison: xr.Dataset,
    density: xr.Dataset | None = None,
    particles: xr.Dataset | xr.DataTree | None = None,
    columns: Columns = 2,
) -> Figure:
    """Tokens over the density, their distances from it against N, and curves of an ensemble over those of the density.

    Maps are drawn at the first, middle and last common time, with up to 1000 tokens of the largest N, if the density
    run has a gridded density. Distances are root mean squares over the seeds, with bars of one standard deviation, at
    the first and the last time, beside what independent tokens would have and a line of slope −1/2 through the last.
    Those of a single N are drawn against time.
    Curves are drawn for up to three N, with a band of one standard deviation over the seeds to either side of the mean.

    Parameters
    ----------
    comparison : xarray.Dataset
        Result of `compare`.
    density, particles : xarray.Dataset, xarray.Dataset or xarray.DataTree, optional
        The runs that were compared; without them there are neither maps nor curves.
    columns : {1, 2}
        Columns of a journal, 3.4 or 7 inches in all, that the figure is wide.
    """
    runs = None if density is None or particles is None else (density, token_groups(particles))
    width, in_a_row = width_of(columns), 1 + columns
    distances = [name for name in _DISTANCES if comparison[f"rms_{name}"].notnull().any()]
    curves = ["order_parameter", "energy"] if runs else []
    rows = math.ceil((len(distances) + len(curves)) / in_a_row)
    times = record_times(comparison)
    times = times[np.unique([0, (len(times) - 1) // 2, len(times) - 1][2 - columns :])]
    mapped = runs if runs and "density" in runs[0] else None
    heights = [1.7 - 0.35 * columns + (row_height(width) + 0.1) * rows]
    heights = [0.3 + 0.42 * width / len(times), *heights] if mapped else heights
    hatched = mapped and times[-1] >= unresolved_since(mapped[0])
    with style(columns):
        notes = ["hatched: gridded density not resolved"] if hatched else []
        figure = run_figure(width, sum(heights), [comparison if density is None else density], notes)
        parts = np.atleast_1d(np.asarray(figure.subfigures(len(heights), 1, height_ratios=heights)))
        legend = _fill_token_maps(parts[0], *mapped, times) if mapped else {}
        axes = list(parts[-1].subplots(rows, in_a_row, squeeze=False).flat)
        for axis, name in zip(axes, distances, strict=False):
            axis.set_title(_DISTANCES[name])
            axis.grid(**GRID)
            legend |= (_fill_distance if comparison.sizes["count"] > 1 else _fill_history)(axis, comparison, name)
            _scale_distances(axis)
        for axis, name in zip(axes[len(distances) :], curves, strict=False):
            legend |= _fill_ensemble(axis, *runs, name) if runs else {}
        for axis in axes[len(distances) + len(curves) :]:
            axis.remove()
        parts[-1].legend(list(legend.values()), list(legend), loc="outside lower center", ncols=in_a_row)
    return figure


def _fill_token_maps(
    figure: FigureBase, density: xr.Dataset, groups: Mapping[int, xr.Dataset], times: NDArray[np.float64]
) -> dict[str, Any]:
    """Maps of the density with tokens of the largest N, and what the legend must say of them."""
    check_field(density, "density")
    count, group = list(groups.items())[-1]
    tokens = thinned(group)
    axes = map_axes(figure, 1, len(times))
    painted, legend = {}, {}
    for axis, time in zip(axes.flat, times, strict=True):
        axis.set_title(f"t = {time:.4g}")
        painted[axis] = closed_snapshot(density, "density", int(np.flatnonzero(record_times(density) == time)[0]))
        if time >= unresolved_since(density):
            hatch(axis)
        points = tokens.sel(time=time).transpose("particle", "axis").to_numpy()
        if np.isfinite(points).all():  # the member had not failed by then
            dot_tokens(axis, points)
            legend[f"{len(points)} of {count} tokens"] = Line2D([], [], **DOT | {"markersize": 3.5})
    paint(figure, painted, axes, "density")
    return legend


def _fill_distance(axis: Axes, comparison: xr.Dataset, name: str) -> dict[str, Any]:
    """One distance against N at the first and last time that has it, and what the legend must say of it."""
    legend: dict[str, Any] = {}
    counts = comparison["count"].to_numpy().astype(float)
    has = np.flatnonzero(comparison[f"rms_{name}"].notnull().any("count"))
    for at, look in {has[0]: _FIRST, has[-1]: _LAST}.items():
        record = comparison.isel(time=at)
        rms, spread = record[f"rms_{name}"].to_numpy(), np.nan_to_num(record[f"spread_{name}"])
        bars = [np.minimum(spread, 0.9 * rms), spread]  # a logarithmic axis has no zero
        axis.errorbar(counts, rms, bars, linestyle="none", markersize=3.5, capsize=2.0, elinewidth=0.9, **look)
        legend[f"t = {float(record['time']):.4g}, rms ± spread"] = Line2D([], [], linestyle="none", **look)
        if f"expected_{name}" in record:
            axis.plot(counts, record[f"expected_{name}"], color=look["color"], linewidth=0.9, zorder=1.8)
            legend["independent tokens"] = Line2D([], [], color="0.3", linewidth=0.9)
    if (there := rms > 0.0).any():
        through = np.exp(np.mean(np.log(rms[there] * np.sqrt(counts[there]))))
        axis.plot(counts[there], through / np.sqrt(counts[there]), zorder=1.7, **_GUIDE)
        legend["slope −1/2"] = Line2D([], [], **_GUIDE)
    low, high = record[f"slope_{name}_interval"].to_numpy()
    if math.isfinite(low):
        text = f"slope {(low + high) / 2:.2f} ± {(high - low) / 2:.2f}".replace("-", "−")
        axis.text(0.99, 0.99, text, transform=axis.transAxes, ha="right", va="top", fontsize=SMALL)
    axis.set_xscale("log")
    axis.set_xlim(counts[0] / 1.5, counts[-1] * 1.5)
    axis.tick_params(axis="x", which="minor", labelbottom=False)
    axis.set_xlabel(LABELS["count"])
    return legend


def _fill_history(axis: Axes, comparison: xr.Dataset, name: str) -> dict[str, Any]:
    """One distance of a single number of tokens against time, and what the legend must say of it."""
    record, times = comparison.isel(count=0), record_times(comparison)
    rms, spread = record[f"rms_{name}"].to_numpy(), np.nan_to_num(record[f"spread_{name}"])
    has = np.isfinite(rms)
    style = {"color": _LAST["color"], "marker": _LAST["marker"] if has.sum() <= 3 else None}
    band = axis.fill_between(
        times[has],
        np.maximum(rms - spread, 0.1 * rms)[has],  # a logarithmic axis has no zero
        (rms + spread)[has],
        color=style["color"],
        alpha=0.35,
        linewidth=0.0,
    )
    (line,) = axis.plot(times[has], rms[has], **style)
    legend: dict[str, Any] = {"distance, rms ± spread": (band, line)}
    if f"expected_{name}" in record:
        (legend["independent tokens"],) = axis.plot(times, record[f"expected_{name}"], color="0.3", linewidth=0.9)
    axis.xaxis.set_major_locator(ticks())
    axis.set_xlabel(LABELS["time"])
    return legend


def _scale_distances(axis: Axes) -> None:
    """Four decades at most: a distance that is only round-off must not squeeze the rest."""
    axis.set_yscale("log", nonpositive="mask")
    low, high = axis.get_ylim()
    low = max(low, 1e-4 * high)
    if axis.texts:  # room above for the slope
        high *= (high / low) ** 0.12
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high < 3e2 * low else (1.0,)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.tick_params(axis="y", which="minor", left=False, labelleft=False)


def _fill_ensemble(axis: Axes, density: xr.Dataset, groups: Mapping[int, xr.Dataset], name: str) -> dict[str, Any]:
    """One diagnostic of the density over the bands of ensembles, and what the legend must say of them."""
    axis.set_title(LABELS[name])
    axis.set_xlabel(LABELS["time"])
    axis.grid(**GRID)
    axis.xaxis.set_major_locator(ticks())
    axis.yaxis.set_major_locator(ticks())
    legend: dict[str, Any] = {}
    looks = {
        0: (COLOURS[6], "-"),
        (len(groups) - 1) // 2: (COLOURS[2], DASHES[2]),
        len(groups) - 1: (COLOURS[3], DASHES[3]),
    }
    for position, (colour, dashes) in looks.items():
        count, group = list(groups.items())[position]
        curves = np.ma.masked_invalid(group[name].transpose("seed", "time").to_numpy())  # some member may have failed
        mean, spread = curves.mean(axis=0), curves.std(axis=0, ddof=1).filled(0.0)
        times = record_times(group)
        band = axis.fill_between(times, mean - spread, mean + spread, color=colour, alpha=0.35, linewidth=0.0)
        (line,) = axis.plot(times, mean, color=colour, linestyle=dashes, linewidth=1.1)
        legend[f"N = {count}, mean ± spread"] = (band, line)
    (line,) = axis.plot(record_times(density), density[name], color="black", linewidth=1.1, linestyle=DASHES[1])
    return legend | {"density": line}
