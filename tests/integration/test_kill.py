"""Kill -9 of each process in turn, and of all at once, while the official SDK sends.

No acknowledged message may be missing afterwards, with synchronous flush or with synchronous replication, and
no finding of `histories.py` may stand against what senders and a group of the SDK saw and what the logs hold.
Which process dies when comes from a seed, which stands in the summary of the run with the counts.

    WHIMBREL_FAULT_SEED    repeat a run
    WHIMBREL_FAULT_ROUNDS  how often each process is killed in each mode, default 1; `make faults` takes 10
"""

import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from support import provenance
from support.cluster.processes import Cluster, Process
from support.history.histories import History, Place
from support.history.noting import ACK_WINDOW_S, SETTLE_S
from support.history.sdk_notes import SdkLoad, note_drain, note_sends
from support.store.master_log import records_in_log
from whimbrel.store.verify import verify

ROUNDS = int(os.environ.get("WHIMBREL_FAULT_ROUNDS", "1"))
BROKER, TOPIC, GROUP = "broker-a", "Kill", "killed"
THREADS = 4
STEADY = 50  # messages acknowledged before, and again after, each kill
RECOVERY_S = (
    60.0  # the SDK finds a broker that came back at its next attempt; gRPC backs off for some seconds
)
MESSAGE = 0xDAA320A7
BODY_AT = 84  # of a record with addresses of IPv4: the body's length, and the body


def bodies_in_log(store: Path) -> list[tuple[Place, bytes]]:
    """Return places and bodies of all messages in a commitlog; reads the bytes with nothing of ours."""
    found: list[tuple[Place, bytes]] = []
    for record in records_in_log(store):
        magic, _, queue, _, offset = struct.unpack_from(">IIiiQ", record, 4)
        assert magic == MESSAGE, f"magic {magic:#x}"
        (length,) = struct.unpack_from(">i", record, BODY_AT)
        body = BODY_AT + 4
        found.append(((f"{BROKER}/{TOPIC}", queue, offset), record[body : body + length]))
    return found


MODES = {"flush": {"flush": "sync"}, "replication": {"replication": "sync"}}


def kill(cluster: Cluster, victim: Process | None) -> None:
    """Kill one process, or all at once, and start again what is missing."""
    if victim is None:
        cluster.kill()
    else:
        victim.kill()
    cluster.restart()


@pytest.mark.process
@pytest.mark.timeout(120 + 240 * ROUNDS)
@pytest.mark.parametrize("mode", MODES)
def test_no_acknowledged_message_is_missing_after_kills(
    mode: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    seed = provenance.seed()
    dice = random.Random(seed)
    with Cluster(tmp_path, broker=dict(MODES[mode])) as cluster:
        load = SdkLoad("send", cluster.endpoint, TOPIC, tmp_path, str(THREADS), "inf")
        group = SdkLoad("drain", cluster.endpoint, TOPIC, tmp_path, GROUP)
        kills = 0
        try:
            load.wait_for(STEADY, "the first messages", RECOVERY_S)
            for _ in range(ROUNDS):
                victims: list[Process | None] = [*cluster.processes, None]
                dice.shuffle(victims)
                for victim in victims:
                    load.wait_for(dice.randrange(STEADY), "more messages", RECOVERY_S)
                    kill(cluster, victim)
                    kills += 1
                    name = victim.name if victim else "everything"
                    load.wait_for(STEADY, f"messages after {name} was killed", RECOVERY_S)
            load.end()
            group.wait_for_all(load.sent(), SETTLE_S)
        finally:
            load.end()
            group.end()
        stored = bodies_in_log(cluster.master.store)
        history = History(ack_window_s=ACK_WINDOW_S)
        note_sends(history, load, stored)
        note_drain(history, group, GROUP)
        findings = history.check(complete=stored, groups=[GROUP])
        measured(
            f"seed {seed}, {kills} kills, {history.summary}, {len(stored):,} stored, {len(findings)} findings"
        )
        assert findings == []
        if mode == "replication":
            assert history.check(complete=bodies_in_log(cluster.slaves[0].store)) == []
        codes = cluster.stop()
        assert not any(codes.values()), codes
        for process in cluster.processes:
            assert "Traceback" not in process.log.read_text(), f"{process.name}:\n{process.log_tail(100)}"
        for broker in (cluster.master, *cluster.slaves):
            assert verify(broker.store) == []  # every record is in its queue, and found by its keys
