"""benchmarks/planned.py, which is no package's module, by the names that tests use."""

import importlib.util
import pathlib
import sys

PATH = pathlib.Path(__file__).parents[3] / "benchmarks" / "planned.py"
spec = importlib.util.spec_from_file_location("planned", PATH)
assert spec is not None and spec.loader is not None
planned = importlib.util.module_from_spec(spec)
sys.modules["planned"] = planned  # its dataclasses look for it there
spec.loader.exec_module(planned)
Step = planned.Step
