# Every target sets up what it needs in .venv; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check browser bench soak clean

help:
	@echo "make demo   train a small model twice, show where the time went and write a report"
	@echo "make test   lint, type-check and run the whole test suite"
	@echo "make check  ruff, pyright and import-linter only"
	@echo "make bench  measure trackside next to a hand-written loop"
	@echo "make soak   kill a training twenty times at random moments and compare"
	@echo "make clean  remove the environment, caches and the demo's run"

$(STAMP): pyproject.toml Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable ".[tensorboard,wandb,demo]" --group dev
	touch $@

demo: $(STAMP)
	$(BIN)/trackside demo

check: $(STAMP)
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
	echo "no browser could be installed: the tests that look at the report in one will be skipped"

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks

soak: $(STAMP)
	KILL_LEGS=20 $(BIN)/python -m pytest tests/trainer/test_survival.py -n 2

clean:
	rm -rf $(VENV) runs/demo runs/demo-slow .pytest_cache .ruff_cache .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
