"""A run in motion: the density with its tokens on a map, and a point that goes along the order parameter.

Axes and colours are those of the whole run and the same in all frames. MP4 is written by the program ffmpeg, GIF by
Pillow with one palette for all frames; both hold no dates, so that the same run is the same file.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.projections.geo import GeoAxes
from numpy.typing import NDArray
from PIL import Image

from .comparison import token_groups
from .figures import (
    COLOURS,
    DASHES,
    GRID,
    LABELS,
    blank_figure,
    fold_of,
    plain,
    record_times,
    style,
    ticks,
    times_within,
    unresolved_since,
)
from .maps import (
    COLOUR_MAPS,
    DOT,
    add_scale,
    add_snapshot,
    check_field,
    closed_snapshot,
    common_norm,
    hatch,
    map_axes,
    map_positions,
    map_sampler,
    thinned,
)

__all__ = ["Film", "check_encoder", "draw_film", "write_film"]

_SIZE = (5.6, 4.2)  # inches
_DPI = {".mp4": 200, ".gif": 120}
_MOST_FRAMES = 120
_SECONDS, _SLOWEST, _FASTEST = 6.0, 4, 25


@dataclass(frozen=True)
class Film:
    """A figure and what changes in it from frame to frame.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
        The picture, laid out.
    moving : tuple of matplotlib.artist.Artist
        Artists that differ between frames; all else is drawn once.
    records : list of int
        Records of the density run, one for each frame.
    show : callable
        Turns the figure into the frame of a record.
    """

    figure: Figure
    moving: tuple[Artist, ...]
    records: list[int]
    show: Callable[[int], None]


def draw_film(
    density: xr.Dataset,
    particles: xr.Dataset | xr.DataTree | None = None,
    times: Iterable[float] | None = None,
    frames: int | None = None,
    suffix: str = ".gif",
) -> Film:
    """Lay out the density on a Mollweide map, with tokens as dots, over its order parameter.

    Parameters
    ----------
    density : xarray.Dataset
        Density run with ``density(time, lat, lon)``.
    particles : xarray.Dataset or xarray.DataTree, optional
        Particle run of the same case: of the largest N, up to 1000 tokens of the first seed are shown, and the order
        parameter of this seed. Frames are then taken of common times only.
    times : iterable of float, optional
        First and last time of the film, in any order, within the run; by default the whole run.
    frames : int, optional
        Number of frames, spread evenly over the records. By default all records, 120 at most.
    suffix : {".mp4", ".gif"}
        What it is drawn for, which fixes the number of pixels: 1120 × 840, or 672 × 504.

    Raises
    ------
    ValueError
        For a run without a finite density, fewer than two records to show, or a number of frames that there are not.
    """
    check_field(density, "density")
    tokens = None if particles is None else list(token_groups(particles).values())[-1]
    records = _records(density, tokens, times, frames)
    lowest, highest = _range(density, records)
    norm = common_norm(lowest, highest, "density")
    with style():
        figure = blank_figure(*_SIZE)
        figure.set_dpi(_DPI[suffix])
        upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=[2.9, 1.3]))
        figure.suptitle(plain(str(density.attrs.get("title", ""))))
        globe: GeoAxes = map_axes(upper, 1, 1)[0, 0]
        image = add_snapshot(globe, closed_snapshot(density, "density", records[0]), norm, "density", 100)
        add_scale(upper, image, [globe], "density", lowest, 4.5)
        hatching = hatch(globe)
        clock, warning = globe.set_title("t = 0", loc="left"), globe.set_title("", loc="right", color="#B03000")
        (dots,) = globe.plot([], [], **DOT | {"markersize": 2.2, "markeredgewidth": 0.25})
        here = _fill_curve(lower.subplots(), density, tokens)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # nothing moves from here on

    own, since = record_times(density), unresolved_since(density)
    digits = max(0, 2 - math.floor(math.log10(float(np.ptp(own)))))
    points = None if tokens is None else thinned(tokens).transpose("time", "particle", "axis")
    sample = map_sampler(closed_snapshot(density, "density", records[0]), round(globe.get_window_extent().height))

    def show(record: int) -> None:
        time = own[record]
        clock.set_text(f"t = {time:.{digits}f}")
        warning.set_text("hatched: not resolved" if time >= since else "")
        hatching.set_visible(bool(time >= since))
        # Colours are looked up here: matplotlib would do it once more for every pixel of the canvas.
        pixels = np.maximum(sample(closed_snapshot(density, "density", record)), norm.vmin or 0.0)
        image.set_data(image.cmap(norm(pixels), bytes=True))
        here.set_data([time], [float(density["order_parameter"][record])])
        if points is not None:
            position = points.sel(time=time).to_numpy()
            whole = np.isfinite(position).all()  # the member had not failed by then
            dots.set_data(*(map_positions(position) if whole else (np.empty(0), np.empty(0))))

    return Film(figure, (globe, here), records, show)


def _range(density: xr.Dataset, records: list[int]) -> tuple[float, float]:
    """Least and greatest density of all frames; one record after the other, as a long run does not fit in memory."""
    lows, highs = [], []
    for record in records:
        values = density["density"].isel(time=record).to_numpy()
        if not np.isfinite(values).all():
            time = float(density["time"][record])
            raise ValueError(f"density at t = {time:g} is not finite; animations need finite values")
        lows.append(float(values.min()))
        highs.append(float(values.max()))
    return min(lows), max(highs)


def _records(
    density: xr.Dataset, tokens: xr.Dataset | None, times: Iterable[float] | None, frames: int | None
) -> list[int]:
    """Records of the density that the frames show."""
    own = record_times(density)
    known = np.ones(len(own), dtype=bool) if tokens is None else np.isin(own, record_times(tokens))
    if times is not None:
        span = times_within(times, own[0], own[-1])
        known &= (own >= span[0]) & (own <= span[-1])
    available = np.flatnonzero(known)
    if len(available) < 2:
        raise ValueError(f"an animation needs two common records at least, there are {len(available)}")
    count = min(len(available), _MOST_FRAMES) if frames is None else frames
    if not 2 <= count <= len(available):
        raise ValueError(f"frames = {count} given; allowed: from 2 to {len(available)}, the number of records")
    return [int(record) for record in available[np.linspace(0, len(available) - 1, count).round().astype(int)]]


def _fill_curve(axis: Axes, density: xr.Dataset, tokens: xr.Dataset | None) -> Line2D:
    """Order parameter against time, and the point that moves along it."""
    axis.plot(record_times(density), density["order_parameter"], color=COLOURS[0], label="density")
    if tokens is not None:
        curve = tokens["order_parameter"].isel(seed=0)
        label = f"{tokens.sizes['particle']} tokens"
        axis.plot(record_times(tokens), curve, color=COLOURS[1], linestyle=DASHES[1], label=label)
        axis.legend(loc="best")
    if fold := fold_of(density):
        axis.axvline(float(density.attrs["fold_time"]), color="0.3", linestyle=":", linewidth=0.9)
        axis.annotate(
            fold,
            (float(density.attrs["fold_time"]), 0.04),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=8.0,
        )
    (here,) = axis.plot([], [], "o", color="black", markersize=5.0, zorder=5.0, clip_on=False)
    axis.set_xlabel(LABELS["time"])
    axis.set_ylabel(LABELS["order_parameter"].replace(" ", "\n", 1))
    axis.grid(**GRID)
    axis.xaxis.set_major_locator(ticks(nbins=8))
    axis.yaxis.set_major_locator(ticks(nbins=4))
    return here


def check_encoder(suffix: str) -> None:
    """Refuse a kind of file that cannot be written here.

    Raises
    ------
    ValueError
        For a suffix other than .mp4 and .gif, and for .mp4 without the program ffmpeg.
    """
    if suffix not in _DPI:
        raise ValueError(f"an animation must end in {' or '.join(_DPI)}, got {suffix!r}")
    if suffix == ".mp4" and shutil.which("ffmpeg") is None:
        raise ValueError("MP4 needs the program ffmpeg: `apt-get install ffmpeg`, or name an output that ends in .gif")


def write_film(film: Film, path: Path, suffix: str, fps: float | None = None) -> None:
    """Write all frames of a film.

    Parameters
    ----------
    film : Film
        Result of `draw_film` for this suffix.
    path : Path
        File to write.
    suffix : {".mp4", ".gif"}
        Kind of the file.
    fps : float, optional
        Frames per second, from 1 to 50; by default as many as make six seconds, from 4 to 25.

    Raises
    ------
    ValueError
        For other frames per second.
    OSError
        If the file cannot be written.
    """
    if fps is None:
        fps = min(max(round(len(film.records) / _SECONDS), _SLOWEST), _FASTEST)
    if not 1.0 <= fps <= 50.0:
        raise ValueError(f"fps = {fps:g} given; allowed: from 1 to 50")
    with style():
        if suffix == ".gif":
            _write_gif(film, path, fps)
        else:
            _write_mp4(film, path, fps)


def _frames(film: Film) -> Iterator[NDArray[np.uint8]]:
    """Pixels (height, width, 3) of one frame after the other; what does not move is drawn once."""
    canvas: Any = film.figure.canvas  # of which matplotlib declares no types
    for artist in film.moving:
        artist.set_visible(False)
    canvas.draw()
    background = canvas.copy_from_bbox(film.figure.bbox)
    renderer = canvas.get_renderer()
    for record in film.records:
        film.show(record)
        canvas.restore_region(background)
        for artist in film.moving:
            artist.set_visible(True)
            artist.draw(renderer)
        yield np.array(canvas.buffer_rgba())[..., :3]


def _write_gif(film: Film, path: Path, fps: float) -> None:
    frames = [Image.fromarray(pixels) for pixels in _frames(film)]
    palette = _palette(frames)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    # Durations are whole hundredths of a second.
    duration = 10 * max(2, round(100.0 / fps))
    first.save(path, format="GIF", save_all=True, append_images=others, duration=duration, loop=0, optimize=False)


def _palette(frames: Sequence[Image.Image]) -> Image.Image:
    """The 256 colours of all frames, so that none flickers: the colour map, greys, and what else the pictures have."""
    ramp = matplotlib.colormaps[COLOUR_MAPS["density"]](np.linspace(0.0, 1.0, 176))[:, :3]
    greys = np.repeat(np.linspace(0.0, 1.0, 16)[:, np.newaxis], 3, axis=1)
    known = (255.0 * np.vstack([ramp, greys, to_rgb(DOT["markerfacecolor"]), *map(to_rgb, COLOURS[:2])])).round()
    width, height = frames[0].size
    sample = Image.new("RGB", (width, 3 * height))
    for row, frame in enumerate((frames[0], frames[len(frames) // 2], frames[-1])):
        sample.paste(frame, (0, row * height))
    found = sample.quantize(256 - len(known), dither=Image.Dither.NONE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*known.astype(int).ravel().tolist(), *found])
    return palette


def _write_mp4(film: Film, path: Path, fps: float) -> None:
    width, height = map(round, film.figure.bbox.size)
    taken = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-framerate", f"{fps:g}", "-i", "pipe:"]
    coded = ["-c:v", "libx264", "-preset", "fast", "-crf", "18", "-pix_fmt", "yuv420p", "-threads", "1"]
    undated = ["-map_metadata", "-1", "-fflags", "+bitexact", "-flags:v", "+bitexact"]
    # The path is absolute, as ffmpeg takes what stands before a colon for a protocol.
    into = ["-movflags", "+faststart", "-f", "mp4", "-y", str(path.absolute())]
    command = ["ffmpeg", "-loglevel", "error", *taken, *coded, *undated, *into]
    with tempfile.TemporaryFile() as messages:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=messages, stderr=messages) as process:
            pipe = cast(IO[bytes], process.stdin)
            with suppress(BrokenPipeError), pipe:  # it ended early, and has said why
                for frame in _frames(film):
                    pipe.write(frame.tobytes())
        if process.returncode:
            messages.seek(0)
            said = messages.read().decode(errors="replace").split("\n")
            reason = next((line for line in reversed(said) if line.strip()), f"exit code {process.returncode}")
            raise OSError(f"ffmpeg could not write MP4: {reason}")
