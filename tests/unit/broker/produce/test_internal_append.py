"""Records that the broker itself makes: what they keep, and when their cause may be marked done."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from support.store.stores import NOW, make_draft, open_master
from whimbrel.broker.produce import internal_append
from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.internal_append import InternalAppender, onward_draft
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import NoReplica, ReplicaTimeout, StoreFull, Throttled, WhimbrelError
from whimbrel.store.codec import RecordDraft, StoredMessage, decode_record, pack_host
from whimbrel.store.master_store import Appended

HOST = pack_host("10.0.0.9", 8091)


class Done(list[WhimbrelError | None]):
    """What was reported, in order."""


@dataclass(frozen=True)
class Target:
    topic: str = "%DLQ%g"
    added: tuple[tuple[str, str], ...] = ()
    removed: frozenset[str] = frozenset()
    reconsume_times: int | None = None


@dataclass
class Appends:
    """An appender that stores nothing, and confirms when it is told to."""

    waits: bool = False
    refusal: WhimbrelError | None = None
    drafts: list[RecordDraft] = field(default_factory=list)
    waiting: list[Callable[[WhimbrelError | None], None]] = field(default_factory=list)

    def append(self, drafts: list[RecordDraft]) -> list[Appended]:
        if self.refusal is not None:
            raise self.refusal
        self.drafts += drafts
        return [Appended(0, 0, 100, NOW, 100 * len(self.drafts))]

    def when_durable(self, end: int, answer: Callable[[WhimbrelError | None], None]) -> None:
        assert end == 100 * len(self.drafts)
        self.waiting.append(answer)


@pytest.fixture
def topics(tmp_path: Path) -> TopicTable:
    return TopicTable(tmp_path / "config", cluster="c", broker_name="b", auto_create=False, clock=lambda: NOW)


def internal(topics: TopicTable, appends: Appends) -> InternalAppender:
    return InternalAppender(topics, cast(RecordAppender, appends), store_host=lambda: HOST)


def test_cause_is_done_only_when_the_record_is_durable(topics: TopicTable) -> None:
    appends, done = Appends(waits=True), Done()
    appender = internal(topics, appends)
    appender.append(make_draft(0), done.append)
    assert (len(appends.drafts), appender.in_flight, done) == (1, 1, [])
    appends.waiting.pop()(None)
    assert (appender.in_flight, done) == (0, [None])


def test_without_synchronous_flush_or_replication_it_is_done_at_once(topics: TopicTable) -> None:
    done = Done()
    internal(topics, Appends()).append(make_draft(0), done.append)
    assert done == [None]


def test_record_that_is_not_confirmed_leaves_its_cause_undone(topics: TopicTable) -> None:
    appends, done = Appends(waits=True), Done()
    internal(topics, appends).append(make_draft(0), done.append)
    late = ReplicaTimeout("too few slaves")
    appends.waiting.pop()(late)
    assert done == [late]


@pytest.mark.parametrize("error", [NoReplica("0 of 1"), StoreFull("no room")])
def test_refusal_is_reported_and_never_raised(topics: TopicTable, error: WhimbrelError) -> None:
    done = Done()
    internal(topics, Appends(refusal=error)).append(make_draft(0), done.append)
    assert done == [error]


def test_records_that_wait_are_bounded(topics: TopicTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internal_append, "IN_FLIGHT_MAX", 2)
    appends, done = Appends(waits=True), Done()
    appender = internal(topics, appends)
    for number in range(3):
        appender.append(make_draft(number), done.append)
    assert len(appends.drafts) == 2
    assert [type(error) for error in done] == [Throttled]
    appends.waiting.pop(0)(None)
    appender.append(make_draft(3), done.append)
    assert len(appends.drafts) == 3


def stored(folder: Path, draft: RecordDraft) -> StoredMessage:
    """Return a draft as the message that a store gives back."""
    with closing(open_master(folder / "store")) as store:
        (place,) = store.append([draft])
        return decode_record(store.read(place.physical_offset, place.size))


def test_message_that_is_handed_on_keeps_its_body_birth_and_compression(
    topics: TopicTable, tmp_path: Path
) -> None:
    draft = make_draft(7)
    draft.born_host, draft.flag, draft.sys_flag = pack_host("10.1.2.3", 4567), 5, 1
    draft.properties = b"UNIQ_KEY\x01id-7\x02TAGS\x01red\x02DELAY\x013\x02"
    target = Target(added=(("RETRY_TOPIC", "orders"),), removed=frozenset({"DELAY"}), reconsume_times=16)
    appends, done = Appends(), Done()
    internal(topics, appends).hand_on(stored(tmp_path, draft), target, done.append)
    (onward,) = appends.drafts
    assert done == [None]
    assert (onward.topic, onward.body, onward.flag, onward.sys_flag) == ("%DLQ%g", draft.body, 5, 1)
    assert (onward.born_timestamp, onward.born_host) == (draft.born_timestamp, draft.born_host)
    assert (onward.store_host, onward.reconsume_times) == (HOST, 16)
    assert onward.properties == b"UNIQ_KEY\x01id-7\x02TAGS\x01red\x02RETRY_TOPIC\x01orders\x02"
    assert onward.keys[0] == "id-7"


def test_added_property_replaces_the_one_of_its_name(tmp_path: Path) -> None:
    draft = make_draft(1)
    draft.properties = b"UNIQ_KEY\x01id-1\x02RETRY_TOPIC\x01first\x02"
    onward = onward_draft(stored(tmp_path, draft), Target(added=(("RETRY_TOPIC", "second"),)), 0, HOST)
    assert onward.properties == b"UNIQ_KEY\x01id-1\x02RETRY_TOPIC\x01second\x02"


def test_properties_that_are_kept_are_kept_byte_by_byte(tmp_path: Path) -> None:
    draft = make_draft(1)
    draft.properties = b"UNIQ_KEY\x01id-1\x02latin\x01\xe9\x02empty\x01\x02DELAY\x010"
    onward = onward_draft(stored(tmp_path, draft), Target(removed=frozenset({"DELAY"})), 0, HOST)
    assert onward.properties == b"UNIQ_KEY\x01id-1\x02latin\x01\xe9\x02empty\x01\x02"


def test_missing_topic_is_made_and_a_system_topic_is_no_obstacle(topics: TopicTable, tmp_path: Path) -> None:
    appends, done = Appends(), Done()
    appender = internal(topics, appends)
    message = stored(tmp_path, make_draft(0))
    for name in ("%DLQ%g", "rmq_sys_wheel_timer"):
        appender.hand_on(message, Target(topic=name), done.append)
        made = topics.get(name)
        assert made is not None and (made.read_queues, made.write_queues) == (1, 1)
    assert done == [None, None]
    assert [draft.topic for draft in appends.drafts] == ["%DLQ%g", "rmq_sys_wheel_timer"]


def test_topic_that_can_not_be_written_down_is_reported(
    topics: TopicTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = StoreFull("no room for topics.json")

    def refuse(_: Any) -> None:
        raise full

    monkeypatch.setattr(topics, "put", refuse)
    appends, done = Appends(), Done()
    internal(topics, appends).hand_on(stored(tmp_path, make_draft(0)), Target(), done.append)
    assert (done, appends.drafts) == ([full], [])
