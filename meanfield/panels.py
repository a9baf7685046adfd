"""Panels of curves with a cursor at the slider's time, by Plotly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .interactive import COLOURS, FONT, power_label, round_ticks
from .space import Floats

__all__ = ["Curve", "Mark", "Panel", "Scale", "draw_panels"]

DASHES = ("solid", "6px,3px", "2px,2px", "8px,2px,2px,2px")
"""Four dashes and seven colours have no common factor, so 28 runs all look different."""
Scale = Literal["linear", "log", "integer", "loglog", "place"]
_NUMBER = ".4~g"


@dataclass(frozen=True)
class Curve:
    """A line of a panel.

    Attributes
    ----------
    x, y : array (point,) or (frame, point)
        Its points; with two axes they move with the slider.
    name : str
        Its entry of the legend, where it stands once.
    number : int
        Of its colour and dashes.
    width : float
        Of the line, in pixels; 0 draws points only.
    spread : array as y, optional
        Half-width of the band about a line, or of the bars at points.
    stopped : bool
        End in a cross.
    look : mapping
        What else Plotly is told of the line.
    """

    x: Floats
    y: Floats
    name: str = ""
    number: int = 0
    width: float = 2.0
    spread: Floats | None = None
    stopped: bool = False
    look: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mark:
    """A moment that matters: a vertical line in a panel."""

    time: float
    text: str
    number: int = 0


@dataclass(frozen=True)
class Panel:
    """A system of axes with its curves; over time it has a cursor that moves with the slider.

    On a logarithmic scale, what is below `floor` is round-off, and not worth ink.
    """

    title: str
    curves: Sequence[Curve]
    marks: Sequence[Mark] = ()
    x_title: str = "time t"
    scale: Scale = "linear"
    floor: float = 0.0

    @property
    def over_time(self) -> bool:
        """Whether the abscissa is time."""
        return self.scale not in ("loglog", "place")


def draw_panels(panels: Sequence[Panel], times: Sequence[float], columns: int, height: int = 150) -> go.Figure:
    """Panels of curves, with a cursor at the slider's time in each one over time, and a legend if lines have names."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    names = {curve.name for panel in panels for curve in panel.curves} - {""}
    top, bottom = 26, 46 + (26 * math.ceil(len(names) / 4) if names else 0)
    inner = rows * height
    figure = make_subplots(
        rows,
        columns,
        subplot_titles=[panel.title for panel in panels],
        horizontal_spacing=0.07 if columns < 4 else 0.045,
        vertical_spacing=min((44 if panels[0].over_time else 62) / inner, 1.0 / max(rows - 1, 1)),
    )
    figure.update_annotations(font_size=13)
    ends = [float(end) for panel in panels if panel.over_time for curve in panel.curves for end in curve.x[[0, -1]]]
    first, final = min(ends, default=0.0), max(ends, default=1.0)
    margin = 0.015 * (final - first) or 1.0
    span = [first - margin, final + margin]
    moving: list[list[dict[str, Any]]] = [[] for _ in times]
    indices: list[int] = []
    told: set[str] = set()
    for index, panel in enumerate(panels):
        at = {"row": index // columns + 1, "col": index % columns + 1}
        for curve in panel.curves:
            for trace, movements in _curve_traces(curve, curve.name not in told):
                if movements:
                    indices.append(len(figure.data))
                    for frame, movement in zip(moving, movements, strict=True):
                        frame.append(movement)
                figure.add_trace(trace, **at)
            told.add(curve.name)
        _scale_axes(figure, panel, at, span, last=index >= len(panels) - columns)
        low, high = _limits(panel)
        for mark in panel.marks:
            _draw_mark(figure, mark, (low, high), at)
        if panel.over_time:
            indices.append(len(figure.data))
            for frame, time in zip(moving, times, strict=True):
                frame.append({"type": "scatter", "x": [time, time], "y": [low, high]})
            look = {"color": "#B03000", "width": 1.5}
            cursor = go.Scatter(x=[times[0]] * 2, y=[low, high], mode="lines", line=look, showlegend=False)
            figure.add_trace(cursor.update(hoverinfo="skip", cliponaxis=False, name="time"), **at)
    if all(panel.over_time for panel in panels):
        figure.update_xaxes(matches="x")
        figure.layout.xaxis.matches = None
    figure.frames = [
        go.Frame(name=str(number), data=data, traces=indices) for number, data in enumerate(moving) if indices
    ]
    legend = {"orientation": "h", "x": 0.5, "xanchor": "center", "yref": "container", "y": 0.0, "yanchor": "bottom"}
    figure.update_layout(
        height=top + inner + bottom,
        margin={"l": 56, "r": 12, "t": top, "b": bottom},
        font=FONT,
        legend=legend | {"font": {"size": 12}, "itemwidth": 40},
        showlegend=bool(names),
        plot_bgcolor="white",
        hovermode="closest",
    )
    return figure


def _curve_traces(curve: Curve, first: bool) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    colour, dash = COLOURS[curve.number % len(COLOURS)], DASHES[curve.number % len(DASHES)]
    moves = curve.y.ndim == 2
    x, y = curve.x, curve.y[0] if moves else curve.y
    spread = curve.spread[0] if moves and curve.spread is not None else curve.spread
    entry = {"name": curve.name, "legendgroup": curve.name, "showlegend": bool(curve.name) and first}
    place = f"%{{x:{_NUMBER}}}, %{{y:{_NUMBER}}}<extra>{curve.name}</extra>"
    if curve.width == 0.0:
        look = {"color": colour, "size": 7}
        movements = []
        for number in range(len(curve.y) if moves else 0):
            movement = {"type": "scatter", "y": curve.y[number].tolist()}
            if curve.spread is not None:
                movement["error_y"] = {"array": curve.spread[number].tolist()}
            movements.append(movement)
        bars = None if spread is None else {"array": spread.tolist(), "thickness": 1.2, "width": 3}
        trace = go.Scatter(x=x, y=y.tolist(), mode="markers", marker=look, error_y=bars, hovertemplate=place, **entry)
        yield trace, movements
        return
    if spread is not None:
        band = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        band |= {"legendgroup": curve.name}
        yield go.Scatter(x=x, y=y - spread, **band), []
        yield go.Scatter(x=x, y=y + spread, fill="tonexty", fillcolor=_pale(colour), **band), []
    line = {"color": colour, "width": curve.width, "dash": dash, **curve.look}
    mode = "lines" if np.isfinite(y).sum() > 3 else "lines+markers"
    movements = [{"type": "scatter", "y": values.tolist()} for values in curve.y] if moves else []
    yield go.Scatter(x=x, y=y.tolist() if moves else y, mode=mode, line=line, hovertemplate=place, **entry), movements
    if curve.stopped:
        cross = {"symbol": "x", "size": 9, "color": colour, "line": {"color": "white", "width": 1}}
        yield go.Scatter(x=x[-1:], y=y[-1:], mode="markers", marker=cross, hoverinfo="skip", showlegend=False), []


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.22)"


def _limits(panel: Panel) -> tuple[float, float]:
    """Ordinates that the curves need, with a margin."""
    parts = []
    for curve in panel.curves:
        spread = 0.0 if curve.spread is None else np.nan_to_num(curve.spread)
        parts += [np.ravel(curve.y - spread), np.ravel(curve.y + spread)]
    values = np.concatenate(parts)
    values = values[np.isfinite(values)]
    if panel.scale in ("log", "loglog"):
        values = values[values > 0.0]
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.1, 1.0)
        low = min(max(low, panel.floor), high)
        return low / 1.4, 1.4 * high
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    margin = max(0.06 * (high - low), 1e-9 * max(abs(low), abs(high)), 1e-12)
    if panel.scale == "integer":
        return min(low, 0.0), high + 0.5
    return low - margin, high + margin


def _scale_axes(figure: go.Figure, panel: Panel, at: dict[str, int], span: list[float], last: bool) -> None:
    low, high = _limits(panel)
    logarithmic = panel.scale in ("log", "loglog")
    axis: dict[str, Any] = {"gridcolor": "#E8E8E8", "zeroline": False, "linecolor": "#888888", "ticks": "outside"}
    axis |= {"ticklen": 3, "tickfont": {"size": 11}}
    y = axis | {"range": [math.log10(low), math.log10(high)] if logarithmic else [low, high]}
    if logarithmic:
        ticks = round_ticks(low, high)
        y |= {"type": "log", "tickvals": ticks, "ticktext": [power_label(tick) for tick in ticks]}
    elif panel.scale == "integer":
        y |= {"dtick": max(1, math.ceil(high / 5.0))}
    else:
        y |= {"nticks": 6, "exponentformat": "power"}
    x = axis | {
        "title": {"text": panel.x_title if last or not panel.over_time else "", "font": {"size": 12}, "standoff": 4}
    }
    if panel.over_time:
        x |= {"range": span}
    elif panel.scale == "place":
        x |= {"range": [float(end) for end in panel.curves[0].x[[0, -1]]], "nticks": 8}
    else:
        counts = panel.curves[0].x
        x |= {"type": "log", "tickvals": counts.tolist(), "ticktext": [f"{count:g}" for count in counts]}
        x |= {"range": [math.log10(counts[0] / 1.5), math.log10(counts[-1] * 1.5)]}
    figure.update_xaxes(**x, **at)
    figure.update_yaxes(**y, **at)


def _draw_mark(figure: go.Figure, mark: Mark, limits: tuple[float, float], at: dict[str, int]) -> None:
    look = {"color": COLOURS[mark.number % len(COLOURS)], "width": 1.3, "dash": "dot"}
    line = go.Scatter(x=[mark.time] * 2, y=list(limits), mode="lines", line=look, showlegend=False, name=mark.text)
    figure.add_trace(line.update(hovertemplate=f"{mark.text}<extra></extra>"), **at)
    if mark.text:
        axes = figure.get_subplot(**at)
        side = ("left", 2) if mark.time < sum(axes.xaxis.range) / 2.0 else ("right", -2)
        figure.add_annotation(
            text=mark.text,
            x=mark.time,
            y=0.0,
            xref=axes.xaxis.plotly_name.replace("axis", ""),
            yref=axes.yaxis.plotly_name.replace("axis", "") + " domain",
            xanchor=side[0],
            yanchor="bottom",
            xshift=side[1],
        )
        figure.layout.annotations[-1].update(showarrow=False, bgcolor="rgba(255,255,255,0.75)", font={"size": 11})
