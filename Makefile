# Every target does its own set-up, in .venv. The stamp files make the second call quick.

PYTHON ?= python3
TRACES ?= ../shared/traces
BENCH ?=
TIMED := tests/real $(patsubst %,tests/run/test_%.py,calibrate command conditions fabric fabric_run)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# pytest and hypothesis behave differently where CI is set; here they must not.
unexport CI

.DEFAULT_GOAL := help
.PHONY: help demo test gpu coverage lint bench promises accuracy conditions record sizes clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/installed ## Analyze the recorded example traces and show the result
	@for run in ddp_one_bucket ddp_small_buckets; do \
	  echo; echo "\$$ underlap analyze examples/traces/$$run"; \
	  $(BIN)/underlap analyze examples/traces/$$run || exit; \
	done

# Runs that are timed or shape links come first and alone; the rest shares the cores, file by file, as what a file's tests share
# is then made once.
test: $(VENV)/installed-dev ## Run the tests, on two cores
	$(BIN)/python -m pytest $(TIMED)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(TIMED:%=--ignore %)

gpu: $(VENV)/installed-dev ## Run the tests that need GPUs: one, and two for half of them
	$(BIN)/python -m pytest -rs tests/gpu

coverage: $(VENV)/installed-dev ## Run the tests with coverage, which takes three times as long
	$(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage report

lint: $(VENV)/installed-dev ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/installed .venv-hta/installed ## Measure CPU time and memory against HTA (BENCH=--quick for a smoke test)
	$(BIN)/python -m bench.analyze --traces $(TRACES) --hta-python .venv-hta/bin/python $(BENCH)
	$(BIN)/python -m bench.sweep $(BENCH)

accuracy: $(VENV)/installed-dev ## Compare with measurements again and write docs/accuracy.md (minutes)
	$(PIP) --editable '.[fast]'
	$(BIN)/python tools/accuracy.py > docs/accuracy.new && mv docs/accuracy.new docs/accuracy.md

promises: $(VENV)/installed-dev ## Run planted causes over gloo, remove them, and write docs/promises.md
	$(BIN)/python tools/promises.py --write

conditions: $(VENV)/installed-dev ## Measure under which conditions overlap pays, and write docs/conditions.md (root, minutes)
	$(BIN)/python tools/conditions.py --write

record: $(VENV)/installed-run ## Record the example traces again (installs PyTorch)
	$(BIN)/python examples/record_ddp.py

sizes: $(VENV)/created ## Show the lengths of functions and files per folder
	@$(BIN)/python tools/sizes.py

clean: ## Remove the environments and everything that was built
	rm -rf .venv .venv-hta build dist src/*.egg-info .coverage
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/created .venv-hta/created:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on the PATH: make $(MAKECMDGOALS) PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d, but underlap needs 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(@D)
	@touch $@

$(VENV)/installed: pyproject.toml $(VENV)/created
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(VENV)/created
	$(PIP) --editable '.[dev,run]'
	@touch $@ $(VENV)/installed $(VENV)/installed-run

$(VENV)/installed-run: pyproject.toml $(VENV)/created
	$(PIP) --editable '.[run]'
	@touch $@ $(VENV)/installed

.venv-hta/installed: .venv-hta/created
	$(PIP:$(BIN)%=.venv-hta/bin%) 'HolisticTraceAnalysis==0.5.0' 'pandas<3'
	@touch $@
