"""Kill -9 of each process in turn while messages of all kinds are sent and consumed; rules are in `kinds.py`.

WHIMBREL_FAULT_SEED    repeat a run
WHIMBREL_FAULT_ROUNDS  how often each process is killed, default 1; `make faults` takes 10
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support import provenance
from support.cluster.processes import SERVICES, Cluster
from support.history.kinds import KindsLoad, messages_in_log
from support.waiting import until

ROUNDS = int(os.environ.get("WHIMBREL_FAULT_ROUNDS", "1"))
STEADY = 15  # messages of each kind acknowledged before, and again after, each kill
SETTLE_S = 90.0
BROKER: dict[str, object] = {
    "replication": "sync",
    "transaction_timeout_ms": 2000,
    "transaction_check_interval_ms": 1000,
}


@pytest.mark.process
@pytest.mark.timeout(240 + 240 * ROUNDS)
def test_all_kinds_keep_their_promises_after_kills(tmp_path: Path, measured: Callable[[str], None]) -> None:
    seed = provenance.seed()
    dice = random.Random(seed)
    with Cluster(tmp_path, broker=BROKER) as cluster:
        cluster.wait_usable()
        with KindsLoad(cluster.master.grpc, seed) as load:
            load.wait_for(STEADY, "the first messages")
            for _ in range(ROUNDS):
                victims = list(cluster.processes)
                dice.shuffle(victims)
                for victim in victims:
                    load.wait_for(dice.randrange(STEADY), "more messages")
                    victim.kill()
                    cluster.restart()
                    load.wait_for(STEADY, f"messages after {victim.name} was killed")
            load.stop_sending()
            load.settle(SETTLE_S)
        findings = load.check(messages_in_log(cluster.master.store))
        measured(
            f"seed {seed}, {ROUNDS * len(cluster.processes)} kills, {load.summary}, {len(findings)} findings"
        )
        assert findings == []
        for process in cluster.processes:
            assert "Traceback" not in process.log.read_text(), f"{process.name}:\n{process.log_tail(100)}"


@pytest.mark.process
@pytest.mark.slow  # some twenty seconds, for the test of a test
@pytest.mark.timeout(240)
def test_an_invisible_time_that_is_too_short_is_noticed(tmp_path: Path) -> None:
    """A broker that lets messages come again after a third of their invisible time."""
    services = tmp_path / "services"
    shutil.copytree(SERVICES, services, ignore=shutil.ignore_patterns("__pycache__"))
    plan = services / "whimbrel" / "broker" / "consume" / "plan.py"
    rule = "(RENEW_MS if invisible_ms is None else invisible_ms)"
    assert plan.read_text().count(rule) == 1
    plan.write_text(
        plan.read_text().replace(rule, "(RENEW_MS if invisible_ms is None else invisible_ms // 3)")
    )
    with Cluster(tmp_path, broker=BROKER, start=False) as cluster:
        cluster.start()
        cluster.master.kill()
        cluster.master.services = services
        cluster.restart()
        cluster.wait_usable()
        with KindsLoad(cluster.master.grpc, provenance.seed()) as load:
            until(
                lambda: any("before its invisible time" in one for one in load.findings),
                timeout=60,
                what=lambda: f"a finding; there are {load.findings[:5]}",
            )
