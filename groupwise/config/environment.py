"""What a model talks to while it answers: one class of settings for each kind of environment.

environment: {kind: tools, functions: [calculator.py:add], max_turns: 4}
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Tag, model_validator

from groupwise.config.addresses import server_url
from groupwise.config.base import Settings
from groupwise.config.engine import OWN, kind_of
from groupwise.extensions import Code


class Weights(Settings):
    """What rewards of an environment weigh, unless its kind has settings for that."""

    @property
    def reward_weight(self) -> float:
        """Of the environment's own reward, if it has one; it may be passed from Python."""
        return 1.0

    @property
    def turn_weight(self) -> float | None:
        """What the rewards of turns weigh, where each turn has an advantage of its own."""
        return None


class NoEnvironment(Weights):
    """An answer is one turn."""

    kind: Literal["none"] = "none"


class EnvironmentSettings(Weights):
    """What every environment has."""

    max_turns: int = Field(default=8, ge=1)
    """Turns of the model in an episode. rollout.max_completion_tokens is for all of them."""
    max_reply_tokens: int = Field(default=1024, ge=1)
    """Tokens of one message of the environment; the rest of a longer one is left out."""
    step_seconds: float = Field(default=60.0, gt=0)
    """Seconds that the environment may take for one reply. After that it has failed, and the
    episode ends."""
    episode_seconds: float = Field(default=600.0, gt=0)
    """Seconds that the environment may take in one episode, all replies together."""
    at_once: int = Field(default=256, ge=1)
    """Episodes that use the model at the same time; those that wait for a slow environment do not
    count."""
    max_open: int | None = Field(default=None, ge=1)
    """Most episodes that have begun and not ended, those that wait for their environment included:
    as many as a server or this machine can take. Twice at_once if not given."""
    in_rounds: bool = False
    """Episodes take their turns together, so that a run on a CPU repeats bit for bit. All of them
    wait for the slowest reply then."""
    chat: Literal["auto", "template", "renderers"] = "auto"
    """How conversations are continued: by the package `renderers` for the model families that it
    knows, or by the chat template."""


class HasIsolation(EnvironmentSettings):
    """Runs code in this machine's processes; what talks to a server or a program needs none."""

    isolation: Literal["process", "thread"] = "process"
    """process: a crash or a hang costs an episode. thread: in the process of the run."""


class HasReward(EnvironmentSettings):
    """Gives a reward of its own."""

    weight: float = Field(default=1.0, ge=-1e6, le=1e6)
    """Of the environment's own reward, which is one more beside `rewards`."""

    @property
    def reward_weight(self) -> float:
        return self.weight


class HasTurnRewards(HasReward):
    """May give a reward for each turn."""

    turn_rewards: bool = False
    """Each turn has its own advantage, from which rewards of earlier turns are left out."""

    @property
    def turn_weight(self) -> float | None:
        return self.weight if self.turn_rewards else None


class ToolsEnvironment(HasIsolation):
    """Python functions that the model may call; a turn without a call ends the episode."""

    kind: Literal["tools"] = "tools"
    functions: Annotated[tuple[str, ...], Code("tool")] = Field(min_length=1)
    """file.py:function or package.module:function, typed and documented; ours are
    `calculate` and `python`, which runs programs in a sandbox."""


class CodeBlocksEnvironment(EnvironmentSettings):
    """Runs the ```python blocks of a turn and shows what they print; a turn without one ends."""

    kind: Literal["code_blocks"] = "code_blocks"


class GuessNumberEnvironment(EnvironmentSettings):
    """Says higher or lower to each guess, for the task `guess_number`."""

    kind: Literal["guess_number"] = "guess_number"


class TrlEnvironmentSettings(HasIsolation, HasReward):
    """A class as TRL's `environment_factory` takes it."""

    kind: Literal["trl"] = "trl"
    factory: Annotated[str, Code("environment")] = ""
    """file.py:Class: has `reset`; its public methods are tools; may have `get_reward`."""
    factories: Annotated[dict[str, str], Code("environment")] = Field(default={})
    """Or several by name, of which a row's column `environment` chooses."""
    tools: Annotated[tuple[str, ...], Code("tool")] = ()
    """Further functions that the model may call."""
    rewards: Annotated[tuple[str, ...], Code("reward")] = ()
    """TRL's reward functions that ask for `environments`: their sum joins the environment's own."""

    @model_validator(mode="after")
    def _one_way(self) -> "TrlEnvironmentSettings":
        if bool(self.factory) == bool(self.factories):
            raise ValueError("give either factory, one class, or factories, several by name")
        return self


class McpEnvironmentSettings(EnvironmentSettings):
    """Tools of an MCP server; a turn without a call ends the episode."""

    kind: Literal["mcp"] = "mcp"
    command: Annotated[tuple[str, ...], Code("program", always=True)] = Field(min_length=1)
    """The program that is the server, and its arguments: [python, my_server.py]."""
    shared: bool = False
    """One server for all episodes, where it keeps nothing of them; otherwise each has its own."""


class OpenEnvSettings(HasTurnRewards):
    """An OpenEnv server, whose observations are replies and whose rewards are the turns'."""

    kind: Literal["openenv"] = "openenv"
    url: Annotated[str, AfterValidator(server_url)]
    """http://127.0.0.1:8000"""
    show: tuple[str, ...] = ()
    """Fields of an observation that the model sees (none: all of them)."""


class ReasoningGymEnvironmentSettings(HasIsolation, HasReward):
    """Further tries at a task of reasoning-gym (`task: gym:NAME`), after a wrong answer."""

    kind: Literal["reasoning_gym"] = "reasoning_gym"
    feedback: str = Field(
        default="That is not right. Try again, and give the answer in <answer> </answer>.",
        min_length=1,
    )
    """What is said after a wrong answer."""


class VerifiersEnvironmentSettings(HasReward):
    """An environment of verifiers: its datasets are the task, its rubric is the reward."""

    kind: Literal["verifiers"] = "verifiers"
    env: Annotated[str, Code("environment", always=True)] = Field(min_length=1)
    """Its id, where its package is installed; or file.py:load_environment."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for its load_environment."""
    python: Annotated[str | None, Code("environment", always=True)] = None
    """The interpreter that has verifiers (None: this one), .venv-verifiers/bin/python."""


class AgentEnvironment(HasReward):
    """A program or a function that asks the model itself, over an OpenAI-compatible URL."""

    kind: Literal["agent"] = "agent"
    command: Annotated[tuple[str, ...], Code("program", always=True)] = ()
    """A program and its arguments, started for each episode: [python, my_agent.py]."""
    function: Annotated[str, Code("environment")] = ""
    """Or file.py:run, an async function run(base_url, api_key, problem)."""
    override_sampling: bool = False
    """Draw by the run's settings also where a request asks for another temperature, top_p, penalty
    or seed. Otherwise such a request is refused: its answers could not be learned from exactly."""

    @model_validator(mode="after")
    def _one_agent(self) -> "AgentEnvironment":
        if bool(self.command) == bool(self.function):
            raise ValueError("an agent is either a command or a function: give one of the two")
        return self


class OwnEnvironment(HasIsolation, HasTurnRewards):
    """An environment of yours, `file.py:Class`: made once for each episode, with the problem."""

    kind: Annotated[str, Code("environment")]


FIELDS = {
    "functions": "tools",
    "function": "agent",
    "factory": "trl",
    "factories": "trl",
    "url": "openenv",
    "feedback": "reasoning_gym",
    "env": "verifiers",
}
"""Fields that one kind alone has, which need not be named then."""


def environment_kind(given: Any) -> Any:
    """The kind of an environment's settings, as an object or as a recipe has them."""
    if isinstance(given, Mapping):
        named = [kind for field, kind in FIELDS.items() if field in given]
        return given.get("kind", named[0] if named else "none")
    return getattr(given, "kind", given)


def check_problems(environment: str, task: str) -> None:
    """Some kinds of environments go with one kind of task alone."""
    if environment == "reasoning_gym" and task != "gym":
        raise ValueError(
            "environment=reasoning_gym needs problems of reasoning-gym: task=gym:NAME, such as "
            f"task=gym:countdown, not {task}"
        )
    if environment == "verifiers" != task:
        raise ValueError(
            "environment.kind=verifiers brings its own problems: leave out the task, or write "
            f"task=verifiers, not {task}"
        )
    if task == "verifiers" != environment:
        raise ValueError("task=verifiers has the problems of environment.kind=verifiers: name that")


AnyEnvironment = Annotated[
    Annotated[NoEnvironment, Tag("none")]
    | Annotated[ToolsEnvironment, Tag("tools")]
    | Annotated[CodeBlocksEnvironment, Tag("code_blocks")]
    | Annotated[TrlEnvironmentSettings, Tag("trl")]
    | Annotated[GuessNumberEnvironment, Tag("guess_number")]
    | Annotated[AgentEnvironment, Tag("agent")]
    | Annotated[McpEnvironmentSettings, Tag("mcp")]
    | Annotated[OpenEnvSettings, Tag("openenv")]
    | Annotated[ReasoningGymEnvironmentSettings, Tag("reasoning_gym")]
    | Annotated[VerifiersEnvironmentSettings, Tag("verifiers")]
    | Annotated[OwnEnvironment, Tag(OWN)],
    kind_of("none", **FIELDS),
]
