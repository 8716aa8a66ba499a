# `make help` lists the targets. Written for GNU make 3.81 and a POSIX shell, so that macOS's own make runs it.

PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
# For pip: for example --extra-index-url and the address of PyTorch's CPU builds.
PIP_ARGS ?=
# A page without its folder and ending, for example 00-measure-a-gpu.
P ?=
# For pytest: for example T="tests/measure -k resume".
T ?=
# For gpuguide bench run: for example B="ceilings --quick".
B ?=

BIN := $(VENV)/bin
LOCKED := $(VENV)/.lock-installed
READY := $(VENV)/.installed
BUILD = $(BIN)/python -m gpuguide.site.build
# A process computes on one core. Tests of a file are one process's unless they are marked `apart`.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadgroup
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check

# Dates and ages on the pages count from the last commit, so that two builds of one commit are identical.
ifndef SOURCE_DATE_EPOCH
COMMIT_TIME := $(shell git log -1 --format=%ct 2>/dev/null)
ifneq ($(COMMIT_TIME),)
export SOURCE_DATE_EPOCH := $(COMMIT_TIME)
endif
endif

# Python keeps what it has compiled, whatever an image says: tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help site page serve test test-library test-site test-thoroughly lint release-check measure browser clean distclean

help: ## List the targets
	@echo "gpuguide: make TARGET"
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' Makefile

site: $(READY) ## Build the site into _build/html (sets up .venv first)
	@$(BUILD)

page: $(READY) ## Build one tutorial into _build/page: make page P=00-measure-a-gpu
	@test -f "tutorials/$(P).md" || { \
	  echo "There is no tutorials/$(P).md. Name one of:" >&2; \
	  for page in tutorials/[0-9]*.md; do echo "  make page P=$$(basename "$$page" .md)" >&2; done; \
	  exit 2; }
	@$(BUILD) --page "tutorials/$(P)"

serve: site ## Show the site on this machine: http://localhost:8000 (PORT=8000)
	@echo "http://localhost:$(PORT) (Ctrl-C ends it)"
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

test: ## Run all tests, the built site's included: make test T="tests/measure"
	@# The tests look at the site of the published records, not at a reader's own.
	@GPUGUIDE_RECORDS= $(MAKE) --no-print-directory site
	@$(BIN)/python tests/find_browser.py
	$(PYTEST) $(T)

test-library: $(READY) ## Run the tests that need no site
	$(PYTEST) --ignore tests/site $(T)

test-site: ## Build the site and run its tests
	@$(MAKE) --no-print-directory test T="tests/site $(T)"

test-thoroughly: ## Run all tests with many random examples, and every script and notebook with other parameters
	@$(MAKE) --no-print-directory test T="--thorough $(T)"

lint: $(READY) ## Check style and types, the pages' rules, workflows, scripts and the Dockerfile
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m gpuguide.site.checks.page_lint
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet .github/workflows
	$(BIN)/hadolint envs/Dockerfile
	@# PyPI has no ShellCheck for Linux on ARM.
	@test ! -x $(BIN)/shellcheck || $(BIN)/shellcheck .ci/run .ci/gpu

release-check: ## List what stands in the way of a release: stale records, claims that fail, pages and cells not run
	@GPUGUIDE_RECORDS= $(MAKE) --no-print-directory site
	@GPUGUIDE_RECORDS= $(BIN)/python -m gpuguide.site.checks.release _build/html

measure: $(READY) ## Measure this machine's GPU; stopped, it goes on where it was: make measure B="ceilings"
	@$(BIN)/gpuguide doctor || true
	$(BIN)/gpuguide bench run $(B)

browser: $(READY) ## Get a Chromium for the browser tests where none is installed
	@$(BIN)/python tests/find_browser.py --required

clean: ## Remove what was built (.venv stays)
	rm -rf _build .hypothesis .mypy_cache .pytest_cache .ruff_cache

distclean: clean ## Remove .venv too
	rm -rf $(VENV)

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no $(PYTHON). Install Python 3.11 or newer, or name it: make site PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "gpuguide needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)." >&2; \
	  echo "Name a newer one: make site PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)

$(LOCKED): requirements.lock | $(BIN)/python
	@echo "Installing the pinned packages into $(VENV): 0.7 GB with a CPU build of PyTorch, README.md says how much with CUDA."
	@$(INSTALL) $(PIP_ARGS) -r requirements.lock
	@touch $@

$(READY): pyproject.toml $(LOCKED)
	@$(INSTALL) --quiet --no-deps --no-build-isolation --editable .
	@touch $@
