# Every target sets up what it needs in .venv; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo needs little; tests, checks and benchmarks also need torch, xprof, linters and pytest.
DEMO_STAMP := $(VENV)/.installed-demo
DEV_STAMP := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help demo test check browser bench soak clean

help:
	@echo "make demo   train a small model twice, show where the time went and write a report"
	@echo "make test   lint, type-check and run the whole test suite"
	@echo "make check  run ruff, pyright and import-linter only"
	@echo "make bench  compare trackside with hand-written training loops"
	@echo "make soak   kill a run twenty times at random, and feed the readers random input for two minutes"
	@echo "make clean  remove the environment, caches and the demo's runs"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(DEMO_STAMP): pyproject.toml Makefile | $(BIN)/python
	@echo "Installing what the demo needs into $(VENV) (about a minute)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[demo,tensorboard]"
	@touch $@

$(DEV_STAMP): pyproject.toml Makefile | $(BIN)/python
	@echo "Installing everything that tests and checks need into $(VENV) (a few minutes)"
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[demo,tensorboard,wandb]" --group dev
	@touch $(DEMO_STAMP) $@

demo: $(DEMO_STAMP)
	$(BIN)/trackside demo

check: $(DEV_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pyright
	$(BIN)/lint-imports --no-cache

test: check browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The tests of the report need a browser. Without one they are skipped, and say so.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  echo "installing chromium for the tests of the report" && \
	  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium) >/dev/null 2>&1; } || \
	echo "no browser could be installed: the tests that open the report in one will be skipped"

bench: $(DEV_STAMP)
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks

soak: $(DEV_STAMP)
	KILL_LEGS=20 $(BIN)/python -m pytest tests/trainer/test_survival.py -n 2
	FUZZ_SECONDS=120 $(BIN)/python -m pytest tests -k fuzz -n 2

clean:
	rm -rf $(VENV) runs/demo runs/demo-slow .pytest_cache .ruff_cache .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
