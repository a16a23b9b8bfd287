# Every target builds what it needs: Python 3.11 or newer and make are enough.

PYTHON ?= python3
NAME ?=
ARGS ?=
VERSION ?=
TESTS ?=
SEEDS ?= 200
START ?= 1
SECONDS ?= 60
COUNT ?=
SEED ?= 1
REPLAY ?=
KUBECONFIG ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.project-installed
LOCKED := $(VENV)/.lock-installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# mypy refuses folders without Python files, so only those that have some.
CODE := $(sort $(foreach folder,src tests benchmarks scripts examples,$(if $(shell find $(folder) -name '*.py' 2>/dev/null),$(folder))))
BENCHMARKS := $(filter-out benchmarks/_%,$(sort $(wildcard benchmarks/*.py)))
UV_VERSION := 0.13.7
COMPILE = $(BIN)/uv pip compile --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-header \
  --no-annotate --quiet

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo test test-unit test-kubernetes worlds fuzz model crash-points planted-bugs mutants chaos up check lint types \
  imports sizes fix bench lock clean
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## Show in a minute what gangs are for: a deadlock, the same jobs as gangs, and a picture of both
	@$(BIN)/gpu-scheduler demo $(ARGS)

test: $(READY) ## Run the tests; ARGS="-k gang -n 0" is handed to pytest
	@command -v kubectl >/dev/null || echo "kubectl is not on the PATH: the integration tests are left out."
	@$(BIN)/python -m pytest -q $(if $(shell command -v kubectl),,--ignore=tests/integration) $(ARGS)

test-unit: $(READY) ## Run the unit tests; ARGS="-k gang -n 0" is handed to pytest
	@$(BIN)/python -m pytest -q tests/unit $(ARGS)

# A version that was asked for is started, whatever cluster the shell is signed in to.
test-kubernetes: $(READY) ## Run the tests on real control planes, 1.35 and 1.37; VERSION=1.37 picks one
ifneq ($(and $(KUBECONFIG),$(if $(VERSION),,none)),)
	@echo "Testing on the cluster that KUBECONFIG names: $(KUBECONFIG)"
	@KUBECONFIG=$(KUBECONFIG) $(BIN)/python -m pytest -q --dist loadgroup tests/kubernetes $(ARGS)
else
	@set -e; for version in $(or $(VERSION),1.35 1.37); do echo "== Kubernetes $$version"; \
	  $(BIN)/python -m tests.kubernetes.control_plane --version $$version -- \
	    $(BIN)/python -m pytest -q --dist loadgroup $(or $(TESTS),tests/kubernetes tests/integration) \
	      --cluster=kubernetes --kubernetes=$$version $(ARGS); done
endif

worlds: $(READY) ## Run scheduler and operator in seeded worlds with injected faults; SEEDS=2000 START=1 selects the seeds
	@$(BIN)/python -m tests.worlds --seeds $(SEEDS) --start $(START) $(ARGS)

up: $(READY) ## Start a local cluster: 4 nodes of 8 GPUs; ARGS="--nodes 2" is handed on
	@$(BIN)/gpu-scheduler up $(ARGS)

check: lint types imports sizes ## Run every static check: lint, types, imports, sizes
	@echo "All checks passed."

lint: $(READY) ## Check style and formatting (ruff)
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --check --quiet $(CODE) || { \
	  echo "Not formatted; 'make fix' will do it:"; $(BIN)/ruff format --check $(CODE); exit 1; }

types: $(READY) ## Check types (mypy --strict)
	@$(BIN)/mypy --strict --no-error-summary $(CODE)

imports: $(READY) ## Check that imports go one way (import-linter)
	@out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }

sizes: $(READY) ## Report files, functions and signatures that grew too large
	@$(BIN)/python scripts/report_sizes.py src

fix: $(READY) ## Format the code and repair what can be repaired
	@$(BIN)/ruff check --fix --quiet $(CODE); status=$$?; $(BIN)/ruff format --quiet $(CODE); exit $$status

model: $(READY) ## Explore the commit protocol, whole and without each of its rules; ARGS=--quick takes less than minutes
	@$(BIN)/python -m tests.protocol.explore $(ARGS)

crash-points: $(READY) ## Let leaders die at every API call of a commit, alone and in pairs; ARGS=start names a scene
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.protocol.crash_points $(ARGS)

planted-bugs: $(READY) ## Plant known bugs into a copy of the code and see that the tests catch them; ARGS="0 7" names some
	@$(BIN)/python -m tests.protocol.plant $(ARGS)

fuzz: $(READY) ## Give damaged inputs to all that reads from outside; SECONDS=600 SEED=2, COUNT=1000 or REPLAY=file
	@$(BIN)/python -m tests.fuzz $(if $(REPLAY),--replay $(REPLAY),--seed $(SEED) \
	  $(if $(COUNT),--count $(COUNT),--seconds $(SECONDS))) $(ARGS)

chaos: $(READY) ## Kill, pause, cut off schedulers on a real control plane; ARGS="--kills 300 --others 100 --seed 1" VERSION=1.37
	@$(BIN)/python -m tests.chaos $(if $(VERSION),--version $(VERSION)) $(ARGS)

mutants: $(READY) ## Change the code at random places and list what no test notices; COUNT=500 SEED=1 ARGS="--jobs 2"
	@PYTHONHASHSEED=0 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.protocol.mutants --count $(or $(COUNT),500) --seed $(SEED) $(ARGS)

bench: $(READY) ## Run the benchmarks; NAME=decisions runs benchmarks/decisions.py alone
ifneq ($(NAME),)
	@test -f benchmarks/$(NAME).py || { \
	  echo "No benchmark '$(NAME)'; there are: $(or $(patsubst benchmarks/%.py,%,$(BENCHMARKS)),none yet)"; exit 1; }
	@$(BIN)/python benchmarks/$(NAME).py $(ARGS)
else
	@test -n "$(BENCHMARKS)" || echo "No benchmarks yet."
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script $(ARGS); done
endif

lock: $(READY) ## Pin dependencies again after pyproject.toml changed; ARGS=--upgrade takes newer versions
	@$(PIP) install uv==$(UV_VERSION)
	@$(COMPILE) pyproject.toml --all-extras --output-file requirements.lock $(ARGS) >/dev/null
	@$(COMPILE) pyproject.toml --extra fast --constraint requirements.lock --output-file images/runtime.lock >/dev/null
	@echo hatchling | $(COMPILE) - --constraint requirements.lock --output-file images/build.lock >/dev/null

clean: ## Remove the virtual environment, caches and build output
	@rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# A changed lock means a new environment, so nothing that left the lock lingers.
$(LOCKED): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>&1) || found=missing; \
	  echo "Python 3.11 or newer is needed, but $(PYTHON) is $$found." \
	       "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Preparing $(VENV) (once) ..."
	@$(PYTHON) -m venv --clear $(VENV) || { \
	  echo "$(PYTHON) cannot create virtual environments; on Debian and Ubuntu install python3-venv." >&2; exit 1; }
	@$(PIP) install --require-hashes -r requirements.lock
	@touch $@

# The build backend comes from the lock too, hence no build isolation.
$(READY): $(LOCKED) pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
