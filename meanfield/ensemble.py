"""Ensembles of particle runs: every member of a case, in parallel processes, streamed to one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from .case import Case
from .checkpoint import Checkpoint
from .crew import share
from .dataset import EnsembleFile, open_run
from .engines import interaction_engine
from .initial import Law, TokenFile, Tokens
from .ledger import Ledger
from .marching import layer_steps
from .members import Ensemble, Member
from .progress import Interrupt, Progress, never
from .space import Floats
from .threads import available_threads
from .tokens import is_run, token_law
from .variables import axis_names

WORTH_PROCESSES = 10.0
"""Processes take a few seconds to start: they share work of more than this many, as it is guessed beforehand."""


def simulate(
    case: Case,
    output: str | os.PathLike[str] | None = None,
    progress: bool = False,
    force: bool = False,
    workers: int | None = None,
    interrupt: Interrupt = never,
) -> xarray.Dataset | xarray.DataTree:
    """Run the finite-N particles of a case.

    Members differ in the tokens that they draw from the initial law and in the noise.  Of a law that is itself one
    cloud, and without noise, all members are the same, and one seed is enough.

    Parameters
    ----------
    case : Case
        What to run.
    output : path, optional
        netCDF file to stream to; without it all records are kept in memory.
    progress : bool
        Whether to show progress on stderr.
    force : bool
        Whether an existing ``output`` may be replaced.
    workers : int, optional
        Processes that share the members, by default one per core if the work is worth it; the result does not depend
        on it, to the last bit.  With 1, or for a single member, everything runs in this process.  A script that
        starts others must have its work under ``if __name__ == "__main__":``, as always in Python.
    interrupt : callable, optional
        Asked after every step; a reason that it returns ends all members there, to be resumed.

    Returns
    -------
    xarray.Dataset or xarray.DataTree
        The run, described in its own attributes; of a file, opened lazily.  With several numbers of tokens a tree with
        a group for each, of that name.  ``attrs["status"]`` is "completed", or "failed" if a member failed: then
        ``member_status`` tells which, and the records that it lacks are NaN.  After an interruption it is "running".

    Raises
    ------
    ValueError
        Before any work, if the case cannot be run; one line, with the key.
    FileExistsError
        Before any work, if ``output`` exists and ``force`` is not given.
    OSError
        If ``output`` cannot be written, or not any longer: what it held then stands, for `meanfield.resume`.
    RuntimeError
        If processes cannot be started from the main script.
    """
    path = None if output is None else Path(output)
    if path is not None and path.exists() and not force:
        raise FileExistsError(f"{path}: exists already (force replaces it)")
    _check_workers(workers)
    ensemble = prepare(case)
    file = _create_file(ensemble, path, force)
    return _carry(Ledger(ensemble, file), path, progress, workers, interrupt)


def go_on(
    case: Case,
    path: Path,
    file: EnsembleFile,
    checkpoint: Checkpoint,
    progress: bool,
    workers: int | None,
    interrupt: Interrupt,
) -> xarray.Dataset | xarray.DataTree:
    """Carry the members of a file on from its checkpoint; the same numbers as if they had never stopped.

    Parameters
    ----------
    case : Case
        That of the ensemble; its limits may be new.
    path : Path
        Where it stands.
    file : EnsembleFile
        Its file, reopened.
    checkpoint : Checkpoint
        What stood behind it.
    progress, workers, interrupt
        As in `simulate`.

    Raises
    ------
    OSError
        If the file cannot be written any longer.
    """
    _check_workers(workers)
    ensemble = prepare(case, checkpoint.arrays.get("tokens"))
    ledger = Ledger(ensemble, file)
    ledger.recall(checkpoint)
    file.go_on(case.to_json(), min(ledger.reached.values()))
    return _carry(ledger, path, progress, workers, interrupt)


def _check_workers(workers: int | None) -> None:
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers: must be an integer >= 1 or None, got {workers!r}")


def _carry(
    ledger: Ledger, path: Path | None, progress: bool, workers: int | None, interrupt: Interrupt
) -> xarray.Dataset | xarray.DataTree:
    """Run what members are left, and close the file."""
    ensemble, members = ledger.ensemble, ledger.waiting
    cores = available_threads()
    if workers is None:
        workers = cores if ensemble.seconds() > WORTH_PROCESSES else 1
    workers = min(workers, len(members))
    try:
        with Progress(ensemble.case.name, ensemble.case.time.final * len(ensemble.members), shown=progress) as bar:
            ledger.bar = bar
            reason = None
            if workers > 1:
                reason = share(ledger, workers, max(1, cores // workers), interrupt)
            else:
                for member in members:
                    outcome = ledger.run(member, cores, interrupt)
                    if outcome.status == "interrupted":
                        reason = outcome.message
                        break
        ledger.finish(reason, path)
    finally:
        ledger.file.release()
    return ledger.file.result() if path is None else open_run(path)


# ---- from a case to members ----------------------------------------------------------------------------------


def prepare(case: Case, tokens: Floats | None = None) -> Ensemble:
    """Check a case, read its tokens unless they are given, and choose how attention is computed.

    Raises
    ------
    ValueError
        One line, with the key, if the particles of the case cannot be run.
    """
    particles, interaction = case.particles, case.interaction
    if particles.update == "layers" and case.attention.noise > 0.0:
        raise ValueError(f'attention.noise: must be 0 with particles.update = "layers", got {case.attention.noise:g}')
    law, origin = _law(case, tokens)
    engines = {}
    for count in particles.count:
        try:
            engine = interaction_engine(interaction, count, particles.attention)
        except ValueError as error:
            home = "particles" if str(error).startswith("attention:") else "attention"
            raise ValueError(f"{home}.{error}") from error
        engines[count] = engine.name
    ensemble = Ensemble(case, law, interaction, engines, origin)
    for count in particles.count:
        try:
            ensemble.sample(Member(count, 0))
        except ValueError as error:
            key, _, rest = str(error).partition(":")
            home = {"count": "particles", "dimension": "space"}.get(key, "initial")
            raise ValueError(f"{home}.{key}:{rest}") from error
    if particles.update == "layers":
        number, drawn = len(list(layer_steps(case.time.times, ensemble.step))), case.attention.layers
        if number % drawn:
            raise ValueError(
                'attention.layers: with particles.update = "layers" must divide their number, '
                f"time.final / particles.step = {number}, got {drawn}"
            )
    return ensemble


def _law(case: Case, known: Floats | None) -> tuple[Law, dict[str, Any]]:
    """Initial law with the tokens of a file read, and facts for the output."""
    law = case.initial
    if not isinstance(law, TokenFile):
        return law, {}
    if known is not None:
        again = Tokens(known, degree=law.degree)
        object.__setattr__(again, "points", known)  # to normalize them once more would change last bits
        return again, {}
    path = Path(law.path)
    if is_run(path):
        raise ValueError(f"initial.path: must hold tokens for a particle run, got the density run {path}")
    try:
        tokens = token_law(path, law.degree)
    except ValueError as error:
        raise ValueError(f"initial.{error}") from error
    return tokens, {"initial_tokens": len(tokens.points), "variance_kept": tokens.variance_kept}


def _create_file(ensemble: Ensemble, path: Path | None, overwrite: bool) -> EnsembleFile:
    case = ensemble.case
    problem = ensemble.problem(min(ensemble.engines))
    names = ["position", "mass", "moment1", "moment2", "order_parameter", "close_pairs"]
    names += ["radius"] if problem.scheme.reads_radius else []
    names += ["energy", "energy_rate"] if problem.engine.potential else []
    dimension = case.space.dimension
    axes = axis_names(dimension)
    weights = {count: np.full(count, 1.0 / count) for count in ensemble.engines}
    engines = ", ".join(f"{name} for N = {count}" for count, name in ensemble.engines.items())
    space = {"space_kind": case.space.kind, "space_dimension": dimension}
    attributes = {**space, **ensemble.origin, "attention_engine": engines}
    times, seeds = case.time.times, case.particles.seeds
    return EnsembleFile(path, case.title, case.to_json(), times, seeds, axes, weights, names, attributes, overwrite)
