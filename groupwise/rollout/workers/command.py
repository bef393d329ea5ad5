"""`groupwise serve rollouts`: load a model and sample answers until stopped."""

from collections.abc import Callable

from groupwise.config import AdapterSettings
from groupwise.policy.load import Policy, load_policy, pick_device, pick_dtype
from groupwise.rollout.engine import Engine
from groupwise.rollout.workers.holder import Holder, Making, Start
from groupwise.serve.running import Announce, Listening, run_app, with_server_packages


def serve_rollouts(
    model: str,
    device: str,
    precision: str,
    quantization: str | None,
    make_engine: Callable[[Policy, Start], Engine],
    listening: Listening,
    announce: Announce,
) -> None:
    with_server_packages()
    from groupwise.rollout.workers.app import build_app, model_thread

    found = pick_device(device)

    def load(adapter: AdapterSettings | None) -> Policy:
        dtype = pick_dtype(precision, found)
        return load_policy(
            model, found, dtype, layout="padded", adapter=adapter, quantization=quantization
        )

    def app(token: str) -> object:
        holder = Holder(Making(load, make_engine))
        return build_app(holder, model_thread(listening.queue), token)

    run_app(app, listening, announce)
