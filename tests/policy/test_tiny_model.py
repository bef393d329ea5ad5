"""The embedded model: a standard folder, a lossless tokenizer, and a start that can learn."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import groupwise.policy
from groupwise.answers.tags import think_answer_format
from groupwise.config.tasks import ArithmeticTask
from groupwise.tasks import arithmetic

TINY = Path(groupwise.policy.__file__).parent / "tiny"
TOKENIZER = AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY)


def sample(model, problems, answers_each, max_new_tokens=48):
    prompts = [
        TOKENIZER.apply_chat_template(
            list(problem.prompt), tokenize=False, add_generation_prompt=True
        )
        for problem in problems
    ]
    inputs = TOKENIZER(prompts, return_tensors="pt", padding=True)
    torch.manual_seed(0)
    with torch.no_grad():
        output = model.generate(
            **inputs,
            do_sample=True,
            top_k=0,
            max_new_tokens=max_new_tokens,
            num_return_sequences=answers_each,
        )
    return output[:, inputs["input_ids"].shape[1] :]


def test_folder_is_below_8_mb_and_has_no_pickle():
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".jinja", ".md"}


def test_it_is_a_llama_of_one_to_three_million_float32_parameters(model):
    assert model.config.architectures == ["LlamaForCausalLM"]
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 3_000_000
    assert model.dtype == torch.float32


def test_loading_warns_of_nothing(caplog, recwarn):
    logging.enable_propagation()
    try:
        AutoModelForCausalLM.from_pretrained(TINY)
        AutoTokenizer.from_pretrained(TINY)
    finally:
        logging.disable_propagation()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert not [warning for warning in recwarn if "transformers" in str(warning.filename)]


def test_special_tokens_agree_between_tokenizer_and_model(model):
    assert TOKENIZER.pad_token_id != TOKENIZER.eos_token_id
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        wanted = getattr(TOKENIZER, name)
        assert wanted == getattr(model.config, name) == getattr(model.generation_config, name)
    assert len(TOKENIZER) == model.config.vocab_size


@given(st.text(max_size=80))
def test_any_text_survives_the_tokenizer(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_tags_digits_and_signs_are_single_visible_tokens():
    for piece in ["<think>", "</think>", "<answer>", "</answer>", *"0123456789+-*/=()"]:
        (token,) = TOKENIZER.encode(piece)
        assert TOKENIZER.decode([token], skip_special_tokens=True) == piece
    assert len(TOKENIZER.encode("<think>12345+6-789=</think>")) == 14


def test_chat_template_knows_the_three_roles_and_opens_the_answer():
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "3+3?"},
    ]
    text = TOKENIZER.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|bos|><|system|>Be brief.<|end|><|user|>2+2?<|end|><|assistant|>4<|end|>"
        "<|user|>3+3?<|end|><|assistant|>"
    )
    with pytest.raises(Exception, match="unknown role wizard"):
        TOKENIZER.apply_chat_template([{"role": "wizard", "content": "?"}], tokenize=False)


def test_prompt_of_the_default_task_takes_few_tokens():
    problem = arithmetic.problem_of("23+48-16")
    prompt = TOKENIZER.apply_chat_template(
        list(problem.prompt), tokenize=True, add_generation_prompt=True
    )["input_ids"]
    assert len(prompt) <= 26


def test_sampled_answers_start_between_15_and_45_percent_right_in_partly_good_form(model):
    problems = arithmetic.build(ArithmeticTask(train_size=1, test_size=64)).validation
    answers = sample(model, problems, answers_each=4)
    texts = TOKENIZER.batch_decode(answers, skip_special_tokens=True)
    right = [
        arithmetic.correct(text, problems[index // 4].columns["answer"])
        for index, text in enumerate(texts)
    ]
    assert 0.15 < sum(right) / len(right) < 0.45
    assert 0.55 < sum(map(think_answer_format, texts)) / len(texts) < 0.9
    assert (answers != TOKENIZER.pad_token_id).sum() / len(answers) < 30


def test_working_it_out_is_nearly_always_right(model):
    problems = arithmetic.build(ArithmeticTask(train_size=1, test_size=100)).test
    starts, prompts = [], []
    for problem in problems:
        first = problem.columns["expression"]
        cut = max(first.rfind("+"), first.rfind("-"))
        step = arithmetic.problem_of(first[:cut])
        starts.append(f"<think>{step.columns['expression']}={step.columns['answer']} ")
        prompts.append(
            TOKENIZER.apply_chat_template(
                list(problem.prompt), tokenize=False, add_generation_prompt=True
            )
            + starts[-1]
        )
    inputs = TOKENIZER(prompts, return_tensors="pt", padding=True)
    with torch.no_grad():
        output = model.generate(**inputs, do_sample=False, max_new_tokens=32)
    texts = TOKENIZER.batch_decode(
        output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    right = sum(
        arithmetic.correct(start + text, problem.columns["answer"])
        for start, text, problem in zip(starts, texts, problems, strict=True)
    )
    assert right >= 95
