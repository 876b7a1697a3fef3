# `make demo` and `make test` create the environment they need.
PYTHON ?= python3
VENV := .venv
PEER := .venv-peer
LOWEST := .venv-lowest
FRESH := .venv-wheel
TOOLS := .venv-tools
ESSENTIAL := tests/data tests/training/test_fit.py tests/training/test_resume.py tests/cli/test_cli.py tests/ensemble/test_ensemble.py \
  tests/sklearn tests/objectives/test_objective.py tests/serialization/test_model_files.py tests/inference/test_predictor.py tests/analysis/test_evaluation.py
TIMES ?= 20
SECONDS ?= 60
BIN := $(VENV)/bin

.PHONY: setup demo test test-slow lint docs bench bench-small fuzz atheris bounds lock audit wheel clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml requirements-dev.lock
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "torchmcl needs Python 3.11 or newer, found " + sys.version.split()[0] + ". Try: make PYTHON=python3.11")'
	@echo "Setting up $(VENV) once, before the first command. This takes several minutes, most of them for downloads."
	@echo "1/3  creating the environment $(VENV)"
	$(PYTHON) -m venv $(VENV)
	@echo "2/3  upgrading pip"
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "3/3  installing PyTorch, the other dependencies and torchmcl; pip names each package"
	$(BIN)/python -m pip install --progress-bar on --constraint requirements-dev.lock --editable ".[dev]"
	touch $@
	@echo "The environment $(VENV) is ready."

demo: setup
	@echo "Training AMCL and four baselines on digits. This takes about a minute on two cores."
	$(BIN)/python -m torchmcl.cli.demo

test: setup
	$(BIN)/python -m pytest -n 2 --dist loadscope -m "not slow"

# Tests that take long: faults, fuzzing, clusters, kills at random moments, training on real data.
test-slow: setup
	$(BIN)/python -m pytest -n 2 --dist loadscope -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean
	@echo "Open site/index.html. For the search, run python3 -m http.server -d site and open http://127.0.0.1:8000"

# Ensemble-PyTorch, for comparison, in a separate environment. It requires torchvision, which it does not use and which
# breaks other packages.
$(PEER)/.ready: $(VENV)/.ready
	$(PYTHON) -m venv $(PEER)
	$(PEER)/bin/python -m pip install --quiet --upgrade pip
	$(PEER)/bin/python -m pip install --quiet scikit-learn torch==$$($(BIN)/python -c 'from importlib.metadata import version; print(version("torch"))')
	$(PEER)/bin/python -m pip install --quiet --no-deps torchensemble==0.2.0
	touch $@

bench: setup $(PEER)/.ready
	$(BIN)/python benchmarks/throughput.py --peer $(PEER)/bin/python --out benchmarks/results.json
	$(BIN)/python benchmarks/hypotheses.py --out benchmarks/hypotheses.json
	$(BIN)/python benchmarks/sparse.py --out benchmarks/sparse.json
	$(BIN)/python benchmarks/routing.py --out benchmarks/routing.json --figure docs/routing.png

bench-small: setup
	mkdir -p runs
	$(BIN)/python benchmarks/throughput.py --small --out runs/bench-small.json
	$(BIN)/python benchmarks/guard.py runs/bench-small.json benchmarks/results.json
	$(BIN)/python benchmarks/hypotheses.py --widths 512 --batches 256 --out runs/bench-hypotheses.json
	$(BIN)/python benchmarks/sparse.py --networks simple_cnn --cases 1 --out runs/bench-sparse.json
	$(BIN)/python benchmarks/routing.py --data digits --epochs 3 --members 5 --runs runs/bench-routing --out runs/bench-routing.json

# Fuzzing: TIMES as many cases as in CI, with another random seed each time, then atheris guided by coverage.
fuzz: setup atheris
	TORCHMCL_FUZZ=$(TIMES) timeout 3600 $(BIN)/python -m pytest -n 2 tests/bad_input

# Fuzz each file reader for SECONDS. atheris is installed in a separate folder, not in the environment.
atheris: setup
	$(BIN)/python -m pip install --quiet --target $(TOOLS)/atheris atheris
	for reader in $$($(BIN)/python tests/fuzz_atheris.py); do \
	  PYTHONPATH=$(TOOLS)/atheris $(BIN)/python tests/fuzz_atheris.py $$reader -max_total_time=$(SECONDS) -timeout=10 -rss_limit_mb=4096 || exit 1; \
	done

$(TOOLS)/bin/uv:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet uv

# Test with the lowest versions that pyproject.toml allows; `make setup` installs the highest.
bounds: $(TOOLS)/bin/uv
	$(PYTHON) -m venv $(LOWEST)
	$(TOOLS)/bin/uv pip compile --quiet --resolution lowest-direct pyproject.toml --output-file $(LOWEST)/lowest.txt
	$(TOOLS)/bin/uv pip install --quiet --python $(LOWEST)/bin/python -r $(LOWEST)/lowest.txt "pytest>=8.3,<10" "hypothesis>=6.120,<7" "pandas==2.2.0"
	$(TOOLS)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps .
	$(LOWEST)/bin/python -m pip list 2>/dev/null | grep -i -E "^(torch|numpy|scipy|lightning|pillow|jsonargparse|scikit-learn) "
	$(LOWEST)/bin/python -m pytest -q -W default -p no:cacheprovider $(ESSENTIAL)

# Lock the versions of the development environment, except the GPU libraries, which depend on the build of torch.
lock: $(TOOLS)/bin/uv
	$(TOOLS)/bin/uv pip compile --quiet --upgrade --no-header --no-annotate --extra dev pyproject.toml \
	  | grep -v -E "^(nvidia-|cuda-|triton)" > requirements-dev.lock

# Check the locked versions for known vulnerabilities. Needs network access to a database.
audit: $(TOOLS)/bin/uv
	$(TOOLS)/bin/python -m pip install --quiet pip-audit
	rm -f $(TOOLS)/audit.json
	$(TOOLS)/bin/pip-audit --strict --requirement requirements-dev.lock --no-deps --disable-pip --format json --output $(TOOLS)/audit.json; \
	code=$$?; test -s $(TOOLS)/audit.json || { echo "audit: the vulnerability database cannot be reached, NOTHING was audited" >&2; exit 3; }; \
	exit $$code

$(TOOLS)/bin/twine: $(TOOLS)/bin/uv
	$(TOOLS)/bin/python -m pip install --quiet twine
	touch $@

# Build the wheel, check its metadata, install it in an empty environment and test it outside of the repository.
wheel: $(TOOLS)/bin/twine
	rm -rf dist $(FRESH)
	$(PYTHON) -m venv $(FRESH)
	$(FRESH)/bin/python -m pip install --quiet --upgrade pip
	$(FRESH)/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(TOOLS)/bin/twine check --strict dist/*.whl
	$(FRESH)/bin/python -m pip install --quiet dist/*.whl
	folder=$$(mktemp -d) && cp tests/smoke_wheel.py $$folder && cd $$folder && $(CURDIR)/$(FRESH)/bin/python smoke_wheel.py && rm -r $$folder

clean:
	rm -rf $(VENV) $(PEER) $(LOWEST) $(FRESH) $(TOOLS) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist site
