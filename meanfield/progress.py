"""Progress of long work on stderr, a bar with time left on a terminal, plain lines elsewhere; and its interruption.

The only module that imports rich.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeAlias

SECONDS_BETWEEN_LINES = 10.0

Interrupt: TypeAlias = Callable[[], str | None]
"""Asked between steps: why the work is to stop there, or None."""


def never() -> None:
    """Nothing interrupts the work."""


class Progress:
    """Context in which `update` tells how far work that ends at ``total`` has come.

    Parameters
    ----------
    label : str
        What is being done.
    total : float
        Where the work ends.
    shown : bool
        Whether to tell anything at all.
    """

    def __init__(self, label: str, total: float, shown: bool = True) -> None:
        self.label = label
        self.total = total
        self.shown = shown
        self._bar = _terminal_bar(label, total) if shown and sys.stderr.isatty() else None
        self._begin = self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, position: float, note: str = "") -> None:
        """Tell that the work has come to ``position``."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=position, note=note)
        elif self.shown and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            elapsed = self._last_line - self._begin
            left = elapsed * (self.total - position) / position if position > 0.0 else float("nan")
            print(
                f"{self.label}: {position:.4g} of {self.total:.4g} {note}, {elapsed:.0f} s elapsed, "
                f"about {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )


def _terminal_bar(label: str, total: float):  # type: ignore[no-untyped-def]  # rich is imported only on a terminal
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    bar.add_task(label, total=total, note="")
    return bar
