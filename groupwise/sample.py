"""`groupwise sample`: look at what a model answers."""

from rich.panel import Panel

from groupwise.config import Config
from groupwise.load import load_parts
from groupwise.policy.prompts import prompt_tokens
from groupwise.rollout.collect import sample_groups
from groupwise.tracking.console import console, printable
from groupwise.types import Message, Problem, Sampling


def print_samples(config: Config, prompt: str | None, count: int, temperature: float) -> None:
    """`count` answers to `prompt`; or one answer to each of `count` held-out problems."""
    with load_parts(config) as parts:
        sampling = Sampling(
            max_tokens=config.rollout.max_completion_tokens,
            temperature=temperature,
            top_p=config.rollout.top_p,
            stop=config.rollout.stop,
        )
        if prompt is None:
            problems, group_size = parts.problems["test"][:count], 1
        else:
            turn: Message = {"role": "user", "content": prompt}
            problem = Problem("prompt", (turn,))
            problems = [(problem, prompt_tokens(problem, parts.policy.tokenizer))]
            group_size = count
        groups = sample_groups(
            problems,
            parts.engine,
            parts.policy,
            sampling,
            group_size=group_size,
            seed=config.seed,
            step="sample",
        )
        for group in groups:
            console.print(Panel(printable(_shown(group.problem)), title="prompt", style="cyan"))
            for completion in group.completions:
                verdict = ""
                if prompt is None:
                    scores = parts.judge.score([group.problem], [completion.text])
                    verdict = ", ".join(f"{name} {values[0]}" for name, values in scores.items())
                title = f"{len(completion.tokens)} tokens, {completion.stop} {verdict}"
                console.print(Panel(printable(completion.text), title=title))


def _shown(problem: Problem) -> str:
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(f"{turn['role']}: {turn['content']}" for turn in problem.prompt)
