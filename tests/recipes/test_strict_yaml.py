"""Recipes and overrides from anyone: one clean error each, at once, that quotes little of them."""

import os
import pathlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.config import Config, OptimizerSettings
from groupwise.errors import ConfigError
from groupwise.objective.objective import Objective
from groupwise.objective.surrogates.clip import Clip
from groupwise.objective.surrogates.vespo import Vespo
from groupwise.recipe import find_recipe, parse, read_recipe, read_yaml
from groupwise.recipe.strict_yaml import load_yaml
from runs import exit_code

BOMB = "{a0: &a0 [x, x, x, x, x, x, x, x, x, x]" + "".join(
    f", a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)
) + "}"  # fmt: skip
HOSTILE = {
    "a float that is none": ("!!float x", "could not convert"),
    "an integer that is none": ("!!int ''", "form that its tag"),
    "a bool that is none": ("!!bool x", "form that its tag"),
    "a time that is none": ("!!timestamp x", "form that its tag"),
    "month 13": ("2024-13-01", "month must be in 1..12"),
    "many digits": ("9" * 5000, "too long for a number"),
    "many hexadecimal digits": ("0x" + "f" * 5000, "too long for a number"),
    "many digits with a tag": ("!!int '" + "9" * 5000 + "'", "too long for a number"),
    "many parts by 60": ("1:" * 50_000 + "1", "too long for a number"),
    "deep": ("[" * 10_000 + "]" * 10_000, "nested more than"),
    "deep and open": ("[" * 10_000, "nested more than"),
    "deep blocks": ("{a: " * 10_000, "nested more than"),
    "itself": ("&a [*a]", "*a contains itself (line 1)"),
    "itself, deeper": ("&a {b: [1, {c: *a}]}", "*a contains itself"),
    "a bomb": (BOMB, "stands for more than 20000 values"),
    "no such alias": ("*a", "undefined alias"),
    "a python object": ("!!python/object:os.system x", "could not determine a constructor"),
    "a key twice": ("{b: 2,\n  c: 4,\n  b: 3}", "'b' is there twice: line 1 and line 3"),
    "a key twice, quoted": ('{a: 1, "a": 2}', "'a' is there twice"),
    "a list as key": ("{? [a] : 1}", "unhashable"),
    "not a number": (".nan", "is nan, which is no finite number"),
    "infinity, deep": ("{a: [1, {b: -.inf}]}", "a.1.b' is -inf"),
    "infinity by size": ("1.0e+999", "is inf"),
    "a date": ("{a: 2024-01-01}", "a' is read as a date"),
    "bytes": ("!!binary aGk=", "read as a bytes"),
    "a set": ("!!set {a}", "read as a set"),
    "NUL": ('"a\\0b"', "NUL"),
    "a control character": ("\x07", "control characters"),
    "much": ("x" * 300_000, "longer than 250000"),
    "a long tag": ("!" + "x" * 100_000 + " 1", ""),
    "a long anchor": ("&" + "x" * 100_000 + " [*" + "x" * 100_000 + "]", "contains itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_get_one_short_error_at_once(name: str, tmp_path: pathlib.Path) -> None:
    text, message = HOSTILE[name]
    file = tmp_path / "recipe.yaml"
    file.write_text(f"rewards: {text}\n")
    before = time.monotonic()
    for read in (lambda: parse({}, [f"rewards={text}"]), lambda: read_recipe(file)):
        with pytest.raises(ConfigError) as error:
            read()
        assert message in str(error.value) and len(str(error.value)) < 800
    assert time.monotonic() - before < 3


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.preset=[]", "unknown preset []"),
        ("algorithm.preset={}", "unknown preset {}"),
        ("task.kind=[]", "task.kind: must be arithmetic, countdown"),
        ("task.train_size=1" + "0" * 30, "task.train_size: input should be less than or equal"),
        ("task.train_size=1000000000000", "task.train_size: input should be less than or equal"),
        ("task.test_size=1000000000000", "task.test_size: input should be less than or equal"),
        ("seed=1" + "0" * 30, "seed: must be an integer of at most 64 bits"),
        ("seed='" + "1" * 4000 + "'", "seed: must be an integer of at most 64 bits"),
        ("optimizer.lr='nan'", "optimizer.lr: input should be a finite number"),
        ("rollout.temperature_spread=['1', 'inf']", "finite number"),
        ("steps=" + "x" * 100_000, "(100000 characters)"),
        ("task.kind=" + "x" * 100_000, "characters)"),
        ("x" * 100_000 + "=1", "unknown setting 'xxx"),
        ("x" * 100_000, "must look like key=value"),
        ("steps." + "x" * 100_000 + "=1", "steps is a value, not a block"),
        ("a." * 10_000 + "b=1", "nested more than"),
        ("=5", "must look like key=value"),
        ("rewards=[" + "{}, " * 3000 + "]", "... and 2990 more"),
    ],
)
def test_settings_that_cannot_be_are_named_in_short(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse({"steps": 3}, [override])
    assert message in str(error.value) and len(str(error.value)) < 1000


def test_python_callers_cannot_set_what_is_not_finite_either() -> None:
    for make in (
        lambda: OptimizerSettings(lr=float("nan")),
        lambda: Config(reward_timeout=float("inf")),
        lambda: Objective(kl_weight=float("inf")),
        lambda: Clip(clip_high=float("inf")),
        lambda: Vespo(vespo_k_positive=float("nan")),
    ):
        with pytest.raises(ValueError, match="finite number"):
            make()


def test_aliases_and_merges_still_work(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(
        "rewards: [{name: length_limits, options: &o {a: 1, b: {c: 2}}}]\n"
        "task: {kind: python, path: 'x:y', options: {<<: *o, d: *o}}\n"
    )
    config = parse(read_yaml(file), ["task.options.b.c=3"])
    assert config.task.model_dump()["options"] == {
        "a": 1, "b": {"c": 3}, "d": {"a": 1, "b": {"c": 2}},
    }  # fmt: skip
    assert config.rewards[0].options == {"a": 1, "b": {"c": 2}}


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "x/" * 5000, "a\nb", ""])
def test_names_that_are_no_path_are_no_recipe(name: str) -> None:
    with pytest.raises(ConfigError, match="not a recipe of ours and not a file") as error:
        find_recipe(name)
    assert len(str(error.value)) < 1000


def test_files_that_cannot_be_read_are_named(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"model: caf\xe9")
    (tmp_path / "loop").symlink_to("loop")
    for name, message in {
        "pipe": "is not a file",
        ".": "is not a file",
        "none": "No such file",
        "loop": "symbolic links",
        "latin": "utf-8",
        "a\0b": "null byte",
        "x" * 300: "too long",
    }.items():
        with pytest.raises(ConfigError, match=message):
            read_yaml(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "closed").touch(mode=0)
    with pytest.raises(ConfigError, match="Permission denied"):
        read_yaml(tmp_path / "closed")


@pytest.mark.parametrize("words", [["x" * 5000], ["model=" + "x" * 5000], ["task=" + "[" * 9999]])
def test_the_command_line_exits_with_2(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["check", *words], monkeypatch) == 2
    errors = capfd.readouterr().err
    assert "Traceback" not in errors
    assert errors.startswith("error: ") and len(errors) < 1500


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="a1:-[]{}&*!|>'\"#,? \n\t.<~=%@\\0nxe", max_size=40))
def test_any_text_is_a_value_or_a_config_error(text: str) -> None:
    for read in (lambda: load_yaml(text), lambda: parse({}, [f"rewards={text}"])):
        try:
            read()
        except ConfigError as error:
            assert len(str(error)) < 1500
