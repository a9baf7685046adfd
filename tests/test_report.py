"""Pages: what they hold, what is refused, and what a browser without a network makes of them."""

from __future__ import annotations

import io
import json
import re
import tomllib
from html import unescape

import numpy as np
import pytest
from PIL import Image

import meanfield
from meanfield import globes, interactive, panels, report, sources
from meanfield.cli import main

from . import oracles
from .browser import chromium, move_slider, new_tab, open_report, wait_for_time

UNIFORM = 1.0 / (4.0 * np.pi)


@pytest.fixture(scope="module")
def runs(three_bumps):
    """A density, tokens in two numbers, and their comparison; the title is not HTML."""
    case = three_bumps(
        {
            "time.snapshots": 4,
            "solver.lmax": 21,
            "particles.count": [16, 50],
            "particles.seeds": 2,
            "particles.attention": "fast",
        }
    ).override({"title": "bumps & <script>alert(1)</script>"})
    density, particles = meanfield.solve(case), meanfield.simulate(case, workers=1)
    return density, particles, meanfield.compare(density, particles)


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return report.write_report(runs, tmp_path_factory.mktemp("report") / "page.html")


def text_of(path):
    """The page without Plotly's own library."""
    return path.read_text(encoding="utf-8").replace(interactive.library(), "")


# ---- in a browser ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def opened(page):
    """The page in a laptop's window, opened from its file, with all that it complained of or asked for."""
    with chromium() as browser:
        tab = new_tab(browser)
        said, asked = [], []
        tab.on("console", lambda message: said.append((message.type, message.text)))
        tab.on("pageerror", lambda error: said.append(("error", str(error))))
        tab.on("request", lambda request: asked.append(request.url))
        open_report(tab, page)
        yield tab, said, asked


def picture(tab, selector):
    return np.asarray(Image.open(io.BytesIO(tab.locator(selector).screenshot())).convert("RGB"), dtype=int)


def test_it_opens_without_a_word_and_without_a_network(opened, page):
    _, said, asked = opened
    assert [words for kind, words in said if kind == "error"] == []
    assert asked == [page.as_uri()]


def test_the_slider_moves_globe_curves_and_distances(opened):
    tab, said, _ = opened
    move_slider(tab, 0.0)
    wait_for_time(tab, 0.0)
    before = {name: picture(tab, f"#{name}") for name in ("globes", "curves", "distances-0")}
    move_slider(tab, 1.0)
    wait_for_time(tab, 2.0)
    after = {name: picture(tab, f"#{name}") for name in before}
    for name, pixels in before.items():
        assert pixels.shape == after[name].shape
        assert (pixels != after[name]).any(axis=-1).mean() > 1e-3, name
    # On the globe itself, above the slider and its label, colours and tokens are others.
    middle = before["globes"].shape[0] // 3, before["globes"].shape[1] // 2
    spot = slice(middle[0] - 80, middle[0] + 80), slice(middle[1] - 80, middle[1] + 80)
    assert (before["globes"][spot] != after["globes"][spot]).any(axis=-1).mean() > 0.3
    assert len(np.unique(after["globes"][spot].reshape(-1, 3), axis=0)) > 200, "the globe is blank"
    assert tab.locator(".slider-label").first.text_content() == "time t = 2"
    assert [words for kind, words in said if kind == "error"] == []


def test_it_plays(opened):
    tab, _, _ = opened
    move_slider(tab, 0.0)
    wait_for_time(tab, 0.0)
    tab.locator(".updatemenu-button").first.click()
    wait_for_time(tab, 2.0)


def test_dragging_turns_the_globe(opened):
    tab, _, _ = opened
    camera = "() => document.getElementById('globes').layout.scene.camera.eye.x"
    before = tab.evaluate(camera)
    box = tab.locator("#globes").bounding_box()
    at = box["x"] + box["width"] / 2.0, box["y"] + box["height"] / 3.0
    tab.mouse.move(*at)
    tab.mouse.down()
    tab.mouse.move(at[0] + 60, at[1], steps=2)
    tab.mouse.up()
    tab.wait_for_function(f"before => ({camera})() !== before", arg=before)


@pytest.mark.parametrize("width", [1280, 1920])
def test_nothing_is_wider_than_the_window(opened, width):
    tab, _, _ = opened
    tab.set_viewport_size({"width": width, "height": 800})
    tab.wait_for_function("document.getElementById('curves').offsetWidth > window.innerWidth / 2 - 60")
    tab.wait_for_function("document.documentElement.scrollWidth <= window.innerWidth")


# ---- what it holds -----------------------------------------------------------------------------------------


def test_it_is_small_and_asks_for_nothing(page):
    assert page.stat().st_size < 8e6
    text = text_of(page)
    assert page.read_text(encoding="utf-8").count(interactive.library()) == 1
    assert not re.search(r"<(link|img|iframe)[^>]+(src|href)=[\"'](?!data:)", text)
    assert "<script src" not in text
    assert "default-src 'none'" in text


def test_a_default_run_stays_under_fifteen_megabytes(runs, tmp_path):
    # 51 records at lmax 63; the numbers on the globe do not matter, only how many there are.
    density = runs[0].isel(time=np.arange(51) % 4).assign_coords(time=np.linspace(0.0, 5.0, 51))
    assert report.write_report(density, tmp_path / "long.html").stat().st_size < 15e6
    many = [density.assign_attrs(title=f"run {number}") for number in range(7)]
    assert report.write_report(many, tmp_path / "many.html").stat().st_size < 15e6


def test_text_of_a_run_is_no_html(page):
    text = text_of(page)
    assert "<script>alert" not in text
    assert "bumps &amp; &lt;script&gt;" in text


def test_the_case_reads_back_as_toml(runs, page):
    blocks = [unescape(block) for block in re.findall(r"<pre>(.*?)</pre>", text_of(page), re.DOTALL)]
    (toml,) = {block for block in blocks if block.startswith("title = ")}

    def without_null(table):
        return {k: without_null(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}

    assert tomllib.loads(toml) == without_null(json.loads(runs[0].attrs["case"]))


def test_it_tells_how_the_run_ended_where_it_comes_from_and_how_to_cite(runs, page):
    text = unescape(text_of(page))
    for part in ("reached t = 2", runs[0].attrs["versions"], runs[0].attrs["history"], "2510.22026"):
        assert part in text
    assert f"version = {{{meanfield.__version__}}}" in text
    for run in (runs[0].assign_attrs(status=status, status_message="") for status in report.ENDS):
        assert report.ENDS[run.attrs["status"]] in report._end(sources.recognize(run, ""))


def test_what_is_not_resolved_is_marked(runs, tmp_path):
    marked = runs[0].assign_attrs(unresolved_since=1.0, fold_time=0.5, status="unresolved", status_message="so & so")
    text = text_of(report.write_report(marked, tmp_path / "page.html"))
    for part in ("unresolved since 1", "fold at 0.5", "not resolved", "so &amp; so."):
        assert part in text


def test_runs_are_told_apart_by_what_differs(three_bumps):
    cases = [json.loads(three_bumps(changes).to_json()) for changes in ({}, {"attention.beta": 2.0})]
    assert sources._names(cases) == ["beta = 4.0", "beta = 2.0"]
    cases[1]["normalization"]["scheme"] = "ngpt"
    assert sources._names(cases) == ["post-ln", "ngpt"]
    assert sources._names([cases[0]] * 2) == ["1: three bumps", "2: three bumps"]


def test_tokens_stand_on_the_globe_of_their_density(runs, tmp_path, monkeypatch):
    named = sources.named([sources.recognize(run, "") for run in runs])
    monkeypatch.setattr(report, "MOST_TOKENS", 25)
    (globe,) = report._globes(named, [0.0, 2.0])
    assert globe.tokens.shape == (2, 25, 3)
    assert "25 of 50 tokens" in globe.title
    # Directions are written to round-off of one step of normalization.
    np.testing.assert_allclose(np.linalg.norm(globe.tokens, axis=-1), 1.0, atol=1e-12)
    (alone,) = report._globes(named[1:2], [0.0, 2.0])
    assert alone.density is None
    report.write_report(runs[1], tmp_path / "tokens.html")


def test_the_globe_shows_the_density(runs):
    density = runs[0]
    (globe,) = report._globes(sources.named([sources.recognize(density, "")]), [0.0, 1.3, 2.0])
    assert density["density_error"][-1] > 1e-3
    assert globe.notes == ["", "at t = 1.333", "not resolved"]
    assert globe.density.shape == (3, 65, 129)
    # Seam and poles are closed to round-off of the transform.
    np.testing.assert_allclose(globe.density[:, :, 0], globe.density[:, :, -1], atol=1e-11)
    np.testing.assert_allclose(np.ptp(globe.density[:, [0, -1]], axis=-1), 0.0, atol=1e-11)
    # A mean over the sphere by latitude circles, 2.8 degrees apart: truncation far below 1e-3.
    weight = np.cos(np.radians(np.linspace(90.0, -90.0, 65)))
    means = (globe.density[:, :, :-1].mean(axis=-1) * weight).sum(axis=-1) / weight.sum()
    np.testing.assert_allclose(means, UNIFORM, rtol=1e-3)
    # Latitude 45 and longitude 90 degrees; round-off of the transform.
    spectrum = density["density_lm"].isel(time=-1).to_numpy() @ [1.0, 1.0j]
    exact = oracles.synthesis(spectrum, np.array([[0.0, 1.0, 1.0]]) / np.sqrt(2.0))
    np.testing.assert_allclose(globe.density[2, 16, 32], exact[0], atol=1e-11)


def test_one_colour_scale_for_all_times_and_runs():
    narrow = np.full((1, 3, 5), 2.0 * UNIFORM)
    wide = np.linspace(-0.1, 60.0, 15).reshape(1, 3, 5)
    figure = globes.draw_globes([globes.Globe("a", [""], narrow), globes.Globe("b", [""], wide)], [0.0])
    axis = figure.layout.coloraxis
    assert axis.cmin == pytest.approx(np.log10(UNIFORM / 50.0))  # round-off
    assert axis.cmax == pytest.approx(np.log10(60.0))
    assert axis.colorbar.title.text == "ρ (sr⁻¹)"
    surfaces = [trace for trace in figure.data if trace.type == "surface"]
    assert {trace.coloraxis for trace in surfaces} == {"coloraxis"}
    assert len({trace.scene for trace in surfaces}) == 2
    assert np.isfinite(surfaces[1].surfacecolor).all()


def test_tokens_in_another_dimension_have_curves_only(three_bumps, tmp_path):
    changes = {"space.dimension": 8, "initial.law": "equiangular", "initial.cosine": 0.2, "particles.count": 8}
    case = three_bumps({**changes, "particles.seeds": 1, "particles.attention": "dense", "time.snapshots": 3})
    text = text_of(report.write_report(meanfield.simulate(case), tmp_path / "page.html"))
    assert 'id="globes"' not in text
    assert 'id="curves"' in text
    assert '"sliders"' in text


def test_one_number_of_tokens_is_compared_over_time(runs, tmp_path):
    density, particles, _ = runs
    single = meanfield.compare(density, particles["16"].to_dataset().assign_attrs(particles.attrs))
    run = sources.named([sources.recognize(single, "")])[0]
    assert all(panel.over_time for panel in report._distances(run, [0.0, 2.0]))
    report.write_report([density, single], tmp_path / "page.html")


def test_round_numbers_on_a_logarithmic_scale():
    assert interactive.round_ticks(0.03, 0.4) == pytest.approx([0.05, 0.1, 0.2])  # round-off
    assert interactive.round_ticks(1e-9, 2.0) == pytest.approx([1e-8, 1e-6, 1e-4, 1e-2, 1.0])  # round-off
    assert [interactive.power_label(value) for value in (0.05, 1e-9, 2e-4)] == [
        "0.05",
        "10<sup>−9</sup>",
        "2·10<sup>−4</sup>",
    ]
    flat = panels.Panel("flat", [panels.Curve(np.array([0.0]), np.array([0.0]))], scale="log")
    assert panels.draw_panels([flat], [0.0], 2).layout.yaxis.type == "log"


# ---- what is refused ---------------------------------------------------------------------------------------


def test_refusals(runs, page, tmp_path):
    density = runs[0]
    with pytest.raises(ValueError, match=r"must end in \.html"):
        report.write_report(density, tmp_path / "page.pdf")
    with pytest.raises(ValueError, match="at least one"):
        report.write_report([], tmp_path / "page.html")
    with pytest.raises(FileExistsError, match="exists"):
        report.write_report(density, page)
    for foreign in (density.assign_attrs(case="{}"), density.assign_attrs(case=[1.0]), density.drop_attrs()):
        with pytest.raises(ValueError, match="not a meanfield run"):
            report.write_report(foreign, tmp_path / "page.html")
    with pytest.raises(ValueError, match="none of these"):
        report.write_report(density.drop_vars("order_parameter"), tmp_path / "page.html")
    with pytest.raises(ValueError, match="no record"):
        report.write_report(density.isel(time=[]), tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs[0].to_netcdf("one.nc")
    runs[2].to_netcdf("one.compare.nc")
    assert main(["report", "one.nc", "one.compare.nc"]) == 0
    assert capsys.readouterr().out == "outputs/one-one.compare.html\n"
    assert main(["report", "one.nc", "-o", "outputs/one-one.compare.html"]) == 2
    assert "exists" in capsys.readouterr().err
    (tmp_path / "foreign.nc").write_bytes(b"no netCDF")
    for words in (["report"], ["report", "foreign.nc"], ["report", "nowhere.nc"]):
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr("meanfield.cli.find_spec", lambda name: None)
    assert main(["report", "one.nc", "--force"]) == 2
    assert "meanfield[report]" in capsys.readouterr().err
