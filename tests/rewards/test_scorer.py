"""Rewards run isolated: whatever a function does, the right answer is named and the rest scored."""

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import pytest

import some_rewards
from groupwise.errors import RewardError, quoted
from groupwise.rewards import call, supervised
from groupwise.rewards.base import Reward
from groupwise.rewards.call import Board
from groupwise.rewards.messages import Load
from groupwise.rewards.scorer import Scorer
from groupwise.rewards.supervised import SupervisedWorker
from groupwise.types import Problem

FILE = Path(some_rewards.__file__)
PLAIN = Problem("p", "2+2=", {"answer": "4", "level": 3})
CHAT = Problem("c", ({"role": "user", "content": "hi"},), {"answer": "hello"})


def ask(name: str, **settings: Any) -> Reward:
    return Reward(name, f"{FILE}:{name}", **settings)


@contextlib.contextmanager
def scorer_of(
    *rewards: Reward,
    on_error: Literal["stop", "skip"] = "stop",
    timeout: float = 5.0,
    processes: int = 1,
) -> Iterator[Scorer]:
    with Scorer(rewards, timeout, on_error, processes=processes) as scorer:
        yield scorer


def score(reward: Reward, *completions: str, problem: Problem = PLAIN, **settings: Any) -> list:
    with scorer_of(reward, **settings) as scorer:
        return scorer.score([problem] * len(completions), completions)[reward.name]


def test_a_short_function_gets_only_what_it_names() -> None:
    assert score(ask("right"), "4", "5") == [1.0, 0.0]
    assert score(ask("seen_prompt"), "x", problem=CHAT) == [1.0]
    assert score(ask("everything"), "x") == [3.0]  # answer, level and the prompt


def test_without_rewards_there_are_no_scores() -> None:
    with Scorer([], 30.0, "stop") as scorer:
        assert scorer.score([PLAIN], ["4"]) == {}


def test_none_is_a_score_that_says_nothing() -> None:
    assert score(ask("length"), "abc", "", "a" * 50) == [3.0, None, 10.0]


def test_options_are_keyword_arguments() -> None:
    assert score(ask("length", options={"limit": 2}), "abc") == [2.0]


def test_trl_functions_get_texts_for_plain_prompts_and_messages_for_conversations() -> None:
    with scorer_of(ask("trl_lengths")) as scorer:
        assert scorer.score([PLAIN] * 2, ["abc", ""]) == {"trl_lengths": [3.0, 0.0]}
    with scorer_of(ask("trl_lengths"), ask("trl_roles")) as scorer:
        scores = scorer.score([CHAT] * 2, ["abc", ""])
    assert scores == {"trl_lengths": [3.0, 0.0], "trl_roles": [1.0, 1.0]}


def test_functions_that_name_texts_get_text_whatever_the_prompt_is() -> None:
    def lengths(texts: list[str], **columns: Any) -> list[float]:
        assert "completions" not in columns or isinstance(columns["completions"], list)
        return [float(len(text)) for text in texts]

    def plain(texts: list[str]) -> list[float]:
        return [float(len(text)) for text in texts]

    chat = Problem("c", ({"role": "user", "content": "hi"},))
    with Scorer([Reward("lengths", lengths), Reward("plain", plain)], 5, "stop") as scorer:
        scores = scorer.score([Problem("p", "hi"), chat], ["four", "seventy"])
    assert scores == {"lengths": [4.0, 7.0], "plain": [4.0, 7.0]}


def test_trl_functions_are_called_once_for_the_whole_batch() -> None:
    assert score(ask("trl_count"), *"abcdefg") == [7.0] * 7


def test_async_functions_are_awaited_side_by_side() -> None:
    with scorer_of(ask("awaits"), timeout=5.0) as scorer:
        start = time.monotonic()
        scores = scorer.score([PLAIN] * 50, ["a" * n for n in range(50)])
        taken = time.monotonic() - start
    assert scores["awaits"] == [float(n) for n in range(50)]
    assert taken < 5  # one after the other they sleep for 10 s
    assert score(ask("trl_awaits"), "a", "b") == [2.0, 2.0]


def test_closures_and_lambdas_run_in_this_process() -> None:
    found: list[str] = []

    def remembers(completion: str) -> float:
        found.append(completion)
        return os.getpid()

    assert score(Reward("closure", remembers), "a", "b") == [os.getpid()] * 2
    assert found == ["a", "b"]
    assert score(Reward("lambda", lambda completion, answer: completion == answer), "4") == [1.0]


def test_module_level_functions_run_in_one_worker_process_that_stays() -> None:
    rewards = [Reward("callable", some_rewards.process_id), ask("process_id")]
    with scorer_of(*rewards) as scorer:
        first = scorer.score([PLAIN] * 2, ["a", "b"])
        second = scorer.score([PLAIN], ["c"])
    ids = {*first["callable"], *first["process_id"], *second["callable"]}
    assert len(ids) == 1 and ids != {float(os.getpid())}


def test_the_worker_does_not_import_torch() -> None:
    rewards = [ask("has_torch"), Reward("answer", "groupwise.answers.final:correct")]
    with scorer_of(*rewards) as scorer:
        scores = scorer.score([PLAIN], ["<answer>4</answer>"])
    assert scores == {"has_torch": [0.0], "answer": [1.0]}


def test_what_a_reward_prints_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert score(ask("prints"), "a") == [1.0]
    out, err = capfd.readouterr()
    assert out == ""
    assert "printed by a reward\n" in err and "written by a reward\n" in err


FAILURES = [
    ("hangs", "did not return within 0.3 s"),
    ("hangs_in_c", "did not return within 0.3 s"),
    ("exits", "ended its process (exit code 3)"),
    ("aborts", "crashed its process (SIGABRT)"),
    ("quits", "raised SystemExit: goodbye (some_rewards.py:"),
    ("raises", "raised KeyError: 'no such thing' (some_rewards.py:"),
    ("nan", "returned nan"),
    ("infinite", "returned inf"),
    ("words", "returned 'good' (str), which is not a number"),
    ("awaits_forever", "did not return within 0.3 s"),
    ("awaits_and_raises", "raised KeyError: 'no such thing' (some_rewards.py:"),
    ("trl_hangs", "did not return within 0.3 s"),
    ("trl_raises", "raised KeyError: 'no such thing' (some_rewards.py:"),
    ("trl_nan", "returned nan"),
    ("trl_drops", "returned 0 scores for 1 completion"),
]


@pytest.mark.parametrize(("name", "what"), FAILURES)
def test_a_failure_stops_with_the_completion_that_caused_it(name: str, what: str) -> None:
    with pytest.raises(RewardError) as error:
        score(ask(name), "fine", "fine", "bad", "fine", timeout=0.3)
    message = str(error.value)
    assert message.startswith(f"reward {name!r} failed on answer 2 (to problem 'p'): it {what}")
    assert "\n  the completion: 'bad'\n" in message
    assert "on_reward_error: skip" in message


def test_several_processes_share_the_answers_out_and_lists_stay_whole() -> None:
    texts = [f"{n}" for n in range(8)]
    rewards = ask("process_id"), ask("trl_count"), ask("right"), ask("awaits")
    with scorer_of(*rewards, processes=3) as scorer:
        scores = scorer.score([PLAIN] * 8, texts)
        alone = scorer.score([PLAIN], ["4"])
    ids = scores["process_id"]
    assert len(set(ids)) == 3 and ids[:2] == [ids[0]] * 2 and ids[2:5] == [ids[2]] * 3
    assert scores["trl_count"] == [8] * 8
    assert scores["right"] == [float(text == "4") for text in texts]
    assert alone["right"] == [1.0] and alone["trl_count"] == [1]


@pytest.mark.parametrize("failure", ["hangs", "exits", "raises"])
@pytest.mark.parametrize("bad", [0, 3, 5])
def test_a_failure_in_any_process_is_that_answers_own(failure: str, bad: int) -> None:
    texts = ["bad" if n == bad else "fine" for n in range(6)]
    with scorer_of(ask(failure), on_error="skip", timeout=0.3, processes=3) as scorer:
        scores = scorer.score([PLAIN] * 6, texts)[failure]
        assert scores == [None if n == bad else 1.0 for n in range(6)]
        assert scorer.errors == 1
        assert scorer.score([PLAIN] * 6, ["fine"] * 6)[failure] == [1.0] * 6
    with pytest.raises(RewardError, match=f"answer {bad} "):
        score(ask(failure), *texts, timeout=0.3, processes=3)


def test_skipping_costs_that_completion_its_score_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = dict([*FAILURES, ("blocks_the_loop", "did not return within 0.3 s")])
    with (
        caplog.at_level(logging.WARNING, logger="groupwise"),
        scorer_of(*map(ask, failures), on_error="skip", timeout=0.3) as scorer,
    ):
        scores = scorer.score([PLAIN] * 3, ["fine", "bad", "fine"])
        assert scores == {name: [1.0, None, 1.0] for name in failures}
        assert scorer.errors == len(failures)
        assert scorer.score([PLAIN], ["fine"]) == {name: [1.0] for name in failures}
        assert scorer.errors == len(failures)
    lines = [record.getMessage() for record in caplog.records]
    for line, (name, what) in zip(lines, failures.items(), strict=True):
        assert f"{name!r} failed on answer 1" in line and what in line and "\n" not in line


def test_the_line_of_the_users_file_is_named() -> None:
    lines = FILE.read_text().splitlines()
    at = next(i for i, line in enumerate(lines, 1) if "no such thing" in line)
    with pytest.raises(RewardError, match=re.escape(f"(some_rewards.py:{at}, in raises)")):
        score(ask("raises"), "bad")


def test_a_batch_that_fails_only_as_a_whole_is_said_to() -> None:
    with pytest.raises(
        RewardError, match="failed on 3 answers together: it returned 1 scores for 3"
    ):
        score(ask("trl_needs_one_answer"), "a", "b", "c")
    with scorer_of(ask("trl_needs_one_answer"), on_error="skip") as scorer:
        assert scorer.score([PLAIN] * 3, list("abc")) == {"trl_needs_one_answer": [1.0, 1.0, 1.0]}
        assert scorer.errors == 1


def test_the_time_limit_is_for_each_answer_not_for_all() -> None:
    assert score(ask("slow"), *"abcd", timeout=0.6) == [1.0] * 4


def test_a_hang_in_this_process_is_left_behind() -> None:
    release = threading.Event()

    def waits(completion: str) -> float:
        if completion == "bad":
            release.wait()
        return 1.0

    reward = Reward("waits", waits)
    with pytest.raises(RewardError, match=r"answer 1 .*did not return within 0.3 s"):
        score(reward, "fine", "bad", timeout=0.3)
    scores = score(reward, "fine", "bad", "fine", timeout=0.3, on_error="skip")
    release.set()
    assert scores == [1.0, None, 1.0]


@pytest.mark.parametrize("value", [1, True, 0.5, None])
def test_numbers_of_every_kind_are_scores(value: float | None) -> None:
    assert score(Reward("constant", lambda completion: value), "a") == [
        None if value is None else float(value)
    ]


def test_tensors_and_arrays_are_scores() -> None:
    torch = pytest.importorskip("torch")
    batch: Callable[..., Any] = lambda completions, **_: torch.tensor([0.5, 2.0])  # noqa: E731
    assert score(Reward("tensor", batch), "a", "b") == [0.5, 2.0]
    assert score(Reward("scalar", lambda completion: torch.tensor(0.25)), "a") == [0.25]


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (None, "returned None (NoneType), not a list of scores"),
        ("11", "returned '11' (str), not a list of scores"),
        (1.0, "returned 1.0 (float), not a list of scores"),
        ([10**400], "too large for a float"),
    ],
)
def test_a_batch_function_must_return_a_list_of_numbers(returned: object, what: str) -> None:
    with pytest.raises(RewardError, match=re.escape(what)):
        score(Reward("odd", lambda completions: returned), "a")


def test_a_missing_column_names_those_there_are() -> None:
    with pytest.raises(RewardError, match=r"needs `truth`.* columns are: `answer`, `level`"):
        score(Reward("lost", lambda completion, truth: 1.0), "a")
    with pytest.raises(RewardError, match="needs `completion_ids`"):
        score(ask("wants_ids"), "a")
    # A mistake in the recipe is not a bad completion: it stops even those who skip.
    with pytest.raises(RewardError, match="needs `truth`"):
        score(Reward("lost", lambda completion, truth: 1.0), "a", on_error="skip")


def test_a_column_that_only_some_problems_have_is_missed_by_short_functions_alone() -> None:
    problems, texts = [PLAIN, Problem("other", "x")], ["4", "4"]
    with scorer_of(ask("right")) as scorer, pytest.raises(RewardError, match="needs `answer`"):
        scorer.score(problems, texts)
    seen: list[Any] = []

    def batch(completions: list, answer: list) -> list[float]:
        seen.extend(answer)
        return [0.0] * len(completions)

    with scorer_of(Reward("batch", batch)) as scorer:
        scorer.score(problems, texts)
    assert seen == ["4", None]


def test_an_option_without_a_parameter_is_refused() -> None:
    with pytest.raises(RewardError, match=r"no parameter for the option `limt`.*`limit`"):
        score(ask("length", options={"limt": 3}), "a")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (f"{FILE}:lenght", "no function or class 'lenght' (did you mean 'length'?)"),
        (f"{FILE}:constant", "is an int, not a function or class"),
        (f"{FILE}:no_reward", "neither a parameter `completion`"),
        ("no_such_package.rewards:f", "no module 'no_such_package'"),
        ("/no/such/file.py:f", "no file /no/such/file.py"),
    ],
)
def test_what_cannot_be_loaded_is_refused_at_once(function: str, message: str) -> None:
    with pytest.raises(RewardError, match=re.escape(message)):
        Scorer([Reward("mine", function)], 1.0, "stop")


def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def f(completion):\n    return 1/\n")
    with pytest.raises(RewardError, match=r"SyntaxError.*line 2"):
        Scorer([Reward("mine", f"{broken}:f")], 1.0, "stop")
    broken.write_text("import os\nos._exit(7)\n")
    with pytest.raises(RewardError, match=r"importing it ended its process \(exit code 7\)"):
        Scorer([Reward("mine", f"{broken}:f")], 1.0, "stop")


def test_a_reward_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_reward.py").write_text("VALUE = 7")
    mine = tmp_path / "mine.py"
    mine.write_text("from neighbour_of_reward import VALUE\ndef f(completion): return VALUE\n")
    assert score(Reward("mine", f"{mine}:f"), "a") == [7.0]


def test_two_rewards_of_one_name_are_refused() -> None:
    with pytest.raises(RewardError, match="name of its own"):
        Scorer([ask("right"), ask("right")], 1.0, "stop")


def test_columns_must_be_plain_values_for_the_worker() -> None:
    problem = Problem("p", "x", {"answer": lambda: 4})
    with pytest.raises(RewardError, match="cannot be sent to the rewards' process"):
        score(ask("right"), "4", problem=problem)


def test_no_answers_give_no_scores() -> None:
    with scorer_of(ask("right")) as scorer:
        assert scorer.score([], []) == {"right": []}


def test_batches_beyond_the_boards_room_are_scored_in_parts(monkeypatch: Any) -> None:
    import groupwise.rewards.scorer as module

    monkeypatch.setattr(module, "CAPACITY", 3)
    texts = ["4", "5", "4", "4", "5", "4", "4"]
    assert score(ask("right"), *texts) == [float(text == "4") for text in texts]
    assert score(ask("trl_count"), *texts) == [3, 3, 3, 3, 3, 3, 1]
    assert call.CAPACITY >= 65536


def test_a_worker_that_died_between_two_batches_is_replaced() -> None:
    with scorer_of(ask("process_id")) as scorer:
        [worker] = scorer.score([PLAIN], ["a"])["process_id"]
        assert worker is not None
        os.kill(int(worker), signal.SIGKILL)
        time.sleep(0.1)
        [other] = scorer.score([PLAIN], ["a"])["process_id"]
    assert other not in (None, worker)


@pytest.mark.parametrize("value", [1e308, -1e308, 1e13])
def test_scores_that_no_sum_can_hold_are_refused(value: float) -> None:
    with pytest.raises(RewardError, match=r"beyond 1e\+12[^$]*fix: return one number from -1e\+12"):
        score(Reward("huge", lambda completion: value), "a")
    assert score(ask("enormous"), "a", "bad", on_error="skip") == [1.0, None]


def test_a_worker_that_is_lost_after_its_last_score_costs_none() -> None:
    with scorer_of(ask("ends_after_its_last_score")) as scorer:
        for _ in range(2):
            found = scorer.score([PLAIN] * 3, ["a", "b", "c"])
            assert found == {"ends_after_its_last_score": [1.0] * 3}


def test_a_worker_that_closed_its_descriptors_is_not_waited_for() -> None:
    before = time.monotonic()
    with pytest.raises(RewardError, match=r"answer 1 .*closed the connection of its process"):
        score(ask("closes_descriptors"), "a", "bad")
    assert time.monotonic() - before < 15


def test_a_worker_that_writes_to_our_connection_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervised, "WHOLE_SECONDS", 1)
    with scorer_of(ask("writes_to_all_descriptors"), on_error="skip") as scorer:
        [scores] = scorer.score([PLAIN] * 2, ["a", "bad"]).values()
    assert scores[0] == 1.0


def test_a_worker_that_closes_its_descriptors_between_two_batches_is_replaced() -> None:
    before = time.monotonic()
    with scorer_of(ask("closes_descriptors_later")) as scorer:
        [worker] = scorer.score([PLAIN], ["a"])["closes_descriptors_later"]
        time.sleep(0.5)
        [other] = scorer.score([PLAIN], ["a"])["closes_descriptors_later"]
    assert other not in (None, worker) and time.monotonic() - before < 15


def test_what_a_reward_does_to_its_arguments_is_not_seen_by_others() -> None:
    problem = Problem("c", ({"role": "user", "content": "hi"},), {"words": ["one"]})
    in_thread = [
        Reward("spoils_here", lambda completion, words, prompt: some_rewards.spoils(**locals())),
        Reward("sees_here", lambda completion, words, prompt: some_rewards.sees(**locals())),
    ]
    rewards = [ask("spoils"), ask("spoils_all"), ask("sees"), *in_thread]
    with scorer_of(*rewards) as scorer:
        found = scorer.score([problem] * 2, ["a", "b"])
    assert found["spoils"] == found["spoils_here"] == [2.0, 2.0]
    assert found["sees"] == found["sees_here"] == [1.0, 1.0]
    assert problem.columns["words"] == ["one"]
    assert problem.prompt == ({"role": "user", "content": "hi"},)


def test_a_worker_that_nobody_waits_for_any_more_says_nothing(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(0.3)\nreward = len")
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as board, theirs:
        board.write(bytes(Board.BYTES))
        board.flush()
        worker = SupervisedWorker("groupwise.rewards.worker", (theirs.fileno(), board.fileno()))
    with Connection(ours.detach()) as connection:
        connection.send(Load(f"{tmp_path}/slow.py:reward", {}, False))
        time.sleep(0.2)
    assert worker.wait(20) == 0
    worker.end()
    assert not capfd.readouterr().err


def test_closing_ends_the_worker_and_may_be_repeated() -> None:
    scorer = Scorer([ask("process_id")], 1.0, "stop")
    [worker] = scorer.score([PLAIN], ["a"])["process_id"]
    assert worker is not None
    scorer.close()
    scorer.close()
    assert not _alive(int(worker))


def test_of_a_reward_that_forks_one_process_answers() -> None:
    with Scorer([ask("forks"), ask("right")], 5.0, "stop") as scorer:
        for _ in range(3):
            assert scorer.score([PLAIN] * 3, ["a", "4", "b"])["forks"] == [1.0] * 3


def test_closing_ends_what_left_the_workers_session() -> None:
    with Scorer([ask("starts_a_daemon")], 5.0, "stop") as scorer:
        [daemon] = scorer.score([PLAIN], ["a"])["starts_a_daemon"]
        assert daemon is not None and _alive(int(daemon))
    deadline = time.monotonic() + 10
    while _alive(int(daemon)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(int(daemon))


@pytest.mark.parametrize(
    ("process", "name"),
    [
        ("process_id", "right"),
        ("process_id", "hangs"),
        ("process_id", "hangs_in_c"),
        ("starts_a_daemon", "right"),
        ("starts_a_daemon", "hangs_in_c"),
    ],
)
def test_a_killed_parent_leaves_no_worker_behind(process: str, name: str) -> None:
    """Neither an idle one nor one that is stuck, be it in C code that never lets go; no daemon."""
    script = f"""
        import time
        from groupwise.rewards.base import Reward
        from groupwise.rewards.scorer import Scorer
        from groupwise.types import Problem

        problem = Problem("p", "x", {{"answer": "4"}})
        rewards = [Reward(n, {f"{FILE}:"!r} + n) for n in ({process!r}, {name!r})]
        scorer = Scorer(rewards, 60, "stop")
        process_id = scorer.score([problem], ["fine"])[{process!r}][0]
        print(int(process_id), flush=True)
        scorer.score([problem], ["bad"])
        time.sleep(60)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(0.3)
    assert _alive(worker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(worker)


def test_completions_are_shown_short_and_without_control_characters() -> None:
    assert quoted("a\x1b[31mb\n") == r"'a\x1b[31mb\n'"
    assert quoted("naïve") == "'naïve'"
    long = quoted("x" * 1_000_000 + "end")
    assert len(long) < 350 and long.endswith("end' (1000003 characters)")


def _alive(process: int) -> bool:
    """Whether it runs: one that ended and waits to be collected does not."""
    status = Path(f"/proc/{process}/stat")
    if status.exists():
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return not Path("/proc/self").exists()
