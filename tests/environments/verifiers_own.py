"""Environments of verifiers' first API for tests, loaded by an interpreter that has verifiers."""

import os
import time
from typing import Any

import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"What is {n}+1?", "answer": str(n + 1)} for n in range(12)]


def right(completion: Any, answer: str) -> float:
    return float(answer in completion[-1]["content"])


def words(completion: Any) -> float:
    return sum(len(m["content"].split()) for m in completion if m["role"] == "assistant")


def raises(completion: Any) -> float:
    raise KeyError("no such word")


def together(completions: Any, answers: Any) -> list[float]:
    return [1.0 for _ in completions]


class Counter(vf.StatefulToolEnv):
    """Its tool takes the episode's own state, which the model does not see."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(tools=[], **kwargs)
        self.add_tool(self.count_up, args_to_skip=["state"])

    async def count_up(self, by: int, state: Any) -> str:
        """Counts up.

        Args:
            by: How far.
            state: The episode's.
        """
        state["count"] += by
        return f"now {state['count']}"

    async def setup_state(self, state: Any) -> Any:
        state["count"] = 0
        return await super().setup_state(state)

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **_: Any):
        return {**tool_args, "state": state}


class Tries(vf.MultiTurnEnv):
    """As its row says: `blocks`, `exits`, `raises`, `forgets`, `errs`, or asks again."""

    async def setup_state(self, state: Any) -> Any:
        state["prompt"] = [*state["prompt"], vf.UserMessage(content="Think.")]
        return state

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        does = (state.get("info") or {}).get("does")
        if does == "blocks":
            time.sleep(3600)
        elif does == "exits":
            os._exit(7)
        elif does == "raises":
            raise ValueError("out of order")
        elif does == "errs":
            raise vf.ToolError("no tools today")
        print("printing is allowed")
        if state["answer"] in messages[-1]["content"]:
            state["final_env_response"] = [vf.UserMessage(content="Right.")]
            return state["final_env_response"]
        return [vf.UserMessage(content="Try again.")]

    async def get_prompt_messages(self, state: Any) -> Any:
        messages = await super().get_prompt_messages(state)
        forgets = (state.get("info") or {}).get("does") == "forgets"
        return messages[-1:] if forgets and state["trajectory"] else messages


def slow(seconds: float) -> str:
    """Sleeps.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "awake"


def count(state: Any) -> float:
    return float(state["count"])


def load_environment(kind: str, does: tuple[str, ...] = ()) -> vf.Environment:
    rows = [{**row, "info": {"does": d}} for row, d in zip(ROWS, does, strict=False)] or ROWS
    dataset = Dataset.from_list(rows)
    if kind == "stateful":
        return Counter(dataset=dataset, rubric=vf.Rubric(funcs=[count]))
    if kind == "slow":
        return vf.ToolEnv(dataset=dataset, tools=[slow], rubric=vf.Rubric(funcs=[words]))
    if kind == "single":
        rubric = vf.Rubric(funcs=[right, words], weights=[1.0, 0.1])
        return vf.SingleTurnEnv(dataset=dataset, rubric=rubric, system_prompt="Answer.")
    if kind == "together":
        return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=[together]))
    if kind == "complains":
        return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric(funcs=[raises, right]))
    if kind == "group":
        parts = [load_environment("single"), load_environment("tries")]
        return vf.EnvGroup(parts, env_names=["single", "tries"])
    assert kind == "tries", kind
    return Tries(dataset=dataset, rubric=vf.Rubric(funcs=[right, words], weights=[1.0, 0.5]))
