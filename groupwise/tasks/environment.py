"""Problems that the environment makes up itself, when it is reset.

There is nothing to judge an answer by but the environment's own reward. Each problem is one seed:
its episodes begin alike where the environment draws by it.
"""

from groupwise.config.tasks import EnvironmentTask
from groupwise.tasks.base import SPLITS, Task
from groupwise.tasks.generated import split_sizes
from groupwise.types import Problem


def build(settings: EnvironmentTask) -> Task:
    prompt = ({"role": "user", "content": settings.prompt},)
    splits = {
        split: [Problem(f"{split} {number}", prompt) for number in range(size)]
        for split, size in split_sizes(settings).items()
    }
    train, validation, test = (splits[split] for split in SPLITS)
    return Task("environment", train, validation=validation, test=test)
