"""The schemes against the table of their formulas written out; the registry; parameters."""

import dataclasses
import pickle

import numpy as np
import pytest

from meanfield.normalization import (
    NGPT,
    SCHEMES,
    LNScaling,
    MixLN,
    PeriLN,
    PostLN,
    PreLN,
    ResidualScheme,
    Scheme,
    SqrtScaling,
    make_scheme,
)

from . import oracles

ROUND_OFF = 4e-16  # relative: one or two operations
SWITCH = 1.5


def ramp(t):
    return np.interp(t, [0.0, 1.0, 3.0], [2.0, 0.5, 1.0])


RAMP = NGPT(rate=((0.0, 2.0), (1.0, 0.5), (3.0, 1.0)))
# Scheme, and what the reference needs to know of its parameters.
ALL = [
    (PostLN(), {}),
    (PreLN(), {}),
    (MixLN(switch_time=SWITCH), {"switch_time": SWITCH}),
    (PeriLN(), {}),
    (NGPT(), {}),
    (NGPT(rate=0.25), {"rate": 0.25}),
    (RAMP, {"rate": ramp}),
    (SqrtScaling(), {}),
    (LNScaling(), {}),
]
IDS = [f"{scheme.name}-{index}" for index, (scheme, _) in enumerate(ALL)]
TIMES = (0.0, 0.7, SWITCH, 1.6, 40.0)


@pytest.fixture
def registry():
    """The registry, as it was before the test once the test is over."""
    kept = dict(SCHEMES)
    yield SCHEMES
    SCHEMES.clear()
    SCHEMES.update(kept)


@pytest.fixture
def tokens(rng):
    """Tokens x = rθ of any radius, with a field A at each."""
    points = rng.normal(size=(7, 11, 3))
    points /= np.linalg.norm(points, axis=-1, keepdims=True)
    return rng.uniform(0.2, 3.0, size=(7, 11)), points, rng.normal(size=(7, 11, 3))


@pytest.fixture
def rng():
    return np.random.default_rng(20251022)


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize(("scheme", "parameters"), ALL, ids=IDS)
def test_speed_and_growth_are_those_of_the_table(scheme, parameters, t, tokens):
    radius, points, field = tokens
    _, radial, norm = oracles.split(points, field)
    kept = [values.copy() for values in (radius, radial, norm)]
    slowness = oracles.slowness(scheme.name, t, radius, norm, **parameters)
    growth = oracles.radius_growth(scheme.name, t, radial, norm, parameters.get("switch_time", 1.0))
    speed = np.broadcast_to(scheme.speed(t, radius, radial, norm), radius.shape)
    np.testing.assert_allclose(speed * slowness, 1.0, rtol=ROUND_OFF)
    np.testing.assert_allclose(
        np.broadcast_to(scheme.growth(t, radius, radial, norm), radius.shape), growth, rtol=ROUND_OFF
    )
    for values, before in zip((radius, radial, norm), kept, strict=True):
        np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize(("scheme", "parameters"), ALL, ids=IDS)
def test_scalars_and_arrays_agree(scheme, parameters, t, tokens):
    radius, points, field = tokens
    _, radial, norm = oracles.split(points, field)
    for function in (scheme.speed, scheme.growth):
        everywhere = np.broadcast_to(function(t, radius, radial, norm), radius.shape)
        alone = function(t, float(radius[3, 4]), float(radial[3, 4]), float(norm[3, 4]))
        assert float(alone) == everywhere[3, 4]


@pytest.mark.parametrize("t", TIMES)
@pytest.mark.parametrize(("scheme", "parameters"), ALL, ids=IDS)
def test_displacement_is_the_stream_form(scheme, parameters, t, tokens):
    radius, points, field = tokens
    _, radial, norm = oracles.split(points, field)
    along, outward = scheme.displacement(t, radius, radial, norm)
    found = np.asarray(along)[..., None] * field + np.asarray(outward)[..., None] * points
    expected = oracles.stream_velocity(scheme.name, t, radius[..., None] * points, field, **parameters)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-14)  # round-off of sums of terms up to 20


@pytest.mark.parametrize("scheme", [PreLN(), PeriLN(), LNScaling()])
def test_stream_form_is_regular_at_the_origin(scheme):
    along, outward = scheme.displacement(2.0, np.array([0.0, 1e-300]), np.array([0.3, -0.3]), np.array([0.5, 0.5]))
    assert np.all(np.isfinite(along))
    assert np.all(np.asarray(outward) == 0.0)
    assert isinstance(scheme, ResidualScheme)


@pytest.mark.parametrize(("scheme", "parameters"), ALL, ids=IDS)
def test_reads_radius_says_what_the_speed_does(scheme, parameters):
    late = 2.0
    reads = scheme.speed(late, 1.0, 0.3, 0.5) != scheme.speed(late, 2.0, 0.3, 0.5)
    assert reads is scheme.reads_radius
    assert scheme.reads_radius or scheme.growth(late, 1.0, 0.3, 0.5) == 0.0


def test_mix_switches_after_its_switch_time():
    scheme = MixLN(switch_time=2.0)
    assert scheme.breakpoints == (2.0,)
    assert scheme.speed(2.0, 4.0, 0.3, 0.5) == 1.0
    assert scheme.speed(np.nextafter(2.0, 3.0), 4.0, 0.3, 0.5) == 0.25
    assert MixLN(switch_time=0).speed(1e-300, 4.0, 0.3, 0.5) == 0.25


def test_breakpoints():
    assert RAMP.breakpoints == (0.0, 1.0, 3.0)
    for scheme in (PostLN(), PreLN(), PeriLN(), NGPT(), SqrtScaling(), LNScaling()):
        assert scheme.breakpoints == ()


def test_rate_table_is_linear_inside_and_constant_outside():
    late = NGPT(rate=((1.0, 2.0), (3.0, 1.0)))
    assert [late.rate_at(t) for t in (0.0, 1.0, 2.0, 3.0, 99.0)] == [2.0, 2.0, 1.5, 1.0, 1.0]
    assert NGPT(rate=((1.0, 2.0),)).rate_at(7.0) == 2.0


def test_rate_table_jumps_where_a_time_stands_twice():
    steps = NGPT(rate=((0.0, 2.0), (0.3, 2.0), (0.3, 1.0), (0.7, 1.0), (0.7, 0.5)))
    assert [steps.rate_at(t) for t in (0.0, 0.3, np.nextafter(0.3, 1), 0.7, 0.8)] == [2.0, 2.0, 1.0, 1.0, 0.5]
    assert steps.breakpoints == (0.0, 0.3, 0.7)
    # Layers of depth 0.1 begin at sums of tenths, which miss the jumps by round-off.
    starts = np.cumsum([0.0, *(0.1 for _ in range(9))])
    rates = [steps.layer(t, 0.1, 1.0, 1.0, 1.0)[0] / 0.1 for t in starts]
    np.testing.assert_allclose(rates, [2, 2, 2, 1, 1, 1, 1, 0.5, 0.5, 0.5], rtol=ROUND_OFF)


def test_sqrt_scaling_is_post_ln_at_another_time():
    # d/dt of 2(√(t+1) − 1), by a central difference: truncation h².
    t, h = 3.0, 1e-5
    clock = [2.0 * (np.sqrt(t + step + 1.0) - 1.0) for step in (-h, h)]
    assert SqrtScaling().speed(t, 1.0, 0.3, 0.5) == pytest.approx((clock[1] - clock[0]) / (2 * h), rel=1e-9)


def test_registry_holds_the_schemes_by_name():
    assert set(oracles.SCHEMES) == set(SCHEMES)
    for name, kind in SCHEMES.items():
        assert kind.name == name
        assert kind.summary
        assert kind.speed_formula
        assert kind.growth_formula


@pytest.mark.parametrize(("scheme", "parameters"), ALL, ids=IDS)
def test_schemes_are_values(scheme, parameters):
    again = make_scheme(scheme.name, **dataclasses.asdict(scheme))
    assert again == scheme
    assert hash(again) == hash(scheme)
    assert pickle.loads(pickle.dumps(scheme)) == scheme
    with pytest.raises(dataclasses.FrozenInstanceError):
        scheme.name = "other"


def test_defining_a_scheme_registers_it(registry):
    @dataclasses.dataclass(frozen=True)
    class Doubled(Scheme):
        """Post-LN at a given multiple of its speed."""

        factor: float = 2.0

        name = "doubled"
        speed_formula = "factor"
        summary = "Post-LN, faster"

        def speed(self, t, r, radial, norm):
            return self.factor

    assert registry["doubled"] is Doubled
    assert make_scheme("doubled", factor=3.0).speed(0.0, 1.0, 0.3, 0.5) == 3.0
    along, outward = Doubled().displacement(0.0, 1.0, 0.3, 0.5)
    assert (along, outward) == (2.0, -0.6)


def test_a_name_is_taken_once(registry):
    with pytest.raises(ValueError, match="post-ln"):

        class Other(Scheme):
            name = "post-ln"

    assert registry["post-ln"] is PostLN


def test_a_scheme_without_a_speed_cannot_be_made(registry):
    class Unfinished(Scheme):
        name = "unfinished"

    with pytest.raises(ValueError, match="unfinished"):
        make_scheme("unfinished")
    with pytest.raises(TypeError):
        Scheme()


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"post-ln.*got 'post'"):
        make_scheme("post")


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, True, "2", None])
def test_bad_switch_times_are_refused(value):
    with pytest.raises(ValueError, match="switch_time"):
        MixLN(switch_time=value)


@pytest.mark.parametrize(
    "value",
    [
        -1.0,
        np.nan,
        np.inf,
        True,
        "2",
        None,
        (),
        (1.0, 2.0),
        ((0.0, 1.0, 2.0),),
        ((0.0, 1.0), (0.0, 2.0)),
        ((1.0, 1.0), (0.0, 2.0)),
        ((1.0, 1.0), (1.0, 2.0), (1.0, 3.0)),
        ((-1.0, 1.0),),
        ((0.0, -1.0),),
        ((0.0, np.nan),),
        ((np.inf, 1.0),),
        ((0.0, True),),
    ],
)
def test_bad_rates_are_refused(value):
    with pytest.raises(ValueError, match="rate"):
        NGPT(rate=value)


def test_mix_needs_its_switch_time():
    with pytest.raises(TypeError, match="switch_time"):
        MixLN()
