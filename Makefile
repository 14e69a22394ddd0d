# make run   the main job: SAFL on the bundled MNIST sample
# make test  the tests that every change must pass
# make test-slow    whole runs, more variants of tests, clusters that lose nodes
# make test-deploy  real clients: all variants, and as programs that are killed
# make test-attack  the slow attacks: killed runs, failing disks, fuzzed files
# make check ruff and mypy
# make docs  the documentation site, in site/
# make docs-serve   the same at http://127.0.0.1:8000/safl_tf/, rebuilt as files change
# make tutorials   runs docs/tutorials/*.ipynb and stores their outputs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test test-slow test-deploy test-attack check docs docs-serve tutorials clean

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

# Material's notice about the end of MkDocs 1 is for those who choose a tool.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --quiet
	@echo "open $(CURDIR)/site/index.html"

docs-serve: $(VENV)/.installed-docs
	$(BIN)/mkdocs serve --no-strict

tutorials: $(VENV)/.installed-test
	$(BIN)/python docs/tutorials/execute.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-test: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: setup.cfg pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist site *.egg-info
