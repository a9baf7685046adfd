"""What has become of the members of an ensemble, in its file and in its checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import Checkpoint
from .dataset import EnsembleFile
from .initial import TokenFile, Tokens
from .integrate import Cost, Moment, Outcome
from .members import Ensemble, Member, Rest, run_member
from .progress import Interrupt, Progress


class Ledger:
    """What has become of each member, written to the file as it is told, and what the rest of each depends on."""

    def __init__(self, ensemble: Ensemble, file: EnsembleFile) -> None:
        self.ensemble = ensemble
        self.file = file
        self.bar = Progress("", 0.0, shown=False)
        self.final = ensemble.case.time.final
        self.members = ensemble.members
        self.outcomes: dict[Member, Outcome] = {}
        self.rests: dict[Member, Rest] = {}
        self.reached = dict.fromkeys(ensemble.members, 0.0)
        self._begin = time.monotonic()

    @property
    def waiting(self) -> list[Member]:
        """Members that are not done, in the order of the case."""
        return [member for member in self.members if member not in self.outcomes]

    def run(self, member: Member, threads: int, interrupt: Interrupt) -> Outcome:
        """Run a member in this process."""

        def keep(rest: Rest) -> str | None:
            self.keep(member, rest)
            return interrupt()

        record, report = partial(self.record, member), partial(self.reach, member)
        begin = self.rests.get(member)
        outcome = run_member(self.ensemble, member, record, report, keep, begin, threads)
        self.close(member, outcome)
        return outcome

    def record(self, member: Member, index: int, values: Mapping[str, Any]) -> None:
        """Write one record of a member."""
        self.file.write(member.count, member.seed, index, values)

    def reach(self, member: Member, t: float) -> None:
        """Note where a member has come to, and show it."""
        self.reached[member] = t
        self.bar.update(sum(self.reached.values()), f"{len(self.outcomes)} of {len(self.members)} members")

    def keep(self, member: Member, rest: Rest) -> None:
        """Note what the rest of a member depends on; the file takes it when it is due."""
        self.rests[member] = rest
        self.file.keep(self._checkpoint)

    def take(self, member: Member, kind: str, *content: Any) -> None:
        """Do what a process asks for its member."""
        actions: dict[str, Callable[..., None]] = {
            "record": self.record,
            "reach": self.reach,
            "keep": self.keep,
            "close": self.close,
        }
        actions[kind](member, *content)

    def close(self, member: Member, outcome: Outcome) -> None:
        """Note how a member ended; one that was interrupted stays open."""
        if outcome.status == "interrupted":
            return
        if outcome.moment is None:
            self.rests.pop(member, None)
        self.outcomes[member] = replace(outcome, moment=None, state=np.empty(0))
        self.file.close_member(member.count, member.seed, outcome.status, outcome.stop_time, outcome.evaluations)
        self.reach(member, self.final)
        self.file.keep(self._checkpoint)

    def lose(self, member: Member, exit_code: int | None) -> None:
        """Close a member whose process has died; it may go on from where it was last kept."""
        rest = self.rests.get(member)
        spent = Cost() if rest is None else rest.moment.spent
        reason = f"its process died (exit code {exit_code})"
        numbers = (spent.evaluations, spent.steps, spent.seconds)
        moment = None if rest is None else rest.moment
        self.close(member, Outcome("failed", reason, self.reached[member], *numbers, moment=moment))

    def finish(self, reason: str | None, path: Path | None) -> None:
        """Write how the ensemble ended, or why it was interrupted."""
        summary = self._summary()
        waiting = len(self.waiting)
        if waiting:
            summary["status"] = "running"
            summary["status_message"] = f"{reason} with {waiting} of {len(self.members)} members to go"
            if path is not None:
                summary["status_message"] += f"; go on with: meanfield resume {path}"
        seconds = time.monotonic() - self._begin
        checkpoint = self._checkpoint() if waiting or self.rests else None
        self.file.finish({**summary, "wall_seconds": seconds}, checkpoint)

    def _summary(self) -> dict[str, Any]:
        """Closing attributes of the file."""
        failed = {member: outcome for member, outcome in self.outcomes.items() if outcome.status != "completed"}
        message = f"{len(self.members) - len(failed)} of {len(self.members)} members reached t = {self.final:g}"
        shown = [f"{member}: {failed[member].message}" for member in sorted(failed)[:8]]
        more = [f"and {len(failed) - len(shown)} more"] if len(failed) > len(shown) else []
        ends = [outcome.stop_time for outcome in self.outcomes.values()]
        return {
            "stop_time": min([*ends, *(self.reached[member] for member in self.waiting)]),
            "tendency_evaluations": sum(outcome.evaluations for outcome in self.outcomes.values()),
            "steps": sum(outcome.steps for outcome in self.outcomes.values()),
            "status_message": "; ".join([message, *shown, *more]),
            "status": "failed" if failed else "completed",
        }

    def _checkpoint(self) -> Checkpoint:
        closed = [
            [member.count, member.seed, each.status, each.message, each.stop_time, *astuple(each.spent)]
            for member, each in self.outcomes.items()
        ]
        rests: list[Any] = []
        arrays: dict[str, Any] = {}
        for member, rest in self.rests.items():
            plain, parts = rest.moment.parts()
            rests.append([member.count, member.seed, plain, rest.random])
            arrays |= {f"{member.count}/{member.seed}/{name}": array for name, array in parts.items()}
        if isinstance(self.ensemble.case.initial, TokenFile) and isinstance(self.ensemble.law, Tokens):
            arrays["tokens"] = self.ensemble.law.points
        seconds = time.monotonic() - self._begin
        return Checkpoint({"outcomes": closed, "rests": rests, "seconds": seconds}, arrays)

    def recall(self, checkpoint: Checkpoint) -> None:
        """Take in what another ledger of this ensemble had; members that stopped at a limit are open again."""
        for count, seed, plain, random in checkpoint.facts["rests"]:
            moment = Moment.assembled(plain, checkpoint.part(f"{count}/{seed}/"))
            self.rests[Member(count, seed)] = Rest(moment, random)
            self.reached[Member(count, seed)] = moment.t
        for count, seed, status, message, stop_time, *spent in checkpoint.facts["outcomes"]:
            member = Member(count, seed)
            if member in self.rests:
                self.file.close_member(count, seed, "running", math.nan, 0)
            else:
                self.outcomes[member] = Outcome(status, message, stop_time, *spent)
                self.reached[member] = self.final
        self._begin -= checkpoint.facts["seconds"]
