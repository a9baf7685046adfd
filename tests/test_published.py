"""Published experiments, measured on the cases that reproduce them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import meanfield
from meanfield.case import Case
from meanfield.dataset import complex_spectrum
from meanfield.predictions import cluster_angles

from . import oracles

CASES = Path(__file__).parents[1] / "cases"
Array = np.ndarray


def case(name: str, **changes: object) -> Case:
    return Case.from_toml(CASES / f"{name}.toml").override({key.replace("__", "."): at for key, at in changes.items()})


def angles_of(points: Array) -> Array:
    return np.asarray(np.arctan2(points[..., 1], points[..., 0]))


def wrapped(angles: Array) -> Array:
    return np.asarray(np.angle(np.exp(1j * angles)))


def arcs(angles: Array, gap: float = 0.01) -> tuple[Array, Array]:
    """Centres and numbers of tokens on the circle that no gap wider than ``gap`` divides, counterclockwise."""
    ordered = np.sort(np.mod(angles, 2.0 * math.pi))
    widest = int(np.argmax(np.diff(ordered, append=ordered[0] + 2.0 * math.pi))) + 1
    ordered = np.unwrap(np.roll(ordered, -widest))
    groups = np.split(ordered, np.flatnonzero(np.diff(ordered) > gap) + 1)
    return np.array([group.mean() for group in groups]), np.array([len(group) for group in groups])


@pytest.mark.parametrize(
    ("name", "degree", "time"), [("circle-three-clusters", 3, 0.30), ("circle-four-clusters", 4, 0.045)]
)
def test_clusters_from_noise_on_the_circle(name: str, degree: int, time: float) -> None:
    """Bruno, Pasqualotto, Agazzi (2024): so many clusters at that time, at (2πj − arg μ̂_k)/k."""
    small = case(name, time__final=time, time__snapshots=2, solver__lmax=63, solver__rtol=1e-7, solver__atol=1e-7)
    density, tokens = meanfield.solve(small), meanfield.simulate(small, workers=1)
    assert density["clusters"].values.tolist() == [0, degree]
    spectra = complex_spectrum(density["density_lm"])
    waves = spectra[:, degree] / spectra[:, 0]
    places, spacing = cluster_angles(complex(waves[0]), degree), 2.0 * math.pi / degree
    # Nonlinear terms and other degrees shift the wave as a whole by 1.4 % at most, a single cluster by 14 %.
    assert abs(np.angle(waves[1] / waves[0])) / degree < 0.02 * spacing
    rho, at = density["density"].values[-1], np.deg2rad(density["lon"].values)
    peaks = at[(rho > np.roll(rho, 1)) & (rho >= np.roll(rho, -1)) & (rho > 0.25 * rho.max())]
    assert len(peaks) == degree
    assert np.abs(wrapped(peaks[:, None] - places)).min(axis=1).max() < 0.15 * spacing
    # The tokens are the same cloud, with the degrees above 12 that the density leaves out.
    angles = angles_of(tokens["position"].isel(seed=0, time=-1).values)
    assert np.exp(-1j * degree * angles).mean() == pytest.approx(complex(waves[1]), abs=0.01)
    assert abs(waves[1]) == pytest.approx(0.67, abs=0.01)


def test_tokens_that_repel_spread_as_heat() -> None:
    """Bruno, Pasqualotto, Agazzi (2025): V = −1 follows the heat equation in time t/β, the better the larger β."""
    differences = {}
    for beta in (50.0, 200.0):
        run = meanfield.solve(
            case(
                "circle-heat",
                attention__beta=beta,
                time__final=beta / 2,
                time__snapshots=[0.1 * beta, 0.25 * beta],
            )
        )
        spectra = complex_spectrum(run["density_lm"])
        degree = np.arange(spectra.shape[1])
        heat = spectra[0] * np.exp(-np.outer(run["time"].values / beta, degree**2))
        multiplicity = np.where(degree == 0, 1.0, 2.0)
        off = np.sqrt((multiplicity * np.abs(spectra - heat) ** 2).sum(axis=1))
        whole, departure = (np.sqrt((multiplicity * np.abs(heat) ** 2)[:, first:].sum(axis=1)) for first in (0, 1))
        assert (off / whole).max() < 0.5 / beta  # truncation of the heat limit: 1 % at β = 50
        differences[beta] = (off / departure).max()
    assert differences[50.0] < 0.021
    assert differences[50.0] / differences[200.0] == pytest.approx(4.0, rel=0.05)  # next order in 1/β


def test_energy_is_a_staircase() -> None:
    """Geshkovski, Koubbi, Polyanskiy, Rigollet (2024): a step for every merger, and long plateaus between."""
    beta, records = 500.0, [20.0, 40.0, 60.0, 85.0, 100.0, 120.0, 150.0, 400.0, 530.0]
    run = meanfield.simulate(case("energy-staircase", time__final=650.0, time__snapshots=records), workers=1)
    run = run.isel(seed=0)
    count = run.sizes["particle"]
    energy = 2.0 * beta * run["energy"].values * count**2
    assert (np.diff(energy) > 0.0).all()
    times, angles = run["time"].values, angles_of(run["position"].values)
    found = [arcs(at) for at in angles[1:]]
    # On a plateau, E of point clusters; those that are next to merge add e^{−β(1 − cos)} of their distance.
    np.testing.assert_allclose(energy[1:], [float(sizes @ sizes) for _, sizes in found], atol=0.1)
    numbers = [len(sizes) for _, sizes in found]
    assert numbers == [21, 21, 21, 20, 20, 20, 19, 19, 19, 18]
    steps = np.diff(np.rint(energy[1:]))
    assert steps[steps > 0].tolist() == [4.0, 12.0, 4.0]  # 2 p q N² of masses 1 and 2, 2 and 3, 1 and 2
    # When neighbours meet, by the equation of two clusters alone, from their distance at t = 20.
    centres, sizes = found[0]
    fine = np.linspace(0.0, 700.0, 1401)
    meetings = []
    for gap, left, right in zip(np.diff(centres), sizes, sizes[1:], strict=False):
        apart = oracles.two_clusters(float(gap), (float(left), float(right)), beta, fine)
        if apart[-1] < 0.01:
            meetings.append(times[1] + fine[np.argmax(apart < 0.01)])
    meetings.sort()
    for meeting, before, after in zip(meetings, (60.0, 120.0, 530.0), (85.0, 150.0, 650.0), strict=False):
        assert before < meeting < after


def test_phase_diagram_of_close_pairs() -> None:
    """Geshkovski, Letrouit, Polyanskiy, Rigollet (2023), d = 2: one cluster soon at small β, a plateau at large β."""
    pairs = {}
    for beta in (0.1, 3.0, 9.0):
        changes = {"attention__beta": beta, "particles__seeds": 4, "solver__rtol": 1e-6, "solver__atol": 1e-6}
        small = case("phase-diagram", time__snapshots=[3.0, 10.0, 20.0], **changes)
        run = meanfield.simulate(small, workers=1)
        assert (np.diff(run["energy"], axis=run["energy"].dims.index("time")) > 0.0).all()
        pairs[beta] = run["close_pairs"].mean("seed").values
    few, some, many = pairs.values()
    assert few[1] < some[1] < many[1]  # at t = 3: neighbours meet the sooner the larger β,
    assert few[3] > some[3] > many[3]  # at t = 20: and stay apart from others the longer
    assert few[3] == 1.0
    assert many[3] < 0.4
    assert many[4] - many[3] < 0.01  # the plateau; statistical, of 4 clouds
