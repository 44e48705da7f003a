# What a checkout can do. Needs make, Python 3.11 or newer with its headers, and a C compiler; root on
# Debian or Ubuntu gets them. The rest is installed into .venv by the first target that needs it.
#
#     make demo ARGS="--days 1 --speed max"
#     make example NAME=bank
#     make test ARGS="tests/log -x"
#     make PYTHON=/usr/bin/python3.12 setup

VENV ?= .venv
PYTHON ?=
ARGS ?=
NAME ?=
# Processes that share the tests (see docs/testing.md). More than the cores: tests often wait.
WORKERS ?= 6

export VENV PYTHON

SETUP := scripts/setup.sh
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS)
ARCHIVE := $(BIN)/python -m tests.support.spark_archive
AUDIT := build/audit/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup demo example test test-fast test-nightly test-durations test-lowest test-pythons resolve audit lint format docs docs-serve bench ci clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: ## Make .venv with all that development needs.
	@$(SETUP) demo test lint

demo: ## Replay real flights through a broker and a Spark pipeline, and check the result.
	@$(SETUP) demo
	@$(BIN)/tidemill demo $(ARGS)

example: ## Run a program of examples/, which checks itself and ends: NAME=bank.
	@[ -f "examples/$(NAME)/$(NAME).py" ] || { \
		echo "error: no example '$(NAME)'; NAME is one of:" $$(cd examples && ls -d */ | tr -d /) >&2; exit 2; }
	@$(SETUP) demo sql
	@$(BIN)/python examples/$(NAME)/$(NAME).py $(ARGS)

test: ## Run all tests but those of test-nightly.
	@$(SETUP) demo test
	@$(ARCHIVE)
	@$(PYTEST) $(ARGS)

test-fast: ## Run the tests that start no JVM, kill no process and take two seconds at most.
	@$(SETUP) demo test
	@$(PYTEST) -m fast $(ARGS)

test-nightly: ## Run random tests for hours: many examples, long series of kills, Apache Kafka, browsers.
	@$(SETUP) demo test browser
	@$(ARCHIVE)
	@TEST_EFFORT=nightly APACHE_KAFKA_TESTS=1 \
		$(PYTEST) -o faulthandler_timeout=0 -m "nightly or crash or hypothesis or apache_kafka or timing" $(ARGS)

test-durations: ## Run all tests and record how long each file takes, to balance the processes.
	@$(SETUP) demo test
	@$(ARCHIVE)
	@$(PYTEST) --record-durations $(ARGS)

test-lowest: ## Run the fast tests and two pipelines with the oldest versions of all packages.
	@scripts/lowest-versions.sh $(ARGS)

test-pythons: ## Run the fast tests with Python 3.12 and 3.13, where they are installed.
	@scripts/other-pythons.sh $(ARGS)

resolve: ## Check that tidemill can be installed beside quixstreams, FastStream and Airflow.
	@scripts/resolve-beside.sh $(ARGS)

audit: ## Look for known vulnerabilities in the packages that are installed. Needs the network.
	@$(SETUP) demo test
	@$(AUDIT) -m pip_audit --version >/dev/null 2>&1 || { \
		$(BIN)/python -m venv --clear build/audit && $(AUDIT) -m pip install --quiet pip-audit; }
	@$(AUDIT) -m pip_audit --skip-editable \
		--path "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(ARGS)

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

docs: ## Build the documentation in build/site.
	@$(SETUP) docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Open build/site/index.html"

docs-serve: ## Show the documentation on http://127.0.0.1:8000 and follow changes.
	@$(SETUP) docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

bench: ## Measure against a raw baseline, and against Apache Kafka where it is to hand.
	@$(SETUP) demo test
	@$(BIN)/python -m bench $(ARGS)

ci: ## What continuous integration runs.
	@.ci/run

clean: ## Remove .venv, caches and build products.
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +
