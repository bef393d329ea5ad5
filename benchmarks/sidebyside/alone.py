"""transformers' own `generate`, alone: what generation costs where nothing was done about it."""

import time

import torch
from transformers import GenerationConfig

from sidebyside import models
from sidebyside.record import forget_peak, record, synchronize
from sidebyside.settings import Measurement, Setting


def measure(setting: Setting, kind: str) -> Measurement:
    model, tokenizer = models.build(setting)
    model.eval()
    texts = [t for t in models.prompts(setting, tokenizer) for _ in range(setting.group)]
    inputs = tokenizer(texts, padding=True, return_tensors="pt").to(setting.device)
    options = GenerationConfig(
        max_new_tokens=setting.completion_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    steps: list[dict[str, float]] = []
    tokens: list[int] = []
    longest = 0
    forget_peak(setting.device)
    for number in range(setting.warmup + setting.steps):
        torch.manual_seed(number)
        synchronize(setting.device)
        began = time.perf_counter()
        with torch.no_grad():
            output = model.generate(**inputs, generation_config=options)
        synchronize(setting.device)
        steps.append({"generation": time.perf_counter() - began})
        drawn = output[:, inputs["input_ids"].shape[1] :]
        tokens.append(int((drawn != tokenizer.pad_token_id).sum()))
        longest = max(longest, drawn.shape[1])
    return record(kind, setting, steps, tokens, longest)
