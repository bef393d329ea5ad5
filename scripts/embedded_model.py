"""What the embedded models have in common: tokenizer, architecture, and the warm-up by supervision.

make_tiny.py and make_tiny_tools.py bring what differs: sizes, chat template, and the corpus.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Row = list[str]
"""Text in pieces: one that is only read, one that is learned, one that is read, and so on."""

POSITIONS = 512
POLICY = Path(__file__).parent.parent / "groupwise" / "policy"


@dataclass(frozen=True)
class Vocabulary:
    """Byte-level BPE, so all text can be written.

    `isolated` is a regex of what merges with nothing; other text may merge across spaces, so that a
    whole instruction takes a handful of tokens. `special` begins with pad, bos and eos, and `tags`
    are tokens that are text all the same.
    """

    special: tuple[str, ...]
    tags: tuple[str, ...]
    isolated: str
    size: int
    chat_template: str


def make_tokenizer(vocabulary: Vocabulary, texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """`texts` may have special tokens and tags in them, which are left out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore
        [
            pre_tokenizers.Split(Regex(vocabulary.isolated), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore
    tags, special = vocabulary.tags, vocabulary.special
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary.size - len(tags),
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    plain = (_without(text, (*special, *tags)) for text in texts)
    tokenizer.train_from_iterator(plain, trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    pad, bos, eos, *others = special
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        additional_special_tokens=others,
        chat_template=vocabulary.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=POSITIONS,
        padding_side="left",
    )


def _without(text: str, markers: Iterable[str]) -> str:
    for marker in markers:
        text = text.replace(marker, "\n")
    return text


def make_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden: int, layers: int, heads: int
) -> LlamaForCausalLM:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=POSITIONS,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            tie_word_embeddings=True,
            pad_token_id=0,  # the first of `Vocabulary.special`
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens")
    return model


def collate(
    rows: list[Row], tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded tokens, and labels that are -100 wherever nothing is to be learned."""
    encoded = iter(tokenizer([piece for row in rows for piece in row])["input_ids"])
    ids = [[next(encoded) for _ in row] for row in rows]
    longest = max(sum(map(len, pieces)) for pieces in ids)
    tokens_BT = torch.zeros((len(rows), longest), dtype=torch.long)  # 0 is <|pad|>
    labels_BT = torch.full((len(rows), longest), -100)
    for row, pieces in enumerate(ids):
        start = 0
        for position, piece in enumerate(pieces):
            end = start + len(piece)
            tokens_BT[row, start:end] = torch.tensor(piece)
            if position % 2 == 1:
                labels_BT[row, start:end] = tokens_BT[row, start:end]
            start = end
    return tokens_BT, labels_BT


def warm_up(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    draw_rows: Callable[[], list[Row]],
    *,
    name: str,
    steps: int,
    lr: float,
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    started, total = time.monotonic(), 0.0
    model.train()
    for step in range(steps):
        decay = 0.52 + 0.48 * math.cos(math.pi * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 50) * decay
        tokens_BT, labels_BT = collate(draw_rows(), tokenizer)
        loss = model(input_ids=tokens_BT.to(model.device), labels=labels_BT.to(model.device)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
        if (step + 1) % 100 == 0:
            seconds, mean = time.monotonic() - started, total / 100
            print(f"{name}: step {step + 1}/{steps}, loss {mean:.3f}, {seconds:.0f} s", flush=True)
            total = 0.0


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"saved to {folder}")


def options(description: str, out: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps")
    return parser.parse_args()
