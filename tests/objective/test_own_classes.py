"""Surrogates and advantage estimators from outside the package: in a recipe, and from Python."""

import pathlib
from collections.abc import Iterator

import pytest
from torch import Tensor

import groupwise
from groupwise.errors import ConfigError
from groupwise.explain.step import run_step
from groupwise.objective.advantages import AdvantageEstimator, GroupRewards
from groupwise.objective.objective import Objective
from groupwise.objective.surrogates import SURROGATES, Surrogate, Terms
from groupwise.recipe import load_recipe
from groupwise.tracking.run import read_metrics
from runs import fingerprint, small_config

QUICK = ("steps=1", "eval.problems=1", "eval.k=1")

FILE = """
from groupwise.objective.surrogates import Surrogate


class Doubled(Surrogate):
    factor: float = 2.0

    def loss(self, x):
        return -self.factor * x.ratio * x.advantages

    def formula(self):
        return f"-{self.factor:g} r A"


class Other:
    pass
"""


class Doubled(Surrogate):
    factor: float = 2.0

    def loss(self, x: Terms) -> Tensor:
        return -self.factor * x.ratio * x.advantages


class BestOnly(AdvantageEstimator):
    """1 for the best answers of a group, 0 for the others."""

    def estimate(self, rewards: GroupRewards) -> Tensor:
        total_NG = rewards.total_NG.nan_to_num(nan=-1e9)
        best_N1 = total_NG.amax(1, keepdim=True)
        return (total_NG == best_N1).double() * (total_NG.amin(1, keepdim=True) < best_N1)


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    (tmp_path / "doubled_surrogate.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def losses(run: pathlib.Path) -> list[float]:
    return [line["grad_norm"] for line in read_metrics(run)]


def test_a_surrogate_named_in_an_override_trains_resumes_and_is_explained(
    folder: pathlib.Path,
) -> None:
    named = "algorithm.surrogate.kind=doubled_surrogate.py:Doubled"
    plain = groupwise.train(small_config(*QUICK), "plain", quiet=True)
    twice = groupwise.train(small_config(*QUICK, named), "twice", quiet=True)
    assert losses(twice.folder)[0] == pytest.approx(2 * losses(plain.folder)[0], rel=1e-4)
    again = groupwise.train(small_config(*QUICK, "steps=2", named), "twice", quiet=True)
    assert again.summary["steps"] == 2
    with pytest.raises(ConfigError, match="--trust-code"):
        run_step(twice.folder, 1)
    step = run_step(twice.folder, 1, trust_code=True)
    assert step.config.algorithm.surrogate.formula() == "-2 r A"
    assert step.loss == pytest.approx(read_metrics(twice.folder)[0]["loss"], abs=1e-6)


def test_objects_from_python_are_the_same_as_names(folder: pathlib.Path) -> None:
    config = small_config(*QUICK)
    named = small_config(*QUICK, "algorithm.surrogate.kind=doubled_surrogate.py:Doubled")
    one = groupwise.train(config, "object", algorithm=Doubled(), quiet=True)
    other = groupwise.train(named, "named", quiet=True)
    assert losses(one.folder) == losses(other.folder)
    assert fingerprint(one.folder)  # it is a whole run
    groupwise.train(config, "best", algorithm=BestOnly(), quiet=True)
    with pytest.raises(ConfigError, match="takes a surrogate or estimator"):
        groupwise.train(config, "wrong", algorithm=3, quiet=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown preset 'clip'; there are: grpo"):
        groupwise.train(config, "wrong", algorithm="clip", quiet=True)


def test_a_recipe_file_may_name_one_only_when_trusted(folder: pathlib.Path) -> None:
    recipe = folder / "recipe.yaml"
    recipe.write_text("algorithm: {surrogate: {kind: 'doubled_surrogate.py:Doubled', factor: 3}}\n")
    with pytest.raises(ConfigError, match=r"algorithm\.surrogate\.kind=doubled_surrogate"):
        load_recipe(str(recipe))
    loaded = load_recipe(str(recipe), trust_code=True).algorithm.loaded()
    assert loaded.surrogate.model_dump()["factor"] == 3
    recipe.write_text("algorithm: {surrogate: 'os:system'}\n")
    with pytest.raises(ConfigError, match="derive it from Surrogate"):
        load_recipe(str(recipe), trust_code=True)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"kind": "doubled_surrogate.py:Other"}, "derived from Surrogate"),
        ({"kind": "doubled_surrogate.py:Nobody"}, "no function or class"),
        ({"kind": "nowhere.py:Doubled"}, "no file"),
        ({"kind": "doubled_surrogate.py:Doubled", "factr": 1}, "factr"),
    ],
)
def test_what_cannot_be_used_is_an_error_with_the_reason(
    folder: pathlib.Path, block: dict, message: str
) -> None:
    objective = Objective.model_validate({"surrogate": block})
    with pytest.raises(ConfigError, match=message):
        objective.loaded()


def test_every_file_of_the_folder_is_a_surrogate_with_formula_and_loss() -> None:
    package = pathlib.Path(groupwise.__file__).parent / "objective" / "surrogates"
    files = {path.stem for path in package.glob("*.py")} - {"__init__", "base"}
    assert files == set(SURROGATES)
    for kind, chosen in SURROGATES.items():
        assert chosen().formula() != kind and chosen.loss is not Surrogate.loss
