# make setup     install the locked packages into .venv
# make demo      install, then train, test and predict on bundled real data; needs no network once installed
# make test      install, then run the tests, which takes minutes
# make test-all  install, then run all tests, including slow ones; REAL_DATA=1 adds tests that need archives in data/
# make lint      install, then check style, types and imports
# make coverage  install, then run the tests and list uncovered lines
# make lock      update requirements.lock to match pyproject.toml; to upgrade, raise `exclude-newer` and delete the lock
# make help      list these targets
# make clean     remove .venv, caches, site/ and coverage reports
#
# PYTHON=python3.12      use a different interpreter (3.11 or newer) for .venv
# TORCH_BACKEND=cpu      install the CPU-only torch; cu130 and cu132 need NVIDIA driver 580 or newer. uv gets it from
#                        PyTorch's own package index. Later installations use the same backend
# INSTALLER=pip          use pip instead of uv, for mirrors that are only configured for pip

PYTHON ?= python3
INSTALLER ?= uv
INSTALLED := .venv/.installed
TORCH_BACKEND ?= $(shell cat $(INSTALLED) 2>/dev/null)

BIN := .venv/bin
LIBRARY := --editable ./engine
UV = $(shell command -v uv || echo $(BIN)/uv)
# Ignore the project's own uv settings, because exclude-newer needs upload dates, which some indexes do not list.
ANY_DATE := --project /
# Spinning OpenMP threads slow everything down on a machine that also runs other programs.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo test test-all lint coverage lock setup clean

# The first target is the default.
help:
	@for file in Makefile $(wildcard *.mk); do sed -n 's/^#\( \|$$\)//p; /^$$/q' $$file; done

setup: $(INSTALLED)

demo: $(INSTALLED)
	@name=demo-$$(date +%Y-%m-%d_%H-%M-%S) && \
	$(BIN)/lit-project fit quickstart --name $$name && \
	$(BIN)/lit-project predict runs/quickstart/$$name

# Slow tests, and tests that need the archives, run only on request.
test: ONLY = not slow
test-all: ONLY = slow or not slow
test test-all: $(INSTALLED)
	$(BIN)/pytest -n auto --dist worksteal -m "($(ONLY))$(if $(REAL_DATA),, and not archives)"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

coverage: $(INSTALLED)
	$(BIN)/pytest -n auto --dist loadfile --cov --cov-report=term --cov-report=html

lock: $(BIN)/uv
	$(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 --all-extras --group dev \
	    --no-emit-index-url $(if $(wildcard engine),--no-emit-package lit-engine) \
	    --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

$(INSTALLED): pyproject.toml requirements.lock $(wildcard engine/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	    { echo "cannot create .venv: on Debian and Ubuntu, run apt install python3-venv"; rm -rf .venv; exit 1; }
ifeq ($(INSTALLER),pip)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps --no-build-isolation $(LIBRARY) --editable .
else
	@command -v uv >/dev/null || test -x $(BIN)/uv || $(BIN)/pip install --quiet --disable-pip-version-check "uv>=0.6"
# Compile bytecode now, as pip does. Otherwise the first start compiles it, or every start if Python cannot write files.
ifeq ($(TORCH_BACKEND),)
	$(UV) $(ANY_DATE) pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements.lock
	$(UV) $(ANY_DATE) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation $(LIBRARY) --editable .
else
	$(MAKE) .venv/constraints.txt
	$(UV) $(ANY_DATE) pip install --quiet --python $(BIN)/python hatchling editables
	$(UV) $(ANY_DATE) pip install --quiet --python $(BIN)/python --compile-bytecode --torch-backend=$(TORCH_BACKEND) \
	    --no-verify-hashes --constraints .venv/constraints.txt --no-build-isolation \
	    $(LIBRARY) --editable . --group pyproject.toml:dev
endif
endif
	@echo "$(TORCH_BACKEND)" > $@

# PyTorch's own index has different files for the locked versions, so their hashes do not match. Each CUDA build of
# torch requires specific versions of the CUDA libraries.
.venv/constraints.txt: requirements.lock
	@mkdir -p .venv
	sed -E '/^((cuda|nvidia)-|(\.\/)?vendor\/)/,/[^\\]$$/d' requirements.lock > $@

$(BIN)/uv:
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@command -v uv >/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check "uv>=0.6"

clean:
	rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .cache site htmlcov .coverage*

# Each *.mk file adds targets.
include $(wildcard *.mk)
