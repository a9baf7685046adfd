"""Pictures of runs: maps of density and radius, curves of diagnostics, schemes side by side, tokens against density.

Every function takes datasets in the format of a run and returns a `matplotlib.figure.Figure` with an Agg canvas: no
display is needed, and no global state of matplotlib is read or changed.
"""

from __future__ import annotations

import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import matplotlib.style
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, FigureBase
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from numpy.typing import NDArray

from .comparison import token_groups
from .maps import DOT, Field, check_field, closed_snapshot, dot_tokens, map_axes, paint, ticks

__all__ = ["draw_comparison", "draw_curves", "draw_maps", "draw_schemes", "plot_comparison", "plot_run"]

Kind = Literal["all", "maps", "curves", "radius", "schemes"]

# Inches, points and dots per inch: printed 7 inches wide, the smallest letters (13 pt here) measure 9 pt.
_WIDTH, _LETTERS, _DPI = 10.0, 13.0, 150
_STYLE: dict[str, Any] = {
    **dict.fromkeys(["font.size", "axes.titlesize", "axes.labelsize", "figure.labelsize"], _LETTERS),
    **dict.fromkeys(["xtick.labelsize", "ytick.labelsize", "legend.fontsize"], _LETTERS),
    **dict.fromkeys(["axes.spines.top", "axes.spines.right", "legend.frameon"], False),
    "figure.titlesize": 16.0,
    "axes.linewidth": 0.8,
    "axes.formatter.limits": (-3, 4),
    "axes.formatter.use_mathtext": True,
    "lines.linewidth": 2.0,
}
# On top of matplotlib's defaults, whatever the user's own settings are.
_style = partial(matplotlib.style.context, ["default", _STYLE])

_CURVES = {
    "order parameter |m|": ["order_parameter"],
    "energy E": ["energy"],
    "entropy S (nats)": ["entropy"],
    "spectral tail": ["spectral_tail"],
    "radius r, min and max": ["radius_min", "radius_max"],
    "min density ρ (sr⁻¹)": ["density_min"],
    "clusters": ["clusters"],
}
# Okabe and Ito's colours without the yellow, which is lost on white. Seven colours and four dashes have no
# common factor, so the first 28 runs all look different.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_DASHES = ("-", (0, (5.0, 1.5)), (0, (1.2, 1.2)), (0, (6.0, 1.5, 1.2, 1.5)))
_DISTANCES = {
    "moment1": "mean token",
    "moment2": "second moment",
    "sobolev": "Sobolev H⁻²",
    "field_mean": "attention field, mean",
    "field_max": "attention field, max",
    "energy": "energy",
    "wasserstein": "Wasserstein W₂",
}
_MOST_DOTS = 1000
_FIRST: dict[str, Any] = {"color": _COLOURS[1], "marker": "s"}
_LAST: dict[str, Any] = {"color": _COLOURS[0], "marker": "o"}
_GUIDE: dict[str, Any] = {"color": "0.55", "linestyle": (0, (4.0, 2.0)), "linewidth": 1.5}


def draw_maps(dataset: xr.Dataset, times: Iterable[float] | None = None, field: Field = "density") -> Figure:
    """Mollweide maps of ρ(θ, t) or r(θ, t), one panel for each time, all on one colour scale.

    The scale of a density that rises above eight times the uniform one is logarithmic, stretched around the uniform
    density. What lies below its bottom has its lowest colour, and the colour bar says so.

    Parameters
    ----------
    dataset : xarray.Dataset
        A density run with ``field(time, lat, lon)``, latitudes in any order.
    times : iterable of float, optional
        Times within the run; each shows its nearest record, once. By default six records (or all, if there are
        fewer), the first and the last among them, spread evenly along the run's evolution.
    field : {"density", "radius"}
        ρ per steradian, or the dimensionless r.

    Raises
    ------
    ValueError
        For an unknown or missing field, one that is not finite, or a time outside the run.
    """
    return _draw_run(dataset, {field: _records(dataset, times)}, [])


def draw_curves(datasets: Sequence[xr.Dataset], names: Sequence[str] | None = None) -> Figure:
    """Diagnostics against time: the order parameter, E, S, the spectral tail, least and greatest r, least ρ.

    There is a panel for each diagnostic that some run has; where one of these lacks, the number of clusters is the
    sixth. Several runs are overlaid, each with its colour and dashes. The curves of a run that did not complete end in
    a cross on a vertical line, and the legend (or for a single run the note below) says why.

    Parameters
    ----------
    datasets : sequence of xarray.Dataset
        Density runs. Minimum and maximum of ``radius(time, lat, lon)`` are taken where they are not stored.
    names : sequence of str, optional
        One for each run. By default the schemes' names, or the numbered titles where two share a scheme.

    Raises
    ------
    ValueError
        Without runs, with another number of names than of runs, or with nothing to draw.
    """
    datasets = _runs(datasets)
    named = zip(_names(datasets, names), map(_stop, datasets), strict=True)
    labels = [_plain(f"{name} ({stop})" if stop else name) for name, stop in named]
    panels = _curve_panels(datasets)
    legend_columns = max(1, min(4, 105 // (max(map(len, labels)) + 8)))
    legend_rows = math.ceil(len(datasets) / legend_columns) if len(datasets) > 1 else 0
    with _style():
        figure = _figure(_curves_height(panels) + 0.28 * legend_rows, datasets)
        _fill_curves(figure, datasets, panels)
        if legend_rows:
            lines = [Line2D([], [], **_line(number)) for number in range(len(datasets))]
            figure.legend(lines, labels, loc="outside lower center", ncols=legend_columns, handlelength=3.0)
    return figure


def draw_schemes(
    datasets: Sequence[xr.Dataset], names: Sequence[str] | None = None, times: Iterable[float] | None = None
) -> Figure:
    """Mollweide maps of ρ(θ, t), a row for each run and a column for each time, all on one colour scale.

    Parameters
    ----------
    datasets, names
        Density runs, and a name for each, as in `draw_curves`.
    times : iterable of float, optional
        Times within at least one run, by default four of the longest. A run shows its record nearest to the time
        of the column, and the title says so where the two differ; where it had stopped by then, a grey panel.

    Raises
    ------
    ValueError
        As `draw_curves`, for a run without a finite density, and for a time outside all runs.
    """
    datasets = _runs(datasets)
    for dataset in datasets:
        check_field(dataset, "density")
    longest = max(datasets, key=lambda dataset: float(_times(dataset)[-1]))
    if times is None:
        columns = _times(longest)[_records(longest, None, count=4)]
    else:
        first = min(float(_times(dataset)[0]) for dataset in datasets)
        columns = _checked_times(times, first, float(_times(longest)[-1]))
    with _style():
        figure = _figure(0.4 + len(datasets) * (3.75 / len(columns) + 0.05), datasets)
        axes = map_axes(figure, len(datasets), len(columns))
        painted = {}
        for number, (dataset, name) in enumerate(zip(datasets, _names(datasets, names), strict=True)):
            label = _plain(textwrap.fill(name, 16))
            axes[number, 0].set_ylabel(label, rotation=0.0, ha="right", va="center", labelpad=8.0)
            own = _times(dataset)
            for axis, time in zip(axes[number], columns, strict=True):
                title = f"t = {time:.4g}" if number == 0 else ""
                record = int(np.abs(own - time).argmin())
                if own[0] <= time <= own[-1]:
                    painted[axis] = closed_snapshot(dataset, "density", record)
                    if abs(own[record] - time) > 1e-3 * float(np.ptp(columns)):
                        title += f" (at {own[record]:.4g})"
                else:
                    axis.set_facecolor("0.93")
                    note = _stop(dataset).replace(" at ", "\n") or "not run"
                    axis.text(0.0, 0.0, note, ha="center", va="center", color="0.3")
                axis.set_title(title.strip())
        paint(figure, painted, axes, "density")
    return figure


def draw_comparison(comparison: xr.Dataset, density: xr.Dataset, particles: xr.Dataset | xr.DataTree) -> Figure:
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
    density : xarray.Dataset
        The density run that was compared.
    particles : xarray.Dataset or xarray.DataTree
        The particle run that was compared.
    """
    groups = token_groups(particles)
    distances = [name for name in _DISTANCES if comparison[f"rms_{name}"].notnull().any()]
    rows = math.ceil((len(distances) + 2) / 3)
    times = _times(comparison)
    times = times[np.unique([0, (len(times) - 1) // 2, len(times) - 1])]
    heights = [1.4 + 2.7 * rows]
    if has_maps := "density" in density:
        heights.insert(0, 0.5 + 4.2 / len(times))
    with _style():
        figure = _figure(sum(heights), [density])
        parts = np.atleast_1d(np.asarray(figure.subfigures(len(heights), 1, height_ratios=heights)))
        legend = _fill_token_maps(parts[0], density, groups, times) if has_maps else {}
        axes = list(parts[-1].subplots(rows, 3, squeeze=False).flat)
        for axis, name in zip(axes, distances, strict=False):
            axis.set_title(_DISTANCES[name])
            axis.grid(color="0.9", linewidth=0.6)
            legend |= (_fill_distance if len(groups) > 1 else _fill_history)(axis, comparison, name)
            _scale_distances(axis)
        for axis, name in zip(axes[len(distances) :], ("order_parameter", "energy"), strict=False):
            legend |= _fill_ensemble(axis, density, groups, name)
        for axis in axes[len(distances) + 2 :]:
            axis.remove()
        parts[-1].legend(list(legend.values()), list(legend), loc="outside lower center", ncols=3)
    return figure


def plot_run(
    datasets: xr.Dataset | Sequence[xr.Dataset],
    output: str | os.PathLike[str],
    kind: Kind = "all",
    times: Iterable[float] | None = None,
    names: Sequence[str] | None = None,
    *,
    force: bool = False,
) -> list[Path]:
    """Write pictures of one or several runs as PNG files, 1500 pixels wide, and return their paths.

    Parameters
    ----------
    datasets : xarray.Dataset or sequence of them
        Density runs.
    output : path
        Name of the picture, ending in ``.png``. Where there are several pictures, what each one shows stands before
        the suffix. A file appears complete or not at all.
    kind : {"all", "maps", "curves", "radius", "schemes"}
        ``all``: one run gives one picture of density maps, a row of radius maps where it has a radius, and curves;
        several give the pictures ``curves`` and ``schemes``. ``maps``, ``radius``: `draw_maps` of each run.
        ``curves``: `draw_curves`. ``schemes``: `draw_schemes`.
    times, names : optional
        Times of the maps, and a name for each run, as in `draw_schemes`.
    force : bool
        Overwrite existing files.

    Raises
    ------
    ValueError
        For an unknown kind, an output that does not end in ``.png``, and what the drawing functions refuse.
    FileExistsError
        If a file to be written exists and `force` is not set; nothing is drawn then.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind = {kind!r} is unknown; allowed: {', '.join(get_args(Kind))}")
    output = _png(output)
    datasets = _runs(datasets)
    names = _names(datasets, names)
    times = None if times is None else list(times)

    pictures: dict[str, Callable[[], Figure]] = {}
    if kind == "all" and len(datasets) == 1:
        pictures["all"] = partial(_draw_all, datasets[0], times)
    if kind == "curves" or (kind == "all" and not pictures):
        pictures["curves"] = partial(draw_curves, datasets, names)
    if kind == "schemes" or ("curves" in pictures and kind == "all"):
        pictures["schemes"] = partial(draw_schemes, datasets, names, times)
    if kind in ("maps", "radius"):
        draw = partial(draw_maps, times=times, field="density" if kind == "maps" else "radius")
        for number, (dataset, name) in enumerate(zip(datasets, names, strict=True), start=1):
            pictures[f"{number}-" + re.sub(r"[^\w.-]+", "-", name)] = partial(draw, dataset)

    paths = [output.with_suffix(f".{label}.png" if len(pictures) > 1 else ".png") for label in pictures]
    _write(dict(zip(paths, pictures.values(), strict=True)), force)
    return paths


def plot_comparison(
    comparison: xr.Dataset,
    density: xr.Dataset,
    particles: xr.Dataset | xr.DataTree,
    output: str | os.PathLike[str],
    force: bool = False,
) -> list[Path]:
    """Write the picture of `draw_comparison` as a PNG file, and return its path in a list.

    Raises
    ------
    ValueError
        For an output that does not end in ``.png``, and what `draw_comparison` refuses.
    FileExistsError
        If the file exists and `force` is not set.
    """
    path = _png(output)
    _write({path: partial(draw_comparison, comparison, density, particles)}, force)
    return [path]


def _png(output: str | os.PathLike[str]) -> Path:
    path = Path(output)
    if path.suffix != ".png":
        raise ValueError(f"output = {str(path)!r} must end in .png")
    return path


def _write(pictures: Mapping[Path, Callable[[], Figure]], force: bool) -> None:
    existing = ", ".join(str(path) for path in pictures if path.exists())
    if existing and not force:
        raise FileExistsError(f"{existing} exists; name another output or use force")
    # All are drawn before the first is written: a refusal leaves no half of a set behind.
    for path, figure in zip(pictures, [draw() for draw in pictures.values()], strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            figure.savefig(unfinished, format="png", dpi=_DPI)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


def _draw_all(dataset: xr.Dataset, times: Iterable[float] | None) -> Figure:
    """Density maps, one row of radius maps and curves of one run in one picture."""
    shown: dict[Field, list[int]] = {"density": _records(dataset, times)}
    if "radius" in dataset:
        row = np.linspace(0, len(shown["density"]) - 1, _map_columns(shown)).round().astype(int)
        shown["radius"] = [shown["density"][position] for position in row]
    return _draw_run(dataset, shown, _curve_panels([dataset]))


def _draw_run(dataset: xr.Dataset, shown: Mapping[Field, Sequence[int]], panels: Sequence[str]) -> Figure:
    """Maps of the records shown of each field and, under them, the panels of curves."""
    for field in shown:
        check_field(dataset, field)
    columns = _map_columns(shown)
    rows = sum(math.ceil(len(records) / columns) for records in shown.values())
    heights = [0.1 + rows * (4.2 / columns + 0.4), _curves_height(panels)]
    with _style():
        figure = _figure(sum(heights), [dataset])
        if panels:
            upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=heights))
            _fill_curves(lower, [dataset], panels)
        _fill_maps(upper if panels else figure, dataset, shown)
    return figure


def _figure(height: float, datasets: Sequence[xr.Dataset]) -> Figure:
    """White figure with the title that all runs share and, for one run that did not complete, the reason."""
    titles = {str(dataset.attrs.get("title", "")) for dataset in datasets}
    title = textwrap.wrap(titles.pop(), 80) if len(titles) == 1 else []
    note = _stop(datasets[0]) if len(datasets) == 1 else ""
    if note and (message := str(datasets[0].attrs.get("status_message", ""))):
        note += f" ({message})"
    notes = textwrap.wrap(note, 100, max_lines=3, placeholder=" …")
    size = (_WIDTH, height + 0.3 * len(title) + 0.25 * len(notes))
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(_plain("\n".join(title)))
    if notes:
        figure.supxlabel(_plain("\n".join(notes)), color="#B03000")
    return figure


def _map_columns(shown: Mapping[Field, Sequence[int]]) -> int:
    panels = max(map(len, shown.values()))
    return {1: 1, 2: 2, 4: 2}.get(panels, 3)


def _curves_height(panels: Sequence[str]) -> float:
    return 0.4 + 2.4 * math.ceil(len(panels) / 3) if panels else 0.0


def _fill_maps(figure: FigureBase, dataset: xr.Dataset, shown: Mapping[Field, Sequence[int]]) -> None:
    """Fill rows of a common grid with each field's records, so that the columns of all fields are aligned."""
    columns = _map_columns(shown)
    rows = {field: math.ceil(len(records) / columns) for field, records in shown.items()}
    axes = map_axes(figure, sum(rows.values()), columns)
    for field, records in shown.items():
        block, axes = axes[: rows[field]], axes[rows[field] :]
        for axis in block.flat[len(records) :]:
            axis.remove()
        painted = {}
        for axis, record in zip(block.flat, records, strict=False):
            axis.set_title(f"t = {_times(dataset)[record]:.4g}")
            painted[axis] = closed_snapshot(dataset, field, record)
        paint(figure, painted, block, field)


def _fill_curves(figure: FigureBase, datasets: Sequence[xr.Dataset], panels: Sequence[str]) -> None:
    columns = min(3, len(panels))
    axes = figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False, sharex=True).flat
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_title(panel)
        axis.grid(color="0.9", linewidth=0.6)
        axis.xaxis.set_major_locator(ticks(nbins=6))
        axis.yaxis.set_major_locator(ticks(integer=panel == "clusters"))
        steps = "steps-post" if panel == "clusters" else "default"
        for number, dataset in enumerate(datasets):
            times, curves, style = _times(dataset), _curves(dataset, panel), _line(number)
            for values in curves:
                axis.plot(times, values, marker="o" if len(times) <= 3 else None, drawstyle=steps, **style)
            if curves and _stop(dataset):
                style = {"color": style["color"], "zorder": 4.0, "markeredgecolor": "white", "markersize": 10.0}
                axis.plot([times[-1]] * len(curves), [values[-1] for values in curves], "X", **style)
                axis.axvline(times[-1], color=style["color"], linestyle=":", linewidth=1.2, zorder=1.9)
        if panel == "spectral tail":
            _scale_tails(axis, np.concatenate([v for dataset in datasets for v in _curves(dataset, panel)]))
    if all(dataset.sizes["time"] == 1 for dataset in datasets):
        axes[0].set_xlim(_times(datasets[0])[0] - 1.0, _times(datasets[-1])[0] + 1.0)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis in axes[max(0, len(panels) - columns) : len(panels)]:
        axis.set_xlabel("time t")
        axis.tick_params(labelbottom=True)


def _fill_token_maps(
    figure: FigureBase, density: xr.Dataset, groups: Mapping[int, xr.Dataset], times: NDArray[np.float64]
) -> dict[str, Any]:
    """Maps of the density with tokens of the largest N, and what the legend must say of them."""
    check_field(density, "density")
    count, group = list(groups.items())[-1]
    tokens = group["position"].isel(seed=0, particle=slice(None, None, math.ceil(count / _MOST_DOTS)))
    axes = map_axes(figure, 1, len(times))
    painted, legend = {}, {}
    for axis, time in zip(axes.flat, times, strict=True):
        axis.set_title(f"t = {time:.4g}")
        painted[axis] = closed_snapshot(density, "density", int(np.flatnonzero(_times(density) == time)[0]))
        points = tokens.sel(time=time).transpose("particle", "axis").to_numpy()
        if np.isfinite(points).all():  # the member had not failed by then
            dot_tokens(axis, points)
            legend[f"{len(points)} of {count} tokens"] = Line2D([], [], **DOT | {"markersize": 5.0})
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
        axis.errorbar(counts, rms, bars, linestyle="none", markersize=5.0, capsize=3.0, elinewidth=1.2, **look)
        legend[f"t = {float(record['time']):.4g}, rms ± spread"] = Line2D([], [], linestyle="none", **look)
        if f"expected_{name}" in record:
            axis.plot(counts, record[f"expected_{name}"], color=look["color"], linewidth=1.2, zorder=1.8)
            legend["independent tokens"] = Line2D([], [], color="0.3", linewidth=1.2)
    if (there := rms > 0.0).any():
        through = np.exp(np.mean(np.log(rms[there] * np.sqrt(counts[there]))))
        axis.plot(counts[there], through / np.sqrt(counts[there]), zorder=1.7, **_GUIDE)
        legend["slope −1/2"] = Line2D([], [], **_GUIDE)
    low, high = record[f"slope_{name}_interval"].to_numpy()
    if math.isfinite(low):
        text = f"slope {(low + high) / 2:.2f} ± {(high - low) / 2:.2f}".replace("-", "−")
        axis.text(0.98, 0.88, text, transform=axis.transAxes, ha="right")
    axis.set_xscale("log")
    axis.set_xlim(counts[0] / 1.5, counts[-1] * 1.5)
    axis.tick_params(axis="x", which="minor", labelbottom=False)
    axis.set_xlabel("tokens N")
    return legend


def _fill_history(axis: Axes, comparison: xr.Dataset, name: str) -> dict[str, Any]:
    """One distance of a single number of tokens against time, and what the legend must say of it."""
    record, times = comparison.isel(count=0), _times(comparison)
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
        (legend["independent tokens"],) = axis.plot(times, record[f"expected_{name}"], color="0.3", linewidth=1.2)
    axis.xaxis.set_major_locator(ticks())
    axis.set_xlabel("time t")
    return legend


def _scale_distances(axis: Axes) -> None:
    """Four decades at most: a distance that is only round-off must not squeeze the rest."""
    axis.set_yscale("log", nonpositive="mask")
    low, high = axis.get_ylim()
    low = max(low, 1e-4 * high)
    axis.set_ylim(low, high)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high < 3e2 * low else (1.0,)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.tick_params(axis="y", which="minor", left=False, labelleft=False)


def _fill_ensemble(axis: Axes, density: xr.Dataset, groups: Mapping[int, xr.Dataset], name: str) -> dict[str, Any]:
    """One diagnostic of the density over the bands of ensembles, and what the legend must say of them."""
    axis.set_title(next(panel for panel, names in _CURVES.items() if names == [name]))
    axis.set_xlabel("time t")
    axis.grid(color="0.9", linewidth=0.6)
    axis.xaxis.set_major_locator(ticks())
    axis.yaxis.set_major_locator(ticks())
    legend: dict[str, Any] = {}
    for position, colour in {0: _COLOURS[6], (len(groups) - 1) // 2: _COLOURS[2], len(groups) - 1: _COLOURS[3]}.items():
        count, group = list(groups.items())[position]
        curves = np.ma.masked_invalid(group[name].transpose("seed", "time").to_numpy())  # some member may have failed
        mean, spread = curves.mean(axis=0), curves.std(axis=0, ddof=1).filled(0.0)
        band = axis.fill_between(_times(group), mean - spread, mean + spread, color=colour, alpha=0.35, linewidth=0.0)
        (line,) = axis.plot(_times(group), mean, color=colour, linewidth=1.5)
        legend[f"N = {count}, mean ± spread"] = (band, line)
    (line,) = axis.plot(_times(density), density[name], color="black", linewidth=1.5, linestyle=_DASHES[1])
    return legend | {"density": line}


def _scale_tails(axis: Axes, tails: NDArray[np.float64]) -> None:
    """Whole decades; a tail below the square of round-off is zero and must not squeeze the rest."""
    positive = tails[tails > 0.0]
    if len(positive):
        axis.set_yscale("log", nonpositive="mask")
        axis.yaxis.set_minor_formatter(NullFormatter())
        low, high = np.log10(np.clip([positive.min(), positive.max()], 1e-34, 1.0))
        axis.set_ylim(10.0 ** np.floor(low), 10.0 ** max(np.ceil(high), np.floor(low) + 1.0))


def _line(number: int) -> dict[str, Any]:
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _DASHES[number % len(_DASHES)]}


def _curves(dataset: xr.Dataset, panel: str) -> list[NDArray[np.float64]]:
    """Curves of one run in one panel: none, one, or (for the radius) the least and the greatest."""
    curves = [dataset[name] for name in _CURVES[panel] if name in dataset]
    if not curves and panel.startswith("radius") and "radius" in dataset:
        curves = [dataset["radius"].min(["lat", "lon"]), dataset["radius"].max(["lat", "lon"])]
    for curve in curves:
        if curve.dims != ("time",):
            raise ValueError(f"{curve.name} has dimensions {curve.dims}; curves need functions of time only")
    return [curve.to_numpy().astype(float) for curve in curves]


def _curve_panels(datasets: Sequence[xr.Dataset]) -> list[str]:
    panels = [panel for panel in _CURVES if any(_curves(dataset, panel) for dataset in datasets)]
    if not panels:
        raise ValueError(f"no run has a diagnostic to draw; allowed: {', '.join(_CURVES)}")
    return panels[:6]


def _runs(datasets: xr.Dataset | Sequence[xr.Dataset]) -> list[xr.Dataset]:
    runs = [datasets] if isinstance(datasets, xr.Dataset) else list(datasets)
    if not runs:
        raise ValueError("no run was given; at least one is needed")
    return runs


def _names(datasets: Sequence[xr.Dataset], names: Sequence[str] | None) -> list[str]:
    if names is None:
        cases = [json.loads(dataset.attrs.get("case", "{}")) for dataset in datasets]
        names = [str(case.get("normalization", {}).get("scheme", "")) for case in cases]
        if len(set(names) - {""}) < len(datasets):
            titles = [str(dataset.attrs.get("title", "run")) for dataset in datasets]
            names = titles if len(titles) == 1 else [f"{number}: {title}" for number, title in enumerate(titles, 1)]
    if len(names) != len(datasets):
        raise ValueError(f"{len(names)} names were given for {len(datasets)} runs; one for each is needed")
    return list(names)


def _stop(dataset: xr.Dataset) -> str:
    """How and when a run ended, "" if it completed: "fold at t = 1.344"."""
    status, time = (dataset.attrs.get(name) for name in ("status", "stop_time"))
    time = time if time is not None and math.isfinite(time) else _times(dataset)[-1]
    return "" if status in (None, "completed") else f"{status} at t = {time:.4g}"


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def _times(dataset: xr.Dataset) -> NDArray[np.float64]:
    if not dataset.sizes.get("time"):
        raise ValueError("the run has no record; at least one time is needed")
    return dataset["time"].to_numpy().astype(float)


def _checked_times(times: Iterable[float], first: float, last: float) -> NDArray[np.float64]:
    checked = np.unique(np.asarray(list(times), dtype=float))
    outside = ", ".join(f"{time:g}" for time in checked if not first <= time <= last)
    if outside or not len(checked):
        raise ValueError(f"times = {outside or 'none'} given; allowed: from {first:g} to {last:g}")
    return checked


def _records(dataset: xr.Dataset, times: Iterable[float] | None, count: int = 6) -> list[int]:
    """Numbers of the records nearest to `times`, or of `count` records spread evenly along the evolution.

    The way between two records is the sum of the changes of time, order parameter, energy and entropy, each
    measured by its total variation.
    """
    own = _times(dataset)
    if times is not None:
        return sorted({int(np.abs(own - time).argmin()) for time in _checked_times(times, own[0], own[-1])})
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
