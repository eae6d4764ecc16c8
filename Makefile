# make demo    the main job on real input: build a bundle, run it on a video, publish over MQTT
# make test    the tests, in about three minutes on two cores: units, builds and a few real ways through (camera, broker, kill)
# make test-all  every test, also those with containers, emulated boards and tens of thousands of frames
# make coverage  every test, and which lines none of them runs
# make check   `make lint`, then `make test`
# make lint    the linters, the types, the layers, and whether the generated documents are up to date
# make docs    writes the JSON Schemas and docs/asyncapi.json from the code
# make wheel   the wheel for devices, in dist/
# make bench   side-by-side measurements, written to docs/benchmarks.md
# make arm-cost  fetches what `edge-sdk arm-cost count` counts with: an emulated ARM board, into ~/.cache/edge-sdk
# make runtime  compiles a reduced ONNX Runtime from nothing and proves it on emulated boards: half an hour on two cores
# make home-assistant  a device at Home Assistant itself, which this installs (a Python 3.13, or root on Debian)
# make gstreamer  the tests of cameras behind GStreamer, with an OpenCV that has it, which this installs (root on Debian)
# make lowest  the tests with the lowest versions that pyproject.toml allows
# make constraints  pins the newest versions of everything in constraints.txt
# make clean   removes what the others made, but for the caches in the home folder
# Each makes its own .venv and installs what it needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# How many workers `auto` is, and which tests come first: tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
PYTEST_ARGS ?=
TORCH := 2.13.0

.DEFAULT_GOAL := help
.PHONY: help demo test test-all coverage check lint docs wheel bench arm-cost home-assistant gstreamer lowest constraints clean runtime

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

demo: $(VENV)/.demo
	@sh tools/debian-packages.sh demo
	$(BIN)/edge-sdk demo

# Some machines set this to keep a checkout clean; hundreds of programs would be compiled anew at each of their starts.
unexport PYTHONDONTWRITEBYTECODE

test: $(VENV)/.dev
	@sh tools/debian-packages.sh test
	$(PYTEST) -m 'smoke or not (system or long)' $(PYTEST_ARGS)

test-all: $(VENV)/.dev
	@sh tools/debian-packages.sh test
	$(PYTEST) $(PYTEST_ARGS)

coverage: $(VENV)/.dev
	@sh tools/debian-packages.sh test
	$(PYTEST) --cov --no-cov-on-fail $(PYTEST_ARGS)

check: lint test

lint: $(VENV)/.dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/documents.py --check

docs: $(VENV)/.dev
	$(BIN)/python tools/documents.py

wheel: $(BIN)/pip
	$(PIP) wheel --quiet --no-deps -w dist .
	@ls dist/*.whl

bench: $(VENV)/.dev $(VENV)-rivals/.ready
	@sh tools/debian-packages.sh test
	$(BIN)/python -m benchmarks

# Without what its packages would bring along: torchvision for a PyTorch with CUDA, OpenCV a second time.
$(VENV)-rivals/.ready: benchmarks/rivals/requirements.txt
	$(PYTHON) -m venv $(VENV)-rivals
	$(VENV)-rivals/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r benchmarks/rivals/requirements.txt
	@touch $@

arm-cost: $(VENV)/.dev
	$(BIN)/edge-sdk arm-cost setup

runtime: $(VENV)/.dev
	@sh tools/debian-packages.sh runtime
	EDGE_SDK_RUNTIME=1 $(BIN)/python -m pytest -s tests/long/test_runtime.py $(PYTEST_ARGS)

home-assistant: $(VENV)/.dev
	@sh tools/debian-packages.sh test
	hass=$$(sh tools/home-assistant.sh .cache/home-assistant) && \
	  EDGE_SDK_HASS=$$hass $(BIN)/python -m pytest tests/long/test_home_assistant_itself.py $(PYTEST_ARGS)

gstreamer:
	@sh tools/debian-packages.sh test
	python=$$(sh tools/gstreamer.sh .cache/gstreamer) && \
	  $$python -m pytest -p no:cacheprovider -k 'gstreamer or pipeline' \
	  tests/unit/sources/test_camera_kinds.py tests/system/test_cameras.py $(PYTEST_ARGS)

# The other end of the ranges in pyproject.toml: the lowest versions that users may have.
lowest: $(VENV)/.dev
	$(PIP) install --quiet uv
	$(PYTHON) -m venv --clear $(VENV)-lowest
	$(BIN)/uv pip compile pyproject.toml --extra dev --python $(VENV)-lowest/bin/python --resolution lowest-direct \
	  --no-header --no-annotate --quiet -o $(VENV)-lowest/versions.txt
	$(VENV)-lowest/bin/python -m pip install --quiet -r $(VENV)-lowest/versions.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --no-deps -e .
	$(VENV)-lowest/bin/python -m pytest -W ignore tests/unit tests/build $(PYTEST_ARGS)

# What PyTorch's default build wants of CUDA is left out: its CPU build has the same version and wants none of it.
constraints: $(VENV)/.dev
	$(PIP) install --quiet uv
	{ sed -n '/^#/p' constraints.txt; echo 'torch==$(TORCH)' | $(BIN)/uv pip compile pyproject.toml - --all-extras --universal --python-version 3.10 \
	  --no-header --no-annotate --upgrade --quiet | grep -vE '^(nvidia-|cuda-|triton)'; } > constraints.new
	mv constraints.new constraints.txt

# Half an environment, as Debian without python3-venv leaves it, would pass for a whole one for ever.
$(BIN)/pip:
	@PYTHON=$(PYTHON) sh tools/debian-packages.sh venv
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.demo: $(BIN)/pip pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(BIN)/pip pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[dev,torch]'
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-rivals .cache .mypy_cache .ruff_cache .pytest_cache .import_linter_cache demo-output
