"""What the moving figures of a page share: Plotly's library, letters, round numbers, and the one slider.

All figures of a page have the same frames, by number: the first carries the slider, and the page lets the others
follow. Plotly is known here, in `globes` and in `panels` only; they are given
numbers, and `report` knows what these are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go
import plotly.io
from plotly.offline import get_plotlyjs

__all__ = ["COLOURS", "FONT", "library", "power_label", "round_ticks", "to_html"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
"""Okabe and Ito's colours without the yellow, which is lost on white."""
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif", "color": "#222222"}
_STILL = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers on a logarithmic scale: 1, 2 and 5 times powers of ten, or every so many powers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**power for power in range(first, last + 1)]
    ticks = [tick for power in powers for tick in (power, 2.0 * power, 5.0 * power) if low <= tick <= high]
    if len(ticks) <= most:
        return ticks
    step = math.ceil((last - first) / most)
    return [10.0**power for power in range(first, last + 1) if power % step == 0 and low <= 10.0**power <= high]


def power_label(value: float) -> str:
    """A tick's label: 0.05, or 10⁻⁹."""
    if value >= 1e-3:
        return f"{value:g}"
    power = math.floor(math.log10(value) + 1e-9)
    factor = value / 10.0**power
    return f"{factor:.0f}·" * (factor > 1.5) + f"10<sup>−{-power}</sup>"


def library() -> str:
    """Plotly.js, whole."""
    return str(get_plotlyjs())


def to_html(figure: go.Figure, identifier: str, times: Sequence[float], leads: bool) -> str:
    """Element of a page that has the `library`; the one that leads has the slider, if there are several times."""
    if leads and len(times) > 1:
        if not any(trace.type == "surface" for trace in figure.data):
            figure.update_layout(height=figure.layout.height + 80, margin_b=figure.layout.margin.b + 80)
            figure.update_layout(legend_y=80 / figure.layout.height)
        _slider(figure, times)
    element: str = plotly.io.to_html(
        figure,
        config={"displaylogo": False, "responsive": True, "scrollZoom": False},
        include_plotlyjs=False,
        full_html=False,
        auto_play=False,
        default_height=f"{figure.layout.height}px",
        div_id=identifier,
    )
    # Slashes come as six letters each, much of what base64 takes; < and > stay escaped, so that no tag can end.
    return element.replace(r"\u002f", "/")


def _slider(figure: go.Figure, times: Sequence[float]) -> None:
    """Put a slider and its buttons at the foot of a figure."""
    steps = [
        {"method": "animate", "label": f"{time:.4g}", "args": [[str(index)], _STILL]}
        for index, time in enumerate(times)
    ]
    playing = {"mode": "immediate", "fromcurrent": True, "transition": {"duration": 0}}
    playing["frame"] = {"duration": 120, "redraw": True}
    buttons = [
        {"method": "animate", "label": "▶", "args": [None, playing]},
        {"method": "animate", "label": "❚❚", "args": [[None], _STILL]},
    ]
    margin = figure.layout.margin
    foot = {"y": -margin.b / (figure.layout.height - margin.t - margin.b), "yanchor": "bottom"}
    figure.update_layout(
        sliders=[
            {
                "steps": steps,
                "active": 0,
                "currentvalue": {"prefix": "time t = ", "font": {"size": 15}, "xanchor": "left"},
                "pad": {"t": 0, "b": 6, "l": 104, "r": 12},
                "ticklen": 4,
                "font": {"size": 11},
                "transition": {"duration": 0},
                **foot,
            }
        ],
        updatemenus=[
            {
                "type": "buttons",
                "buttons": buttons,
                "direction": "right",
                "showactive": False,
                "x": 0.0,
                "xanchor": "left",
                "pad": {"b": 22, "l": 4, "t": 0, "r": 0},
                **foot,
            }
        ],
    )
