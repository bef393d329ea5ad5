"""Run TRL's own tests of its GRPOTrainer against groupwise.trl, with one import changed.

    git clone https://github.com/huggingface/trl
    python scripts/run_trl_tests.py trl [-k "eval"] [further arguments of pytest]

Nothing is downloaded: in place of the tiny models and the dataset on TRL's hub page there are
random models of the same families and shapes, a tokenizer with Qwen's ids for the tokens that the
tests write down, and the lines of the Zen of Python. Tests of vision models, Liger and vLLM are
left out. docs/trl.md lists which tests pass, and why others do not.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

LEFT_OUT = "not VLM and not Slow and not liger and not vllm"
FILE = "tests/test_grpo_trainer.py"
HUB = "trl-internal-testing/"

ZEN = """Beautiful is better than| ugly.
Explicit is| better than implicit.
Simple is better| than complex.
Complex| is better than complicated.
Flat is better than| nested.
Sparse is better| than dense.
Readability| counts.
Special cases aren't special| enough to break the rules.
Although practicality beats| purity.
Errors should never| pass silently.
Unless explicitly| silenced.
In the face of ambiguity, refuse| the temptation to guess.
There should be one-- and preferably| only one --obvious way to do it.
Although that way may not be obvious at first unless| you're Dutch.
Now is better| than never.
Although never is often| better than *right* now.
If the implementation is hard| to explain, it's a bad idea.
If the implementation is easy| to explain, it may be a good idea.
Namespaces are one| honking great idea.""".splitlines()

# Ids of Qwen's tokenizer that tests write down; a byte has its id in every tokenizer of GPT-2's.
TOKENS = {
    4913: '{"', 606: 'name', 788: '":', 330: ' "', 64648: 'multip', 22785: 'ly_tool', 497: '",',
    16370: 'arguments', 5212: ' {"', 11248: '}}\n', 7692: 'async', 93054: '_multip', 40: 'I',
    1513: ' don', 944: "'t", 1414: ' know', 894: ' any', 5392: ' tool', 17453: 'Done',
    35744: 'increment', 9520: 'step', 450: 'dec', 13477: 'rement', 2765: ' won',
    16252: ' increment', 927: 'sh', 411: 'out', 1318: 'text', 6023: 'hi', 95642: '"}}\n',
    314: ' {', 25: ':', 293: ' b', 14172: 'tool', 6659: 'call', 397: '>\n', 522: '</', 27: '<',
}  # fmt: skip
SPECIAL: dict[int, str] = {
    151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>", 151657: "<tool_call>",
    151658: "</tool_call>", 151665: "<tool_response>", 151666: "</tool_response>",
    151667: "<think>", 151668: "</think>", 151669: "<|finetune_right_pad_id|>",
}  # fmt: skip
VOCABULARY = {"hub": 256 + len(SPECIAL), "hub-of-qwen": 151670}
"""Tests that write ids down get models with Qwen's vocabulary; others train faster without."""
TEMPLATE = """{%- if tools %}<|im_start|>system
{%- if messages[0].role == 'system' %}
{{ messages[0].content }}
{%- endif %}
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif -%}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') -%}
<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}
{% if message.role == 'tool' %}<tool_response>
{{ message.content }}
</tool_response>{% else %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function or call %}
{%- set arguments = call.arguments if call.arguments is string else call.arguments | tojson %}
<tool_call>
{"name": "{{ call.name }}", "arguments": {{ arguments }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""

SHAPE = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32768,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-Qwen2ForCausalLM-2.5": ("qwen2", {}),
    "tiny-Qwen3ForCausalLM": ("qwen3", {}),
    "tiny-Qwen3MoeForCausalLM": ("qwen3_moe", EXPERTS),
    "tiny-Cohere2ForCausalLM": ("cohere2", {}),
    "tiny-Gemma2ForCausalLM": ("gemma2", {"tie_word_embeddings": True}),
    "tiny-Glm4MoeForCausalLM": (
        "glm4_moe",
        {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "tiny-GptOssForCausalLM": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "tiny-NemotronHForCausalLM-nano": (
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
            "num_hidden_layers": 4,
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "chunk_size": 8,
            "n_routed_experts": 4,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
        },
    ),
    "tiny-Qwen2ForSequenceClassification-2.5": ("qwen2", {}),
    "tiny-Qwen3ForSequenceClassification": ("qwen3", {}),
    "tiny-LlamaForSequenceClassification-3.2": ("llama", {}),
}
REMOTE = """from transformers import Qwen2Config, Qwen2ForCausalLM


class RemoteConfig(Qwen2Config):
    model_type = "remote"


class RemoteForCausalLM(Qwen2ForCausalLM):
    config_class = RemoteConfig
"""
TESTING_UTILS = """import pytest

needed = {name: pytest.mark.skip(reason=f"needs {name}") for name in (
    "bitsandbytes", "kernels", "liger_kernel", "torch_accelerator", "vision", "vllm")}
globals().update({f"require_{name}": mark for name, mark in needed.items()})
require_peft = require_jmespath = lambda test: test


def is_ampere_or_newer():
    return False


def is_liger_kernel_available(min_version=""):
    return False


class TrlTestCase:
    @pytest.fixture(autouse=True)
    def set_tmp_dir(self, tmp_path):
        self.tmp_dir = str(tmp_path)
"""
CONFTEST = '''
import inspect
import pytest
from groupwise.trl import GRPOConfig

MAKE = GRPOConfig.__post_init__


@pytest.fixture(autouse=True)
def on_a_cpu_with_the_engine_that_a_test_replaces(monkeypatch, request):
    """Tests that put a function in place of `generate` need the engine that calls it."""
    source = inspect.unwrap(request.node.function).__code__
    replaces = "generate" in source.co_consts or "mock_generate" in source.co_varnames

    def made(self):
        self.use_cpu = True
        if replaces:
            self.groupwise = {"engine.kind": "transformers"}
        MAKE(self)

    monkeypatch.setattr(GRPOConfig, "__post_init__", made)
'''


def make_tokenizer(size: int) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    order = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order += [byte for byte in range(256) if byte not in order]
    shown = {byte: chr(byte) for byte in order[:188]}
    shown |= {byte: chr(256 + n) for n, byte in enumerate(order[188:])}
    names = {n: shown[byte] for n, byte in enumerate(order)}
    if size > 256 + len(SPECIAL):
        names |= {n: "".join(shown[b] for b in text.encode()) for n, text in TOKENS.items()}
        names |= SPECIAL
    else:
        names |= dict(enumerate(SPECIAL.values(), start=256))
    vocabulary = {names.get(n, f"<unused{n}>"): n for n in range(size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL.values()])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
    )
    made.chat_template = TEMPLATE
    return made


def make_models(folder: pathlib.Path, size: int) -> None:
    import torch
    from transformers import (
        CONFIG_MAPPING,
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
    )

    tokenizer = make_tokenizer(size)
    shape = {**SHAPE, "vocab_size": size, "bos_token_id": None}
    shape |= {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    for name, (family, more) in MODELS.items():
        torch.manual_seed(0)
        config = CONFIG_MAPPING[family](**{**shape, **more})
        if "Sequence" in name:
            config.num_labels = 1
            model: Any = AutoModelForSequenceClassification.from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            model.generation_config.eos_token_id = tokenizer.eos_token_id
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    remote = folder / "tiny-RemoteForCausalLM"
    shutil.copytree(folder / "tiny-Qwen2ForCausalLM-2.5", remote)
    settings = json.loads((remote / "config.json").read_text())
    settings |= {
        "model_type": "remote",
        "architectures": ["RemoteForCausalLM"],
        "auto_map": {
            "AutoConfig": "modeling_remote.RemoteConfig",
            "AutoModelForCausalLM": "modeling_remote.RemoteForCausalLM",
        },
    }
    (remote / "config.json").write_text(json.dumps(settings))
    (remote / "modeling_remote.py").write_text(REMOTE)


def make_data(folder: pathlib.Path) -> None:
    folder.mkdir()
    lines, blocks = {"train": ZEN[:17], "test": ZEN[17:]}, []
    for kind in ("standard_prompt_only", "conversational_prompt_only"):
        blocks.append(f"- config_name: {kind}\n  data_files:")
        for split, texts in lines.items():
            prompts: list[Any] = [text.partition("|")[0] for text in texts]
            if kind.startswith("conversational"):
                prompts = [[{"role": "user", "content": f"{text}...?"}] for text in prompts]
            path = folder / f"{kind}-{split}.jsonl"
            path.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
            blocks.append(f"  - split: {split}\n    path: {path.name}")
    (folder / "README.md").write_text("---\nconfigs:\n" + "\n".join(blocks) + "\n---\n")


def prepare(checkout: pathlib.Path, work: pathlib.Path) -> None:
    """The test file with the import and the hub's ids changed, and what it needs beside it."""
    tests = work / "tests"
    tests.mkdir()
    text = (checkout / FILE).read_text()
    text, changed = re.subn(
        r"^from trl import GRPOConfig, GRPOTrainer$",
        "from groupwise.trl import GRPOConfig, GRPOTrainer",
        text,
        flags=re.MULTILINE,
    )
    assert changed == 1, "the file does not import GRPOConfig and GRPOTrainer in one line"
    text = text.replace("from trl.import_utils import", "from .testing_utils import")
    parts = re.split(r"^(?=    (?:@|def test_))", text, flags=re.MULTILINE)
    for number, part in enumerate(parts):
        # `all_masked` counts on an end that is hardly ever sampled, as among so many tokens.
        large = "151645" in part or "all_masked" in part
        hub = "hub-of-qwen" if large else "hub"
        parts[number] = part.replace(HUB, f"{work}/{hub}/")
    (tests / pathlib.Path(FILE).name).write_text("".join(parts))
    (tests / "testing_utils.py").write_text(TESTING_UTILS)
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(CONFTEST)
    for hub, size in VOCABULARY.items():
        make_models(work / hub, size)
        make_data(work / hub / "zen")


def main() -> int:
    checkout = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as work:
        prepare(checkout, pathlib.Path(work))
        offline = {
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": f"{work}/home",
            "TOKENIZERS_PARALLELISM": "false",
        }
        pytest = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        chosen = ["-k", LEFT_OUT] if "-k" not in sys.argv else []
        command = [*pytest, *chosen, "tests", *sys.argv[2:]]
        return subprocess.run(command, cwd=work, env={**os.environ, **offline}).returncode


if __name__ == "__main__":
    sys.exit(main())
