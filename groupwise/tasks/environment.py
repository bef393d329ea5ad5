"""Problems that the environment makes up itself, when it is reset.

There is nothing to judge an answer by but the environment's own reward. Each problem is one seed:
its episodes begin alike where the environment draws by it.
"""

from groupwise.config.tasks import EnvironmentTask
from groupwise.tasks.base import Split, Task
from groupwise.tasks.generated import split_sizes
from groupwise.types import Problem


def build(settings: EnvironmentTask) -> Task:
    def problems(split: Split) -> list[Problem]:
        prompt = ({"role": "user", "content": settings.prompt},)
        return [
            Problem(f"{split} {number}", prompt) for number in range(split_sizes(settings)[split])
        ]

    train, validation, test = problems("train"), problems("validation"), problems("test")
    return Task("environment", train, None, validation=validation, test=test)
