"""Reward models as rewards of a recipe: what they score, how, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoModelForSequenceClassification

from groupwise.errors import GroupwiseError
from groupwise.load import find_rewards
from groupwise.recipe import parse
from groupwise.reward_models.model import (
    KINDS,
    Kind,
    RewardModel,
    load_reward_model,
    save_reward_model,
)
from groupwise.reward_models.predict import preferences, score_answers
from groupwise.reward_models.reward import PreferenceReward, learned_reward, mean_wins
from groupwise.rewards.base import Reward
from groupwise.rewards.cot import cot_features
from groupwise.rewards.scorer import Scorer
from groupwise.tasks.catalog import build_task
from groupwise.types import Problem
from small_reward_models import bert, pair_tokenizer, random_reward_model

CPU = torch.device("cpu")
SUM = Problem("sum", "2+2=", {"answer": "4"})
CHAT = Problem("chat", ({"role": "user", "content": "What is 3+4?"},), {"answer": "7"})
ANSWERS = ["4", "5", "", "step 1: 2+2=4", "x" * 20_000, "<think>2+2=4</think><answer>4</answer>"]


def saved(made: RewardModel, folder: Path) -> str:
    save_reward_model(made, folder)
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, str]:
    base = tmp_path_factory.mktemp("reward_models")
    return {kind: saved(random_reward_model(kind), base / kind) for kind in KINDS}


def classifier(folder: Path, labels: int) -> str:
    bert(labels).save_pretrained(folder)
    pair_tokenizer().save_pretrained(folder)
    return str(folder)


def scores(folder: str, problems: list[Problem], texts: list[str], **options: Any) -> list[Any]:
    reward = Reward("learned", learned_reward(f"model:{folder}", options, CPU))
    with Scorer([reward], timeout=60, on_error="stop") as scorer:
        return scorer.score(problems, texts)["learned"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_scores_to_the_bit_as_alone(kind: Kind, folders: dict[Kind, str]) -> None:
    """Which groups are scored in one call depends on time, and a run must not."""
    alone = scores(folders[kind], [CHAT] * 3, ANSWERS[:3])
    beside = [*[SUM] * len(ANSWERS), *[CHAT] * 3]
    assert scores(folders[kind], beside, [*ANSWERS, *ANSWERS[:3]])[-3:] == alone


@pytest.mark.parametrize("kind", KINDS)
def test_any_answer_gets_a_finite_score_and_a_saved_model_gives_the_same(
    kind: Kind, folders: dict[Kind, str]
) -> None:
    options = {"threshold": 0.0} if kind == "preference" else {}
    found = scores(folders[kind], [CHAT] * len(ANSWERS), ANSWERS, **options)
    assert all(math.isfinite(score) for score in found)
    assert len(set(found)) > 3
    made = random_reward_model(kind)
    reward: Any = PreferenceReward(made, 16, 0.0)
    if kind == "preference":
        again = list(reward([CHAT.prompt] * len(ANSWERS), ANSWERS, [0] * len(ANSWERS)))
    else:
        again = list(score_answers(made, [CHAT.prompt] * len(ANSWERS), ANSWERS))
    assert found == pytest.approx(again, abs=1e-5)


def test_a_folder_holds_no_pickle_and_the_auto_class_knows_it(folders: dict[Kind, str]) -> None:
    for folder in folders.values():
        names = {path.name for path in Path(folder).iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
        assert not {name for name in names if name.endswith((".bin", ".pt", ".pkl", ".py"))}
    loaded = AutoModelForSequenceClassification.from_pretrained(folders["cot"])
    assert type(loaded).__name__ == "CotRewardModel"
    kinds = [load_reward_model(folder, CPU).kind for folder in folders.values()]
    assert kinds == list(folders)


@pytest.mark.parametrize("kind", ["scalar", "cot"])
def test_a_score_does_not_depend_on_the_batch(kind: Kind, folders: dict[Kind, str]) -> None:
    problems = [CHAT, SUM] * 3
    alone = [scores(folders[kind], [p], [t])[0] for p, t in zip(problems, ANSWERS, strict=True)]
    for batch_size in (1, 2, 16):
        together = scores(folders[kind], problems, ANSWERS, batch_size=batch_size)
        assert together == pytest.approx(alone, abs=1e-4)


def test_one_label_is_its_logit_and_several_are_the_log_odds_of_one(tmp_path: Path) -> None:
    one, three = classifier(tmp_path / "one", 1), classifier(tmp_path / "three", 3)
    inputs = pair_tokenizer()(["2+2="], ["4"], return_tensors="pt")
    with torch.no_grad():
        logit = bert(1)(**inputs).logits[0]
        log_probs = bert(3)(**inputs).logits[0].log_softmax(-1)
    assert scores(one, [SUM], ["4"]) == pytest.approx(logit.tolist(), abs=1e-5)
    as_share = scores(one, [SUM], ["4"], output="probability")
    assert as_share == pytest.approx(logit.sigmoid().tolist(), abs=1e-5)
    for label, at in ((None, 2), (0, 0), ("LABEL_1", 1)):
        expected = log_probs[at] - torch.log1p(-log_probs[at].exp())
        options = {} if label is None else {"label": label}
        assert scores(three, [SUM], ["4"], **options) == pytest.approx([expected.item()], abs=1e-4)


def test_the_two_heads_are_weighed_and_read_the_chain_of_thought() -> None:
    made = random_reward_model("cot")
    text = "Step 1: 3+4=7 because I add.\nStep 2: so the answer is 7."
    (score,) = score_answers(made, [CHAT.prompt], [text])
    assert 0 < score < 1.5
    with torch.no_grad():
        logits = torch.tensor([[0.0, 2.0]])
        assert made.model.score(logits).item() == pytest.approx(0.5 + 0.5 * 0.880797, abs=1e-5)
        features = torch.tensor([cot_features(text).vector(), cot_features("").vector()])
        tokens = torch.tensor([[5, 6, 7]] * 2)
        a, b = made.model(tokens, torch.ones_like(tokens), features).logits
    assert (a - b).abs().min() > 1e-4


def test_preferences_are_antisymmetric_and_equal_answers_tie() -> None:
    made = random_reward_model("preference")
    firsts, seconds = ["4", "5", "four", "4"], ["5", "6", "it is 4", "4"]
    prompts = [CHAT.prompt] * 4
    forth = preferences(made, prompts, firsts, seconds)
    back = preferences(made, prompts, seconds, firsts)
    assert [a + b for a, b in zip(forth, back, strict=True)] == pytest.approx([1.0] * 4, abs=1e-6)
    assert forth[3] == 0.5 and len(set(forth)) == 4
    assert preferences(made, prompts, firsts, seconds, batch_size=1) == pytest.approx(
        forth, abs=1e-5
    )


def test_a_weak_preference_is_a_tie() -> None:
    known = {("a", "b"): 0.9, ("a", "c"): 0.55, ("b", "c"): 0.2}
    assert mean_wins(["a", "b", "c"], known, 0.1) == pytest.approx([0.7, 0.15, 0.65])
    assert mean_wins(["a", "b", "c"], known, 0.0) == pytest.approx([0.725, 0.15, 0.625])
    assert mean_wins(["a", "b", "c"], known, 0.45) == [0.5, 0.5, 0.5]
    assert mean_wins(["a", "b", "b"], {("a", "b"): 0.9}, 0.1) == pytest.approx([0.9, 0.3, 0.3])
    assert mean_wins(["a"], {}, 0.1) == [0.5]


@example(["a", "b"], 0.2)  # 0.3 is as far from a tie as 1 - 0.3 is, though 0.7 - 0.5 < 0.2
@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=8), st.floats(0, 0.49))
def test_wins_of_a_group_add_up_to_half_of_its_games(answers: list[str], threshold: float) -> None:
    known = {(a, b): (ord(a) * 7 + ord(b) * 3) % 10 / 10 for a in "abcd" for b in "abcd" if a < b}
    wins = mean_wins(answers, known, threshold)
    assert sum(wins) == pytest.approx(len(answers) / 2)


def test_an_answer_is_compared_within_its_group_alone(folders: dict[Kind, str]) -> None:
    texts = ["4", "5", "6"]
    alone = scores(folders["preference"], [SUM] * 3, texts, threshold=0.0)
    assert len(set(alone)) == 3
    others = [Problem("other", "2+2=", {}), Problem("third", "2+2=", {})]
    groups = [SUM] * 3 + [others[0]] * 2 + [others[1]]
    found = scores(folders["preference"], groups, [*texts, "4", "9", "4"], threshold=0.0)
    assert found[:3] == pytest.approx(alone, abs=1e-5)
    assert found[3] + found[4] == pytest.approx(1.0) and found[5] == 0.5


def test_a_recipe_names_a_model_by_its_path(folders: dict[Kind, str]) -> None:
    name = f"model:{folders['scalar']}"
    options = {"device": "cpu", "batch_size": 4, "max_tokens": 64}
    config = parse(
        {"rewards": [{"name": name, "weight": 0.5, "options": options}], "device": "cpu"}
    )
    (reward,) = find_rewards(config, build_task(config.task))
    assert (reward.name, reward.weight) == (name, 0.5)
    assert isinstance(reward.function, object) and reward.function.reward_model.max_tokens == 64  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("scalar", {"batchsize": 4}, "did you mean 'batch_size'"),
        ("scalar", {"batch_size": 0}, "batch_size is 0"),
        ("scalar", {"max_tokens": "many"}, "max_tokens is 'many'"),
        ("preference", {"threshold": "low"}, "threshold is 'low'"),
        ("scalar", {"max_tokens": 10_000}, "reads from 16 to 512"),
        ("scalar", {"threshold": 0.2}, "is for preference models"),
        ("scalar", {"output": "odds"}, "logit or probability"),
        ("scalar", {"label": 1}, "no label to choose"),
        ("scalar", {"device": "toaster"}, "there is no device"),
        ("preference", {"threshold": 0.5}, "below 0.5"),
        ("preference", {"output": "logit"}, "is for scalar models"),
        ("cot", {"output": "logit"}, "is for scalar models"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_fix(
    kind: Kind, options: dict[str, Any], message: str, folders: dict[Kind, str]
) -> None:
    with pytest.raises(GroupwiseError, match=message):
        learned_reward(f"model:{folders[kind]}", options, CPU)


def test_a_model_without_a_trained_head_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(GroupwiseError, match=r"no reward model.*groupwise reward fit"):
        learned_reward("model:tiny", {}, CPU)
    with pytest.raises(GroupwiseError, match=r"has no config\.json"):
        learned_reward(f"model:{tmp_path}", {}, CPU)
    with pytest.raises(GroupwiseError, match="does not exist"):
        learned_reward("model:./nowhere", {}, CPU)
    three = classifier(tmp_path / "three", 3)
    with pytest.raises(GroupwiseError, match="LABEL_0, LABEL_1, LABEL_2"):
        learned_reward(f"model:{three}", {"label": "good"}, CPU)


def test_an_unknown_kind_is_refused(tmp_path: Path, folders: dict[Kind, str]) -> None:
    target = tmp_path / "odd"
    saved(random_reward_model("preference"), target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "reward_kind": "oracle"}))
    with pytest.raises(GroupwiseError, match="oracle"):
        learned_reward(f"model:{target}", {}, CPU)
