"""From a case to what is predicted of it: its dynamics, numbers for a table, and its stationary states."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from numpy.typing import ArrayLike, NDArray

from .case import Case
from .initial import Equiangular, ParticleCloud, Uniform
from .predictions import Model, Prediction, predictions
from .stationary import stable_states, stationary_states

__all__ = ["forecast", "model_of", "stationary_orders", "tokens_of"]


def model_of(case: Case) -> Model:
    """Dynamics of a case.

    Raises
    ------
    ValueError
        If attention is none of which theory knows: general matrices, heads, or a variant.
    """
    interaction, scheme = case.interaction, case.normalization
    if not interaction.plain or interaction.attention.value != 1.0:
        raise ValueError(
            "attention: linear theory expects query_key and value to be the identity, and no variant: of others "
            "nothing is known beforehand"
        )
    attention, dimension = interaction.attention, case.space.dimension
    return Model(
        scheme.scheme, attention.beta, attention.kernel, case.attention.noise, dimension, scheme.initial_radius
    )


def tokens_of(case: Case, count: int | None = None) -> int | None:
    """How many tokens make the first clusters, or stand at equal angles: ``count``, by default the fewest of a case."""
    if isinstance(case.initial, ParticleCloud):
        return case.initial.count
    if isinstance(case.initial, Uniform | Equiangular):
        return min(case.particles.count) if count is None else count
    return None


def forecast(
    case: Case, power: ArrayLike | None = None, circle_lm: NDArray[Any] | None = None, count: int | None = None
) -> list[Prediction]:
    """Numbers that are known of a case before it is run; see `meanfield.predictions.predictions`.

    Parameters
    ----------
    case : Case
        What is to be run.
    power : array_like, shape (lmax + 1,), optional
        Power of each degree of its initial density; that of the uniform law is read from its tokens.
    circle_lm : ndarray, optional
        Spectrum of its initial density on the circle.
    count : int, optional
        Number of tokens, where the case has several.
    """
    if isinstance(case.initial, Uniform):
        power = circle_lm = None
    return predictions(model_of(case), case.initial, tokens_of(case, count), power, circle_lm, final=case.time.final)


def stationary_orders(model: Model) -> list[tuple[float, bool]]:
    """Order parameter of each stationary state of noise that is known, and whether it is stable."""
    if model.noise == 0.0 or model.scheme.name != "post-ln":
        return []
    with suppress(ValueError):  # they are too sharp
        arguments = model.beta, model.noise, model.kernel, model.dimension
        stable = {state.order_parameter for state in stable_states(*arguments)}
        found = {state.order_parameter for state in stationary_states(*arguments)}
        return [(abs(order), order in stable) for order in sorted(found, key=abs)]
    return []
