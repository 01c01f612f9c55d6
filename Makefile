# `make run` shows the whole thing, `make test` tests it; both set up their environment first.
# Needs Python 3.11 or later and nothing else; interop tests also need java and mvn, and are skipped without.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

UV_VERSION := 0.13.9
# Its linker makes a wheel for systems with an older C library than this one's.
MATURIN := maturin[zig]==1.16.0
BIN := .venv/bin
PY := $(BIN)/python
CODE := services tests tools examples bench deploy docs native/dependencies.py native/fuzz/seeds.py protos/generate.py

# The first interpreter that is new enough.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)

UV = $$(command -v uv || echo $(BIN)/uv)
LANE_REQUIRED = $(if $(REQUIRE_LANE),1,0)

# A uv that is already there is used, else the pinned one is installed into .venv. --inexact keeps it there.
define sync
	@if [ -z "$(PYTHON)" ]; then echo "whimbrel needs Python 3.11 or later on the PATH" >&2; exit 1; fi
	@echo "making .venv from uv.lock: half a minute, longer without a cache of packages"
	@uv=$$(command -v uv || true); \
	if ! "$${uv:-false}" --version >/dev/null 2>&1; then \
		[ -x $(PY) ] || $(PYTHON) -m venv .venv; \
		[ -x $(BIN)/uv ] || $(PY) -m pip install -q --disable-pip-version-check uv==$(UV_VERSION); \
		uv=$(BIN)/uv; \
	fi; \
	[ -x $(PY) ] || "$$uv" venv -q --python $(PYTHON) .venv; \
	env -u VIRTUAL_ENV "$$uv" sync -q --frozen --inexact --python $(PY) $(1)
	@env -u PYTHONDONTWRITEBYTECODE $(PY) -c "import $(COMPILED)"
	@touch $@
endef

# Compiled once, so that a cluster starts in half the time also where no bytecode is written later.
COMPILED := typer._adapters, uvloop, whimbrel.cli.main, whimbrel.cli.dev, whimbrel.cli.dev_view, whimbrel.nameserver.__main__, \
	whimbrel.broker.program, whimbrel.replicator.program, whimbrel.rpc.server.native, whimbrel.client.sync, \
	whimbrel.rpc.client.native_streams, whimbrel.testing.host

.PHONY: native-check test-lane fuzz-fast fuzz-native lane-rules wheel up down logs help setup fmt fmt-check lint types layers docs-settings proto proto-check check test test-transport test-all scenarios checklist interop official clients4 clients4-record faults \
	run bench beside bench-spark bitrot sim models failovers beside-failovers sim-power sim-majority sim-elections soak-sim soak soak-front hostile release-check clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/.run: uv.lock pyproject.toml
	$(call sync,--no-dev --group demo)

.venv/.dev: uv.lock pyproject.toml
	$(call sync,--group dev)
	@touch .venv/.run

# The compiled lane (docs/lane.md), built again when one of its sources has changed, where `cargo` is.
NATIVE := $(shell find native \( -name target -o -name fuzz \) -prune -o -type f -print)
.venv/.lane: .venv/.dev $(NATIVE)
	@if command -v cargo >/dev/null; then \
		echo "building the compiled lane: half a minute the first time"; \
		$(UV) pip install -q --python $(PY) --no-deps ./native || \
			{ echo "the compiled lane can't be built, see above; all works without it" >&2; exit $(LANE_REQUIRED); }; \
	fi
	@touch $@

setup: .venv/.dev .venv/.lane ## make .venv with all that development needs

run: .venv/.run ## start a cluster, send, receive, lose the master, receive from the slave
	@$(PY) examples/tour.py

fmt: setup ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix -q $(CODE) || true
	$(BIN)/ruff format -q $(CODE)

fmt-check: setup
	$(BIN)/ruff format --check -q $(CODE)

lint: setup ## ruff
	$(BIN)/ruff check $(CODE)

types: setup ## mypy --strict
	$(BIN)/mypy services/whimbrel services/pyspark_whimbrel tests tools examples bench/run.py bench/raw.py bench/gate.py bench/scale.py bench/beside.py bench/beside_systems.py bench/beside_tables.py bench/bulk_reading.py bench/replicator_catchup.py bench/spark_jobs.py bench/spark_source.py native/dependencies.py native/fuzz/seeds.py deploy/stack.py deploy/etcd.py deploy/healthcheck.py deploy/try_wheels.py

layers: setup ## who may import whom
	$(BIN)/lint-imports

docs-settings: setup ## write docs/settings.md and deploy/config from what the settings of the processes say
	$(BIN)/whimbrel config reference > docs/settings.md
	mkdir -p deploy/config
	for process in nameserver broker replicator; do \
		$(BIN)/whimbrel config example $$process > deploy/config/$$process.toml; done
	$(BIN)/whimbrel config example broker --role slave --id 1 --store /var/lib/whimbrel/broker-a-1 \
		> deploy/config/slave-broker.toml
	$(BIN)/whimbrel config example replicator --role slave --store /var/lib/whimbrel/broker-a-1 \
		> deploy/config/slave-replicator.toml

proto: setup ## generate services/whimbrel/pb from protos/
	$(PY) protos/generate.py

proto-check: setup ## fail when the generated code is not what the protos say
	$(PY) protos/generate.py --check

native-check: setup ## rustfmt, clippy without warnings and tests of native/, where cargo is; and what it depends on
	@if command -v cargo >/dev/null; then \
		cd native && cargo fmt --check && cargo fmt --check --manifest-path fuzz/Cargo.toml && cargo clippy -q --locked --all-targets -- -D warnings \
			&& cargo test -q --locked -p whimbrel-core && ../$(PY) dependencies.py; \
	else echo "no cargo here: native/ is not checked"; exit $(LANE_REQUIRED); fi

check: fmt-check lint types layers proto-check native-check ## all checks that run no test

# The transport that is not the default serves once more where a test says that it matters (docs/testing.md).
OTHER := WHIMBREL_TEST_TRANSPORT=other $(PY) -m pytest -q

# These share the cores; what runs containers, Spark or real RocketMQ brokers has the machine to itself.
IN_MEMORY := tests/unit tests/property tests/scenario
# RocketMQ's own tests and clients mostly wait.
PROCESSES := tests/integration tests/official tests/clients4
ALONE := $(addprefix --ignore=,$(IN_MEMORY) $(PROCESSES))

test: setup ## all tests but the slow ones; with real RocketMQ where java and mvn are present
	$(PY) -m pytest -m "not slow" -q -n 2 $(IN_MEMORY)
	$(PY) -m pytest -m "not slow" -q -n 2 $(PROCESSES)
	$(PY) -m pytest -m "not slow" -q $(ALONE)
	$(OTHER) -m "transport and not slow" --ignore=tests/spark --ignore=tests/containers

test-transport: setup ## only the tests that run behind both transports, behind both
	$(PY) -m pytest -m "transport and not slow" -q
	$(OTHER) -m "transport and not slow"

test-lane: setup ## all tests with and without the compiled lane, the simulation and the attacks as well
	$(PY) -m pytest -q
	WHIMBREL_TEST_LANE=off $(PY) -m pytest -q
	for lane in auto off; do WHIMBREL_LANE=$$lane $(MAKE) sim SECONDS=240 FIRST=1 COUNT=320; \
		WHIMBREL_TEST_LANE=$$lane $(MAKE) hostile; done

fuzz-fast: setup ## the compiled lane beside Python over generated logs and connections (WHIMBREL_LANE_ROUNDS, WHIMBREL_LANE_SEED)
	@git log -1 --format='commit %h'
	REQUIRE_LANE=1 WHIMBREL_LANE_ROUNDS=$${WHIMBREL_LANE_ROUNDS:-25} $(PY) -m pytest -q -n 2 --timeout 36000 tests/property/test_lane_*.py

fuzz-native: setup ## any bytes for the compiled lane under the address sanitizer: SECONDS=n for each part; needs a nightly compiler
	@git log -1 --format='commit %h'
	@cargo +nightly fuzz --version || { echo "there is no nightly compiler, or no cargo-fuzz: rustup toolchain install nightly; cargo install --locked cargo-fuzz" >&2; exit 1; }
	PYTHONPATH=services:tests $(PY) native/fuzz/seeds.py native/fuzz/corpus
	cd native/fuzz && for target in connection requests frames log replica; do \
		cargo +nightly fuzz run --fuzz-dir . $$target -- -max_total_time=$(or $(SECONDS),60) -max_len=8192 -print_final_stats=1; done

lane-rules: setup ## break the rules of the compiled lane one by one: each must be found (SHARE=n: one of n of them)
	$(PY) tools/lane_rules.py $(if $(SHARE),--share $(SHARE))

test-all: setup ## all tests, behind both transports
	$(PY) -m pytest -q
	$(OTHER)

scenarios: setup ## write what the dialogues of tests/scenario give now; look at the difference before you commit it
	$(PY) -m pytest -q tests/scenario --rewrite

checklist: setup ## write docs/checklist.md and docs/remoting-checklist.md from what the tests say of themselves
	$(PY) tools/checklist.py > docs/checklist.md.part && mv docs/checklist.md.part docs/checklist.md
	$(PY) tools/remoting_checklist.py > docs/remoting.part && mv docs/remoting.part docs/remoting-checklist.md

official: setup ## RocketMQ 4.9.3's own integration tests against ours, and write docs/official.md (ARGS="--servers 4.9.3", ARGS="--classes tag batch")
	PYTHONPATH=services:tests $(PY) -m official.run --page docs/official.md $(ARGS)

clients4: setup ## scenarios of 4.x clients (Java, Go, C++) against ours, compared with what real servers gave (ARGS="--programs go --scenarios push")
	PYTHONPATH=services:tests $(PY) -m clients4.run $(ARGS)

clients4-record: setup ## play these scenarios twice against real RocketMQ 4.9.3 servers, and write tests/clients4/expected.json (ARGS)
	PYTHONPATH=services:tests $(PY) -m clients4.run --servers 4.9.3 --record $(ARGS)

interop: setup ## only the tests against real RocketMQ
	$(PY) -m pytest -q tests/interop

faults: setup ## kill processes under load, and the whole table of faults with containers (WHIMBREL_FAULT_SEED)
	WHIMBREL_FAULT_ROUNDS=$${WHIMBREL_FAULT_ROUNDS:-10} $(PY) -m pytest -q -s tests/integration/test_kill.py tests/integration/test_kinds_kill.py
	WHIMBREL_FAULT_PAGE=docs/faults.md REQUIRE_DOCKER=1 $(PY) -m pytest -q -s -m "" tests/containers/test_faults.py

bitrot: setup ## flip 10,000 bits at rest, in sealed and in unsealed records (WHIMBREL_BITROT_FLIPS, WHIMBREL_FAULT_SEED)
	WHIMBREL_BITROT_FLIPS=$${WHIMBREL_BITROT_FLIPS:-10000} $(PY) -m pytest -q -s --timeout 3600 tests/property/test_bitrot.py

soak: setup ## kill -9 the driver of a streaming archive 20 times, and write docs/soak.md (WHIMBREL_FAULT_SEED)
	WHIMBREL_SOAK_KILLS=$${WHIMBREL_SOAK_KILLS:-20} WHIMBREL_SOAK_PAGE=docs/soak.md REQUIRE_SPARK=1 \
		$(PY) -m pytest -q -s tests/spark/test_archive_kills.py

sim: setup ## a simulated cluster under faults: SEED=n repeats a seed, SECONDS=n runs as many as fit, RULES=1 tests the test (SHARE=n: one of n of the rules)
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run $(if $(SEED),$(SEED),$(if $(RULES),--without all --share $(or $(SHARE),1) --jobs $(or $(JOBS),2), \
		--seconds $(or $(SECONDS),240) --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),0)))

models: setup ## models of automatic failover: every small case, then histories for SECONDS=n; SEED=n repeats one, RULES=1 tests the test
	@git log -1 --format='commit %h'
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m models.run $(if $(SEED),$(SEED),$(if $(RULES),--rules --jobs $(or $(JOBS),2), \
		--seconds $(or $(SECONDS),60) --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),0)))

failovers: setup ## kill, stop and cut leaders of a group that elects, under load, and write docs/failovers.md: COUNT=n (300, an hour), SEED=n repeats
	PYTHONPATH=services:tests $(PY) -m chaos.run --count $(or $(COUNT),300) $(if $(SEED),--seed $(SEED)) \
		$(if $(FIRST),--first $(FIRST)) --page docs/failovers.md

beside-failovers: setup ## the same faults for ours and for real RocketMQ in controller mode, under four official SDKs (half an hour), and write docs/failovers-beside.md: ROUNDS=n, SEED=n
	PYTHONPATH=services:tests $(PY) -m chaos.beside --rounds $(or $(ROUNDS),3) $(if $(SEED),--seed $(SEED)) --page docs/failovers-beside.md

sim-power: setup ## 300 simulated clusters whose brokers all lose power: COUNT=n, FIRST=n, SEED=n repeats one
	@git log -1 --format='commit %h'
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run --power $(if $(SEED),$(SEED), \
		--seconds 1000000 --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),300))

sim-majority: setup ## simulated groups that commit by majority, under faults: SECONDS=n, COUNT=n, FIRST=n, SEED=n repeats one
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run --majority $(if $(SEED),$(SEED), \
		--seconds $(or $(SECONDS),60) --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),0))

sim-elections: setup ## simulated groups that elect their masters, under faults: SECONDS=n, COUNT=n, FIRST=n, SEED=n repeats one, PLAN=voters draws others, RULES=1 tests the test
	@git log -1 --format='commit %h'
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run --elections $(if $(PLAN),--plan $(PLAN)) $(if $(SEED),$(SEED),$(if $(RULES),--without all --share $(or $(SHARE),1) --jobs $(or $(JOBS),2), \
		--seconds $(or $(SECONDS),60) --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),0)))

soak-sim: setup ## hours of seeds: HOURS=n
	@git log -1 --format='commit %h'
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run --seconds $$(( $(or $(HOURS),8) * 3600 )) \
		--jobs $(or $(JOBS),2) --first $(or $(FIRST),1000)

soak-front: setup ## 30 minutes of mixed load on the native transport, and write docs/soak-front.md (WHIMBREL_SOAK_S)
	WHIMBREL_SOAK_S=$${WHIMBREL_SOAK_S:-1800} WHIMBREL_SOAK_PAGE=docs/soak-front.md \
		$(PY) -m pytest -q -s -m "" tests/integration/test_soak_front.py

hostile: setup ## attack a nameserver and a broker as strangers can, and say what that costs them (ATTACKS="--times 1 NAME ...")
	PYTHONPATH=services:tests:tools $(PY) -m hostile.run $(ATTACKS)

up: setup ## build and start the cluster of docker-compose.yml, and say what it took; GROUP=3: a group that elects its leader, with etcd
	@GROUP=$(GROUP) $(PY) deploy/stack.py up

down: setup ## stop it; its stores stay (OPTIONS=-v removes them)
	@GROUP=$(GROUP) $(PY) deploy/stack.py down $(OPTIONS)

logs: setup ## follow its logs
	@GROUP=$(GROUP) $(PY) deploy/stack.py logs -f

bench: setup ## tables of our figures beside a real RocketMQ's and the machine's limits (takes an hour)
	$(PY) bench/run.py $(BENCH)

beside: wheel ## one table of our wheels, without and with the lane, beside a warm RocketMQ (BENCH="--only lane 4.9.3 ...")
	$(PY) bench/beside.py --wheels dist $(BENCH)

bench-spark: setup ## what reading topics with Spark costs, as ratios to Parquet and to PullMessage; and the jobs (ten minutes)
	PYTHONPATH=services:tests $(PY) bench/spark_source.py $(BENCH)
	PYTHONPATH=services:tests $(PY) bench/spark_jobs.py

release-check: setup ## build wheel and source distribution, look at their metadata, and run `whimbrel dev` from an empty environment
	$(PY) -m pytest -q -m "" tests/integration/test_release.py

wheel: setup ## build the wheels into dist/, the compiled lane's where cargo is, and try them in empty environments
	rm -rf dist && mkdir dist
	$(UV) build -q --wheel --out-dir dist .
	if command -v cargo >/dev/null; then cd native && uv=$$(command -v uv || echo ../$(BIN)/uv); \
		"$$uv" tool run -q --from '$(MATURIN)' maturin build -q --release --locked --zig --compatibility manylinux_2_17 --out ../dist; \
		else echo "no cargo here: no wheel of the compiled lane"; fi
	$(PY) deploy/try_wheels.py dist

clean: ## remove the environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
