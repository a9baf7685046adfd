"""Runs that a command asks for: signals are heeded, and how a run ended is told and becomes an exit code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

from .options import OUTPUTS, Verbosity, claim
from .printing import say

if TYPE_CHECKING:
    import xarray as xr

    from .case import Case


@contextmanager
def heeded_signals() -> Iterator[Callable[[], str | None]]:
    """Let SIGINT and SIGTERM wait for the end of a step; a second one is not waited with."""
    caught: list[str] = []

    def heed(number: int, frame: FrameType | None) -> None:
        caught.append(f"interrupted by {signal.Signals(number).name}")
        signal.signal(number, before[number])

    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before: dict[int, Any] = {number: signal.signal(number, heed) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: caught[0] if caught else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_case(
    kind: Literal["solve", "simulate"], case: Case, output: Path, verbosity: Verbosity, force: bool = False
) -> Any:
    """Solve or simulate a case into a file."""
    with heeded_signals() as interrupt:
        if kind == "solve":
            from .run import solve

            return solve(case, output=output, progress=not verbosity.quiet, force=force, interrupt=interrupt)
        from .ensemble import simulate

        return simulate(case, output=output, progress=not verbosity.quiet, force=force, interrupt=interrupt)


def sweep_case(
    case: Case,
    folder: Path,
    verbosity: Verbosity,
    workers: int | None = None,
    scheduler: str | None = None,
    force: bool = False,
    retry: bool = False,
) -> int:
    """Run what is missing of a sweep, tell what has become of its members, and return the exit code."""
    from .sweep import run_sweep

    with heeded_signals() as interrupt:
        found = run_sweep(case, folder, workers, scheduler, not verbosity.quiet, force, retry, interrupt)
        reason = interrupt()
    print(folder.with_name(f"{folder.name}.nc"))
    with found:
        rows = zip(*(found[key].values.ravel() for key in ("file", "status", "message")), strict=True)
        for file, status, message in rows:
            if status not in ("completed", "missing", "interrupted"):
                say(f"{file}: {status}: {message}")
        done = found.attrs["status"] == "completed"
        if not (done and verbosity.quiet):
            say(str(found.attrs["status_message"]))
    if done or reason is None:
        return 0 if done else 3
    say(f"{reason}; the same command goes on from here")
    return 130 if signal.SIGINT.name in reason else 3


def obtain(kind: Literal["solve", "simulate"], case: Case, verbosity: Verbosity) -> Any:
    """Open the run of a case if its file is there and holds this very case, else run it now, or the rest of it."""
    from .dataset import open_run
    from .resumption import resume as go_on

    path = OUTPUTS / f"{case.name}{'' if kind == 'solve' else '.particles'}.nc"
    if not path.exists():
        return run_case(kind, case, claim(path, force=False), verbosity)
    found = open_run(path)
    if found.attrs.get("case") != case.to_json():
        found.close()
        raise ValueError(f"{path}: is of another case, run `meanfield {kind} --force` first")
    if found.attrs.get("status") != "running":
        return found
    found.close()
    with heeded_signals() as interrupt:
        return go_on(path, progress=not verbosity.quiet, interrupt=interrupt)


def judge(run: xr.Dataset | xr.DataTree, case: Case, verbosity: Verbosity) -> int:
    """Tell how a run ended, always if not as hoped, and return the exit code."""
    status, stop = str(run.attrs["status"]), float(run.attrs["stop_time"])
    early = stop < case.time.final or status in ("running", "fold", "failed")
    if early or status != "completed" or not verbosity.quiet:
        message = str(run.attrs.get("status_message", ""))
        say(f"{status} at t = {stop:.6g} of {case.time.final:.6g}{': ' * bool(message)}{message}")
    if status == "running" and signal.SIGINT.name in str(run.attrs["status_message"]):
        return 130
    return 3 if early else 0
