# Every target works on a fresh machine: it makes .venv, installs the package under constraints.txt, and runs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CHECKS := $(VENV)/.checks
WORK   ?= out/train
# Threads that spin at barriers make shared cores crawl; passive waiting costs nothing on free ones.
export OMP_WAIT_POLICY ?= passive
export GOMP_SPINCOUNT ?= 0

.PHONY: install opengl demo train test check clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV): several minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[serve,bench,demo]"
	$(BIN)/python -m pip install --quiet --editable packages/oxygen-client
	touch $@

# What only tests and checks need. openpi-client pins an old NumPy that it works without.
$(CHECKS): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group test --group check
	$(BIN)/python -m pip install --quiet --no-deps openpi-client
	touch $@

# The simulator draws off screen with Mesa. Where it cannot be had, the demo replays a recorded episode and says so.
opengl:
	@$(PYTHON) -c "import ctypes; ctypes.CDLL('libOSMesa.so.8')" 2>/dev/null \
	  || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq \
	       && apt-get install -y -qq --no-install-recommends libosmesa6 libegl1 libgl1 libgles2 libopengl0 >/dev/null; } \
	  || echo "no off-screen OpenGL here: install libosmesa6 to see the simulated arm itself"

demo: install opengl
	$(BIN)/oxygen demo

# From nothing to the checkpoint in src/oxygen/assets/oxygen-tiny; resumes where it stopped.
train: install opengl
	$(BIN)/oxygen train --work $(WORK)

test: $(CHECKS)
	$(BIN)/python -m pytest

check: $(CHECKS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist out
