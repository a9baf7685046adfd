"""The netCDF file of a run: written record by record, and read back with xarray.

The only module that imports netCDF4 and xarray.  A file is created and described before the first step, and never
written where it stands (`meanfield.standing`): a run that is killed at any moment leaves a whole file, from which it
can be resumed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import netCDF4
import numpy as np
import xarray

from . import __version__
from .checkpoint import Checkpoint
from .space import Floats
from .standing import StandingFile
from .variables import (
    COORDINATES,
    KINDS,
    MEMBER,
    MEMBER_STATUSES,
    MEMBER_VARIABLES,
    VARIABLES,
    Variable,
    on_space,
)

CONVENTIONS = "CF-1.11"
LATEST_TIME = 1e30
"""Times beyond this are netCDF's fill: a record that a killed run had begun."""
UNFINISHED = "the run has not ended"
SHARE_OF_TIME = 0.03
"""Largest part of a run's time that is spent on its file."""
LONGEST_SILENCE = 30.0
"""A run without a record for so many seconds is kept all the same."""
LARGEST_PENDING = 1 << 26
"""Bytes of records that are gathered before they are written whatever it costs."""


@dataclass(frozen=True)
class Change:
    """Something to be written to an open file, and about how many bytes of it there are."""

    nbytes: int
    write: Callable[[Any], None]


class RunFile:
    """A run's file while it is written.

    Records are gathered and written together, each as soon as that costs no more than `SHARE_OF_TIME` altogether.
    Between two times the file stands as it is, whole and closed, with a `Checkpoint` behind it.

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
    kind : {"sphere", "circle", "zonal"}
        Space of the run, which decides how its variables are described.

    Raises
    ------
    FileExistsError
        If the file exists and may not be replaced.
    OSError
        If it cannot be created, or is being written by another process.
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
        kind: str = "sphere",
    ) -> None:
        known, places = on_space(VARIABLES, kind), on_space(COORDINATES, kind)
        declared = {name: known[name] for name in variables}

        def describe(file: Any) -> None:
            _head(file, title, case, attributes)
            _declare_all(file, places, {"time": None, **coordinates}, declared)

        self._begin(path, describe, overwrite)

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Take over a file that stands, with its ``checkpoint``.

        Raises
        ------
        OSError
            If it cannot be written, or is being written by another process.
        """
        file = cls.__new__(cls)
        file._begin(path, None, overwrite=True)
        file.checkpoint = Checkpoint.read_from(path)
        return file

    def go_on(self, case: str, t: float, findings: Iterable[str] = ()) -> None:
        """Append to a file that was reopened what comes after its checkpoint at time t; ``findings`` are forgotten."""
        assert self.checkpoint is not None
        assert self._standing is not None
        self._lengths |= self.checkpoint.facts.get("lengths", {})
        with netCDF4.Dataset(self._standing.path) as file:
            history = f"{file.history}\n{_now()} resumed at t = {t:.6g} by meanfield {__version__}"
        self.describe({"case": case, "history": history, "status": "running", "status_message": UNFINISHED})
        self.describe(dict.fromkeys(findings))

    def _begin(self, path: Path | None, describe: Callable[[Any], None] | None, overwrite: bool) -> None:
        self.checkpoint: Checkpoint | None = None
        self._lengths = {"time": 0, "flow": 0}
        self._gathered: dict[Any, list[Mapping[str, Any]]] = {}
        self._attributes: dict[str, Any] = {}
        self._pending = 0
        self._last, self._cost = 0.0, 0.0
        self._memory: Any = None
        self._standing: StandingFile[Change] | None = None
        if path is None:
            name = f"memory-{secrets.token_hex(8)}.nc"
            self._memory = netCDF4.Dataset(name, "w", format="NETCDF4", diskless=True, persist=False)
            if describe is not None:
                describe(self._memory)
            return
        self._standing = StandingFile(path, _write)
        if describe is None:
            return

        def build(draft: Path) -> None:
            with netCDF4.Dataset(draft, "w", format="NETCDF4", clobber=False) as file:
                describe(file)

        try:
            self._standing.create(build, overwrite)
        except BaseException:
            self.release()
            raise

    @property
    def lengths(self) -> Mapping[str, int]:
        """How much there is along each growing dimension, written or gathered."""
        return self._lengths

    def append(self, time: float, values: Mapping[str, Any]) -> None:
        """Take one record."""
        self.extend("time", {**values, "time": time})

    def extend(self, dimension: str, values: Mapping[str, Any]) -> None:
        """Take the next values along an unlimited dimension."""
        self._gather(dimension, values)
        self._lengths[dimension] += 1

    def _gather(self, key: Any, values: Mapping[str, Any]) -> None:
        self._gathered.setdefault(key, []).append(values)
        self._pending += sum(np.asarray(value).nbytes for value in values.values())

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Take global attributes; None removes one."""
        self._attributes |= attributes

    def keep(self, checkpoint: Callable[[], Checkpoint]) -> None:
        """Write what is gathered, with all that going on from there needs, unless it would cost too much by now."""
        since = time.monotonic() - self._last
        waiting = self._pending > 0 or since > LONGEST_SILENCE
        if self._standing is not None and waiting and (self._pending > LARGEST_PENDING or since > self._patience):
            self._publish(checkpoint())
        elif self._pending > LARGEST_PENDING:
            self._publish(None)

    @property
    def _patience(self) -> float:
        return self._cost / SHARE_OF_TIME

    def finish(self, attributes: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """Write everything, and the closing attributes; with a checkpoint the run can go on from there."""
        self.describe(attributes)
        self._publish(checkpoint)
        self.release()

    def release(self) -> None:
        """Leave the file as it stands, for others to write."""
        if self._standing is not None:
            self._standing.release()

    def _publish(self, checkpoint: Checkpoint | None) -> None:
        begin = time.monotonic()
        change = Change(self._pending, partial(_apply, [*self._changes(), partial(_set, self._attributes)]))
        if self._standing is None:
            change.write(self._memory)
        else:
            self._standing.publish(change, checkpoint)
        self._gathered, self._attributes, self._pending = {}, {}, 0
        self._last = time.monotonic()
        self._cost = self._last - begin

    def _changes(self) -> Iterator[Callable[[Any], None]]:
        for dimension, rows in self._gathered.items():
            yield partial(_extend, self._lengths[dimension] - len(rows), _stacked(rows))

    def dataset(self) -> xarray.Dataset:
        """Content of a finished run that was kept in memory."""
        store = xarray.backends.NetCDF4DataStore(self._memory)  # type: ignore[no-untyped-call]
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
        coordinates = {"time": times, "seed": np.arange(seeds), "axis": axes, "axis_": axes}
        names = ("member_status", "member_stop_time", "member_evaluations", *variables)
        declared = {name: MEMBER_VARIABLES[name] for name in names}

        def describe(file: Any) -> None:
            _head(file, title, case, attributes)
            for count, weight in weights.items():
                group = file if len(weights) == 1 else file.createGroup(str(count))
                _declare_all(group, COORDINATES, {**coordinates, "weight": weight}, declared)
                flags = {
                    "flag_values": np.arange(len(MEMBER_STATUSES), dtype="i4"),
                    "flag_meanings": " ".join(MEMBER_STATUSES),
                }
                group.variables["member_status"].setncatts(flags)
                group.variables["member_status"][:] = 0
                group.variables["member_evaluations"][:] = 0

        self._begin(path, describe, overwrite)

    def write(self, count: int, seed: int, index: int, values: Mapping[str, Any]) -> None:
        """Take the record number ``index`` of a member."""
        rows = self._gathered.get((count, seed))
        if rows is not None and rows[-1]["index"] + 1 != index:
            raise ValueError(f"index: records of a member must come in order, got {index} after {rows[-1]['index']}")
        self._gather((count, seed), {**values, "index": index})

    def close_member(self, count: int, seed: int, status: str, stop_time: float, evaluations: int) -> None:
        """Take how a member ended."""
        ending = {
            "member_stop_time": stop_time,
            "member_evaluations": evaluations,
            "member_status": MEMBER_STATUSES.index(status),
        }
        self._gather((count, seed, "ending"), ending)

    def _changes(self) -> Iterator[Callable[[Any], None]]:
        for (count, seed, *ending), rows in self._gathered.items():
            if ending:
                yield partial(_write_member, count, seed, None, rows[-1])
            else:
                values = _stacked(rows)
                first = int(values.pop("index")[0])
                yield partial(_write_member, count, seed, slice(first, first + len(rows)), values)

    def result(self) -> xarray.Dataset | xarray.DataTree:
        """Content of a finished ensemble that was kept in memory."""
        groups = {
            name: xarray.open_dataset(xarray.backends.NetCDF4DataStore(group)).load()  # type: ignore[no-untyped-call]
            for name, group in self._memory.groups.items()
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
    path = Path(path)
    dataset = open_variables(path)
    try:
        with _blaming(path):
            _require_run(dataset.attrs)
            _require_shapes(dataset)
            if _has_groups(path):
                dataset.close()
                tree = xarray.open_datatree(path, engine="netcdf4")
                for node in tree.subtree:
                    _require_shapes(node.dataset)
                return tree
            if "time" in dataset.dims:
                whole = np.asarray(dataset["time"].values < LATEST_TIME)
                if not whole.all():
                    dataset = dataset.isel(time=np.flatnonzero(whole))
    except ValueError:
        dataset.close()
        raise
    return dataset


def open_variables(path: Path) -> xarray.Dataset:
    """Open any netCDF file; one line says what is wrong with it."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    with _blaming(path):
        return xarray.open_dataset(path, engine="netcdf4")


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Name the file that is not what it should be, or that HDF5 cannot read, for which netCDF4 has many errors."""
    try:
        yield
    except PermissionError:
        raise
    except _ForeignError as error:
        raise ValueError(f"{path}: {error}") from error
    except (OSError, ValueError, RuntimeError, LookupError, AttributeError) as error:
        raise ValueError(f"{path}: not a readable netCDF file ({_first_line(error)})") from error


class _ForeignError(ValueError):
    """A file that can be read, but is none of this package."""


def _require_run(attributes: Mapping[str, Any]) -> None:
    """Refuse what was not written here."""
    source, case = attributes.get("source"), attributes.get("case")
    if not str(source).startswith("meanfield") or case is None:
        raise _ForeignError("not the file of a meanfield run (it lacks the attributes 'source' and 'case')")
    try:
        table = json.loads(case) if isinstance(case, str) else None
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise _ForeignError("the attribute 'case' is damaged: expected a table as JSON")


def _require_shapes(dataset: xarray.Dataset) -> None:
    """Refuse variables of known names that are something else; of sweeps and ensembles they have more dimensions."""
    kind = str(dataset.attrs.get("space_kind", KINDS[0]))
    if kind not in KINDS:
        raise _ForeignError(f"the attribute 'space_kind' is damaged: expected one of {', '.join(KINDS)}, got {kind!r}")
    tables = on_space(COORDINATES, kind), on_space(VARIABLES, kind), MEMBER_VARIABLES
    swept = {name for name in dataset.coords if "sweep" in dataset.attrs and name not in COORDINATES}
    for name, variable in dataset.variables.items():
        if name in swept:  # a key of the case may be called as a variable is
            continue
        known = [table[name] for table in tables if name in table]
        core = [tuple(d for d in variable.dims if d in declared.dimensions) for declared in known]
        if known and not any(found == declared.dimensions for found, declared in zip(core, known, strict=True)):
            expected = " or ".join(str(declared.dimensions) for declared in known)
            raise _ForeignError(f"{name}: expected dimensions {expected}, got {variable.dims}")
        texts = variable.dtype.kind not in "iuf"
        if known and texts != (known[0].kind == "str"):
            raise _ForeignError(
                f"{name}: expected {'texts' if known[0].kind == 'str' else 'numbers'}, got {variable.dtype}"
            )


def complex_spectrum(parts: xarray.DataArray) -> np.ndarray[Any, np.dtype[np.complex128]]:
    """Complex coefficients of a spectrum stored with its parts along the last axis."""
    values: Floats = np.ascontiguousarray(parts.transpose(..., "part").values)
    return values.view(np.complex128)[..., 0]


def library_versions() -> str:
    """Versions of the libraries that the numbers depend on, as one line."""
    names = ("numpy", "scipy", "shtns", "ducc0", "netCDF4", "xarray")
    found = [f"meanfield {__version__}"]
    for name in names:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)


def _declare_all(
    group: Any, places: Mapping[str, Variable], coordinates: Mapping[str, Any], variables: Mapping[str, Variable]
) -> None:
    """Create dimensions, coordinates with their values (None is a dimension that grows), and variables."""
    for name, values in coordinates.items():
        shape = (None,) if values is None else np.shape(values)
        for dimension, size in zip(places[name].dimensions, shape, strict=True):
            if dimension not in group.dimensions:
                group.createDimension(dimension, size)
    for name, values in coordinates.items():
        coordinate = _declare(group, name, places[name], coordinate=True)
        if values is not None:
            coordinate[...] = np.asarray(values, dtype=object if places[name].kind == "str" else None)
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


def _head(file: Any, title: str, case: str, attributes: Mapping[str, Any]) -> None:
    """Write the global attributes."""
    file.setncatts(
        {
            "title": title,
            "Conventions": CONVENTIONS,
            "history": f"{_now()} created by meanfield {__version__}",
            "source": f"meanfield {__version__}",
            "references": "Karagodin, Ge, Polyanskiy, Rigollet (2025), arXiv 2510.22026",
            "case": case,
            "status": "running",
            "status_message": UNFINISHED,
            "stop_time": 0.0,
            "tendency_evaluations": 0,
            "wall_seconds": 0.0,
            "versions": library_versions(),
            **attributes,
        }
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _write(path: Path, changes: Sequence[Change]) -> None:
    with netCDF4.Dataset(path, "r+") as file:
        for change in changes:
            change.write(file)


def _apply(changes: Sequence[Callable[[Any], None]], file: Any) -> None:
    for change in changes:
        change(file)


def _set(attributes: Mapping[str, Any], file: Any) -> None:
    for name, value in attributes.items():
        if value is not None:
            file.setncattr(name, value)
        elif name in file.ncattrs():
            file.delncattr(name)


def _stacked(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Values of several rows by name, complex ones in two parts."""
    stacks = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
    return {
        name: np.stack([stack.real, stack.imag], axis=-1) if np.iscomplexobj(stack) else stack
        for name, stack in stacks.items()
    }


def _extend(first: int, values: Mapping[str, Any], file: Any) -> None:
    for name, stack in values.items():
        file.variables[name][first : first + len(stack)] = stack


def _write_member(count: int, seed: int, index: slice | None, values: Mapping[str, Any], file: Any) -> None:
    variables = file.groups.get(str(count), file).variables
    for name, value in values.items():
        variables[name][seed if index is None else (seed, index)] = value


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
