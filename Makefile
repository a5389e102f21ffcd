# pylog. Every target makes .venv itself (.ci/setup.sh) and is quick the second time.
# Needs only make, Python 3.11 or later, and Java 17 or later (Spark and the bundled ZooKeeper run on it).

.DEFAULT_GOAL := help
SHELL := /bin/bash

PY := .venv/bin/python
READY := .venv/.ready
# Classes as Java keeps them in memory: the tests' drivers start with a third of the processor time, ZooKeeper with half.
CLASSES := .venv/zookeeper-classes.jsa

# Spark starts whatever these name; here it must be the Python and the Spark of .venv, whatever the caller's shell has.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
unexport PYSPARK_DRIVER_PYTHON PYSPARK_DRIVER_PYTHON_OPTS SPARK_HOME SPARK_CONF_DIR PYTHONPATH PYTHONHOME
# Tests start brokers, commands and Spark's workers by the hundred: compiling our modules anew is half of each start.
unexport PYTHONDONTWRITEBYTECODE

# Fast tests first; every folder of tests/ is in, so a new one cannot be forgotten.
FAST_TESTS := $(wildcard tests/unit tests/contract) $(wildcard tests/test_*.py)
# Of the slow ones those come first whose files take longest: each file is run by one process.
LONG_TESTS := $(wildcard tests/examples tests/simulation tests/wheel tests/chaos)
SLOW_TESTS := $(LONG_TESTS) $(filter-out $(LONG_TESTS) tests/unit tests/contract tests/__pycache__, \
	$(patsubst %/,%,$(wildcard tests/*/)))
PYTEST_ARGS ?=

# Most of the slow tests wait for processes most of the time. Each file is run by one of so many (tests/conftest.py).
JOBS ?= 4

# One after the other even with -j: they are each other's load.
.NOTPARALLEL:
.PHONY: help demo test lint format pytest wheel-test simulate simulate-groups simulate-transactions mutants chaos chaos-groups \
	chaos-exactly-once soak bench bench-kafka docs pictures clean

help:  ## what can be made
	@echo 'pylog: a partitioned log that Spark reads and writes'
	@echo
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 28

demo: $(READY)  ## real flights through three brokers and two Spark jobs; a job and a broker are killed (2 to 4 minutes)
	@$(PY) -m examples.demo

test: lint pytest  ## everything that must hold: lint, all tests, the wheel in an empty venv, the documentation (20 to 30 minutes)

lint: $(READY)  ## ruff, mypy --strict, import contracts
	@$(PY) -m mypy & types=$$!; \
	$(PY) -m ruff check . && $(PY) -m ruff format --check . && .venv/bin/lint-imports; others=$$?; \
	wait $$types && exit $$others

format: $(READY)  ## let ruff put the code in order
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# numpy would start threads for linear algebra in each of the tests' processes: a tenth of a second of a processor.
pytest: export OPENBLAS_NUM_THREADS := 1
pytest: $(CLASSES)  ## the tests alone; PYTEST_ARGS='-k topic -x' narrows them, JOBS=1 runs one after the other
	@$(PY) -m tests.compile_pyspark || echo 'that failed: the tests are slower, and otherwise the same' >&2
	$(PY) -m tests.run $(JOBS) $(FAST_TESTS) $(SLOW_TESTS) $(PYTEST_ARGS)

wheel-test: $(READY)  ## the wheel in an empty venv: the documentation's blocks run as printed, Spark included
	$(PY) tests/wheel/check_wheel.py

SIMULATED_SEEDS = $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000) $(if $(FIRST),--first $(FIRST)))

simulate: $(READY)  ## the cluster in one thread under seeded faults, SEEDS=1000 of them (FIRST= the first, SEED= one alone)
	$(PY) -m tests.simulation $(SIMULATED_SEEDS)

simulate-groups: $(READY)  ## consumer groups alone, likewise
	$(PY) -m tests.simulation --workload groups $(SIMULATED_SEEDS)

simulate-transactions: $(READY)  ## transactions, and queries that write exactly once, likewise
	$(PY) -m tests.simulation --workload transactions $(SIMULATED_SEEDS)

mutants: $(READY)  ## the product made wrong, one line at a time: do tests or 100 seeds find out? (MUTANT= names one)
	$(PY) -m tests.mutation --jobs $(JOBS) $(if $(MUTANT),--only $(MUTANT))

chaos: $(READY)  ## real brokers under real faults, MINUTES=60 of them (FAULT= narrows, SEED= repeats)
	$(PY) -m tests.chaos.run --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) $(if $(FAULT),--only '$(FAULT)')

chaos-groups: $(READY)  ## a consumer group over brokers that fail, likewise
	$(PY) -m tests.chaos.run_groups --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) $(if $(FAULT),--only '$(FAULT)')

chaos-exactly-once: $(CLASSES)  ## Spark's drivers die at ten named points of the sink, over brokers that fail, likewise
	$(PY) -m tests.chaos.run_exactly_once --minutes $(or $(MINUTES),60) $(if $(SEED),--seed $(SEED)) \
		$(if $(FAULT),--only '$(FAULT)')

soak: $(CLASSES)  ## two Spark queries over brokers that fail now and then, HOURS=3 of them: does anything grow?
	$(PY) -m tests.chaos.run_soak --hours $(or $(HOURS),3) $(if $(SEED),--seed $(SEED))

bench: $(READY)  ## the comparisons: each figure a ratio, as a table and as JSON
	@$(PY) -m tests.compile_pyspark undo
	$(PY) -m bench

bench-kafka: $(READY)  ## the same beside Apache Kafka (Maven fetches it), NAMES=in_spark narrows it, ROUNDS=5 pairs each
	@$(PY) -c 'import confluent_kafka' 2>/dev/null || $(PY) -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@$(PY) -m tests.compile_pyspark undo
	$(PY) -m bench.kafka $(NAMES) $(if $(ROUNDS),--rounds $(ROUNDS))

# NO_MKDOCS_2_WARNING: the theme's notice about its successor is none of our readers' business.
docs: $(READY)  ## the documentation as a site: build/site/index.html (the pages themselves: docs/pages)
	@$(PY) -m docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --config-file docs/mkdocs.yml
	@echo 'the documentation is in build/site: open build/site/index.html, or for its search: $(PY) -m http.server --directory build/site'

pictures: $(READY)  ## the console's pictures in docs/, taken in Chromium from real brokers with flights
	$(PY) -m tests.console.pictures

clean:  ## remove .venv and everything that was built
	rm -rf .venv dist build .mypy_cache .ruff_cache .hypothesis .import_linter_cache spark-warehouse

$(CLASSES): $(READY) tests/class_archives.py
	@echo 'keeping the classes that Spark and ZooKeeper load, for the tests: a minute, once'
	@$(PY) -m tests.class_archives || echo 'that failed: the tests are slower, and otherwise the same' >&2

$(READY): pyproject.toml .ci/setup.sh
	@.ci/setup.sh .venv
