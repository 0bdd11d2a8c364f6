# Every target works on a fresh machine: it makes .venv, installs the package under constraints.txt, and runs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Threads that spin at barriers make shared cores crawl; passive waiting costs nothing on free ones.
export OMP_WAIT_POLICY ?= passive
export GOMP_SPINCOUNT ?= 0

.PHONY: install demo test check clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]" --group test --group check
	touch $@

demo: install
	$(BIN)/oxygen demo

test: install
	$(BIN)/python -m pytest

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist out
