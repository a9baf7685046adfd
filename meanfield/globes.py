"""Globes that turn: densities and tokens on the sphere, coloured alike at all times, by Plotly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from .interactive import FONT, power_label, round_ticks
from .space import Floats
from .sphere import to_points

__all__ = ["Globe", "draw_globes", "mesh"]

_UNIFORM = 1.0 / (4.0 * math.pi)
_GLOBES_IN_A_ROW = 4
_ASPECT = 1.75  # the sphere fills its part of the figure


@dataclass(frozen=True)
class Globe:
    """What a sphere shows in each frame.

    Attributes
    ----------
    title : str
        What stands above it.
    notes : sequence of str
        What is added to the title, for each frame.
    density : array (frame, lat, lon), optional
        ρ per steradian on the points of `mesh`; without it the sphere is grey.
    tokens : array (frame, token, 3), optional
        Unit vectors, or nan for a token that is not there.
    """

    title: str
    notes: Sequence[str]
    density: Floats | None = None
    tokens: Floats | None = None


def mesh(nlat: int) -> Floats:
    """Unit vectors (nlat, 2 nlat − 1, 3) that close the sphere: both poles, and longitudes 0 and 360 degrees."""
    return to_points(np.linspace(90.0, -90.0, nlat)[:, None], np.linspace(0.0, 360.0, 2 * nlat - 1)[None, :])


def draw_globes(globes: Sequence[Globe], times: Sequence[float]) -> go.Figure:
    """Spheres that turn, with one colour scale over all times, and the slider.

    Densities above eight times the uniform one are coloured by their logarithm, stretched around the uniform density;
    what is below a fiftieth of it has the lowest colour.
    """
    rows = math.ceil(len(globes) / _GLOBES_IN_A_ROW)
    columns = min(len(globes), _GLOBES_IN_A_ROW)
    height = 460 if rows == 1 and columns <= 2 else 300
    top, bottom = 8, 150
    total = top + rows * height + bottom
    figure = go.Figure()
    domains = []
    for number in range(len(globes)):
        row, column = divmod(number, columns)
        upper = 1.0 - row / rows
        domains.append(([column / columns, (column + 1) / columns], [upper - 1.0 / rows, upper - 24 / (rows * height)]))
    colours = _Colours([globe.density for globe in globes if globe.density is not None])
    moving: list[list[Any]] = [[] for _ in times]
    indices: list[int] = []
    for number, (globe, (x, y)) in enumerate(zip(globes, domains, strict=True), start=1):
        scene = f"scene{number if number > 1 else ''}"
        figure.update_layout({scene: _scene(x, y)})
        for trace, movements in _globe_traces(globe, colours, len(times)):
            if movements:
                indices.append(len(figure.data))
                for frame, movement in zip(moving, movements, strict=True):
                    frame.append(movement)
            figure.add_trace(trace.update(scene=scene))
    titles = [_titles(globes, domains, index) for index in range(len(times))]
    figure.frames = [
        go.Frame(name=str(index), data=data, traces=indices, layout={"annotations": titles[index]})
        for index, data in enumerate(moving)
    ]
    figure.update_layout(
        annotations=titles[0],
        height=total,
        margin={"l": 8, "r": 8, "t": top, "b": bottom},
        showlegend=False,
        font=FONT,
    )
    figure.update_layout(modebar={"orientation": "v", "bgcolor": "rgba(255,255,255,0)"})
    if colours.scale:
        figure.update_layout(coloraxis=colours.axis())
    return figure


class _Colours:
    """The colour scale that all densities share."""

    def __init__(self, densities: Sequence[Floats]) -> None:
        lowest = min((float(np.nanmin(density)) for density in densities), default=0.0)
        highest = max((float(np.nanmax(density)) for density in densities), default=0.0)
        self.logarithmic = highest > 8.0 * _UNIFORM
        self.low, self.high = max(lowest, _UNIFORM / 50.0 if self.logarithmic else 0.0), highest
        if self.high - self.low <= 1e-9 * self.high:
            self.low, self.high = 0.99 * self.low, 1.01 * self.high
        self.scale = self._scale() if densities else []

    def _scale(self) -> list[tuple[float, str]]:
        positions = np.linspace(0.0, 1.0, 33)
        shown = positions
        if self.logarithmic:
            # A decade counts more the closer it is to uniform: with u = log₁₀(ρ/uniform), colours go as arsinh 2u.
            decades = np.arcsinh(2.0 * np.log10(np.array([self.low, self.high]) / _UNIFORM))
            logs = np.interp(positions, [0.0, 1.0], np.log10([self.low, self.high]))
            shown = (np.arcsinh(2.0 * (logs - math.log10(_UNIFORM))) - decades[0]) / (decades[1] - decades[0])
        colours = sample_colorscale("Magma", np.clip(shown, 0.0, 1.0))
        return list(zip(positions.tolist(), colours, strict=True))

    def values(self, density: Floats) -> np.ndarray[Any, np.dtype[np.float32]]:
        """What Plotly colours: ρ, or log₁₀ ρ."""
        values = np.maximum(density, self.low)
        return (np.log10(values) if self.logarithmic else values).astype(np.float32)

    def axis(self) -> dict[str, Any]:
        """Plotly's colour axis, with a bar under the globes."""
        bar: dict[str, Any] = {
            "orientation": "h",
            "thickness": 12,
            "len": 0.9,
            "x": 0.5,
            "y": 0.0,
            "yanchor": "top",
            "ypad": 6,
            "title": {"text": "ρ (sr⁻¹)", "side": "top", "font": {"size": 13}},
            "outlinewidth": 0,
            "ticks": "outside",
            "ticklen": 4,
        }
        limits = (self.low, self.high)
        if self.logarithmic:
            ticks = round_ticks(self.low, self.high, most=12)
            bar |= {"tickvals": [math.log10(tick) for tick in ticks], "ticktext": list(map(power_label, ticks))}
            limits = (math.log10(self.low), math.log10(self.high))
        return {"cmin": limits[0], "cmax": limits[1], "colorscale": self.scale, "colorbar": bar}


def _scene(x: list[float], y: list[float]) -> dict[str, Any]:
    hidden = {"visible": False, "range": [-1.13, 1.13], "autorange": False}
    return {
        "domain": {"x": x, "y": y},
        "xaxis": hidden,
        "yaxis": hidden,
        "zaxis": hidden,
        "aspectmode": "manual",
        "aspectratio": dict.fromkeys("xyz", _ASPECT),
        "dragmode": "turntable",
        "camera": {"eye": {"x": 0.95, "y": 0.75, "z": 0.55}, "projection": {"type": "orthographic"}},
    }


def _globe_traces(globe: Globe, colours: _Colours, frames: int) -> Iterator[tuple[Any, list[Any]]]:
    """Traces of one globe, each with what moves of it in every frame."""
    points = mesh(49 if globe.density is None else globe.density.shape[1]).astype(np.float32)
    x, y, z = np.moveaxis(points, -1, 0)
    still = {axis: {"highlight": False} for axis in "xyz"}
    surface = {"x": x, "y": y, "z": z, "contours": still, "lighting": {"ambient": 1.0, "diffuse": 0.0, "specular": 0.0}}
    if globe.density is None:
        grey = [[0.0, "#DDDDDD"], [1.0, "#DDDDDD"]]
        yield (
            go.Surface(**surface, surfacecolor=np.zeros_like(x), colorscale=grey, showscale=False, hoverinfo="skip"),
            [],
        )
    else:
        values = colours.values(globe.density)
        place = "x %{x:.2f}, y %{y:.2f}, z %{z:.2f}<extra></extra>"
        value = ("log₁₀ ρ" if colours.logarithmic else "ρ") + " = %{surfacecolor:.3f}<br>"
        trace = go.Surface(**surface, surfacecolor=values[0], coloraxis="coloraxis", hovertemplate=value + place)
        yield trace, [{"type": "surface", "surfacecolor": value} for value in values]
    yield _lines(), []
    yield _axes(), []
    if globe.tokens is not None:
        tokens = (1.022 * globe.tokens).astype(np.float32)
        parts = [dict(zip("xyz", np.ascontiguousarray(at.T), strict=True)) for at in tokens]
        look = {"size": 2.6, "color": "#7FE0FF", "line": {"color": "#000000", "width": 0.5}}
        yield (
            go.Scatter3d(**parts[0], mode="markers", marker=look, hoverinfo="skip"),
            [{"type": "scatter3d", **part} for part in parts],
        )


def _lines() -> Any:
    """Meridians and parallels every 30 degrees."""
    turn = np.linspace(0.0, 360.0, 73)
    lines = [to_points(np.full_like(turn, latitude), turn) for latitude in (-60.0, -30.0, 0.0, 30.0, 60.0)]
    half = np.linspace(-90.0, 90.0, 37)
    lines += [to_points(half, np.full_like(half, longitude)) for longitude in np.arange(0.0, 360.0, 30.0)]
    gap = np.full((1, 3), np.nan)
    x, y, z = (1.016 * np.concatenate([part for line in lines for part in (line, gap)])).astype(np.float32).T
    look = {"color": "rgba(200,200,200,0.5)", "width": 1.5}
    return go.Scatter3d(x=x.copy(), y=y.copy(), z=z.copy(), mode="lines", line=look, hoverinfo="skip")


def _axes() -> Any:
    """Where the Cartesian axes leave the sphere."""
    ends = 1.11 * np.eye(3)
    return go.Scatter3d(
        **dict(zip("xyz", ends, strict=True)),
        mode="text",
        text=["x", "y", "z"],
        textfont={"size": 14, "color": "#2F9E96"},
        hoverinfo="skip",
    )


def _titles(globes: Sequence[Globe], domains: Sequence[Any], index: int) -> list[dict[str, Any]]:
    titles = []
    for globe, (x, y) in zip(globes, domains, strict=True):
        note = f" <span style='color:#B03000'>{globe.notes[index]}</span>" if globe.notes[index] else ""
        place = {
            "x": sum(x) / 2.0,
            "y": y[1],
            "xref": "paper",
            "yref": "paper",
            "xanchor": "center",
            "yanchor": "bottom",
        }
        titles.append({"text": f"<b>{globe.title}</b>{note}", "showarrow": False, "font": {"size": 13}, **place})
    return titles
