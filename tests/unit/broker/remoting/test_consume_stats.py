"""How far groups are, as tools of RocketMQ show it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.remoting.handlers import FakePeer
from support.remoting.tables import Broker, Later, json_of
from support.store.stores import NOW
from whimbrel.broker.engine.tables import TableChanges
from whimbrel.broker.remoting import consume_stats
from whimbrel.broker.remoting.consume_stats import RemotingConsumeStats
from whimbrel.broker.remoting.traffic import GOT
from whimbrel.deferred import Deferred
from whimbrel.rpc.remoting.handlers import Reply


class Rig(Broker):
    """Topic T has two queues, with five messages in queue 0; group G stands at 2 there."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.later = Later()
        self.service = RemotingConsumeStats(
            TableChanges(self.topics, self.groups, self.consumption, self.store, master=True),
            self.clients,
            self.positions,
            self.traffic,
            broker_name="broker-a",
            address=lambda: "10.0.0.1:8081",
            wall_ms=lambda: NOW + 5000,
            soon=lambda callback: self.later(0, callback),
        )
        self.handles = self.service.handles()
        self.topic(queues=2)
        self.group()
        self.put(5)
        self.positions.commit("G", "T", 0, 2, owned=True)

    def all_stats(self, **fields: Any) -> Any:
        found = self.outcome(317, **({"isOrder": "false"} | fields))
        assert isinstance(found, Deferred)
        while not found.done:
            self.later.run()
        assert isinstance(found.result, Reply)
        return b"".join(found.result.body)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path)
    yield found
    found.close()


ROWS = (
    b'{"brokerName":"broker-a","queueId":0,"topic":"T"}:'
    b'{"brokerOffset":5,"consumerOffset":2,"lastTimestamp":%d,"pullOffset":2},'
    b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:'
    b'{"brokerOffset":0,"consumerOffset":0,"lastTimestamp":0,"pullOffset":0}' % NOW
)


def test_a_groups_progress_on_every_queue_of_its_topics(rig: Rig) -> None:
    (body,) = rig(208, consumerGroup="G").body
    assert body == b'{"consumeTps":0.0,"offsetTable":{' + ROWS + b"}}"
    (body,) = rig(208, consumerGroup="G", topic="T").body
    assert body == b'{"consumeTps":0.0,"offsetTable":{' + ROWS + b"}}"


def test_a_group_or_topic_that_nobody_knows_has_none(rig: Rig) -> None:
    empty = {"consumeTps": 0.0, "offsetTable": {}}
    assert rig.json(208, consumerGroup="G", topic="U") == empty
    assert rig.json(208, consumerGroup="H") == empty


def test_topics_to_which_live_members_do_not_subscribe_are_left_out(rig: Rig) -> None:
    peer = FakePeer()
    rig.join(peer, "G", "U")
    assert rig.json(208, consumerGroup="G")["offsetTable"] == {}
    rig.join(peer, "G", "T")
    assert rig(208, consumerGroup="G").body[0] == b'{"consumeTps":0.0,"offsetTable":{' + ROWS + b"}}"


def test_what_was_taken_and_not_finished_is_told_beside(rig: Rig) -> None:
    rig.consumption.table.state("G", "T", 0).finish(2, 3)
    state = rig.consumption.table.state("G", "T", 0)
    assert state.committed == 3
    assert b'"consumerOffset":3' in bytes(rig(208, consumerGroup="G").body[0])


def test_the_rate_is_that_of_the_last_minute(rig: Rig) -> None:
    for number in range(7):
        rig.traffic.sample({(GOT, "T@G"): 20 * number}, 10.0 * number, 0)
    assert b'"consumeTps":2.0' in bytes(rig(208, consumerGroup="G").body[0])


def test_all_groups(rig: Rig) -> None:
    rig.group("empty")
    text = rig.all_stats()
    assert b'{"G":[{"consumeTps":0.0,"offsetTable":{' + ROWS + b"}}]}" in text
    assert b'{"empty":[]}' in text and b'"brokerAddr":"10.0.0.1:8081"' in text and b'"totalDiff":3' in text


def test_all_groups_on_ordered_topics(rig: Rig) -> None:
    assert b'{"G":[]}' in rig.all_stats(isOrder="true")


def test_all_groups_are_looked_at_in_pieces_and_by_one_request_at_a_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_stats, "STEP", 1)
    first = rig.outcome(317, isOrder="false")
    assert isinstance(first, Deferred)
    assert rig(317, isOrder="false").code == 2
    rounds = 0
    while not first.done:
        rounds += len(rig.later.run())
    assert rounds >= 3
    second = rig.outcome(317, isOrder="false")
    assert isinstance(second, Deferred)
    second.cancel()
    third = rig.outcome(317, isOrder="false")
    assert isinstance(third, Deferred), "the one before has left"
    while not third.done:
        rig.later.run()
    assert rig.later.due == []


def test_how_old_the_next_messages_are(rig: Rig) -> None:
    found = rig.json(303, topic="T", group="G")["consumeTimeSpanSet"]
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    assert found[0] == {
        "consumeTimeStamp": NOW,
        "delayTime": 5000,
        "maxTimeStamp": NOW,
        "messageQueue": queue,
        "minTimeStamp": NOW,
    }
    assert found[1]["delayTime"] == found[1]["maxTimeStamp"] == 0
    assert rig(303, topic="U", group="G").code == 17


def test_which_group_is_furthest_behind(rig: Rig) -> None:
    rig.positions.commit("H", "T", 0, 4, owned=True)
    rig.positions.commit("I", "T", 0, 1, owned=True)

    def ask(**fields: object) -> bytes:
        return bytes(rig(308, topic="T", **fields).body[0])

    assert ask() == b'{"correctionOffsets":{0:1}}'
    assert ask(filterGroups="I,X") == b'{"correctionOffsets":{0:2}}'
    assert ask(compareGroup="G") == b'{"correctionOffsets":{0:2}}'


def test_all_positions(rig: Rig) -> None:
    assert rig(43).body[0] == b'{"offsetTable":{"T@G":{0:2}}}'
    assert json_of(rig(208, consumerGroup="none")) == {"consumeTps": 0.0, "offsetTable": {}}
