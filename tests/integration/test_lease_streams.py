"""A stranger at the replica service of real brokers: what it sends stops no group's receives."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api
from support.cluster.processes import Cluster
from support.waiting import until
from whimbrel.broker.consume.lease_codec import EntryEncoder, Lease
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.replica.v1 import replica_service_pb2 as replica

pytestmark = pytest.mark.process

GREATEST = Lease((1 << 64) - 1, 0, 1 << 40, 1 << 40, 1, False, "")
POISON = EntryEncoder("any", "any", 0).lease(0, 0, 1, GREATEST)


def served(cluster: Cluster) -> Iterator[str]:
    """Yield the brokers at which a group receives a message."""
    brokers = {"master": cluster.master, "slave": cluster.slaves[0]}
    for name, broker in brokers.items():
        with (
            grpc.insecure_channel(cluster.master.grpc) as master,
            grpc.insecure_channel(broker.grpc) as channel,
        ):
            sends, receives = Api(master), Api(channel)
            until(partial(sent, sends))
            answer = receives.receive("t", name, poll_s=5)
            assert answer.code == v2.OK and answer.messages
            yield name


def sent(api: Api) -> bool:
    return bool(api.send("t", b"x").status.code == v2.OK)


def send_to(address: str, entries: bytes) -> None:
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.stream_stream(
            "/whimbrel.replica.v1.ReplicaService/SyncLeases",
            request_serializer=replica.SyncLeasesRequest.SerializeToString,
            response_deserializer=replica.SyncLeasesResponse.FromString,
        )
        request = replica.SyncLeasesRequest(
            broker_name="broker-a", broker_id=1, entries=entries, snapshot_done=True
        )
        assert list(call(iter([request]), timeout=10))  # the master's state, and no error


def test_entry_with_the_greatest_serial_stops_neither_master_nor_slave(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        assert list(served(cluster)) == ["master", "slave"]
        send_to(cluster.master.grpc, POISON)
        assert list(served(cluster)) == ["master", "slave"]
        cluster.stop()
        for broker in (cluster.master, *cluster.slaves):
            journal = LeaseJournal(broker.store, file_bytes=8 << 20)
            entries = [*journal.load(), POISON]  # as an earlier version left it
            assert POISON not in entries[:-1]
            journal.start(entries.copy)
            journal.close()
        cluster.restart()
        assert list(served(cluster)) == ["master", "slave"]
        assert "lease entries are left out" in cluster.master.log_tail(1000)
