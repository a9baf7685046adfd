"""The mean-field PDE of attention dynamics on the sphere, for every normalization scheme.

Public names are imported when first used, so that ``import meanfield`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "Case": "case",
    "solve": "run",
    "simulate": "ensemble",
    "open_run": "dataset",
    "compare": "comparison",
    "reconstruct": "reconstruction",
    "resume": "resumption",
}

__all__ = ["Case", "compare", "open_run", "reconstruct", "resume", "simulate", "solve"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"meanfield.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'meanfield' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
