"""Reading in bulk from running brokers: what a plain pull gives, where it is confirmed, in flat memory."""

import contextlib
import signal
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api, message, queue
from support.cluster.processes import Cluster, Process
from support.waiting import until
from whimbrel.errors import BeyondConfirmed, IllegalOffset, QueueNotFound, TopicNotFound, Unavailable
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.api.bulk_calls import (
    BrokerQueues,
    OutboundStream,
    QueueOffsets,
    RecordFrame,
    checksum_log,
    describe_queues,
    open_bulk_channel,
    read_records,
    stream_blocking,
)
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.store.bulk_source import confirmed_end
from whimbrel.store.codec import StoredMessage, decode_record

pytestmark = pytest.mark.process

MIB = 1 << 20
TOPIC = "bulk"
LARGE: dict[str, object] = {"commitlog_file_size": 64 * MIB}
# What a reader that has stopped reading may cost a broker: measured 3 MiB.
STALLED_BYTES_MAX = 6 * MIB


class Peer(Api):
    """Calls to one broker, in bulk and otherwise."""

    def __init__(self, process: Process) -> None:
        super().__init__(
            grpc.insecure_channel(process.grpc, options=[("grpc.max_receive_message_length", 130 * MIB)])
        )
        self.process = process
        self.bulk = open_bulk_channel(process.grpc)

    def describe(self) -> BrokerQueues:
        return perform_blocking(self.bulk, describe_queues(), (), 10)

    def offsets(self, topic: str = TOPIC) -> dict[int, QueueOffsets]:
        return {
            one.queue_id: one
            for found in self.describe().topics
            if found.name == topic
            for one in found.queues
        }

    def all(self, call: OutboundStream[Any]) -> list[Any]:
        return list(stream_blocking(self.bulk, call, timeout_s=20))

    def records(self, queue_id: int, start: int = 0, **fields: Any) -> list[StoredMessage]:
        return decoded(self.all(read_records(TOPIC, queue_id, start=start, **fields)))

    def pulled(self, queue_id: int, offset: int = 0, expression: str = "*") -> list[Any]:
        """Pull a queue as a client does."""
        found: list[Any] = []
        while True:
            frames = self(
                "PullMessage",
                group=v2.Resource(name="puller"),
                message_queue=queue(TOPIC, queue_id),
                offset=offset,
                batch_size=32,
                filter_expression=v2.FilterExpression(type=v2.TAG, expression=expression),
            )
            assert frames[0].status.code == v2.OK, frames[0].status
            found += [frame.message for frame in frames if frame.HasField("message")]
            if frames[-1].next_offset == offset:
                return found
            offset = frames[-1].next_offset

    def written(self) -> int:
        return self.describe().log_written

    def confirmed(self) -> int:
        return self.describe().log_confirmed


def decoded(frames: Sequence[RecordFrame]) -> list[StoredMessage]:
    found = []
    for frame in frames:
        at = 0
        while at < len(frame.records):
            found.append(decode_record(frame.records, at))
            at += found[-1].size
    return found


def resident(process: Process) -> int:
    """Return the bytes of memory that are a process's own."""
    for line in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


def usable(cluster: Cluster) -> tuple[Peer, Peer]:
    cluster.wait_usable()
    return Peer(cluster.master), Peer(cluster.slaves[0])


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, slaves=1, broker=LARGE) as running:
        yield running


@pytest.mark.transport
def test_bulk_reading_gives_what_pulling_gives_on_master_and_slave(large: Cluster) -> None:
    master, slave = usable(large)
    sizes = [10, 900, 20_000, 4 * MIB, 100, 4 * MIB, 1, 300_000]
    for number, size in enumerate(sizes * 3):
        sent = master.send(
            TOPIC, b"%d." % number + bytes(size)[: max(size - 3, 1)], tag="odd even".split()[number % 2]
        )
        assert sent.status.code == v2.OK
    end = master.written()
    until(lambda: slave.confirmed() == master.confirmed() == end, timeout=15, what="all of it confirmed")
    assert master.describe().topics == slave.describe().topics
    for queue_id, one in master.offsets().items():
        assert one.min_offset == 0 and one.confirmed_offset == one.max_offset
        pulled = master.pulled(queue_id)
        assert len(pulled) == one.max_offset
        for broker in (master, slave):
            frames = broker.all(read_records(TOPIC, queue_id, start=0))
            assert all(len(frame.records) <= MIB or len(decoded([frame])) == 1 for frame in frames), (
                "only a record that is larger goes alone in a larger frame"
            )
            found = decoded(frames)
            assert [record.body for record in found] == [got.body for got in pulled]
            assert [record.queue_offset for record in found] == list(range(one.max_offset))
            ids = [record.properties["UNIQ_KEY"] for record in found]
            assert ids == [got.system_properties.message_id for got in pulled]
            middle = one.max_offset // 2
            assert broker.records(queue_id, middle, end=middle + 2) == found[middle : middle + 2]
            tagged = broker.records(queue_id, tags="odd")
            assert [record.body for record in tagged] == [
                got.body for got in master.pulled(queue_id, 0, "odd")
            ]
    for broker in (master, slave):
        assert confirmed_end(broker.process.store) == end


def test_refusals_are_named(large: Cluster) -> None:
    master, slave = usable(large)
    master.send(TOPIC, b"one")
    until(lambda: slave.confirmed() == master.written(), timeout=10)
    (held,) = [one.queue_id for one in master.offsets().values() if one.max_offset]
    for broker in (master, slave):
        with pytest.raises(TopicNotFound):
            broker.all(read_records("unknown", 0, start=0))
        with pytest.raises(QueueNotFound):
            broker.all(read_records(TOPIC, 99, start=0))
        with pytest.raises(IllegalOffset, match="ends at 1 here"):
            broker.all(read_records(TOPIC, held, start=2))
    large.slaves[0].kill()
    with pytest.raises(Unavailable):
        slave.all(read_records(TOPIC, held, start=0))


def test_checksums_of_master_and_slave_are_the_same_and_those_of_their_files(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=1) as cluster:  # log files of 1 MiB
        master, slave = usable(cluster)
        for number in range(40):
            master.send(TOPIC, b"%d" % number * 30_000)
        end = master.written()
        until(lambda: slave.confirmed() == end, timeout=10, what="all of it confirmed")
        chunks = master.all(checksum_log(chunk_bytes=100_000))
        theirs = slave.all(checksum_log(chunk_bytes=100_000))
        assert [(one.offset, one.size, one.crc32) for one in chunks] == [
            (one.offset, one.size, one.crc32) for one in theirs
        ]
        log = b"".join(path.read_bytes() for path in sorted((slave.process.store / "commitlog").iterdir()))
        assert len(log) > MIB and sum(one.size for one in chunks) == end
        assert all(one.crc32 == zlib.crc32(log[one.offset : one.offset + one.size]) for one in chunks)


def test_synchronous_pair_serves_only_what_both_hold(tmp_path: Path) -> None:
    settings: dict[str, object] = {"replication": "sync", "slave_timeout_ms": 500}
    with Cluster(tmp_path, slaves=1, broker=settings) as cluster:
        master, slave = usable(cluster)
        until(lambda: master.send(TOPIC, b"0").status.code == v2.OK, timeout=10, what="a send that holds")
        both = master.written()
        until(lambda: master.confirmed() == slave.confirmed() == both, timeout=5)
        replicator = cluster.slave_replicators[0]
        replicator.signal(signal.SIGSTOP)
        late = master("SendMessage", messages=[message(TOPIC, b"1", queue_id=0)])
        assert late.status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
        assert master.confirmed() == both < master.written()
        (queue_id,) = [
            one.queue_id for one in master.offsets().values() if one.confirmed_offset < one.max_offset
        ]
        one = master.offsets()[queue_id]
        assert len(master.records(queue_id)) == one.confirmed_offset == one.max_offset - 1
        assert len(master.records(queue_id, isolation="latest")) == one.max_offset
        with pytest.raises(BeyondConfirmed):
            master.records(queue_id, end=one.max_offset)
        with pytest.raises(BeyondConfirmed):
            master.all(checksum_log(0, master.written()))
        replicator.kill()
        until(lambda: not master.administer("DescribeReplication").slaves, timeout=5, what="the lost slave")
        assert master.confirmed() == slave.confirmed() == both  # with nobody in sync: unchanged
        cluster.master.kill()
        cluster.master.start()
        until(lambda: usable_again(master), timeout=10, what="the master")
        assert master.confirmed() == both  # and a restart does not change it
        assert len(master.records(queue_id)) == one.confirmed_offset
        replicator.start()
        until(
            lambda: master.confirmed() == slave.confirmed() == master.written(), timeout=10, what="both again"
        )
        assert master.records(queue_id) == slave.records(queue_id, end=one.max_offset)


def usable_again(peer: Peer) -> bool:
    try:
        return bool(peer.describe().topics)
    except Unavailable:
        return False


def test_slave_that_holds_more_serves_only_what_all_hold(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=2) as cluster:
        cluster.wait_usable()
        master, near, far = (Peer(process) for process in (cluster.master, *cluster.slaves))
        master.send(TOPIC, b"0")
        all_hold = master.written()
        until(lambda: master.confirmed() == near.confirmed() == far.confirmed() == all_hold, timeout=10)
        until(lambda: len(master.administer("DescribeReplication").slaves) == 2, timeout=10)
        hung = cluster.slave_replicators[1]
        hung.signal(signal.SIGSTOP)
        sent = [master.send(TOPIC, b"%d" % number).entries[0] for number in range(1, 9)]
        assert len(sent) == 8
        until(lambda: near.written() == master.written() > all_hold, timeout=10, what="the near slave's copy")
        until(lambda: sum(one.max_offset for one in near.offsets().values()) == 9, timeout=10)
        assert near.confirmed() == master.confirmed() == all_hold
        for broker in (master, near):
            ranges = broker.offsets()
            assert sum(one.confirmed_offset for one in ranges.values()) == 1
            assert sum(len(broker.records(queue_id)) for queue_id in ranges) == 1
            assert sum(len(broker.records(queue_id, isolation="latest")) for queue_id in ranges) == 9
            assert confirmed_end(broker.process.store) == all_hold
        hung.signal(signal.SIGCONT)
        until(
            lambda: master.confirmed() == near.confirmed() == far.confirmed() == master.written(),
            timeout=10,
            what="all of it confirmed",
        )


def test_slave_serves_what_is_confirmed_while_its_master_is_gone_and_after_a_restart(large: Cluster) -> None:
    master, slave = usable(large)
    for number in range(20):
        master.send(TOPIC, b"%d" % number)
    end = master.written()
    until(lambda: slave.confirmed() == end, timeout=10, what="all of it confirmed")
    wanted = {queue_id: master.records(queue_id) for queue_id in master.offsets()}
    assert sum(map(len, wanted.values())) == 20
    large.master.kill()
    large.master_replicator.kill()
    assert {queue_id: slave.records(queue_id) for queue_id in wanted} == wanted
    slave.process.kill()
    slave.process.start()
    until(lambda: usable_again(slave), timeout=10, what="the slave")
    assert slave.confirmed() == end
    assert {queue_id: slave.records(queue_id) for queue_id in wanted} == wanted


def test_readers_that_stop_reading_cost_a_bounded_amount_of_memory(large: Cluster) -> None:
    master, _ = usable(large)
    for _ in range(100):
        assert master.send(TOPIC, bytes(MIB)).status.code == v2.OK
    before = resident(large.master)
    with contextlib.ExitStack() as open_ones:
        readers = []
        for number in range(12):
            channel = open_ones.enter_context(open_bulk_channel(large.master.grpc))
            reader = stream_blocking(channel, read_records(TOPIC, number % 4, start=0))
            readers.append(open_ones.enter_context(contextlib.closing(reader)))
        for reader in readers:
            next(reader)
        assert master.send("other", b"x").status.code == v2.OK  # nobody else has to wait
        for _ in range(10):
            for reader in readers:
                next(reader)
            assert resident(large.master) - before < 12 * STALLED_BYTES_MAX
