"""Pictures of runs: maps of the density and of the radius, curves of the diagnostics, schemes side by side.

Every function takes datasets in the format of a density run and returns a `matplotlib.figure.Figure` with an
Agg canvas: no display is needed, and no global state of matplotlib is read or changed.

Maps are Mollweide projections, so equal areas of ink are equal solid angles: east is right, north is up, and
longitude 0 is in the middle. All maps of one quantity in a picture share one colour scale.
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
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import Figure, FigureBase
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.projections.geo import GeoAxes
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator, NullFormatter
from numpy.typing import NDArray

__all__ = ["draw_curves", "draw_maps", "draw_schemes", "plot_run"]

Field = Literal["density", "radius"]
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

_FIELDS = {"density": ("density ρ (sr⁻¹)", "magma"), "radius": ("radius r", "cividis")}
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
_UNIFORM = 1.0 / (4.0 * math.pi)
_ticks = partial(MaxNLocator, nbins=5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1)


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
        _check_field(dataset, "density")
    longest = max(datasets, key=lambda dataset: float(_times(dataset)[-1]))
    if times is None:
        columns = _times(longest)[_records(longest, None, count=4)]
    else:
        first = min(float(_times(dataset)[0]) for dataset in datasets)
        columns = _checked_times(times, first, float(_times(longest)[-1]))
    with _style():
        figure = _figure(0.4 + len(datasets) * (3.75 / len(columns) + 0.05), datasets)
        axes = _map_axes(figure, len(datasets), len(columns))
        painted = {}
        for number, (dataset, name) in enumerate(zip(datasets, _names(datasets, names), strict=True)):
            label = _plain(textwrap.fill(name, 16))
            axes[number, 0].set_ylabel(label, rotation=0.0, ha="right", va="center", labelpad=8.0)
            own = _times(dataset)
            for axis, time in zip(axes[number], columns, strict=True):
                title = f"t = {time:.4g}" if number == 0 else ""
                record = int(np.abs(own - time).argmin())
                if own[0] <= time <= own[-1]:
                    painted[axis] = _closed_snapshot(dataset, "density", record)
                    if abs(own[record] - time) > 1e-3 * float(np.ptp(columns)):
                        title += f" (at {own[record]:.4g})"
                else:
                    axis.set_facecolor("0.93")
                    note = _stop(dataset).replace(" at ", "\n") or "not run"
                    axis.text(0.0, 0.0, note, ha="center", va="center", color="0.3")
                axis.set_title(title.strip())
        _paint(figure, painted, axes, "density")
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
    output = Path(output)
    if output.suffix != ".png":
        raise ValueError(f"output = {str(output)!r} must end in .png")
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
    existing = ", ".join(str(path) for path in paths if path.exists())
    if existing and not force:
        raise FileExistsError(f"{existing} exists; name another output or use force")
    # All are drawn before the first is written: a refusal leaves no half of a set behind.
    for path, figure in zip(paths, [draw() for draw in pictures.values()], strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            figure.savefig(unfinished, format="png", dpi=_DPI)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    return paths


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
        _check_field(dataset, field)
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


def _map_axes(figure: FigureBase, rows: int, columns: int) -> Any:
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "mollweide"})
    for axis in axes.flat:
        axis.set_longitude_grid(60.0)
        axis.set_latitude_grid(30.0)
        axis.grid(color="0.75", alpha=0.35, linewidth=0.6)
        axis.tick_params(labelleft=False, labelbottom=False)
    return axes


def _fill_maps(figure: FigureBase, dataset: xr.Dataset, shown: Mapping[Field, Sequence[int]]) -> None:
    """Fill rows of a common grid with each field's records, so that the columns of all fields are aligned."""
    columns = _map_columns(shown)
    rows = {field: math.ceil(len(records) / columns) for field, records in shown.items()}
    axes = _map_axes(figure, sum(rows.values()), columns)
    for field, records in shown.items():
        block, axes = axes[: rows[field]], axes[rows[field] :]
        for axis in block.flat[len(records) :]:
            axis.remove()
        painted = {}
        for axis, record in zip(block.flat, records, strict=False):
            axis.set_title(f"t = {_times(dataset)[record]:.4g}")
            painted[axis] = _closed_snapshot(dataset, field, record)
        _paint(figure, painted, block, field)


def _paint(figure: FigureBase, painted: Mapping[GeoAxes, xr.DataArray], block: Any, field: Field) -> None:
    """Paint each snapshot on its axes, all with one norm, and put one colour bar beside the block of axes."""
    if not painted:
        raise ValueError("no run reaches any of the times given; name times within one of the runs")
    label, colour_map = _FIELDS[field]
    lowest = min(float(snapshot.min()) for snapshot in painted.values())
    norm = _norm(lowest, max(float(snapshot.max()) for snapshot in painted.values()), field)
    bottom = norm.vmin or 0.0
    if field == "density" and lowest < -1e-3 * _UNIFORM:
        label += "\nρ < 0 clipped"
    for axis, snapshot in painted.items():
        # The projection fills its axes, so a picture of the map is an image in axes coordinates.
        image = AxesImage(axis, norm=norm, cmap=colour_map, origin="lower", extent=(0.0, 1.0, 0.0, 1.0))
        image.set_transform(axis.transAxes)
        image.set_data(np.maximum(_map_pixels(snapshot, 800 // block.shape[1]), bottom))
        image.set_clip_path(axis.patch)
        axis.add_image(image)
    height = len(block) * (4.2 / block.shape[1] + 0.3)
    logarithmic = isinstance(norm, FuncNorm)
    figure.colorbar(
        image,
        ax=[axis for axis in block.flat if axis.figure is not None],
        label=label,
        extend="min" if lowest < bottom else "neither",
        ticks=_decades(norm, 0.3 / height) if logarithmic else _ticks(),
        format=LogFormatterSciNotation() if logarithmic else None,
        aspect=5.5 * height,
        pad=0.02,
    )


def _decades(norm: Normalize, gap: float) -> list[float]:
    """Powers of ten on a colour bar, from its top down, at least `gap` of its length apart."""
    ticks: list[float] = []
    for power in range(math.floor(math.log10(norm.vmax or 1.0)), -12, -1):
        if 10.0**power >= (norm.vmin or 0.0) and (not ticks or norm(ticks[-1]) - norm(10.0**power) >= gap):
            ticks.append(10.0**power)
    return ticks


def _closed_snapshot(dataset: xr.Dataset, field: str, record: int) -> xr.DataArray:
    """One record, its first meridian repeated at the end a full turn further, so that no gap is left."""
    snapshot = dataset[field].isel(time=record, drop=True).transpose("lat", "lon").sortby(["lat", "lon"])
    if not np.isfinite(snapshot).all():
        raise ValueError(f"{field} at t = {_times(dataset)[record]:g} is not finite; maps need finite values")
    first = snapshot.isel(lon=[0])
    return xr.concat([snapshot, first.assign_coords(lon=first["lon"] + 360.0)], "lon", join="exact")


def _map_pixels(snapshot: xr.DataArray, height: int) -> NDArray[np.float64]:
    """Pixels (height, 2 height) of the box around a Mollweide map, from the south up, from the west eastward.

    At the height sin α of a map of half-axes 1: π sin(lat) = 2α + sin 2α and lon = π x / cos α. Bilinear between
    grid points; beyond the last latitudes, near the poles, the last rows are continued.
    """
    x, y = ((np.arange(size) + 0.5) / (0.5 * size) - 1.0 for size in (2 * height, height))
    angle = np.arcsin(y)
    latitude = np.degrees(np.arcsin((2.0 * angle + np.sin(2.0 * angle)) / np.pi))
    longitude = 180.0 * np.clip(x / np.cos(angle)[:, np.newaxis], -1.0, 1.0)
    west, south, north = (float(end) for end in (snapshot["lon"][0], snapshot["lat"][0], snapshot["lat"][-1]))
    return snapshot.interp(
        lat=xr.DataArray(np.clip(latitude, south, north), dims="y"),
        lon=xr.DataArray((longitude - west) % 360.0 + west, dims=("y", "x")),
    ).to_numpy()


def _norm(lowest: float, highest: float, field: Field) -> Normalize:
    """One norm for early states near the uniform density and for late peaks: see `draw_maps`."""
    if highest - lowest <= 1e-9 * abs(highest):
        return Normalize(lowest - 0.01 * abs(highest), highest + 0.01 * abs(highest))
    if field == "radius":
        return Normalize(lowest, highest)
    if highest <= 8.0 * _UNIFORM:
        return Normalize(max(lowest, 0.0), highest)
    # With u = log₁₀(ρ/uniform), colours go as arsinh 2u: a decade counts more the closer it is to uniform.
    # Nearly empty regions, below a fiftieth of the uniform density, are not worth further colours.
    functions = (
        lambda density: np.arcsinh(2.0 * np.log10(np.maximum(density, 1e-300) / _UNIFORM)),
        lambda colour: _UNIFORM * 10.0 ** (0.5 * np.sinh(colour)),
    )
    return FuncNorm(functions, max(lowest, _UNIFORM / 50.0), highest)


def _fill_curves(figure: FigureBase, datasets: Sequence[xr.Dataset], panels: Sequence[str]) -> None:
    columns = min(3, len(panels))
    axes = figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False, sharex=True).flat
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_title(panel)
        axis.grid(color="0.9", linewidth=0.6)
        axis.xaxis.set_major_locator(_ticks(nbins=6))
        axis.yaxis.set_major_locator(_ticks(integer=panel == "clusters"))
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


def _check_field(dataset: xr.Dataset, field: str) -> None:
    if field not in _FIELDS:
        raise ValueError(f"field = {field!r} is unknown; allowed: {', '.join(_FIELDS)}")
    if field not in dataset:
        has = ", ".join(name for name in _FIELDS if name in dataset) or "neither density nor radius"
        raise ValueError(f"the run has no {field} to map; it has {has}")
    if set(dataset[field].dims) != {"time", "lat", "lon"}:
        raise ValueError(f"{field} has dimensions {dataset[field].dims}; maps need (time, lat, lon)")


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
