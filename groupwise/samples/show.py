"""`groupwise sample`: look at what a model answers."""

from rich.panel import Panel

from groupwise.config import Config
from groupwise.errors import ModelError
from groupwise.load import Parts, load_parts
from groupwise.policy.prompts import prompt_tokens
from groupwise.report.conversation import answer_text, answer_tokens
from groupwise.rollout.groups import scores_of
from groupwise.tasks.base import Task
from groupwise.tracking.console import console, printable, prompt_text
from groupwise.types import Group, Problem, Sampling


def asked_as_trained(question: str, task: Task) -> Problem:
    """A question of one's own in the form of the task's: its system prompt, examples, prefill."""
    model = task.train[0]
    if isinstance(model.prompt, str):
        return Problem("prompt", question, prefill=model.prefill)
    turns = (*model.prompt[:-1], {**model.prompt[-1], "content": question})
    return Problem("prompt", turns, prefill=model.prefill)


def print_samples(config: Config, prompt: str | None, count: int, temperature: float) -> None:
    """`count` answers to `prompt`; or one answer to each of `count` test problems."""
    with load_parts(config, rewards=()) as parts:
        sampling = Sampling(
            max_tokens=config.rollout.max_completion_tokens,
            temperature=temperature,
            top_p=config.rollout.top_p,
            stop=config.rollout.stop,
        )
        if prompt is None:
            problems, group_size = parts.problems["test"][:count], 1
        else:
            problem = asked_as_trained(prompt, parts.task)
            tokens = prompt_tokens(problem, parts.policy.tokenizer)
            most = getattr(
                parts.policy.model.config.get_text_config(), "max_position_embeddings", None
            )
            if most is not None and len(tokens) >= most:
                raise ModelError(f"the prompt has {len(tokens)} tokens, and the model reads {most}")
            problems = [(problem, tokens)]
            group_size = count
        groups = parts.sample_groups(
            problems, sampling, group_size=group_size, step="sample", in_episodes=prompt is None
        )
        for group in groups:
            _print_group(group, parts if prompt is None else None)


def _print_group(group: Group, judged_by: Parts | None) -> None:
    question = printable(prompt_text(group.problem))
    console.print(Panel(question, title="prompt", style="cyan"))
    scores = scores_of([group], judged_by.judge, judged_by.episodes) if judged_by else {}
    for index, completion in enumerate(group.completions):
        if completion.segment:  # it goes on in the record of its first segment
            continue
        verdict = ", ".join(f"{name} {values[index]}" for name, values in scores.items())
        title = f"{answer_tokens(completion)} tokens, {completion.stop} {verdict}"
        console.print(Panel(printable(answer_text(completion)), title=printable(title)))
