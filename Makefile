# Two commands do all: `make run` and `make test`. Everything is installed into .venv; PYTHON=python3.13 chooses another.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEVICES ?= 8
PORT ?= 8790
JOBS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help run test test-all check lint types public-types size docs unit test-compile-cuda test-image bench verify-order order-table step-table accuracy soak soak-preflight fuzz snapshot extras images coverage mutation device clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.agent: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[agent,cpu]'
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev,compile-tpu]'
	@touch $@ $(VENV)/.agent

# Beside it, since the plugin is there for every JAX of its environment, and complains where no card is.
$(VENV)-cuda/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-cuda
	$(VENV)-cuda/bin/python -m pip install -q -c constraints.txt -e '.[dev,compile-tpu,compile-cuda]'
	@touch $@

$(VENV)-cuda/.opponents: $(VENV)-cuda/.installed
	$(VENV)-cuda/bin/python -m pip install -q -c constraints.txt -e '.[dev,compile-tpu,compile-cuda,bench]'
	@touch $@

$(VENV)-device/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-device
	$(VENV)-device/bin/python -m pip install -q -c constraints.txt -e '.[dev,cuda12,compile-cuda]'
	@touch $@

run: $(VENV)/.agent ## install, and start the agent on 8 virtual CPU devices (DEVICES=, PORT=)
	@exec $(BIN)/meshwright-agent serve --insecure --cpu-devices $(DEVICES) --port $(PORT) --state-dir .state

test: check ## lint, types, import rules, size, pages, and all tests but the exhaustive ones
	$(MAKE) unit ARGS='-m "not exhaustive" $(ARGS)'

test-all: check ## the same with the exhaustive tests: every chip, boots, long faults
	$(MAKE) unit

check: $(VENV)/.installed extras
	$(MAKE) -j 2 --output-sync lint size docs

lint: types public-types ## ruff, mypy --strict, pyright on the public types, import rules, generated code
	$(BIN)/python tools/sync_client.py --check
	$(BIN)/ruff check client service tests tools
	$(BIN)/ruff format --check client service tests tools
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.installed
	$(BIN)/mypy

public-types: $(VENV)/.installed
	PATH=$(abspath $(BIN)):$$PATH VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/pyright --verifytypes meshwright --ignoreexternal >.pyright.log || (cat .pyright.log; exit 1)

size: $(VENV)/.installed ## code lines, modules, settings, metrics and the like, each beside its limit
	$(BIN)/python tools/size.py

docs: $(VENV)/.installed ## the pages as a site in docs/_build, without network; a warning is an error
	$(BIN)/sphinx-build -q -E -W --keep-going docs docs/_build

# Files in their order, not those of many tests first: the long ones with few tests would be left for the end.
unit: $(VENV)/.installed ## every test alone, in JOBS processes (ARGS="-k mesh", JOBS=0: in one)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-compile-cuda: $(VENV)-cuda/.installed ## install XLA's CUDA compiler (240 MB; no card needed), and compile for every card
	$(VENV)-cuda/bin/python -m pytest -n $(JOBS) --dist loadfile -k 'cuda or gpu' tests/unit/compiling/test_compile_targets.py tests/process/test_cuda_plans.py $(ARGS)

test-image: images $(VENV)/.installed ## build the image and run it (as root; buildah, no registry); 2 to 8 minutes
	$(BIN)/python -m pytest tests/deploy/test_image.py $(ARGS)

bench: $(VENV)-cuda/.opponents ## the budgets of the design, measured in one run
	$(VENV)-cuda/bin/python -m tests.bench $(ARGS)

verify-order: $(VENV)/.installed ## our device order and JAX's, by XLA's TPU compiler (ARGS=--write)
	$(BIN)/python -m tests.compiler $(ARGS)

order-table: $(VENV)/.installed ## our device order and JAX's on all named slices: hops and scores (ARGS=--write)
	$(BIN)/python -m tests.compiler.sweep $(ARGS)

step-table: $(VENV)/.installed ## compiled step times beside published ones (ARGS="--write --rows 39,40"); hours, goes on where it was
	$(BIN)/python -m tests.compiler.steps.estimates $(ARGS)

accuracy: $(VENV)/.installed ## predictions beside published runs and measured peaks
	$(BIN)/python -m tests.accuracy $(ARGS)

soak: $(VENV)/.installed ## a real agent under mixed load, workers killed at random: does anything grow? (ARGS="--minutes 5 --write")
	$(BIN)/python -m tests.soak $(ARGS)

soak-preflight: $(VENV)/.installed ## hosts in network namespaces, each fault many times: who is blamed? (ARGS="--hosts 8 --rounds 20")
	$(BIN)/python -m tests.soak.preflight $(ARGS)

fuzz: $(VENV)/.installed ## thousands of inputs: spoiled hosts and databases, bodies, sockets, the contract (FUZZ_EXAMPLES=)
	FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),1000) $(BIN)/python -m pytest -q -p no:cacheprovider tests/fuzz $(ARGS)
	FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),500) $(BIN)/python -m pytest -q -p no:cacheprovider --timeout=7200 tests/contract/test_fuzz.py $(ARGS)

device: $(VENV)-device/.installed ## the checks that need a card, on this host's (ARGS="--only facts,rest --write")
	$(VENV)-device/bin/python -m tests.device $(ARGS)

NET := tests/golden tests/process tests/contract tests/faults tests/deploy

coverage: $(VENV)/.installed ## which branches the black-box tests reach, by part (HTTP, commands, files); 20 minutes
	rm -rf .coverage && mkdir .coverage
	$(BIN)/coverage run -m pytest -n $(JOBS) --dist loadfile $(ARGS) $(NET)
	$(BIN)/python tools/net.py

mutation: $(VENV)/.installed ## how many faults, put into a part one at a time, its tests find (ARGS="leases --sample 20"); hours
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[mutation]'
	$(BIN)/python tools/mutation.py $(ARGS)

snapshot: $(VENV)/.installed ## write the OpenAPI document that the contract test holds (raise API_VERSION first)
	$(BIN)/python -m tests.contract.openapi --write

# Commands that a few tests need, each with Debian's package. Without them, and without root, those tests are skipped.
EXTRAS := chromium:chromium promtool:prometheus slurmctld:slurm-wlm systemd-analyze:systemd systemd-nspawn:systemd-container
MISSING = $(strip $(foreach each,$(EXTRAS),\
	$(if $(shell command -v $(firstword $(subst :, ,$(each))) 2>/dev/null),,$(lastword $(subst :, ,$(each))))))

extras: ## install what a few tests need, and are skipped without: Chromium, promtool, Slurm, containers (as root)
	@[ -z "$(MISSING)" ] || { [ $$(id -u) = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends $(MISSING); } || \
		echo "tests that need them are skipped; to add them: sudo apt-get install --no-install-recommends $(MISSING)"

images: ## install what builds the image and a base for it: buildah, debootstrap (as root)
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends buildah debootstrap; }

clean: ## remove what was installed and kept
	rm -rf $(VENV) $(VENV)-cuda $(VENV)-device .state .pyright.log .mypy_cache .ruff_cache .pytest_cache .hypothesis docs/_build
