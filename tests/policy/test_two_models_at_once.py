"""One model is sampled from in a thread while another is trained: neither disturbs the other."""

from concurrent.futures import ThreadPoolExecutor

from engines import generate
from groupwise.rollout.native.engine import NativeEngine
from groupwise.types import Request, Sampling
from small_models import random_groups, random_policy
from updates import policy_logprobs


def test_attention_belongs_to_a_model_not_to_the_process() -> None:
    sampled, trained = random_policy(seed=1), random_policy(seed=2, layout="shared_prefix")
    engine = NativeEngine(sampled, 8)
    requests = [Request((3, 4, 5 + n), (n, n + 10)) for n in range(3)]
    groups = random_groups(3, 4, seed=1)

    def answers() -> list[list[tuple[int, ...]]]:
        drawn = generate(engine, requests, Sampling(max_tokens=12))
        return [[c.tokens for c in group] for group in drawn]

    expected, logprobs = answers(), policy_logprobs(trained, groups, 1.0, 200)
    with ThreadPoolExecutor(1) as thread:
        for _ in range(5):
            beside = thread.submit(answers)
            for _ in range(5):
                assert policy_logprobs(trained, groups, 1.0, 200) == logprobs
            assert beside.result() == expected
