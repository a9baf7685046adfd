"""Films: as many frames as records, the same axes and colours in all of them, and the time in each."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from meanfield import animation, plots

from .synthetic import assert_nothing_overlaps, make_comparison, make_run, maps_of


def gif_frames(path):
    with Image.open(path) as picture:
        return [np.array(picture.convert("RGB")) for number in range(picture.n_frames) if picture.seek(number) is None]


def mp4_frames(path, size):
    command = ["ffmpeg", "-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "pipe:"]
    content = subprocess.run(command, capture_output=True, check=True).stdout
    return list(np.frombuffer(content, np.uint8).reshape(-1, size[1], size[0], 3))


@pytest.fixture(scope="module")
def short():
    return make_run([0.5, 5.0, 400.0], nlat=16, unresolved_since=3.0)


def box_of(film, axes):
    """Slices of the pixels that an axes covers, well inside."""
    box, height = axes.get_window_extent(), round(film.figure.bbox.height)
    return slice(int(height - box.y1) + 4, int(height - box.y0) - 4), slice(int(box.x0) + 4, int(box.x1) - 4)


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_frames_differ_in_the_map_and_agree_in_the_scale(short, tmp_path, suffix):
    path = tmp_path / f"film{suffix}"
    assert plots.plot_run(short, path, "animate", fps=5) == [path]
    film = animation.draw_film(short, suffix=suffix)
    size = tuple(map(round, film.figure.bbox.size))
    assert size == {".gif": (672, 504), ".mp4": (1120, 840)}[suffix]
    frames = gif_frames(path) if suffix == ".gif" else mp4_frames(path, size)
    assert len(frames) == 3
    assert {frame.shape for frame in frames} == {(*size[::-1], 3)}
    (bar,) = [axes for axes in film.figure.axes if axes.get_label() == "<colorbar>"]
    scales = [frame[box_of(film, bar)].astype(int) for frame in frames]
    assert np.ptp(scales[0][:, 0].sum(axis=-1)) > 400  # all colours, from black to nearly white
    for other in scales[1:]:
        # GIF keeps pixels; MP4 is coded with losses, a few of 256 levels.
        assert np.abs(other - scales[0]).max() <= (0 if suffix == ".gif" else 12)
    (globe,) = maps_of(film.figure)
    seen = [frame[box_of(film, globe)].astype(int) for frame in frames]
    assert all(np.abs(one - two).mean() > 5.0 for one, two in pairwise(seen))
    # The peak has the top colour in the last frame only: limits are those of the whole film.
    height, width = seen[0].shape[:2]
    inside = slice(height // 10, -height // 10), slice(width // 4, -width // 4)
    tops = [frame[inside].sum(axis=-1).max() for frame in seen]
    assert tops[0] < 0.9 * tops[2]


def test_what_frames_show(short):
    film = animation.draw_film(short)
    assert film.records == [0, 1, 2]
    globe, here = film.moving
    norm = globe.get_images()[0].norm
    for record in film.records:
        film.show(record)
        assert globe.get_title(loc="left") == f"t = {1.5 * record:.2f}"
        assert globe.get_title(loc="right") == ("hatched: not resolved" if record == 2 else "")
        assert [patch.get_visible() for patch in globe.patches] == [record == 2]
        np.testing.assert_array_equal(here.get_xydata()[0], [1.5 * record, short["order_parameter"][record]])
        colours = globe.get_images()[0].get_array()
        row, column = np.unravel_index(colours[..., :3].sum(axis=-1, dtype=int).argmax(), colours.shape[:2])
        assert row > colours.shape[0] / 2 < column - colours.shape[0] / 2  # the bump at 45° N, 90° E
        assert globe.get_images()[0].norm is norm
    assert (norm.vmin, norm.vmax) == (pytest.approx(1.0 / (200.0 * np.pi)), float(short["density"].max()))
    assert_nothing_overlaps(film.figure)


def test_tokens_move_with_the_density(short):
    _, density, particles = make_comparison(counts=(16, 2048), seeds=2)
    film = animation.draw_film(density, particles)
    (dots,) = [line for line in film.moving[0].lines if line.get_marker() == "o"]
    for record in film.records:
        film.show(record)
        longitude, latitude = dots.get_data()
        found = np.stack([np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)])
        wanted = particles["2048"]["position"].to_numpy()[0, record, ::3]
        np.testing.assert_allclose(found.T, wanted, atol=1e-14)  # round-off
    curves = next(axes for axes in film.figure.axes if axes.get_xlabel() == "time t")
    assert [text.get_text() for text in curves.get_legend().get_texts()] == ["density", "2048 tokens"]
    particles["2048"]["position"][0, 1:] = np.nan  # the member failed
    failed = animation.draw_film(density, particles)
    failed.show(2)
    (dots,) = [line for line in failed.moving[0].lines if line.get_marker() == "o"]
    assert len(dots.get_xdata()) == 0


def test_frames_are_spread_over_the_records():
    run = make_run(np.linspace(0.5, 5.0, 201), nlat=4)
    assert animation.draw_film(run, frames=5).records == [0, 50, 100, 150, 200]
    assert animation.draw_film(run, frames=3, times=[1.5, 3.0]).records == [100, 150, 200]
    many = animation.draw_film(run).records
    assert (len(many), len(set(many)), many[0], many[-1]) == (120, 120, 0, 200)


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_the_same_run_is_the_same_file(short, tmp_path, suffix):
    digests = set()
    for name in ("one", "two:three"):
        path = tmp_path / f"{name}{suffix}"
        plots.plot_run(short, path, "animate", frames=2)
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    assert len(digests) == 1
    assert len(list(tmp_path.iterdir())) == 2


def test_frames_last_as_long_as_they_should(short, tmp_path):
    path = tmp_path / "x.gif"
    film = animation.draw_film(short, frames=2)
    for fps, duration in ((10.0, 100), (None, 250), (50.0, 20)):
        animation.write_film(film, path, ".gif", fps)
        with Image.open(path) as picture:
            assert picture.info["duration"] == duration
            assert picture.info["loop"] == 0


def fake_ffmpeg(folder, monkeypatch, script):
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_without_ffmpeg_one_line_says_how_to_get_it(short, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(plots, "draw_film", None)  # nothing is drawn
    with pytest.raises(ValueError, match=r"apt-get install ffmpeg`, or name an output that ends in \.gif"):
        plots.plot_run(short, tmp_path / "x.mp4", "animate")


def test_a_failing_ffmpeg_leaves_the_old_film(short, tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    fake_ffmpeg(tools, monkeypatch, "echo first >&2; echo 'no such codec' >&2; exit 3")
    path = tmp_path / "x.mp4"
    path.write_text("precious")
    with pytest.raises(OSError, match="ffmpeg could not write MP4: no such codec"):
        plots.plot_run(short, path, "animate", force=True)
    assert path.read_text() == "precious"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tools", "x.mp4"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fps": 0.5}, "fps = 0.5 given; allowed: from 1 to 50"),
        ({"fps": float("nan")}, "fps = nan given"),
        ({"frames": 1}, "frames = 1 given; allowed: from 2 to 3"),
        ({"frames": 4}, "frames = 4 given; allowed: from 2 to 3"),
        ({"times": [0.0, 0.1]}, "two common records at least, there are 1"),
        ({"times": [9.0]}, "times = 9 given"),
    ],
)
def test_what_cannot_be_filmed_is_refused_in_one_line(short, tmp_path, options, message):
    with pytest.raises(ValueError, match=message) as refusal:
        plots.plot_run(short, tmp_path / "x.gif", "animate", **options)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_a_density_that_is_not_finite_is_refused(short):
    damaged = short.copy(deep=True)
    damaged["density"][1, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"density at t = 1\.5 is not finite"):
        animation.draw_film(damaged)
