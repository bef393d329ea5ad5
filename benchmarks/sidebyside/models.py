"""The models and prompts of the benchmarks. Imports torch, so only child processes import it.

`shape:*` models have random weights in the shape of a well-known model; speed and memory do not
depend on what the weights are. Their tokenizer writes token 17 as "t17", so that a prompt given as
text is the same tokens for everyone.

Lengths are made by the head's bias at the end-of-sequence token, the same for everyone:
fixed: -10000, so that it is never drawn and each answer has exactly the number of tokens allowed.
natural: its row of the head is zeroed and its bias is set so that it is drawn with probability 2 /
completion_tokens after a typical token, that is lengths roughly geometric with a mean of 0.43 of
the limit, cut off at it.
"""

import math
import random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Qwen2Config

from sidebyside.settings import Setting, Size

NEVER = -10_000.0


def _qwen(hidden: int, intermediate: int, layers: int, heads: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )


def _llama(
    vocab: int, hidden: int, intermediate: int, layers: int, heads: int, **options: Any
) -> LlamaConfig:
    """SmolLM2's, but for the options."""
    known = {
        "num_key_value_heads": heads // 3,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        **options,
    }
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=8192,
        **known,
    )


SHAPES: dict[str, Any] = {
    "shape:tiny": lambda: _llama(128, 48, 96, 2, 3),
    "shape:135m": lambda: _llama(49_152, 576, 1536, 30, 9),
    "shape:0.5b": lambda: _qwen(896, 4864, 24, 14),
    "shape:1.5b": lambda: _qwen(1536, 8960, 28, 12),
    "shape:3b": lambda: _qwen(2048, 11_008, 36, 16),
    "shape:8b": lambda: _llama(
        *(128_256, 4096, 14_336, 32, 32), num_key_value_heads=8, tie_word_embeddings=False
    ),
}
"""SmolLM2-135M, Qwen2.5-0.5B, -1.5B and -3B, Llama-3-8B; tiny is for tests."""


def build(setting: Setting) -> tuple[Any, Any]:
    """The model, ready to train on its device, and its tokenizer."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if setting.device == "cuda" else torch.float32
    if setting.model in SHAPES:
        with torch.device(setting.device):
            model: Any = AutoModelForCausalLM.from_config(SHAPES[setting.model](), dtype=dtype)
        tokenizer = _numbered_tokenizer(model.config.vocab_size)
        for settings in (model.config, model.generation_config):
            settings.eos_token_id = tokenizer.eos_token_id
            settings.pad_token_id = tokenizer.pad_token_id
    else:
        from groupwise.policy.resolve import resolve_model

        folder = resolve_model(setting.model)
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        model.to(setting.device)
    _set_lengths(model, tokenizer, setting)
    return model.train(), tokenizer


def prompts(setting: Setting, tokenizer: Any) -> list[str]:
    """The texts of the prompts; exactly `prompt_tokens` each for a shape, about that for others."""
    rng = random.Random(0)
    if setting.model in SHAPES:
        usable = range(len(tokenizer) - 2)
        return [
            " ".join(f"t{rng.choice(usable)}" for _ in range(setting.prompt_tokens))
            for _ in range(setting.prompts)
        ]
    return [_word_problem(rng, setting.prompt_tokens, tokenizer) for _ in range(setting.prompts)]


def lora(setting: Setting) -> Any:
    """The adapter that the setting asks for, in PEFT's words; None for none."""
    if not setting.adapter:
        return None
    from peft import LoraConfig

    rank = setting.adapter
    return LoraConfig(
        task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear"
    )


def save(model: Any, folder: str, *, keep_bias: bool = False) -> None:
    """As a folder, without the bias that sets the lengths: other engines get that as an option."""
    kept = model.state_dict()
    if not keep_bias:
        kept = {name: value for name, value in kept.items() if name != "lm_head.bias"}
    model.save_pretrained(folder, state_dict=kept)


def size(model: Any) -> Size:
    config = model.config
    head = config.vocab_size * config.hidden_size
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    embeddings = head if config.tie_word_embeddings else 2 * head
    each = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Size(
        body=trained - embeddings,
        head=head,
        parameters=trained,
        layers=config.num_hidden_layers,
        attention=config.num_attention_heads * each,
        kv=2 * config.num_hidden_layers * config.num_key_value_heads * each,
        bytes=next(model.parameters()).element_size(),
    )


def _set_lengths(model: Any, tokenizer: Any, setting: Setting) -> None:
    head = model.get_output_embeddings()
    ends = model.generation_config.eos_token_id
    never = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
    never.add(tokenizer.pad_token_id)  # `generate` fills up with it: it tells where an answer ended
    bias = torch.zeros(head.weight.shape[0])
    bias[sorted(never)] = NEVER
    if setting.lengths == "natural":
        with torch.no_grad():
            head.weight[tokenizer.eos_token_id] = 0
        chance = min(2 / setting.completion_tokens, 0.5)
        others = _typical_logsumexp(model, prompts(setting, tokenizer)[:4], tokenizer)
        bias[tokenizer.eos_token_id] = others + math.log(chance / (1 - chance))
    head.bias = nn.Parameter(bias.to(head.weight), requires_grad=False)


@torch.no_grad()
def _typical_logsumexp(model: Any, texts: list[str], tokenizer: Any) -> float:
    """What the end token's logit competes with, on average over the tokens of some prompts."""
    device = next(model.parameters()).device
    totals: list[Tensor] = []
    for text in texts:
        tokens = torch.tensor([tokenizer(text)["input_ids"]], device=device)
        totals.append(model(tokens).logits[0].float().logsumexp(-1))
    return torch.cat(totals).mean().item()


def _numbered_tokenizer(vocab: int) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"t{i}": i for i in range(vocab)}))
    words.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    # The largest numbers: no other token starts with their text.
    ends = {"eos_token": f"t{vocab - 1}", "pad_token": f"t{vocab - 2}"}
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", **ends)


def _word_problem(rng: random.Random, tokens: int, tokenizer: Any) -> str:
    """Sentences until there are enough tokens; the cut may move the count by a token or two."""
    people = ("Ada", "Ben", "Chidi", "Dana", "Emre", "Fatima")
    things = ("apples", "books", "coins", "marbles", "tickets", "pencils")
    text = ""
    while len(tokenizer(text)["input_ids"]) < tokens:
        who, what = rng.choice(people), rng.choice(things)
        have, more = rng.randint(3, 90), rng.randint(2, 40)
        text += f"{who} has {have} {what} and gets {more} more. How many {what} has {who} now? "
    return tokenizer.decode(tokenizer(text)["input_ids"][:tokens])
