"""Clusters through time: numbered, weighed and merged where the answer is known."""

from __future__ import annotations

import math

import numpy as np

from meanfield.history import cluster_history

from . import measurements


def test_two_clusters_keep_their_numbers_and_merge() -> None:
    angle = math.radians(60)
    law = {
        "law": "vmf-mixture",
        "weights": [0.7, 0.3],
        "concentrations": [40.0, 40.0],
        "means": [[0.0, 0.0, 1.0], [math.sin(angle), 0.0, math.cos(angle)]],
    }
    run = measurements.solve("post-ln", 12.0, 25, beta=6.0, initial=law, lmax=47)
    history = cluster_history(run)
    assert history["count"].values[0] == 2
    assert history["count"].values[-1] == 1
    assert history.sizes["cluster"] == 2
    np.testing.assert_allclose(history["mass"][0], [0.7, 0.3], atol=0.02)  # tails across the border
    np.testing.assert_allclose(history["mass"].sum("cluster"), 1.0, atol=1e-10)
    np.testing.assert_allclose(history["position"][0, 0], [0, 0, 1], atol=0.05)
    (merging,) = history["merging_time"].values
    assert 0.0 < merging < 12.0
    # Until then the angle shrinks; the survivor sits at the mean.
    before = history["position"].sel(time=slice(0, merging))
    cosines = np.sum(before[:, 0].values * before[:, 1].values, axis=-1)
    assert (np.diff(cosines) > 0).all()
    assert set(np.unique(history["basin"])) == {int(np.flatnonzero(np.isfinite(history["mass"][-1]))[0])}


def test_a_run_without_clusters(three_bumps) -> None:
    import meanfield

    run = meanfield.solve(
        three_bumps({"initial.law": "uniform", "solver.lmax": 15, "time.final": 0.1, "time.snapshots": 2})
    )
    history = cluster_history(run)
    assert history.sizes["cluster"] == 0
    assert (history["basin"] == -1).all()
