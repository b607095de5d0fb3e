# make demo    set up, then train, test and predict on bundled real data, with no network once installed
# make test    set up, then run the tests: minutes
# make test-all  set up, then run the slow tests too; REAL_DATA=1: and those of the official archives, which are in data/
# make lint    set up, then check style, types and the direction of imports
# make coverage  set up, then run the tests and list the lines that they do not reach
# make lock    bring requirements.lock in line with pyproject.toml; for newer versions delete it first
# make clean   remove .venv and what the tools have cached
#
# PYTHON=python3.12      another interpreter (3.11 or newer) for .venv
# TORCH_BACKEND=cpu      the CPU-only torch; cu130 or cu132 need an NVIDIA driver 580 or newer. uv installs it from
#                        PyTorch's own package index
# INSTALLER=pip          plain pip instead of uv, for mirrors that only pip is set up for

PYTHON ?= python3
INSTALLER ?= uv
TORCH_BACKEND ?=

BIN := .venv/bin
LIBRARY := --editable ./engine
UV = $(shell command -v uv || echo $(BIN)/uv)
INSTALLED := .venv/.installed
# spinning OpenMP threads would make everything crawl on a machine that does something else too
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test test-all lint coverage lock setup clean

setup: $(INSTALLED)

demo: $(INSTALLED)
	@name=demo-$$(date +%Y-%m-%d_%H-%M-%S) && \
	$(BIN)/lit-project fit -c configs/quickstart.yaml --run_name $$name && \
	$(BIN)/lit-project predict --run runs/quickstart/$$name

# the slow tests and those of the archives are run if asked for
test: ONLY = not slow
test-all: ONLY = slow or not slow
test test-all: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal -m "($(ONLY))$(if $(REAL_DATA),, and not archives)"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

coverage: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile --cov --cov-report=term --cov-report=html

lock: $(BIN)/uv
	$(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra dev \
	    --no-emit-index-url $(if $(wildcard engine),--no-emit-package lit-engine) \
	    --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

$(INSTALLED): pyproject.toml requirements.lock $(wildcard engine/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	    { echo "cannot make .venv: on Debian and Ubuntu, apt install python3-venv"; rm -rf .venv; exit 1; }
ifeq ($(INSTALLER),pip)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(LIBRARY) --editable .
else
	@command -v uv >/dev/null || test -x $(BIN)/uv || $(BIN)/pip install --quiet --disable-pip-version-check "uv>=0.6"
# bytecode for all packages now, as pip does: else the first start (every one, where Python may not write it) compiles them
ifeq ($(TORCH_BACKEND),)
	$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(LIBRARY) --editable .
else
	$(MAKE) .venv/constraints.txt
	$(UV) pip install --quiet --python $(BIN)/python hatchling editables
	$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode --torch-backend=$(TORCH_BACKEND) \
	    --no-verify-hashes --constraints .venv/constraints.txt --no-build-isolation \
	    $(LIBRARY) --editable ".[dev]"
endif
endif
	@touch $@

# PyTorch's own index has other files of the locked versions (so no hashes), and each of its CUDA builds requires its own
# versions of the CUDA libraries
.venv/constraints.txt: requirements.lock
	@mkdir -p .venv
	sed -E '/^((cuda|nvidia)-|(\.\/)?vendor\/)/,/[^\\]$$/d' requirements.lock > $@

$(BIN)/uv:
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@command -v uv >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check "uv>=0.6"

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .cache site htmlcov .coverage*

# other targets, a file each
include $(wildcard *.mk)
