"""vLLM's generation, alone: its own engine in a process of its own, with log-probs, no training.

It gets each prompt once and is asked for a group of answers, so it shares prompts as it can. Its
sampler has no bias in the head, which sets the lengths here: the same bias is an option of it. A
LoRA adapter is served as one, beside the model's weights.
"""

import gc
import tempfile
import time
from dataclasses import replace
from typing import Any

import torch

from sidebyside import models
from sidebyside.record import record
from sidebyside.settings import Measurement, Setting

MEMORY = 0.5
"""The share of the GPU that vLLM may fill; more than enough for every answer at once."""


def measure(setting: Setting, kind: str) -> Measurement:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    model, tokenizer = models.build(setting)
    ids = [tokenizer(text)["input_ids"] for text in models.prompts(setting, tokenizer)]
    options = {
        "n": setting.group,
        "temperature": 1.0,
        "max_tokens": setting.completion_tokens,
        "logprobs": 0,
        "detokenize": False,
        **ending(setting, model, tokenizer),
    }
    with tempfile.TemporaryDirectory() as folder:
        models.save(model, folder)
        tokenizer.save_pretrained(folder)
        if lora := models.lora(setting):
            from peft import get_peft_model

            get_peft_model(model, lora).save_pretrained(f"{folder}/adapter")
        dtype = str(model.dtype).removeprefix("torch.")
        length = max(map(len, ids)) + setting.completion_tokens
        del model
        gc.collect()
        torch.cuda.empty_cache()
        engine = LLM(
            folder,
            dtype=dtype,
            max_model_len=length,
            max_num_seqs=setting.answers,
            gpu_memory_utilization=MEMORY,
            disable_log_stats=True,
            **({"enable_lora": True, "max_lora_rank": setting.adapter} if lora else {}),
        )
        served = LoRARequest("adapter", 1, f"{folder}/adapter") if lora else None
        if served is not None:
            engine.llm_engine.add_lora(served)  # from the folder, which is gone later
    steps: list[dict[str, float]] = []
    tokens: list[int] = []
    longest = 0
    for number in range(setting.warmup + setting.steps):
        sampling = SamplingParams(seed=None, **options)
        engine.reset_prefix_cache()  # after an update of the weights nothing of it would hold
        began = time.perf_counter()
        prompts = [{"prompt_token_ids": tokens} for tokens in ids]
        found = engine.generate(prompts, sampling, use_tqdm=False, lora_request=served)
        steps.append({"generation": time.perf_counter() - began})
        lengths = [len(answer.token_ids) for request in found for answer in request.outputs]
        assert len(lengths) == setting.answers, f"step {number}: {len(lengths)} answers"
        tokens.append(sum(lengths))
        longest = max(longest, *lengths)
    engine.llm_engine.engine_core.shutdown()
    # Its memory is another process's, and as much as it is given.
    return replace(record(kind, setting, steps, tokens, longest, share=MEMORY), peak_bytes=0)


def ending(setting: Setting, model: Any, tokenizer: Any) -> dict[str, Any]:
    """What gives vLLM's answers the lengths of the others'."""
    if setting.lengths == "fixed":
        return {"ignore_eos": True}
    bias = model.get_output_embeddings().bias[tokenizer.eos_token_id].item()
    return {"logit_bias": {tokenizer.eos_token_id: bias}}
