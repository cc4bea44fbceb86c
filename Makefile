# Each target makes the environment that it needs; Python 3.11 or newer, git and make suffice.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
TARGET ?= cu124-vllm
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint tools/constraints.txt
IMGBUILD := $(BIN)/imgbuild
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder \
	--durations 40 --durations-min 5

SHOW := import importlib, importlib.metadata; there = importlib.metadata.packages_distributions(); \
	wanted = [n for n in ("torch", "vllm", "sglang", "trl", "verl", "tensordict") if n in there]; \
	print("\n".join(f"{n} {importlib.import_module(n).__version__}" for n in wanted))

.PHONY: image test fast golden lint format constraints benchmark reproduce dist tool clean help

## image: build TARGET (cu124-vllm), load it where an engine answers, import its packages in it
image: $(VENV)/ready
	$(IMGBUILD) build --target $(TARGET)
	$(IMGBUILD) digest $(TARGET)
	@# 6: no engine answers. `run` then uses a root folder.
	$(IMGBUILD) load $(TARGET) || [ $$? -eq 6 ]
	$(IMGBUILD) run $(TARGET) -- python -c '$(SHOW)'

## test: all tests that this machine can run; the last line says what did not run and why
test: $(VENV)/ready-test
	$(PYTEST) tests

## fast: lint, types, rules of the repository, unit tests
fast: $(VENV)/ready-test
	$(PYTEST) tests/test_*.py tests/unit

## golden: write all golden files anew (tests/data, schemas, docs/reference); read the diff
golden: $(VENV)/ready-test
	$(BIN)/python -m pytest --quiet --renew-golden tests/test_*.py tests/unit

## lint: ruff, mypy and codespell alone
lint: $(VENV)/ready-test
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/codespell

## format: let ruff lay out the code
format: $(VENV)/ready-test
	$(BIN)/ruff check --fix --select I
	$(BIN)/ruff format

## constraints: pin the newest versions of imgbuild's own dependencies
constraints: $(VENV)/ready
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade \
		--quiet --no-header --no-annotate --output-file tools/constraints.txt

## benchmark: measure TARGET against `docker build` with uv; options in ARGS (see --help)
benchmark: $(VENV)/ready
	$(BIN)/python tools/benchmark.py --target $(TARGET) $(ARGS)

## reproduce: build in many surroundings and compare digests; options in ARGS (see --help)
reproduce: $(VENV)/ready
	tools/reproduce.py $(ARGS)

## dist: the tool as a wheel and an sdist, in dist/; the same bytes for the same commit
dist: $(VENV)/ready
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet --system-certs --out-dir dist

## tool: lock the image that holds the wheel of dist/ and what it needs; imgbuild build makes it
tool: dist
	rm -rf tool/wheels
	mkdir tool/wheels
	cp dist/*.whl tool/wheels
	$(IMGBUILD) lock --matrix tool/matrix.yaml --all

## clean: remove the environment and what was built; the download cache stays (imgbuild cache)
clean:
	rm -rf $(VENV) build dist tool/build tool/wheels .mypy_cache .pytest_cache .ruff_cache .hypothesis builder/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

## help: this list
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "imgbuild needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 6; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/ready: pyproject.toml tools/constraints.txt | $(VENV)/made
	$(PIP) --editable .
	touch $@

$(VENV)/ready-test: pyproject.toml tools/constraints.txt | $(VENV)/made
	$(PIP) --editable '.[test]'
	touch $@ $(VENV)/ready
