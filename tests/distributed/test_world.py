"""Shares, SLURM's variables, exit codes: what needs no second process."""

import json
import pathlib
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.batch import make_batch
from groupwise.cli.train import train as train_command
from groupwise.distributed import launch
from groupwise.distributed.join import joined
from groupwise.distributed.launch import EndedRank
from groupwise.distributed.slurm import adopt_slurm, first_host
from groupwise.distributed.world import ALONE, World, even_shares, lost_ranks
from groupwise.errors import ConfigError, RankLost
from groupwise.objective.assign import assign_advantages
from groupwise.policy.logprobs import with_dummies
from groupwise.policy.packing import microbatches
from groupwise.rollout.groups import Rollout
from groupwise.training.exchange import Exchange, assign_over_ranks, own_share
from groupwise.training.memory_fit import TokenBudget
from groupwise.training.parallel import check_ranks, kind_for
from groupwise.training.signals import StopRequest
from groupwise.training.update import rollout_batch
from groupwise.types import Problem
from runs import small_config
from small_models import random_groups, random_policy
from updates import accumulate, plain_optimizer


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_shares_hold_everything_once_and_are_even(sizes: list[int], ranks: int) -> None:
    shares = even_shares(sizes, ranks)
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    loads = [sum(sizes[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)
    assert all(share == sorted(share) for share in shares)


def test_alone_everything_is_as_it_was() -> None:
    assert ALONE.gather({"a": float("inf")}) == [{"a": float("inf")}]
    assert ALONE.share([1, 2, 3], lambda items: [item * 2 for item in items]) == [2, 4, 6]


class Together(World):
    """Ranks that are threads of this process: what they say goes through a list."""

    said: list[list[str]]
    turn: threading.Barrier

    def gather(self, value: object) -> list[object]:
        self.said[self.rank].append(json.dumps(value))
        self.turn.wait(10)
        found = [json.loads(texts[-1]) for texts in self.said]
        self.turn.wait(10)
        return found

    def gather_to_first(self, data: bytes) -> list[bytes]:
        parts = [str(part).encode("latin-1") for part in self.gather(data.decode("latin-1"))]
        return parts if self.first else []

    def scatter_from_first(self, parts: Sequence[bytes]) -> bytes:
        texts = self.broadcast([part.decode("latin-1") for part in parts])
        return texts[self.rank].encode("latin-1")


def in_threads(size: int, work: Callable[[World], object]) -> list[object]:
    """`work(world)` of each rank."""
    said: list[list[str]] = [[] for _ in range(size)]
    turn = threading.Barrier(size)
    found: list[object] = [None] * size

    def run(rank: int) -> None:
        world = Together(rank, size)
        object.__setattr__(world, "said", said)
        object.__setattr__(world, "turn", turn)
        found[rank] = work(world)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_groups_that_one_rank_sampled_are_handed_out_once_and_come_back_whole(
    count: int, minibatches: int
) -> None:
    """Columns of problems do not travel: they may be anything."""
    problems = [(Problem(f"p{i}", "?", {"odd": object()}), (i,)) for i in range(count)]
    groups = [
        replace(group, problem=problem)
        for group, (problem, _) in zip(random_groups(count, seed=3), problems, strict=True)
    ]
    sampled = Rollout(groups, count + 1)

    def work(world: World) -> object:
        exchange = Exchange(world, problems, each_rank_samples=False)
        own = exchange.scatter(sampled if world.first else Rollout([], 0), minibatches)
        return own, exchange.gather([own])

    shares, whole = zip(*in_threads(3, work), strict=True)  # pyright: ignore
    assert sorted(place for own in shares for place in own.group_indices) == list(range(count))
    assert {(own.drawn, own.group_total) for own in shares} == {(count + 1, count)}
    for own in shares:
        assert own.groups == [groups[place] for place in own.group_indices]
    assert whole[0][0].groups == groups and whole[1:] == ([], [])


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_advantages_over_ranks_are_those_of_the_whole_step(scale: str) -> None:
    groups, config = random_groups(3, 4, seed=5), small_config(f"algorithm.advantage.scale={scale}")
    weights = dict.fromkeys(groups[0].scores, 1.0)
    expected = assign_advantages(make_batch(groups), config.algorithm, weights).groups

    def work(world: World) -> object:
        own = own_share(Rollout(groups, 3), world)
        batch = replace(
            make_batch(own.groups), group_indices=own.group_indices, group_total=own.group_total
        )
        return assign_over_ranks(batch, config.algorithm, weights, world).groups

    shares = in_threads(4, work)  # one has none
    assert shares == [tuple(expected[n : n + 1]) for n in range(4)]


def test_gradients_of_ranks_add_up_to_that_of_one_process() -> None:
    """Four ranks, three groups: one rank has nothing to do."""
    groups, config = random_groups(3, 4, seed=1), small_config("batch.tokens_per_microbatch=30")
    whole = random_policy(layout="padded")
    accumulate(groups, whole, config)
    policies = [random_policy(layout="padded") for _ in range(4)]
    denominator = rollout_batch(groups, config).denominator

    def of_rank(world: World) -> object:
        own = groups[world.rank : world.rank + 1]
        return accumulate(
            own,
            policies[world.rank],
            config,
            optimizer=plain_optimizer(world),
            denominator=denominator,
        )

    in_threads(4, of_rank)
    for name, weight in whole.model.named_parameters():
        parts = [dict(policy.model.named_parameters())[name].grad for policy in policies]
        total = sum(part for part in parts if part is not None)
        assert weight.grad is not None and sum(part is None for part in parts) == 1
        assert (weight.grad - total).abs().max().item() < 1e-6, name


def test_a_blank_pass_leaves_the_gradient_alone() -> None:
    groups, config = random_groups(2, 3, seed=2), small_config()
    plain, padded = random_policy(), random_policy()
    accumulate(groups, plain, config)
    more = replace(padded, passes=lambda count: count + 2)
    nothing = microbatches(make_batch([]), more.layout, 1)
    assert [bool(p.members) for p in with_dummies(more, nothing)] == [False, False]
    metrics = accumulate(groups, more, config)
    assert metrics is not None
    for ours, theirs in zip(plain.model.parameters(), padded.model.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert (ours.grad - theirs.grad).abs().max().item() == 0


def test_ranks_agree_to_take_less_when_one_runs_out_of_memory() -> None:
    def work(world: World) -> object:
        budget, tried = TokenBudget(64, world), []

        def attempt(tokens: int) -> int:
            tried.append(tokens)
            if world.rank == 1 and tokens > 20:
                raise MemoryError("no memory")
            return tokens

        return budget.fit(attempt, lambda: None, 8), tried

    assert in_threads(2, work) == [(16, [64, 32, 16])] * 2


def test_slurm_says_who_a_task_is() -> None:
    found = {
        "SLURM_PROCID": "5",
        "SLURM_NTASKS": "16",
        "SLURM_LOCALID": "1",
        "SLURM_NODELIST": "gpu[07-09,12],login1",
        "SLURM_JOB_ID": "40123",
        "SLURM_STEP_ID": "0",
    }
    adopt_slurm(found)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [found[name] for name in names] == ["5", "16", "1", "gpu07", "12123"]


@pytest.mark.parametrize(
    "change",
    [{"SLURM_STEP_ID": None}, {"SLURM_NTASKS": "1"}, {"RANK": "0"}, {"SLURM_PROCID": None}],
)
def test_a_batch_script_one_task_and_other_launchers_are_left_alone(
    change: dict[str, str | None],
) -> None:
    told = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
    environment = {k: v for k, v in (told | change).items() if v is not None}
    before = dict(environment)
    adopt_slurm(environment)
    assert environment == before


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node1", "node1"),
        ("a1,a2", "a1"),
        ("n[001-064]", "n001"),
        ("r[1-2]n[3,5]x,z", "r1n3x"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first


@given(st.text(alphabet="ab0-9[],", max_size=60))
def test_no_list_of_hosts_is_too_much(hosts: str) -> None:
    assert len(first_host(hosts)) <= len(hosts)


@pytest.mark.parametrize(
    ("codes", "stopped", "code", "said"),
    [
        ([(0, 0), (1, 0)], False, 0, ""),
        ([(1, 3), (0, 3)], False, 3, ""),
        ([(1, 3), (0, 1)], True, 3, ""),
        ([(1, -9), (0, 1)], False, 1, "rank 1 of 2 ended first, with SIGKILL"),
        ([(0, 1), (1, 2)], False, 2, "[rank 1] error: a fix"),
        ([(1, 1), (0, -9)], True, 1, "[rank 1] error: a fix"),
        ([(0, 3), (1, -9)], False, 1, "rank 0 of 2 ended first, with exit code 3"),
        ([(1, -2), (0, 0)], True, 3, ""),
        ([(1, -2), (0, 0)], False, 1, "rank 1 of 2 ended first, with SIGINT"),
    ],
)
def test_one_exit_code_stands_for_all_ranks(
    codes: list[tuple[int, int]],
    stopped: bool,
    code: int,
    said: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outputs = [tmp_path / "0", tmp_path / "1"]
    outputs[1].write_text("much\nerror: a fix\n")
    ended = [EndedRank(*pair) for pair in codes]
    assert launch._exit_code(ended, outputs, stopped=stopped) == code
    assert said in capsys.readouterr().err


def test_two_launchers_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="leave --nproc out"):
        train_command(["demo"], nproc="2")


def test_a_number_of_processes_without_their_names_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="MASTER_ADDR, MASTER_PORT are not set"), joined("cpu", 5):
        pass


def test_only_lost_connections_are_called_lost_ranks() -> None:
    with pytest.raises(RankLost, match="goes on from the last checkpoint"), lost_ranks():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:1")
    with pytest.raises(RuntimeError, match="shapes"), lost_ranks():
        raise RuntimeError("shapes do not match")


def test_the_kind_follows_from_the_recipe_and_the_number_of_processes() -> None:
    two = World(0, 2)
    assert kind_for(small_config(), two) == "ddp"
    assert kind_for(small_config("distributed.kind=zero3"), two) == "zero3"
    assert kind_for(small_config("distributed.kind=zero3"), ALONE) == "none"


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (["quantization=int8", "adapter=lora"], "distributed.kind=ddp"),
        (["optimizer.kind=adamw_8bit"], "optimizer.kind=adamw"),
        (["optimizer.offload=true"], "distributed.offload_parameters=true"),
    ],
)
def test_what_cannot_be_cut_is_refused_with_the_fix(overrides: list[str], fix: str) -> None:
    config = small_config("distributed.kind=fsdp2", *overrides)
    with pytest.raises(ConfigError, match=fix):
        check_ranks(config, World(0, 2))
    check_ranks(config, ALONE)


@pytest.mark.parametrize(
    "overrides",
    [
        ["distributed.kind=ddp", "distributed.offload_parameters=true"],
        ["distributed.kind=fsdp2", "distributed.offload_optimizer=true"],
        ["distributed.kind=zero4"],
    ],
)
def test_a_block_that_cannot_work_is_refused_at_once(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match="distributed"):
        small_config(*overrides)


def test_a_signal_that_arrives_while_ranks_ask_is_heard_at_the_next_place() -> None:
    class Interrupted(World):
        """A signal is handled in the middle of what the ranks say to each other."""

        def gather(self, value: object) -> list[object]:
            if value is None:
                signal.raise_signal(signal.SIGTERM)
            return [value, None]

    with StopRequest() as stop:
        world = Interrupted(0, 2)
        assert stop.agreed(world) is None, "the other rank does not know of it yet"
        assert stop.agreed(world) == stop.requested == "SIGTERM"
