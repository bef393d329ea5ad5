"""A step as a web page that teaches GRPO with the reader's own data. One file, no network."""

from collections.abc import Iterator

from groupwise.explain.groups import (
    GroupView,
    advantage_formula,
    as_number,
    group_views,
    pick,
    sums,
)
from groupwise.explain.numbers import TokenNumbers
from groupwise.explain.step import Decode, Step
from groupwise.objective.aggregate import AGGREGATE_FORMULAS
from groupwise.tracking.html_page import page, shown, table, text_block

TOKENS_ON_PAGE = 20_000
"""Groups beyond so many tokens are shown without their tokens, so that any browser can open it."""


def step_page(step: Step, group: int | None = None) -> str:
    views = group_views(step)
    title = f"One GRPO step: step {step.number} of {step.name}"
    return page(
        title,
        [
            f"<h1>{shown(title)}</h1>",
            f'<p class="soft">Algorithm {shown(step.config.algorithm.preset)}. '
            f"Source of the numbers: {shown(step.source)}.</p>",
            *_idea(step, pick(views, group)),
            *_all_groups(step, views),
            *_sum(step, views),
        ],
    )


def _idea(step: Step, view: GroupView) -> Iterator[str]:
    objective = step.config.algorithm
    yield "<h2>1. Ask</h2><p>GRPO asks the model the same question several times.</p>"
    yield text_block(view.prompt)
    count = len(view.group.completions)
    yield f"<h2>2. Answer, and score</h2><p>{count} answers were drawn. Rewards score each; the "
    yield "weighted sum is its reward.</p>"
    yield _answers(view)
    yield "<h2>3. Compare within the group</h2>"
    yield (
        f"<p>The rewards have mean <strong>{view.mean:.4f}</strong> and standard deviation "
        f"<strong>{view.deviation:.4f}</strong>. An answer's advantage says how much it beat the "
        f"others: <code>{shown(advantage_formula(objective))}</code>. No second model has to guess "
        "what an answer is worth: the group is the yardstick. Where all answers score the same, "
        "every advantage is 0 and there is nothing to learn.</p>"
    )
    yield "<h2>4. Push tokens</h2>"
    yield (
        "<p>Every token of an answer gets its answer's advantage A. The ratio r is how much "
        "likelier the policy makes the token now than when it was sampled: 1 at the first update "
        f"after sampling. Its loss is <code>{shown(objective.surrogate.formula())}</code>"
    )
    if objective.kl_in_loss:
        yield f" plus <code>{objective.kl_weight:g} · KL</code> to the reference"
    yield (
        f", and the losses become one number as {AGGREGATE_FORMULAS[objective.aggregate]}. "
        "What the model learns from is the slope: the push on a token is dL/dlogp. "
        '<span class="good">Green</span> tokens are made likelier, <span class="bad">red</span> '
        "ones less likely, the stronger the colour the more; a clipped token is pushed no further. "
        "Point at a token to see its numbers.</p>"
    )
    yield _tokens(view, step.decode)


def _answers(view: GroupView) -> str:
    group = view.group
    head = ["", "answer", *(shown(n) for n in group.scores), "reward", "advantage", "loss share"]
    rows = []
    for index, completion in enumerate(group.completions):
        advantage = as_number(group.advantages[index]) if group.advantages else 0.0
        kind = "good" if advantage > 0 else "bad" if advantage < 0 else "soft"
        rows.append(
            (
                str(index + 1),
                text_block(completion.text, 4000)
                + f'<span class="soft">{len(completion.tokens)} tokens, '
                f"{shown(completion.stop)}</span>",
                *(_number(values[index], ".3g") for values in group.scores.values()),
                _number(group.rewards[index], ".3f"),
                f'<span class="{kind}">{advantage:+.4f}</span>',
                f"{view.numbers.share((view.index, index)):+.6f}",
            )
        )
    return table(head, rows, numbers=range(2, len(head)))


def _tokens(view: GroupView, decode: Decode) -> str:
    if not view.computed:
        return "<p>No answer beat another: every advantage is 0, and the group is not computed.</p>"
    lines = {
        answer: tokens for (group, answer), tokens in view.numbers.answers.items()
        if group == view.index
    }  # fmt: skip
    strongest = max((abs(t.push) for tokens in lines.values() for t in tokens), default=0.0)
    parts = []
    for answer in sorted(lines):
        ids = view.group.completions[answer].tokens
        spans = "".join(
            _token(decode(token), numbers, strongest)
            for token, numbers in zip(ids, lines[answer], strict=True)
        )
        parts.append(f'<div class="text tokens"><strong>{answer + 1}</strong> {spans}</div>')
    return "".join(parts)


def _token(text: str, token: TokenNumbers, strongest: float) -> str:
    facts = [
        f"log-prob {token.logprob:.5f}, old {token.old_logp:.5f}, ratio {token.ratio:.5f}"
        + (", clipped" if token.clipped else ""),
        f"entropy {_number(token.entropy, '.4f')}, KL {_number(token.kl, '.6f')}",
        f"loss share {token.loss:+.4e}, push {token.push:+.4e}" if token.counts else "not counted",
    ]
    share = abs(token.push) / strongest if strongest else 0.0
    tone = "--up" if token.push < 0 else "--down"
    edge = "; text-decoration: line-through" if token.clipped else ""
    style = f"background: rgba(var({tone}), {0.75 * share:.3f}){edge}"
    return f'<span style="{style}" title="{shown(" | ".join(facts))}">{shown(text)}</span>'


def _all_groups(step: Step, views: list[GroupView]) -> Iterator[str]:
    yield f"<h2>5. The other groups</h2><p>The step has {len(views)} groups.</p>"
    room = TOKENS_ON_PAGE
    for view in views:
        room -= sum(len(c.tokens) for c in view.group.completions)
        note = "" if view.computed else ', <span class="soft">no spread: adds exactly 0</span>'
        yield (
            f"<details><summary>Group {view.number}: mean reward {view.mean:.3f}, std "
            f"{view.deviation:.3f}, loss share {view.loss:+.3e}{note}</summary>"
        )
        yield text_block(view.prompt, 4000) + _answers(view)
        yield _tokens(view, step.decode) if room > 0 else "<p>Too many tokens for one page.</p>"
        yield "</details>"


def _sum(step: Step, views: list[GroupView]) -> Iterator[str]:
    yield "<h2>6. Add up, step downhill</h2>"
    yield (
        "<p>The shares of all tokens add up to the loss whose gradient the optimizer follows. Do "
        "not look for a falling loss: at the first update after sampling its value is near 0 by "
        "construction (advantages of a group cancel). Its slope is what teaches.</p>"
    )
    rows = [(shown(label), _number(value, "+.9g")) for label, value in sums(step, views)]
    yield table(("", ""), rows, numbers=(1,))
    logged = step.logged.get("loss")
    if logged is not None and step.exact:
        gap = abs(step.loss - logged)
        yield f'<p class="soft">Difference to the logged loss: {gap:.2g}.</p>'


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
