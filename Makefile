# `make run` shows the whole thing, `make test` tests it; both set up their environment first.
# Needs Python 3.11 or later and nothing else; interop tests also need java and mvn, and are skipped without.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

UV_VERSION := 0.13.9
BIN := .venv/bin
PY := $(BIN)/python
CODE := services tests tools examples bench deploy docs native/build_lane.py native/dependencies.py native/fuzz/seeds.py protos/generate.py
TYPED := services/whimbrel services/pyspark_whimbrel tests tools examples \
	$(addprefix bench/,run.py raw.py gate.py scale.py beside.py beside_systems.py beside_tables.py bulk_reading.py \
		replicator_catchup.py spark_jobs.py spark_source.py) \
	native/build_lane.py native/dependencies.py native/fuzz/seeds.py \
	$(addprefix deploy/,stack.py etcd.py healthcheck.py image_lane.py release.py)

# The first interpreter that is new enough.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)

UV = $$(command -v uv || echo $(BIN)/uv)
LANE_REQUIRED = $(if $(REQUIRE_LANE),1,0)

# A uv that is already there is used, else the pinned one is installed into .venv. --inexact keeps it there.
define sync
	@if [ -z "$(PYTHON)" ]; then echo "whimbrel needs Python 3.11 or later on the PATH" >&2; exit 1; fi
	@echo "making .venv from uv.lock, with the compiled lane where cargo is: up to a minute, longer without a cache of packages"
	@uv=$$(command -v uv || true); \
	if ! "$${uv:-false}" --version >/dev/null 2>&1; then \
		[ -x $(PY) ] || $(PYTHON) -m venv .venv; \
		[ -x $(BIN)/uv ] || $(PY) -m pip install -q --disable-pip-version-check uv==$(UV_VERSION); \
		uv=$(BIN)/uv; \
	fi; \
	[ -x $(PY) ] || "$$uv" venv -q --python $(PYTHON) .venv; \
	env -u VIRTUAL_ENV "$$uv" sync -q --frozen --inexact --python $(PY) $(if $(CARGO_CAME),--reinstall-package whimbrel) $(1)
	@env -u PYTHONDONTWRITEBYTECODE $(PY) -c "import $(COMPILED)"
	@$(BIN)/whimbrel --version
	@touch $@
endef

# Compiled once, so that a cluster starts in half the time also where no bytecode is written later.
COMPILED := typer._adapters, uvloop, whimbrel.cli.main, whimbrel.cli.dev, whimbrel.cli.dev_view, whimbrel.nameserver.program, \
	whimbrel.broker.program, whimbrel.replicator.program, whimbrel.rpc.server.native, whimbrel.client.sync, \
	whimbrel.rpc.client.native_streams, whimbrel.testing.host

.PHONY: help help-long setup run fmt fmt-check lint types layers proto-check native-check check test nightly ci-times \
	proto docs-settings scenarios checklist release up down logs clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16
	@echo; echo "\`make help-long\` lists the long runs: simulations, models, faults, rules, benchmarks."

help-long: ## list the long runs
	@grep -hE '^[a-z0-9-]+:.*##' long.mk | sed -E 's/:.*## /\t/' | expand -t 18

# What an installation is made again for: the compiled lane is in it (docs/lane.md), and there may be a cargo by now.
NATIVE := $(shell find native \( -name target -o -name fuzz \) -prune -o -type f -print)
CARGO_CAME := $(shell grep -qs "there was no cargo" .venv/lib/python3*/site-packages/whimbrel_lane.py \
	&& command -v cargo >/dev/null && echo .venv/.again)
ifdef REQUIRE_LANE
export WHIMBREL_LANE_BUILD := 1
endif

.venv/.run: uv.lock pyproject.toml services/whimbrel/__init__.py $(NATIVE) $(CARGO_CAME)
	$(call sync,--no-dev --group demo)

.venv/.dev: uv.lock pyproject.toml services/whimbrel/__init__.py $(NATIVE) $(CARGO_CAME)
	$(call sync,--group dev)
	@touch .venv/.run

.venv/.again: ;

setup: .venv/.dev ## make .venv with all that development needs

run: .venv/.run ## start a cluster, send, receive, lose the master, receive from the slave
	@$(PY) examples/tour.py

fmt: setup ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix -q $(CODE) || true
	$(BIN)/ruff format -q $(CODE)

# What `check` consists of, each by itself.
fmt-check: setup
	$(BIN)/ruff format --check -q $(CODE)

lint: setup
	$(BIN)/ruff check $(CODE)

types: setup
	$(BIN)/mypy $(TYPED)

layers: setup
	$(BIN)/lint-imports

proto-check: setup
	$(PY) protos/generate.py --check

native-check: setup
	@if command -v cargo >/dev/null; then \
		cd native && cargo fmt --check && cargo fmt --check --manifest-path fuzz/Cargo.toml && cargo clippy -q --locked --all-targets -- -D warnings \
			&& cargo test -q --locked -p whimbrel-core && ../$(PY) dependencies.py; \
	else echo "no cargo here: native/ is not checked"; exit $(LANE_REQUIRED); fi

check: fmt-check lint types layers proto-check native-check ## all checks that run no test: format, ruff, mypy, layers, protos, native/

# Plans of parts that run side by side (tools/ci): see `$(PY) -m ci.run --help`.
PLAN_OF_PARTS := PYTHONPATH=services:tests:tools:deploy $(PY) -m ci.run
NAMED = $(if $(PARTS),--parts $(PARTS))

test: setup ## all tests but the slow ones; says first what this machine lacks for some (PARTS="memory spark": a part of them)
	@$(PLAN_OF_PARTS) $(or $(RUN),test) $(NAMED)

nightly: setup ## in full what CI does by shares or leaves out, and note that in .ci/ (PARTS="lane-rules ...": a part of it)
	@$(PLAN_OF_PARTS) nightly $(NAMED)

ci-times: setup ## write docs/ci-times.md: what the parts and tests of the last .ci/run in this clone took
	@$(PLAN_OF_PARTS) times

proto: setup ## generate services/whimbrel/pb from protos/
	$(PY) protos/generate.py

docs-settings: setup ## write docs/settings.md and deploy/config from what the settings of the processes say
	$(BIN)/whimbrel config reference > docs/settings.md
	mkdir -p deploy/config
	for process in nameserver broker replicator; do \
		$(BIN)/whimbrel config example $$process > deploy/config/$$process.toml; done
	$(BIN)/whimbrel config example broker --role slave --id 1 --store /var/lib/whimbrel/broker-a-1 \
		> deploy/config/slave-broker.toml
	$(BIN)/whimbrel config example replicator --role slave --store /var/lib/whimbrel/broker-a-1 \
		> deploy/config/slave-replicator.toml

scenarios: setup ## write what the dialogues of tests/scenario give now; look at the difference before you commit it
	$(PY) -m pytest -q tests/scenario --rewrite

checklist: setup ## write docs/checklist.md and docs/remoting-checklist.md from what the tests say of themselves
	$(PY) tools/checklist.py > docs/checklist.md.part && mv docs/checklist.md.part docs/checklist.md
	$(PY) tools/remoting_checklist.py > docs/remoting.part && mv docs/remoting.part docs/remoting-checklist.md

release: setup ## build wheels, source distribution, bills of materials and checksums into dist/, and try each in an empty environment
	@$(PY) deploy/release.py $(OPTIONS)

up: setup ## build and start the cluster of docker-compose.yml, and say what it took; GROUP=3: a group that elects its leader, with etcd
	@GROUP=$(GROUP) $(PY) deploy/stack.py up

down: setup ## stop it; its stores stay (OPTIONS=-v removes them)
	@GROUP=$(GROUP) $(PY) deploy/stack.py down $(OPTIONS)

logs: setup ## follow its logs
	@GROUP=$(GROUP) $(PY) deploy/stack.py logs -f

clean: ## remove the environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build

include long.mk
