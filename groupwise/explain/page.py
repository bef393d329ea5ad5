"""A step as a web page that teaches GRPO with the reader's own data. One file, no network."""

from groupwise.explain.groups import (
    GroupView,
    advantage_formula,
    group_views,
    pick,
    sampled,
    sums,
)
from groupwise.explain.numbers import TokenNumbers
from groupwise.explain.step import ExplainedStep
from groupwise.objective.aggregate import AGGREGATE_FORMULAS
from groupwise.report.conversation import answer_text
from groupwise.report.html import page

TOKENS_ON_PAGE = 20_000
"""Groups beyond so many tokens are shown without their tokens, so that any browser can open it."""

Shown = tuple[str, TokenNumbers, str, bool]
"""A token's text, its numbers, the strength of its colour, and whether the policy sampled it."""


def step_page(step: ExplainedStep, group: int | None = None) -> str:
    views = group_views(step)
    objective = step.config.algorithm

    def token_lines(view: GroupView) -> list[tuple[str, list[Shown]]]:
        """Each answer's label and tokens."""
        answers = list(enumerate(view.group.completions))
        pushes = [abs(token.push) for answer, _ in answers for token in view.tokens(answer)]
        strongest = max(pushes, default=0.0) or 1.0
        return [
            (
                view.label(answer),
                [
                    (step.decode(id), token, f"{0.75 * abs(token.push) / strongest:.3f}", own)
                    for id, token, own in zip(
                        completion.tokens, view.tokens(answer), sampled(completion), strict=True
                    )
                ],
            )
            for answer, completion in answers
            if view.computed
        ]

    room, shown_views = TOKENS_ON_PAGE, []
    for view in views:
        room -= sum(len(completion.tokens) for completion in view.group.completions)
        shown_views.append((view, room > 0))
    return page(
        "explain/step.html",
        step=step,
        objective=objective,
        chosen=pick(views, group),
        views=shown_views,
        sums=sums(step, views),
        advantage_formula=advantage_formula(step.config),
        aggregate_formula=AGGREGATE_FORMULAS[objective.aggregate],
        token_lines=token_lines,
        answer_text=answer_text,
        episodes=any(c.episode for view in views for c in view.group.completions),
    )
