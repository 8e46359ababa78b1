# `make help` lists what there is. Nothing but Python 3.11 to 3.13 is needed; everything lives in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

VENV := .venv
PY := $(VENV)/bin/python
STAGE := scripts/stage.sh
GRIDSIM := bundles/gridsim-v1
PORTSIM := bundles/portsim-v1
# More arguments for a target's program: make test-fast ARGS="-k plugins", make demo ARGS="--grpo-steps 60"
ARGS :=
# Where `make chaos` begins; empty takes a random seed, which it prints.
SEED :=
# How many of the tests that `make test` runs go on at the same time.
WORKERS := 2
export PYTHON

.PHONY: help setup demo test test-fast test-all test-vllm lint types imports docs docs-serve packaging pytest bench chaos clean distclean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(VENV)/.installed $(GRIDSIM)/.generated $(PORTSIM)/.generated  ## makes .venv with everything in it, and the bundles

$(VENV)/.installed: requirements-dev.txt pyproject.toml $(wildcard plugins/*/pyproject.toml) scripts/setup.sh
	@$(STAGE) setup scripts/setup.sh $(VENV)
	@touch $@

$(GRIDSIM)/.generated: $(wildcard $(GRIDSIM)/generator/*) | $(VENV)/.installed
	@$(STAGE) gridsim $(PY) $(GRIDSIM)/generator
	@touch $@

$(PORTSIM)/.generated: $(wildcard $(PORTSIM)/generator/*) $(PORTSIM)/envs/portsim/port.py | $(VENV)/.installed
	@$(STAGE) portsim $(PY) $(PORTSIM)/generator
	@touch $@

demo: setup  ## the main job: serve GridSim, warm start, train with GRPO, compare
	@$(PY) -m examples.train_gridsim $(ARGS)

test: setup lint types imports docs pytest  ## lint, types, imports, docs and every test that fits a CI run

test-fast: setup  ## the tests that are quick and need no Docker
	@$(PY) -m pytest -m "not slow and not long and not docker" $(ARGS)

test-all: setup lint types imports docs  ## `make test`, the long tests, and a training step on other versions of TRL
	@$(STAGE) tests $(PY) -m pytest -o junit_family=xunit1 --junitxml=out/junit.xml $(ARGS)
	@$(STAGE) trl-versions scripts/trl_versions.sh

pytest: setup
	@$(STAGE) tests $(PY) -m pytest -m "not long" -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -o junit_family=xunit1 --junitxml=out/junit.xml $(ARGS)

lint: $(VENV)/.installed  ## ruff: rules and format
	@$(STAGE) lint $(PY) -m ruff check .
	@$(STAGE) format $(PY) -m ruff format --check .

types: $(VENV)/.installed  ## mypy, strict
	@$(STAGE) types $(PY) -m mypy

imports: $(VENV)/.installed  ## which part may import which
	@$(STAGE) imports $(VENV)/bin/lint-imports

docs: $(VENV)/.installed  ## builds the site into site/, strict
	@NO_MKDOCS_2_WARNING=1 $(STAGE) docs $(PY) -m mkdocs build --strict

docs-serve: $(VENV)/.installed  ## the site on this machine, rebuilt as you write
	@$(PY) -m mkdocs serve

test-vllm: setup  ## AsyncGRPO against a real vLLM server on the processor; downloads 1 GB into .venv-vllm once
	@VENV=$(VENV) scripts/test_vllm.sh $(ARGS)

packaging: setup  ## builds every wheel and checks them in fresh environments
	@$(PY) -m pytest tests/packaging $(ARGS)

bench: setup  ## latency and throughput of each sandbox provider against the bare container
	@$(PY) -m bench $(ARGS)

chaos: setup  ## rollouts under faults, thousands on the fake provider: SEED=7 begins there, ARGS="--schedule FILE" replays
	@SEED="$(SEED)" $(PY) -m chaos $(ARGS)

clean:  ## removes what builds and tests made
	rm -rf build dist site out .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## removes .venv, .venv-vllm and what the bundles' generators made as well
	rm -rf $(VENV) .venv-vllm sft $(GRIDSIM)/.generated $(GRIDSIM)/tasks $(GRIDSIM)/evals $(GRIDSIM)/envs/gridsim/prices
	rm -rf $(PORTSIM)/.generated $(PORTSIM)/tasks $(PORTSIM)/evals
