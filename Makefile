# Targets for development. `make` without a target prints them.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
MINUTES ?= 10
PURE_TESTS := $(wildcard $(addprefix tests/, architecture model engine controllers scheduler watcher clusters \
	apiserver agent properties scenarios wiring sim))

.DEFAULT_GOAL := help
.PHONY: help venv demo lint check test nightly sim-night faults fuzz soak tenants bench proto client lock format clean

help: ## print these targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

venv: $(INSTALLED) ## create .venv with Rota and all tools (done once)

$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) tools/machine.py venv
	$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet uv || echo "uv is not available; using pip" >&2
	@if [ -x $(BIN)/uv ]; then install="$(BIN)/uv pip install --quiet --python $(BIN)/python"; \
	else install="$(BIN)/python -m pip install --quiet"; fi; \
	set -ex; $$install --require-hashes -r requirements.lock; \
	$$install --no-deps --no-build-isolation -e .
	@touch $@

demo: venv ## run a demonstration of Rota on this machine
	$(BIN)/python examples/demo.py

lint: venv ## check formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint ## before every push: lint, architecture tests and pure tests (about a minute)
	$(BIN)/pytest -q -n 3 --dist worksteal -m "not system and not slow" $(PURE_TESTS)

test: lint ## all tests that a change must pass; installs the Debian packages they need
	@$(PYTHON) tools/machine.py tests
	$(BIN)/pytest -q -n 4 --dist worksteal --session-timeout=4500 -m "not nightly" tests

nightly: test sim-night faults fuzz tenants ## `test`, then the tests that take hours: long repetitions, many seeds, every fault
	$(BIN)/pytest -q -n 2 --dist worksteal -m nightly tests

sim-night: venv ## 10,000 seeds of the simulator, then the search for every planted bug
	$(BIN)/python -m rota.sim --seeds 0-10000
	$(BIN)/python tests/sim/planting.py --search

faults: venv ## the long repetitions of the fault tests (ROTA_FAULTS=many)
	ROTA_FAULTS=many $(BIN)/pytest -q -n 2 --timeout=3600 tests/faults \
	tests/system/test_logs.py::test_followers_that_stop_reading_slow_down_no_task_and_no_other_follower

fuzz: venv ## unusual specs, hostile peers, raw bytes and 1,000 random histories (SEEDS=0-1000; takes hours)
	$(BIN)/python -m tests.fuzz --seeds $(or $(SEEDS),0-1000)

soak: venv ## run a workload on a real cluster under chaos, then check every job (MINUTES=10)
	$(BIN)/python bench/soak.py --chaos --minutes $(MINUTES)

tenants: venv ## 100 tenants, one of them an attacker; needs root and an idle machine (MINUTES=10, TENANTS=100)
	$(BIN)/python bench/tenants.py --strict --minutes $(MINUTES) --tenants $(or $(TENANTS),100)

bench: venv ## run the benchmarks on this machine
	$(BIN)/python bench/run.py
	$(BIN)/python bench/placement.py
	$(BIN)/python bench/density.py
	$(BIN)/python bench/followers.py --followers 1000
	$(BIN)/python bench/ready.py
	$(BIN)/python bench/crowd.py
	$(BIN)/python bench/store.py

proto: venv ## regenerate the message modules in src/rota from proto/
	$(BIN)/python proto/generate.py

client: venv ## regenerate the asyncio client in src/rota/client/aio from the synchronous client
	$(BIN)/python tools/async_client.py

lock: ## pin the newest version of every dependency in requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --upgrade \
		--output-file requirements.lock pyproject.toml

format: venv ## format the source
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove .venv, build output and caches
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
