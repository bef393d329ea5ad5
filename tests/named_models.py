"""The models that recipes name, in random miniature: the architecture of each, and its tokenizer in
the files that the hub has of it (vocab.json and merges.txt, tokenizer.json, spm.model, vocab.txt).
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import (
    CONFIG_MAPPING,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)

from groupwise.recipe.tiny import SAMPLES

END = "<|endoftext|>"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA3_TOKENS = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",
]  # fmt: skip
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
}
DEBERTA_V3 = {
    "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
    "type_vocab_size": 0, "max_relative_positions": -1,
}  # fmt: skip


def texts() -> Iterator[str]:
    for path in sorted(SAMPLES.rglob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield from (str(value) for value in json.loads(line).values())


def _save(folder: Path, auto: Any, family: str, **settings: Any) -> None:
    torch.manual_seed(0)
    model = auto.from_config(CONFIG_MAPPING[family](**settings), dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():  # the initial 0.02 makes every answer alike
            if weight.ndim > 1:
                weight.mul_(5)
    model.save_pretrained(folder)


def _bytes(folder: Path, special: list[str], **settings: Any) -> dict[str, int]:
    """GPT-2's two files; ids of the special tokens."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts(), vocab_size=300, special_tokens=special)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_model(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return {token: index for index, token in enumerate(special)} | {"size": 300}


def gpt_neo(folder: Path) -> None:
    _bytes(folder, [END], tokenizer_class="GPT2Tokenizer", eos_token=END, model_max_length=512)
    _save(folder, AutoModelForCausalLM, "gpt_neo", vocab_size=300, num_layers=2, num_heads=2,
          hidden_size=32, attention_types=[[["global", "local"], 1]], window_size=16,
          max_position_embeddings=512, bos_token_id=0, eos_token_id=0)  # fmt: skip


def dialogpt(folder: Path) -> None:
    chat = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    _bytes(folder, [END], tokenizer_class="GPT2Tokenizer", eos_token=END, chat_template=chat,
           model_max_length=512)  # fmt: skip
    _save(folder, AutoModelForCausalLM, "gpt2", vocab_size=300, n_positions=512, n_embd=32,
          n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)  # fmt: skip


def qwen2(folder: Path) -> None:
    special = [END, "<|im_start|>", "<|im_end|>"]
    ids = _bytes(folder, special, tokenizer_class="Qwen2Tokenizer", eos_token="<|im_end|>",
                 pad_token=END, chat_template=CHATML, model_max_length=512)  # fmt: skip
    _save(folder, AutoModelForCausalLM, "qwen2", vocab_size=300, num_key_value_heads=1,
          bos_token_id=0, eos_token_id=ids["<|im_end|>"], tie_word_embeddings=True,
          **SHAPE)  # fmt: skip


def llama3(folder: Path) -> None:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts(), vocab_size=300, special_tokens=LLAMA3_TOKENS)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": LLAMA3_TOKENS[0],
                "eos_token": LLAMA3_TOKENS[4], "chat_template": LLAMA3}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _save(folder, AutoModelForCausalLM, "llama", vocab_size=300, num_key_value_heads=1,
          bos_token_id=0, eos_token_id=1, **SHAPE)  # fmt: skip
    ends = {"bos_token_id": 0, "eos_token_id": [1, 4]}
    (folder / "generation_config.json").write_text(json.dumps(ends))


def deberta_v3(folder: Path, auto: Any = AutoModel) -> None:
    """microsoft/deberta-v3-small has spm.model and no tokenizer.json."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=texts(), model_prefix=str(folder / "spm"), vocab_size=120,
        pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece="[PAD]", bos_piece="[CLS]",
        eos_piece="[SEP]", unk_piece="[UNK]", minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    (folder / "spm.vocab").unlink()
    settings = {"do_lower_case": False, "vocab_type": "spm"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    _save(folder, auto, "deberta-v2", vocab_size=128, pad_token_id=0, num_labels=1, **DEBERTA_V3,
          **SHAPE)  # fmt: skip


def deberta_v3_scored(folder: Path) -> None:
    """With a scalar head, as OpenAssistant/reward-model-deberta-v3-base."""
    deberta_v3(folder, AutoModelForSequenceClassification)


def bert(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    characters = sorted({character for text in texts() for character in text.lower()} - {" "})
    pieces += [*characters, *(f"##{character}" for character in characters)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    _save(folder, AutoModel, "bert", vocab_size=len(pieces), pad_token_id=0, **SHAPE)


MODELS: dict[str, Callable[[Path], None]] = {
    "EleutherAI/gpt-neo-125m": gpt_neo,
    "microsoft/DialoGPT-small": dialogpt,
    "Qwen/Qwen2.5": qwen2,
    "meta-llama/Meta-Llama-3-8B-Instruct": llama3,
    "microsoft/deberta-v3-small": deberta_v3,
    "OpenAssistant/reward-model-deberta-v3-base": deberta_v3_scored,
    "bert-base-uncased": bert,
}
