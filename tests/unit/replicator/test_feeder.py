"""A master's replicator and those who connect to it: who gets a slot, and what counts as an acknowledgement.

Hosts are addresses of the loopback network.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.lane.logs import lane_or_skip
from support.replication.replica_shell import play
from support.store.master_log import MasterLog
from whimbrel.ha.frames import REPORT
from whimbrel.lane import Lane
from whimbrel.machine import Machine
from whimbrel.replicator.feeder import DISPLACED_AFTER_S, SILENT_MAX, SILENT_S, Feeder
from whimbrel.replicator.loop import Loop
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.store.page_cells import SLAVES_MAX

TURNS_MAX = 2000
STRANGER, SLAVE, OTHER = "127.0.0.66", "127.0.0.1", "127.0.0.2"


class Stage:
    """The feeder over a log that the test writes, and its peers."""

    def __init__(self, root: Path, stack: contextlib.ExitStack, lane: Lane | None = None) -> None:
        self.stack = stack
        self.now = 1000.0
        self.master = stack.enter_context(MasterLog(root, file_size=65536))
        self.end = self.master.append(5)
        machine = Machine(lane=lane or Lane("off"))
        self.loop = stack.enter_context(contextlib.closing(Loop(root, machine)))
        self.shell = play(self.loop, lambda: self.now)
        self.page = self.loop.page
        options = ReplicatorOptions(role="master", store=str(root), port=0)
        self.feeder = Feeder(self.loop, options, clock=lambda: self.now)
        stack.callback(self.feeder.close, "the test is over")

    def turns(self, done: Callable[[], bool]) -> None:
        """Run the feeder until something is so."""
        for _ in range(TURNS_MAX):
            by_lane = self.feeder.run_lane(self.now)
            self.feeder.step(self.now)
            if done():
                return
            if not by_lane:
                self.loop.turn(0.001, self.feeder.idle)
        raise AssertionError("it never happened")

    def connect(self, host: str = SLAVE) -> socket.socket:
        """Connect from a host; nothing is reported yet."""
        before = len(self.feeder.silent)
        full = before >= SILENT_MAX
        known = list(self.feeder.silent)
        peer = socket.create_connection(("127.0.0.1", self.feeder.port), timeout=10, source_address=(host, 0))
        peer.setblocking(False)
        self.stack.callback(peer.close)
        if not full:
            self.turns(lambda: len(self.feeder.silent) > before)
        else:
            self.turns(lambda: self.feeder.silent != known or closed(peer))
        return peer

    def reported(self, peer: socket.socket, offset: int) -> bool:
        """Let a peer report an end; return whether it is served."""
        peer.sendall(REPORT.pack(offset))
        name = "{}:{}".format(*peer.getsockname())
        shown: list[str] = []

        def dealt_with() -> bool:
            shown[:] = self.page.peers
            slot = shown.index(name) if name in shown else -1
            return closed(peer) if slot < 0 else self.page.acks[slot] == offset

        self.turns(dealt_with)
        return name in shown

    def slave(self, host: str = SLAVE) -> socket.socket:
        """Connect from a host and report the log's end."""
        peer = self.connect(host)
        assert self.reported(peer, self.end)
        return peer

    def hosts(self) -> list[str]:
        """Return the hosts that have a slot."""
        return sorted(peer.rpartition(":")[0] for peer in self.page.peers if peer)


def closed(peer: socket.socket) -> bool:
    """Tell whether the other end has closed a connection; what came before is dropped."""
    try:
        while data := peer.recv(1 << 16):
            del data
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.fixture(params=["python", "lane"])
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        yield Stage(tmp_path, stack, lane_or_skip() if request.param == "lane" else None)


def test_a_connection_that_reports_nothing_has_no_slot_and_is_closed(stage: Stage) -> None:
    peer = stage.connect()
    assert stage.hosts() == []
    stage.now += SILENT_S
    stage.turns(lambda: True)
    assert not closed(peer)  # a slave of RocketMQ's speaks up after 5 s
    stage.now += 0.1
    stage.turns(lambda: closed(peer))


def test_a_connection_that_reports_byte_by_byte_has_no_more_time(stage: Stage) -> None:
    peer = stage.connect()
    for byte in REPORT.pack(0)[:4]:
        stage.now += SILENT_S / 4
        peer.sendall(bytes([byte]))
        stage.turns(lambda: True)
    stage.now += 0.1
    stage.turns(lambda: closed(peer))


def test_silent_connections_keep_nobody_out(stage: Stage) -> None:
    silent = [stage.connect(STRANGER) for _ in range(SILENT_MAX)]
    stage.now += DISPLACED_AFTER_S
    stage.slave(OTHER)
    assert closed(silent[0]) and not closed(silent[1])
    assert stage.hosts() == [OTHER]


def test_silent_connections_keep_known_hosts_out_at_no_time(stage: Stage) -> None:
    stage.page.known_hosts = [SLAVE]
    silent = [stage.connect(STRANGER) for _ in range(SILENT_MAX)]
    extra = stage.connect(STRANGER)
    assert closed(extra)
    stage.slave(SLAVE)
    assert closed(silent[0])


def test_slots_are_kept_for_known_slaves(stage: Stage) -> None:
    stage.page.known_hosts = [SLAVE, OTHER]
    for _ in range(SLAVES_MAX - 2):
        stage.slave(STRANGER)
    assert not stage.reported(stage.connect(STRANGER), stage.end)
    stage.slave(SLAVE)
    assert not stage.reported(stage.connect(STRANGER), stage.end)
    stage.slave(OTHER)
    assert len(stage.hosts()) == SLAVES_MAX


def test_a_slave_that_the_broker_has_come_to_know_gets_a_strangers_slot(stage: Stage) -> None:
    strangers = [stage.slave(STRANGER) for _ in range(SLAVES_MAX)]
    assert not stage.reported(stage.connect(SLAVE), stage.end)
    stage.page.known_hosts = [SLAVE]
    stage.slave(SLAVE)
    assert closed(strangers[-1]) and not closed(strangers[0])


def test_a_known_slave_takes_the_place_of_its_own_half_open_connections(stage: Stage) -> None:
    stage.page.known_hosts = [SLAVE]
    before = [stage.slave(SLAVE) for _ in range(SLAVES_MAX)]
    stage.slave(SLAVE)
    assert closed(before[0]) and not closed(before[1])


def test_a_report_acknowledges_once_it_covers_what_was_sent(stage: Stage) -> None:
    peer = stage.slave()
    assert stage.page.live_acks() == [] and stage.page.reported_ends() == [stage.end]
    end = stage.master.append(1)
    stage.turns(lambda: stage.page.sent[0] == end)
    assert stage.reported(peer, end)
    assert stage.page.live_acks() == [end]


def test_who_claims_more_than_there_is_is_heard_from_known_hosts_only(stage: Stage) -> None:
    page = stage.page
    page.known_hosts = [SLAVE]
    assert not stage.reported(stage.connect(SLAVE), stage.end + 7)
    assert (page.refused_peer, page.refused_offset, page.refused_count) == (SLAVE, stage.end + 7, 1)
    assert not stage.reported(stage.connect(STRANGER), stage.end + 1000)
    assert (page.refused_peer, page.refused_offset, page.refused_count) == (SLAVE, stage.end + 7, 2)


def test_slots_are_about_the_epoch_they_are_fed_from(stage: Stage) -> None:
    peer = stage.slave()
    end = stage.master.append(1)
    stage.turns(lambda: stage.page.sent[0] == end)
    stage.reported(peer, end)
    assert stage.page.acknowledged(1) == end
    stage.master.reopen()  # the replicator has not turned since
    assert stage.page.acks[0] == end and stage.page.acknowledged(1) == -1
    stage.turns(lambda: closed(peer))
    assert stage.page.fed_epoch == stage.page.epoch
