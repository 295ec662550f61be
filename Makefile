# `make demo` and `make test` do all the set-up themselves. Root or sudo is used only where something is missing.
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
PYTHONS := python3 python3.12 python3.13 python3.11 python3.10 python3.14
GOOD_PYTHON := -c 'import sys, sqlite3, ssl, venv, ensurepip; sys.exit(sys.version_info < (3, 10))'
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4
# One run for all: its servers start once. Its own order and groups are in tests/conftest.py; a worker waits often.
PYTEST_ALL := $(BIN)/pytest -n 4 --dist loadgroup --junitxml=build/tests/$(shell date -u +%Y%m%d-%H%M%S).xml tests
OF_S3 := tests/conformance/test_s3.py tests/integration/s3 tests/integration/files_s3 tests/e2e/test_object_store.py
APT := $(SUDO) apt-get update
INSTALL := $(SUDO) apt-get install -y --no-install-recommends
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo docs lint check test proof soak matrix matrix-servers browser promtool bench bench-peers bench-faults clean
.DEFAULT_GOAL := help

help:  ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(VENV)/.servers $(VENV)/.classes  ## Make the virtual environment; install Python, Java and servers for tests where there are none

demo: $(VENV)/.ready  ## Stream a year of flights into Parquet and SQLite, killing the driver five times, and reconcile
	@$(BIN)/python examples/flights/demo.py

docs: setup  ## Make the documentation a site, below build/site; links and anchors are checked
	@$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/python -m pip install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "build/site/index.html"

lint: setup  ## Lint, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks
	$(BIN)/lint-imports

check: lint  ## The quick loop: the above, unit and contract tests, simulation
	$(PYTEST) -m "not proof" tests/unit tests/contract tests/simulation $(PYTEST_ARGS)

test: lint  ## Before a push: the above, real servers, the conformance kit, Spark, and what the docs show
	$(PYTEST_ALL) -m "not proof and not soak" $(PYTEST_ARGS)

proof: lint docs browser promtool  ## Before a release: all of that, and the long tests marked proof; S3's once more on MinIO
	$(PYTEST_ALL) -m "not soak" $(PYTEST_ARGS)
	EXACTSINK_TESTS_S3=minio $(BIN)/pytest -n 2 --dist loadgroup -m "not soak" $(OF_S3) $(PYTEST_ARGS)

soak: setup  ## A job of six sinks, killed and its servers restarted for SOAK_MINUTES (20); a file past 5 GB into S3
	$(BIN)/pytest -m soak tests/soak tests/integration/test_s3_soak.py $(PYTEST_ARGS)

matrix: setup  ## Every version of Spark, Python and Java that is here: hours; MATRIX_ARGS=--diagonal, --help
	$(BIN)/python -m tests.matrix $(MATRIX_ARGS)
	$(BIN)/python docs/generate.py

matrix-servers: setup  ## Every server in more than one version: hours; MATRIX_ARGS=--help
	$(BIN)/python -m tests.matrix.servers $(MATRIX_ARGS)
	$(BIN)/python docs/generate.py

browser: setup  # where the report is looked at; 300 MB, so not part of setup
	@command -v chromium chromium-browser >/dev/null || \
	  { $(SUDO) apt-get update && $(SUDO) apt-get install -y --no-install-recommends chromium; }

promtool: setup  # checks the alert rules; out of Debian's package by hand, which would also start a server
	@command -v promtool >/dev/null || [ -x $(BIN)/promtool ] || { cd $(VENV) && apt-get download prometheus && \
	  dpkg -x prometheus_*.deb prometheus && cp prometheus/usr/bin/promtool bin/ && rm -rf prometheus prometheus_*.deb; }

bench: setup  ## Benchmarks with their bounds; BENCH_ARGS=--list lists them
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-peers: setup  ## Ours beside Flink, Spark's own sinks and the servers' tools; BENCH_ARGS=--help; then bench-faults
	$(BIN)/python -m benchmarks.peers $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.peers.tables iceberg --out benchmarks/results/tables/iceberg
	$(BIN)/python -m benchmarks.peers.tables delta --out benchmarks/results/tables/delta
	@$(MAKE) --no-print-directory bench-faults

bench-faults: setup  ## The same faults for ours and its peers: rows lost and doubled, counted by id
	$(BIN)/python -m benchmarks.peer_faults

clean:  ## Remove what the commands above made
	rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/.ready: pyproject.toml
	@echo "setting up $(VENV): once, about a minute"
	@for python in $(PYTHONS); do $$python $(GOOD_PYTHON) 2>/dev/null && break; done || \
	  { $(APT) && $(INSTALL) python3 python3-venv; }
	@java -version >/dev/null 2>&1 || { $(APT) && { $(INSTALL) openjdk-17-jre-headless || $(INSTALL) openjdk-21-jre-headless; }; }
	@for python in $(PYTHONS); do if $$python $(GOOD_PYTHON) 2>/dev/null; then $$python -m venv --clear $(VENV); break; fi; done
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --editable '.[spark,idempotent-upsert]' --group demo
	@touch $@

$(VENV)/.dev: $(VENV)/.ready
	@$(BIN)/python -m pip install --quiet --editable '.[spark,s3,gcs,azure,hdfs,sftp,idempotent-upsert,mysql,postgres,kafka,delta,iceberg,bench]' --group dev
	@touch $@

# Servers for tests. PgBouncer, Redis and an SSH server are unpacked by the tests themselves, not installed: Debian's
# packages would start them. What they need of Debian's libraries is installed here.
$(VENV)/.servers: $(VENV)/.dev
	@{ ls -d /usr/lib/postgresql/*/bin/initdb || command -v initdb; } >/dev/null 2>&1 || \
	  { $(APT) && $(SUDO) mkdir -p /etc/postgresql-common/createcluster.d && \
	    echo 'create_main_cluster = false' | $(SUDO) tee /etc/postgresql-common/createcluster.d/exactsink.conf >/dev/null && \
	    $(INSTALL) postgresql; }  # no cluster of Debian's own
	@PATH=$$PATH:/usr/sbin command -v mariadbd >/dev/null || { $(APT) && $(INSTALL) mariadb-server-core mariadb-client-core; }
	@{ command -v mvn && command -v openssl; } >/dev/null 2>&1 || { $(APT) && $(INSTALL) maven openssl; }  # for Kafka's tests
	@[ -n "$$(ldconfig -p | grep libcares)" ] && [ -n "$$(ldconfig -p | grep liblzf)" ] || { $(APT) && $(INSTALL) \
	  $$(apt-cache depends --no-recommends --no-suggests pgbouncer redis-tools | awk '/ Depends: lib/ {print $$2}' | sort -u); }
	@touch $@

# What Spark and a broker load as they start, so that the JVMs of tests need not read it out of jars each time.
$(VENV)/.classes: $(VENV)/.servers
	@$(BIN)/python -m tests.servers.class_archives
	@touch $@
