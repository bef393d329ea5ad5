"""Programs in the model's own text: those of a turn are run, and the model is told what they print.

    user        How many eggs are left?
    assistant   ```python
                print(16 - 3 - 4)
                ```
    user        ```output
                9
                ```
    assistant   #### 9

For models that write programs in fenced blocks more readily than calls of tools. The blocks of a
turn are one program, run in the sandbox of the code rewards. A turn without any ends the episode;
it is what the recipe's rewards see. Blocks inside of what the model thought are thoughts.
"""

import re

from groupwise.environments.base import Environment, EnvironmentFactory, Reply, Turn
from groupwise.environments.calls import THINKING_ENDS
from groupwise.environments.python_tool import python
from groupwise.rewards.sandbox.ways import check_isolation
from groupwise.types import Problem

_BLOCK = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL)


class CodeBlocks(Environment):
    async def step(self, turn: Turn) -> Reply:
        blocks = _BLOCK.findall(turn.text.rpartition(THINKING_ENDS)[2])
        if not blocks:
            return Reply(done=True)
        output = await python("\n".join(blocks))
        return Reply(({"role": "user", "content": f"```output\n{output}\n```"},))


def code_blocks_environment() -> EnvironmentFactory:
    """For `groupwise.train(config, environment=code_blocks_environment())`."""
    check_isolation()  # complains now rather than in every episode
    return EnvironmentFactory("code_blocks", _begin, scores=False, isolate=False, thread="shared")


def _begin(problem: Problem) -> CodeBlocks:
    return CodeBlocks()
