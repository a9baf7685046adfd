"""Mollweide maps: a field on the sphere as pixels, tokens as dots, and one colour scale for all maps of a picture.

Equal areas of ink are equal solid angles: east is right, north is up, and longitude 0 is in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import xarray as xr
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import FigureBase
from matplotlib.image import AxesImage
from matplotlib.projections.geo import GeoAxes
from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator
from numpy.typing import NDArray

from .sphere import to_lat_lon

__all__ = ["DOT", "FIELDS", "Field", "check_field", "closed_snapshot", "dot_tokens", "map_axes", "paint", "ticks"]

Field = Literal["density", "radius"]
FIELDS = {"density": ("density ρ (sr⁻¹)", "magma"), "radius": ("radius r", "cividis")}
"""Label and colour map of each field."""
DOT: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 1.8,
    "markerfacecolor": "#7FE0FF",
    "markeredgecolor": "black",
    "markeredgewidth": 0.2,
}
"""Look of a token, which shows on every colour of the density."""
_UNIFORM = 1.0 / (4.0 * math.pi)
ticks = partial(MaxNLocator, nbins=5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1)


def check_field(dataset: xr.Dataset, field: str) -> None:
    """Refuse, with a ValueError, to map a field that there is not, or that is not a function of place and time."""
    if field not in FIELDS:
        raise ValueError(f"field = {field!r} is unknown; allowed: {', '.join(FIELDS)}")
    if field not in dataset:
        has = ", ".join(name for name in FIELDS if name in dataset) or "neither density nor radius"
        raise ValueError(f"the run has no {field} to map; it has {has}")
    if set(dataset[field].dims) != {"time", "lat", "lon"}:
        raise ValueError(f"{field} has dimensions {dataset[field].dims}; maps need (time, lat, lon)")


def map_axes(figure: FigureBase, rows: int, columns: int) -> Any:
    """A block of empty maps, with a grid of meridians and parallels."""
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "mollweide"})
    for axis in axes.flat:
        axis.set_longitude_grid(60.0)
        axis.set_latitude_grid(30.0)
        axis.grid(color="0.75", alpha=0.35, linewidth=0.6)
        axis.tick_params(labelleft=False, labelbottom=False)
    return axes


def paint(figure: FigureBase, painted: Mapping[GeoAxes, xr.DataArray], block: Any, field: Field) -> None:
    """Paint each snapshot on its axes, all with one norm, and put one colour bar beside the block of axes."""
    if not painted:
        raise ValueError("no run reaches any of the times given; name times within one of the runs")
    label, colour_map = FIELDS[field]
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
        ticks=_decades(norm, 0.3 / height) if logarithmic else ticks(),
        format=LogFormatterSciNotation() if logarithmic else None,
        aspect=5.5 * height,
        pad=0.02,
    )


def dot_tokens(axis: GeoAxes, points: NDArray[np.float64]) -> None:
    """Draw tokens, unit vectors (N, 3), as dots."""
    latitude, longitude = to_lat_lon(points)
    longitude = (longitude + 180.0) % 360.0 - 180.0
    axis.plot(np.radians(longitude), np.radians(latitude), **DOT)


def _decades(norm: Normalize, gap: float) -> list[float]:
    """Powers of ten on a colour bar, from its top down, at least `gap` of its length apart."""
    powers: list[float] = []
    for power in range(math.floor(math.log10(norm.vmax or 1.0)), -12, -1):
        if 10.0**power >= (norm.vmin or 0.0) and (not powers or norm(powers[-1]) - norm(10.0**power) >= gap):
            powers.append(10.0**power)
    return powers


def closed_snapshot(dataset: xr.Dataset, field: str, record: int) -> xr.DataArray:
    """One record, its first meridian repeated at the end a full turn further, so that no gap is left."""
    snapshot = dataset[field].isel(time=record, drop=True).transpose("lat", "lon").sortby(["lat", "lon"])
    if not np.isfinite(snapshot).all():
        raise ValueError(f"{field} at t = {float(dataset['time'][record]):g} is not finite; maps need finite values")
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
