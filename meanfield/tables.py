"""The tables of a case: every key, declared once in the class of its table, with type, range and default.

The parameters of a scheme or of a law are the dataclass fields of its registered class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import partial
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    InstanceOf,
    Tag,
    ValidationInfo,
    field_validator,
)

from .initial import LAWS, Law
from .kernels import LARGEST_BETA
from .matrices import KINDS
from .normalization import SCHEMES, Scheme
from .zonal import LARGEST_DIMENSION

# ---- numbers and matrices ----------------------------------------------------------------------------------


def _listed(item: object) -> object:
    return (item,) if type(item) is int else item


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(items)) < len(items):
        raise ValueError("not distinct")
    return items


def shape_of_operator(given: Any) -> str:
    """How matrices are given: drawn, one for each head, or one."""
    if isinstance(given, dict):
        return "drawn"
    first = given[0] if isinstance(given, tuple) and given else None
    return "heads" if isinstance(first, tuple) and first and isinstance(first[0], tuple) else "matrix"


def _none_if_identity(operator: Any) -> Any:
    """One form for one thing: a single head is a matrix, and the identity is None."""
    if isinstance(operator, tuple) and len(operator) == 1 and shape_of_operator(operator) == "heads":
        operator = operator[0]
    if not isinstance(operator, tuple) or shape_of_operator(operator) == "heads":
        return operator
    if {len(row) for row in operator} != {len(operator)}:
        return operator
    return None if np.array_equal(operator, np.eye(len(operator))) else operator


class Table(BaseModel):
    """Keys with strict types, none unknown, no nan or inf; immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Drawn(Table):
    """Random matrices, ``{draw = "goe", seed = 0}``: a kind of `meanfield.matrices` and a seed."""

    draw: Literal[KINDS]  # type: ignore[valid-type]
    seed: int = Field(0, ge=0, description="an integer >= 0")


Matrix: TypeAlias = tuple[tuple[float, ...], ...]
Operator: TypeAlias = Annotated[
    Annotated[
        Annotated[Matrix, Tag("matrix")] | Annotated[tuple[Matrix, ...], Tag("heads")] | Annotated[Drawn, Tag("drawn")],
        Discriminator(shape_of_operator),
    ]
    | None,
    AfterValidator(_none_if_identity),
    Field(description="a d×d list of rows of finite numbers, a list of such, or a table {draw, seed}"),
]
NonNegative: TypeAlias = Annotated[float, Field(ge=0, description="a finite number >= 0")]
Positive: TypeAlias = Annotated[float, Field(gt=0, description="a finite number > 0")]
Count: TypeAlias = Annotated[int, Field(ge=1, description="an integer >= 1")]
Switch: TypeAlias = Annotated[bool, Field(description="true or false")]


# ---- the tables --------------------------------------------------------------------------------------------


class Heading(Table):
    """Keys above the first table."""

    title: str | None = Field(None, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", description="one line of text")
    name: str | None = Field(None, pattern=r"^[^/\\\x00-\x1f\x7f-\x9f]+$", description="a file name without suffix")


class Attention(Table):
    """``[attention]``: A(θ) = Σ V ∫ y e^{β⟨Qθ,Ky⟩} μ(dy), for softmax divided by ∫ e^{β⟨Qθ,Ky⟩} μ(dy).

    The sum is over heads.  `VARIANTS` are written out only where they are not as by default.
    """

    VARIANTS: ClassVar = ("heads", "layers", "causal", "balanced", "rotary")

    beta: float = Field(
        ge=-LARGEST_BETA, le=LARGEST_BETA, description=f"a finite number with |beta| <= {LARGEST_BETA:g}"
    )
    kernel: Literal["softmax", "unnormalized"] = "softmax"
    query_key: Operator = None  # QᵀK; None is the identity, and an identity that is written out becomes None
    value: Operator = None  # V, likewise
    heads: Count = 1  # how many are drawn
    layers: Count = 1  # how often, at equal intervals of time
    causal: Switch = False  # a token sees itself and those before it
    balanced: Switch = False  # doubly stochastic: every token is seen equally
    rotary: bool | Positive | Annotated[tuple[float, ...], Field(min_length=1)] = Field(
        False, description="true, false, the base of the frequencies, or a list of d/2 of them"
    )
    noise: NonNegative = 0.0  # diffusivity κ on the sphere


class Normalization(Table):
    """``[normalization]``: the scheme, built from its own keys, and the radius r₀ of every token."""

    scheme: InstanceOf[Scheme]
    initial_radius: Positive = 1.0


class Initial(Table):
    """``[initial]``: the law, built from its own keys."""

    law: InstanceOf[Law]


class Space(Table):
    """``[space]``: the sphere S^{d−1}, the circle S¹, or densities on S^{d−1} symmetric about an axis."""

    kind: Literal["sphere", "circle", "zonal"] = "sphere"
    dimension: int = Field(
        default_factory=lambda valid: 2 if valid.get("kind") == "circle" else 3,
        ge=2,
        description=f"an integer >= 2; 2 on the circle, at most {LARGEST_DIMENSION} if zonal",
    )

    @field_validator("dimension")
    @classmethod
    def _suits_kind(cls, dimension: int, info: ValidationInfo) -> int:
        if not {"circle": dimension == 2, "zonal": dimension <= LARGEST_DIMENSION}.get(info.data.get("kind", ""), True):
            raise ValueError("does not suit the kind of space")
        return dimension


class Time(Table):
    """``[time]``: last time, and how many equidistant records (both ends included) or at which times."""

    final: Positive
    snapshots: (
        Annotated[int, Field(ge=2, le=10**6)] | Annotated[tuple[float, ...], Field(min_length=1, max_length=10**6)]
    ) = Field(51, description="an integer from 2 to 1000000 or increasing times within [0, final]")

    @property
    def times(self) -> tuple[float, ...]:
        """Times of the records: the first is 0.0 and the last is `final`, bitwise."""
        if isinstance(self.snapshots, int):
            intervals = self.snapshots - 1  # counted in integers, so that no rounding adds up
            inner = [k * self.final / intervals for k in range(1, intervals)]
        else:
            inner = [t for t in self.snapshots if t not in (0.0, self.final)]
        return (0.0, *inner, self.final)


class Solver(Table):
    """``[solver]``: how the continuum is solved, in spherical harmonics or by labelled tokens."""

    method: Literal["auto", "spectral", "lagrangian"] = "auto"
    lmax: Count | Literal["auto"] = 63
    rtol: float = Field(1e-9, ge=1e-14, lt=1, description="a number from 1e-14 to below 1")
    atol: NonNegative = 1e-9  # of a whole step, in the L² norm on the sphere
    absorbing_layer: Literal["auto", "off"] = "auto"  # damping of the highest degrees
    max_steps: Count = 100_000
    max_wall_seconds: Positive | None = None  # None is no limit


class Particles(Table):
    """``[particles]``: for each number of tokens an ensemble of `seeds` members, all from one root `seed`."""

    count: Annotated[tuple[Count, ...], BeforeValidator(_listed), AfterValidator(_distinct)] = Field(
        (4096,), min_length=1, description="an integer >= 1 or a list of distinct ones"
    )
    seeds: Count = 8
    seed: int = Field(0, ge=0, description="an integer >= 0")
    attention: Literal["auto", "fast", "dense"] = "auto"  # non-uniform transforms or direct summation
    update: Literal["flow", "layers"] = "flow"  # the differential equation or the layers of a network
    step: Positive | None = None  # η of the layers, by default 1 as in a real network; of a noisy flow, 0.01


class Output(Table):
    """``[output]``: fields on the solver's grid or on a regular one with both poles, beside the spectrum.

    What a run does not have is left out: "radius" under most schemes, and "flow" but on S².  The latter is what
    `reconstruct` needs: the low degrees of the density at every step.
    """

    grid: Literal["gauss"] | tuple[Annotated[int, Field(ge=3)], Annotated[int, Field(ge=4)]] = Field(
        "gauss", description="'gauss' or [nlat >= 3, nlon >= 4]"
    )
    fields: Annotated[tuple[Literal["density", "radius", "flow"], ...], AfterValidator(_distinct)] = Field(
        ("density", "radius", "flow"), description="a list of 'density', 'radius' and 'flow'"
    )


class Sweep(Table):
    """``[sweep]``: keys of the case, each with a list of values, in all combinations or side by side.

    In the file the keys stand beside ``mode`` and ``run``, as ``"attention.beta" = [1, 4]`` or in tables of their own.
    """

    mode: Literal["product", "zip"] = "product"
    run: Literal["solve", "simulate"] = "solve"
    lists: tuple[tuple[str, tuple[Any, ...]], ...]

    @property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """The values of each key, ``section.key``."""
        return dict(self.lists)

    @property
    def changes(self) -> tuple[dict[str, Any], ...]:
        """What each member changes in the case, the last key the fastest."""
        combine = product if self.mode == "product" else partial(zip, strict=True)
        return tuple(dict(zip(self.values, member, strict=True)) for member in combine(*self.values.values()))


TABLES: dict[str, type[Table]] = {
    "attention": Attention,
    "normalization": Normalization,
    "space": Space,
    "initial": Initial,
    "time": Time,
    "solver": Solver,
    "particles": Particles,
    "output": Output,
}
# A key that names a registered class, whose dataclass fields are further keys of the same table.
CHOICES: dict[str, tuple[str, Mapping[str, type]]] = {
    "normalization": ("scheme", SCHEMES),
    "initial": ("law", LAWS),
}


def keys_of(kind: type) -> dict[str, bool]:
    """Parameters of a scheme or law, and whether each must be given."""
    return {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind) if f.init}


def parameters_of(chosen: Scheme | Law) -> dict[str, Any]:
    """Parameters of a scheme or law, and what they are."""
    return {key: getattr(chosen, key) for key in keys_of(type(chosen))}
