# What a checkout can do. Needs make, a C compiler and Python 3.11 or newer; the rest is installed
# into .venv by the first target that needs it.
#
#     make demo ARGS="--days 1 --speed max"
#     make test ARGS="tests/log -x"
#     make PYTHON=/usr/bin/python3.12 setup

VENV ?= .venv
PYTHON ?=
ARGS ?=
# A file of tests runs in one process; two processes share the files: three are slower on two cores.
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder

export VENV PYTHON

SETUP := scripts/setup.sh
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format bench ci clean

help: ## Show this list.
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## Make .venv with all that development needs.
	@$(SETUP) demo test lint

demo: ## Replay real flights through a broker and a Spark pipeline, and check the result.
	@$(SETUP) demo
	@$(BIN)/tidemill demo $(ARGS)

test: ## Run all tests.
	@$(SETUP) demo test
	@$(BIN)/python -m tests.support.spark_archive
	@$(BIN)/python -m pytest -q $(WORKERS) $(ARGS)

lint: ## Check style, types and which layer imports which.
	@$(SETUP) demo test lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: ## Format the code.
	@$(SETUP) demo test lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: ## Measure against a raw baseline, and against Apache Kafka where it is to hand.
	@$(SETUP) demo test
	@$(BIN)/python -m bench $(ARGS)

ci: ## What continuous integration runs.
	@.ci/run

clean: ## Remove .venv, caches and build products.
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +
