"""The model card that goes with every saved model."""

from collections.abc import Mapping
from typing import Any

import yaml

from groupwise.config import Config
from groupwise.recipe import config_text


def model_card(config: Config, summary: Mapping[str, Any]) -> str:
    before, after = summary["before"], summary["after"]
    names = [n for n in after if n in before and n != "problems" and "/" not in n]
    rows = "\n".join(f"| {name} | {before[name]:.4g} | {after[name]:.4g} |" for name in names)
    library = "transformers" if config.adapter is None else "peft"
    loader = "AutoModelForCausalLM" if config.adapter is None else "AutoPeftModelForCausalLM"
    header = {"library_name": library, "tags": ["grpo", "groupwise"]}
    if "/" in config.model:
        header["base_model"] = config.model
    return f"""---
{yaml.safe_dump(header, sort_keys=False).rstrip()}
---

# {config.model}, trained with GRPO on {config.task.kind}

{summary["steps"]} steps of {config.batch.prompts} prompts x {config.batch.group_size} answers with
groupwise, algorithm `{config.algorithm.preset}`.

On {after["problems"]:.0f} test problems:

| | before | after |
|---|---|---|
{rows}

```python
from {library} import {loader}
from transformers import AutoTokenizer

model = {loader}.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```

## Settings

```yaml
{config_text(config).rstrip()}
```
"""
