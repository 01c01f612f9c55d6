"""Replicators of a group that commits by majority as real processes; the test plays the brokers."""

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster.processes import Process
from support.replication.member_pair import begin_epoch
from support.store.master_log import MasterLog, same_log
from support.waiting import until
from whimbrel.ha.switching import DIALECT
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.shared_page import SharedPage

pytestmark = pytest.mark.process

FILE = 65536
MEMBERS = (2, 3)
APPEND_S = 0.002


class Leader:
    """A master's log that grows, with a leader's epochs, beats and commit offset of two among three."""

    def __init__(self, master: MasterLog, slaves: list[SharedPage]) -> None:
        self.master, self.page, self.slaves = master, master.page, slaves
        self.chance = random.Random(5)
        self.enough = threading.Event()
        self.epoch, self.committed = 0, 0
        self.beyond: list[tuple[int, int]] = []  # commit offsets heard that were not committed
        self.page.ha_dialect = DIALECT
        self.begin()

    def begin(self) -> None:
        """Begin the next epoch."""
        self.epoch += 1
        begin_epoch(self.master.root, self.page, self.epoch, self.master.end)

    def tick(self) -> None:
        """Do what a broker does in a turn."""
        saw = self.page.newest_connection()  # before what was acknowledged
        self.page.broker_beat_ns = time.monotonic_ns()
        acks = dict(self.page.member_acks())
        best = max((acks.get(member, -1) for member in MEMBERS), default=-1)
        self.committed = max(self.committed, best)  # with the leader's own copy, two of three
        heard = [page.heard_commit for page in self.slaves]
        self.beyond += [(commit, self.committed) for commit in heard if commit > self.committed]
        self.page.commit = self.committed
        self.page.commit_saw = saw

    def run(self) -> None:
        """Write until it is enough."""
        while not self.enough.wait(APPEND_S):
            self.tick()
            self.master.append(self.chance.randrange(1, 10), body_bytes=self.chance.randrange(2000))

    def goes_on(self) -> None:
        """Wait until more is committed than now."""
        before = self.committed
        until(lambda: self.committed > before, what="the commit offset moving")

    def settle(self) -> None:
        """Tick without writing until everybody holds and has heard all."""

        def settled() -> bool:
            self.tick()
            end = self.master.end
            return all(page.written == page.heard_commit == end for page in self.slaves)

        until(settled, what="all members having heard that all is committed")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterLog]:
    with MasterLog(tmp_path / "master", file_size=FILE) as made:
        yield made


def test_logs_epochs_and_commit_offsets_agree_whatever_is_killed(tmp_path: Path, master: MasterLog) -> None:
    roots = [tmp_path / f"member-{member}" for member in MEMBERS]
    pages = [SharedPage.open(root) for root in roots]
    for member, page in zip(MEMBERS, pages, strict=True):
        page.broker_id, page.ha_dialect = member, DIALECT
    leader = Leader(master, pages)
    ours = Process(tmp_path, "replicator", "feeder", role="master", store=master.root).start()
    members = [
        Process(
            tmp_path,
            "replicator",
            root.name,
            role="slave",
            store=root,
            master_ha=ours.ha,
            commitlog_file_size=FILE,
        ).start()
        for root in roots
    ]
    with ours, members[0], members[1]:
        for victim in (members[0], ours, members[1], None, ours, members[0]):
            leader.enough.clear()
            writer = threading.Thread(target=leader.run)
            writer.start()
            try:
                leader.goes_on()
                if victim is not None:
                    victim.kill()
                    victim.start()
                    leader.goes_on()
            finally:
                leader.enough.set()
                writer.join()
            if victim is None:  # the master's broker is killed: it comes back with all, in a new epoch
                master.reopen()
                leader.begin()
        leader.settle()
        assert leader.beyond == []
        for root in roots:
            assert same_log(master.root, root, master.end)
            assert EpochFile(root).load() == EpochFile(master.root).load()
        assert [page.heard_epoch for page in pages] == [2, 2]
        assert sorted(dict(master.page.member_acks())) == [*MEMBERS]
    for page in pages:
        page.close()
