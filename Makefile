# Two commands do all the set-up on a fresh machine with python3 >= 3.11: `make run` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
LAB    ?= dev
# Workers side by side, each with labs of its own; a file's tests stay together and in their order. Three times as many as a
# machine of two cores has cores: much of their time they wait for Slurm.
WORKERS ?= 6
# beside them, for tests that compute in the worker itself and have no lab
COMPUTING ?= 2
# thousands of commands are started here: without byte code each would compile the package anew
unexport PYTHONDONTWRITEBYTECODE
SIDE_BY_SIDE = --dist loadfile --no-loadscope-reorder -m "not faults and not alone" $(FEW)
# a seventh of the generated examples (tests/conftest.py)
FEW = --hypothesis-profile=check
# unit tests wait for little, and to find them takes each worker 4 s of a processor; a worker that is done takes tests of the others
CHECKING ?= 4
QUICK = -x -m "not faults" -n $(CHECKING) --dist worksteal $(FEW)

# two seconds: builds the site, checks the links between its pages, and that it loads nothing from elsewhere
SITE = $(BIN)/zensical build --clean --strict && $(BIN)/python scripts/check_site.py build/site

.PHONY: help run test check coverage faults guides docs reference man versions bench bench-train scale-sim screens lab-up lab-down release clean
help:           ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

$(VENV)/.run: pyproject.toml constraints.txt scripts/venv.sh
	scripts/venv.sh $(VENV) $(PYTHON) train
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt scripts/venv.sh
	scripts/venv.sh $(VENV) $(PYTHON) train,dev
	@touch $@ $(VENV)/.run

run: $(VENV)/.run  ## train the default job on the local scheduler, four ranks standing in for two nodes
	$(BIN)/clusterrun submit --scheduler local --nodes 2 --gpus-per-node 2 --follow

check: $(VENV)/.dev  ## style, types, layers, rendered scripts, unit tests: two minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(SITE)
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -q $(QUICK) tests/unit && wait $$types

coverage: $(VENV)/.dev  ## the lines that no unit test runs
	$(BIN)/python -m pytest -q -m "not faults" -n auto --cov=clusterrun --cov-report=term-missing:skip-covered tests/unit

# two runs at once, and each worker finds the tests of its own run only: finding all of them takes 14 s of a processor
test: $(VENV)/.dev  ## everything, a real Slurm cluster included, which it installs where it is root
	$(BIN)/python -m lab.install || [ "$${CI:-}" != true ]
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(SITE)
	$(BIN)/mypy & types=$$!; \
	  $(BIN)/python -m pytest -q -n $(COMPUTING) $(SIDE_BY_SIDE) tests/unit tests/worker >.computing.log 2>&1 & computing=$$!; \
	  $(BIN)/python -m pytest -n $(WORKERS) $(SIDE_BY_SIDE) --ignore tests/unit --ignore tests/worker; waiting=$$?; \
	  wait $$computing; computed=$$?; cat .computing.log; wait $$types && exit $$((waiting + computed))
	$(BIN)/python -m pytest -m "alone and not faults" $$(grep -rl --include='test_*.py' 'mark\.alone' tests)

# Lightning for one of `make faults`: without torch, as TRL below
LIGHTNING = pytorch-lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0
build/lightning: $(VENV)/.dev
	$(BIN)/python -m pip install -q --no-deps --target build/lightning $(LIGHTNING)
	@touch $@

faults: $(VENV)/.dev build/lightning  ## the long fault-injection runs on the lab, and the generated tests with all their examples
	$(BIN)/python -m lab.install
	$(BIN)/python -m pytest -m "faults or hypothesis"

# TRL and what it needs beside this environment: 107 MB for one row of the guides, so in a folder of their own, without torch
TRL = trl==1.16.0 datasets==5.2.0 pandas==3.1.1 dill==0.4.1 multiprocess==0.70.19 xxhash==4.1.0 python-dateutil==4.0.0 tzdata==2026.6
build/trl: $(VENV)/.dev
	$(BIN)/python -m pip install -q --no-deps --target build/trl $(TRL)
	@touch $@

guides: $(VENV)/.dev build/trl  ## what multi-GPU guides do: the commands of docs/guides.md on a lab of 2 nodes, row by row
	$(BIN)/python -m lab.install
	$(BIN)/python -m tests.guides

docs: $(VENV)/.dev  ## the site of docs/ in build/site: its links and its commands are checked, and it loads nothing from elsewhere
	$(SITE)
	$(BIN)/python -m pytest -q tests/unit/test_docs.py tests/unit/test_printed_commands.py

reference: $(VENV)/.dev  ## the parts of the documents that are made from the code: commands, keys, settings, troubleshooting
	$(BIN)/python -m scripts.reference
	$(BIN)/python -m scripts.troubleshooting

man: $(VENV)/.dev  ## man pages of all commands, in build/man
	$(BIN)/python -m scripts.man_pages build/man

versions: $(VENV)/.dev  ## what holds on Slurm 22.05, 24.11 and 26.05: the same tests on each, and a table (an hour)
	$(BIN)/python -m lab.install --slurm 24.11 --slurm 26.05
	$(BIN)/python -m tests.versions --workers $(WORKERS)

bench: $(VENV)/.dev  ## the figures, as ratios against a peer in the same run
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python -m lab.install && $(BIN)/python -m benchmarks.submit

bench-train: $(VENV)/.dev  ## how fast training is: tokens/s, start and packing, as ratios (on a quiet machine: 20 minutes)
	$(BIN)/python -m benchmarks.train

scale-sim: $(VENV)/.dev  ## the store, environment, records and log of a run on 10,000 nodes, and its goodput, simulated
	unshare --net --map-root-user sh -c 'ip link set lo up && exec $(BIN)/python -m benchmarks.scale_sim'
	$(BIN)/python -m benchmarks.goodput

screens: $(VENV)/.dev  ## the pictures in docs/screens, from what `python -m scripts.screens --record` recorded on a lab
	$(BIN)/python -m scripts.screens

lab-up: $(VENV)/.dev  ## a real Slurm cluster on this machine to try things on
	$(BIN)/python -m lab.install
	$(BIN)/python -m lab up --name $(LAB)

lab-down: $(VENV)/.dev  ## take it down again
	$(BIN)/python -m lab down --name $(LAB)

release: $(VENV)/.dev  ## build, check and tag the version of clusterrun/__init__.py; push nothing
	scripts/release.sh $(BIN)/python

clean:          ## remove what was built and measured here
	rm -rf $(VENV) build dist .computing.log .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
