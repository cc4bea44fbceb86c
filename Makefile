# Requires Python 3.11 or newer, git and make. Each target creates the virtual environment it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
unexport PYTHONDONTWRITEBYTECODE  # without byte code each command compiles what it imports

PYTHON ?= python3
TARGET ?= cu124-vllm
WORKERS ?= 2
KILLS ?= 1000
MUTATIONS ?= 10000
SECONDS_EACH ?= 60
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint tools/constraints.txt
IMGBUILD := $(BIN)/imgbuild
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder \
	--durations 40 --durations-min 5

SHOW := import importlib, importlib.metadata; there = importlib.metadata.packages_distributions(); \
	wanted = [n for n in ("torch", "vllm", "sglang", "trl", "verl", "tensordict") if n in there]; \
	print("\n".join(f"{n} {importlib.import_module(n).__version__}" for n in wanted))

.PHONY: image test again fast lowest coverage golden lint format constraints benchmark bench-faults bench-hostile bench-fuzz reproduce facts dist tool clean help

## image: build TARGET (default: cu124-vllm), load it into a container engine, import its packages
image: $(VENV)/ready
	$(IMGBUILD) build --target $(TARGET)
	$(IMGBUILD) digest $(TARGET)
	@# Status 6: no container engine is available. `run` then uses a root folder.
	$(IMGBUILD) load $(TARGET) || [ $$? -eq 6 ]
	$(IMGBUILD) run $(TARGET) -- python -c '$(SHOW)'

## test: run all tests that this machine supports; the last line lists skipped tests with the reason
test: $(VENV)/ready-test
	$(PYTEST) tests

## again: run the files with failures of the last run again, in one process, if they are few
again: $(VENV)/ready-test
	$(BIN)/python -m pytest --repeat-failed tests

## fast: run linters, type checks, repository checks and unit tests
fast: $(VENV)/ready-test
	$(PYTEST) tests/test_*.py tests/unit

## lowest: run the unit tests with the lowest version that pyproject.toml allows of each dependency
lowest: $(VENV)/ready
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/lowest
	$(BIN)/uv pip install --quiet --system-certs --python build/lowest --resolution lowest-direct --editable '.[test]'
	build/lowest/bin/python -m pytest --quiet --numprocesses $(WORKERS) tests/unit

## coverage: run the unit tests and print which share of the lines of builder/ they run
coverage: $(VENV)/ready-test
	$(BIN)/uv pip install --quiet --system-certs --python $(VENV) --constraint tools/constraints.txt pytest-cov
	$(BIN)/python -m pytest --quiet --numprocesses $(WORKERS) --cov imgbuild --cov-report term:skip-covered tests/unit

## golden: regenerate all golden files (tests/data, schemas, docs/reference, docs/images); review the diff
golden: $(VENV)/ready-test
	$(BIN)/python -m pytest --quiet --renew-golden tests/test_*.py tests/unit

## lint: run only ruff, mypy and codespell
lint: $(VENV)/ready-test
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/codespell

## format: format the code and sort imports with ruff
format: $(VENV)/ready-test
	$(BIN)/ruff check --fix --select I
	$(BIN)/ruff format

## constraints: update the pinned versions of imgbuild's own dependencies
constraints: $(VENV)/ready
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade \
		--quiet --no-header --no-annotate --output-file tools/constraints.txt

## benchmark: compare TARGET with a `docker build` that uses uv; options in ARGS (see --help)
benchmark: $(VENV)/ready
	$(BIN)/python lab/benchmark.py --target $(TARGET) $(ARGS)

## bench-faults: kill KILLS commands (default: 1000), damage the cache as often, let disks fail; hours, as root
bench-faults: $(VENV)/ready-test
	IMGBUILD_FAULTS=$(KILLS) $(BIN)/python -m pytest --junit-xml build/bench-faults.xml tests/integration/test_faults.py

## bench-hostile: give every reader MUTATIONS (default: 10000) of its input, and clients hostile servers; an hour
bench-hostile: $(VENV)/ready-test
	IMGBUILD_HOSTILE=$(MUTATIONS) $(BIN)/python -m pytest --durations 0 --durations-min 1 \
		tests/unit/test_hostile.py tests/unit/test_hostile_answers.py tests/unit/test_bounds.py \
		tests/unit/http/test_hostile_server.py

## bench-fuzz: give every reader inputs of atheris for SECONDS_EACH (default: 60); an hour, x86_64
bench-fuzz: $(VENV)/ready-test
	$(PIP) --editable '.[fuzz,test]'
	IMGBUILD_FUZZ=$(SECONDS_EACH) $(BIN)/python -m pytest -p tests.support.fuzz -rP \
		tests/unit/test_hostile.py tests/unit/test_hostile_answers.py

## reproduce: build in different environments and compare digests; options in ARGS (see --help)
reproduce: $(VENV)/ready
	tools/reproduce.py $(ARGS)

## facts: read the wheels and Debian packages of recommended targets again, after a change of their locks or of what is read; 30 GB of downloads
facts: $(VENV)/ready
	IMGBUILD_CACHE=$(CURDIR)/build/facts $(BIN)/python tools/facts.py

## dist: build imgbuild's wheel and sdist in dist/, reproducibly
dist: $(VENV)/ready
	$(BIN)/python tools/facts.py --check
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet --system-certs --out-dir dist

## tool: lock the container image of imgbuild itself (tool/matrix.yaml) with the wheel in dist/
tool: dist
	rm -rf tool/wheels
	mkdir tool/wheels
	cp dist/*.whl tool/wheels
	$(IMGBUILD) lock --matrix tool/matrix.yaml --all

## clean: remove .venv and build results; keep the download cache (see imgbuild cache)
clean:
	rm -rf $(VENV) build dist tool/build tool/wheels .mypy_cache .pytest_cache .ruff_cache .hypothesis builder/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

## help: show this list
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "imgbuild needs Python 3.11 or newer; choose one with: make PYTHON=python3.12" >&2; exit 6; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/ready: pyproject.toml tools/constraints.txt | $(VENV)/made
	$(PIP) --editable .
	touch $@

# uv takes a third of pip's time, but does not read pip's configuration: pip is used if that is needed.
$(VENV)/ready-test: pyproject.toml tools/constraints.txt | $(VENV)/made
	$(PIP) uv
	$(BIN)/uv pip install --quiet --system-certs --compile-bytecode --python $(VENV) \
		--constraint tools/constraints.txt --editable '.[test]' || $(PIP) --editable '.[test]'
	touch $@ $(VENV)/ready
