# make run   the main job: SAFL on the bundled MNIST sample
# make test  the tests that every change must pass
# make test-slow    whole runs, more variants of tests, clusters that lose nodes
# make test-deploy  real clients: all variants, and as programs that are killed
# make test-attack  the slow attacks: killed runs, failing disks, fuzzed files
# make check ruff and mypy
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test test-slow test-deploy test-attack check clean

run: $(VENV)/.installed
	$(BIN)/safl-train

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m slow

test-deploy: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m 'slow or not slow' tests/deployment

test-attack: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m attack tests/attack

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check safl_tf binaries tests benchmarks examples
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info
