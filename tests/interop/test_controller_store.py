"""A store of RocketMQ's controller mode becomes a member's of a group that elects its leader, and goes back.

Both write `epochFileCheckpoint`. On the way back `whimbrel store export` makes one epoch of the list, since a
broker of theirs does not lead as it should where the list is ahead of its controller (`broker/export.py`).
"""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from support.cluster.elections import ElectedGroup, Member, bodies_of
from support.systems.real_broker import Controller, Remoting, Server, broker, name_server, need_kit
from support.waiting import until
from whimbrel.broker.export import export
from whimbrel.ha.epochs import Epochs
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.codec import decode_record
from whimbrel.store.epoch_file import EpochFile

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.slow]

VERSION = "5.3.3"
QUEUES = 4
IN_STEP_S = 60.0


def theirs(root: Path, names: Server, controller: Controller) -> Server:
    """Describe a broker in controller mode whose files have the sizes of the group's."""
    return broker(
        VERSION, root, "ASYNC_MASTER", names.address, enableControllerMode="true",
        fetchControllerAddrByDnsLookup="false", controllerAddr=controller.address,
        mappedFileSizeCommitLog=1 << 20, mappedFileSizeConsumeQueue=20_000, maxHashSlotNum=5000,
        maxIndexNum=20_000,
    )  # fmt: skip


def send(server: Server, *bodies: bytes) -> None:
    """Send to a broker of theirs as soon as it leads."""
    for number, body in enumerate(bodies):

        def taken(body: bytes = body, queue_id: int = number % QUEUES) -> bool:
            with suppress(AssertionError, OSError), Remoting(server.address) as connection:
                connection.send("t", body, queue_id=queue_id)
                return True
            return False

        until(taken, timeout=IN_STEP_S, every_s=0.2, what="a broker that leads")


def send_ours(member: Member, bodies: list[bytes]) -> None:
    """Send to a member that leads."""
    peer = member.peer
    for body in bodies:
        assert peer.send("t", body).status.code == v2.OK


def pulled(server: Server) -> list[bytes]:
    """Return all bodies that a broker of theirs serves."""
    found = []
    with Remoting(server.address) as connection:
        for queue_id in range(QUEUES):
            offset = 0
            while records := connection.pull("reader", "t", queue_id, offset):
                at = 0
                while at < len(records):
                    record = decode_record(records, at)
                    found.append(record.body)
                    offset, at = record.queue_offset + 1, at + record.size
    return sorted(found)


def epochs(store: Path) -> Epochs:
    return EpochFile(store).load()


def move(source: Path, target: Path) -> None:
    """Give a store at rest to somebody else; locks of processes that have ended stay behind."""
    for name in ("lock", "abort"):
        (source / name).unlink(missing_ok=True)
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))


@pytest.mark.timeout(240)
def test_a_store_of_controller_mode_is_ours_and_goes_back(tmp_path: Path) -> None:
    need_kit()
    names, controller = name_server(VERSION, tmp_path / "names"), Controller(tmp_path / "controller")
    before = [b"theirs-%d" % number for number in range(20)]
    between = [b"ours-%d" % number for number in range(20)]
    after = [b"theirs-again-%d" % number for number in range(8)]
    with names:
        controller.start()
        try:
            server = theirs(tmp_path / "broker", names, controller)
            server.start()
            send(server, *before)
            server.stop()
            given = epochs(server.store)
            assert given and given[0][1] == 0

            store = tmp_path / "group" / "store-1"
            move(server.store, store)
            with ElectedGroup(tmp_path / "group", members=1) as group:
                member = group.await_leader()
                assert sorted(bodies_of(member.peer)) == sorted(before)
                send_ours(member, between)
                assert sorted(bodies_of(member.peer)) == sorted(before + between)
                log_end = member.view().log_end
                member.broker.stop()
                member.replicator.stop()
            ours = epochs(store)
            assert ours[: len(given)] == given, "their epochs stay"
            assert len(ours) > len(given) and ours[-1][0] > given[-1][0]

            exported = tmp_path / "exported"
            export(store, to=exported)
            assert epochs(store) == ours and epochs(exported) == ((1, 0),)
            shutil.rmtree(server.store)
            move(exported, server.store)
            server.start()
            send(server, *after)
            assert pulled(server) == sorted(before + between + after)
            server.stop()
            first, last = epochs(server.store)
            assert first == (1, 0) and last[1] == log_end, "their leader begins where ours has ended"
        finally:
            controller.kill()
