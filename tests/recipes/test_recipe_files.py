"""The recipes that come with groupwise, as files: they load, say what they are, and keep to the
numbers of the systems that they are named for."""

import pathlib
import runpy

import pytest
from typer.testing import CliRunner

from groupwise.answers.tags import think_answer_format
from groupwise.cli.main import app
from groupwise.config import Config
from groupwise.config.blocks import merged
from groupwise.errors import ConfigError
from groupwise.recipe import list_recipes, load_recipe, read_recipe
from groupwise.recipe.tiny import SAMPLES, swapped

ROOT = pathlib.Path(__file__).parent.parent.parent
SYSTEMS = [
    "neural_reward", "cot_reward", "cot_deepspeed", "llama3_8b", "qwen_gpu", "qwen_cpu", "neuron",
    "preference", "nano_aha_moment", "grpo_zero", "simple_grpo", "lm_book", "cookbook",
    "best_small", "demo", "guess_number", "calculator",
]  # fmt: skip


def test_every_system_is_a_recipe_with_a_page() -> None:
    assert sorted(SYSTEMS) == sorted(list_recipes())
    index = (ROOT / "docs" / "recipes" / "README.md").read_text()
    for name in SYSTEMS:
        assert f"`{name}`" in index
        assert name == "demo" or (ROOT / "docs" / "recipes" / f"{name}.md").is_file()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_recipe_says_what_it_is_and_all_its_presets_load(name: str) -> None:
    recipe = read_recipe(list_recipes()[name])
    assert recipe.line.endswith(".") and recipe.size and recipe.hardware
    for preset in (None, *recipe.presets):
        whole = load_recipe(name, preset=preset)
        small = load_recipe(name, preset=preset, tiny=True)
        embedded = whole.model if whole.model == "tiny_tools" else "tiny"
        assert small.model == embedded and small.steps == 2 and small.device == "cpu"
        assert small.precision == "fp32"  # many CPUs compute others in software
        for kept in ("algorithm", "optimizer", "gradient_checkpointing"):
            assert getattr(small, kept) == getattr(whole, kept)
        if preset != "smoke":  # whose layers the embedded model does not have
            assert small.adapter == whole.adapter
        if preset is not None:
            assert whole != load_recipe(name) or preset == "medium"


# The numbers that each system is known by.
NUMBERS = {
    "neural_reward": "model=EleutherAI/gpt-neo-125m",
    "cot_reward": "model=EleutherAI/gpt-neo-125m",
    "qwen_gpu": "rollout.max_prompt_tokens=256 rollout.max_completion_tokens=128 "
    "batch.group_size=4 algorithm.kl_weight=0.01 optimizer.lr=5e-6 precision=bf16 "
    "gradient_checkpointing=true task.train_size=100 batch.prompts=2 optimizer.schedule=linear "
    "model=Qwen/Qwen2.5-0.5B",
    "qwen_cpu": "rollout.max_prompt_tokens=128 rollout.max_completion_tokens=64 batch.prompts=1 "
    "batch.group_size=2 algorithm.kl_weight=0.01 optimizer.lr=5e-6 precision=fp32 "
    "task.train_size=10 model=Qwen/Qwen2.5-0.5B",
    "llama3_8b": "precision=bf16 batch.prompts=1 batch.group_size=2 optimizer.betas=[0.9,0.95] "
    "gradient_checkpointing=offload adapter.kind=lora clear_cache=true "
    "model=meta-llama/Meta-Llama-3-8B-Instruct",
    "cot_deepspeed": "precision=fp16 optimizer.offload=true gradient_checkpointing=true "
    "model=EleutherAI/gpt-neo-125m",
    "preference": "batch.group_size=2 batch.prompts=64 rollout.temperature_spread=[0.7,1.3] "
    "algorithm.kl_weight=0.1 batch.epochs=3 batch.minibatches=16 optimizer.lr=1e-5 "
    "optimizer.schedule=cosine optimizer.clip_norm=1.0 eval.every=200 checkpoint.every=500 "
    "tracking.tensorboard=true model=Qwen/Qwen2.5-3B-Instruct",
    "nano_aha_moment": "task.numbers=[3,4] task.test_size=500 "
    "batch.prompts=16 batch.group_size=4 optimizer.lr=1e-6 algorithm.kl_weight=0.001 "
    "rollout.temperature=1.0 rollout.top_p=0.999 rollout.max_completion_tokens=1024 "
    "optimizer.clip_norm=1.0 eval.every=25 eval.temperature=0.3 checkpoint.every=50 "
    "model=Qwen/Qwen2.5-3B steps=1000 algorithm.kl_estimator=k3 distributed.kind=zero2 "
    "optimizer.betas=[0.9,0.999] optimizer.weight_decay=0.0 eval.problems=500",
    "grpo_zero": "algorithm.kl_weight=0.0 batch.prompts=32 batch.group_size=8 optimizer.lr=1e-5 "
    "rollout.max_completion_tokens=1024 optimizer.offload=true algorithm.mask_truncated=true "
    "model=Qwen/Qwen2.5-3B-Instruct task.numbers=[3,4] task.test_size=128 eval.every=10 "
    "eval.problems=128 checkpoint.every=100 optimizer.clip_norm=1.0 optimizer.weight_decay=0.0",
    "simple_grpo": "batch.prompts=5 batch.group_size=8 rollout.temperature=0.9 "
    "rollout.max_completion_tokens=700 algorithm.kl_weight=0.04 algorithm.clip_low=0.2 "
    "optimizer.lr=1e-6 model=Qwen/Qwen2.5-7B algorithm.clip_high=0.2 checkpoint.every=200",
    "lm_book": "batch.prompts=4 batch.group_size=16 rollout.max_completion_tokens=500 "
    "algorithm.kl_weight=0.04 optimizer.lr=5e-6 algorithm.clip_low=0.1 algorithm.clip_high=0.1 "
    "optimizer.clip_norm=0.1 reference.kind=copied gradient_checkpointing=true steps=500 "
    "model=Qwen/Qwen2.5-0.5B-Instruct",
    "cookbook": "quantization=nf4 adapter.rank=16 adapter.alpha=32 adapter.dropout=0.1 "
    "adapter.targets=[q_proj,v_proj] optimizer.lr=5e-6 rollout.max_prompt_tokens=1024 "
    "rollout.max_completion_tokens=1024 optimizer.clip_norm=0.1 tracking.trackio=true "
    "steps=50 task.train_size=1000 batch.prompts=2 batch.group_size=8 "
    "model=Qwen/Qwen2.5-3B-Instruct",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_recipe_keeps_the_numbers_of_its_system(name: str) -> None:
    """Written as overrides: applying them must change nothing."""
    for override in NUMBERS[name].split():
        assert load_recipe(name, [override]) == load_recipe(name), override


def test_rewards_have_the_weights_and_options_of_their_system() -> None:
    def rewards(name: str) -> dict[str, tuple[float, dict[str, object]]]:
        return {r.name: (r.weight, r.options) for r in load_recipe(name).rewards}

    assert rewards("grpo_zero") == {"grpo_zero_format": (0.1, {}), "equation": (1.0, {})}
    assert rewards("nano_aha_moment") == {"nano_format": (1.0, {}), "equation": (1.0, {})}
    assert [weight for weight, _ in rewards("cookbook").values()] == [1.0] * 4
    assert rewards("preference")["reasoned"] == (1.0, {})
    _, options = rewards("preference")["model:runs/preference_model"]
    assert options == {"threshold": 0.1, "batch_size": 16}


def test_the_lm_books_script_is_a_preset() -> None:
    script = load_recipe("lm_book", preset="original")
    assert (script.batch.epochs, script.reference.every, script.steps) == (1, 500, 500)


def test_the_cookbooks_presets_have_its_sizes() -> None:
    def size(preset: str) -> tuple[int, int | None]:
        config = load_recipe("cookbook", preset=preset)
        return config.steps, config.task.model_dump()["train_size"]

    assert list(read_recipe(list_recipes()["cookbook"]).presets) == [
        "quick", "medium", "full", "gpu", "cpu", "smoke", "debug",
    ]  # fmt: skip
    assert (size("quick"), size("medium"), size("full")) == ((10, 100), (50, 1000), (200, None))
    assert load_recipe("cookbook", preset="medium") == load_recipe("cookbook")
    cpu = load_recipe("cookbook", preset="cpu")
    assert (cpu.device, cpu.precision, cpu.quantization) == ("cpu", "fp32", None)


def test_the_systems_that_run_in_several_processes_start_them_by_a_preset() -> None:
    whole = load_recipe("simple_grpo", preset="original")
    assert (whole.reference.kind, whole.place.kind) == ("process", "processes")
    assert whole.timing.model_dump()["publish_every"] == 16
    assert (whole.distributed.kind, whole.distributed.bucket_size) == ("zero2", 200_000_000)
    large = load_recipe("llama3_8b", preset="deepspeed").distributed
    assert (large.kind, large.bucket_size) == ("zero2", 50_000_000)
    for stage in (0, 1, 3):
        kind = load_recipe("cot_deepspeed", preset=f"zero{stage}").distributed.kind
        assert kind == f"zero{stage}"


@pytest.mark.parametrize("size", ["0", "null"])
def test_no_limit_means_all(size: str) -> None:
    config = load_recipe("cookbook", [f"task.train_size={size}"])
    assert config.task.model_dump()["train_size"] is None


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no preset 'quik'; did you mean quick\?"):
        load_recipe("cookbook", preset="quik")
    with pytest.raises(ConfigError, match="it has: quick, medium, full, gpu, cpu, smoke, debug"):
        load_recipe("cookbook", preset="zzz")
    with pytest.raises(ConfigError, match="demo has no preset 'quick'; it has none"):
        load_recipe("demo", preset="quick")


def test_overrides_have_the_last_word() -> None:
    config = load_recipe("cookbook", ["steps=7"], preset="quick")
    assert config.steps == 7 and config.task.model_dump()["train_size"] == 100
    small = load_recipe("cookbook", ["steps=7", "batch.prompts=3"], tiny=True)
    assert (small.steps, small.batch.prompts, small.model) == (7, 3, "tiny")


@pytest.mark.parametrize(
    ("typed", "means"),
    [
        ("First think: then answer.", "First think: then answer."),
        ("End with a line #### number", "End with a line #### number"),
        ("'quoted: text'", "quoted: text"),
        ("plain", "plain"),
    ],
)
def test_a_sentence_typed_as_an_override_is_text(typed: str, means: str) -> None:
    task = load_recipe("cookbook", [f"task.system={typed}"]).task
    assert task.model_dump()["system"] == means


def test_a_mapping_typed_as_an_override_is_a_mapping() -> None:
    assert load_recipe("demo", ["task={kind: countdown}"]).task.kind == "countdown"


def test_a_preset_goes_over_the_stand_ins_of_a_tiny_run() -> None:
    rewards = [r.name for r in load_recipe("cot_reward", tiny=True).rewards]
    assert rewards[0] == "model:tiny-cot"
    rules = load_recipe("cot_reward", preset="rules", tiny=True)
    assert [r.name for r in rules.rewards] == ["correct", "format", "cot_bonus"]


def test_a_preset_may_have_stand_ins_of_its_own() -> None:
    def first(tiny: bool) -> str:
        return load_recipe("llama3_8b", preset="cot", tiny=tiny).rewards[0].name

    assert (first(False), first(True)) == ("model:runs/cot_reward_model", "model:tiny-cot")


def test_a_tiny_run_uses_data_that_is_given(tmp_path: pathlib.Path) -> None:
    given = load_recipe("cookbook", [f"task.path={tmp_path}"], tiny=True).task.model_dump()
    assert given["path"] == str(tmp_path) and given["system"] is None
    assert load_recipe("cookbook", tiny=True).task.model_dump()["path"] == str(SAMPLES / "gsm8k")


def test_blocks_of_another_kind_replace_the_whole_block() -> None:
    base = {"task": {"kind": "gsm8k", "few_shot": 2}, "batch": {"prompts": 4, "epochs": 2}}
    over = merged(base, {"task": "countdown", "batch": {"prompts": 8}})
    assert over == {"task": {"kind": "countdown"}, "batch": {"prompts": 8, "epochs": 2}}
    assert merged(base, {"task": {"path": "x"}})["task"]["few_shot"] == 2


@pytest.mark.parametrize("text", ["presets: [quick]", "presets: {quick: 3}", "tiny: yes\nsteps: 2"])
def test_blocks_that_are_none_are_refused(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="must be a block of settings"):
        load_recipe(str(path))


def test_what_was_swapped_is_said_in_full() -> None:
    said = swapped(load_recipe("cookbook"), load_recipe("cookbook", tiny=True))
    assert "model tiny (was Qwen/Qwen2.5-3B-Instruct)" in said
    assert "quantization int8 (was nf4)" in said and "steps 2 (was 50)" in said
    assert f"task.path {SAMPLES / 'gsm8k'} (was none)" in said
    assert not [line for line in said if line.startswith(("algorithm", "adapter", "optimizer"))]
    assert swapped(Config(), Config()) == []


def test_the_list_names_every_recipe_with_size_and_hardware(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("groupwise.tracking.console.console._width", 200)
    result = CliRunner().invoke(app, ["recipes"])
    assert result.exit_code == 0
    for name in SYSTEMS:
        assert name in result.output
    assert "cookbook --preset quick | medium | full | gpu | cpu | smoke | debug" in result.output
    assert "hardware" in result.output and "8 B" in result.output


SOLVE, THINK = (
    "Let me solve this step by step.\n<think>",
    "Let me think through this step by step.\n",
)
PREFILLS = {
    "nano_aha_moment": SOLVE,
    "grpo_zero": SOLVE,
    "cot_reward": THINK,
    "cot_deepspeed": THINK,
    "llama3_8b": THINK,
}


@pytest.mark.parametrize("name", PREFILLS)
def test_answers_open_with_the_words_of_the_system(name: str) -> None:
    assert load_recipe(name).task.model_dump()["prefill"] == PREFILLS[name]
    written = PREFILLS[name].removesuffix("<think>") + "<think>3+4=7</think>\n<answer>7</answer>"
    assert think_answer_format(written) and not think_answer_format(f"So. {written}")


def test_the_index_of_pages_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "make_recipes_page.py"))
    assert made["PAGE"].read_text() == made["page"](), "run python scripts/make_recipes_page.py"


def test_the_sample_problems_are_those_of_the_script() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "make_sample_problems.py"))["files"]()
    there = {str(path.relative_to(SAMPLES)): path.read_text() for path in SAMPLES.rglob("*.jsonl")}
    assert made == there
