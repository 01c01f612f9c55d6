# What takes minutes or hours, and what makes a page of results: included by the Makefile, listed by `make help-long`.
# Every run prints its seed and commit; those that write a page say which.

# Our clients call by grpcio once more where a test says that it matters (docs/testing.md).
OTHER := WHIMBREL_CLIENT_TRANSPORT=grpcio $(PY) -m pytest -q

.PHONY: test-transport test-lane test-all interop official clients4 clients4-record release-check fuzz-fast fuzz-native lane-rules pairs bitrot sim sim-majority sim-elections sim-power soak-sim models faults failovers beside-failovers hostile soak soak-front bench beside bench-spark

test-transport: setup ## only the tests that run with our clients calling by both transports, by both
	$(PY) -m pytest -m "transport and not slow" -q
	$(OTHER) -m "transport and not slow"

test-lane: setup ## all tests with and without the compiled lane, the simulation and the attacks as well
	$(PY) -m pytest -q
	WHIMBREL_TEST_LANE=off $(PY) -m pytest -q
	for lane in auto off; do WHIMBREL_LANE=$$lane $(MAKE) sim SECONDS=240 FIRST=1 COUNT=320; \
		WHIMBREL_TEST_LANE=$$lane $(MAKE) hostile; done

test-all: setup ## all tests, and those that are marked for it with our clients calling by grpcio as well
	$(PY) -m pytest -q
	$(OTHER) -m transport

interop: setup ## only the tests against real RocketMQ
	$(PY) -m pytest -q tests/interop

official: setup ## RocketMQ 4.9.3's own integration tests against ours, and write docs/official.md (ARGS="--servers 4.9.3", ARGS="--classes tag batch")
	PYTHONPATH=services:tests $(PY) -m official.run --page docs/official.md $(ARGS)

clients4: setup ## scenarios of 4.x clients (Java, Go, C++) against ours, compared with what real servers gave (ARGS="--programs go --scenarios push")
	PYTHONPATH=services:tests $(PY) -m clients4.run $(ARGS)

clients4-record: setup ## play these scenarios twice against real RocketMQ 4.9.3 servers, and write tests/clients4/expected.json (ARGS)
	PYTHONPATH=services:tests $(PY) -m clients4.run --servers 4.9.3 --record $(ARGS)

release-check: setup ## build wheel and source distribution, look at their metadata, and run `whimbrel dev` from an empty environment
	$(PY) -m pytest -q -m "" tests/integration/test_release.py

fuzz-fast: setup ## the compiled lane beside Python over generated logs and connections (WHIMBREL_LANE_ROUNDS, WHIMBREL_LANE_SEED)
	@git log -1 --format='commit %h'
	REQUIRE_LANE=1 WHIMBREL_LANE_ROUNDS=$${WHIMBREL_LANE_ROUNDS:-25} $(PY) -m pytest -q -n 2 --timeout 36000 tests/property/test_lane_*.py

fuzz-native: setup ## any bytes for the compiled lane under the address sanitizer: SECONDS=n for each part; needs a nightly compiler
	@git log -1 --format='commit %h'
	@cargo +nightly fuzz --version || { echo "there is no nightly compiler, or no cargo-fuzz: rustup toolchain install nightly; cargo install --locked cargo-fuzz" >&2; exit 1; }
	PYTHONPATH=services:tests $(PY) native/fuzz/seeds.py native/fuzz/corpus
	cd native/fuzz && for target in connection requests frames log replica; do \
		cargo +nightly fuzz run --fuzz-dir . $$target -- -max_total_time=$(or $(SECONDS),60) -max_len=8192 -print_final_stats=1; done

pairs: setup ## what pulls, receives, what settles them, and calls of administrators are answered with each two rules broken at once, all of them; CI plays a part
	@echo "commit $$(git rev-parse --short HEAD)"; ALL_PAIRS=1 $(PY) -m pytest -q --timeout 3600 \
		tests/unit/broker/engine/test_pull_pairs.py tests/unit/broker/engine/test_take_pairs.py tests/unit/broker/engine/test_settle_pairs.py \
		tests/unit/broker/engine/test_position_pairs.py tests/unit/broker/engine/test_table_pairs.py \
		tests/unit/broker/engine/test_letter_pairs.py tests/unit/broker/engine/test_upkeep_pairs.py

lane-rules: setup ## break the rules of the compiled lane one by one: each must be found (SHARE=n: those that have changed, and one of n; RECORD=1 notes them)
	PYTHONPATH=services:tests:tools $(PY) -m lane_rules $(if $(SHARE),--share $(SHARE)) $(if $(RECORD),--record)

bitrot: setup ## flip 10,000 bits at rest, in sealed and in unsealed records (WHIMBREL_BITROT_FLIPS, WHIMBREL_FAULT_SEED)
	WHIMBREL_BITROT_FLIPS=$${WHIMBREL_BITROT_FLIPS:-10000} $(PY) -m pytest -q -s --timeout 3600 tests/property/test_bitrot.py

sim: setup ## a simulated cluster under faults: SEED=n repeats a seed, SECONDS=n runs as many as fit, RULES=1 tests the test (SHARE=n: those that have changed, and one of n; RECORD=1 notes them)
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run $(if $(SEED),$(SEED),$(if $(RULES),--without all --share $(or $(SHARE),1) $(if $(RECORD),--record) --jobs $(or $(JOBS),2), \
		--seconds $(or $(SECONDS),240) --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),0)))

sim-majority: setup ## simulated groups that commit by majority, under faults: SECONDS=n, COUNT=n, FIRST=n, SEED=n repeats one
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run --majority $(if $(SEED),$(SEED), \
		--seconds $(or $(SECONDS),60) --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),0))

sim-elections: setup ## simulated groups that elect their masters, under faults: SECONDS=n, COUNT=n, FIRST=n, SEED=n repeats one, PLAN=voters draws others, RULES=1 tests the test
	@git log -1 --format='commit %h'
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run --elections $(if $(PLAN),--plan $(PLAN)) $(if $(SEED),$(SEED),$(if $(RULES),--without all --share $(or $(SHARE),1) $(if $(RECORD),--record) --jobs $(or $(JOBS),2), \
		--seconds $(or $(SECONDS),60) --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),0)))

sim-power: setup ## 300 simulated clusters whose brokers all lose power: COUNT=n, FIRST=n, SEED=n repeats one
	@git log -1 --format='commit %h'
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run --power $(if $(SEED),$(SEED), \
		--seconds 1000000 --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),300))

soak-sim: setup ## hours of seeds: HOURS=n
	@git log -1 --format='commit %h'
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m sim.run --seconds $$(( $(or $(HOURS),8) * 3600 )) \
		--jobs $(or $(JOBS),2) --first $(or $(FIRST),1000)

models: setup ## models of automatic failover: every small case, then histories for SECONDS=n; SEED=n repeats one, RULES=1 tests the test
	@git log -1 --format='commit %h'
	@PYTHONHASHSEED=0 PYTHONPATH=services:tests $(PY) -m models.run $(if $(SEED),$(SEED),$(if $(RULES),--rules --share $(or $(SHARE),1) $(if $(RECORD),--record) --jobs $(or $(JOBS),2), \
		--seconds $(or $(SECONDS),60) --jobs $(or $(JOBS),2) --first $(or $(FIRST),1) --count $(or $(COUNT),0)))

faults: setup ## kill processes under load, and the whole table of faults with containers (WHIMBREL_FAULT_SEED)
	WHIMBREL_FAULT_ROUNDS=$${WHIMBREL_FAULT_ROUNDS:-10} $(PY) -m pytest -q -s tests/integration/test_kill.py tests/integration/test_kinds_kill.py
	WHIMBREL_FAULT_PAGE=docs/faults.md REQUIRE_DOCKER=1 $(PY) -m pytest -q -s -m "" tests/containers/test_faults.py

failovers: setup ## kill, stop and cut leaders of a group that elects, under load, and write docs/failovers.md: COUNT=n (300, an hour), SEED=n repeats
	PYTHONPATH=services:tests $(PY) -m chaos.run --count $(or $(COUNT),300) $(if $(SEED),--seed $(SEED)) \
		$(if $(FIRST),--first $(FIRST)) --page docs/failovers.md

beside-failovers: setup ## the same faults for ours and for real RocketMQ in controller mode, under four official SDKs (half an hour), and write docs/failovers-beside.md: ROUNDS=n, SEED=n
	PYTHONPATH=services:tests $(PY) -m chaos.beside --rounds $(or $(ROUNDS),3) $(if $(SEED),--seed $(SEED)) --page docs/failovers-beside.md

hostile: setup ## attack a nameserver and a broker as strangers can, and say what that costs them (ATTACKS="--times 1 NAME ...")
	PYTHONPATH=services:tests:tools $(PY) -m hostile.run $(ATTACKS)

soak: setup ## kill -9 the driver of a streaming archive 20 times, and write docs/soak.md (WHIMBREL_FAULT_SEED)
	WHIMBREL_SOAK_KILLS=$${WHIMBREL_SOAK_KILLS:-20} WHIMBREL_SOAK_PAGE=docs/soak.md REQUIRE_SPARK=1 \
		$(PY) -m pytest -q -s tests/spark/test_archive_kills.py

soak-front: setup ## 30 minutes of mixed load on the native transport, and write docs/soak-front.md (WHIMBREL_SOAK_S)
	WHIMBREL_SOAK_S=$${WHIMBREL_SOAK_S:-1800} WHIMBREL_SOAK_PAGE=docs/soak-front.md \
		$(PY) -m pytest -q -s -m "" tests/integration/test_soak_front.py

bench: setup ## tables of our figures beside a real RocketMQ's and the machine's limits (takes an hour)
	$(PY) bench/run.py $(BENCH)

beside: setup ## one table of our wheel of the last `make release`, without and with the lane, beside a warm RocketMQ (BENCH="--only lane 4.9.3 ...")
	$(PY) bench/beside.py --wheels dist $(BENCH)

bench-spark: setup ## what reading topics with Spark costs, as ratios to Parquet and to PullMessage; and the jobs (ten minutes)
	PYTHONPATH=services:tests $(PY) bench/spark_source.py $(BENCH)
	PYTHONPATH=services:tests $(PY) bench/spark_jobs.py
