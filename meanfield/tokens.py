"""Tokens from files: .npy, .csv and .nc arrays of shape (N, D), or the last record of an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dataset import open_run, open_variables
from .initial import Tokens

Floats = NDArray[np.float64]

FORMATS = (".npy", ".csv", ".nc")
TOKEN_VARIABLES = ("tokens", "position")
"""Names under which a .nc file may hold tokens beside other variables."""


def read_tokens(path: Path) -> Floats:
    """Tokens (N, D) of a file; leading axes of a larger array (seeds, say) are merged into N.

    A .csv file may have one line of names above the numbers.  A .nc file holds tokens in the variable ``tokens`` or
    ``position`` (of which the last record is taken, if it has times), or in the only two-dimensional one.

    Raises
    ------
    ValueError
        One line that names the file and what is wrong with it.
    """
    readers = {".npy": _read_npy, ".csv": _read_csv, ".nc": _read_nc}
    if path.suffix not in readers:
        raise ValueError(f"{path}: expected a file ending in {', '.join(FORMATS)}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    tokens = readers[path.suffix](path)
    if tokens.dtype.kind not in "iuf" or tokens.ndim < 2 or tokens.size == 0:
        raise ValueError(f"{path}: expected real numbers of shape (N, D), got {tokens.dtype} of shape {tokens.shape}")
    return np.asarray(tokens.reshape(-1, tokens.shape[-1]), dtype=np.float64)


def token_law(path: Path, degree: int) -> Tokens:
    """Tokens of a file as an initial law; those of more than three dimensions are projected.

    Raises
    ------
    ValueError
        One line that begins with the key "path" and names the file.
    """
    try:
        return Tokens(read_tokens(path), degree=degree)
    except ValueError as error:
        fault = str(error).removeprefix(f"{path}: ").removeprefix("points: ")
        raise ValueError(f"path: {path}: {fault}") from error


def is_run(path: Path) -> bool:
    """Whether a file is a density run of this package, from whose last record another may start."""
    if path.suffix != ".nc" or not path.is_file():
        return False
    try:
        with open_run(path) as run:
            return "density_lm" in run and run.sizes.get("time", 0) > 0
    except ValueError:
        return False


def _read_npy(path: Path) -> NDArray[Any]:
    try:
        # Mapped first: a header that promises more than the file holds is refused before memory is taken, and so are
        # archives and pickles.
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except (ValueError, OSError, OverflowError) as error:
        raise ValueError(f"{path}: not a NumPy array file ({_reason(error)})") from error


def _read_csv(path: Path) -> NDArray[Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not UTF-8 text ({_reason(error)})") from error
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and not _numeric(lines[0]):
        lines = lines[1:]
    if not lines:
        raise ValueError(f"{path}: holds no numbers")
    try:
        return np.loadtxt(lines, delimiter=",", ndmin=2)
    except ValueError as error:
        raise ValueError(
            f"{path}: expected rows of comma-separated numbers, all of one length ({_reason(error)})"
        ) from error


def _read_nc(path: Path) -> NDArray[Any]:
    with open_variables(path) as dataset:
        names = [name for name in TOKEN_VARIABLES if name in dataset]
        names = names or [str(name) for name, variable in dataset.data_vars.items() if variable.ndim == 2]
        if len(names) != 1:
            raise ValueError(
                f"{path}: expected a variable named {' or '.join(TOKEN_VARIABLES)}, or one of two "
                f"dimensions only, got {', '.join(map(str, dataset.data_vars)) or 'none'}"
            )
        tokens = dataset[names[0]]
        return (tokens.isel(time=-1) if "time" in tokens.dims else tokens).to_numpy()


def _numeric(line: str) -> bool:
    try:
        return bool([float(cell) for cell in line.split(",")])
    except ValueError:
        return False


def _reason(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
