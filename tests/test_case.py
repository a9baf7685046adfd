"""Cases: what is accepted, what is refused and in which words; and that nothing is lost in a file."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meanfield.case import Case, CaseError
from meanfield.initial import LAWS, Uniform
from meanfield.kernels import LARGEST_BETA
from meanfield.matrices import Draw
from meanfield.normalization import SCHEMES, PostLN

BASE = {
    "attention": {"beta": 4.0},
    "normalization": {"scheme": "post-ln"},
    "initial": {"law": "uniform"},
    "time": {"final": 5.0},
}
DEFAULTS = {
    "title": "case",
    "name": "case",
    "attention": {"beta": 4.0, "kernel": "softmax", "query_key": None, "value": None, "noise": 0.0},
    "normalization": {"initial_radius": 1.0, "scheme": "post-ln"},
    "space": {"kind": "sphere", "dimension": 3},
    "initial": {"law": "uniform"},
    "time": {"final": 5.0, "snapshots": 51},
    "solver": {
        "method": "auto",
        "lmax": 63,
        "rtol": 1e-9,
        "atol": 1e-9,
        "absorbing_layer": "auto",
        "max_steps": 100_000,
        "max_wall_seconds": None,
    },
    "particles": {
        "count": [4096],
        "seeds": 8,
        "seed": 0,
        "attention": "auto",
        "update": "flow",
        "step": None,
    },
    "output": {"grid": "gauss", "fields": ["density", "radius", "flow"]},
}
SCHEME_KEYS = {"mix-ln": {"switch_time": 2}, "ngpt": {"rate": [[0, 1], [2.5, 0.5]]}}
LAW_KEYS = {
    "vmf-mixture": {"concentrations": [2, 3.5], "means": [[1, 0, 0], [0, 1, 1]], "weights": [1, 3]},
    "poisson": {"radius": 0.5, "axis": [0, 1, 0]},
    "harmonics": {"harmonics": [[2, 0, 0.01], [3, 1, 0.01, 0.02]]},
    "fourier": {"harmonics": [[1, 0.01], [3, 0.01, 0.02]]},
    "zonal-harmonics": {"harmonics": [[2, 0.1]], "axis": "south"},
    "particles": {"count": 100, "seed": 2**70},
    "equiangular": {"cosine": 0.1},
    "file": {"path": "tokens.npy"},
}
IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def tables(**changes: object) -> dict[str, object]:
    """The base case with dotted keys set (``__`` for the dot)."""
    mapping: dict[str, object] = copy.deepcopy(BASE)
    for dotted, value in changes.items():
        *sections, key = dotted.split("__")
        target = mapping
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    return mapping


def refusal(mapping: object, **options: object) -> str:
    with pytest.raises(CaseError) as caught:
        Case.from_dict(mapping, **options)
    return str(caught.value)


# ---- accepted -------------------------------------------------------------------------------------------------


def test_every_default_is_written_out():
    assert Case.from_dict(BASE).to_dict() == DEFAULTS


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("title", "Über β: ∂ρ/∂t 🌍", "Über β: ∂ρ/∂t 🌍"),
        ("name", "three-bumps", "three-bumps"),
        ("attention.beta", 4, 4.0),
        ("attention.beta", -1e4, -1e4),
        ("attention.beta", np.float32(0.5), 0.5),
        ("attention.kernel", "unnormalized", "unnormalized"),
        ("attention.noise", 0, 0.0),
        ("attention.query_key", [[1, 2, 3], [0, 1, 0], [0, 0, 1]], ((1.0, 2.0, 3.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))),
        ("attention.value", -np.eye(3), ((-1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, -1.0))),
        ("attention.value", IDENTITY, None),
        ("attention.value", [IDENTITY], None),
        ("attention.value", [[[2, 0, 0], [0, 1, 0], [0, 0, 1]]], ((2.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))),
        ("attention.causal", True, True),
        ("attention.balanced", True, True),
        ("space.dimension", 512, 512),
        ("time.snapshots", np.int64(2), 2),
        ("time.snapshots", np.array([1.0, 2.0]), (1.0, 2.0)),
        ("solver.lmax", 1, 1),
        ("solver.lmax", "auto", "auto"),
        ("solver.rtol", 1e-14, 1e-14),
        ("solver.atol", 0, 0.0),
        ("solver.max_wall_seconds", 60, 60.0),
        ("particles.count", 7, (7,)),
        ("particles.count", [256, 1024], (256, 1024)),
        ("particles.seed", 2**70, 2**70),
        ("output.grid", [3, 4], (3, 4)),
        ("output.fields", [], ()),
        ("output.fields", ["radius"], ("radius",)),
    ],
)
def test_accepted_value(key, value, read):
    case = Case.from_dict(tables(**{key.replace(".", "__"): value}))
    for part in key.split("."):
        case = getattr(case, part)
    assert case == read
    assert type(case) is type(read)


def test_space_dimension_follows_the_kind():
    assert Case.from_dict(tables(space__kind="circle")).space.dimension == 2
    assert Case.from_dict(tables(space__kind="zonal", space__dimension=7)).space.dimension == 7


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_every_scheme_round_trips(scheme):
    mapping = tables(normalization={"scheme": scheme, "initial_radius": 0.3, **SCHEME_KEYS.get(scheme, {})})
    case = Case.from_dict(mapping)
    assert type(case.normalization.scheme) is SCHEMES[scheme]
    assert_survives(case)


@pytest.mark.parametrize("law", sorted(LAWS))
def test_every_law_round_trips(law):
    space = {"space": {"kind": "circle", "dimension": 2}} if law == "fourier" else {}
    case = Case.from_dict(tables(initial={"law": law, **LAW_KEYS.get(law, {})}, **space))
    assert type(case.initial) is LAWS[law]
    assert_survives(case)


def assert_survives(case: Case) -> None:
    """Nothing is lost in JSON, in a mapping, in a pickle, or by changing nothing."""
    copies = [
        Case.from_json(case.to_json()),
        Case.from_dict(case.to_dict()),
        pickle.loads(pickle.dumps(case)),
        case.override({}),
    ]
    assert all(other == case and hash(other) == hash(case) for other in copies)
    assert Case.from_json(case.to_json()).to_json() == case.to_json()
    assert json.loads(case.to_json()) == case.to_dict()


def test_titles_and_huge_seeds_survive_json():
    title = "Γ-limit „à la“ 統計 🎲 \\ \" '"
    case = Case.from_dict(tables(title=title, particles__seed=2**1000))
    assert_survives(case)
    again = Case.from_json(case.to_json())
    assert (again.title, again.particles.seed) == (title, 2**1000)


@pytest.mark.parametrize(
    ("title", "name", "expected"),
    [
        (None, None, ("case", "case")),
        ("Peri-LN, β = 4", None, ("Peri-LN, β = 4", "peri-ln-β-4")),
        ("!!!", None, ("!!!", "case")),
        (None, "run-7", ("run-7", "run-7")),
        ("A title", "run-7", ("A title", "run-7")),
    ],
)
def test_title_and_name(title, name, expected):
    case = Case.from_dict(tables(**({} if title is None else {"title": title})), name=name)
    assert (case.title, case.name) == expected


def test_a_case_does_not_change():
    case = Case.from_dict(BASE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        case.title = "another"
    with pytest.raises(ValueError, match="frozen"):
        case.attention.beta = 5.0
    assert repr(case) == "<Case 'case': post-ln, softmax beta = 4, uniform on sphere d = 3, t = 0 ... 5>"


def test_the_mapping_is_not_touched():
    mapping = tables(particles__count=[1, 2], time__snapshots=[1.0])
    before = copy.deepcopy(mapping)
    Case.from_dict(mapping)
    assert mapping == before


# ---- times ----------------------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e6), st.integers(2, 400))
def test_counted_times(final, count):
    times = Case.from_dict(tables(time={"final": final, "snapshots": count})).time.times
    assert len(times) == count
    assert times[0] == 0.0
    assert times[-1] == final  # bitwise
    assert all(later > earlier for earlier, later in pairwise(times))
    # Round-off of one product and one quotient.
    assert np.allclose(times, np.linspace(0.0, final, count), rtol=4e-16, atol=0.0)


@pytest.mark.parametrize(
    ("given", "times"),
    [
        ([0, 2.5, 5], (0.0, 2.5, 5.0)),
        ([1], (0.0, 1.0, 5.0)),
        ([0.0], (0.0, 5.0)),
        ([-0.0, 5.0], (0.0, 5.0)),
    ],
)
def test_listed_times(given, times):
    found = Case.from_dict(tables(time__snapshots=given)).time.times
    assert found == times
    assert math.copysign(1.0, found[0]) == 1.0


# ---- refused --------------------------------------------------------------------------------------------------

BETA = f"expected a finite number with |beta| <= {LARGEST_BETA:g}"
NONNEGATIVE, POSITIVE = "expected a finite number >= 0", "expected a finite number > 0"
OPERATOR = "expected a d×d list of rows of finite numbers, a list of such, or a table {draw, seed}"
ROTARY = "expected true, false, the base of the frequencies, or a list of d/2 of them"
SCHEME_NAMES = "expected one of post-ln, pre-ln, mix-ln, peri-ln, ngpt, sqrt-scaling, ln-scaling"
SNAPSHOTS = "expected an integer from 2 to 1000000 or increasing times within [0, final]"
TIMES = "expected strictly increasing times within [0, final = 5]"
COUNTS = "expected an integer >= 1 or a list of distinct ones"
RATE = "expected number or [[number, number], ...]"

REFUSED = [
    ("title", 3, "title: expected one line of text, got 3"),
    ("title", "two\nlines", r"title: expected one line of text, got 'two\nlines'"),
    ("name", "../../etc", "name: expected a file name without suffix, got '../../etc'"),
    ("atention", {}, "atention: unknown key, expected one of * (did you mean 'attention'?)"),
    ("attention", 4, "attention: expected a table of keys, got 4"),
    ("attention.bta", 4, "attention.bta: unknown key, expected one of beta, * (did you mean 'beta'?)"),
    ("attention.beta", "4", f"attention.beta: {BETA}, got '4'"),
    ("attention.beta", True, f"attention.beta: {BETA}, got True"),
    ("attention.beta", math.nan, f"attention.beta: {BETA}, got nan"),
    ("attention.beta", -math.inf, f"attention.beta: {BETA}, got -inf"),
    ("attention.beta", 10**400, f"attention.beta: {BETA}, got inf"),
    ("attention.beta", None, f"attention.beta: {BETA}, got None"),
    ("attention.beta", 1j, f"attention.beta: {BETA}, got 1j"),
    ("attention.beta", [4.0], f"attention.beta: {BETA}, got [4.0]"),
    ("attention.beta", np.array([True])[0], f"attention.beta: {BETA}, got True"),
    ("attention.beta", 1e300, f"attention.beta: {BETA}, got 1e+300"),
    (
        "attention.kernel",
        "softmx",
        "attention.kernel: expected 'softmax' or 'unnormalized', got 'softmx' (did you mean 'softmax'?)",
    ),
    ("attention.noise", -0.1, f"attention.noise: {NONNEGATIVE}, got -0.1"),
    ("attention.value", 1.0, f"attention.value: {OPERATOR}, got 1.0"),
    ("attention.value", [[1, 0, 0], [0, 1, 0], [0, 0, math.nan]], f"attention.value[2][2]: {OPERATOR}, got nan"),
    (
        "attention.query_key",
        [[1, 0], [0, 1], [0, 0]],
        "attention.query_key: expected 3 rows of 3 numbers, as in space, got 3 rows of 2",
    ),
    ("attention.value", [], "attention.value: expected 3 rows of 3 numbers, as in space, got 0 rows of 0"),
    (
        "attention.value",
        [[1, 0, 0], [0, 1], [0, 0, 1]],
        "attention.value: expected 3 rows of 3 numbers, as in space, got 3 rows of 2 or 3",
    ),
    (
        "attention.value",
        [IDENTITY, [[1, 0], [0, 1]]],
        "attention.value[1]: expected 3 rows of 3 numbers, as in space, got 2 rows of 2",
    ),
    ("attention.value", [IDENTITY, [[1, 0, 0], [0, "x"]]], f"attention.value[1][1][1]: {OPERATOR}, got 'x'"),
    ("attention.value", {"draw": "goee"}, "attention.value.draw: expected * got 'goee' (did you mean 'goe'?)"),
    ("attention.value", {"seed": 1}, "attention.value.draw: expected * got nothing"),
    ("attention.value", {"draw": "goe", "seed": 1.5}, "attention.value.seed: expected an integer >= 0, got 1.5"),
    (
        "attention.value",
        {"draw": "goe", "sed": 1},
        "attention.value.sed: unknown key, expected one of draw, seed (did you mean 'seed'?)",
    ),
    ("attention.heads", 2, "attention.heads: expected 1 unless query_key or value is drawn, got 2"),
    ("attention.layers", 2, "attention.layers: expected 1 unless query_key or value is drawn, got 2"),
    ("attention.causal", 1, "attention.causal: expected true or false, got 1"),
    ("attention.balanced", "yes", "attention.balanced: expected true or false, got 'yes'"),
    ("attention.rotary", "yes", f"attention.rotary: {ROTARY}, got 'yes'"),
    ("attention.rotary", -1.0, f"attention.rotary: {ROTARY}, got -1.0"),
    ("attention.rotary", [], f"attention.rotary: {ROTARY}, got []"),
    ("attention.rotary", True, "attention.rotary: must be d/2 finite frequencies in an even dimension d, *"),
    ("attention.casual", True, "attention.casual: unknown key, * (did you mean 'causal'?)"),
    (
        "normalization.scheme",
        "peri",
        f"normalization.scheme: {SCHEME_NAMES}, got 'peri' (did you mean 'peri-ln'?)",
    ),
    ("normalization.scheme", 3, f"normalization.scheme: {SCHEME_NAMES}, got 3"),
    ("normalization.initial_radius", 0, f"normalization.initial_radius: {POSITIVE}, got 0"),
    (
        "normalization.switch_time",
        2.0,
        "normalization.switch_time: unknown key, expected one of scheme, initial_radius "
        "(it is a key of [normalization] with scheme = 'mix-ln')",
    ),
    (
        "normalization",
        {"scheme": "mix-ln"},
        "normalization.switch_time: expected number, got nothing",
    ),
    (
        "normalization",
        {"scheme": "mix-ln", "switch_time": -1},
        "normalization.switch_time: must be >= 0, got -1.0",
    ),
    ("normalization", {"scheme": "ngpt", "rate": "fast"}, f"normalization.rate: {RATE}, got 'fast'"),
    ("normalization", {"scheme": "ngpt", "rate": [[0, 1], [1]]}, f"normalization.rate[1]: {RATE}, got [1]"),
    ("normalization", {"scheme": "ngpt", "rate": [[0, True]]}, f"normalization.rate[0][1]: {RATE}, got True"),
    (
        "normalization",
        {"scheme": "ngpt", "rate": [[1, 1], [0, 1]]},
        "normalization.rate: times must increase strictly, got [1.0, 0.0]",
    ),
    ("space.kind", "sphre", "space.kind: expected * got 'sphre' (did you mean 'sphere'?)"),
    ("space.dimension", 1, "space.dimension: expected an integer >= 2; 2 on the circle, at most 4096 if zonal, got 1"),
    ("space", {"kind": "circle", "dimension": 3}, "space.dimension: * got 3"),
    ("space", {"kind": "zonal", "dimension": 5000}, "space.dimension: * got 5000"),
    ("initial.law", "vmf", "initial.law: expected one of uniform, *, got 'vmf'"),
    ("initial.radius", 0.5, "initial.radius: unknown key, expected one of law (it is a key of * law = 'poisson')"),
    ("initial", {"law": "poisson", "radius": 1.0}, "initial.radius: must be < 1, got 1.0"),
    ("initial", {"law": "poisson", "radius": "a"}, "initial.radius: expected number, got 'a'"),
    (
        "initial",
        {"law": "poisson", "radius": 0.5, "axis": [1, 0]},
        "initial.law: expected a law in dimension 3, as space.dimension is, got one in 2",
    ),
    ("initial", {"law": "particles", "count": 2.5, "seed": 0}, "initial.count: expected integer, got 2.5"),
    ("time.final", 0.0, f"time.final: {POSITIVE}, got 0.0"),
    ("time", {"final": 5e-324, "snapshots": 9}, "time.final: expected a number of magnitude*, got*e-324"),
    ("time.snapshots", 1, f"time.snapshots: {SNAPSHOTS}, got 1"),
    ("time.snapshots", 5.0, f"time.snapshots: {SNAPSHOTS}, got 5.0"),
    ("time.snapshots", 10**18, f"time.snapshots: {SNAPSHOTS}, got 1000000000000000000"),
    ("time.snapshots", [], f"time.snapshots: {SNAPSHOTS}, got []"),
    ("time.snapshots", [0.0, 2.0, 1.0], f"time.snapshots[1]: {TIMES}, got 2 before 1"),
    ("time.snapshots", [0.0, 1.0, 1.0], f"time.snapshots[1]: {TIMES}, got 1 before 1"),
    ("time.snapshots", [0.0, 5.5], f"time.snapshots[1]: {TIMES}, got 5.5 before inf"),
    ("time.snapshots", [-1.0], f"time.snapshots[0]: {TIMES}, got -1 before inf"),
    ("time.lmax", 31, "time.lmax: unknown key, expected one of final, snapshots (it is a key of [solver])"),
    ("solver.lmax", 0, "solver.lmax: expected an integer >= 1 or 'auto', got 0"),
    ("solver.lmax", 31.0, "solver.lmax: expected an integer >= 1 or 'auto', got 31.0"),
    ("solver.lmax", "atuo", "solver.lmax: expected an integer >= 1 or 'auto', got 'atuo' (did you mean 'auto'?)"),
    ("solver.rtol", 1e-15, "solver.rtol: expected a number from 1e-14 to below 1, got 1e-15"),
    ("solver.rtol", 1, "solver.rtol: expected a number from 1e-14 to below 1, got 1"),
    ("solver.max_wall_seconds", 0, f"solver.max_wall_seconds: {POSITIVE}, got 0"),
    ("particles.count", 0, f"particles.count[0]: {COUNTS}, got 0"),
    ("particles.count", True, f"particles.count: {COUNTS}, got True"),
    ("particles.count", [8, 8], f"particles.count: {COUNTS}, got [8, 8]"),
    ("particles.count", [], f"particles.count: {COUNTS}, got []"),
    ("particles.seed", -1, "particles.seed: expected an integer >= 0, got -1"),
    ("particles.seed", 2**2000, "particles.seed: expected an integer >= 0, got inf"),
    ("output.grid", [2, 4], "output.grid[0]: expected 'gauss' or [nlat >= 3, nlon >= 4], got 2"),
    ("output.grid", [90], "output.grid: expected 'gauss' or [nlat >= 3, nlon >= 4], got [90]"),
    ("output.fields", ["densty"], "output.fields[0]: expected * got 'densty' (did you mean 'density'?)"),
    ("output.fields", ["radius", "radius"], "output.fields: expected * got ['radius', 'radius']"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED, ids=[f"{row[0]}={row[1]!r:.30}" for row in REFUSED])
def test_refused_value(key, value, message):
    """The message is exact, but for what stands for the stars."""
    found = refusal(tables(**{key.replace(".", "__"): value}), name="x")
    position = 0
    for piece in f"x: {message}".split("*"):
        assert piece in found[position:]
        position = found.index(piece, position) + len(piece)
    assert found.startswith(f"x: {message.split('*')[0]}")
    assert "*" in message or found == f"x: {message}"


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"query_key": [IDENTITY] * 2, "value": [IDENTITY] * 3}, "value"),
        ({"query_key": [IDENTITY] * 2, "heads": 3}, "heads"),
        ({"query_key": [IDENTITY] * 2, "value": {"draw": "goe"}}, "heads"),
        ({"query_key": [IDENTITY] * 2, "layers": 2}, "layers"),
        ({"causal": True, "balanced": True}, "balanced"),
        ({"kernel": "unnormalized", "balanced": True}, "balanced"),
        ({"kernel": "unnormalized", "query_key": [[200, 0, 0], [0, 1, 0], [0, 0, 1]]}, "query_key"),
    ],
)
def test_keys_of_attention_that_do_not_go_together(changes, key):
    assert refusal(tables(attention={"beta": 4.0, **changes})).startswith(f"case: attention.{key}: ")


def test_variants_of_attention_become_an_interaction_and_json_and_back():
    written = {"query_key": {"draw": "goe", "seed": 3}, "heads": 2, "layers": 4, "causal": True, "rotary": [1.0, 0.5]}
    case = Case.from_dict(tables(attention={"beta": 4.0, **written}, space={"dimension": 4}, initial__law="uniform"))
    assert Case.from_json(case.to_json()) == case
    assert {key: case.to_dict()["attention"].get(key) for key in written} == written
    layers = case.interaction
    assert (layers.depth, layers.count, layers.plain) == (case.time.final / 4, 4, False)
    interaction = layers.of(1)
    assert (interaction.causal, interaction.rotary, len(interaction.heads)) == (True, (1.0, 0.5), 2)
    np.testing.assert_array_equal(interaction.query_key, Draw("goe", 3).query_keys(4, 2, 1))


def test_multiples_of_the_identity_are_plain_attention():
    interaction = Case.from_dict(tables(attention={"beta": 4.0, "query_key": 2 * np.eye(3)})).interaction
    assert interaction.plain
    assert interaction.attention.beta == 8.0


@pytest.mark.parametrize(
    ("changes", "beta"), [({"beta": 701.0}, "701"), ({"beta": -1e4}, "-10000")], ids=["above", "below"]
)
def test_unnormalized_kernels_that_overflow(changes, beta):
    message = refusal(tables(attention={**changes, "kernel": "unnormalized"}))
    assert message == (
        f"case: attention.beta: expected |beta| <= 700 with kernel 'unnormalized', as e^beta overflows, got {beta}"
    )
    Case.from_dict(tables(attention={"beta": 700.0, "kernel": "unnormalized"}))


@pytest.mark.parametrize("key", ["attention.beta", "normalization.scheme", "initial.law", "time.final"])
@pytest.mark.parametrize("whole_table", [False, True])
def test_what_is_missing_is_named(key, whole_table):
    section, name = key.split(".")
    mapping = copy.deepcopy(BASE)
    if whole_table:
        del mapping[section]
    else:
        del mapping[section][name]
    message = refusal(mapping)
    assert message.startswith(f"case: {key}: expected ")
    assert message.endswith(", got nothing")


def test_the_first_error_in_file_order_is_told():
    mapping = {"time": {"snapshots": 1, "final": -1.0}, "attention": {"noise": -1, "beta": "x"}, "bogus": 1}
    assert refusal(mapping).startswith("case: time.snapshots: ")
    assert refusal(mapping).endswith("got 1 (+6 more)")  # final, noise, beta, bogus; scheme and law are missing
    swapped = {"bogus": 1, **{key: mapping[key] for key in ("attention", "time")}}
    assert refusal(swapped).startswith("case: bogus: ")
    assert refusal({key: swapped[key] for key in ("attention", "time", "bogus")}).startswith("case: attention.noise: ")


@pytest.mark.parametrize("value", [None, 3, "text", [1], {1: {2: 3}}, {"\ud800": 1}, {"a\nb": {"c": 1}}])
def test_what_is_no_case_at_all(value):
    message = refusal(value)
    assert message.isprintable()


def test_nesting_without_end():
    deep: list[object] = []
    deep.append(deep)
    assert refusal(tables(title=deep)) == "case: nested too deeply"
    with pytest.raises(CaseError, match="nested too deeply"):
        Case.from_dict(BASE).override({"title": deep})


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "null", '{"title": NaN}', '{"attention": {"beta": Infinity}}']
)
def test_json_that_is_no_case(text):
    with pytest.raises(CaseError) as caught:
        Case.from_json(text)
    assert str(caught.value).isprintable()


# ---- registries -----------------------------------------------------------------------------------------------


def test_a_scheme_of_the_user():
    @dataclasses.dataclass(frozen=True)
    class Slowed(PostLN):
        factors: tuple[float, ...]
        offset: int = 0
        name: ClassVar[str] = "slowed"

        def __post_init__(self):
            if min(self.factors) <= 0:
                raise ValueError(f"factors must be > 0, got {self.factors}")

    def with_keys(**keys):
        return tables(normalization={"scheme": "slowed", **keys})

    try:
        case = Case.from_dict(with_keys(factors=[1, 2]))
        assert case.normalization.scheme == Slowed((1.0, 2.0))
        assert Case.from_json(case.to_json()) == case
        assert "normalization.factors: factors must be > 0" in refusal(with_keys(factors=[-1]))
        assert "normalization.factors: expected [number, ...], got 1" in refusal(with_keys(factors=1))
        assert "normalization.offset: expected integer, got 1.5" in refusal(with_keys(factors=[1], offset=1.5))
        assert "with scheme = 'slowed'" in refusal(tables(normalization__offset=1))
    finally:
        del SCHEMES["slowed"]


def test_a_law_of_the_user():
    @dataclasses.dataclass(frozen=True)
    class Tilted(Uniform):
        tilt: float
        name: ClassVar[str] = "tilted"

    try:
        case = Case.from_dict(tables(initial={"law": "tilted", "tilt": 1}))
        assert case.initial == Tilted(1.0)
        assert Case.from_json(case.to_json()) == case
    finally:
        del LAWS["tilted"]


# ---- files ----------------------------------------------------------------------------------------------------

TOML = """\
title = "Peri-LN, three bumps"
[attention]
beta = 4
[normalization]
scheme = "mix-ln"
switch_time = 1
[initial]
law = "file"
path = "data/tokens.npy"
[time]
final = 5
snapshots = [0, 1, 5]
"""


def test_a_file(tmp_path, monkeypatch):
    path = tmp_path / "bumps.toml"
    path.write_text("\ufeff" + TOML.replace("\n", "\r\n"), encoding="utf-8")  # as some editors on Windows write it
    case = Case.from_toml(path)
    assert (case.name, case.title) == ("bumps", "Peri-LN, three bumps")
    assert case.time.times == (0.0, 1.0, 5.0)
    assert case.initial.path == str(tmp_path / "data" / "tokens.npy")
    monkeypatch.chdir(tmp_path.parent)
    assert Case.from_toml(str(path)) == case
    assert Case.from_json(case.to_json()) == case  # wherever it is read
    assert case.override({"initial.path": "here.npy"}).initial.path == str(tmp_path.parent / "here.npy")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"title = 'caf\xe9'", "not UTF-8 text"),
        (b"\x89HDF\r\n\x1a\n\x00\x00", "not UTF-8 text"),
        (b"[attention]\nbeta = \n", "Invalid value (at line 2, column 8)"),
        (b"[attention]\nbeta = 1\nbeta = 2\n", "Cannot overwrite a value (at line 3, column 9)"),
        (b"[attention]\n[attention]\n", "Cannot declare ('attention',) twice (at line 2, column 11)"),
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = " + b"1" * 5_000, "Exceeds the limit"),
        (b"[attention]\nbeta = nan\n", f"attention.beta: {BETA}, got nan"),
        (b'"a\\nb" = 1\n[attention]\nbeta = 1', r"a\nb: unknown key"),
        (b"[attention]\nbeta = 1979-05-27", f"attention.beta: {BETA}, got datetime.date(1979, 5, 27)"),
        (b"[[attention]]\nbeta = 1", "attention: expected a table of keys, got [{'beta': 1}]"),
        (b"[particles]\nseed = 0x" + b"f" * 5_000, "particles.seed: expected an integer >= 0, got inf"),
    ],
)
def test_files_that_are_no_case(tmp_path, content, message):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(CaseError) as caught:
        Case.from_toml(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert str(caught.value).isprintable()


def test_files_that_cannot_be_read(tmp_path):
    for path, reason in [
        (tmp_path / "none.toml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none.toml" / "x", "No such file or directory"),
        (Path("/dev/zero"), "larger than 64 MiB"),
        (Path("nul\0.toml"), "embedded null byte"),
    ]:
        with pytest.raises(CaseError, match=reason) as caught:
            Case.from_toml(path)
        assert str(caught.value).isprintable()


# ---- changes --------------------------------------------------------------------------------------------------


def test_override_validates():
    case = Case.from_dict(BASE, name="base")
    changed = case.override({"attention.beta": 5, "solver.lmax": 31, "title": "new"})
    assert (changed.attention.beta, changed.solver.lmax, changed.title, changed.name) == (5.0, 31, "new", "base")
    assert case.attention.beta == 4.0
    for changes, message in [
        ({"attention.bta": 5}, "base: attention.bta: unknown key, expected one of * (did you mean 'beta'?)"),
        ({"attention.beta": "5"}, f"base: attention.beta: {BETA}, got '5'"),
        ({"nothing.beta": 5}, "base: nothing: unknown key*"),
        ({"title.beta": 5}, "base: title.beta: unknown key*"),
        ({"attention": 5}, "base: attention: expected a table of keys, got 5"),
        ({"normalization.scheme": "mix-ln"}, "base: normalization.switch_time: expected number, got nothing"),
    ]:
        with pytest.raises(CaseError) as caught:
            case.override(changes)
        start, _, end = message.partition("*")
        assert str(caught.value).startswith(start)
        assert str(caught.value).endswith(end)


def test_a_new_choice_forgets_the_keys_of_the_old():
    mixed = Case.from_dict(tables(normalization={"scheme": "mix-ln", "switch_time": 1, "initial_radius": 0.3}))
    pre = mixed.override({"normalization.scheme": "pre-ln"})
    assert (pre.normalization.scheme.name, pre.normalization.initial_radius) == ("pre-ln", 0.3)
    again = pre.override({"normalization.switch_time": 1, "normalization.scheme": "mix-ln"})
    assert again == mixed
    assert mixed.override({"normalization.switch_time": 2}).normalization.scheme.switch_time == 2.0
    assert mixed.override({"normalization.scheme": "mix-ln"}) == mixed
    poisson = Case.from_dict(tables(initial={"law": "poisson", "radius": 0.5}))
    assert poisson.override({"initial.law": "uniform"}).initial == Uniform()
    assert mixed.override({"space.kind": "circle"}).space.dimension == 2


# ---- anything at all ------------------------------------------------------------------------------------------

KEYS = [(section, key) for section, table in DEFAULTS.items() if isinstance(table, dict) for key in table]
KEYS += [("normalization", "switch_time"), ("normalization", "rate"), ("normalization", "bogus")]
KEYS += [
    ("initial", key) for key in ("radius", "axis", "concentrations", "means", "weights", "path", "cosine", "harmonics")
]
KEYS += [("title",), ("name",), ("bogus",), ("attention",), ("initial",)]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**2000), 2**2000)
    | st.floats()
    | st.text(max_size=8)
    | st.text(st.characters(), max_size=3)
    | st.binary(max_size=3)
    | st.dates()
    | st.complex_numbers()
    | st.sampled_from(["auto", "gauss", "sphere", "softmax", "density", *SCHEMES, *LAWS])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=250, deadline=2000)
@given(
    st.sampled_from(sorted(SCHEMES)),
    st.sampled_from(sorted(LAWS)),
    st.dictionaries(st.sampled_from(KEYS), ANYTHING, min_size=1, max_size=3),
)
def test_any_value_is_accepted_whole_or_refused_in_one_line(scheme, law, changes):
    mapping = copy.deepcopy(BASE)
    mapping["normalization"] = {"scheme": scheme, **SCHEME_KEYS.get(scheme, {})}
    mapping["initial"] = {"law": law, **LAW_KEYS.get(law, {})}
    for path, value in changes.items():
        target = mapping
        for section in path[:-1]:
            if not isinstance(target.get(section), dict):
                target[section] = {}
            target = target[section]
        target[path[-1]] = value
    try:
        case = Case.from_dict(mapping)
    except CaseError as error:
        message = str(error)
    else:
        assert Case.from_json(case.to_json()) == case
        assert case.time.times[-1] == case.time.final
        message = repr(case)
    assert message.isprintable()
    assert len(message) < 700


@settings(max_examples=100, deadline=2000)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    with pytest.raises(CaseError) as caught:
        Case.from_toml(path)
    assert str(caught.value).isprintable()
