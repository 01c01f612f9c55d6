"""Topics that the queues hold messages of, and the table does not know."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.store.stores import NOW, OPTIONS, make_draft, open_log, open_master
from whimbrel.broker.roles.slave import SlaveRole
from whimbrel.broker.tables.adoption import adopt_topics
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.store.codec import TRANSACTION_COMMIT, RecordDraft, format_properties
from whimbrel.store.slave_store import SlaveStore


def topics_of(root: Path, now: int = NOW - 1) -> TopicTable:
    return TopicTable(
        root / "config", cluster="C", broker_name="broker-a", auto_create=False, clock=lambda: now
    )


def draft(topic: str, queue_id: int = 0, *, sys_flag: int = 0, **properties: str) -> RecordDraft:
    return RecordDraft.from_properties(
        topic=topic,
        queue_id=queue_id,
        body=b"body",
        properties=format_properties(properties.items()),
        born_timestamp=NOW,
        born_host=bytes(8),
        store_host=bytes(8),
        sys_flag=sys_flag,
    )


def test_unknown_topics_are_made_from_their_queues_and_whole_tables_too(tmp_path: Path) -> None:
    topics_of(tmp_path)
    topics = topics_of(tmp_path)  # read from a file that is whole
    version = topics.version
    store = open_master(tmp_path)
    for name, queue_id in (("T", 0), ("T", 5), ("U", 0), ("broker-a", 0)):
        store.append([draft(name, queue_id)])
    before = topics.get("broker-a")
    adopt_topics(topics, store)
    made = topics.get("T")
    assert made is not None and (made.read_queues, made.write_queues, made.permission) == (6, 6, 6)
    assert made.message_type is MessageType.NORMAL
    assert topics.get("U") is not None and topics.get("broker-a") == before
    assert topics.version.counter == version.counter + 1
    store.close()
    assert topics_of(tmp_path).get("T") == made


def test_types_are_those_of_the_messages(tmp_path: Path) -> None:
    topics, store = topics_of(tmp_path), open_master(tmp_path)
    store.append([draft("fifo", __SHARDINGKEY="g")])
    store.append([draft("delayed", TIMER_DELIVER_MS="1800000000000")])
    store.append([draft("transactions", sys_flag=TRANSACTION_COMMIT)])
    store.append([draft("urgent", _SYS_MSG_PRIORITY_="0")])
    store.append([draft("mixed", 0, __SHARDINGKEY="g")])
    store.append([draft("mixed", 1)])
    store.append([draft("%RETRY%g", __SHARDINGKEY="g")])
    adopt_topics(topics, store)
    store.close()
    kinds = {name: row.message_type for name, row in topics.rows.items()}
    assert kinds["fifo"] is MessageType.FIFO
    assert kinds["delayed"] is MessageType.DELAY
    assert kinds["transactions"] is MessageType.TRANSACTION
    assert kinds["urgent"] is MessageType.PRIORITY
    assert kinds["mixed"] is MessageType.MIXED
    assert kinds["%RETRY%g"] is MessageType.NORMAL


def test_queues_that_a_topic_got_after_the_tables_last_change_are_adopted(tmp_path: Path) -> None:
    store = open_master(tmp_path)
    for name in ("grown", "shrunk"):
        store.append([draft(name, 3)])
    older, newer = topics_of(tmp_path / "older", now=NOW - 1), topics_of(tmp_path / "newer", now=NOW + 1)
    for topics in (older, newer):
        topics.add(TopicConfig(name="grown", read_queues=2, write_queues=2))
        adopt_topics(topics, store)
    store.close()
    grown, shrunk = older.get("grown"), newer.get("grown")
    assert grown is not None and (grown.read_queues, grown.write_queues) == (4, 4)
    assert shrunk is not None and (shrunk.read_queues, shrunk.write_queues) == (2, 2)


def test_queues_of_a_deleted_topic_bring_nothing_back_but_those_of_one_made_since_do(tmp_path: Path) -> None:
    store = open_master(tmp_path)
    for number in range(3):
        store.append([make_draft(number, topic="gone")])
        store.append([make_draft(number, topic="again")])
    store.delete_topic("gone")
    store.delete_topic("again")
    store.append([make_draft(topic="again")])
    store.close()
    topics, store = topics_of(tmp_path), open_master(tmp_path)
    adopt_topics(topics, store)
    store.close()
    assert topics.get("gone") is None and topics.get("again") is not None


def test_no_topic_is_made_of_names_that_none_can_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topics, store = topics_of(tmp_path), open_master(tmp_path)
    store.append([draft("no topic!")])
    before = dict(topics.rows)
    adopt_topics(topics, store)
    store.close()
    assert topics.rows == before and "no topic!" in caplog.text


def test_a_slave_adopts_while_it_has_no_master(tmp_path: Path) -> None:
    """A topic that only the log tells of, while the broker runs; its master's table would come first."""
    master = open_master(tmp_path / "master")
    master.append([draft("fresh", 1)])
    log = open_log(tmp_path / "slave")
    slave, topics = SlaveStore.open(tmp_path / "slave", OPTIONS), topics_of(tmp_path / "slave")
    role: Any = SlaveRole.__new__(SlaveRole)
    role.store, role.adopted = slave, 0
    role.context = SimpleNamespace(topics=topics, sessions=SimpleNamespace(sweep=lambda: None))
    role.consumption = SimpleNamespace(sweep=lambda: None)
    role.metadata_sync = SimpleNamespace(synced=True)
    role.kept_log = SimpleNamespace(look=lambda: None)
    log.append_raw(0, master.read_log(0, master.written))
    log.publish()
    while slave.dispatch_ready(1 << 20):
        pass
    role.sweep()
    assert topics.get("fresh") is None
    role.metadata_sync.synced = False
    role.sweep()
    assert topics.get("fresh") is not None
    version = topics.version
    role.sweep()
    assert topics.version == version
    slave.close()
    log.close()
    master.close()
