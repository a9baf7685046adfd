"""The file: what stands in it, that other tools read it as it is, and that nothing on disk is ever lost."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray

import meanfield
from meanfield.checkpoint import Checkpoint
from meanfield.dataset import VARIABLES, EnsembleFile, RunFile, complex_spectrum, open_run
from meanfield.sphere import Sphere, regular_grid

from .conftest import MakeCase


@pytest.fixture
def small(three_bumps: MakeCase) -> meanfield.Case:
    return three_bumps({"solver.lmax": 15, "time.final": 0.4, "time.snapshots": 3}, scheme="pre-ln")


def test_file_and_memory_hold_the_same(small: meanfield.Case, tmp_path: Path) -> None:
    in_memory = meanfield.solve(small)
    with meanfield.solve(small, output=tmp_path / "run.nc") as on_disk:
        assert set(in_memory.variables) == set(on_disk.variables)
        for name in in_memory.variables:
            if in_memory[name].dtype.kind == "f":
                # Two runs in one process agree to round-off.
                np.testing.assert_allclose(in_memory[name], on_disk[name], rtol=1e-9, atol=1e-14)
            else:
                np.testing.assert_array_equal(in_memory[name], on_disk[name])
    assert [path.name for path in tmp_path.iterdir()] == ["run.nc"]


def test_names_dimensions_and_units(small: meanfield.Case) -> None:
    run = meanfield.solve(small)
    dimensions = {
        "density": ("time", "lat", "lon"),
        "radius": ("time", "lat", "lon"),
        "density_lm": ("time", "lm", "part"),
        "radius_lm": ("time", "lm", "part"),
        "quadrature_weight": ("lat", "lon"),
        "moment1": ("time", "axis"),
        "moment2": ("time", "axis", "axis_"),
        "degree_power": ("time", "degree_"),
        "degree": ("lm",),
        "order": ("lm",),
    }
    scalars = [
        "order_parameter",
        "energy",
        "energy_rate",
        "entropy",
        "mass",
        "spectral_tail",
        "density_min",
        "clusters",
    ]
    for name, expected in {**dimensions, **dict.fromkeys(scalars, ("time",))}.items():
        assert run[name].dims == expected, name
    assert {"degree", "order"} <= set(run["density_lm"].coords)
    assert run["time"].attrs["units"] == "1"
    assert run["lat"].attrs["units"] == "degrees_north"
    assert run["lon"].attrs["units"] == "degrees_east"
    assert run["density"].attrs["units"] == "sr-1"
    assert "Condon" in run["density_lm"].attrs["comment"]
    assert list(run["axis"].values) == ["x", "y", "z"]
    assert list(run["part"].values) == ["real", "imag"]
    for name, variable in run.data_vars.items():
        assert variable.attrs["long_name"], name


def test_every_record_is_consistent(small: meanfield.Case) -> None:
    run = meanfield.solve(small)
    assert run["time"].values.tolist() == [0.0, 0.2, 0.4]
    weights = run["quadrature_weight"]
    assert float(weights.sum()) == pytest.approx(4 * np.pi, rel=1e-14)
    np.testing.assert_allclose((run["density"] * weights).sum(("lat", "lon")), 1, rtol=1e-13)
    spectrum = complex_spectrum(run["density_lm"])
    for index in range(3):
        np.testing.assert_array_equal(Sphere(15).synthesis(spectrum[index]), run["density"][index])
    power = (run["density"] ** 2 * weights).sum(("lat", "lon"))
    np.testing.assert_allclose(run["degree_power"].sum("degree_"), power, rtol=1e-12)
    assert (run["density_min"] == run["density"].min(("lat", "lon"))).all()


def test_global_attributes(small: meanfield.Case, tmp_path: Path) -> None:
    with meanfield.solve(small, output=tmp_path / "run.nc") as run:
        attributes = run.attrs
    assert attributes["Conventions"] == "CF-1.11"
    assert attributes["source"].startswith("meanfield ")
    assert attributes["status"] == "completed"
    assert attributes["stop_time"] == 0.4
    assert attributes["tendency_evaluations"] > 10
    assert attributes["wall_seconds"] > 0
    for word in ("title", "history", "status_message", "versions"):
        assert attributes[word]
    assert meanfield.Case.from_json(attributes["case"]) == small
    assert json.loads(attributes["case"])["attention"]["beta"] == 4.0


def test_plain_netcdf4_reads_it_without_a_warning(small: meanfield.Case, tmp_path: Path) -> None:
    meanfield.solve(small, output=tmp_path / "run.nc").close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with netCDF4.Dataset(tmp_path / "run.nc") as file:
            assert file.data_model == "NETCDF4"
            assert not file.cmptypes
            assert not file.vltypes
            for name, variable in file.variables.items():
                assert variable.dtype is str or variable.dtype.kind in "if", name
                if name in ("time", "lat", "lon", "degree", "order", "degree_", "quadrature_weight"):
                    assert "_FillValue" not in variable.ncattrs()
                assert not np.ma.is_masked(variable[...]), name
        with xarray.open_dataset(tmp_path / "run.nc", decode_times=True) as dataset:
            assert dataset["time"].dtype == np.float64


def test_regular_grid_with_poles(three_bumps: MakeCase) -> None:
    changes = {"solver.lmax": 15, "time.final": 0.4, "time.snapshots": 2}
    gauss = meanfield.solve(three_bumps(changes, scheme="peri-ln"))
    run = meanfield.solve(three_bumps({**changes, "output.grid": [37, 72]}, scheme="peri-ln"))
    lat, lon, weights = regular_grid(37, 72)
    np.testing.assert_array_equal(run["lat"], lat)
    np.testing.assert_array_equal(run["lon"], lon)
    np.testing.assert_array_equal(run["quadrature_weight"], weights)
    np.testing.assert_array_equal(run["density_lm"], gauss["density_lm"])
    np.testing.assert_allclose((run["density"] * run["quadrature_weight"]).sum(("lat", "lon")), 1, atol=1e-13)
    pole = run["density"].sel(lat=90).isel(time=-1)
    np.testing.assert_allclose(pole, pole[0], rtol=1e-12)
    near = gauss["radius"].isel(time=-1).interp(lat=0.0, lon=90.0)
    assert float(run["radius"].isel(time=-1).sel(lat=0.0, lon=90.0)) == pytest.approx(float(near), rel=0.01)


def test_fields_may_be_left_out(three_bumps: MakeCase) -> None:
    run = meanfield.solve(three_bumps({"solver.lmax": 15, "time.final": 0.1, "output.fields": []}, scheme="pre-ln"))
    assert "density" not in run
    assert "radius" not in run
    assert "density_lm" in run


def test_an_existing_file_is_not_touched(small: meanfield.Case, tmp_path: Path) -> None:
    path = tmp_path / "run.nc"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match=r"run\.nc"):
        meanfield.solve(small, output=path)
    assert path.read_text() == "precious"
    meanfield.solve(small, output=path, force=True).close()
    with open_run(path) as run:
        assert run.attrs["status"] == "completed"


def test_a_file_held_open_by_a_reader_can_be_replaced(small: meanfield.Case, tmp_path: Path) -> None:
    path = tmp_path / "run.nc"
    with meanfield.solve(small, output=path) as reader:
        before = reader["energy"].values
        meanfield.solve(small.override({"attention.beta": 1.0}), output=path, force=True).close()
        np.testing.assert_array_equal(reader["energy"].values, before)
        np.testing.assert_array_equal(reader["density_lm"].isel(time=0).shape, (136, 2))


def test_a_bad_case_leaves_no_file(three_bumps: MakeCase, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lmax"):
        meanfield.solve(three_bumps({"attention.beta": 1000.0}), output=tmp_path / "run.nc")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_clear_error(small: meanfield.Case, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere|No such file"):
        meanfield.solve(small, output=tmp_path / "nowhere" / "run.nc")


def test_records_are_gathered_and_written_together(tmp_path: Path) -> None:
    path = tmp_path / "run.nc"
    file = RunFile(path, "t", "{}", {}, ["energy"], {})
    file.append(0.0, {"energy": 1.0})
    with open_run(path) as run:
        assert run.sizes["time"] == 0
    file.keep(Checkpoint)
    for t in (1.0, 2.0):
        file.append(t, {"energy": t})
    with open_run(path) as run:  # readable while the run goes on
        assert run["energy"].values.tolist() == [1.0]
        file.finish({"status": "completed", "status_message": "", "odd": 3})
        assert run.attrs["status"] == "running"
    with open_run(path) as run:
        assert run["energy"].values.tolist() == [1.0, 1.0, 2.0]
        assert (run.attrs["status"], run.attrs["odd"]) == ("completed", 3)
    assert [found.name for found in tmp_path.iterdir()] == ["run.nc"]


def test_records_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meanfield.dataset.LARGEST_PENDING", 20)
    file = RunFile(None, "t", "{}", {}, ["energy"], {})
    for t in range(7):
        file.append(float(t), {"energy": -t})
        file.keep(Checkpoint)
    file.finish({"status": "completed", "status_message": ""})
    assert file.dataset()["energy"].values.tolist() == [0, -1, -2, -3, -4, -5, -6]


def test_members_are_written_in_order(tmp_path: Path) -> None:
    file = EnsembleFile(None, "t", "{}", [0.0, 1.0], 1, ["x"], {4: np.full(4, 0.25)}, ["mass"], {})
    file.write(4, 0, 0, {"mass": 1.0})
    with pytest.raises(ValueError, match="in order, got 2 after 0"):
        file.write(4, 0, 2, {"mass": 1.0})


@pytest.mark.parametrize("content", [b"", b"not netCDF", b"\x89HDF\r\n\x1a\n" + b"\0" * 600])
def test_damaged_files_are_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.nc"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.nc: not a readable netCDF file") as caught:
        open_run(path)
    assert "\n" not in str(caught.value)


def test_foreign_truncated_and_missing_files(small: meanfield.Case, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.nc"
    xarray.Dataset({"a": ("x", [1.0])}).to_netcdf(foreign)
    with pytest.raises(ValueError, match="not the file of a meanfield run"):
        open_run(foreign)
    whole = tmp_path / "run.nc"
    meanfield.solve(small, output=whole).close()
    data = whole.read_bytes()
    for length in (len(data) // 2, 100):
        (tmp_path / "cut.nc").write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"cut\.nc"):
            open_run(tmp_path / "cut.nc")
    with pytest.raises(FileNotFoundError):
        open_run(tmp_path / "none.nc")
    with pytest.raises(FileNotFoundError):
        open_run(tmp_path)


def test_odd_metadata_survives(three_bumps: MakeCase, tmp_path: Path) -> None:
    case = three_bumps({"solver.lmax": 15, "time.final": 0.1, "particles.seed": 2**70})
    case = meanfield.Case.from_dict({**case.to_dict(), "title": "β → ∞: «Σ» ❄"})
    with meanfield.solve(case, output=tmp_path / "run.nc") as run:
        assert run.attrs["title"] == "β → ∞: «Σ» ❄"
        assert meanfield.Case.from_json(run.attrs["case"]).particles.seed == 2**70


def test_the_table_of_variables_is_sound() -> None:
    for name, variable in VARIABLES.items():
        assert variable.units
        assert variable.long_name
        assert variable.kind in ("f8", "i4", "str"), name


def test_variables_of_a_new_file_are_not_masked(tmp_path: Path) -> None:
    file = RunFile(None, "t", "{}", {"axis": ["x", "y", "z"]}, ["moment1"], {})
    file.append(0.0, {"moment1": np.array([1.0, 2.0, 3.0])})
    file.finish({"status": "completed", "status_message": ""})
    np.testing.assert_array_equal(file.dataset()["moment1"], [[1, 2, 3]])
    assert not list(tmp_path.iterdir())
    assert not [name for name in os.listdir() if name.startswith("memory-")]
