"""Mollweide maps: a field on the sphere as pixels, tokens as dots, and one colour scale for all maps of a picture.

Equal areas of ink are equal solid angles: east is right, north is up, and longitude 0 is in the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np
import xarray as xr
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import FuncNorm, Normalize
from matplotlib.figure import FigureBase
from matplotlib.image import AxesImage
from matplotlib.patches import Circle
from matplotlib.projections.geo import GeoAxes
from matplotlib.ticker import LogFormatterSciNotation
from numpy.typing import NDArray

from .figures import LABELS, ticks
from .sphere import to_lat_lon

__all__ = [
    "COLOUR_MAPS",
    "DOT",
    "Field",
    "add_scale",
    "add_snapshot",
    "check_field",
    "closed_snapshot",
    "common_norm",
    "dot_tokens",
    "hatch",
    "map_axes",
    "map_positions",
    "map_sampler",
    "paint",
    "thinned",
]

Field = Literal["density", "radius"]
COLOUR_MAPS: dict[str, str] = {"density": "magma", "radius": "cividis"}
"""Colour map of each field."""
DOT: dict[str, Any] = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 1.3,
    "markerfacecolor": "#7FE0FF",
    "markeredgecolor": "black",
    "markeredgewidth": 0.15,
}
"""Look of a token, which shows on every colour of the density."""
_MOST_DOTS = 1000
_DETAIL = 800
"""Pixels between the poles of a map that has the whole width."""
_UNIFORM = 1.0 / (4.0 * math.pi)


def check_field(dataset: xr.Dataset, field: str) -> None:
    """Refuse, with a ValueError, to map a field that there is not, or that is not a function of place and time."""
    if field not in COLOUR_MAPS:
        raise ValueError(f"field = {field!r} is unknown; allowed: {', '.join(COLOUR_MAPS)}")
    if field not in dataset:
        has = ", ".join(name for name in COLOUR_MAPS if name in dataset) or "neither density nor radius"
        raise ValueError(f"the run has no {field} to map; it has {has}")
    if set(dataset[field].dims) != {"time", "lat", "lon"}:
        raise ValueError(f"{field} has dimensions {dataset[field].dims}; maps need (time, lat, lon)")


def map_axes(figure: FigureBase, rows: int, columns: int) -> Any:
    """A block of empty maps, with a grid of meridians and parallels."""
    axes = figure.subplots(rows, columns, squeeze=False, subplot_kw={"projection": "mollweide"})
    for axis in axes.flat:
        axis.set_longitude_grid(60.0)
        axis.set_latitude_grid(30.0)
        axis.grid(color="0.75", alpha=0.35, linewidth=0.4)
        axis.tick_params(labelleft=False, labelbottom=False)
    return axes


def paint(figure: FigureBase, painted: Mapping[GeoAxes, xr.DataArray], block: Any, field: Field) -> None:
    """Paint each snapshot on its axes, all with one norm, and put one colour bar beside the block of axes."""
    if not painted:
        raise ValueError("no run reaches any of the times given; name times within one of the runs")
    lowest = min(float(snapshot.min()) for snapshot in painted.values())
    norm = common_norm(lowest, max(float(snapshot.max()) for snapshot in painted.values()), field)
    for axis, snapshot in painted.items():
        image = add_snapshot(axis, snapshot, norm, field, _DETAIL // block.shape[1])
    height = len(block) * (4.2 / block.shape[1] + 0.3)
    add_scale(figure, image, [axis for axis in block.flat if axis.figure is not None], field, lowest, height)


def add_snapshot(axis: GeoAxes, snapshot: xr.DataArray, norm: Normalize, field: Field, height: int) -> AxesImage:
    """Paint one closed snapshot on its map, of so many pixels from pole to pole."""
    # The projection fills its axes, so a picture of the map is an image in axes coordinates.
    image = AxesImage(axis, norm=norm, cmap=COLOUR_MAPS[field], origin="lower", extent=(0.0, 1.0, 0.0, 1.0))
    image.set_transform(axis.transAxes)
    # What lies below the bottom of a logarithmic norm is raised to it, and not left white.
    image.set_data(np.maximum(map_sampler(snapshot, height)(snapshot), norm.vmin or 0.0))
    image.set_clip_path(axis.patch)
    axis.add_image(image)
    return image


def add_scale(
    figure: FigureBase,
    image: ScalarMappable,
    axes: Any,
    field: Field,
    lowest: float,
    height: float,
    label: str | None = None,
    uniform: float = _UNIFORM,
) -> Colorbar:
    """Put the colour bar of an image beside axes that are `height` tenths of the figure's width high together."""
    norm, label = cast(Normalize, image.norm), label or LABELS[field]
    bottom = norm.vmin or 0.0
    if field == "density" and lowest < -1e-3 * uniform:
        label += "\nρ < 0 clipped"
    logarithmic = isinstance(norm, FuncNorm)
    return figure.colorbar(
        image,
        ax=axes,
        label=label,
        extend="min" if lowest < bottom else "neither",
        ticks=_decades(norm, 0.3 / height) if logarithmic else ticks(),
        format=LogFormatterSciNotation() if logarithmic else None,
        aspect=5.5 * height,
        pad=0.02,
    )


def hatch(axis: GeoAxes) -> Circle:
    """Hatch a whole map: its field is not to be trusted."""
    circle = Circle((0.5, 0.5), 0.5, transform=axis.transAxes, fill=False, hatch="////", edgecolor="0.7", linewidth=0.0)
    circle.set_alpha(0.6)
    axis.add_patch(circle)
    return circle


def thinned(tokens: xr.Dataset) -> xr.DataArray:
    """Positions of the tokens of the first seed, of which a thousand at most, spread over all, are shown."""
    step = math.ceil(tokens.sizes["particle"] / _MOST_DOTS)
    return tokens["position"].isel(seed=0, particle=slice(None, None, step))


def map_positions(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Longitudes and latitudes, in radians as a map takes them, of unit vectors (N, 3)."""
    latitude, longitude = to_lat_lon(points)
    return np.radians((longitude + 180.0) % 360.0 - 180.0), np.radians(latitude)


def dot_tokens(axis: GeoAxes, points: NDArray[np.float64]) -> None:
    """Draw tokens, unit vectors (N, 3), as dots."""
    axis.plot(*map_positions(points), **DOT)


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


def map_sampler(grid: xr.DataArray, height: int) -> Callable[[xr.DataArray], NDArray[np.float64]]:
    """Function from closed snapshots on one grid to pixels of the box around a Mollweide map.

    Pixels are (height, 2 height), from the south up, from the west eastward. Bilinear between grid points; beyond the
    last latitudes, near the poles, the last rows are continued.
    """
    latitude, longitude = _inverse_mollweide(height)
    lat, lon = grid["lat"].to_numpy(), grid["lon"].to_numpy()
    row = np.interp(latitude, lat, np.arange(len(lat)))[:, np.newaxis]
    column = np.interp((longitude - lon[0]) % 360.0 + lon[0], lon, np.arange(len(lon)))
    south = np.clip(row.astype(int), 0, max(len(lat) - 2, 0))
    west = np.clip(column.astype(int), 0, len(lon) - 2)
    up, east = row - south, column - west
    north = np.minimum(south + 1, len(lat) - 1)

    def sample(snapshot: xr.DataArray) -> NDArray[np.float64]:
        values = snapshot.to_numpy()
        lower = (1.0 - east) * values[south, west] + east * values[south, west + 1]
        upper = (1.0 - east) * values[north, west] + east * values[north, west + 1]
        pixels: NDArray[np.float64] = (1.0 - up) * lower + up * upper
        return pixels

    return sample


@lru_cache(maxsize=4)
def _inverse_mollweide(height: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Latitude (height,) and longitude (height, 2 height) of pixels, in degrees.

    At the height sin α of a map of half-axes 1: π sin(lat) = 2α + sin 2α and lon = π x / cos α.
    """
    x, y = ((np.arange(size) + 0.5) / (0.5 * size) - 1.0 for size in (2 * height, height))
    angle = np.arcsin(y)
    latitude = np.degrees(np.arcsin((2.0 * angle + np.sin(2.0 * angle)) / np.pi))
    return latitude, 180.0 * np.clip(x / np.cos(angle)[:, np.newaxis], -1.0, 1.0)


def common_norm(lowest: float, highest: float, field: Field, uniform: float = _UNIFORM) -> Normalize:
    """One norm for all values of a field from lowest to highest.

    Of a density that rises above eight times the uniform one it is logarithmic, stretched around the uniform density:
    early states near it and late peaks are seen on one scale.
    """
    if highest - lowest <= 1e-9 * abs(highest):
        return Normalize(lowest - 0.01 * abs(highest), highest + 0.01 * abs(highest))
    if field == "radius":
        return Normalize(lowest, highest)
    if highest <= 8.0 * uniform:
        return Normalize(max(lowest, 0.0), highest)
    # With u = log₁₀(ρ/uniform), colours go as arsinh 2u: a decade counts more the closer it is to uniform.
    # Nearly empty regions, below a fiftieth of the uniform density, are not worth further colours.
    functions = (
        lambda density: np.arcsinh(2.0 * np.log10(np.maximum(density, 1e-300) / uniform)),
        lambda colour: uniform * 10.0 ** (0.5 * np.sinh(colour)),
    )
    return FuncNorm(functions, max(lowest, uniform / 50.0), highest)
