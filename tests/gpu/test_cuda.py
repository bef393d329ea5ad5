"""What only a GPU can show: graphs, flash attention over packed answers."""

import pytest
import torch
import torch.nn.functional as F

from engines import generate
from groupwise.policy.compiled import _uncompilable
from groupwise.policy.load import Policy, make_policy
from groupwise.policy.weights import trained_weights
from groupwise.recipe import parse
from groupwise.rollout.engine_thread import EngineThread
from groupwise.rollout.native.cuda_graphs import end_step
from groupwise.rollout.native.engine import NativeEngine
from groupwise.rollout.transformers import TransformersEngine
from groupwise.training.optim import _add_into
from groupwise.types import Request, Sampling
from small_models import random_groups, random_model, tokenizer
from updates import accumulate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
REQUESTS = [Request(tuple(range(5, 5 + n)), tuple(range(9 * n, 9 * n + 4))) for n in (3, 9, 20)]


def cuda_policy(family: str = "llama", dtype: torch.dtype = torch.bfloat16) -> Policy:
    return make_policy(random_model(family, dtype).to("cuda"), tokenizer())


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2"])
@pytest.mark.parametrize("slots", [64, 5])
@pytest.mark.parametrize("compiled", [False, True])
def test_greedy_in_fp32_is_token_identical_with_generate(
    family: str, slots: int, compiled: bool
) -> None:
    policy = cuda_policy(family, torch.float32)
    greedy = Sampling(max_tokens=30, temperature=0.0)
    expected = generate(TransformersEngine(policy, 16), REQUESTS, greedy)
    found = generate(NativeEngine(policy, slots, compiled), REQUESTS, greedy)
    assert [[a.tokens for a in g] for g in found] == [[a.tokens for a in g] for g in expected]


@pytest.mark.parametrize("compiled", [False, True])
def test_bf16_log_probs_agree_with_the_trainers(compiled: bool) -> None:
    policy = cuda_policy()
    groups = generate(NativeEngine(policy, 64, compile_layers=compiled), REQUESTS, Sampling(30))
    for request, answers in zip(REQUESTS, groups, strict=True):
        for answer in answers:
            tokens = torch.tensor([request.prompt_tokens + answer.tokens], device="cuda")
            logprobs = policy.model(tokens).logits[0].float().log_softmax(-1)
            start = len(request.prompt_tokens)
            own = logprobs[start - 1 : -1].gather(-1, tokens[0, start:, None]).squeeze(-1)
            gap = (own.cpu() - torch.tensor(answer.logprobs)).abs()
            assert gap.mean() < 0.05


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("compiled", ["none", "all"])
def test_packed_answers_give_the_padded_gradient(family: str, compiled: str) -> None:
    groups = random_groups(5, 6, 1, empty=True)
    grads = []
    for layout in ("padded", "shared_prefix"):
        policy = make_policy(random_model(family, torch.bfloat16).to("cuda"), tokenizer(), layout)
        accumulate(groups, policy, parse({"compile": compiled}))
        found = [p.grad.float().flatten() for p in policy.model.parameters() if p.grad is not None]
        grads.append(torch.cat(found))
    assert not _uncompilable
    assert F.cosine_similarity(grads[0], grads[1], dim=0) > 0.995


def test_weights_that_move_in_memory_are_followed() -> None:
    policy = cuda_policy("qwen2", torch.float32)
    greedy = Sampling(max_tokens=12, temperature=0.0)
    engine = NativeEngine(policy, 16, compile_layers=True)
    generate(engine, REQUESTS, greedy)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.data = parameter.data * 1.5
    expected = generate(TransformersEngine(policy, 16), REQUESTS, greedy)
    found = generate(engine, REQUESTS, greedy)
    assert [[a.tokens for a in g] for g in found] == [[a.tokens for a in g] for g in expected]


@torch.no_grad()
def test_a_thread_samples_beside_other_work_from_weights_that_are_complete() -> None:
    """Its stream waits for the kernels that compute new weights, and these may be freed then."""
    policy, other = (cuda_policy("qwen2", torch.float32) for _ in range(2))
    greedy = Sampling(max_tokens=12, temperature=0.0)
    engine = EngineThread(NativeEngine(policy, 16, compile_layers=True), policy.device)
    work = torch.randn(8192, 8192, device="cuda")
    try:
        generate(engine, REQUESTS, greedy)
        for version in range(1, 4):
            for _ in range(20):  # some 100 ms, after which alone the weights are there
                busy = work @ work
                for parameter in other.model.parameters():
                    parameter.mul_(1.01 + 0 * busy[0, 0])
            weights = {name: weight.clone() for name, weight in trained_weights(other).items()}
            engine.load_weights(version, weights.items())
            sizes = [weight.shape for weight in weights.values()]
            del weights
            for size in sizes:  # in the memory that has become free
                torch.randn(size, device="cuda")
            expected = generate(TransformersEngine(other, 16), REQUESTS, greedy)
            found = generate(engine, REQUESTS, greedy)
            assert [[a.tokens for a in g] for g in found] == [
                [a.tokens for a in g] for g in expected
            ]
    finally:
        engine.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1,), (4097,), (300, 1000)])
def test_gradients_in_half_precision_are_added_up_exactly(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    from groupwise.training.gradient_kernel import add_into

    for add in (add_into, _add_into):
        total, part = torch.randn(shape, device="cuda"), torch.randn(shape, device="cuda").to(dtype)
        expected = total + part.float()
        add(total, part)
        assert torch.equal(total, expected)


def test_a_gradient_in_another_order_of_memory_is_added_up() -> None:
    total = torch.randn(30, 50, device="cuda")
    across = torch.randn(50, 30, device="cuda").bfloat16().T
    expected = total + across.float()
    _add_into(total, across)
    assert torch.equal(total, expected)


def test_a_step_ends_as_separate_operations_end_it() -> None:
    from groupwise.rollout.native import end_step_kernel

    ends = []
    for end in (end_step, end_step_kernel.end_step):
        torch.manual_seed(0)
        rows = 1500
        tokens, logprobs = torch.randint(0, 99, (rows,)).cuda(), torch.randn(rows).cuda()
        last, lens, positions = torch.randint(0, 99, (3, rows + 7)).cuda()
        drawn = torch.zeros(4, 2, rows + 7, dtype=torch.float64, device="cuda")
        step = torch.tensor([2], device="cuda")
        state = last[:rows], lens[:rows], positions[:rows]
        end(tokens, logprobs, *state, drawn[:, :, :rows], step)
        ends.append([last, lens, positions, drawn, step])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
