"""TRL's step: its own GRPOTrainer, at its fastest settings, timed from outside.

No gradient checkpointing, no old log-probs pass (generation and update have the same period), bf16
weights on a GPU (its fastest way; groupwise keeps fp32 master weights), and the largest micro-batch
that fits in memory. A step is what lies between on_step_begin and on_step_end.
"""

import gc
import importlib.util
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sidebyside import models
from sidebyside.record import forget_peak, record, synchronize
from sidebyside.reward import letters
from sidebyside.served import ending
from sidebyside.settings import Measurement, Setting

NEEDS = {"trl": "trl", "trl+liger": "liger_kernel", "trl+vllm": "vllm"}


def missing(kind: str) -> str | None:
    """The package that this kind needs and that is not installed."""
    wanted = ("trl", NEEDS[kind])
    return next((name for name in wanted if importlib.util.find_spec(name) is None), None)


def measure(setting: Setting, kind: str) -> Measurement:
    """With the largest micro-batch that fits: halved as long as memory runs out."""
    batch = setting.trl_batch or setting.answers
    while True:
        try:
            return _measure(setting, kind, batch)
        except torch.cuda.OutOfMemoryError:
            if batch % 2:
                raise
        batch //= 2
        gc.collect()
        torch.cuda.empty_cache()


def _measure(setting: Setting, kind: str, batch: int) -> Measurement:
    from datasets import Dataset

    model, tokenizer = models.build(setting)
    watch = Stopwatch(setting.device)
    with tempfile.TemporaryDirectory() as folder:
        if setting.beta or kind == "trl+vllm":
            # The trainer loads the reference, and vLLM the policy, from where the model came from.
            models.save(model, f"{folder}/start", keep_bias=kind != "trl+vllm")
            tokenizer.save_pretrained(f"{folder}/start")
            model.name_or_path = model.config._name_or_path = f"{folder}/start"
        trainer = _timed_trainer(watch)(
            model=model,
            reward_funcs=letters,
            args=_arguments(setting, kind, batch, folder, model, tokenizer),
            train_dataset=Dataset.from_dict({"prompt": models.prompts(setting, tokenizer)}),
            processing_class=tokenizer,
            peft_config=models.lora(setting),
        )
        trainer.add_callback(watch.callback())
        forget_peak(setting.device)
        trainer.train()
        return record(kind, setting, watch.steps(), watch.tokens, watch.longest, micro_batch=batch)


def _arguments(
    setting: Setting, kind: str, batch: int, folder: str, model: Any, tokenizer: Any
) -> Any:
    from trl import GRPOConfig

    cpu = setting.device == "cpu"
    vllm: dict[str, Any] = {}
    if kind == "trl+vllm":
        vllm = {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.3,
            "generation_kwargs": ending(setting, model, tokenizer),
            "vllm_importance_sampling_correction": False,  # it costs another pass
        }
    return GRPOConfig(
        output_dir=f"{folder}/out",
        max_steps=setting.warmup + setting.steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=setting.answers // batch,
        num_generations=setting.group,
        max_completion_length=setting.completion_tokens,
        temperature=1.0,
        beta=setting.beta,
        loss_type="grpo",
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        gradient_checkpointing=False,
        bf16=not cpu,
        use_cpu=cpu,
        use_liger_kernel=kind == "trl+liger",
        shuffle_dataset=False,
        dataloader_pin_memory=not cpu,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **vllm,
    )


class Stopwatch:
    """Adds up the seconds of phases, step by step."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.phases: list[dict[str, float]] = []
        self.tokens: list[int] = []
        self.longest = 0
        self._began = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        synchronize(self.device)
        began = time.perf_counter()
        yield
        synchronize(self.device)
        now = self.phases[-1]
        now[name] = now.get(name, 0.0) + time.perf_counter() - began

    def steps(self) -> list[dict[str, float]]:
        """The update is what is left of a step when sampling and scoring are done."""
        return [
            {
                "generation": phases["generation"],
                "reference": phases.get("reference", 0.0),
                "update": phases["step"] - phases["rollout"],
                "step": phases["step"],
            }
            for phases in self.phases
        ]

    def callback(self) -> Any:
        from transformers import TrainerCallback

        watch = self

        class Steps(TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                synchronize(watch.device)
                watch.phases.append({})
                watch._began = time.perf_counter()

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                synchronize(watch.device)
                watch.phases[-1]["step"] = time.perf_counter() - watch._began

        return Steps()


def _timed_trainer(watch: Stopwatch) -> Any:
    """GRPOTrainer itself, with a clock around three of its methods."""
    from trl import GRPOTrainer

    class TimedTrainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            with watch.phase("rollout"):
                return super()._generate_and_score_completions(inputs)

        def _generate(self, prompts: Any) -> Any:
            with watch.phase("generation"):
                output = super()._generate(prompts)
            lengths = [len(tokens) for tokens in output[1]]
            watch.tokens.append(sum(lengths))
            watch.longest = max(watch.longest, *lengths)
            return output

        def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                return super()._get_per_token_logps_and_entropies(*args, **kwargs)
            with watch.phase("reference"):
                return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    return TimedTrainer
