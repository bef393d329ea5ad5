import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.config.tasks import JsonlTask
from groupwise.errors import DataError
from groupwise.tasks import jsonl
from groupwise.tasks.base import Task, fill_splits, split_of
from groupwise.types import Problem


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sums(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"{i}+1=", "answer": i + 1, "level": i % 3} for i in range(count)]


def build(path: Path, **settings: Any) -> Task:
    return jsonl.build(JsonlTask(path=str(path), **settings))


def everything(task: Task) -> list[Problem]:
    return [*task.train, *task.validation, *task.test]


def problem(path: Path, row: dict[str, Any], **settings: Any) -> Problem:
    """The problem that a row becomes, whatever its split."""
    settings.setdefault("answer", None)
    rows = [row, *({**row, settings.get("prompt", "prompt"): f"other {i}"} for i in range(5))]
    return next(p for p in everything(build(write(path, rows), **settings)) if p.id == "data/1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def test_a_single_file_is_split_by_the_hash_of_the_prompt(file: Path) -> None:
    task = build(write(file, sums(200)))

    splits = {"train": task.train, "validation": task.validation, "test": task.test}
    for split, problems in splits.items():
        assert {split_of(str(p.prompt)) for p in problems} == {split}
    assert sum(map(len, splits.values())) == 200
    assert task.name == "data"


def test_columns_travel_along_and_the_answer_is_text(file: Path) -> None:
    row = {"prompt": "4+1=", "answer": 5, "level": 2, "tags": ["a"]}

    assert problem(file, row, answer="answer") == Problem(
        "data/1", "4+1=", {"answer": "5", "level": 2, "tags": ["a"]}
    )


def test_columns_may_have_other_names_and_the_judge_still_finds_the_answer(file: Path) -> None:
    rows = [{"question": f"{i}+1=", "result": i + 1} for i in range(30)]
    task = build(write(file, rows), prompt="question", answer="result")
    assert task.correct is not None

    first = task.train[0]
    assert first.columns["answer"] == str(first.columns["result"])
    assert "question" not in first.columns
    assert task.correct(completion=f"= {first.columns['result']}", answer=first.columns["answer"])
    assert not task.correct(completion="= 999", answer=first.columns["answer"])


def test_without_an_answer_column_nobody_judges(file: Path) -> None:
    task = build(write(file, [{"prompt": f"say {i}"} for i in range(30)]), answer=None)

    assert task.correct is None
    assert task.formatted(completion="x") and not task.formatted(completion=" \n")


def test_prompts_that_ask_for_tags_are_judged_by_their_tags(file: Path) -> None:
    task = build(write(file, sums(30)), system="Reply in <think></think><answer></answer>.")

    assert task.formatted(completion="<think></think><answer>5</answer>")
    assert not task.formatted(completion="5")


def test_conversations_and_system_prompts(file: Path) -> None:
    user, system = {"role": "user", "content": "hi"}, {"role": "system", "content": "own"}
    given = {"role": "system", "content": "given"}

    assert problem(file, {"prompt": [user]}).prompt == (user,)
    assert problem(file, {"prompt": "hi"}, system="given").prompt == (given, user)
    assert problem(file, {"prompt": [user]}, system="given").prompt == (given, user)
    assert problem(file, {"prompt": [system, user]}, system="given").prompt == (system, user)


def test_a_conversation_that_ends_with_the_assistant_is_continued_from_there(file: Path) -> None:
    user = {"role": "user", "content": "hi"}
    row = {"prompt": [user, {"role": "assistant", "content": "Well, "}]}

    made = problem(file, row, prefill="<think>")

    assert (made.prompt, made.prefill) == ((user,), "Well, <think>")


def test_the_system_prompt_does_not_move_a_problem_to_another_split(file: Path) -> None:
    write(file, sums(100))
    plain, chat = build(file), build(file, system="Think.")

    assert [p.id for p in plain.test] == [p.id for p in chat.test]
    assert len(plain.test) >= 3


def test_equal_prompts_have_ids_of_their_own_and_share_a_split(file: Path) -> None:
    task = build(write(file, sums(60) * 2))

    ids = [p.id for p in everything(task)]
    assert len(ids) == len(set(ids)) == 120
    prompts = [{p.prompt for p in split} for split in (task.train, task.validation, task.test)]
    assert not (prompts[0] & prompts[1] or prompts[0] & prompts[2] or prompts[1] & prompts[2])


def test_a_file_can_grow_without_moving_its_rows(file: Path) -> None:
    before = {p.id for p in build(write(file, sums(100))).test}
    after = {p.id for p in build(write(file, sums(300)), test_size=300).test}

    assert before and before <= after


def test_another_seed_makes_another_split(file: Path) -> None:
    write(file, sums(100))

    assert [p.id for p in build(file).test] != [p.id for p in build(file, seed=1).test]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=3))
def test_every_split_gets_problems_from_three_different_prompts_up(prompts: list[str]) -> None:
    problems = [Problem(str(i), text) for i, text in enumerate(prompts)]
    if len(set(prompts)) < 3:
        with pytest.raises(DataError, match="too few to hold any out for validation and test"):
            fill_splits("data", {"train": problems})
        return

    splits = fill_splits("data", {"train": problems})

    assert all(splits.values())
    assert sorted(p.id for split in splits.values() for p in split) == sorted(
        map(str, range(len(prompts)))
    )
    assert sum(len({p.prompt for p in split}) for split in splits.values()) == len(set(prompts))


def test_sizes_limit_the_splits(file: Path) -> None:
    task = build(write(file, sums(200)), train_size=7, test_size=2)

    assert (len(task.train), len(task.validation), len(task.test)) == (7, 2, 2)


def test_a_folders_own_files_are_taken_as_they_are(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", sums(4))
    write(tmp_path / "validation.jsonl", sums(2))
    write(tmp_path / "test.jsonl", sums(1))
    task = build(tmp_path)

    assert [p.id for p in task.train] == [f"train/{i}" for i in (1, 2, 3, 4)]
    assert [p.id for p in task.validation] == ["validation/1", "validation/2"]
    assert [p.id for p in task.test] == ["test/1"]


def test_a_folder_without_validation_takes_it_from_train_and_leaves_test_alone(
    tmp_path: Path,
) -> None:
    write(tmp_path / "train.jsonl", sums(100))
    write(tmp_path / "test.jsonl", [{"prompt": "9*9=", "answer": 81}])
    task = build(tmp_path)

    assert [p.prompt for p in task.test] == ["9*9="]
    assert {split_of(str(p.prompt)) for p in task.validation} == {"validation"}
    assert {split_of(str(p.prompt)) for p in task.train} == {"train", "test"}
    assert len(task.train) + len(task.validation) == 100


def test_a_byte_order_mark_windows_line_ends_and_blank_lines_are_fine(file: Path) -> None:
    lines = [json.dumps(row).encode() for row in sums(20)]
    file.write_bytes(b"\xef\xbb\xbf" + b"\r\n\r\n".join(lines) + b"\r\n")

    assert len(everything(build(file))) == 20


GOOD = b'{"prompt": "1+1=", "answer": "2"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"data\.jsonl is empty"),
        (b"\n  \n", r"data\.jsonl is empty"),
        (GOOD + b'{"prompt": ', r"data\.jsonl, line 2: not valid JSON"),
        (GOOD + b"[" * 100_000, r"line 2: not valid JSON"),
        (GOOD + b'{"prompt": "x", "answer": ' + b"9" * 5000 + b"}", r"line 2: not valid JSON"),
        (GOOD + b'{"prompt": "\xff"}', r"line 2: not valid UTF-8"),
        (GOOD + b"\n[1]", r"line 3: must be an object such as .*, not a list"),
        (b'{"promt": "x", "answer": 1}', r"line 1: no column 'prompt' \(did you mean 'promt'\?\)"),
        (b'{"prompt": "x", "y": 1}', r"no column 'answer'.*there: prompt, y\..*answer=null"),
        (b'{"prompt": 5, "answer": 1}', r"line 1: column 'prompt' must be text or .* a number"),
        (b'{"prompt": null, "answer": 1}', r"line 1: column 'prompt' must be .* not null"),
        (b'{"prompt": [], "answer": 1}', r"line 1: column 'prompt' must be .* not an empty list"),
        (b'{"prompt": " ", "answer": 1}', r"line 1: column 'prompt' is blank"),
        (b'{"prompt": "\\ud800", "answer": 1}', r"line 1: .*surrogate"),
        (b'{"prompt": ["hi"], "answer": 1}', r"turns with role and content, not text"),
        (b'{"prompt": [{"role": "user"}], "answer": 1}', r"turn without text in 'content'"),
        (
            b'{"prompt": [{"role": "user", "content": [{"type": "image"}]}], "answer": 1}',
            r"turn without text in 'content'",
        ),
        (b'{"prompt": [{"role": "assistant", "content": "x"}], "answer": 1}', r"asks nothing"),
        (b'{"prompt": "x", "answer": null}', r"column 'answer' must be text or a number, not null"),
        (b'{"prompt": "x", "answer": true}', r"must be text or a number, not true or false"),
        (b'{"prompt": "x", "answer": [1]}', r"must be text or a number, not a list"),
        (GOOD * 5, r"data has 1 different prompts, too few to hold any out"),
    ],
)
def test_bad_input_is_refused_with_its_place_and_the_fix(
    file: Path, content: bytes, message: str
) -> None:
    file.write_bytes(content)

    with pytest.raises(DataError, match=message):
        build(file)


@pytest.mark.parametrize("name", ["pipe", "zero"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is not a file"):
        build(tmp_path / name)


def test_a_missing_file_or_a_folder_without_train_says_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.jsonl does not exist; check task\.path"):
        build(tmp_path / "missing.jsonl")
    write(tmp_path / "other.jsonl", sums(3))
    with pytest.raises(DataError, match=r"has no train\.jsonl; it holds: other\.jsonl\."):
        build(tmp_path)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        assert isinstance(jsonl._parse_line(data, "here"), dict)
    except DataError as error:
        assert str(error).startswith("here: ")
