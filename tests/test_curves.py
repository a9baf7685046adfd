"""Curves hold the numbers of the runs, look the same in all panels, and say how runs ended."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_hex

from meanfield import atlas, curves, figures

from .synthetic import curve_panels, make_run


def test_curves_hold_the_numbers_of_the_runs():
    first, second = make_run(radius=True, scheme="pre-ln"), make_run([0.1, 0.2, 0.4])
    second["spectral_tail"][:] = 0.0
    panels = curve_panels(curves.draw_curves([first, second]))
    assert list(panels) == [
        "order parameter |m|",
        "energy E",
        "entropy S (nats)",
        "spectral tail",
        "radius r, min and max",
        "density ρ, min (sr⁻¹)",
    ]
    least, greatest = panels["radius r, min and max"].lines
    np.testing.assert_array_equal(least.get_ydata(), first["radius"].min(["lat", "lon"]))
    np.testing.assert_array_equal(greatest.get_ydata(), first["radius"].max(["lat", "lon"]))
    np.testing.assert_array_equal(panels["energy E"].lines[1].get_xydata().T, [second["time"], second["energy"]])
    assert panels["spectral tail"].get_yscale() == "log"
    first["spectral_tail"][0] = 1e-140  # an exact start
    limits = curve_panels(curves.draw_curves([first]))["spectral tail"].get_ylim()
    np.testing.assert_allclose(limits, [1e-34, 1e-4], rtol=1e-9)  # round-off
    assert "clusters" in curve_panels(curves.draw_curves([second]))


def test_a_stored_radius_range_is_preferred():
    run = make_run(radius=True).assign(radius_min=("time", np.full(4, 0.25)), radius_max=("time", np.full(4, 2.0)))
    lines = curve_panels(curves.draw_curves([run]))["radius r, min and max"].lines
    assert [line.get_ydata()[0] for line in lines] == [0.25, 2.0]


def test_a_run_looks_the_same_in_all_panels_and_differs_from_the_others():
    runs = [make_run(nlat=4, scheme=f"scheme-{number}") for number in range(28)]
    figure = curves.draw_curves(runs)
    looks = [
        [(to_hex(line.get_color()), str(line._unscaled_dash_pattern)) for line in axes.lines]
        for axes in curve_panels(figure).values()
    ]
    assert all(look == looks[0] for look in looks)
    assert len(set(looks[0])) == 28
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"scheme-{number}" for number in range(28)]


def test_a_fold_is_marked_and_named():
    fold = make_run(scheme="peri-ln", radius=True, status="fold", stop_time=1.34449, status_message="min r = 0.01")
    figure = curves.draw_curves([fold, make_run()])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["peri-ln (fold at t = 1.344)", "post-ln"]
    for title, axes in curve_panels(figure).items():
        crosses = [line for line in axes.lines if line.get_marker() == "X"]
        assert [len(line.get_xdata()) for line in crosses] == [2 if title.startswith("radius") else 1]
    assert atlas.draw_maps(fold)._supxlabel.get_text() == "fold at t = 1.344 (min r = 0.01)"
    assert atlas.draw_maps(make_run())._supxlabel is None


def test_names_come_from_the_schemes_or_else_from_the_titles():
    pre, post = make_run(scheme="pre-ln"), make_run()
    assert figures.names_of([pre, post], None) == ["pre-ln", "post-ln"]
    assert figures.names_of([post, post.assign_attrs(title="Two")], None) == ["1: One cluster", "2: Two"]
    assert figures.names_of([xr.Dataset()], None) == ["run"]
    with pytest.raises(ValueError, match="1 names were given for 2 runs"):
        curves.draw_curves([pre, post], ["only one"])


def test_what_is_read_from_an_unresolved_grid_is_hatched():
    run = make_run(fold_time=1.25, unresolved_since=2.0)
    figure = curves.draw_curves([run])
    for title, axes in curve_panels(figure).items():
        (fold,) = [line for line in axes.lines if line.get_linestyle() == ":"]
        assert fold.get_xdata()[0] == 1.25
        hatched = [patch for patch in axes.patches if patch.get_hatch()]
        assert len(hatched) == (title in ("entropy S (nats)", "density ρ, min (sr⁻¹)", "clusters"))
        for patch in hatched:
            assert (patch.get_x(), patch.get_width()) == (2.0, 1.0)
    assert figure._supxlabel.get_text().splitlines() == [
        "dotted: fold at t* = 1.25",
        "hatched: gridded density not resolved from t = 2 on",
    ]


def test_of_several_runs_what_is_not_resolved_is_faint():
    figure = curves.draw_curves([make_run(), make_run(unresolved_since=2.0, scheme="ngpt", fold_time=1.0)])
    entropy = curve_panels(figure)["entropy S (nats)"].lines
    assert [line.get_alpha() for line in entropy[:3]] == [None, 0.35, None]
    np.testing.assert_array_equal(entropy[2].get_xdata(), [0.0, 1.0])
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["post-ln", "ngpt (fold at t* = 1)", "gridded density not resolved"]
    assert figure._supxlabel is None
