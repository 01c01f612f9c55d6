"""Lease streams at a master: whose entries it takes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from whimbrel.broker.cluster.replica_service import LeaseStream, LeaseStreams
from whimbrel.broker.consume.lease_codec import EntryEncoder
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.tables.takeovers import Takeovers
from whimbrel.errors import NotReady, RemoteProtocolError
from whimbrel.model.registration import Member
from whimbrel.pb.whimbrel.replica.v1 import replica_service_pb2 as replica
from whimbrel.rpc.server.handlers import Call


class Sent:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> bool:
        self.messages.append(message)
        return True

    def close(self, error: Exception | None = None) -> None:
        pass


def lease_store() -> LeaseStore:
    made = LeaseStore(Mock(**{"load.return_value": []}), broker_id=0, now_ms=lambda: 1_700_000_000_000)
    made.open()
    return made


def hello(takeovers: int = 0) -> replica.SyncLeasesRequest:
    return replica.SyncLeasesRequest(broker_name="broker-a", broker_id=3, log_end=50_792, takeovers=takeovers)


def acknowledged_to(offset: int) -> replica.SyncLeasesRequest:
    return replica.SyncLeasesRequest(entries=EntryEncoder("g", "t", 0).done(0, 0, offset), snapshot_done=True)


def streams(
    store: LeaseStore, shares_log: Callable[[Member], bool], takeovers: Takeovers | None = None
) -> LeaseStreams:
    return LeaseStreams(
        "broker-a",
        store,
        settled=lambda: True,
        authoritative=lambda: True,
        shares_log=shares_log,
        on_merged=lambda: None,
        on_report=lambda _, __: None,
        takeovers=takeovers or Mock(count=0),
    )


async def opened(to: LeaseStreams) -> LeaseStream:
    made = to.method().open(Call("SyncLeases", "10.0.0.3:40000", {}, None), Sent())
    assert isinstance(made, LeaseStream)
    made.received(hello())
    return made


def test_entries_of_a_slave_with_another_log_are_not_taken() -> None:
    """An old master came back as a slave: what it knows as acknowledged are other messages here."""
    store, asked = lease_store(), []

    def shares_log(slave: Member) -> bool:
        asked.append((slave.broker_id, slave.address, slave.log_end))
        return False

    async def main() -> None:
        to = streams(store, shares_log)
        stream = await opened(to)
        with pytest.raises(NotReady, match="log is a part"):
            stream.received(acknowledged_to(8))
        assert not to.merged

    asyncio.run(main())
    assert asked == [(3, "10.0.0.3:40000", 50_792)]
    assert store.table.state("g", "t", 0).next == 0


def test_entries_of_a_slave_with_our_log_are_taken() -> None:
    store = lease_store()

    async def main() -> None:
        to = streams(store, lambda _: True)
        (await opened(to)).received(acknowledged_to(8))
        assert to.merged == 1

    asyncio.run(main())
    assert store.table.state("g", "t", 0).next == 8


def pair_streams(root: Path, *, shared: bool) -> tuple[LeaseStreams, Takeovers]:
    takeovers = Takeovers(root)
    takeovers.lead(int)
    return streams(lease_store(), lambda _: shared, takeovers), takeovers


def test_both_sides_learn_how_often_masters_have_changed(tmp_path: Path) -> None:
    async def main() -> None:
        to, _ = pair_streams(tmp_path, shared=True)
        another, sent = Sent(), Sent()
        for outbox, count in ((another, 0), (sent, 4)):
            stream = to.method().open(Call("SyncLeases", "10.0.0.3:40000", {}, None), outbox)
            stream.received(hello(takeovers=count))
        assert [message.takeovers for message in sent.messages] == [0, 0]
        stream.received(acknowledged_to(8))
        for outbox in (another, sent):
            assert max(message.takeovers for message in outbox.messages) == 5, "above that of another master"

    asyncio.run(main())
    assert Takeovers(tmp_path).count == 5


def test_counts_of_who_is_not_known_to_share_the_log_or_that_nobody_has_are_not_taken(tmp_path: Path) -> None:
    async def main() -> None:
        for shared, count, error in ((False, 4, NotReady), (True, 1 << 40, RemoteProtocolError)):
            to, takeovers = pair_streams(tmp_path, shared=shared)
            stream = to.method().open(Call("SyncLeases", "10.0.0.3:40000", {}, None), Sent())
            stream.received(hello(takeovers=count))
            with pytest.raises(error):
                stream.received(acknowledged_to(8))
            assert takeovers.count == 0 and to.lease_store.table.state("g", "t", 0).next == 0

    asyncio.run(main())
