PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test check bench bench-buffer nightly

setup:
	@$(PYTHON) slime_rl/install/__main__.py cpu --venv $(VENV) --editable . --dev

demo: setup
	@$(BIN)/slime-rl demo

test: setup
	@$(BIN)/python -m pytest

check: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/pyright

bench: setup
	@$(BIN)/python -m bench

bench-buffer: setup
	@$(BIN)/python -m bench.buffer

nightly: setup
	@$(BIN)/python tests/nightly.py $(SHARD)
