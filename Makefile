# Rota's verbs. `make` alone prints them.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
MINUTES ?= 10
PURE_TESTS := $(wildcard $(addprefix tests/, architecture model engine controllers scheduler watcher clusters \
	apiserver agent properties scenarios wiring sim))

.DEFAULT_GOAL := help
.PHONY: help venv demo lint check test nightly sim-night faults fuzz soak tenants bench proto client lock format clean

help: ## print these verbs
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

venv: $(INSTALLED) ## make .venv with Rota and all tools in it (done once)

$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) tools/machine.py venv
	$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet uv || echo "uv cannot be had here; pip will do" >&2
	@if [ -x $(BIN)/uv ]; then install="$(BIN)/uv pip install --quiet --python $(BIN)/python"; \
	else install="$(BIN)/python -m pip install --quiet"; fi; \
	set -ex; $$install --require-hashes -r requirements.lock; \
	$$install --no-deps --no-build-isolation -e .
	@touch $@

demo: venv ## show Rota at work on this machine
	$(BIN)/python examples/demo.py

lint: venv ## format, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint ## before every push: lint, contracts, tidy, pure tests (about a minute)
	$(BIN)/pytest -q -n 3 --dist worksteal -m "not system and not slow" $(PURE_TESTS)

test: lint ## everything a change must pass; installs what the tests need of the machine
	@$(PYTHON) tools/machine.py tests
	$(BIN)/pytest -q -n 4 --dist worksteal --session-timeout=4500 -m "not nightly" tests

nightly: test sim-night faults fuzz tenants ## `test`, then what takes hours: long repetitions, many seeds, every fault count
	$(BIN)/pytest -q -n 2 --dist worksteal -m nightly tests

sim-night: venv ## 10,000 seeds of the simulator, then the search for every planted bug
	$(BIN)/python -m rota.sim --seeds 0-10000
	$(BIN)/python tests/sim/planting.py --search

faults: venv ## the long repetitions of the fault tests (ROTA_FAULTS=many)
	ROTA_FAULTS=many $(BIN)/pytest -q -n 2 --timeout=3600 tests/faults \
	tests/system/test_logs.py::test_followers_that_stop_reading_slow_down_no_task_and_no_other_follower

fuzz: venv ## odd specs, hostile peers, raw bytes and 1,000 random histories (SEEDS=0-1000; hours, see --help)
	$(BIN)/python -m tests.fuzz --seeds $(or $(SEEDS),0-1000)

soak: venv ## a workload on a real cluster under chaos, then everything is checked (MINUTES=10)
	$(BIN)/python bench/soak.py --chaos --minutes $(MINUTES)

tenants: venv ## 100 tenants and an attacker among them; root, an otherwise idle machine (MINUTES=10, TENANTS=100)
	$(BIN)/python bench/tenants.py --strict --minutes $(MINUTES) --tenants $(or $(TENANTS),100)

bench: venv ## measure against peers and limits on this machine
	$(BIN)/python bench/run.py
	$(BIN)/python bench/placement.py
	$(BIN)/python bench/density.py
	$(BIN)/python bench/followers.py --followers 1000
	$(BIN)/python bench/ready.py
	$(BIN)/python bench/crowd.py
	$(BIN)/python bench/store.py

proto: venv ## regenerate the messages in src/rota from proto/
	$(BIN)/python proto/generate.py

client: venv ## regenerate the asyncio client in src/rota/client/aio from the other one
	$(BIN)/python tools/async_client.py

lock: ## pin every dependency anew in requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --upgrade \
		--output-file requirements.lock pyproject.toml

format: venv ## put the source in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove everything that was made, .venv too
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
