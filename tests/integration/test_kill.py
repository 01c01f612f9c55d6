"""Kill -9 of each process in turn, and of all at once, while the official SDK sends.

No acknowledged message may be missing afterwards, with synchronous flush or with synchronous replication.
Which process dies when comes from a seed, which stands in the summary of the run with the counts.

    WHIMBREL_FAULT_SEED    repeat a run
    WHIMBREL_FAULT_ROUNDS  how often each process is killed in each mode, default 1; `make faults` takes 10
"""

import os
import random
import re
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import provenance
from processes import Cluster, Process, program, until
from whimbrel.store.verify import verify

HERE = Path(__file__).resolve().parent
ROUNDS = int(os.environ.get("WHIMBREL_FAULT_ROUNDS", "1"))
THREADS = 4
BODY_BYTES = 1024
STEADY = 50  # messages acknowledged before, and again after, each kill
RECOVERY_S = (
    60.0  # the SDK finds a broker that came back at its next attempt; gRPC backs off for some seconds
)
UNIQ_KEY = re.compile(rb"UNIQ_KEY\x01([0-9A-Fa-f]+)")
BLANK = 0xCBD43194  # magic of the record that ends a file
MESSAGE = 0xDAA320A7


def ids_in_log(store: Path) -> list[str]:
    """Return the ids of all messages in a commitlog; reads the bytes with nothing of ours."""
    found = []
    for path in sorted((store / "commitlog").iterdir()):
        data = path.read_bytes()
        position = 0
        while position + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, position)
            if magic == BLANK or size <= 0:
                break
            assert magic == MESSAGE, f"{path.name} at {position}: magic {magic:#x}"
            key = UNIQ_KEY.search(data, position, position + size)
            assert key is not None
            found.append(key[1].decode())
            position += size
    return found


class Load:
    """The sender program."""

    def __init__(self, endpoint: str, root: Path) -> None:
        self.file = root / "acknowledged"
        self.log = root / "sender.log"
        self.sender = program(
            [HERE.parent / "sdk_sender.py", endpoint, "Kill", self.file, str(THREADS), str(BODY_BYTES)],
            self.log,
        )

    def ids(self) -> list[str]:
        """Return the acknowledged ids so far."""
        return self.file.read_text().split() if self.file.exists() else []

    def wait_for(self, more: int, what: str) -> None:
        """Wait until that many more messages have been acknowledged."""
        wanted = len(self.ids()) + more
        try:
            until(lambda: len(self.ids()) >= wanted, timeout=RECOVERY_S, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()[-3000:]}") from None

    def end(self) -> None:
        """End it."""
        self.sender.send_signal(signal.SIGTERM)
        try:
            self.sender.wait(30)
        finally:
            self.sender.kill()
            self.sender.wait()


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
        load = Load(cluster.endpoint, tmp_path)
        kills = 0
        try:
            load.wait_for(STEADY, "the first messages")
            for _ in range(ROUNDS):
                victims: list[Process | None] = [*cluster.processes, None]
                dice.shuffle(victims)
                for victim in victims:
                    load.wait_for(dice.randrange(STEADY), "more messages")
                    kill(cluster, victim)
                    kills += 1
                    load.wait_for(
                        STEADY, f"messages after {victim.name if victim else 'everything'} was killed"
                    )
        finally:
            load.end()
        acknowledged = load.ids()
        stored = ids_in_log(cluster.master.store)
        missing = set(acknowledged) - set(stored)
        measured(
            f"seed {seed}, {kills} kills, {len(acknowledged)} acknowledged, {len(stored)} stored, "
            f"{len(missing)} missing"
        )
        assert not missing
        if mode == "replication":
            assert not set(acknowledged) - set(ids_in_log(cluster.slaves[0].store))
        codes = cluster.stop()
        assert not any(codes.values()), codes
        for process in cluster.processes:
            assert "Traceback" not in process.log.read_text(), f"{process.name}:\n{process.log_tail(100)}"
        for broker in (cluster.master, *cluster.slaves):
            assert verify(broker.store) == []  # every record is in its queue, and found by its keys
