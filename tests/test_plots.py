"""Files of pictures: their names, their content, and what is refused.  No picture is compared pixel by pixel."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from meanfield import atlas, curves, plots

from .synthetic import make_comparison, make_run, make_sweep

PNG = b"\x89PNG\r\n\x1a\n"


def test_pictures_need_no_display_and_leave_matplotlib_as_it_was(tmp_path):
    (tmp_path / "run").write_bytes(pickle.dumps(make_run(radius=True)))
    program = """
import pathlib
import pickle
import sys
import warnings
warnings.simplefilter("error")
import matplotlib
from meanfield.plots import plot_run
before = dict(matplotlib.rcParams)
plot_run(pickle.loads(pathlib.Path("run").read_bytes()), "run.png", times=[0.0])
assert "matplotlib.pyplot" not in sys.modules
assert dict(matplotlib.rcParams) == before
"""
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name} | {"MPLBACKEND": "TkAgg"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.png"]
    content = (tmp_path / "run.png").read_bytes()
    assert content.startswith(PNG)
    assert int.from_bytes(content[16:20], "big") == 1540  # width in pixels


@pytest.fixture
def empty_figures(monkeypatch):
    """Blank figures in place of the drawings, for tests of files only."""

    def blank(*_args, **_options):
        return Figure(figsize=(1.0, 1.0))

    for name in ("draw_maps", "draw_curves", "draw_schemes", "draw_run"):
        monkeypatch.setattr(plots, name, blank)


@pytest.mark.usefixtures("empty_figures")
def test_files_are_named_after_what_they_show(tmp_path):
    runs = [make_run(scheme="pre-ln", radius=True), make_run()]

    def names(datasets, kind):
        return [path.name for path in plots.plot_run(datasets, tmp_path / "new" / "x.y.png", kind, force=True)]

    assert names(runs[0], "all") == ["x.y.png"]
    for kind in ("maps", "curves", "radius", "schemes"):
        assert names(runs[:1], kind) == ["x.y.png"]
    assert names(runs, "all") == ["x.y.curves.png", "x.y.schemes.png"]
    assert names(runs, "maps") == ["x.y.1-pre-ln.png", "x.y.2-post-ln.png"]


@pytest.mark.parametrize("suffix", [".pdf", ".svg"])
def test_the_same_picture_is_the_same_file(tmp_path, suffix):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        assert plots.plot_run(SWEEP, path, "phase") == [path]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes().startswith({".pdf": b"%PDF-", ".svg": b"<?xml"}[suffix])
    assert paths[0].stat().st_size < 500_000


def test_what_is_drawn_by_default_follows_from_the_data(tmp_path, monkeypatch):
    drawn = []

    def note(name):
        return lambda *data, **_options: drawn.append((name, len(data))) or Figure(figsize=(1.0, 1.0))

    for name in ("draw_run", "draw_comparison", "draw_phase"):
        monkeypatch.setattr(plots, name, note(name))
    comparison, density, particles = make_comparison()
    monkeypatch.setattr(plots, "compare", lambda *_runs: comparison)
    for data in (density, comparison, [particles, density], [density, comparison, particles], SWEEP):
        plots.plot_run(data, tmp_path / "x.png", force=True)
    assert [name for name, _ in drawn] == ["draw_run", *["draw_comparison"] * 3, "draw_phase"]


@pytest.mark.usefixtures("empty_figures")
def test_an_existing_file_is_kept_unless_forced(tmp_path):
    path = tmp_path / "runs.schemes.png"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match=re.escape(str(path))):
        plots.plot_run([make_run()] * 2, tmp_path / "runs.png")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "precious"
    plots.plot_run([make_run()] * 2, tmp_path / "runs.png", force=True)
    assert path.read_bytes().startswith(PNG)


def test_a_comparison_is_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "draw_comparison", lambda *_runs: Figure(figsize=(1.0, 1.0)))
    path = tmp_path / "new" / "x.compare.png"
    assert plots.plot_comparison(*make_comparison(), path) == [path]
    assert path.read_bytes().startswith(PNG)
    with pytest.raises(FileExistsError, match=re.escape(str(path))):
        plots.plot_comparison(*make_comparison(), path)
    assert plots.plot_comparison(*make_comparison(), str(path), force=True) == [path]
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf or \.svg"):
        plots.plot_comparison(*make_comparison(), tmp_path / "x.jpg")


@pytest.mark.usefixtures("empty_figures")
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "run.png"
    path.write_text("precious")

    def fail(_figure, target, **_options):
        target.write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space"):
        plots.plot_run(make_run(), path, force=True)
    assert [file.name for file in tmp_path.iterdir()] == ["run.png"]
    assert path.read_text() == "precious"


# -------------------------------------------------------------------------------------------------- refusals


SWEEP = make_sweep({"beta": [1.0, 2.0]})


def broken(value):
    run = make_run()
    run["density"][2, 0, 0] = value
    return run


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda path: plots.plot_run(make_run(), path, "film"), "allowed: all, maps, curves, radius, schemes"),
        (lambda path: plots.plot_run(make_run(), path.with_suffix(".gif")), r"must end in \.png, \.pdf or \.svg"),
        (lambda path: plots.plot_run(make_run(), path, "animate"), r"must end in \.mp4 or \.gif, got '\.png'"),
        (lambda path: plots.plot_run(make_run(), path, columns=3), "columns = 3 given; allowed: 1, 2"),
        (lambda path: plots.plot_run(make_run(), path, "maps", fps=5), "fps is an option of kind animate, not of maps"),
        (lambda path: plots.plot_run(make_run(), path, quantity="energy"), "quantity is an option of kind phase"),
        (lambda path: plots.plot_run(xr.Dataset({"a": 1}), path), "file 1 holds nothing to draw"),
        (
            lambda path: plots.plot_run([make_run(), SWEEP], path, "curves"),
            r"kind = 'curves' draws density runs \(of `solve`\), but file 2 is of `sweep`",
        ),
        (
            lambda path: plots.plot_run([make_run()] * 2, path.with_suffix(".gif"), "animate"),
            "kind = 'animate' draws one file of `solve` and at most one of `simulate`; given: `solve`, `solve`",
        ),
        (
            lambda path: plots.plot_run(make_run(), path, "compare"),
            "kind = 'compare' draws one file of `solve` and one file of `simulate` and at most one of `compare`; given",
        ),
        (lambda path: plots.plot_run(make_run(), path, "phase"), "kind = 'phase' draws one file of `sweep`; given"),
        (lambda path: plots.plot_run([], path), "no run was given"),
        (lambda path: plots.plot_run(make_run(), path, "radius"), "no radius to map; it has density"),
        (lambda path: plots.plot_run(make_run(), path, times=[1.0, 3.5]), "times = 3.5 given; allowed: from 0 to 3"),
        (lambda path: plots.plot_run(make_run(), path, times=[float("nan")]), "times = nan given"),
        (lambda path: plots.plot_run(make_run(), path, times=[]), "times = none given"),
        (lambda path: plots.plot_run(broken(np.nan), path), "density at t = 2 is not finite"),
        (lambda path: plots.plot_run(broken(np.inf), path, "schemes"), "is not finite"),
        (lambda _: atlas.draw_maps(make_run(), field="entropy"), "allowed: density, radius"),
        (lambda _: atlas.draw_maps(make_run().isel(lat=0)), "maps need"),
        (lambda _: atlas.draw_maps(make_run().isel(time=slice(0))), "no record"),
        (lambda _: curves.draw_curves([xr.Dataset(coords={"time": [0.0]})]), "no run has a diagnostic to draw"),
        (lambda _: curves.draw_curves([make_run().expand_dims(seed=2)]), "functions of time only"),
        (lambda _: atlas.draw_schemes([make_run()], times=[-1.0]), "times = -1 given"),
        (
            lambda _: atlas.draw_schemes([make_run(), make_run(times=[5.0, 6.0, 7.0, 8.0])], times=[4.0]),
            "no run reaches any of the times",
        ),
    ],
)
def test_bad_requests_are_refused_in_one_line(tmp_path, draw, message):
    with pytest.raises(ValueError, match=message) as refusal:
        draw(tmp_path / "run.png")
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []
