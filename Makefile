# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
LIGHT := $(VENV)/.light
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-torch check lint types docs serve build smoke clean campaign bench-accuracy

# Everything that tests, documentation and experiments need, on top of what the demo needs.
setup: $(STAMP)

$(STAMP): $(LIGHT) experiments/pyproject.toml
	$(INSTALL) -e ".[dev]" -e experiments
	touch $(STAMP)

$(LIGHT): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else 'neuralfde needs Python 3.11 or newer; this is %d.%d. Use: make PYTHON=python3.12 ...' % v)"
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e ".[cli]"
	touch $(LIGHT)

demo: $(LIGHT)
	$(BIN)/python examples/demo.py

test: setup lint types docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not gpu" -n auto

check: test

# Every test with another version of torch, by default the oldest that is supported: make test-torch TORCH=2.15.0. On
# Linux it comes with CUDA; TORCH_FROM may point pip at a CPU build. Triton 3.6 does not know newer versions of numpy.
TORCH ?= 2.11.0
OTHER := build/torch-$(TORCH)
test-torch:
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_FROM) torch==$(TORCH) "numpy<2.4" -e ".[dev]" -e experiments
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest -m "not gpu" -n auto

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

# The same in a browser, built anew when a page changes.
serve: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --no-strict

build: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m build --outdir dist experiments

# The wheels in an empty environment: neuralfde with torch alone; then with the extra `cli`; then the experiments beside
# it, without the packages that only some of them need. TORCH_FROM may point pip at another index or a folder of wheels.
PIP := build/smoke/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
SMOKE := cd build && smoke/bin/python ../tests/smoke.py
smoke: build
	rm -rf build/smoke
	$(PYTHON) -m venv build/smoke
	$(PIP) $(TORCH_FROM) torch dist/neuralfde-*.whl
	$(SMOKE) --bare
	$(PIP) "$$(ls dist/neuralfde-*.whl)[cli]"
	$(SMOKE) --cli
	$(PIP) --no-deps dist/neuralfde_experiments-*.whl
	$(SMOKE) --experiments

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache

# Random cases against the library, for so many minutes; docs/promises.md says what is tried. Ends with 1 where one failed.
MINUTES ?= 10
campaign: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign --minutes $(MINUTES)

bench-accuracy: setup
	$(INSTALL) pycaputo FDEint
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accuracy.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/work_precision.py
