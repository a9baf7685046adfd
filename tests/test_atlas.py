"""Maps of runs: which records are shown, where schemes stand, and that nothing is cut off."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
import xarray as xr

from meanfield import atlas, curves, distances, figures, phases

from .synthetic import (
    assert_nothing_overlaps,
    images_of,
    make_comparison,
    make_run,
    make_sweep,
    maps_of,
    titles,
)


def test_times_are_the_nearest_records_once_each():
    run = make_run(times=[0.0, 0.5, 1.5, 4.0])
    assert titles(atlas.draw_maps(run, times=[4, 1.4, 0.0, 1.6])) == ["t = 0", "t = 1.5", "t = 4"]
    assert titles(atlas.draw_maps(run)) == ["t = 0", "t = 0.5", "t = 1.5", "t = 4"]


@pytest.mark.parametrize("rate", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 40])
def test_chosen_records_follow_the_evolution(count, rate):
    time = np.linspace(0.0, 4.0, count)
    evolution = 1.0 - np.exp(-rate * time)
    run = xr.Dataset({"order_parameter": ("time", evolution), "energy": ("time", evolution)}, coords={"time": time})
    records = figures.chosen_records(run, None)
    assert len(records) == min(count, 6)
    assert records[0] == 0
    assert records[-1] == count - 1
    assert all(np.diff(records) > 0)
    if count == 40 and rate == 8.0:  # all happens before t = 0.5, and so do half of the pictures
        assert time[records[2]] < 0.5


def test_schemes_are_compared_at_common_times():
    long = make_run(times=[0.0, 1.0, 2.0, 3.0])
    short = make_run(times=[0.0, 0.5, 0.9, 1.25], status="fold", stop_time=1.25)
    figure = atlas.draw_schemes([long, short], ["long", "short"], times=[0.0, 1.0, 3.0])
    assert titles(figure) == ["t = 0", "t = 1", "t = 3", "", "(at 0.9)", ""]
    assert len(images_of(figure)) == 5
    assert maps_of(figure)[5].texts[-1].get_text() == "fold\nt = 1.25"
    assert [maps_of(figure)[number].get_ylabel() for number in (0, 3)] == ["long", "short"]
    assert titles(atlas.draw_schemes([long]))[-1] == "t = 3"


def test_nothing_overlaps_or_is_cut_off():
    fold = make_run(
        [0.1, 1.0, 2.0, 4.0, 8.0, 16.0, 3000.0],
        radius=True,
        status="fold",
        status_message="a long message, " * 30,
        title="A title in $ that does not fit on one line, " * 3,
    )
    fold["density"][-1, 0, 0] = -1.0
    assert_nothing_overlaps(atlas.draw_run(fold, [0.0, 1.5, 3.0]))
    assert_nothing_overlaps(curves.draw_curves([fold, *[make_run(scheme=f"name {n}") for n in range(6)]]))
    assert_nothing_overlaps(atlas.draw_schemes([fold, make_run()], ["a name of many words, long", "b"], [0.0, 3.0]))


@pytest.mark.parametrize("columns", [1, 2])
def test_figures_have_the_width_of_columns_and_letters_of_8_points(columns):
    run = make_run(radius=True, scheme="peri-ln", fold_time=1.0, unresolved_since=2.0)
    drawn = [
        atlas.draw_run(run, columns=columns),
        atlas.draw_schemes([run, make_run()], columns=columns),
        curves.draw_curves([run, make_run()], columns=columns),
        distances.draw_comparison(*make_comparison(), columns=columns),
        phases.draw_phase(make_sweep({"scheme": ["post-ln", "ngpt"], "beta": [1.0, 4.0, 9.0]}), columns=columns),
    ]
    for figure in drawn:
        assert figure.get_figwidth() == {1: 3.4, 2: 7.0}[columns]
        assert min(text.get_fontsize() for text in figure.findobj(mpl.text.Text)) >= 8.0
    if columns == 1:  # where there is least room
        for figure in (drawn[0], drawn[3], drawn[4]):
            assert_nothing_overlaps(figure)


def test_maps_of_an_unresolved_density_are_hatched():
    run = make_run(unresolved_since=2.0)
    for figure in (atlas.draw_maps(run), atlas.draw_schemes([run])):
        hatched = [any(patch.get_hatch() for patch in axes.patches) for axes in maps_of(figure)]
        assert hatched == [False, False, True, True]
        assert "hatched: gridded density not resolved" in figure._supxlabel.get_text()
    radius = atlas.draw_maps(make_run(radius=True, unresolved_since=2.0), field="radius")
    assert not any(patch.get_hatch() for axes in maps_of(radius) for patch in axes.patches)
