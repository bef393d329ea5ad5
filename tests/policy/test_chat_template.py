"""A chat template is a program of the model's author: sandboxed, bounded, one error."""

import os
import signal
import time
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils.chat_template_utils import _compile_jinja_template

from groupwise.errors import Interrupted, ModelError
from groupwise.policy import chat_template
from groupwise.policy.chat_template import render_chat
from groupwise.training.signals import StopRequest
from test_prompts import TEMPLATE, byte_tokenizer, user

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


GROWING = (
    "{%% set n = namespace(x='x') %%}{%% for i in range(60) %%}{%% set n.x = %s %%}{%% endfor %%}"
)


def test_an_ordinary_template_is_rendered_in_a_sandbox() -> None:
    environment = _compile_jinja_template(TEMPLATE).environment
    assert isinstance(environment, ImmutableSandboxedEnvironment)
    assert render_chat(byte_tokenizer(), [user("hi")]) == "<bos>user:hi<eos>"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ 1/0 }}", "division by zero"),
        ("{{ 9**9**9 }}", "computes powers"),
        ("{% generation %}{{ 9**9**9 }}{% endgeneration %}", "computes powers"),
        ("{{ 'x' * 100000000000 }}", "numbers beyond"),
        ("{{ 'x' * 9999999 * 2 }}", "more than"),
        ("{{ [1] * 10**9 }}", "computes powers"),  # transformers computed it while it compiled
        ("{% set n = 9999999 %}{{ [1] * n * 999 }}", "more than"),
        ("{% set n = 9999999 %}{{ n * n * n }}", "numbers beyond"),
        ("{{ '{:9999999999}'.format(1) }}", "numbers beyond"),
        ("{{ ('{:' ~ '9999' ~ '99999' ~ '}').format(1) }}", "more than"),
        ("{{ '{:{}}'.format(1, 999999) }}", "more than"),
        ("{{ '%*d' % (999999, 1) }}", "more than"),
        (GROWING % "n.x + n.x", "more than"),
        (GROWING % "n.x ~ n.x", "more than"),
        (GROWING % "[n.x, n.x] | join", "more than"),
        (GROWING % "[n.x, n.x] | map('string') | join(n.x)", "more than"),
        (GROWING % "''.join([n.x, n.x])", "more than"),
        (GROWING % "'%s%s' % (n.x, n.x)", "more than"),
        (GROWING % "'{0}{0}'.format(n.x)", "more than"),
        (GROWING % "n.x | replace('x', 'xx')", "more than"),
        (GROWING % "(n.x ~ 'x').replace('x', n.x)", "more than"),
        (GROWING % "[n.x, n.x]" + "{{ n.x }}", "more than"),
        (GROWING % "[n.x, n.x]" + "{{ n.x | tojson }}", "more than"),
        (GROWING % "n.x + n.x" + "{{ [n.x] }}", "more than"),
        ("{{ 'x' | replace('x', 'x' * 9999) | replace('x', 'x' * 9999) }}", "more than"),
        ("{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}", "more than"),
        ("{% set x %}{% for i in range(9999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}", "more"),
        ("{{ 'x'.ljust(('99999' ~ '99999') | int) }}", "numbers beyond"),
        ("{{ ('a\\n' * 9999) | indent(9999) }}", "more than"),
        ("{{ 'a\\nb' | indent(('99999' ~ '99999') | int) }}", "numbers beyond"),  # all constant
        ("{{ none + 1 }}", "unsupported operand"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{", "unexpected 'end"),
    ],
)
def test_what_a_template_does_wrong_is_one_error(
    template: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 100.0)  # on a busy machine the reason is the same
    with pytest.raises(ModelError, match=f"cannot render a conversation.*{reason}"):
        render_chat(byte_tokenizer(template), [user("hi")])


def test_what_templates_do_to_tools_and_numbers_is_done() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{%- set at = messages[0].at -%}"
        "{{ tools | tojson(indent=4) | replace('a', 'bb') }} {{ '%s-%d' % ('n', at) }} "
        "{{ messages | map(attribute='content') | join(', ') | indent(2) }} {{ at + 1 }} "
        "{{ [1, 'x'] | string }} {{ '{} {:>3}'.format(5, 'x') }} {{ 'x'.center(3) ~ 2 ~ none }} "
        "{{ (at | string).split('7')[0] }} {{ at % 60 }} {{ at | tojson }} {{ at }}"
    )
    first = {**user("hi"), "at": 1_700_000_000}
    text = render_chat(tokenizer, [first, user("ho")], tools=[{"a": 1}])
    numbers = "1 20 1700000000 1700000000"
    listed = '[\n    {\n        "bb": 1\n    }\n]'
    assert text == f"{listed} n-1700000000 hi, ho 1700000001 [1, 'x'] 5   x  x 2None {numbers}"


def test_a_template_may_multiply() -> None:
    assert render_chat(byte_tokenizer("{{ '=' * 3 * 2 }}{{ 6 * 7 }}"), [user("hi")]) == "======42"


def test_a_template_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"longer than 0\.3 s"):
        render_chat(byte_tokenizer(ENDLESS), [user("hi")])
    assert time.monotonic() - began < 5
    assert render_chat(byte_tokenizer(), [user("hi")])  # nothing strikes later


def test_a_template_that_is_slow_each_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "PATIENCE", 0.05)
    monkeypatch.setattr(chat_template, "SLOW", 1e-4)
    slow = byte_tokenizer("{% for i in range(90000) %}{% endfor %}x")
    with pytest.raises(ModelError, match="s for a conversation"):
        for _ in range(200):
            render_chat(slow, [user("hi")])


def test_ctrl_c_while_prompts_are_rendered_is_no_error_of_the_template() -> None:
    tokenizer = byte_tokenizer()

    def interrupted(*given: Any, **options: Any) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        return ""

    tokenizer.apply_chat_template = interrupted
    with StopRequest() as stop:
        stop.at_once = True
        with pytest.raises(Interrupted, match="stopped by SIGINT before training began"):
            render_chat(tokenizer, [user("hi")])
        assert stop.requested == "SIGINT"  # were it dropped on the way, the loop would stop
