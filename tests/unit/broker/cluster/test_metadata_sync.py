"""What a slave takes over from its master, and what the master sends."""

from pathlib import Path
from typing import Any

import pytest

from whimbrel.broker.cluster.metadata import EncodedChange, Known, Metadata, MetadataSource
from whimbrel.broker.cluster.metadata_sync import MetadataSync
from whimbrel.broker.cluster.replica_service import MetadataWatches, table_news
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.offset_files import DelayOffsets, OffsetFile
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.tables.versioned import CHANGED_NAMES_MAX
from whimbrel.errors import BadRequest, NotReady, RemoteProtocolError, StoreError
from whimbrel.model.registration import SharedTopics
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.pb.whimbrel.replica.v1 import replica_service_pb2 as replica
from whimbrel.rpc.server.handlers import Call


class Tables:
    def __init__(self, config: Path) -> None:
        self.topics = TopicTable(config, cluster="C", broker_name="a", auto_create=False, clock=lambda: 7)
        self.groups = GroupTable(config, auto_create=False, clock=lambda: 7)
        self.delays = DelayOffsets(config)
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.log_confirmed = 0
        self.given = (0, "{}")
        self.sharing = TopicSharing(self.topics, "a", config)
        self.source = MetadataSource(
            self.topics,
            self.groups,
            self.delays,
            OffsetFile(config),
            lambda: self.offsets,
            confirmed=lambda: self.log_confirmed,
            given_offsets=lambda: self.given,
            sharing=self.sharing,
        )


class FakeOutbox:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.full = False
        self.ended: Exception | None = None

    def send(self, message: Any) -> bool:
        if self.full:
            return False
        self.sent.append(message)
        return True

    def close(self, error: Exception | None = None) -> None:
        self.ended = error


class Slave:
    def __init__(self, config: Path) -> None:
        self.tables = Tables(config)
        self.imported: list[Any] = []
        self.floors: list[str] = []
        self.given: list[tuple[int, str]] = []
        self.confirmed: list[int] = []
        self.sync = MetadataSync(
            self.tables.topics,
            self.tables.groups,
            self.tables.delays,
            address=lambda: "",
            watch=lambda address: pytest.fail("not called"),
            import_offsets=self.imported.append,
            take_deleted_offsets=self.floors.append,
            take_given_offsets=lambda place, text: self.given.append((place, text)),
            confirmed=self.confirmed.append,
            sharing=self.tables.sharing,
        )


def _followed(master: Tables, slave: Slave) -> tuple[Any, FakeOutbox]:
    """Have a slave that takes changes watch a master; it has everything then."""
    watches, handler, outbox = _watching(master)
    handler.received(replica.WatchMetadataRequest(broker_name="a", broker_id=1, takes_changes=True))
    _apply(slave, outbox)
    return watches, outbox


def _apply(slave: Slave, outbox: FakeOutbox) -> list[Any]:
    """Hand what was sent to the slave; return it."""
    taken, outbox.sent = outbox.sent, []
    for response in taken:
        news = Metadata(topics=table_news(response, "topics"), groups=table_news(response, "groups"))
        slave.sync.apply(news)
    return taken


def _watching(master: Tables, *, authoritative: bool = True) -> tuple[MetadataWatches, Any, FakeOutbox]:
    watches = MetadataWatches(
        "a", master.source, authoritative=lambda log_end: authoritative and log_end <= 100
    )
    outbox = FakeOutbox()
    handler = watches.method().open(Call("m", "p", {}, None), outbox)
    return watches, handler, outbox


def test_slave_ends_with_the_masters_tables(tmp_path: Path) -> None:
    master, slave = Tables(tmp_path / "m"), Slave(tmp_path / "s")
    master.topics.add(TopicConfig(name="t"))
    master.groups.add(GroupConfig(name="g"))
    master.delays.replace('{"offsetTable":{1:2}}')
    master.offsets = {("t", "g"): {0: 5}}
    slave.tables.topics.add(TopicConfig(name="deleted"))
    slave.sync.apply(master.source.everything(Known()))
    assert slave.tables.topics.rows == master.topics.rows
    assert slave.tables.groups.rows == master.groups.rows
    assert slave.tables.delays.text == master.delays.text
    assert slave.imported == [{("t", "g"): {0: 5}}]


def test_text_that_is_missing_changes_nothing(tmp_path: Path) -> None:
    slave = Slave(tmp_path)
    before = (slave.tables.topics.rows, slave.tables.groups.rows)
    slave.sync.apply(Metadata())
    assert (slave.tables.topics.rows, slave.tables.groups.rows) == before and not slave.imported


def test_watcher_gets_everything_once_and_then_what_changed(tmp_path: Path) -> None:
    master = Tables(tmp_path)
    watches, handler, outbox = _watching(master)
    handler.received(replica.WatchMetadataRequest(broker_name="a", broker_id=1))
    assert outbox.sent[0].HasField("topics_json") and outbox.sent[0].HasField("offsets_json")
    master.topics.add(TopicConfig(name="t"))
    assert outbox.sent[1].HasField("topics_json") and not outbox.sent[1].HasField("groups_json")
    master.offsets = {("t", "g"): {0: 5}}
    assert len(outbox.sent) == 2
    watches.round()
    assert outbox.sent[2].HasField("offsets_json") and not outbox.sent[2].HasField("topics_json")
    watches.round()  # nothing new, but it says that the master lives
    assert outbox.sent[3] == replica.WatchMetadataResponse()


def test_watcher_that_does_not_read_begins_anew(tmp_path: Path) -> None:
    master = Tables(tmp_path)
    _, handler, outbox = _watching(master)
    handler.received(replica.WatchMetadataRequest(broker_name="a", broker_id=1))
    outbox.full = True
    master.topics.add(TopicConfig(name="t"))
    assert outbox.ended is not None
    outbox.full, count = False, len(outbox.sent)
    master.topics.add(TopicConfig(name="u"))
    assert len(outbox.sent) == count


def test_confirmed_offset_goes_out_alone_and_once(tmp_path: Path) -> None:
    master = Tables(tmp_path / "master")
    slave = Slave(tmp_path / "slave")
    master.log_confirmed = 700
    watches, handler, outbox = _watching(master)
    handler.received(replica.WatchMetadataRequest(broker_name="a", log_end=50))
    assert outbox.sent[0].confirmed_offset == 700
    master.log_confirmed = 900
    watches.confirmed()
    news = outbox.sent[-1]
    assert [field.name for field, _ in news.ListFields()] == ["confirmed_offset"]
    slave.sync.apply(Metadata(confirmed=news.confirmed_offset))
    assert slave.confirmed == [900]
    sent = len(outbox.sent)
    watches.confirmed()
    assert len(outbox.sent) == sent
    watches.round()
    assert len(outbox.sent) == sent + 1 and not outbox.sent[-1].HasField("confirmed_offset")


def test_closed_watch_is_forgotten(tmp_path: Path) -> None:
    master = Tables(tmp_path)
    _, handler, outbox = _watching(master)
    handler.received(replica.WatchMetadataRequest(broker_name="a", broker_id=1))
    handler.closed()
    count = len(outbox.sent)
    master.topics.add(TopicConfig(name="t"))
    assert len(outbox.sent) == count


def test_other_groups_and_masters_in_doubt_are_refused(tmp_path: Path) -> None:
    master = Tables(tmp_path)
    with pytest.raises(BadRequest):
        _watching(master)[1].received(replica.WatchMetadataRequest(broker_name="b"))
    with pytest.raises(NotReady):
        _watching(master)[1].received(replica.WatchMetadataRequest(broker_name="a", log_end=101))
    with pytest.raises(NotReady):
        _watching(master, authoritative=False)[1].received(replica.WatchMetadataRequest(broker_name="a"))


def test_how_far_queues_had_come_goes_out_once_for_each_place_in_the_log(tmp_path: Path) -> None:
    master = Tables(tmp_path / "master")
    slave = Slave(tmp_path / "slave")
    master.given = (1024, '{"t":{"0":5}}')
    watches, handler, outbox = _watching(master)
    handler.received(replica.WatchMetadataRequest(broker_name="a", log_end=50))
    first = outbox.sent[0]
    assert (first.queue_offsets_at, first.queue_offsets_json) == master.given
    master.topics.add(TopicConfig(name="t"))
    watches.round()
    assert not any(message.HasField("queue_offsets_json") for message in outbox.sent[1:])
    master.given = (2048, '{"t":{"0":7}}')
    watches.round()
    assert outbox.sent[-1].queue_offsets_at == 2048
    slave.sync.apply(Metadata(given_offsets=master.given))
    assert slave.given == [master.given]


def test_what_other_brokers_have_goes_out_at_once_and_a_later_master_knows_who_is_away(
    tmp_path: Path,
) -> None:
    master, slave = Tables(tmp_path / "m"), Slave(tmp_path / "s")
    master.topics.add(TopicConfig(name="t"))
    _, handler, outbox = _watching(master)
    handler.received(replica.WatchMetadataRequest(broker_name="a", broker_id=1))
    master.sharing.told("n", SharedTopics(queues={"t": {"b": 4}}, masters={"b": "b:1"}))
    assert not outbox.sent[-1].HasField("topics_json")
    slave.sync.apply(Metadata(shared_topics=outbox.sent[-1].shared_topics_json))
    assert slave.tables.sharing.others == {"t": {"b": 4}}
    slave.sync.apply(Metadata())  # an earlier version's master says nothing of it
    slave.sync.apply(master.source.everything(Known()))
    leading = TopicSharing(slave.tables.topics, "a", tmp_path / "s")
    leading.told("n", SharedTopics(queues={}, masters={}))
    assert leading.others == {"t": {"b": 4}}


def test_a_slave_is_sent_the_rows_that_changed_and_ends_with_the_same_file(tmp_path: Path) -> None:
    master, slave = Tables(tmp_path / "m"), Slave(tmp_path / "s")
    for number in range(100):
        master.topics.add(TopicConfig(name=f"t{number}"))
    _, outbox = _followed(master, slave)
    master.topics.add(TopicConfig(name="new"))
    master.topics.put(TopicConfig(name="t7", read_queues=3, write_queues=3))
    master.topics.remove("t50")
    master.groups.add(GroupConfig(name="g"))
    sent = _apply(slave, outbox)
    assert not any(response.HasField("topics_json") or response.HasField("groups_json") for response in sent)
    assert all(len(response.SerializeToString()) < 600 for response in sent)
    assert slave.tables.topics.rows == master.topics.rows and slave.tables.groups.rows == master.groups.rows
    files = [(tmp_path / where / "topics.json").read_bytes() for where in "ms"]
    assert files[0] == files[1]


def test_a_change_costs_as_many_bytes_with_many_topics_as_with_few(tmp_path: Path) -> None:
    master, slave = Tables(tmp_path / "m"), Slave(tmp_path / "s")
    _, outbox = _followed(master, slave)
    master.topics.add(TopicConfig(name="a00"))
    (few,) = _apply(slave, outbox)
    master.topics.put_all(TopicConfig(name=f"t{number}") for number in range(1_000))
    _apply(slave, outbox)
    master.topics.add(TopicConfig(name="a01"))
    (many,) = _apply(slave, outbox)
    assert many.ByteSize() <= few.ByteSize() + 16


def test_a_slave_that_is_too_far_behind_for_a_change_gets_the_whole_table(tmp_path: Path) -> None:
    master, slave = Tables(tmp_path / "m"), Slave(tmp_path / "s")
    _, outbox = _followed(master, slave)
    master.topics.put_all(TopicConfig(name=f"t{number}") for number in range(CHANGED_NAMES_MAX))
    (sent,) = _apply(slave, outbox)
    assert sent.HasField("topics_json") and not sent.HasField("topics_change")
    assert slave.tables.topics.rows == master.topics.rows


def test_a_change_about_another_version_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    master, slave = Tables(tmp_path / "m"), Slave(tmp_path / "s")
    _, outbox = _followed(master, slave)
    slave.tables.topics.add(TopicConfig(name="adopted"))
    before = dict(slave.tables.topics.rows)
    master.topics.add(TopicConfig(name="t"))
    with pytest.raises(RemoteProtocolError):
        _apply(slave, outbox)
    assert slave.tables.topics.rows == before
    slave.sync.apply(master.source.everything(Known()))  # as the next watch begins
    assert slave.tables.topics.rows == master.topics.rows


@pytest.mark.parametrize("rows", ["{", "[]", '{"t":7}', '{"t":{"readQueueNums":"x"}}'])
def test_a_change_that_is_no_table_s_is_refused(rows: str, tmp_path: Path) -> None:
    slave = Slave(tmp_path)
    version, before = slave.tables.topics.version, dict(slave.tables.topics.rows)
    with pytest.raises(StoreError):
        slave.sync.apply(Metadata(topics=EncodedChange(before=version, after=version.after(9), rows=rows)))
    assert (slave.tables.topics.version, slave.tables.topics.rows) == (version, before)


def test_a_round_sends_no_table_again(tmp_path: Path) -> None:
    master, slave = Tables(tmp_path / "m"), Slave(tmp_path / "s")
    watches, outbox = _followed(master, slave)
    master.topics.add(TopicConfig(name="t"))
    _apply(slave, outbox)
    watches.round()
    assert outbox.sent == [replica.WatchMetadataResponse()]
