"""Sweeps: the members of a plan run on Dask, and whatever becomes of one, the others finish.

The only module that imports dask and distributed.  A cluster of spawned processes on this machine is the default; any
other that speaks Dask's protocol will do, if its workers see the same folders.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import tempfile
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import xarray

from .case import Case
from .collection import gather, open_sweep, write
from .engines import one_blas_thread
from .ensemble import simulate
from .plan import Member, Plan, make_plan
from .progress import Interrupt, Progress, never
from .resumption import resume
from .run import solve
from .threads import available_threads, limited_threads

__all__ = ["make_plan", "open_sweep", "run_sweep"]

DEATHS = 2
"""So many workers a member may kill; the last time it runs alone, so that none is blamed for its neighbour."""
SECONDS_BETWEEN_REPORTS = 1.0
"""How often progress is told while nothing happens."""
SECONDS_TO_CONNECT = 15
"""How long an existing scheduler may take to answer."""
UNFINISHED = {"missing", "interrupted", "killed", "error", "stranger"}
"""Statuses of members that are taken up again."""
BEGUN = {"interrupted", "killed", "error"}
"""Statuses of members whose files, if there are any, hold the first part of their runs."""
FAILED = {"failed", "invalid"}
"""Statuses of members that are run once more if that is asked for."""


def run_sweep(
    case: Case,
    output: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    progress: bool = False,
    force: bool = False,
    retry: bool = False,
    interrupt: Interrupt = never,
) -> xarray.Dataset:
    """Run every member of a sweep that has not been run, and gather all of them.

    Parameters
    ----------
    case : Case
        A case with a table ``[sweep]``.
    output : path, optional
        Folder of the members' files, by default ``outputs/<name>.sweep``; what is gathered stands beside it, with
        ``.nc`` appended to its name.
    workers : int, optional
        Processes on this machine, by default one per core, each with one thread; no number depends on it.  A script
        that starts some must have its work under ``if __name__ == "__main__":``, as always in Python.
    scheduler : str, optional
        Address of an existing Dask scheduler, as "tcp://host:8786", in place of processes here.  Its workers need
        meanfield, and must see the folder under the same absolute path.
    progress : bool
        Whether to show progress on stderr.
    force : bool
        Whether files of other cases that stand in the place of members may be replaced.
    retry : bool
        Whether members whose case was found invalid, or whose run failed, are run once more.
    interrupt : callable, optional
        Asked every second; a reason that it returns ends the sweep there, and the same call goes on from there.
        Workers of an existing scheduler finish the members that they have begun.

    Returns
    -------
    xarray.Dataset
        All members along the swept coordinates, as `meanfield.collection.gather` describes it; opened lazily.

    Raises
    ------
    ValueError
        Before any work: if the case has no sweep, no member of it is a case, a file in the place of a member is of
        another case (the key is named), or an argument is out of range.
    FileExistsError
        Before any work, if the file of all members would replace something else.
    BlockingIOError
        Before any work, if another process sweeps in this folder.
    ConnectionError
        If there is no scheduler at the address, its workers do not see the folder, or it is lost.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers: must be an integer >= 1 or None, got {workers!r}")
    if workers is not None and scheduler is not None:
        raise ValueError("workers: an existing scheduler has its own, give one of workers and scheduler")
    if find_spec("distributed") is None:
        raise ValueError("sweep: needs Dask, pip install 'meanfield[sweep]'")
    folder = Path("outputs", f"{case.name}.sweep") if output is None else Path(output)
    if folder.name in ("", ".."):
        raise ValueError(f"output: must be a folder by its name, got {str(folder)!r}")
    plan = make_plan(case, Path(os.path.abspath(folder)))
    _check_places(plan, force)
    plan.folder.mkdir(parents=True, exist_ok=True)
    with _locked(plan.folder):
        due = _due(plan, force, retry)
        begun = not due
        number = min(workers or available_threads(), len(due))
        try:
            if due:
                with Progress(plan.path.stem, 100.0, shown=progress) as bar, _client(number, scheduler) as client:
                    window = (lambda: number) if scheduler is None else (lambda: _window(client))
                    _check_sight(client, plan.folder)
                    begun = True
                    _Crew(client, window, bar, interrupt).work(due)
        finally:  # after an interrupt too: what there is can be looked at
            if begun:
                write(gather(plan), plan.path)
    return open_sweep(plan.path)


def _check_places(plan: Plan, force: bool) -> None:
    """Look at what stands in the places of the files to come."""
    if plan.folder.exists() and not plan.folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, expected a folder for the members", str(plan.folder))
    if plan.path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, expected the file of all members", str(plan.path))
    if plan.path.exists() and not force:
        try:
            open_sweep(plan.path).close()
        except ValueError:
            raise FileExistsError(errno.EEXIST, "exists already, and is no sweep", str(plan.path)) from None


def _due(plan: Plan, force: bool, retry: bool) -> list[Member]:
    """Members that are to be run."""
    due = []
    for member in plan.members:
        state = member.state()
        if state.status == "stranger" and not force:
            raise ValueError(f"{state.message} (--force replaces it)")
        wanted = UNFINISHED | FAILED if retry else UNFINISHED
        if member.case is not None and state.status in wanted:
            due.append(member)
    return due


# ---- what a worker does --------------------------------------------------------------------------------------


def run_member(kind: Literal["solve", "simulate"], case: Case, path: Path, begun: bool) -> None:
    """Run one member to its file with one thread, or go on with one that has ``begun``: what a worker does."""
    with limited_threads(1), one_blas_thread():
        if begun:
            resume(path, workers=1).close()
        elif kind == "solve":
            solve(case, path, force=path.exists()).close()
        else:
            simulate(case, path, force=path.exists(), workers=1).close()


def _sees(folder: str) -> bool:
    return Path(folder).is_dir()


# ---- clusters ------------------------------------------------------------------------------------------------


@contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Any]:
    """Client of an existing scheduler, or of spawned processes that end with the context and leave no files."""
    import dask
    from distributed import Client, LocalCluster

    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=SECONDS_TO_CONNECT, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise ConnectionError(f"scheduler: no Dask scheduler answers at {scheduler!r} ({error})") from error
        with client:
            yield client
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        settings = {
            "temporary-directory": scratch,
            "distributed.scheduler.allowed-failures": 0,  # the crew counts them itself
            # Workers hold no results: one that has no memory left is ended, not paused for ever.
            "distributed.worker.memory.target": False,
            "distributed.worker.memory.spill": False,
            "distributed.worker.memory.pause": False,
        }
        with (
            dask.config.set(settings),
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,  # with Dask's defaults, OMP_NUM_THREADS and the like are 1 in them
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
            ) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):
            yield client


def _window(client: Any) -> int:
    """How many members an existing cluster is given at a time: more than it has workers, so that it may grow."""
    return 2 * len(client.nthreads()) + 2


def _check_sight(client: Any, folder: Path) -> None:
    """Ask a worker, once there is one, whether it sees the folder."""
    future = client.submit(_sees, str(folder), pure=False)
    try:
        seen = future.result()
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise ConnectionError(f"scheduler: its workers cannot run meanfield ({what})") from error
    if not seen:
        raise ConnectionError(f"scheduler: its workers do not see {folder}, choose a folder that they share")


class _Crew:
    """Gives the members to the workers, and writes down what goes wrong."""

    def __init__(self, client: Any, window: Callable[[], int], bar: Progress, interrupt: Interrupt) -> None:
        self._client = client
        self._window = window
        self._bar = bar
        self._interrupt = interrupt
        self._running: dict[Any, Member] = {}
        self._deaths: Counter[str] = Counter()

    def work(self, due: Sequence[Member]) -> None:
        """Run members, the largest first; those whose worker died once more at the end, one by one."""
        from distributed import wait

        total = sum(member.cost for member in due)
        done, number = 0.0, 0
        waiting = deque(sorted(due, key=lambda member: -member.cost))
        suspects: deque[Member] = deque()
        while (waiting or suspects or self._running) and self._interrupt() is None:
            if waiting and len(self._running) < (window := self._window()):
                for _ in range(min(window - len(self._running), len(waiting))):
                    self._submit(waiting.popleft())
            elif suspects and not self._running:
                self._submit(suspects.popleft())
            if number:
                self._bar.update(100.0 * done / total, f"% of the work, {number} of {len(due)} members")
            with suppress(TimeoutError), self._client.as_current():
                wait(list(self._running), timeout=SECONDS_BETWEEN_REPORTS, return_when="FIRST_COMPLETED")
            for future in [future for future in self._running if future.done()]:
                member = self._running.pop(future)
                if self._is_over(future, member):
                    done, number = done + member.cost, number + 1
                else:
                    suspects.append(member)
                future.release()
        self._bar.update(100.0 * done / total, f"% of the work, {number} of {len(due)} members")

    def _submit(self, member: Member) -> None:
        begun = member.path.exists() and member.state().status in BEGUN
        arguments = (member.kind, member.case, member.path, begun)
        key = f"{member.label}-{uuid.uuid4().hex}"
        self._running[self._client.submit(run_member, *arguments, key=key, pure=False)] = member

    def _is_over(self, future: Any, member: Member) -> bool:
        """Write down how a member ended if its file does not tell; False if it must be run again."""
        from distributed import KilledWorker

        if future.status == "finished":
            member.record.unlink(missing_ok=True)
            return True
        if future.status != "error":
            raise ConnectionError(f"scheduler: lost ({future.status}); the same command goes on from here")
        error = future.exception()
        if isinstance(error, KilledWorker):
            self._deaths[member.label] += 1
            if self._deaths[member.label] < DEATHS:
                return False
            member.tell("killed", "its worker died, and again when it ran alone (killed, out of memory, or a crash)")
        else:
            # A case that cannot be run is refused before there is a file.
            status = "invalid" if isinstance(error, ValueError) and not member.path.exists() else "error"
            what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            member.tell(status, " ".join(what.split()))
        return True


# ---- the house around ----------------------------------------------------------------------------------------


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other sweeps out of a folder, as long as this process lives."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EWOULDBLOCK, "another sweep is at work here", str(folder)) from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(descriptor)
