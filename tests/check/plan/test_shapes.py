"""Weights are counted from sizes, as transformers counts them from a model."""

import json
import pathlib
import subprocess
import sys

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from groupwise.check.plan import GPUS, SHAPES, find_gpu, shape_of
from groupwise.check.plan.shapes import shape_from_config
from groupwise.errors import ConfigError, ModelError
from groupwise.policy.resolve import TINY
from small_models import FAMILIES, SHAPE

PUBLISHED = {
    "135m": 134_515_008,
    "0.5b": 494_032_768,
    "1.5b": 1_543_714_304,
    "3b": 3_085_938_688,
    "7b": 7_615_616_512,
    "8b": 8_030_261_248,
    "14b": 14_770_033_664,
    "32b": 32_763_876_352,
    "70b": 70_553_706_496,
}


def test_named_shapes_have_the_published_number_of_weights() -> None:
    found = {name: shape.parameters for name, shape in SHAPES.items() if name != "tiny"}
    assert found == PUBLISHED


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_a_config_gives_the_count_of_its_model(family: str, tmp_path: pathlib.Path) -> None:
    config = CONFIG_MAPPING[family](**{**SHAPE, **FAMILIES[family]})
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_of(str(tmp_path)).parameters == sum(p.numel() for p in model.parameters())


def test_the_embedded_model_is_read_from_its_folder() -> None:
    shape = shape_of("tiny")
    assert shape.parameters == 1_055_040 and shape.tied and shape.head_size == 32


def test_an_adapter_is_counted_as_peft_makes_it() -> None:
    from peft import LoraConfig, get_peft_model

    shape = shape_of("tiny")
    model = AutoModelForCausalLM.from_pretrained(TINY)
    for targets in (None, ("q_proj", "v_proj")):
        chosen = list(targets) if targets else "all-linear"
        adapted = get_peft_model(model, LoraConfig(r=4, target_modules=chosen))
        trainable = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
        assert shape.adapter(4, targets) == trainable
        model = adapted.unload()


def test_what_cannot_be_counted_is_refused(tmp_path: pathlib.Path) -> None:
    config = json.loads((TINY / "config.json").read_text())
    with pytest.raises(ModelError, match="experts"):
        shape_from_config("a", {**config, "num_experts": 8})
    with pytest.raises(ModelError, match="no intermediate_size"):
        shape_from_config("a", {**config, "intermediate_size": None})
    with pytest.raises(ModelError, match=r"shape:8b"):
        shape_of("shape:9b")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot read the config\.json"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA L4", "l4"),
    ],
)
def test_gpus_are_found_by_the_names_that_drivers_give(name: str, found: str) -> None:
    assert find_gpu(name) is GPUS[found]


def test_a_plan_is_made_without_torch() -> None:
    code = (
        "import sys; from groupwise.check.plan import *;"
        "from groupwise.check.plan.show import plan_text;"
        "plan_text(make_plan(shape_of('shape:8b'), Job(8, 8, 200, 256), GPUS['h100']));"
        "heavy = {'torch', 'transformers', 'numpy'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_unknown_gpu_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="rtx4090"):
        find_gpu("voodoo2")
    assert find_gpu("cpu").is_cpu
