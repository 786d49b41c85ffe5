# One word runs everything, and each word does its own set-up.

VENV ?= .venv
PYTHON ?= $(shell scripts/python.sh)
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test fast check fmt bench soak prove

help:  ## show these words
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY)  ## make .venv with Redrive and its tools

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	scripts/setup.sh $(VENV) $(PYTHON)
	@touch $@

demo: $(READY)  ## tell the whole story on SQLite; BREAK=<promise> damages it on purpose
	$(VENV)/bin/redrive demo $(if $(BREAK),--break $(BREAK))

test: $(READY)  ## every test but the soak, then the fast ones on each other Python found
	$(RUN) -m pytest -n 2 -m "not soak"
	@for version in 3.11 3.12 3.13; do \
	  $(RUN) -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] == '$$version')" || continue; \
	  python=$$(scripts/python.sh $$version 2>/dev/null) || { echo "Python $$version: not found, not tested"; continue; }; \
	  echo "Python $$version: $$python"; \
	  $(MAKE) --no-print-directory fast VENV=.venv-$$version PYTHON=$$python || exit 1; \
	done

fast: $(READY)  ## the quick tests, under a minute
	$(RUN) -m pytest -n 2 -m "not slow and not soak"

check: $(READY)  ## lint, format, types, import contracts
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo

fmt: $(READY)  ## format, and fix what can be fixed by machine
	$(RUN) -m ruff check --fix-only
	$(RUN) -m ruff format

bench: $(READY)  ## measure against the bare loop and a peer
	$(RUN) -m bench

soak: $(READY)  ## the long fault tests; ends with a page of what was measured
	$(RUN) -m pytest -m soak

prove: $(READY)  ## remove one guard after the other; each must turn a test red
	$(RUN) -m prove
