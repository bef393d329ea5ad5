"""The loop and what it needs; and the call that runs it: `groupwise.train(config)`.

    config = groupwise.load_recipe("demo", ["steps=20"])
    result = groupwise.train(config)        # see groupwise.train.api.train for its arguments
    result.model                            # the trained model's folder

The package is callable because it shares its name with that function: whichever of the two was
imported first, `groupwise.train(...)` trains and `groupwise.train.loop` is the module.
"""

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from groupwise.train.api import train

        return train(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
