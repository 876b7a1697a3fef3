# Everything a newcomer needs: `make demo` and `make test` set themselves up.
PYTHON ?= python3
VENV := .venv
PEER := .venv-peer
BIN := $(VENV)/bin

.PHONY: setup demo test lint docs bench bench-small clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "torchmcl needs Python 3.11 or newer, found " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

demo: setup
	$(BIN)/python -m torchmcl.demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadscope

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean
	@echo "Open site/index.html, or, to search in it, http://127.0.0.1:8000 of: python3 -m http.server -d site"

# Ensemble-PyTorch, to compare with, in an environment of its own: its declared torchvision breaks others, and is not used.
$(PEER)/.ready: $(VENV)/.ready
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/python -m pip install --quiet --upgrade pip
	$(PEER)/bin/python -m pip install --quiet scikit-learn torch==$$($(BIN)/python -c 'from importlib.metadata import version; print(version("torch"))')
	$(PEER)/bin/python -m pip install --quiet --no-deps torchensemble==0.2.0
	touch $@

bench: setup $(PEER)/.ready
	$(BIN)/python benchmarks/throughput.py --peer $(PEER)/bin/python --out benchmarks/results.json

bench-small: setup
	mkdir -p runs
	$(BIN)/python benchmarks/throughput.py --small --out runs/bench-small.json
	$(BIN)/python benchmarks/guard.py runs/bench-small.json benchmarks/results.json

clean:
	rm -rf $(VENV) $(PEER) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist site
