"""What goes wrong elsewhere in multi-turn training, and the test here that fails if it does.

Issues of other projects are named by project and number. Each test below fails on an implementation
that does the obvious thing: renders the conversation again, awaits tools one after the other, ...
"""

import asyncio
import importlib
import time
from dataclasses import replace

import pytest

from environments.scripted import LIMITS, PROBLEM, Scripted, ScriptedEngine, episodes, user
from groupwise.types import Problem, Sampling

FAULTS = {
    "retokenisation (trl 5224, verl 6719, NeMo-RL 1337, verifiers 476)": (
        "test_chat.test_sampled_tokens_are_not_tokenized_again",
        "test_chat.test_random_conversations_only_grow",
        "test_renderers.test_sampled_tokens_are_never_tokenized_again",
        "test_gateway_session.test_a_conversation_goes_on_from_the_tokens_that_were_sampled",
    ),
    "templates that drop thinking (verl 6854, prime-rl 1334, SkyRL 178 and 438)": (
        "test_chat.test_templates_that_rewrite_the_past_are_caught",
        "test_episode.test_a_template_that_drops_thinking_splits_the_episode",
        "test_renderers.test_a_template_that_drops_thinking_still_splits_the_episode",
        "test_gateway_session.test_a_template_that_drops_thinking_splits_the_session",
        "test_credit.test_an_episode_counts_once_however_often_it_was_split",
    ),
    "a slow tool blocks everybody (trl 7175, SkyRL 240, verifiers 237, NeMo-RL 1798)": (
        "test_episode.test_a_slow_tool_blocks_nobody_else",
        "test_verifiers.test_slow_tools_do_not_wait_for_each_other",
    ),
    "hangs (verifiers 1258, prime-rl 1713)": (
        "test_processes.test_every_fault_costs_its_own_episode_only",
        "test_episode.test_a_broken_environment_costs_its_own_episode_only",
        "test_mcp.test_a_crash_or_a_hang_costs_its_own_episode_only",
        "test_verifiers.test_one_that_blocks_is_ended_and_started_again",
        "test_agent.test_functions_that_fail_cost_their_own_episode",
    ),
    "event-loop lag (prime-rl 2360, slime 1361)": (
        "test_faults.test_code_that_blocks_does_not_hold_up_the_event_loop",
        "test_episode.test_a_loop_that_sampling_blocks_is_no_time_out",
    ),
    "one session per server (OpenEnv 194 and 517)": (
        "test_openenv.test_a_server_of_one_session_serves_many_episodes",
        "test_openenv.test_waiting_for_a_session_is_not_the_environment_s_time",
    ),
    "tool output eats the answer's budget (TRL)": (
        "test_episode.test_replies_do_not_eat_the_answer_s_budget",
        "test_episode.test_a_long_reply_is_cut_and_says_so",
        "test_gateway_session.test_a_long_message_behind_a_turn_is_cut_and_the_conversation_goes_on",
    ),
    "malformed calls (trl 4890)": (
        "test_calls.test_a_malformed_call_says_what_is_wrong_with_it",
        "test_calls.test_no_text_breaks_the_parser",
        "test_tools_and_trl.test_the_model_is_told_what_was_wrong_with_its_call",
    ),
    "a default reward of 0 makes doing nothing pay (trl 6427)": (
        "test_episode.test_no_reward_is_none_and_not_0",
        "test_environment_bench"
        ".test_a_default_of_0_beside_negative_rewards_makes_doing_nothing_pay",
    ),
    "a verifier callable in mid-episode (OpenEnv 428)": (
        "test_tools_and_trl.test_the_verifier_cannot_be_called_in_mid_episode",
        "test_environment_bench.test_a_verifier_that_can_be_asked_before_the_end_is_found",
    ),
    "normalising by turn index (verl 7244)": (
        "test_credit.test_normalising_by_turn_number_points_elsewhere",
        "test_credit.test_the_gradient_s_expectation_is_the_true_gradient",
    ),
    "metrics averaged per turn (labs-molt 64)": (
        "test_credit.test_metrics_are_means_over_episodes",
        "test_ranks.test_metrics_are_means_over_the_episodes_of_all_ranks",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_tests(fault: str) -> None:
    for name in FAULTS[fault]:
        module, _, function = name.partition(".")
        assert callable(getattr(importlib.import_module(f"environments.{module}"), function))


def test_code_that_blocks_does_not_hold_up_the_event_loop() -> None:
    """An `async` tool that blocks all the same, as most do: nobody else's loop stands still."""

    async def blocks() -> object:
        time.sleep(0.5)
        return user("on", done=True)

    def make(problem: Problem) -> Scripted:
        return Scripted(lambda turn: blocks())

    async def longest_wait() -> float:
        runner = episodes(make, replace(LIMITS, step_seconds=20.0))
        keys, samplings = tuple(range(4)), [Sampling(max_tokens=50)] * 4
        engine = ScriptedEngine(lambda prompt: "x")
        group = asyncio.ensure_future(runner.group(PROBLEM, engine, keys, samplings, seed=5))
        longest = 0.0
        while not group.done():
            began = time.monotonic()
            await asyncio.sleep(0.005)
            longest = max(longest, time.monotonic() - began)
        assert {answer.stop for answer in group.result().completions} == {"eos"}
        return longest

    assert asyncio.run(longest_wait()) < 0.4
