"""The front door under fire: one line says what is wrong, the exit code is 2, and nothing is harmed.

``MEANFIELD_FUZZ=20 pytest tests/test_fuzz.py`` draws 20 times as many examples, new ones every time; without it they
are the same in every run.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meanfield.case import Case, CaseError
from meanfield.cli import app, main
from meanfield.dataset import open_run
from meanfield.examples import packaged_cases
from meanfield.tables import CHOICES, TABLES, Heading, keys_of
from meanfield.tokens import read_tokens

EFFORT = int(os.environ.get("MEANFIELD_FUZZ", "1"))
MEMORY = 4 << 30
"""Bytes of address space of the process that is asked for too much; libraries take 2 GiB of it, at most."""

TEXT = """\
title = "three tokens, β = 4"

[attention]
beta = 4.0

[normalization]
scheme = "pre-ln"
initial_radius = 1.0

[initial]
law = "vmf-mixture"
concentrations = [2.0, 3.0]
means = [[0, 0, 1], [1, 0, 0]]

[time]
final = 0.1
snapshots = 3

[solver]
lmax = 15

[particles]
count = 8
seeds = 2
"""
NASTY: list[Any] = [
    *(True, False, 0, 1, -1, 2, 3, 10**9, 10**12, 2**31, 2**63, 2**64, 2**70, 10**400, -(10**400)),
    *(0.0, -0.0, 0.5, -1.5, 5e-324, 1e-300, 1e8, 1e100, 1e300, 1.7e308, -1e308, math.nan, math.inf, -math.inf),
    *(
        "",
        "a",
        "auto",
        "nan",
        "true",
        "ω",
        "x\ny",
        "\0",
        "/",
        "..",
        "~nobody/x",
        ".npy",
        "none.nc",
        "\x1b[31m",
        "e" * 5000,
    ),
    *([], [[]], [[[]]], [0], [1, 1], [0, 0, 0], [1e308] * 3, [math.nan, 0, 1], list(range(2000)), [True], ["a"], [{}]),
    *(
        [[0, 0, 1]],
        [[0, 0, 1], [0, 1]],
        [[0, 0, 0]] * 3,
        [[0, 1, 0], [1, 0, 0], [0, 0, 1]],
        np.diag([1e308] * 3).tolist(),
    ),
    *(
        [[0, 1.0], [1, 0.5]],
        [[1, 1.0], [0, 0.5]],
        [[0, -1.0]],
        [[0, 1e308]],
        [10**9, 10**9],
        [10**6, 10**6],
        [[1, 0, 1e308]],
    ),
    *({}, {"a": 1}, {"a": {"b": [{}]}}),
]


def bounded(examples: int) -> settings:
    return settings(
        max_examples=examples * EFFORT,
        derandomize=EFFORT == 1,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )


def own_keys() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of a case, and what must be set for it to be one."""
    for key in Heading.model_fields:
        yield key, {}
    for section, table in TABLES.items():
        yield section, {}
        for key in table.model_fields:
            yield f"{section}.{key}", {}
    needed = {
        "mix-ln": {"normalization.switch_time": 0.05},
        "poisson": {"initial.radius": 0.3},
        "harmonics": {"initial.harmonics": [[1, 0, 0.01]]},
        "equiangular": {"initial.cosine": 0.1},
        "particles": {"initial.count": 50, "initial.seed": 1, "initial.degree": 2},
        "file": {"initial.path": "tokens.csv", "initial.degree": 2},
    }
    for section, (choice, registry) in CHOICES.items():
        for word, kind in registry.items():
            for key in keys_of(kind):
                yield f"{section}.{key}", {f"{section}.{choice}": word, **needed.get(word, {})}


KEYS = list(own_keys())


@pytest.fixture(scope="module")
def base() -> Case:
    import tomllib

    return Case.from_dict(tomllib.loads(TEXT))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a case, tokens, and things that must not be touched."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.toml").write_text(TEXT, encoding="utf-8")
    (tmp_path / "tokens.csv").write_text("1,0,0\n0,1,0\n0,0,-1\n", encoding="utf-8")
    (tmp_path / "precious.nc").write_bytes(b"precious")
    (tmp_path / "inner").mkdir()
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def call(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


def front_door(*arguments: str, kept: Path | None = None) -> tuple[int, str]:
    """Exit code and message of a command that succeeds quietly, or is refused in one line and does no harm."""
    before = contents(kept) if kept else {}
    code, out, err = call(*arguments)
    assert code in (0, 2), (arguments, code, err)
    if code == 2:
        assert (out, err.count("\n")) == ("", 1), (arguments, out, err)
        assert err.startswith("meanfield: "), (arguments, err)
        if kept:
            assert contents(kept) == before, arguments
    return code, err


def toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(toml, value))}]"
        case dict():
            return f"{{{', '.join(f'{json.dumps(key)} = {toml(item)}' for key, item in value.items())}}}"
        case int() | float():
            return repr(value)
    raise TypeError(value)


# ---- cases ----------------------------------------------------------------------------------------------------


def refusal(make: Callable[[], Case]) -> str | None:
    """One line that refuses a case; an accepted one is read back as it was written."""
    try:
        case = make()
    except CaseError as error:
        return str(error)
    assert Case.from_json(case.to_json()) == case
    return None


def is_a_case_or_one_line(path: Path) -> None:
    said = refusal(lambda: Case.from_toml(path))
    assert said is None or (said.startswith(f"{path}: ") and said.isprintable())


@bounded(60)
@given(
    raw=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
)
def test_any_bytes(folder: Path, raw: bytes) -> None:
    (folder / "any.toml").write_bytes(raw)
    is_a_case_or_one_line(folder / "any.toml")


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A case of the package with lines and words lost, doubled, moved or replaced."""
    examples = list(packaged_cases().values())
    lines = draw(st.sampled_from([next(iter(e.contents.values())).decode() for e in examples])).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["lose", "double", "move", "value", "cut", "insert"])):
            case "lose" if len(lines) > 1:
                del lines[place]
            case "double":
                lines.insert(place, lines[place])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(place))
            case "value":
                lines[place] = f"{lines[place].partition('=')[0]}= {toml(draw(st.sampled_from(NASTY)))}"
            case "cut":
                lines[place] = lines[place][: draw(st.integers(0, len(lines[place])))]
            case _:
                junk = [
                    "\0",
                    "[",
                    "[[time]]",
                    "[time.final]",
                    "a.b.c = 1",
                    "= 1",
                    '"""',
                    "#",
                    "[" * 5000,
                    "ü = 1",
                    "\ufeff",
                ]
                lines.insert(place, draw(st.sampled_from(junk)))
    return "\n".join(lines)


@bounded(80)
@given(text=mutated())
def test_mutated_cases(folder: Path, text: str) -> None:
    (folder / "mutated.toml").write_text(text, encoding="utf-8")
    is_a_case_or_one_line(folder / "mutated.toml")


@pytest.mark.parametrize(
    ("key", "settings"), KEYS, ids=[f"{key}-{'-'.join(map(str, kind.values()))}"[:60] for key, kind in KEYS]
)
def test_every_value_at_every_key(base: Case, key: str, settings: dict[str, Any]) -> None:
    named = re.compile(rf"^[^:]+: ({'|'.join([*Heading.model_fields, *TABLES, key])})\b")
    for value in NASTY:
        said = refusal(lambda value=value: base.override(settings | {key: value}))
        assert said is None or (said.isprintable() and named.search(said)), (value, said)


@bounded(40)
@given(
    key=st.sampled_from(KEYS),
    value=st.recursive(
        st.sampled_from(NASTY) | st.floats() | st.integers() | st.text(max_size=5), st.lists, max_leaves=6
    ),
)
def test_check_of_any_value_at_any_key(folder: Path, key: tuple[str, dict[str, Any]], value: Any) -> None:
    assume(not (key[0] == "solver.lmax" and isinstance(value, int) and 100 < value < 2000))  # right, and slow
    changes = key[1] | {key[0]: value}
    arguments = [word for name, given in changes.items() for word in ("--set", f"{name}={toml(given)}")]
    front_door("check", "case.toml", *arguments, kept=folder)


# ---- too much -------------------------------------------------------------------------------------------------

TOO_MUCH = [
    ("check", "solver.lmax=1000000000", "lmax"),
    ("check", "solver.lmax=100000", "lmax"),
    ("check", "attention.beta=1e308", "attention.beta"),
    ("check", "attention.noise=1e308", "attention.noise"),
    ("check", "attention.value=[[1e300,0,0],[0,1e300,0],[0,0,1e300]]", "attention.value"),
    ("check", "normalization.initial_radius=1e-300", "normalization.initial_radius"),
    ("check", "normalization.scheme=ngpt normalization.rate=1e308", "normalization.rate"),
    ("check", "normalization.scheme=ngpt normalization.rate=[[1,1],[0,1]]", "normalization.rate"),
    ("check", "time.final=1e300", "time.final"),
    ("check", "time.snapshots=1000000000", "time.snapshots"),
    ("check", "space.dimension=1000000000", "space.dimension"),
    ("check", "initial.law=particles initial.seed=1 initial.degree=2 initial.count=1000000000000", "initial.count"),
    ("check", "initial.law=particles initial.seed=1 initial.degree=1000000000 initial.count=8", "solver.lmax"),
    ("check", "initial.law=harmonics initial.harmonics=[[1000000000,0,0.1]]", "initial.harmonics"),
    ("solve", "output.grid=[1000000,1000000]", "output.grid"),
    ("solve", "time.snapshots=1000000 output.grid=[3000,6000]", "output.grid"),
    ("simulate", "particles.count=1000000000000", "particles.count"),
    ("simulate", "particles.seeds=1000000000000", "particles.seeds"),
    ("simulate", "space.dimension=1000000 particles.count=1000000", "space.dimension"),
    ("simulate", "particles.update=layers particles.step=1e-90", "particles.step"),
    ("theory", "attention.beta=1e308", "attention.beta"),
]


def test_too_much_is_refused_before_memory_is_taken(folder: Path) -> None:
    """In a process of its own with little memory, and little time: the whole list takes a few seconds."""
    code = f"""
import contextlib, io, json, resource, sys
import meanfield.run, meanfield.ensemble, meanfield.theory
from meanfield.cli import main
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
answers = []
for command, changes, key in json.load(sys.stdin):
    words = [word for change in changes.split() for word in ("--set", change)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        answers.append((main([command, "case.toml", *words]), out.getvalue(), err.getvalue()))
print(json.dumps(answers))
"""
    before = contents(folder)
    asked = json.dumps(TOO_MUCH)
    done = subprocess.run([sys.executable, "-c", code], input=asked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for (command, changes, key), (exit_code, out, err) in zip(TOO_MUCH, json.loads(done.stdout), strict=True):
        assert (exit_code, out, err.count("\n")) == (2, "", 1), (command, changes, err)
        assert key in err, (command, changes, err)
    assert {path: file for path, file in contents(folder).items() if Path(path).name != "outputs"} == before


# ---- arguments ------------------------------------------------------------------------------------------------

COMMANDS = [name for name in app if not name.startswith("-")]
WORDS = [
    *(
        "none.toml",
        "none.nc",
        "inner",
        "inner/none.nc",
        "precious.nc",
        "case.toml",
        "tokens.csv",
        ".",
        "/",
        "",
        " ",
        "-",
        "--",
    ),
    *(
        "a\nb",
        "\udcff\udcfe",
        "\0",
        "~",
        "x" * 300,
        "ω",
        "/dev/null",
        "/proc/self/mem",
        "{}",
        "%s",
        "1",
        "-1",
        "nan",
        "1e400",
    ),
    *(
        "--nothing",
        "--set",
        "--set=",
        "--set==",
        "--set=attention.beta",
        "--set=attention.beta=x",
        "--set=\udcff=1",
        "-o",
        "-o=",
    ),
    *(
        "--output=inner",
        "--output=\0",
        "--output=precious.nc/x",
        "--force=maybe",
        "--times",
        "--kind=x",
        "--kind",
        "--json=1",
    ),
    *(
        "--workers=0",
        "--workers=x",
        "--workers=-1",
        "--scheduler=nowhere",
        "--fps=nan",
        "--frames=-1",
        "--case",
        "--case=none.toml",
    ),
]


@bounded(120)
@given(
    command=st.sampled_from([*COMMANDS, "", "slove", "-x", "\udcff"]),
    words=st.lists(st.sampled_from(WORDS), max_size=5),
)
def test_any_arguments(folder: Path, command: str, words: list[str]) -> None:
    """With a case that is spoilt by its last line, so that nothing is run."""
    (folder / "case.toml").write_text(f"{TEXT}spoilt = 1\n", encoding="utf-8")
    code, _ = front_door(command, *words, kept=folder)
    assert code == 2 or command in ("schemes", "cases")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("word", ["--nothing", "none.nc", "inner", "a\nb.nc", "\udcff.nc", "\0", "", "tokens.csv"])
def test_every_command_by_itself(folder: Path, command: str, word: str) -> None:
    code, err = front_door(command, word, kept=folder)
    assert code == 2
    if word in ("none.nc", "tokens.csv", "inner"):
        assert word in err


@pytest.mark.parametrize(
    "output", ["", ".", "inner", "precious.nc", "precious.nc/x.nc", "\0", "a\0b", "x" * 300, "case.toml"]
)
@pytest.mark.parametrize("command", ["solve", "simulate", "compare"])
def test_outputs_that_cannot_be(folder: Path, command: str, output: str) -> None:
    code, _ = front_door(command, "case.toml", "-o", output, kept=folder)
    assert code == 2


# ---- files of runs --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Sound files: of a density, of particles in one number and in two, and of their comparison."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "case.toml").write_text(TEXT, encoding="utf-8")

    def made(command: str, *arguments: str) -> bytes:
        code, _, err = call(command, *arguments, "--quiet", "-o", str(folder / "made.nc"), "--force")
        assert code == 0, err
        return (folder / "made.nc").read_bytes()

    case, two = str(folder / "case.toml"), ("--set", "particles.count=[4, 8]")
    return {"density": made("solve", case), "tokens": made("simulate", case), "tree": made("simulate", case, *two)}


KINDS = ["density", "tokens", "tree"]


def opened(path: Path) -> None:
    """Read all of a file in a forked process, which a damaged one may crash: HDF5 is not to be trusted with it."""
    child = os.fork()
    if child == 0:
        try:
            code, out, err = call("info", str(path), "--json")
            good = (code == 0 and json.loads(out)) or (
                code == 2 and not out and err.count("\n") == 1 and path.name in err
            )
            if not good:
                os.write(2, f"{code} {out} {err}".encode())
            os._exit(0 if good else 1)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) <= 0


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_files(folder: Path, runs: dict[str, bytes], kind: str) -> None:
    draw = random.Random(EFFORT if EFFORT == 1 else None)
    path = folder / "cut.nc"
    for size in [0, 1, 8, 100, *(draw.randrange(len(runs[kind])) for _ in range(8 * EFFORT))]:
        path.write_bytes(runs[kind][:size])
        for command in ("info", "plot", "report", "resume"):
            code, err = front_door(command, str(path), kept=folder)
            assert code == 2
            assert "cut.nc" in err


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bits(folder: Path, runs: dict[str, bytes], kind: str) -> None:
    draw = random.Random(EFFORT if EFFORT == 1 else None)
    path = folder / "flipped.nc"
    for number in [1] * 10 * EFFORT + [20] * 5 * EFFORT:
        damaged = bytearray(runs[kind])
        for _ in range(number):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        opened(path)


SPOILT: dict[str, Callable[[Any], object]] = {
    **{f"{name} gone": lambda file, name=name: file.delncattr(name) for name in ("source", "case")},
    **{
        f"{name} is {value!r}": lambda file, name=name, value=value: file.setncattr(name, value)
        for name in ("case", "source")
        for value in ("", "{", "[]", "null", "3", 1.5, np.arange(3))
        if name == "case" or not isinstance(value, str)
    },
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
@pytest.mark.parametrize("kind", ["density", "tree"])
def test_spoilt_attributes(folder: Path, runs: dict[str, bytes], kind: str, spoil: Callable[[Any], object]) -> None:
    (folder / "spoilt.nc").write_bytes(runs[kind])
    with netCDF4.Dataset(folder / "spoilt.nc", "a") as file:
        spoil(file)
    for command in ("info", "resume", "plot"):
        code, err = front_door(command, "spoilt.nc", kept=folder)
        assert code == 2
        assert "spoilt.nc" in err


def test_a_case_of_another_version(folder: Path, runs: dict[str, bytes]) -> None:
    """Its file can be looked at, and is not resumed."""
    (folder / "other.nc").write_bytes(runs["density"])
    with netCDF4.Dataset(folder / "other.nc", "a") as file:
        file.setncattr("case", '{"attention": {"sinks": 8}}')
    assert front_door("info", "other.nc", kept=folder)[0] == 0
    code, err = front_door("resume", "other.nc", kept=folder)
    assert code == 2
    assert "other.nc" in err
    assert "attention.sinks" in err


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("density", name) for name in ("density", "density_lm", "moment2", "energy", "quadrature_weight", "axis")),
        *(("tokens", name) for name in ("position", "weight", "energy", "member_status", "time")),
    ],
)
def test_wrong_dimensions_and_types(folder: Path, runs: dict[str, bytes], kind: str, name: str) -> None:
    (folder / "sound.nc").write_bytes(runs[kind])
    with open_run("sound.nc") as run:
        run = run.load()
    variable = run.variables[name]
    wrong = np.arange(3.0) if name == "axis" else variable.astype(str)
    spoilt = [run.assign_coords({name: wrong}) if name in run.coords else run.assign({name: wrong})]
    if name not in run.dims:
        spoilt.append(run.drop_vars(name).assign({name: variable.isel({variable.dims[-1]: 0})}))
    for number, dataset in enumerate(spoilt):
        dataset.to_netcdf(folder / f"spoilt{number}.nc", engine="netcdf4")
        with pytest.raises(ValueError, match=rf"spoilt{number}.nc: {name}: expected"):
            open_run(f"spoilt{number}.nc")


def foreign(folder: Path) -> None:
    np.save(folder / "array.nc", np.ones(3))
    (folder / "array.nc.npy").rename(folder / "array.nc")
    (folder / "text.nc").write_text("a,b\n1,2\n")
    (folder / "empty.nc").touch()
    for name, form in (("classic.nc", "NETCDF3_CLASSIC"), ("other.nc", "NETCDF4")):
        with netCDF4.Dataset(folder / name, "w", format=form) as file:
            file.createDimension("time", 3)
            file.createVariable("time", "f8", ("time",))[:] = [0, 1, 2]
            file.createVariable("density", "f8", ("time",))[:] = [0, 1, 2]


def test_foreign_files(folder: Path) -> None:
    foreign(folder)
    for path in sorted(folder.glob("*.nc")):
        for command in ("info", "plot", "report", "resume"):
            code, err = front_door(command, path.name, kept=folder)
            assert code == 2
            assert path.name in err
        assert front_door("compare", path.name, "precious.nc", kept=folder)[0] == 2


# ---- files of tokens ------------------------------------------------------------------------------------------


class Trap:
    """Code that a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("trapped", "w"))


TOKENS: dict[str, bytes] = {
    "empty.csv": b"",
    "header.csv": b"x,y,z\n",
    "comment.csv": b"# nothing\n",
    "ragged.csv": b"1,0,0\n1,0\n",
    "words.csv": b"1,0,0\n1,a,0\n",
    "nan.csv": b"1,0,0\nnan,1,0\n",
    "inf.csv": b"1,0,0\ninf,1,0\n",
    "zero.csv": b"0,0,0\n",
    "flat.csv": b"1\n2\n",
    "latin.csv": "ä,ö,ü\n1,0,0\n".encode("latin-1"),
    "null.csv": b"\0\0\0\n",
    "empty.npy": b"",
    "magic.npy": b"\x93NUMPY",
    "zip.npy": b"PK\x03\x04",
    "empty.nc": b"",
    "text.nc": b"1,0,0\n",
    "tokens.txt": b"1,0,0\n",
}


def array_files() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "scalar.npy": np.float64(1.0) * np.ones(()),
        "vector.npy": np.ones(3),
        "none.npy": np.ones((0, 3)),
        "thin.npy": np.ones((3, 0)),
        "complex.npy": np.ones((3, 3), complex),
        "text.npy": np.full((3, 3), "a"),
        "time.npy": np.zeros((3, 3), "M8[s]"),
        "record.npy": np.zeros((3, 3), [("x", "f8")]),
        "trap.npy": np.array([[Trap()] * 3], dtype=object),
    }


@pytest.mark.parametrize("name", [*TOKENS, *array_files()])
def test_tokens_that_are_none(folder: Path, name: str) -> None:
    if name in TOKENS:
        (folder / name).write_bytes(TOKENS[name])
    else:
        np.save(folder / name, array_files()[name], allow_pickle=True)
    settings = ["--set", "initial.law=file", "--set", "initial.degree=2", "--set", f"initial.path={name}"]
    code, err = front_door("check", "case.toml", *settings, kept=folder)
    assert code == 2
    assert "initial.path" in err
    assert name in err
    assert not (folder / "trapped").exists()


@bounded(60)
@given(raw=st.binary(max_size=100), suffix=st.sampled_from([".csv", ".npy", ".nc"]))
def test_any_bytes_as_tokens(folder: Path, raw: bytes, suffix: str) -> None:
    path = folder / f"any{suffix}"
    path.write_bytes(b"\x93NUMPY\x01\x00" + raw if suffix == ".npy" else raw)
    said = f"{path}: "
    try:
        tokens = read_tokens(path)
    except ValueError as error:
        said = str(error)
    else:
        assert tokens.ndim == 2
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
