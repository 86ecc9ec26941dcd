# make demo | make test | make search | make chaos | make check : each sets up .venv first; nothing else is installed by hand.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
LOCKS := requirements/base.txt requirements/cpu.txt requirements/dev.txt
ENGINES ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
DEMO ?= arithmetic
FAULTS ?= 300
SEED ?= 22

# Tests start many processes of the same modules: the first compiles these for all.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test search chaos check docs proto setup clean browser

setup: $(VENV)/.installed-$(ENGINES)

# What tests start as others run it, each in an environment of its own: ray, tinker, kubernetes.
$(VENV)/%/.installed: requirements/%.txt | setup
	$(PYTHON) -m venv $(VENV)/$*
	$(VENV)/$*/bin/pip install -qq --no-deps -r requirements/$*.txt
	touch $@

# Older versions of the SDK, each beside the newest one's dependencies.
OLDER_SDKS := $(foreach version,0.26.0 0.30.0 0.36.0,$(VENV)/tinker/sdk-$(version)/.installed)

$(VENV)/tinker/sdk-%/.installed: $(VENV)/tinker/.installed
	$(VENV)/tinker/bin/pip install -qq --no-deps --target $(@D) tinker==$*
	touch $@

$(VENV)/.installed-cpu: $(LOCKS) pyproject.toml client/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --no-deps -r requirements/cpu.txt -r requirements/base.txt -r requirements/dev.txt
	@$(BIN)/python -c "import torch" || { echo "This torch needs CUDA: set PIP_EXTRA_INDEX_URL to PyTorch's index of builds for CPUs, then make clean"; exit 1; }
	$(BIN)/pip install -qq --no-deps --no-build-isolation -e client -e .
	touch $@

$(VENV)/.installed-gpu: $(LOCKS) requirements/gpu.txt pyproject.toml client/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq -r requirements/gpu.txt
	$(BIN)/pip install -qq --no-deps -r requirements/base.txt -r requirements/dev.txt
	$(BIN)/pip install -qq --no-deps --no-build-isolation -e client -e .
	touch $@

# Chromium, in which the page is tested, and a font. Where it can't be installed those tests fail and say so.
browser:
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } || true

demo: setup
	$(BIN)/plexctl demo $(DEMO)

# Two processes share the files out, because most tests wait; those that take long begin first (tests/conftest.py).
# What failed leaves its logs in the directory.
test: setup $(VENV)/ray/.installed $(VENV)/kubernetes/.installed $(VENV)/tinker/.installed $(OLDER_SDKS) browser
	logs=$$(mktemp -d /tmp/plexXXXX) && \
		$(BIN)/python -m pytest --run-slow -n 2 --dist loadfile --no-loadscope-reorder --basetemp $$logs $(PYTEST) && rm -rf $$logs

search: setup
	$(BIN)/python -m pytest --search -m hypothesis $(PYTEST)

chaos: setup $(VENV)/ray/.installed
	PLEX_CHAOS_FAULTS=$(FAULTS) PLEX_CHAOS_SEED=$(SEED) PLEX_CHAOS_HISTORIES=1500 PLEX_CHAOS_KILLS=20 \
		$(BIN)/python -m pytest -s --run-slow --search --hypothesis-seed=$(SEED) tests/chaos tests/unit/scheduler/core/test_properties.py \
		tests/process/statemanager/test_adoption.py tests/process/worker/test_backend_contract.py \
		tests/system/test_rewards.py::test_kills_change_no_score \
		tests/system/test_spot.py::test_kills_of_spot_instances_at_any_token_change_no_token $(PYTEST)
	$(BIN)/python -m pytest --run-slow --search -m "rare or every" --ignore tests/chaos \
		--ignore tests/process/worker/test_backend_contract.py $(PYTEST)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/generate.py --check

docs: setup
	$(BIN)/python docs/generate.py

proto: setup
	$(BIN)/python proto/generate.py

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
