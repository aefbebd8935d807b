# Needs python3 (3.11 or newer) and make; everything else is installed into $(VENV).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

SOURCES := dask_elastic plugins
CHECKED := $(wildcard dask_elastic plugins tests examples benchmarks docs)
# The demonstration has its own target; files with a leading underscore are modules of others. Those with Spark take longest
# and come first, so that no other waits for them at the end.
ALL_EXAMPLES := $(sort $(filter-out examples/demo.py examples/_%,$(wildcard examples/*.py)))
WITH_SPARK := $(shell grep -l pyspark $(ALL_EXAMPLES))
EXAMPLES := $(WITH_SPARK) $(filter-out $(WITH_SPARK),$(ALL_EXAMPLES))
# Tests whose clusters and Spark sessions are processes. Long ones come first, so that no process waits at the end.
PROCESSES := $(wildcard $(addprefix tests/,spark docs cluster notebooks cli dashboard))
PURE := $(filter-out $(PROCESSES),$(patsubst %/,%,$(wildcard tests/*/)))
BENCHMARKS := $(sort $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py)))

# Tests start many processes: without compiled files, each of them would compile what it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: test lint format types examples $(EXAMPLES:%=run-%) pytest processes pure beside
.PHONY: soak properties faults oldest demo bench docs clean
.DEFAULT_GOAL := test

# All parts at once take up to 9 GB of memory. With less than 12 GB, also by a limit of a container, one runs after the other.
AT_ONCE = $(shell $(BIN)/python -c 'from distributed.system import MEMORY_LIMIT; print(3 if MEMORY_LIMIT > 12e9 else 1)')
# GNU make of macOS has no such option.
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# Tests with processes wait for a third of their time. All else runs beside them, also after a failure, and is printed when
# it has ended: the two summaries of pytest come last.
test: lint
	@$(MAKE) --no-print-directory --jobs $(or $(AT_ONCE),1) --keep-going processes beside || \
	    { echo "== failed: lines with *** above name the parts"; exit 1; }

lint: $(VENV)/.test
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

types: $(VENV)/.test
	$(BIN)/mypy $(SOURCES)

# As in tests: on a busy machine, a worker that lives may send no heartbeat for seconds, and short Spark runs need less.
examples: export DASK_ELASTIC__HEARTBEAT_TIMEOUT := 60s
examples: export SPARK_CONF_DIR := $(CURDIR)/tests/spark/conf
examples: $(EXAMPLES:%=run-%)

$(EXAMPLES:%=run-%): run-%: $(VENV)/.test
	@echo "== $*"; $(BIN)/python $*

pytest: pure processes

processes: $(VENV)/.test
	@$(BIN)/python -m pytest --numprocesses 3 --dist loadgroup $(PROCESSES)

# Tests without processes come last: they keep both processors busy until the end.
beside:
	@$(MAKE) --no-print-directory $(SYNC) examples types pure

# Tests with processes go first where both need a processor.
pure: $(VENV)/.test
	@nice -n 5 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal $(PURE) dask_elastic

# Simulated jobs of all kinds under faults, with other seeds than the tests: make soak SECONDS=3600
SECONDS ?= 600
soak: $(VENV)/.test
	$(BIN)/python tests/simulator/soak.py --seconds $(SECONDS)

# Properties with other examples than those of the tests: make properties RUNS=10
RUNS ?= 3
properties: $(VENV)/.test
	@set -e; for run in $$(seq $(RUNS)); do \
	    ELASTIC_OTHER_EXAMPLES=1 $(BIN)/python -m pytest -q -m hypothesis --numprocesses 2 --dist worksteal $(PURE); done

# Sinks killed at every step of their commit, Spark's processes at every step of an epoch, the demonstration with Spark,
# then jobs whose workers are killed and suspended: make faults KILLS=600 SEED=1000
KILLS ?= 60
SEED ?= 1
faults: $(VENV)/.test
	DASK_ELASTIC_EVERY_CRASH=1 $(BIN)/python -m pytest -q --timeout 3600 tests/cluster/durability/test_sink_crashes.py
	DASK_ELASTIC_EVERY_CRASH=1 $(BIN)/python -m pytest -q --timeout 3600 tests/spark/test_killed_driver.py tests/spark/test_lost_executor.py
	DASK_ELASTIC_EVERY_CRASH=1 $(BIN)/python -m pytest -q -k "interrupted or with_spark" tests/docs/test_demo.py
	$(BIN)/python tests/cluster/durability/faults.py --kills $(KILLS) --seed $(SEED)
	SOURCE_KILLS=$(KILLS) $(BIN)/python -m pytest -q --timeout 3600 -k kills tests/cluster/durability/test_durable_inputs.py
	HOME_KILLS=$(KILLS) $(BIN)/python -m pytest -q --timeout 3600 -k killed tests/cluster/homes tests/cluster/groups

# Tests without processes, with the oldest versions of libraries that pyproject.toml allows.
OLDEST := $(VENV)-oldest
oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(subst $(BIN),$(OLDEST)/bin,$(UV) --python $(BIN)/python) --resolution lowest-direct --editable '.[all]'
	$(subst $(BIN),$(OLDEST)/bin,$(UV) --python $(BIN)/python) --editable '.[test]'
	$(OLDEST)/bin/python -m pytest -q --numprocesses 2 --dist worksteal $(PURE) dask_elastic

format: $(VENV)/.test
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

demo: $(VENV)/.demo
	$(BIN)/python examples/demo.py

bench: $(VENV)/.bench
	@set -e; for benchmark in $(BENCHMARKS); do echo "== $$benchmark"; $(BIN)/python $$benchmark; done

# The site is then docs/_build/html/index.html.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --quiet docs docs/_build/html

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit("dask_elastic needs Python 3.11 or newer, this is " + sys.version if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Installed again only when pyproject.toml has changed. Uv is several times faster than pip, but does not read pip's
# configuration: pip installs what uv does not find. PySpark is built from source: its wheel, which is unpacked at once,
# would take longest to compress. Tests import few of Spark's files: only those get compiled.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV := $(BIN)/python -m uv pip install --quiet --config-settings-package pyspark:--build-option=--compression=stored

$(VENV)/.test: EXTRAS := test
$(VENV)/.bench: EXTRAS := test,benchmarks
$(VENV)/.demo: EXTRAS := demo,spark
$(VENV)/.bench $(VENV)/.demo: export UV_COMPILE_BYTECODE := 1
$(VENV)/.docs: EXTRAS := docs
$(VENV)/.test $(VENV)/.bench $(VENV)/.demo $(VENV)/.docs: $(VENV)/.python pyproject.toml
	$(PIP) uv
	$(UV) --python $(BIN)/python --editable '.[$(EXTRAS)]' || $(PIP) --editable '.[$(EXTRAS)]'
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find $(CHECKED) -type d -name __pycache__ -prune -exec rm -rf {} +
