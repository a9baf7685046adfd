"""Phase pictures: what many runs of a sweep do, over time and the parameters that were swept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure, FigureBase
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from numpy.typing import NDArray

from .figures import (
    COLOURS,
    GRID,
    Columns,
    blank_figure,
    label_of,
    plain,
    record_times,
    style,
    ticks,
    times_within,
    width_of,
)

__all__ = ["draw_phase", "swept_dimensions"]

_MOST_PANELS = 12
_MOST_CLUSTERS = 8
"""Numbers of clusters with a colour of their own."""
_COLOUR_MAP = "viridis"
_SOUND = ("completed", "fold", "unresolved")
"""How members end of which what they have is right."""
_NOTHING: dict[str, Any] = {"facecolor": "0.85", "edgecolor": "none", "linewidth": 0.0}
_HATCHES = {"failed": "////", "missing": "....", "invalid": "++++", "error": "oo", "killed": "\\\\\\\\"}


def draw_phase(
    dataset: xr.Dataset,
    quantity: str | None = None,
    x: str | None = None,
    y: str | None = None,
    times: Iterable[float] | None = None,
    columns: Columns = 2,
) -> Figure:
    """Colours of a quantity over two of time and the swept parameters, a panel for each value of the others.

    Each cell stands for one member (and record), its edges midway between neighbours; axes are logarithmic where the
    values are evenly spaced in the logarithm. Numbers of clusters have discrete colours. A cell without a value is
    grey, and hatched where its member failed or is missing. A quantity without time of a sweep of a single parameter
    is a curve.

    Parameters
    ----------
    dataset : xarray.Dataset
        Result of a sweep: ``status`` over the swept dimensions (or, of a zipped sweep, over ``member``), quantities
        over these and ``time``, of ensembles also over ``seed``, whose mean is shown.
    quantity : str, optional
        Variable to draw. By default ``close_pairs`` and ``clusters`` over t and the parameter if a single one was
        swept, else ``clustering_time`` over two of them, or if few members have one ``pairing_time``,
        or else ``close_pairs`` at the last time.
    x, y : str, optional
        "time" or swept dimensions, for the axes.
    times : iterable of float, optional
        Times of the panels if the quantity has a time and no axis shows it; by default the last.
    columns : {1, 2}
        Columns of a journal, 3.4 or 7 inches in all, that the figure is wide.

    Raises
    ------
    ValueError
        If it is not a sweep, or for a quantity or dimension that it does not have.
    """
    width = width_of(columns)
    dataset = _unzipped(_checked(dataset), x, y)
    swept = swept_dimensions(dataset)
    quantities = _quantities(dataset, quantity, swept, x, y)
    parts = [_choose_axes(dataset, name, x, y) for name in quantities]
    panels = [_panels(dataset, name, axes, times) for name, axes in zip(quantities, parts, strict=True)]
    # One quantity fills rows with its panels; two stand beside each other, each with its own colours.
    in_a_row = 1 if columns == 1 or len(quantities) > 1 else min(len(panels[0]), 2 if len(panels[0]) in (2, 4) else 3)
    rows = max(math.ceil(len(each) / in_a_row) for each in panels)
    shape = (len(quantities), 1) if columns == 1 else (1, len(quantities))
    words = max(dataset.sizes[str(axes[1])] if _is_named(dataset, axes[1]) else 0 for axes in parts)
    height = rows * shape[0] * max(1.9 if in_a_row == 3 else 2.2, 0.6 + 0.2 * words)
    with style(columns):
        figure = blank_figure(width, height + 0.75)
        if title := str(dataset.attrs.get("title", "")):
            figure.suptitle(plain(title))
        legend: dict[str, Patch] = {}
        subfigures = np.asarray(figure.subfigures(*shape, squeeze=False)).flat
        for part, name, axes, each in zip(subfigures, quantities, parts, panels, strict=True):
            legend |= _fill(part, dataset, name, axes, each, in_a_row)
        if legend:
            figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=1 + columns)
    return figure


def swept_dimensions(dataset: xr.Dataset) -> list[str]:
    """Dimensions along which a sweep's members lie."""
    return [str(name) for name in dataset["status"].dims]


def _checked(dataset: xr.Dataset) -> xr.Dataset:
    if "status" not in dataset or not dataset["status"].dims or "time" in dataset["status"].dims:
        raise ValueError("phase pictures are of a sweep, with a status for each member; this file is none")
    if "seed" in dataset["status"].dims:
        return dataset
    # A member that is an ensemble is shown by its mean.
    means = {
        name: values.mean("seed", keep_attrs=True)
        for name, values in dataset.data_vars.items()
        if "seed" in values.dims and np.issubdtype(values.dtype, np.number)
    }
    return dataset.assign(means)


def _unzipped(dataset: xr.Dataset, x: str | None, y: str | None) -> xr.Dataset:
    """A zipped sweep laid out along what was swept: along x and y, or else along one parameter that tells all apart."""
    if "member" not in dataset.dims:
        return dataset
    along = [str(name) for name, values in dataset.coords.items() if values.dims == ("member",) and name != "member"]
    for wanted in ([name for name in (x, y) if name in along], along, *([name] for name in along)):
        values = list(zip(*(dataset[name].values.tolist() for name in wanted), strict=True))
        if wanted and len(set(values)) == dataset.sizes["member"]:
            break
    else:
        return dataset.assign_coords(member=np.arange(dataset.sizes["member"]))
    single = [name for name in wanted if len(set(dataset[name].values.tolist())) == dataset.sizes["member"]]
    if len(wanted) > 1 and single and set(wanted) != {x, y}:
        wanted = single[:1]  # these rise together: one axis shows them all
    dataset = dataset.drop_vars(
        [name for name in along if name not in wanted] + ["member"] * ("member" in dataset.coords)
    )
    if len(wanted) == 1:
        return dataset.swap_dims(member=wanted[0])
    status = dataset["status"].astype(object)
    unstacked = dataset.assign(status=status).set_index(member=wanted).unstack("member")
    return unstacked.assign(status=unstacked["status"].fillna("missing"))


def _quantities(
    dataset: xr.Dataset, quantity: str | None, swept: Sequence[str], x: str | None, y: str | None
) -> list[str]:
    """Names of what is drawn."""
    allowed = [
        str(name)
        for name, values in dataset.data_vars.items()
        if values.dims and set(swept) <= set(values.dims) <= {*swept, "time"} and np.issubdtype(values.dtype, np.number)
    ]
    if quantity is None:
        over_time = len(swept) == 1 or "time" in (x, y)
        wanted = ["close_pairs", "clusters"] if over_time else ["clustering_time", "pairing_time", "close_pairs"]
        found = [name for name in wanted if name in allowed]
        if not over_time:  # the first that most members have
            found = [name for name in found if dataset[name].notnull().mean() > 0.5][:1] or found[:1]
        found = found or allowed[:1]
        if not found:
            raise ValueError("the sweep has no quantity to draw")
        return found
    if quantity not in allowed:
        raise ValueError(f"quantity = {quantity!r} given; the sweep has {', '.join(sorted(allowed)) or 'none'}")
    return [quantity]


def _choose_axes(dataset: xr.Dataset, quantity: str, x: str | None, y: str | None) -> tuple[str, str | None]:
    """What the axes show; y is None for a curve."""
    has = [str(name) for name in dataset[quantity].dims]
    for key, name in (("x", x), ("y", y)):
        if name is not None and name not in has:
            raise ValueError(f"{key} = {name!r} given; {quantity} depends on {', '.join(sorted(has))}")
    if x is not None and x == y:
        raise ValueError(f"x and y are both {x!r}; two different ones are needed")
    swept = [name for name in has if name != "time"]
    # Names are read best along the vertical axis, and time along the horizontal one.
    across = sorted(swept, key=lambda name: _is_named(dataset, name))
    order = ["time", *across] if "time" in has and len(swept) == 1 else [*across, *(["time"] if "time" in has else [])]
    if y == "time" and x is None:
        order = [name for name in order if name != "time"]
    left = [name for name in order if name not in (x, y)]
    if x is None:
        x = left.pop(0)
    if y is None and left:
        named = [name for name in left if _is_named(dataset, name)]
        y = (named or left)[0]
    return x, y


def _is_named(dataset: xr.Dataset, name: str | None) -> bool:
    """Whether the values along a dimension are words."""
    return name is not None and not np.issubdtype(dataset[name].dtype, np.number)


@dataclass(frozen=True)
class _Panel:
    title: str
    values: xr.DataArray
    status: xr.DataArray


def _panels(
    dataset: xr.Dataset, quantity: str, axes: tuple[str, str | None], times: Iterable[float] | None
) -> list[_Panel]:
    """A panel for each value of the dimensions that no axis shows; of too many, their last value only."""
    others: dict[str, list[int]] = {}
    for name in map(str, dataset[quantity].dims):
        if name in axes:
            continue
        if name == "time":
            own = record_times(dataset)
            asked = own[-1:] if times is None else times_within(times, own[0], own[-1])
            others[name] = sorted({int(np.abs(own - time).argmin()) for time in asked})
        else:
            others[name] = list(range(dataset.sizes[name]))
    while math.prod(map(len, others.values())) > _MOST_PANELS:
        longest = max(others, key=lambda name: len(others[name]))
        others[longest] = others[longest][-1:]
    panels = []
    for indices in itertools.product(*others.values()):
        at = dict(zip(others, indices, strict=True))
        title = ", ".join(
            f"{'t' if name == 'time' else name} = {_word(dataset[name].values[i])}" for name, i in at.items()
        )
        status = dataset["status"].isel({name: i for name, i in at.items() if name != "time"}, drop=True)
        panels.append(_Panel(title, dataset[quantity].isel(at, drop=True), status))
    return panels


def _word(value: Any) -> str:
    return f"{float(value):.4g}" if isinstance(value, int | float | np.number) else str(value)


def _fill(
    figure: FigureBase,
    dataset: xr.Dataset,
    quantity: str,
    axes: tuple[str, str | None],
    panels: Sequence[_Panel],
    in_a_row: int,
) -> dict[str, Patch]:
    """Fill a figure with the panels of one quantity, and return what the legend must say of cells without a value."""
    label = label_of(quantity, dataset[quantity])
    rows = math.ceil(len(panels) / in_a_row)
    block = figure.subplots(rows, in_a_row, squeeze=False, sharex=True, sharey=True)
    for axis in block.flat[len(panels) :]:
        axis.remove()
    x, y = axes
    legend: dict[str, Patch] = {}
    look = None if y is None else _scale(quantity, np.concatenate([panel.values.values.ravel() for panel in panels]))
    for number, (axis, panel) in enumerate(zip(block.flat, panels, strict=False)):
        axis.set_title(plain(panel.title))
        if look is None or y is None:
            legend |= _fill_curve(axis, panel, x)
            axis.set_ylabel(label)
        else:
            legend |= _fill_cells(axis, panel, x, y, *look)
            if number % in_a_row == 0:
                axis.set_ylabel(label_of(y, dataset[y]))
        if number + in_a_row >= len(panels):
            axis.set_xlabel(label_of(x, dataset[x]))
            axis.tick_params(labelbottom=True)
    if look is not None:
        colour_map, norm = look
        bar = figure.colorbar(
            ScalarMappable(norm, colour_map),
            ax=list(block.flat[: len(panels)]),
            label=label,
            pad=0.02,
            aspect=15 * rows,
        )
        if isinstance(norm, BoundaryNorm):
            numbers = np.arange(math.ceil(norm.boundaries[0]), math.ceil(norm.boundaries[-1]))
            bar.set_ticks(numbers.tolist())
            bar.ax.yaxis.set_minor_locator(NullLocator())
        else:
            bar.ax.yaxis.set_major_locator(ticks())
    return legend


def _scale(quantity: str, values: NDArray[Any]) -> tuple[Colormap, Normalize]:
    """Colours and norm that all panels of a quantity share."""
    colour_map = matplotlib.colormaps[_COLOUR_MAP]
    finite = values[np.isfinite(values)].astype(float)
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if quantity == "clusters":
        first = round(low)
        count = min(max(round(high) - first + 1, 1), _MOST_CLUSTERS)
        extend: Literal["max", "neither"] = "max" if high >= first + count else "neither"
        colours = colour_map(np.linspace(0.0, 1.0, count + (extend == "max")))
        discrete = (
            LinearSegmentedColormap.from_list("clusters", colours, N=len(colours)) if len(colours) > 1 else colour_map
        )
        return discrete, BoundaryNorm(np.arange(count + 1) + first - 0.5, discrete.N, extend=extend)
    if quantity == "close_pairs":
        return colour_map, Normalize(0.0, 1.0)
    if high - low <= 1e-9 * abs(high):
        low, high = low - 0.01 * max(abs(low), 1e-9), high + 0.01 * max(abs(high), 1e-9)
    return colour_map, Normalize(low, high)


def _fill_cells(axis: Axes, panel: _Panel, x: str, y: str, colour_map: Colormap, norm: Normalize) -> dict[str, Patch]:
    """Cells of one panel, and what the legend must say of those without a value."""
    x_edges, y_edges = _set_axis(axis, "x", panel.values[x]), _set_axis(axis, "y", panel.values[y])
    values = panel.values.transpose(y, x).to_numpy().astype(float)
    masked = np.ma.masked_invalid(values)
    axis.pcolormesh(x_edges, y_edges, masked, cmap=colour_map, norm=norm, shading="flat", rasterized=values.size > 4000)
    axis.tick_params(length=2.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(True)
    shape = xr.zeros_like(panel.values.transpose(y, x), dtype=int)
    status = panel.status.astype(str).broadcast_like(shape).transpose(y, x).to_numpy()
    legend: dict[str, Patch] = {}
    for row, (empty, how) in enumerate(zip(np.ma.getmaskarray(masked), status, strict=True)):
        start = 0
        for (is_empty, ended), cells in itertools.groupby(zip(empty.tolist(), how.tolist(), strict=True)):
            stop = start + len(list(cells))
            if is_empty:
                text, look = _look_of_nothing(ended)
                low, high = x_edges[start], x_edges[stop]
                corner, height = (low, y_edges[row]), y_edges[row + 1] - y_edges[row]
                axis.add_patch(Rectangle(corner, high - low, height, **look))
                legend[text] = Patch(**look)
            start = stop
    return legend


def _look_of_nothing(status: str) -> tuple[str, dict[str, Any]]:
    """What the legend says of a cell without a value, and its look."""
    if status in _SOUND:
        return "no value: not reached", _NOTHING
    return status, {"facecolor": "white", "edgecolor": "0.35", "hatch": _HATCHES.get(status, "xxxx"), "linewidth": 0.0}


def _fill_curve(axis: Axes, panel: _Panel, x: str) -> dict[str, Patch]:
    """A quantity against the only parameter, and where there is none."""
    edges = _set_axis(axis, "x", panel.values[x])
    values = panel.values.to_numpy().astype(float)
    positions = np.arange(len(values)) if not _is_number(panel.values[x]) else panel.values[x].to_numpy()
    axis.plot(positions, values, "o-", color=COLOURS[0])
    axis.yaxis.set_major_locator(ticks())
    axis.grid(axis="y", **GRID)
    legend: dict[str, Patch] = {}
    for index in np.flatnonzero(~np.isfinite(values)):
        text, look = _look_of_nothing(str(panel.status.values[index]))
        axis.axvspan(edges[index], edges[index + 1], **look)
        legend[text] = Patch(**look)
    return legend


def _is_number(values: xr.DataArray) -> bool:
    return np.issubdtype(values.dtype, np.number)


def _set_axis(axis: Axes, which: str, coordinate: xr.DataArray) -> NDArray[np.float64]:
    """Scale, ticks and limits of an axis with a cell for each value; the edges of the cells."""
    side = axis.xaxis if which == "x" else axis.yaxis
    set_scale, set_limits = (axis.set_xscale, axis.set_xlim) if which == "x" else (axis.set_yscale, axis.set_ylim)
    if not _is_number(coordinate):
        words = [plain(str(value)) for value in coordinate.values]
        side.set_major_locator(FixedLocator(range(len(words))))
        side.set_major_formatter(
            FuncFormatter(lambda value, _: words[round(value)] if 0 <= round(value) < len(words) else "")
        )
        if which == "x" and max(map(len, words)) * len(words) > 40:
            side.set_tick_params(rotation=30.0)
        edges = cell_edges(np.arange(len(words), dtype=float))
    else:
        values = coordinate.to_numpy().astype(float)
        logarithmic = coordinate.name != "time" and _evenly_in_logarithm(values)
        edges = cell_edges(values, logarithmic)
        if coordinate.name == "time" and len(values) > 1:  # no time before the first record, nor after the last
            edges[[0, -1]] = values[[0, -1]]
        if logarithmic:
            set_scale("log")
            side.set_minor_formatter(NullFormatter())
        if len(values) <= 8 and coordinate.name != "time":
            side.set_major_locator(FixedLocator(values.tolist()))
            side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
            side.set_minor_locator(NullLocator())
        elif not logarithmic:
            side.set_major_locator(ticks())
    set_limits(*(edges[[0, -1]] if which == "x" or _is_number(coordinate) else edges[[-1, 0]]))
    return edges


def _evenly_in_logarithm(values: NDArray[np.float64]) -> bool:
    """Whether steps vary less as ratios than as differences."""
    if len(values) < 3 or not (values > 0.0).all():
        return False
    steps, ratios = np.abs(np.diff(values)), np.abs(np.diff(np.log(values)))
    return bool(np.std(ratios) / np.mean(ratios) < 0.9 * np.std(steps) / np.mean(steps))


def cell_edges(values: NDArray[np.float64], logarithmic: bool = False) -> NDArray[np.float64]:
    """Edges (n + 1,) of cells about n rising or falling values, midway between neighbours (in the logarithm).

    The outermost cells reach as far beyond their values as to their neighbours.
    """
    if logarithmic:
        return np.asarray(np.exp(cell_edges(np.log(values))))
    if len(values) == 1:
        margin = 0.5
        return np.array([values[0] - margin, values[0] + margin])
    middle = 0.5 * (values[1:] + values[:-1])
    return np.concatenate([[2.0 * values[0] - middle[0]], middle, [2.0 * values[-1] - middle[-1]]])
