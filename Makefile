# make demo    watch the embedded model learn (CPU, about two minutes of training)
# make test    set up, lint, type-check, run every fast test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# torch first and exact: a looser request pulls gigabytes of CUDA packages onto machines without a GPU.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo test test-slow lint types clean

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
	$(BIN)/groupwise train --out runs/demo

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/pyright

test: lint types
	$(BIN)/pytest -n 2 -m "not slow and not gpu"

test-slow: $(VENV)/.dev
	$(BIN)/pytest -m "slow and not gpu"

clean:
	rm -rf $(VENV) runs
