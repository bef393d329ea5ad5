import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from groupwise.errors import DataError, ModelError
from groupwise.policy.prompts import decode, eos_ids, fit_prompts, prompt_tokens
from groupwise.types import Problem

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<bos>{{ m['role'] }}:{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<bos>assistant:{% endif %}"
)
BOS, EOS = 0, 1


def byte_tokenizer(template: str | None = TEMPLATE) -> Any:
    """One token a byte, with <bos> and <eos>; plain text gets a <bos> in front."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<bos>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<eos>"
    )
    made.chat_template = template
    return made


TOKENIZER, BASE = byte_tokenizer(), byte_tokenizer(template=None)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def shown(tokens: tuple[int, ...]) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=False)


def test_a_conversation_goes_through_the_chat_template() -> None:
    problem = Problem("p", ({"role": "system", "content": "kind"}, user("hi")))
    tokens = prompt_tokens(problem, TOKENIZER)

    assert shown(tokens) == "<bos>system:kind<eos><bos>user:hi<eos><bos>assistant:"
    assert all(type(token) is int for token in tokens) and type(tokens) is tuple
    assert list(tokens) == TOKENIZER.apply_chat_template(
        list(problem.prompt), add_generation_prompt=True, tokenize=True, return_dict=False
    )


def test_plain_text_gets_the_tokenizers_own_bos() -> None:
    assert shown(prompt_tokens(Problem("p", "2+2="), TOKENIZER)) == "<bos>2+2="


def test_the_prefill_follows_without_special_tokens_and_changes_nothing_before_it() -> None:
    for prompt in ("2+2=", (user("hi"),)):
        bare = prompt_tokens(Problem("p", prompt), TOKENIZER)
        opened = prompt_tokens(Problem("p", prompt, prefill="<think>"), TOKENIZER)

        assert opened[: len(bare)] == bare
        assert shown(opened[len(bare) :]) == "<think>"


def test_a_base_model_gets_the_contents_joined_by_blank_lines() -> None:
    problem = Problem("p", ({"role": "system", "content": "kind"}, user("hi")))

    assert shown(prompt_tokens(problem, BASE)) == "<bos>kind\n\nhi"


def test_a_template_that_refuses_a_role_and_an_empty_prompt_say_which_problem() -> None:
    with pytest.raises(ModelError, match=r"problem p7: .* \(roles: tool\): no tools here"):
        prompt_tokens(Problem("p7", ({"role": "tool", "content": "x"},)), TOKENIZER)
    bare = byte_tokenizer()
    bare.backend_tokenizer.post_processor = processors.ByteLevel()
    with pytest.raises(DataError, match="problem p8 has no tokens"):
        prompt_tokens(Problem("p8", ""), bare)


PROMPTS = st.one_of(st.text(max_size=20), st.text(max_size=20).map(lambda text: (user(text),)))
PROBLEMS = st.builds(
    Problem, st.just("p"), PROMPTS, st.just({}), st.sampled_from(["", "<think>", "é"])
)


@given(st.lists(PROBLEMS, max_size=8), st.integers(1, 60))
def test_fitting_keeps_order_and_the_tokens_of_each_alone(
    problems: list[Problem], limit: int
) -> None:
    alone = [(problem, prompt_tokens(problem, TOKENIZER)) for problem in problems]
    expected = [(problem, tokens) for problem, tokens in alone if len(tokens) <= limit]
    if problems and not expected:
        shortest = min(len(tokens) for _, tokens in alone)
        with pytest.raises(DataError, match=rf"shortest has {shortest} tokens\. Set .*={shortest}"):
            fit_prompts(problems, TOKENIZER, limit)
        return

    assert fit_prompts(problems, TOKENIZER, limit) == (expected, len(problems) - len(expected))


def test_thousands_of_prompts_take_seconds() -> None:
    problems = [Problem(str(i), (user(f"What is {i} + {i}? " * 5),)) for i in range(4000)]
    start = time.perf_counter()
    fitting, left_out = fit_prompts(problems, TOKENIZER, 120)

    assert time.perf_counter() - start < 10
    # 83 tokens and 10 for each digit of the number, so those of four digits do not fit in 120.
    assert [problem.id for problem, _ in fitting] == [str(i) for i in range(1000)]
    assert left_out == 3000


def model(config: Any, generation: Any) -> Any:
    generation_config = None if generation is None else SimpleNamespace(**generation)
    return SimpleNamespace(config=SimpleNamespace(**config), generation_config=generation_config)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 5}, {"eos_token_id": [7, 5]}, (1, 5, 7)),
        ({"eos_token_id": [9, 2]}, {"eos_token_id": None}, (1, 2, 9)),
        ({"eos_token_id": None}, None, (1,)),
        ({}, {"eos_token_id": 0}, (0, 1)),
    ],
)
def test_every_source_of_end_tokens_counts(
    config: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    assert eos_ids(model(config, generation), TOKENIZER) == expected


@pytest.mark.parametrize("token", [2**63, -(2**40)])
def test_an_end_token_that_no_array_holds_is_refused(token: int) -> None:
    with pytest.raises(ModelError, match=f"eos_token_id={token} of the model is no token"):
        eos_ids(model({"eos_token_id": [token, 1]}, None), TOKENIZER)


def test_a_model_without_any_end_token_has_none() -> None:
    no_eos = SimpleNamespace(eos_token_id=None)

    assert eos_ids(model({}, None), no_eos) == ()


def test_decoding_leaves_out_special_tokens_and_the_one_that_ended_it() -> None:
    text = TOKENIZER("5 é\n.", add_special_tokens=False)["input_ids"]
    dot = text[-1]

    assert decode((BOS, *text, EOS), TOKENIZER, (EOS,)) == "5 é\n."
    assert decode(text, TOKENIZER, (EOS, dot)) == "5 é\n"
    assert decode((), TOKENIZER, (EOS,)) == ""


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_text_survives_its_tokens(text: str) -> None:
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]

    assert decode((*tokens, EOS), TOKENIZER, (EOS,)) == text.replace("<bos>", "").replace(
        "<eos>", ""
    )
