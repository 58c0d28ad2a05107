# Every target sets up what it needs in .venv; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo needs little; tests, checks and benchmarks also need torch, xprof, linters and pytest.
DEMO_STAMP := $(VENV)/.installed-demo
DEV_STAMP := $(VENV)/.installed-dev
# How many processes share the tests. Some tests wait for processes of their own, so that one more than cores may pay.
WORKERS ?= 3
# Keras and Lightning have an environment of their own, so that they never decide about versions of ours.
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check docs browser bench bench-check bench-growth bench-peers truth soak clean

help:
	@echo "make demo         train a small model twice, show where the time went and write a report"
	@echo "make test         lint, type-check and run the whole test suite"
	@echo "make check        run ruff, pyright and import-linter only"
	@echo "make docs         build the documentation as a site into site/"
	@echo "make bench        compare trackside with hand-written training loops"
	@echo "make bench-peers  measure it next to Keras and Lightning as well, and write benchmarks/RESULTS.md"
	@echo "make bench-growth measure how its cost grows, and write benchmarks/GROWTH.md"
	@echo "make bench-check  fail if it got slower, next to a hand-written loop, than the stored baseline"
	@echo "make truth        hold what trackside reports against the truth, in one table"
	@echo "make soak         kill a run twenty times at random, and feed the readers random input for two minutes"
	@echo "make clean        remove the environments, caches, the site and the demo's runs"

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

# Tests start some hundred processes that import the same files: they may keep the bytecode, whatever the shell says.
test: check browser
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder

# Warnings are errors; not with --quiet, which hides them from --strict. The variable silences an announcement of the
# theme's authors.
docs: $(DEV_STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

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

$(PEERS_STAMP): pyproject.toml Makefile
	@echo "Installing trackside, Keras and Lightning into $(PEERS) (a few minutes)"
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(PEERS)/bin/python -m pip install --quiet --editable ".[demo,tensorboard]" --group peers
	@touch $@

bench-growth: $(DEV_STAMP)
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks.growth --output benchmarks/GROWTH.md

bench-check: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.peers.check

bench-peers: $(PEERS_STAMP)
	$(PEERS)/bin/python -m benchmarks.peers

truth: $(DEV_STAMP)
	$(BIN)/python -m benchmarks.truth

soak: $(DEV_STAMP)
	KILL_LEGS=20 $(BIN)/python -m pytest tests/trainer/test_survival.py -n 2
	FUZZ_SECONDS=120 $(BIN)/python -m pytest tests -k fuzz -n 2

clean:
	rm -rf $(VENV) $(PEERS) runs/demo runs/demo-slow .pytest_cache .ruff_cache .import_linter_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
