"""Write docs/recipes/README.md from the recipes: python THIS_FILE"""

import pathlib

from groupwise.recipe import list_recipes, read_recipe

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "recipes" / "README.md"
INTRODUCTION = """# Recipes

A recipe is a YAML file of [settings](../configuration.md). These come with groupwise: each system
that GRPO is known by, on the same loop, and what we would do today. Made from `recipes/` by
`scripts/make_recipes_page.py`.

"""
AFTER = """
Hardware is computed from the bytes that weights, gradients and moments take (see
[memory](../adapters.md)), with room for activations; unless a page says so it was not measured.

## Run one

```
groupwise recipes
groupwise train cookbook --preset quick --tiny --out runs/tried
```

`groupwise train NAME` runs a recipe at its own size, `key.sub=value` words change it, `--preset`
picks one of the blocks that the file holds under `presets:`, and a YAML file of your own is named
by its path.

`--tiny` runs any of them in seconds on a CPU: the embedded model, two small steps, and a few sums
in the form of the recipe's dataset unless `task.path` names data, in fp32, which every CPU has.
Algorithm, rewards, adapter, optimizer, schedule and reference stay; rewards for a form get the tags
that the embedded model writes, so that they are met. What was swapped is printed. A length
penalty is added, so that answers differ and updates happen: a tiny run shows that the parts work
together, and nothing about learning. `groupwise check`, `doctor`, `explain` and `groupwise reward
bench` take it too.

The tests train every recipe in this way, kill it, resume it to the same numbers, evaluate it, and
hold its loss and gradient to an independent statement of its system's formula, to 1e-9 in float64.
"""


def page() -> str:
    lines = ["| recipe | what | size | hardware | presets |", "|---|---|---|---|---|"]
    for name, path in list_recipes().items():
        recipe = read_recipe(path)
        shown = f"[`{name}`]({name}.md)" if (PAGE.parent / f"{name}.md").exists() else f"`{name}`"
        presets = ", ".join(f"`{preset}`" for preset in recipe.presets)
        lines.append(f"| {shown} | {recipe.line} | {recipe.size} | {recipe.hardware} | {presets} |")
    return INTRODUCTION + "\n".join(lines) + "\n" + AFTER


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
