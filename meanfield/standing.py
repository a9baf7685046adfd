"""A file that is whole at every moment, because it is never written where it stands.

There are two copies.  One stands in its place for everyone to read; the other, in a hidden folder beside it, is brought
up to date and then takes the place of the first, which is the next to be brought up to date.  Whenever the process is
killed, what stands is what was last put there.  The folder is locked while the process lives.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from .checkpoint import Checkpoint

SPARE_ROOM = 1 << 20
"""Bytes that a file may grow by beyond what is written."""


class Change(Protocol):
    """Something to be done to a file."""

    @property
    def nbytes(self) -> int:
        """Room that it takes, about."""


AnyChange = TypeVar("AnyChange", bound=Change)


class OutputError(OSError):
    """A file cannot be brought up to date: what it held before stands, and the work can be resumed from there."""

    resumable = True


class StandingFile(Generic[AnyChange]):
    """A file, the copy that will take its place, and the lock of both.

    Parameters
    ----------
    path : Path
        Where the file stands.
    write : callable
        Called with (path, changes): does the changes, in their order, to the file at that path.

    Raises
    ------
    BlockingIOError
        If another process, or this one, is writing the file.
    OSError
        If the folder cannot be written.
    """

    def __init__(self, path: Path, write: Callable[[Path, Sequence[AnyChange]], None]) -> None:
        self.path = path
        self._write = write
        self._folder = _hidden(path)
        self._lock: int | None = _locked(self._folder, path)
        self._number = 0
        self._draft: Path | None = None
        self._lag: list[AnyChange] = []
        # Where the two end without what stands behind them.
        self._draft_end = 0
        self._standing_end = 0
        self._put: tuple[int, ...] | None = None
        if path.exists():
            self._note_put(Checkpoint.begins(path))
        with suppress(OSError):
            for left in self._folder.iterdir():  # by a process that was killed
                left.unlink()

    def create(self, build: Callable[[Path], None], overwrite: bool) -> None:
        """Put the file there for the first time.

        Raises
        ------
        FileExistsError
            If there is a file and it may not be replaced.
        OSError
            If there is no room for it.
        """
        draft = self._next()
        try:
            self._require(0)
            build(draft)
        except (OSError, RuntimeError) as error:  # netCDF4 raises the latter
            raise OSError(*_reason(error), str(self.path)) from error
        if not overwrite:
            try:
                os.link(draft, self.path)  # unlike a rename, fails if the file exists
            except FileExistsError:
                raise FileExistsError(errno.EEXIST, "exists already", str(self.path)) from None
            except OSError:  # a file system without links
                if self.path.exists():
                    raise FileExistsError(errno.EEXIST, "exists already", str(self.path)) from None
            else:
                draft.unlink()
                self._note_put(None)
                return
        draft.replace(self.path)
        self._note_put(None)

    def publish(self, change: AnyChange, checkpoint: Checkpoint | None = None) -> None:
        """Do a change, and put the result in place at once.

        Raises
        ------
        OutputError
            If it cannot be done.
        """
        room = change.nbytes + (0 if checkpoint is None else checkpoint.nbytes)
        draft = self._draft
        try:
            self._require_own()
            if draft is None or not self._bring(draft, [*self._lag, change], room):
                self._require(room + self.path.stat().st_size)
                draft = self._next()
                shutil.copyfile(self.path, draft)
                os.truncate(draft, self._standing_end)
                self._write(draft, [change])
            end = draft.stat().st_size
            if checkpoint is not None:
                checkpoint.append_to(draft)
            spare = self._next()
            try:
                os.link(self.path, spare)
            except OSError:  # a file system without links: the next draft is a copy
                self._draft = None
            else:
                self._draft = spare
            draft.replace(self.path)
            self._draft_end = self._standing_end
            self._note_put(end)
        except (OSError, RuntimeError) as error:  # netCDF4 raises the latter
            self._draft = None
            if draft is not None:
                draft.unlink(missing_ok=True)
            number, reason = _reason(error)
            what = f"{reason}: the run stops, what the file holds is whole; go on with: meanfield resume {self.path}"
            raise OutputError(number, what, str(self.path)) from error
        self._lag = [change]

    def release(self) -> None:
        """Give up the lock and the copy; what stands stays."""
        if self._lock is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def _next(self) -> Path:
        self._number += 1
        return self._folder / str(self._number)

    def _note_put(self, end: int | None) -> None:
        self._put = _identity(self.path)
        self._standing_end = self.path.stat().st_size if end is None else end

    def _require_own(self) -> None:
        """Never replace a file that somebody else has put there."""
        with suppress(FileNotFoundError):
            if self._put is not None and self._put != _identity(self.path):
                raise OSError(errno.EEXIST, "has been replaced by another file")

    def _require(self, nbytes: int) -> None:
        """See that there is room on disk: a full one is to be told before HDF5 is in the middle of its work."""
        room = self._next()
        with room.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, nbytes + nbytes // 2 + SPARE_ROOM)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
            finally:
                room.unlink()

    def _bring(self, draft: Path, changes: Sequence[AnyChange], room: int) -> bool:
        """Bring a former standing file up to date; not while somebody who opened it then is still reading it."""
        if _held(draft):
            draft.unlink()
            return False
        self._require(room + sum(change.nbytes for change in changes[:-1]))
        os.truncate(draft, self._draft_end)
        self._write(draft, changes)
        return True


def _identity(path: Path) -> tuple[int, ...]:
    """What tells a file from others: the number of one that was removed is soon given to another."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def clear(path: Path) -> None:
    """Remove what a process that was killed has left beside a file, if there is any."""
    if _hidden(path).exists():
        with suppress(OSError):
            StandingFile(path, lambda path, changes: None).release()


def _reason(error: OSError | RuntimeError) -> tuple[int, str]:
    """Number and words for what went wrong with a file."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno, str(error.strerror)
    return errno.EIO, str(error)


def _hidden(path: Path) -> Path:
    """Folder beside a file."""
    name = path.name if len(os.fsencode(path.name)) < 240 else f"{zlib.crc32(os.fsencode(path.name)):08x}"
    return path.with_name(f".{name}.writing")


def _locked(folder: Path, path: Path) -> int:
    """Make a folder and lock it: a descriptor, on which the lock ends with the process at the latest."""
    while True:
        try:
            folder.mkdir(exist_ok=True)
            lock = os.open(folder, os.O_RDONLY)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise BlockingIOError(errno.EAGAIN, "is being written by another process", str(path)) from None
        except OSError:  # a file system without locks
            return lock
        with suppress(OSError):
            if os.path.samestat(os.fstat(lock), folder.stat()):
                return lock
        os.close(lock)  # another process has just finished and removed it


def _held(path: Path) -> bool:
    """Whether somebody holds a lock on a file, as HDF5 does while it reads."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
    return False
