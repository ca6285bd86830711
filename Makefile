# Everything a newcomer types. Each target makes its own environment in .venv; nothing else is needed but
# Python 3.11 or newer and make. `make PYTHON=python3.12 …` picks another interpreter.
#
#   make demo        talk to a small model and watch it learn
#   make test        every tier but the long one, with two workers
#   make test-long   the tests that take minutes each or need the whole tiny model, the demo's among them; CI runs both
#   make test-fast   the tests that take seconds, for use while working
#   make write       regenerate what is generated: the configuration page, the tree in README.md, formatting

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiling every module of torch and transformers takes longer than installing them: Python compiles what it imports,
# once, since byte code is kept, whatever the environment says.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
export PYTHONDONTWRITEBYTECODE :=
TYPED := build/typed
# Two workers share the files of tests (tests/order.py): one closing line speaks of all of them.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: env env-sglang environments demo test test-long test-fast lint types write

env: $(VENV)/.stamp

# torch first and pinned: that version is a CPU build here, and pip would otherwise fetch a CUDA one for its dependents.
# torchao apart: transformers imports it wherever it finds it, which costs every process a quarter of a second
$(VENV)/.stamp: requirements.txt pyproject.toml slime/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -r requirements.txt
	$(PIP) --no-deps --upgrade --target $(VENV)/eight-bit torchao==0.18.0
	@$(BIN)/python -c 'import slime.engines.embedded.service, slime.trainers.torch.backend, openclaw.server'
	@touch $@

env-sglang:
	bash tests/sglang/install.sh .venv-sglang

# both at once: installing is the work of one core
environments:
	@$(MAKE) --no-print-directory -j 2 env env-sglang

demo: env
	$(BIN)/openclaw-rl demo

test: environments
	@$(MAKE) --no-print-directory lint types
	$(PYTEST) -m "not long"

test-long: environments
	$(PYTEST) -m long

test-fast: env
	$(PYTEST) -m "not slow and not sglang and not long"

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypy takes no folder with a dash in its name: it sees those through links that carry their package names
types: env
	@mkdir -p $(TYPED)
	@ln -sfn ../../openclaw-rl $(TYPED)/openclaw_rl
	@ln -sfn ../../openclaw-opd $(TYPED)/openclaw_opd
	@ln -sfn ../../openclaw-combine $(TYPED)/openclaw_combine
	@ln -sfn ../../openclaw-test $(TYPED)/openclaw_test
	MYPYPATH=slime:$(TYPED) $(BIN)/mypy -p slime -p openclaw -p openclaw_rl -p openclaw_opd -p openclaw_combine -p openclaw_test

write: env
	$(BIN)/ruff format .
	$(BIN)/python -m slime.config.document > docs/configuration.md
	$(BIN)/python tests/house/variables.py
	$(BIN)/python tests/house/tree.py
