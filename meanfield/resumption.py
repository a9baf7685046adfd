"""Going on with a run that was interrupted or killed, from its file alone, to the same numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray

from . import ensemble, run
from .case import Case
from .checkpoint import Checkpoint
from .dataset import EnsembleFile, RunFile, open_run
from .nesting import leaves
from .progress import Interrupt, never
from .standing import clear

LIMITS = ("solver.max_steps", "solver.max_wall_seconds")
"""Keys of a case that may be new when its run goes on."""
FREE = (*LIMITS, "name")


def resume(
    path: str | os.PathLike[str],
    progress: bool = False,
    case: Case | None = None,
    workers: int | None = None,
    interrupt: Interrupt = never,
) -> xarray.Dataset | xarray.DataTree:
    """Go on with the run of a file that was interrupted, killed, or stopped at a limit.

    All records come out as if it had never stopped, to the last bit with the same versions of the libraries on the
    same kind of processor.  Tokens or an earlier run that it started from are not needed, once there is a record.
    A file from which the checkpoint was lost, by copying it with another program, is computed anew.  A run that has
    ended is left alone.

    Parameters
    ----------
    path : path
        File written by ``solve`` or ``simulate``.
    progress : bool
        Whether to show progress on stderr.
    case : Case, optional
        Must be that of the run, but for ``solver.max_steps`` and ``solver.max_wall_seconds``, which count from the
        beginning of the run.
    workers : int, optional
        Of an ensemble, as in ``simulate``.
    interrupt : callable, optional
        Asked after every step; a reason that it returns ends the run there, to be resumed.

    Returns
    -------
    xarray.Dataset or xarray.DataTree
        As of ``solve`` or ``simulate``.

    Raises
    ------
    ValueError
        If the file is not that of a run, or the case is another; one line, with the first key that differs.
    OSError
        If there is no such file, it cannot be written, or another process is writing it.
    """
    path = Path(path)
    _, ended, particles = _look(path, case)
    if ended:
        clear(path)
        return _opened(path)
    file: RunFile = EnsembleFile.reopen(path) if particles else RunFile.reopen(path)
    try:  # from here on nobody else writes it, and what was seen before may be out of date
        chosen, ended, particles = _look(path, case)
        if ended:
            return _opened(path)
        if file.checkpoint is not None and isinstance(file, EnsembleFile):
            return ensemble.go_on(chosen, path, file, file.checkpoint, progress, workers, interrupt)
        if file.checkpoint is not None:
            return run.go_on(chosen, path, file, file.checkpoint, progress, interrupt)
    finally:
        file.release()
    if particles:
        return ensemble.simulate(chosen, path, progress, force=True, workers=workers, interrupt=interrupt)
    return run.solve(chosen, path, progress, force=True, interrupt=interrupt)


def _opened(path: Path) -> xarray.Dataset | xarray.DataTree:
    found: xarray.Dataset | xarray.DataTree = open_run(path)
    return found


def _look(path: Path, case: Case | None) -> tuple[Case, bool, bool]:
    """Case to go on with, whether the run has ended for good, and whether it is one of particles."""
    with open_run(path) as found:
        attributes = found.attrs
        particles = isinstance(found, xarray.DataTree) or "seed" in found.dims
    own = _case(path, attributes)
    if case is not None:
        _require_same(own, case, path)
    ended = attributes.get("status") != "running" and Checkpoint.begins(path) is None
    return case or own, ended, particles


def _require_same(own: Case, case: Case, path: Path) -> None:
    """Refuse another case than a run has."""
    ours, theirs = dict(leaves(own.to_dict())), dict(leaves(case.to_dict()))
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        if key not in FREE and ours.get(key) != theirs.get(key):
            raise ValueError(
                f"{key}: the run of {path} has {_shown(ours, key)}, got {_shown(theirs, key)}; when a run goes on, "
                f"only {' and '.join(LIMITS)} may be new"
            )


def _shown(values: Mapping[str, Any], key: str) -> str:
    text = json.dumps(values[key]) if key in values else "nothing"
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-15:]}"


def has_ended(path: str | os.PathLike[str]) -> bool:
    """Whether there is nothing left to do for the run in a file.

    Raises
    ------
    ValueError, OSError
        As `resume`.
    """
    _, ended, _ = _look(Path(path), None)
    return ended


def case_of(path: str | os.PathLike[str]) -> Case:
    """Case of the run in a file.

    Raises
    ------
    ValueError, OSError
        As `meanfield.dataset.open_run`; or if this version has no such case.
    """
    with open_run(path) as found:
        return _case(Path(path), found.attrs)


def _case(path: Path, attributes: Mapping[str, Any]) -> Case:
    try:
        return Case.from_json(str(attributes["case"]))
    except ValueError as error:
        raise ValueError(f"{path}: its attribute 'case' is no case of this version: {error}") from error
