"""Clusters of a run through its records: where they are, what they weigh, and when they merge."""

from __future__ import annotations

import numpy as np
import xarray

from .clusters import Clusters, find_clusters
from .dataset import complex_spectrum
from .spaces import require_sphere
from .sphere import Sphere, lmax_of


def cluster_history(density: xarray.Dataset) -> xarray.Dataset:
    """Follow the clusters of a density run.

    Parameters
    ----------
    density : xarray.Dataset
        A run of `meanfield.solve` on S².

    Returns
    -------
    xarray.Dataset
        ``position(time, cluster, axis)`` (unit vectors), ``mass(time, cluster)`` and ``count(time)``: a cluster
        keeps its number from record to record (the nearest new one takes it), and is nan while it is not there.
        ``merging_time(merger)`` holds the midpoints between the records where the count falls, and ``basin(lat,
        lon)`` the number of the last record's cluster for every point of the solver's grid.

    Raises
    ------
    ValueError
        If the run is on another space.
    """
    require_sphere(density.attrs, "clusters through time")
    spectra = complex_spectrum(density["density_lm"])
    space = Sphere(lmax_of(spectra))
    times = density["time"].values
    tracks: list[dict[int, tuple[np.ndarray, float]]] = []
    current: dict[int, np.ndarray] = {}
    born = 0
    found = Clusters(np.empty((0, 3)), np.empty(0), np.full(space.shape, -1))
    names: list[int] = []
    for spectrum in spectra:
        found = find_clusters(space, spectrum)
        names = _continued(found, current)
        for index, name in enumerate(names):
            if name < 0:
                names[index], born = born, born + 1
        current = {name: found.positions[index] for index, name in enumerate(names)}
        tracks.append({name: (found.positions[i], float(found.masses[i])) for i, name in enumerate(names)})
    position = np.full((len(times), born, 3), np.nan)
    mass = np.full((len(times), born), np.nan)
    for row, track in enumerate(tracks):
        for name, (where, weight) in track.items():
            position[row, name], mass[row, name] = where, weight
    count = np.array([len(track) for track in tracks])
    falls = np.flatnonzero(np.diff(count) < 0)
    merging = np.repeat(0.5 * (times[falls] + times[falls + 1]), -np.diff(count)[falls])
    basin = np.array([*names, -1])[found.basins]
    return xarray.Dataset(
        {
            "position": (("time", "cluster", "axis"), position, {"long_name": "direction of the cluster"}),
            "mass": (("time", "cluster"), mass, {"long_name": "mass of the cluster's basin"}),
            "count": (("time",), count, {"long_name": "number of clusters"}),
            "merging_time": (("merger",), merging, {"long_name": "time at which the number of clusters falls"}),
            "basin": (("lat", "lon"), basin, {"long_name": "cluster of the last record that a point belongs to"}),
        },
        coords={"time": times, "axis": ["x", "y", "z"], "lat": space.latitude, "lon": space.longitude},
        attrs={"title": density.attrs["title"], "source": density.attrs["source"]},
    )


def _continued(found: Clusters, current: dict[int, np.ndarray]) -> list[int]:
    """Number of each cluster: that of the nearest earlier one, nearest pairs first; −1 for a new cluster."""
    names = [-1] * len(found)
    if not current:
        return names
    known = list(current)
    cosines = found.positions @ np.array([current[name] for name in known]).T
    taken: set[int] = set()
    for flat in np.argsort(-cosines, axis=None, kind="stable"):
        index, column = divmod(int(flat), len(known))
        if names[index] < 0 and column not in taken:
            names[index] = known[column]
            taken.add(column)
    return names
