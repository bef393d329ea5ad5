"""What verifiers itself makes of given turns, without groupwise: run by an interpreter that has it.

Reads [{"env", "args", "split", "index", "turns"}, ...] from its standard input, where a turn is an
assistant's message, and writes [{"reward", "messages"}, ...].
"""

import asyncio
import importlib.util
import json
import pathlib
import sys
from typing import Any

import verifiers as vf


class Replayed(vf.Client):
    def __init__(self, turns: list[dict[str, Any]]) -> None:
        super().__init__(None)
        self.turns = iter(turns)

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        turn = next(self.turns)
        calls = [
            vf.ToolCall(id=c["id"], name=c["name"], arguments=json.dumps(c["arguments"]))
            for c in turn.get("calls", ())
        ]
        message = vf.ResponseMessage(
            content=turn["content"],
            tool_calls=calls or None,
            finish_reason="stop",
            is_truncated=False,
        )
        return vf.Response(id="r", created=0, model="m", message=message)

    def setup_client(self, config: Any) -> Any: ...
    async def to_native_tool(self, tool: Any) -> Any: ...
    async def to_native_prompt(self, messages: Any) -> Any: ...
    async def get_native_response(self, *args: Any, **kwargs: Any) -> Any: ...
    async def raise_from_native_response(self, response: Any) -> None: ...
    async def from_native_response(self, response: Any) -> Any: ...
    async def close(self) -> None: ...


def load(env: str, args: dict[str, Any]) -> vf.Environment:
    file = pathlib.Path(env.rpartition(":")[0])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load_environment(**args)


async def outcome(case: dict[str, Any]) -> dict[str, Any]:
    environment = load(case["env"], case["args"])
    rows = environment.get_dataset() if case["split"] == "train" else environment.get_eval_dataset()
    output = await environment.run_rollout(
        rows[case["index"]], Replayed(case["turns"]), "m", {}, state_columns=[]
    )
    messages = [[m["role"], m["content"]] for m in output["completion"]]
    return {"reward": output["reward"], "messages": messages}


async def main() -> None:
    cases = json.load(sys.stdin)
    answers = [await outcome(case) for case in cases]
    print("\n" + json.dumps(answers))


asyncio.run(main())
