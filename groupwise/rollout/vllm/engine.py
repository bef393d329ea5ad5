"""Which vLLM a recipe asks for: servers where it names some, else one in this process."""

from groupwise.config import Config
from groupwise.distributed.world import World
from groupwise.errors import ConfigError
from groupwise.policy.load import Policy
from groupwise.rollout.engine import Engine


def vllm_engine(policy: Policy, config: Config) -> Engine:
    if config.adapter is not None and config.adapter.dora:
        raise ConfigError(
            "vLLM cannot serve DoRA adapters: set adapter.dora=false, or engine.kind=native"
        )
    if config.engine.urls:
        from groupwise.rollout.vllm.servers import VllmServers

        return VllmServers(policy, config.engine, longest=longest_row(config))
    from groupwise.rollout.vllm.colocated import VllmColocated

    return VllmColocated(policy, config, longest=longest_row(config))


def share_servers(engine: Engine, world: World) -> None:
    """In a run of several ranks the first pushes weights, under a name that all know."""
    from groupwise.rollout.vllm.servers import VllmServers

    if world.size > 1 and isinstance(engine, VllmServers):
        engine.writer, engine.run = world.first, world.broadcast(engine.run)


def longest_row(config: Config) -> int:
    """Tokens of the longest prompt with its longest answer, in training and in evaluation."""
    answer = max(config.rollout.max_completion_tokens, config.eval.max_completion_tokens or 0)
    return config.rollout.max_prompt_tokens + answer
