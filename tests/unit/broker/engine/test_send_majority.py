"""What sends wait for where the leader is elected, beside their records: a majority that knows of topics."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import NOW, StoreAppender
from support.store.stores import open_master
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.engine.message import NewMessage
from whimbrel.broker.engine.send import Elsewhere, Send, SendRules, Sends, Sent
from whimbrel.broker.engine.send_back import SendBacks
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.remoting.sends import REMOTING_SENDS
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import FlushTimeout, GroupNotFound, NotReady, NotWritable, QueueNotFound, TopicNotFound
from whimbrel.model.topic import GroupConfig, TopicConfig


class Rig:
    """A leader of three, which has changed a topic of which nobody else knows yet."""

    def __init__(self, root: Path, *, auto_create: bool = True) -> None:
        self.store = open_master(root / "store")
        self.appender = StoreAppender(self.store)
        topics = TopicTable(root, cluster="C", broker_name="b", auto_create=auto_create, clock=lambda: NOW)
        topics.put(TopicConfig(name="t", read_queues=2, write_queues=2))
        groups = GroupTable(root, auto_create=False, clock=lambda: NOW)
        self.newest = 1
        self.quorum = StateQuorum(
            "topics", others=(2, 3), copies=2, newest=lambda: self.newest, own=lambda: self.newest,
            clock=lambda: 0.0, timeout_s=3.0,
        )  # fmt: skip
        self.sends = Sends(
            topics,
            GroupCreation(topics, groups, master=True, clock=lambda: 0.0),
            self.appender,
            cluster="C",
            store_host=bytes(8),
            clock=lambda: NOW,
            majority=self.quorum,
        )

    def send(self, topic: str = "t", queue: int = 0, rules: SendRules = REMOTING_SENDS) -> Any:
        message = NewMessage(topic, b"x", NOW, {"UNIQ_KEY": "id"})
        return self.sends.send(Send(rules, topic, [message], bytes(8), queue=queue))

    def others_know(self) -> None:
        self.quorum.stored(2, self.newest)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.store.close()


def test_a_send_waits_while_tables_are_on_their_way(rig: Rig) -> None:
    """It may have made its topic."""
    held = rig.send()
    assert isinstance(held, Deferred) and not held.done
    rig.others_know()
    assert isinstance(held.result, Sent) and held.result.error is None
    assert isinstance(rig.send(), Sent)  # mostly it waits for nothing else


def test_a_send_that_waits_for_the_disk_waits_for_both(rig: Rig) -> None:
    rig.appender.waits = True
    held = rig.send()
    (on_disk,) = rig.appender.waiting
    on_disk(None)
    assert not held.done
    rig.others_know()
    assert isinstance(held.result, Sent)
    later = rig.send()
    assert not later.done
    rig.appender.waiting[1](None)
    assert isinstance(later.result, Sent)


def test_who_waits_for_a_majority_that_does_not_come_may_have_stored_it(rig: Rig) -> None:
    held = rig.send()
    rig.quorum.close("the leader stops")
    assert held.error is not None and held.error.effect == "unknown"
    assert rig.store.queue_range("t", 0) == (0, 1)


def test_that_there_is_no_topic_is_told_once_a_majority_knows_as_much(tmp_path: Path) -> None:
    rig = Rig(tmp_path, auto_create=False)
    held = rig.send("none")
    assert isinstance(held, Deferred) and not held.done
    rig.others_know()
    assert isinstance(held.error, TopicNotFound)
    with pytest.raises(TopicNotFound):
        rig.send("none")
    rig.store.close()


def test_other_refusals_wait_for_nobody(rig: Rig) -> None:
    with pytest.raises(QueueNotFound):
        rig.send(queue=9)
    rig.appender.refusal = "another member leads"
    with pytest.raises(NotWritable):
        rig.send()


def test_whose_queue_it_is_is_told_at_once(rig: Rig) -> None:
    """The other broker stores it, and its answer waits for a majority of its own group."""

    def elsewhere(sends: Sends, send: Send) -> None:
        send.elsewhere = Elsewhere("b", 3)

    check = replace(REMOTING_SENDS.checks[-1], name="elsewhere", run=elsewhere)
    rules = SendRules(
        checks=(check,), each=(), record_limits=True, permission=False, limited=False,
        group_topics=False, writable_first=False,
        no_topic="",
    )  # fmt: skip
    message = NewMessage("t", b"x", NOW, {})
    send = Send(rules, "t", [message], bytes(8))
    send.batch = True  # more than plain, so that the check is run
    assert rig.sends.send(send) == Elsewhere("b", 3)


class Back:
    """A message that comes back to a group."""

    group, level, retries_max = "g", 0, None

    def __init__(self, place: int = 0, group: str = "g") -> None:
        self.place, self.group = place, group


def backs_of(rig: Rig, why: str = "") -> SendBacks:
    creation = rig.sends.creation
    creation.groups.put(GroupConfig(name="g"))
    internal = InternalAppender(rig.sends.topics, rig.appender, store_host=lambda: bytes(8))
    return SendBacks(creation, rig.store, internal, levels=18, majority=rig.quorum, not_serving=lambda: why)


def test_what_comes_back_waits_for_its_topic_and_the_disk(rig: Rig) -> None:
    rig.send()
    rig.appender.waits = True
    held = backs_of(rig).take(Back())
    assert held is not None and "%RETRY%g" in rig.sends.topics.rows
    rig.appender.waiting[0](None)
    assert not held.done
    rig.others_know()
    assert (held.done, held.result, held.error) == (True, None, None)
    later = backs_of(rig).take(Back())
    assert later is not None and not later.done
    rig.appender.waiting[1](FlushTimeout("late"))
    assert isinstance(later.result, FlushTimeout)


def test_that_there_is_no_group_is_told_once_a_majority_knows_as_much(rig: Rig) -> None:
    held = backs_of(rig).take(Back(group="none"))
    assert held is not None and not held.done
    rig.others_know()
    assert isinstance(held.error, GroupNotFound)


def test_nothing_comes_back_before_the_leader_knows_its_groups(rig: Rig) -> None:
    with pytest.raises(NotReady, match="too few members"):
        backs_of(rig, "too few members").take(Back(group="none"))
