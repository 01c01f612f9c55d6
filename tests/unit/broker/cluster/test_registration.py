"""What a broker tells one nameserver, request by request; the stream is played by the test."""

import asyncio
from dataclasses import replace
from typing import Any

from whimbrel.broker.cluster.registration import Registration
from whimbrel.model.registration import BrokerFacts
from whimbrel.model.topic import DataVersion, TableChange, TopicConfig
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as pb


class Rig:
    """A session, and the broker's table, which grows by one topic at a time."""

    def __init__(self) -> None:
        self.topics: list[TopicConfig] = []
        registration = Registration(
            ["127.0.0.1:1"], facts=self.facts, on_members=lambda *_: None, on_lost=lambda _: None
        )
        self.registration = registration
        (self.session,) = registration.sessions
        self.stream = self.session.requests()

    def facts(self) -> BrokerFacts:
        facts = BrokerFacts(
            cluster="C",
            broker_name="a",
            broker_id=0,
            role="master",
            port=8091,
            version=DataVersion(timestamp=1, counter=len(self.topics)),
            topics=tuple(self.topics),
        )
        return replace(facts, change_since=self.change_since)

    def change_since(self, version: DataVersion) -> TableChange[TopicConfig]:
        after = DataVersion(timestamp=1, counter=len(self.topics))
        return TableChange(before=version, after=after, rows=tuple(self.topics[version.counter :]))

    def make(self, name: str) -> None:
        self.topics.append(TopicConfig(name=name))
        self.session.news.set()

    def answer(self, **fields: Any) -> None:
        self.session.answered(pb.SessionResponse(**fields))

    async def next(self) -> tuple[list[str], list[str]]:
        """Return the topics of the next request: those of the whole table, and those of a change."""
        request = await asyncio.wait_for(anext(self.stream), 5)
        assert request.topics_included or not request.topics
        return [one.topic for one in request.topics], [one.topic for one in request.changed_topics]


async def test_a_nameserver_that_takes_changes_gets_the_table_once_and_then_what_changed() -> None:
    rig = Rig()
    rig.make("t")
    assert await rig.next() == (["t"], [])
    rig.answer(takes_changes=True)
    rig.make("u")
    assert await rig.next() == ([], ["u"])
    rig.make("v")  # before the answer
    rig.make("w")
    assert await rig.next() == ([], ["v", "w"])


async def test_a_nameserver_that_says_nothing_of_changes_gets_the_whole_table_each_time() -> None:
    rig = Rig()
    assert await rig.next() == ([], [])
    rig.make("t")  # before any answer
    assert await rig.next() == (["t"], [])
    rig.answer()
    rig.make("u")
    assert await rig.next() == (["t", "u"], [])


async def test_a_nameserver_that_missed_a_change_gets_the_whole_table_at_once() -> None:
    rig = Rig()
    await rig.next()
    rig.answer(takes_changes=True)
    rig.make("t")
    assert await rig.next() == ([], ["t"])
    rig.answer(takes_changes=True, topics_wanted=True)
    assert await rig.next() == (["t"], [])
    rig.make("u")
    assert await rig.next() == ([], ["u"])


async def test_who_waits_for_a_topic_to_be_known_is_called_with_the_answer_to_it() -> None:
    rig = Rig()
    called: list[str] = []
    await rig.next()
    rig.answer(takes_changes=True)
    rig.make("t")
    rig.registration.once_known(lambda: called.append("t"), 10)
    assert called == []
    assert await rig.next() == ([], ["t"])
    assert called == []
    rig.answer(takes_changes=True)
    assert called == ["t"] and not rig.registration.waiting
    rig.registration.once_known(lambda: called.append("again"), 10)
    assert called == ["t", "again"], "it is known already"


async def test_a_nameserver_that_wants_the_whole_table_knows_a_topic_only_after_that() -> None:
    rig = Rig()
    called: list[str] = []
    await rig.next()
    rig.answer(takes_changes=True)
    rig.make("t")
    await rig.next()
    rig.registration.once_known(lambda: called.append("t"), 10)
    rig.answer(takes_changes=True, topics_wanted=True)
    assert called == []
    assert await rig.next() == (["t"], [])
    rig.answer(takes_changes=True)
    assert called == ["t"]


async def test_without_a_nameserver_nobody_waits_and_a_silent_one_is_waited_for_only_so_long() -> None:
    rig = Rig()
    called: list[str] = []
    rig.registration.once_known(lambda: called.append("none"), 10)
    assert called == ["none"]
    await rig.next()
    rig.answer()
    rig.make("t")
    over = asyncio.Event()
    rig.registration.once_known(over.set, 0.01)
    assert not over.is_set()
    await asyncio.wait_for(over.wait(), 5)
    assert not rig.registration.waiting
