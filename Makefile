# vime: everything a checkout needs. `make` alone explains itself.
# The environment is built on demand in .venv by constraints/install.py; nothing outside the checkout is changed.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env e2e test test-all lint format contracts pins schema lock clean clean-all

PYTHON ?= $(firstword $(foreach p,python3.11 python3 python,$(shell $(p) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $(p))) python3)
BIN := .venv/bin
ARGS ?=

help: ## show this list
	@echo "vime: RL post-training that proves it trains right. Targets:"
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22
	@echo "More arguments for pytest: make test ARGS='-k losses -x'. Another Python 3.11: make PYTHON=/path/to/python3.11 test."

env: .venv/.installed ## build .venv with the tested set of packages (the other targets do it themselves)

.venv/.installed: pyproject.toml constraints/cpu.txt constraints/install.py
	@$(PYTHON) constraints/install.py

e2e: .venv/.installed ## run the smoke tier of the CPU matrix end to end, judge it, write report/index.html
	@$(BIN)/pytest -m cpu_e2e $(ARGS)

test: .venv/.installed ## run the tests
	@$(BIN)/python -m tests $(ARGS)

test-all: .venv/.installed ## run the tests, the slow ones too, then the smoke tier
	@$(BIN)/python -m tests --slow $(ARGS)
	@$(BIN)/pytest -m cpu_e2e

lint: .venv/.installed ## check style, format, types and the matrix's declarations
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python -m matrix check
	@$(BIN)/mypy

format: .venv/.installed ## mend what can be mended of style and format
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

CONTRACTS := matrix/schema/options vime/rollout/vllm_compat/contracts_v0_23.json vime/platforms/catalogues
VENDOR := .cache/vendor
contracts: .venv/.installed ## read anew what the vendors' packages offer (option catalogues, contracts of adapters and providers); fails when it changed
	@$(BIN)/python constraints/vendor.py $(VENDOR)
	@$(BIN)/python -m vime.config.options extract vllm -o matrix/schema/options
	@$(BIN)/python -m vime.config.options extract megatron-core -o matrix/schema/options
	@for version in 0.22.1 0.23.0; do $(BIN)/python -m vime.config.options extract vllm -o matrix/schema/options --wheel $(VENDOR)/vllm-$$version/vllm-$$version; done
	@$(BIN)/python -m vime.rollout.vllm_compat.contracts extract $(VENDOR)/vllm-0.23.0/vllm-0.23.0 -o vime/rollout/vllm_compat/contracts_v0_23.json
	@for folder in $(VENDOR)/*; do $(BIN)/python -m vime.platforms.contracts extract $$folder -o vime/platforms/catalogues; done
	@git diff --stat --exit-code -- $(CONTRACTS)

pins: .venv/.installed ## ask the package index whether every pinned version is there (minutes)
	@cd constraints && ../$(BIN)/python exists.py cpu.txt cuda.txt npu.txt

schema: .venv/.installed ## write the JSON Schema of vime's configurations anew, for the matrix
	@$(BIN)/vime config schema -o matrix/schema/vime-config.schema.json

lock: .venv/.installed ## write constraints/cpu.txt anew from .venv
	@$(BIN)/python constraints/lock.py

clean: ## remove caches and build products
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

clean-all: clean ## also remove .venv and everything runs left: results, report, comparison, runs
	@rm -rf .venv results report comparison runs
