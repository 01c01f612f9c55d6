"""What a broker sends to a nameserver, and what it takes of its answers."""

from dataclasses import replace
from typing import Any

import pytest

from whimbrel.model.limits import ROUTE_QUEUES_MAX
from whimbrel.model.registration import BrokerFacts
from whimbrel.model.topic import DataVersion, TableChange, TopicConfig
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as pb
from whimbrel.rpc.api.registry_session import read_update, session_request

FACTS = BrokerFacts(
    cluster="C",
    broker_name="a",
    broker_id=0,
    role="master",
    port=8091,
    version=DataVersion(timestamp=1, counter=1),
    topics=[TopicConfig(name="T")],
    instance="i1",
)


def test_the_first_request_tells_the_process_and_whether_it_had_its_place() -> None:
    first = session_request(FACTS, "ns", None, held_place=True)
    assert (first.registration.instance_id, first.held_place) == ("i1", True)
    renewal = session_request(FACTS, "ns", FACTS, held_place=True)
    assert (renewal.HasField("registration"), renewal.held_place) == (False, False)


def test_a_topic_that_nameservers_refuse_takes_no_other_one_along(caplog: pytest.LogCaptureFixture) -> None:
    many = TopicConfig(name="many", read_queues=ROUTE_QUEUES_MAX + 1, write_queues=1)
    request = session_request(replace(FACTS, topics=[many, *FACTS.topics]), "ns", None)
    assert [topic.topic for topic in request.topics] == ["T"]
    assert "topic many is left out of the registration" in caplog.text


@pytest.mark.parametrize(
    "bad",
    [
        {"address": "h:²"},
        {"address": ""},
        {"address": "h:1", "ha_address": "h:0"},
        {"address": "h\x1b[2J:1"},
        {"address": "h:1", "log_end": -1},
        {"address": "h:1", "log_end": 2**62 + 1},
        {"address": "h:1", "epoch": -1},
        {"address": "h:1", "epoch": 2**31},
        {"address": "h:1", "member_id": 64},
    ],
)
def test_a_member_that_can_t_be_is_left_out(bad: dict[str, Any]) -> None:
    response = pb.SessionResponse(settled=True)
    response.members.add(broker_id=1, address="10.0.0.2:8092", log_end=7)
    response.members.add(broker_id=2, **bad)
    assert [(member.broker_id, member.log_end) for member in read_update(response).members] == [(1, 7)]


LATER = replace(
    FACTS,
    version=DataVersion(timestamp=2, counter=2),
    topics=[TopicConfig(name="T"), TopicConfig(name="U", read_queues=2)],
    change_since=lambda version: TableChange(
        before=version,
        after=DataVersion(timestamp=2, counter=2),
        rows=(
            TopicConfig(name="U", read_queues=2),
            TopicConfig(name="many", read_queues=ROUTE_QUEUES_MAX + 1, write_queues=1),
        ),
        removed=("gone",),
    ),
)


def test_a_nameserver_that_takes_changes_is_sent_what_changed_since_the_request_before() -> None:
    request = session_request(LATER, "ns", FACTS, takes_changes=True)
    assert not request.topics_included and not request.topics
    assert (request.change_base.timestamp_ms, request.change_base.counter) == (1, 1)
    assert [(topic.topic, topic.read_queues) for topic in request.changed_topics] == [("U", 2)]
    assert set(request.deleted_topics) == {"gone", "many"}  # one that it would refuse is none


@pytest.mark.parametrize(
    ("facts", "reported", "how"),
    [
        (LATER, None, {"takes_changes": True}),  # the first request of a session
        (LATER, FACTS, {}),  # a nameserver of an earlier version
        (LATER, FACTS, {"takes_changes": True, "topics_wanted": True}),  # one that missed a change
        (LATER, LATER, {"takes_changes": True, "topics_wanted": True}),
        (replace(LATER, change_since=lambda version: None), FACTS, {"takes_changes": True}),  # too far behind
    ],
)
def test_the_whole_table_goes_where_a_change_would_not_do(
    facts: BrokerFacts, reported: BrokerFacts | None, how: dict[str, bool]
) -> None:
    request = session_request(facts, "ns", reported, **how)
    assert request.topics_included and not request.HasField("change_base")
    assert [topic.topic for topic in request.topics] == ["T", "U"]


def test_a_renewal_without_news_tells_no_topics() -> None:
    request = session_request(LATER, "ns", LATER, takes_changes=True)
    assert not request.topics_included and not request.HasField("change_base")


def test_what_a_group_elects_is_told_and_read() -> None:
    elected = replace(FACTS, epoch=7, member_id=2, voters=3)
    registration = session_request(elected, "ns", None).registration
    assert (registration.epoch, registration.member_id, registration.voters) == (7, 2, 3)
    # A member that becomes leader does so in the same session.
    again = session_request(replace(elected, epoch=8), "ns", elected)
    assert again.registration.epoch == 8
    response = pb.SessionResponse()
    response.members.add(broker_id=3, address="10.0.0.2:8092", epoch=7, member_id=3)
    assert [(member.epoch, member.member_id) for member in read_update(response).members] == [(7, 3)]
