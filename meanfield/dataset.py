"""The netCDF file of a run: its variables, written record by record, and read back with xarray.

The only module that imports netCDF4 and xarray.  A file is created and described before the first step, synced after
every record, and its status is written last: a run that is killed leaves a readable file.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray

from .space import Floats

CONVENTIONS = "CF-1.11"
SPECTRUM_CONVENTION = (
    "f = sum_l f_l0 Y_l0 + 2 Re sum_(m>0) f_lm Y_lm; Y_lm orthonormal on the sphere, with the Condon-Shortley phase "
    "(as scipy.special.sph_harm_y(l, m, colatitude, longitude)); f_lm = integral of f conj(Y_lm); m >= 0 is stored"
)
LATEST_TIME = 1e30
"""Times beyond this are netCDF's fill: a record that a killed run had begun."""


@dataclass(frozen=True)
class Variable:
    """How one variable stands in the file."""

    dimensions: tuple[str, ...]
    units: str
    long_name: str
    comment: str = ""
    kind: str = "f8"
    coordinates: str = ""


GRID = ("time", "lat", "lon")
SPECTRUM = ("time", "lm", "part")

COORDINATES = {
    "time": Variable(("time",), "1", "time (depth)"),
    "lat": Variable(("lat",), "degrees_north", "latitude"),
    "lon": Variable(("lon",), "degrees_east", "longitude"),
    "part": Variable(("part",), "1", "part of a complex number", kind="str"),
    "axis": Variable(("axis",), "1", "Cartesian axis", kind="str"),
    "axis_": Variable(("axis_",), "1", "Cartesian axis", kind="str"),
    "degree": Variable(("lm",), "1", "degree l of the spherical harmonic", kind="i4"),
    "order": Variable(("lm",), "1", "order m of the spherical harmonic", kind="i4"),
    "degree_": Variable(("degree_",), "1", "degree l of the spherical harmonic", kind="i4"),
    "flow_time": Variable(("flow",), "1", "time of a step"),
    "flow_piece": Variable(("flow",), "1", "smooth piece of the run that the step belongs to", kind="i4"),
    "flow_degree": Variable(("band",), "1", "degree l of the spherical harmonic", kind="i4"),
    "flow_order": Variable(("band",), "1", "order m of the spherical harmonic", kind="i4"),
    "quadrature_weight": Variable(("lat", "lon"), "sr", "quadrature weight", "the sum is 4 pi"),
    "seed": Variable(("seed",), "1", "number of the ensemble member", kind="i4"),
    "weight": Variable(("particle",), "1", "mass of the token", "the sum is 1"),
}

VARIABLES = {
    "density": Variable(GRID, "sr-1", "token density", "per steradian; the integral over the sphere is 1"),
    "radius": Variable(GRID, "1", "radius r of the tokens in a direction"),
    "density_lm": Variable(
        SPECTRUM, "sr-1", "spectrum of the token density", SPECTRUM_CONVENTION, coordinates="degree order"
    ),
    "radius_lm": Variable(SPECTRUM, "1", "spectrum of the radius", SPECTRUM_CONVENTION, coordinates="degree order"),
    "moment1": Variable(("time", "axis"), "1", "mean token, integral of x rho"),
    "moment2": Variable(("time", "axis", "axis_"), "1", "second moment, integral of x x^T rho"),
    "order_parameter": Variable(("time",), "1", "length of the mean token"),
    "energy": Variable(
        ("time",),
        "1",
        "interaction energy",
        "(1/(2 beta)) double integral of exp(beta x.y - |beta|) rho rho; beta = 0: |moment1|^2 / 2",
    ),
    "energy_rate": Variable(
        ("time",),
        "1",
        "time derivative of the energy by its identity",
        "integral of (grad Z / beta).u rho, with Z scaled as the energy",
    ),
    "entropy": Variable(
        ("time",),
        "1",
        "entropy, minus the integral of rho log rho",
        "nats, with respect to the surface measure; where rho < 0 it counts as 0",
    ),
    "mass": Variable(("time",), "1", "integral of rho"),
    "lmax": Variable(("time",), "1", "largest degree of the solver", kind="i4"),
    "spectral_tail": Variable(("time",), "1", "energy fraction of the density in the top eighth of degrees"),
    "density_error": Variable(
        ("time",), "1", "estimated relative L2 error of the gridded density", "what stands in degrees beyond trust"
    ),
    "density_min": Variable(("time",), "sr-1", "smallest density on the solver's grid"),
    "density_max": Variable(("time",), "sr-1", "largest density on the solver's grid"),
    "degree_power": Variable(
        ("time", "degree_"),
        "sr-1",
        "energy of the density in each degree",
        "sum over m of |density_lm|^2; the sum over l is the integral of rho^2",
    ),
    "clusters": Variable(
        ("time",), "1", "number of clusters", "density maxima that stand out by a factor 1.25", kind="i4"
    ),
    "radius_min": Variable(("time",), "1", "smallest radius on the solver's grid"),
    "radius_max": Variable(("time",), "1", "largest radius on the solver's grid"),
    "radius_mean": Variable(("time",), "1", "mean radius of the tokens, integral of r rho"),
    "radius_spread": Variable(("time",), "1", "standard deviation of the radius of the tokens"),
    "sheets": Variable(
        ("time",),
        "1",
        "largest number of radii in one direction",
        "1 before a fold; above it some directions hold several and others none",
        kind="i4",
    ),
    "flow_lm": Variable(
        ("flow", "band", "part"), "sr-1", "low degrees of the density, which the velocity reads, at every step"
    ),
    "flow_rate_lm": Variable(("flow", "band", "part"), "sr-1", "time derivative of flow_lm"),
    "flow_radius_lm": Variable(("flow", "lm", "part"), "1", "spectrum of the radius at every step"),
    "flow_radius_rate_lm": Variable(("flow", "lm", "part"), "1", "time derivative of flow_radius_lm"),
}

MEMBER = ("seed", "time")
MEMBER_STATUSES = ("running", "completed", "failed")
MEMBER_VARIABLES = {
    "position": Variable((*MEMBER, "particle", "axis"), "1", "direction of the token", "unit vectors"),
    "radius": Variable((*MEMBER, "particle"), "1", "radius r of the token"),
    **{
        name: replace(VARIABLES[name], dimensions=("seed", *VARIABLES[name].dimensions))
        for name in ("mass", "moment1", "moment2", "order_parameter", "energy", "energy_rate")
    },
    "member_status": Variable(("seed",), "1", "how the member ended", kind="i4"),
    "member_stop_time": Variable(("seed",), "1", "time at which the member ended"),
    "member_evaluations": Variable(("seed",), "1", "evaluations of attention for all tokens", kind="i4"),
}
"""Variables of an ensemble of particle runs, in which an integral over ρ is the weighted sum over the tokens."""


class RunFile:
    """A run's file while it is written, record by record.

    Parameters
    ----------
    path : Path or None
        Where the file is to stand; None keeps it in memory.
    title, case : str
        Title, and the whole case as one JSON string.
    coordinates : mapping
        Values of the coordinates that the variables use, but for time.
    variables : iterable of str
        Names from `VARIABLES`.
    attributes : mapping
        Further global attributes: strings, integers, floats.
    overwrite : bool
        Whether an existing file may be replaced.

    Raises
    ------
    FileExistsError
        If the file exists and may not be replaced.
    OSError
        If it cannot be created.
    """

    def __init__(
        self,
        path: Path | None,
        title: str,
        case: str,
        coordinates: Mapping[str, Any],
        variables: Iterable[str],
        attributes: Mapping[str, Any],
        overwrite: bool = False,
    ) -> None:
        self._lengths = {"time": 0, "flow": 0}
        self._in_memory = path is None
        # Built beside its place and moved there once complete: a reader never sees half a header, and a file that
        # stood there is replaced only by a sound one.
        draft = None if path is None else path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            self._file = _create(draft)
            self._describe(title, case, coordinates, variables, attributes)
            if path is not None and draft is not None:
                self._file.sync()
                _move(draft, path, overwrite)
        except BaseException:
            if draft is not None:
                draft.unlink(missing_ok=True)
            raise

    def _describe(
        self,
        title: str,
        case: str,
        coordinates: Mapping[str, Any],
        variables: Iterable[str],
        attributes: Mapping[str, Any],
    ) -> None:
        self._head(title, case, attributes)
        _declare_all(self._file, {"time": None, **coordinates}, {name: VARIABLES[name] for name in variables})

    def _head(self, title: str, case: str, attributes: Mapping[str, Any]) -> None:
        """Write the global attributes."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        release = version("meanfield")
        self._file.setncatts(
            {
                "title": title,
                "Conventions": CONVENTIONS,
                "history": f"{now} created by meanfield {release}",
                "source": f"meanfield {release}",
                "references": "Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026",
                "case": case,
                "status": "running",
                "status_message": "the run has not ended",
                "stop_time": 0.0,
                "tendency_evaluations": 0,
                "wall_seconds": 0.0,
                "versions": library_versions(),
                **attributes,
            }
        )

    def append(self, time: float, values: Mapping[str, Any]) -> None:
        """Write one record and bring it to disk; the time goes last, so that a record with a time is whole."""
        self.extend("time", {**values, "time": time})
        self._file.sync()

    def extend(self, dimension: str, values: Mapping[str, Any]) -> None:
        """Write the next values along an unlimited dimension; the next record brings them to disk."""
        index = self._lengths[dimension]
        for name, value in values.items():
            value = np.asarray(value)
            if np.iscomplexobj(value):
                value = np.stack([value.real, value.imag], axis=-1)
            self._file.variables[name][index] = value
        self._lengths[dimension] += 1

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Write the closing attributes, the status last, and close a file on disk."""
        last = ("status_message", "status")
        for name in [*(name for name in attributes if name not in last), *last]:
            self._file.setncattr(name, attributes[name])
        self._file.sync()
        if not self._in_memory:
            self._file.close()

    def dataset(self) -> xarray.Dataset:
        """Content of a finished run that was kept in memory."""
        store = xarray.backends.NetCDF4DataStore(self._file)  # type: ignore[no-untyped-call]
        with xarray.open_dataset(store) as dataset:
            return dataset.load()


class EnsembleFile(RunFile):
    """The file of an ensemble while it is written: the records of a member in order, members in any order.

    All times are there from the start; what is not yet written is NaN.  With several numbers of tokens there is a
    group of the file for each, of that name.

    Parameters
    ----------
    path : Path or None
        Where the file is to stand; None keeps it in memory.
    title, case : str
        Title, and the whole case as one JSON string.
    times : sequence of float
        Times of the records.
    seeds : int
        Number of members for each number of tokens.
    axes : sequence of str
        Names of the Cartesian axes.
    weights : mapping
        Masses of the tokens, by their number N.
    variables : iterable of str
        Names from `MEMBER_VARIABLES`.
    attributes : mapping
        Further global attributes: strings, integers, floats.
    overwrite : bool
        Whether an existing file may be replaced.

    Raises
    ------
    FileExistsError, OSError
        As in `RunFile`.
    """

    def __init__(
        self,
        path: Path | None,
        title: str,
        case: str,
        times: Sequence[float],
        seeds: int,
        axes: Sequence[str],
        weights: Mapping[int, Floats],
        variables: Iterable[str],
        attributes: Mapping[str, Any],
        overwrite: bool = False,
    ) -> None:
        self._weights = weights
        coordinates = {"time": times, "seed": np.arange(seeds), "axis": axes, "axis_": axes}
        super().__init__(path, title, case, coordinates, variables, attributes, overwrite)

    def _describe(
        self,
        title: str,
        case: str,
        coordinates: Mapping[str, Any],
        variables: Iterable[str],
        attributes: Mapping[str, Any],
    ) -> None:
        self._head(title, case, attributes)
        names = ("member_status", "member_stop_time", "member_evaluations", *variables)
        declared = {name: MEMBER_VARIABLES[name] for name in names}
        single = len(self._weights) == 1
        self._groups = {n: self._file if single else self._file.createGroup(str(n)) for n in self._weights}
        for count, group in self._groups.items():
            _declare_all(group, {**coordinates, "weight": self._weights[count]}, declared)
            flags = {
                "flag_values": np.arange(len(MEMBER_STATUSES), dtype="i4"),
                "flag_meanings": " ".join(MEMBER_STATUSES),
            }
            group.variables["member_status"].setncatts(flags)
            group.variables["member_status"][:] = 0
            group.variables["member_evaluations"][:] = 0

    def write(self, count: int, seed: int, index: int, values: Mapping[str, Any]) -> None:
        """Write the record number ``index`` of a member and bring it to disk."""
        for name, value in values.items():
            self._groups[count].variables[name][seed, index] = value
        self._file.sync()

    def close_member(self, count: int, seed: int, status: str, stop_time: float, evaluations: int) -> None:
        """Write how a member ended."""
        variables = self._groups[count].variables
        variables["member_stop_time"][seed] = stop_time
        variables["member_evaluations"][seed] = evaluations
        variables["member_status"][seed] = MEMBER_STATUSES.index(status)
        self._file.sync()

    def result(self) -> xarray.Dataset | xarray.DataTree:
        """Content of a finished ensemble that was kept in memory."""
        groups = {
            name: xarray.open_dataset(xarray.backends.NetCDF4DataStore(group)).load()  # type: ignore[no-untyped-call]
            for name, group in self._file.groups.items()
        }
        root = self.dataset()  # and with it the file is closed
        return xarray.DataTree.from_dict({"/": root, **groups}) if groups else root


def open_run(path: str | os.PathLike[str]) -> Any:
    """Open the file of a run, finished or not; values are read when they are used.

    Parameters
    ----------
    path : path
        File written by ``solve`` or ``simulate``.

    Returns
    -------
    xarray.Dataset or xarray.DataTree
        The run; of particles in several numbers a tree, with a group for each.

    Raises
    ------
    FileNotFoundError, PermissionError
        If there is no such file, or it may not be read.
    ValueError
        If it is not a meanfield run.
    """
    dataset = open_variables(Path(path))
    if not str(dataset.attrs.get("source", "")).startswith("meanfield") or "case" not in dataset.attrs:
        dataset.close()
        raise ValueError(f"{path}: not the file of a meanfield run (it lacks the attributes 'source' and 'case')")
    if _has_groups(Path(path)):
        dataset.close()
        return xarray.open_datatree(path, engine="netcdf4")
    if "time" in dataset.dims:
        whole = np.asarray(dataset["time"].values < LATEST_TIME)
        if not whole.all():
            dataset = dataset.isel(time=np.flatnonzero(whole))
    return dataset


def open_variables(path: Path) -> xarray.Dataset:
    """Open any netCDF file; one line says what is wrong with it."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    try:
        return xarray.open_dataset(path, engine="netcdf4")
    except PermissionError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ValueError(f"{path}: not a readable netCDF file ({_first_line(error)})") from error


def complex_spectrum(parts: xarray.DataArray) -> np.ndarray[Any, np.dtype[np.complex128]]:
    """Complex coefficients of a spectrum stored with its parts along the last axis."""
    values: Floats = np.ascontiguousarray(parts.transpose(..., "part").values)
    return values.view(np.complex128)[..., 0]


def library_versions() -> str:
    """Versions of the libraries that the numbers depend on, as one line."""
    names = ("meanfield", "numpy", "scipy", "shtns", "ducc0", "netCDF4", "xarray")
    found = []
    for name in names:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def _declare_all(group: Any, coordinates: Mapping[str, Any], variables: Mapping[str, Variable]) -> None:
    """Create dimensions, coordinates with their values (None is a dimension that grows), and variables."""
    for name, values in coordinates.items():
        shape = (None,) if values is None else np.shape(values)
        for dimension, size in zip(COORDINATES[name].dimensions, shape, strict=True):
            if dimension not in group.dimensions:
                group.createDimension(dimension, size)
    for name, values in coordinates.items():
        coordinate = _declare(group, name, COORDINATES[name], coordinate=True)
        if values is not None:
            coordinate[...] = np.asarray(values, dtype=object if COORDINATES[name].kind == "str" else None)
    for name, variable in variables.items():
        _declare(group, name, variable, coordinate=False)


def _declare(group: Any, name: str, variable: Variable, coordinate: bool) -> Any:
    kind = str if variable.kind == "str" else variable.kind
    plain = coordinate and kind is not str  # no fill value on coordinates
    storage: dict[str, Any] = {"fill_value": False if plain else None}
    if variable.dimensions[0] == "seed" and kind == "f8":
        storage["fill_value"] = np.nan
    if variable.dimensions[:2] == MEMBER and len(variable.dimensions) > 2:
        # Space on disk is taken record by record.
        storage["chunksizes"] = (1, 1, *(len(group.dimensions[name]) for name in variable.dimensions[2:]))
    declared = group.createVariable(name, kind, variable.dimensions, **storage)
    attributes = {
        "long_name": variable.long_name,
        "units": variable.units,
        "comment": variable.comment,
        "coordinates": variable.coordinates,
    }
    if name in ("lat", "lon"):
        attributes["standard_name"] = variable.long_name
    if kind is str:
        del attributes["units"]
    declared.setncatts({key: value for key, value in attributes.items() if value})
    return declared


def _has_groups(path: Path) -> bool:
    with netCDF4.Dataset(path) as file:
        return bool(file.groups)


def _create(draft: Path | None) -> Any:
    if draft is None:
        return netCDF4.Dataset(f"memory-{secrets.token_hex(8)}.nc", "w", format="NETCDF4", diskless=True, persist=False)
    return netCDF4.Dataset(draft, "w", format="NETCDF4", clobber=False)


def _move(draft: Path, path: Path, overwrite: bool) -> None:
    if not overwrite:
        try:
            os.link(draft, path)  # unlike a rename, fails if the file exists
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, "exists already", str(path)) from None
        except OSError:  # a file system without links
            if path.exists():
                raise FileExistsError(errno.EEXIST, "exists already", str(path)) from None
        else:
            draft.unlink()
            return
    draft.replace(path)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
