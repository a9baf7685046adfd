"""Checks of parameters: what cannot be is refused in one line that begins with the key."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any


def checked_number(key: str, value: Any, low: float = -math.inf, high: float = math.inf, strict: bool = False) -> float:
    """A finite real number in [low, high], or in [low, high) if ``strict``, as a float."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{key}: must be a finite number, got {value!r}")
    if value < low:
        raise ValueError(f"{key}: must be >= {low:g}, got {value}")
    if value > high or (strict and value == high):
        raise ValueError(f"{key}: must be {'<' if strict else '<='} {high:g}, got {value}")
    return float(value)


def checked_integer(key: str, value: Any, low: int) -> int:
    """An integer ≥ low; a float that is one will do."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < low:
        raise ValueError(f"{key}: must be an integer >= {low}, got {value!r}")
    return int(value)


def checked_sequence(key: str, values: Any) -> tuple[Any, ...]:
    """A list that is not empty, as a tuple."""
    listed = isinstance(values, Iterable) and not isinstance(values, str | bytes | dict)
    if not listed or not (frozen := tuple(values)):
        raise ValueError(f"{key}: must be a list that is not empty, got {values!r}")
    return frozen


def checked_numbers(key: str, values: Any, low: float = -math.inf, high: float = math.inf) -> tuple[float, ...]:
    """A list of finite numbers in [low, high]."""
    return tuple(checked_number(key, value, low, high) for value in checked_sequence(key, values))


def checked_direction(key: str, vector: Any) -> tuple[float, ...]:
    """A vector that is not zero."""
    numbers = checked_numbers(key, vector)
    if len(numbers) < 2 or not any(numbers):
        raise ValueError(f"{key}: must be a non-zero vector of length >= 2, got {list(numbers)}")
    return numbers
