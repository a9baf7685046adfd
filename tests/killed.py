"""A process that starts runs in children of its own, kills them, and has them resumed.

``python -m tests.killed FOLDER KIND SEED TRIALS`` reads a case, as JSON, from stdin.  Children are forked, so that they
need not import anything: what is killed is the run itself.  Half of the children are killed after a random time, the
others at a chosen one of the calls that change what stands on disk.  One line of JSON on stdout for each trial.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray

import meanfield.dataset
from meanfield.case import Case
from meanfield.checkpoint import Checkpoint
from meanfield.ensemble import simulate
from meanfield.resumption import resume
from meanfield.run import solve

INCIDENTAL = ("history", "wall_seconds")


def contents(path: Path) -> dict[str, Any]:
    """Everything in a file of a run, to the last bit, but for when it was written and how long it took."""
    found: dict[str, Any] = {}

    def collect(group: Any, prefix: str) -> None:
        for name, variable in group.variables.items():
            values = variable[...]
            found[prefix + name] = tuple(values) if variable.dtype is str else (values.shape, values.tobytes())
        for name, child in group.groups.items():
            collect(child, f"{prefix}{name}/")

    with netCDF4.Dataset(path) as file:
        file.set_auto_mask(False)
        collect(file, "")
        found |= {f"@{name}": file.getncattr(name) for name in file.ncattrs() if name not in INCIDENTAL}
    return found


def differences(path: Path, other: Path) -> list[str]:
    """Names of what is not the same in two files."""
    ours, theirs = contents(path), contents(other)
    return [name for name in ours | theirs if ours.get(name) != theirs.get(name)]


def records(path: Path) -> int:
    """Number of records of a file that must be readable for everyone, without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xarray.open_dataset(path) as run, netCDF4.Dataset(path) as plain:
            run.load()
            for variable in plain.variables.values():
                variable[...]
            assert run.attrs["status"] in ("running", "completed"), run.attrs["status"]
            assert (np.diff(run["time"]) > 0).all()
            return int(np.isfinite(run["mass"]).sum())


def child(work: Callable[[], Any]) -> int:
    """Process that does something, and ends."""
    process = os.fork()
    if process == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return process


def done(process: int) -> int:
    """How a process ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def die_at(number: int) -> None:
    """Let this process die at the so many-th of the calls that change files."""
    left = number

    def mortal(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **keywords: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **keywords)

        return counted

    for home, name in (
        (os, "link"),
        (os, "truncate"),
        (Path, "replace"),
        (Path, "unlink"),
        (shutil, "copyfile"),
        (shutil, "rmtree"),
        (Checkpoint, "append_to"),
        (meanfield.dataset, "_write"),
        (meanfield.dataset, "_extend"),
        (meanfield.dataset, "_write_member"),
    ):
        setattr(home, name, mortal(getattr(home, name)))


def main(folder: Path, kind: str, seed: int, trials: int) -> None:
    case = Case.from_json(sys.stdin.read())
    generator = random.Random(seed)
    path, whole = folder / "run.nc", folder / "whole.nc"
    meanfield.dataset.SHARE_OF_TIME = 1.0  # as often as can be

    def start() -> None:
        (solve(case, path, force=True) if kind == "solve" else simulate(case, path, force=True, workers=1)).close()

    begin = time.monotonic()
    assert done(child(start)) == 0
    span = time.monotonic() - begin
    path.rename(whole)
    for trial in range(trials):
        path.unlink(missing_ok=True)
        wait, call = generator.uniform(0.0, span), generator.randrange(1, 40)
        if trial % 2:
            process = child(lambda call=call: (die_at(call), start()))
            told = {"call": call}
        else:
            process = child(start)
            time.sleep(wait)
            os.kill(process, signal.SIGKILL)
            told = {"wait": round(wait, 4)}
        told["ended"] = done(process)
        if path.exists():
            told["records"] = records(path)
            resumed = child(lambda: resume(path).close())
        else:
            resumed = child(start)
        told["resumed"] = done(resumed)
        told["different"] = differences(path, whole)
        told["left"] = sorted(found.name for found in folder.iterdir() if found not in (path, whole))
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
