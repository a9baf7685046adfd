"""Processes that share the members of an ensemble, and what they tell through their pipes."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from .dataset import LONGEST_SILENCE
from .integrate import Moment, Outcome
from .ledger import Ledger
from .members import Ensemble, Member, Rest, run_member
from .progress import Interrupt

SECONDS_BETWEEN_REPORTS = 0.5
"""How often a process tells where its member has come to."""

STOP = "stop"
"""Asks a process to give its member back where it is."""


class _Worker:
    """A process that runs one member after another, and the pipe to it."""

    def __init__(self, ensemble: Ensemble, threads: int) -> None:
        # Spawned, not forked: a fork after OpenMP has started hangs.
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, ensemble, threads), daemon=True)
        self.process.start()
        other.close()  # now the pipe ends when the process does
        self.ready = False
        self.member: Member | None = None

    def give(self, member: Member | None, rest: Rest | None = None) -> None:
        """Hand over the next member and where it goes on from, or None: there are no more."""
        self.member = member
        self._send(None if member is None else (member, rest))

    def stop(self) -> None:
        """Ask for the member to be given back where it is."""
        self._send(STOP)

    def _send(self, what: object) -> None:
        with suppress(OSError):  # a process that is gone is noticed when its pipe is read
            self.connection.send(what)

    def end(self) -> None:
        self.connection.close()
        self.process.kill()  # nothing of it is needed, and it does not heed milder signals
        self.process.join()


def share(ledger: Ledger, number: int, threads: int, interrupt: Interrupt) -> str | None:
    """Let processes take the members one by one, the largest first, and write what they send.

    A process waits until its record is read, so that no more than one per process is ever held.  Returns why they
    were interrupted, if they were.
    """
    reason = None
    waiting = sorted(ledger.waiting, key=lambda member: (member.count, -member.seed))
    workers = [_Worker(ledger.ensemble, threads) for _ in range(number)]
    try:
        while workers:
            if reason is None and (reason := interrupt()) is not None:
                waiting.clear()
                for worker in workers:
                    worker.stop()
            for connection in wait([worker.connection for worker in workers], SECONDS_BETWEEN_REPORTS):
                worker = next(worker for worker in workers if worker.connection is connection)
                try:
                    kind, *content = worker.connection.recv()
                except (EOFError, OSError):  # the process has died: its member failed, the others go on
                    workers.remove(worker)
                    worker.end()
                    if worker.member is not None:
                        ledger.lose(worker.member, worker.process.exitcode)
                    if waiting and worker.ready:
                        workers.append(_Worker(ledger.ensemble, threads))
                    continue
                if kind == "ready":
                    worker.ready = True
                elif worker.member is not None:
                    ledger.take(worker.member, kind, *content)
                if kind in ("ready", "close"):
                    if waiting:
                        member = waiting.pop()
                        worker.give(member, ledger.rests.get(member))
                    else:
                        workers.remove(worker)
                        worker.give(None)
                        worker.process.join()
                        worker.connection.close()
        if waiting:
            raise RuntimeError(
                "no process can be started from the main script: put its work under "
                'if __name__ == "__main__":, or give workers=1'
            )
    finally:
        for worker in workers:
            worker.end()
    return reason


def _serve(connection: Connection, ensemble: Ensemble, threads: int) -> None:
    """Run the members that come through the pipe; what a process does."""
    for number in (signal.SIGINT, signal.SIGTERM):  # an interruption is for the parent, who asks for members back
        signal.signal(number, signal.SIG_IGN)
    link = _Link(connection)
    with suppress(EOFError, OSError):  # the parent is gone
        connection.send(("ready",))
        while (task := connection.recv()) is not None:
            if task == STOP:  # the member was just done
                continue
            member, begin = task
            outcome = run_member(ensemble, member, link.record, link.report, link.keep, begin, threads)
            link.close(outcome)


class _Link:
    """What a process tells of its member, and how often."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest: Rest | None = None
        self._reported = self._kept = time.monotonic()
        self._recorded = False

    def record(self, index: int, values: Mapping[str, Any]) -> None:
        self._recorded = True
        self._connection.send(("record", index, values))

    def report(self, t: float) -> None:
        if time.monotonic() - self._reported > SECONDS_BETWEEN_REPORTS:
            self._reported = time.monotonic()
            self._connection.send(("reach", t))

    def keep(self, rest: Rest) -> str | None:
        self._rest = rest
        since = time.monotonic() - self._kept
        if since > LONGEST_SILENCE or (self._recorded and since > SECONDS_BETWEEN_REPORTS):
            self._send_rest()
        if self._connection.poll():
            self._connection.recv()  # while a member is running, there is but one thing to be asked
            return "interrupted"
        return None

    def close(self, outcome: Outcome) -> None:
        if outcome.moment is not None:
            self._send_rest()
        self._rest = None
        self._connection.send(
            ("close", replace(outcome, moment=outcome.moment and Moment(outcome.stop_time, np.empty(0))))
        )

    def _send_rest(self) -> None:
        self._kept, self._recorded = time.monotonic(), False
        self._connection.send(("keep", self._rest))
