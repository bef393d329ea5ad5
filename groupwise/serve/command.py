"""`groupwise serve reference`: load a model and answer until stopped."""

from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.serve.identity import identify
from groupwise.serve.running import Announce, Listening, run_app, with_server_packages
from groupwise.serve.wire import Limits
from groupwise.serve.worker import Worker


def serve_reference(
    model: str,
    device: str,
    precision: str,
    quantization: str | None,
    tokens: int,
    listening: Listening,
    announce: Announce,
) -> None:
    """`tokens`: in one forward pass."""
    with_server_packages()
    from groupwise.serve.app import build_app

    def app(token: str) -> object:
        found = pick_device(device)
        policy = load_policy(model, found, pick_dtype(precision, found), quantization=quantization)
        policy.model.requires_grad_(False)
        worker = Worker(policy, tokens, listening.queue)
        return build_app(worker, limits_of(policy, tokens), identify(policy), token)

    run_app(app, listening, announce)


def limits_of(policy: Policy, tokens: int) -> Limits:
    config = policy.model.config.get_text_config()
    return Limits(tokens, policy.vocab, getattr(config, "max_position_embeddings", None))
