# `make help` lists the targets and their variables.
SHELL := /bin/bash
PY := .venv/bin/python
PYTHON ?= python3
RESULTS ?= results
# Test files at a time on two processors: most tests that take long wait for processes, sockets and timers.
JOBS ?= 5
# tests/conftest.py has the order: long files first.
BY_FILE := -p tests.parallel --jobs $(JOBS)

K ?= 4
BANDWIDTH ?=
SEED ?= 0
STRATEGIES ?=
STEPS ?= 60

.DEFAULT_GOAL := help
.PHONY: help setup test parts nightly types quick format site sanitize bmv2-fattree wan doctor p4 p4-tofino clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nvariables (with their defaults):\n'
	@printf '  PYTHON=python3    of make setup: what makes .venv\n'
	@printf '  JOBS=5            test files that make test runs at a time\n'
	@printf '  RESULTS=results   folder of what make bmv2-fattree and make wan write\n'
	@printf '\nvariables of make bmv2-fattree (with their defaults):\n'
	@printf '  K=4               a fat-tree of K ports a switch: K^3/4 hosts, 5K^2/4 switches\n'
	@printf '  WORKERS=8 PS=2    how many of the hosts are workers and parameter servers\n'
	@printf '  RANKS=1           ranks of each worker in training; they share its agent\n'
	@printf '  BANDWIDTH=        Mbit/s of each link; empty: 100 with softswitch and up to 16 workers, else 20\n'
	@printf '  HETEROGENEOUS=    1: each link between 0.5 and 1.5 times BANDWIDTH, drawn with SEED\n'
	@printf '  SEED=0            of everything that is drawn at random\n'
	@printf '  STRATEGIES=       some of the strategies, as in "lbmm atp"; empty: lbmm, atp, equal and inart\n'
	@printf '  SWITCH=           bmv2 or softswitch; empty: bmv2 where simple_switch_grpc is on PATH\n'
	@printf '  CIFAR100=         folder of CIFAR-100 (python version) to train on; empty: the handwritten digits\n'
	@printf '  STEPS=60          training steps (0: no training)\n'

setup: ## install the Debian packages that are missing and .venv
	@PYTHON=$(PYTHON) ./setup.sh

test: setup ## ruff, mypy and every test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	@$(MAKE) --no-print-directory --jobs=2 types parts

parts:
	env -u MAKEFLAGS -u MFLAGS $(PY) -m tests.retry $(BY_FILE)

# mypy runs beside the tests and takes what they leave of the processors.
types:
	nice $(PY) -m mypy

nightly: setup ## what make test has a sample of: properties on many random examples, more versions; some hours
	INART_EXAMPLES=10 $(PY) -m pytest -m 'hypothesis or nightly' --timeout=0 $(BY_FILE)

quick: setup ## ruff and the essential tests, in under two minutes
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	$(PY) -m pytest -m quick

site: setup ## the documentation with API pages as HTML, in results/site/
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet --site-dir $(RESULTS)/site
	@printf 'site: open %s/site/index.html, or: %s -m mkdocs serve\n' "$(RESULTS)" "$(PY)"

format: setup ## Python as ruff has it, C as .clang-format has it
	$(PY) -m ruff format --quiet .
	.venv/bin/clang-format -i $$(git ls-files '*.c' '*.h')

sanitize: setup ## workers, parameter servers and softswitch under ASan, UBSan and TSan, with all that happens to a job
	$(PY) -m tests.sanitize

bmv2-fattree: setup ## train through P4 switches in an emulated fat-tree; writes results/bmv2-fattree/
	$(PY) -m evaluation.bmv2_fattree --k $(K) $(if $(BANDWIDTH),--bandwidth $(BANDWIDTH)) --seed $(SEED) --steps $(STEPS) \
	    --strategies "$(STRATEGIES)" --output $(RESULTS)/bmv2-fattree \
	    $(if $(CIFAR100),--cifar100 $(CIFAR100)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(PS),--ps $(PS)) $(if $(RANKS),--ranks $(RANKS)) $(if $(SWITCH),--switch $(SWITCH)) \
	    $(if $(filter-out 0 no false,$(HETEROGENEOUS)),--heterogeneous)

wan: setup ## systems across an emulated WAN over TCP, measured beside simulated; writes results/wan.png
	@mkdir -p $(RESULTS)
	$(PY) -m evaluation.wan run --network netstorm --rounds 3 --plot $(RESULTS)/wan.png

doctor: ## what is installed, what is missing and what installs it
	@if [ -x $(PY) ]; then $(PY) -m inart doctor; \
	else echo "nothing is installed yet: make setup"; exit 1; fi

p4: setup ## compile the P4 programs again (needs p4c)
	$(PY) -m p4src.build

p4-tofino: setup ## compile and assemble the program for Tofino (needs p4c with its Tofino back end)
	$(PY) -m p4src.build --target tna --if-possible
	$(PY) -m p4src.build --target t2na --if-possible

clean: ## remove results and caches (not .venv)
	rm -rf results .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
