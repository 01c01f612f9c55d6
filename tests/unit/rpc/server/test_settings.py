"""What the server answers to a client's settings."""

from typing import Any

import pytest

from whimbrel.errors import BadRequest, IllegalGroup, IllegalTopic
from whimbrel.model.retry import Customized, Exponential
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.server.settings import group_of, settings_for, settings_response


def producer(*topics: str) -> v2.Settings:
    return v2.Settings(
        client_type=v2.PRODUCER,
        publishing=v2.Publishing(
            topics=[v2.Resource(name=topic, resource_namespace="ns") for topic in topics]
        ),
        metric=v2.Metric(on=True),
    )


def consumer(language: Any, group: str = "g") -> v2.Settings:
    return v2.Settings(
        client_type=v2.PUSH_CONSUMER,
        user_agent=v2.UA(language=language),
        subscription=v2.Subscription(
            group=v2.Resource(name=group),
            fifo=True,
            subscriptions=[v2.SubscriptionEntry(topic=v2.Resource(name="t"))],
        ),
    )


def test_producer_gets_limits_and_exponential_backoff() -> None:
    got = settings_for(producer("t"))
    assert got.publishing.max_body_size == 4194304
    assert got.publishing.validate_message_type
    assert [topic.resource_namespace for topic in got.publishing.topics] == ["ns"]
    assert got.backoff_policy.max_attempts == 3
    assert got.backoff_policy.exponential_backoff.initial.nanos == 10_000_000
    assert got.backoff_policy.exponential_backoff.max.seconds == 1
    assert not got.metric.on


def test_producer_without_topics_is_answered_normally() -> None:
    settings = v2.Settings(client_type=v2.PRODUCER)
    settings.publishing.SetInParent()
    assert settings_for(settings).publishing.max_body_size == 4194304


# RocketMQ's delay levels.
LEVELS_S = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]


def waits(settings: v2.Settings) -> list[float]:
    steps = settings.backoff_policy.customized_backoff.next
    return [step.seconds + step.nanos / 1e9 for step in steps]


def curve(settings: v2.Settings) -> tuple[float, float, float]:
    backoff = settings.backoff_policy.exponential_backoff
    first, longest = backoff.initial, backoff.max
    return first.seconds + first.nanos / 1e9, longest.seconds + longest.nanos / 1e9, backoff.multiplier


def test_python_consumer_gets_customized_backoff_in_whole_seconds() -> None:
    """Checklist 55."""
    got = settings_for(consumer(v2.PYTHON), attempts=5)
    assert waits(got) == LEVELS_S
    assert got.backoff_policy.max_attempts == 5
    assert got.subscription.receive_batch_size == 32
    assert got.subscription.long_polling_timeout.seconds == 20
    assert [entry.topic.name for entry in got.subscription.subscriptions] == ["t"]


def test_node_consumer_gets_exponential_backoff() -> None:
    """Checklist 55: as many steps from the first wait to the longest as the list has."""
    got = settings_for(consumer(v2.NODE_JS))
    assert got.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert got.backoff_policy.max_attempts == 17
    first, longest, factor = curve(got)
    assert (first, longest) == (1, 7200)
    assert first * factor ** (len(LEVELS_S) - 1) == pytest.approx(7200, rel=1e-4)


@pytest.mark.parametrize("language", [v2.JAVA, v2.GOLANG, v2.RUST, v2.CPP, v2.DOT_NET])
def test_consumers_that_read_both_kinds_get_the_group_s_own(language: Any) -> None:
    """Checklist 55."""
    listed = settings_for(consumer(language), policy=Customized((1500, 3000)))
    assert waits(listed) == [1.5, 3]
    grown = settings_for(consumer(language), policy=Exponential(initial_ms=500, max_ms=8000, multiplier=4))
    assert curve(grown) == (0.5, 8, 4)


def test_a_policy_is_converted_for_consumers_that_read_one_kind_only() -> None:
    """Checklist 55: the list of an exponential policy's waits; parts of a second are rounded up."""
    policy = Exponential(initial_ms=500, max_ms=8000, multiplier=4)
    assert waits(settings_for(consumer(v2.PYTHON), policy=policy)) == [1, 2, 8]
    assert curve(settings_for(consumer(v2.NODE_JS), policy=policy)) == (1, 8, 4)
    assert waits(settings_for(consumer(v2.PYTHON), policy=Exponential(multiplier=1))) == [5]
    assert waits(settings_for(consumer(v2.PYTHON), policy=Customized((1500, 3000)))) == [2, 3]
    assert curve(settings_for(consumer(v2.NODE_JS), policy=Customized((7000,)))) == (7, 7, 1)
    assert curve(settings_for(consumer(v2.NODE_JS), policy=Customized((1000, 9000, 2000)))) == (1, 9, 9)


def test_the_group_decides_about_order_not_the_client() -> None:
    assert not settings_for(consumer(v2.JAVA)).subscription.fifo
    assert settings_for(consumer(v2.JAVA), fifo=True).subscription.fifo


def test_settings_without_a_part_are_refused() -> None:
    with pytest.raises(BadRequest):
        settings_for(v2.Settings(client_type=v2.PRODUCER))


def test_illegal_names_are_refused() -> None:
    with pytest.raises(IllegalTopic):
        settings_for(producer("a b"))
    with pytest.raises(IllegalGroup):
        settings_for(consumer(v2.JAVA, group="a b"))


def test_the_client_s_settings_stay_as_they_were() -> None:
    client = producer("t")
    before = client.SerializeToString(deterministic=True)
    settings_for(client)
    assert client.SerializeToString(deterministic=True) == before


def test_answer_has_an_ok_status() -> None:
    assert settings_response(producer()).status.code == v2.OK


def test_group_of_a_producer_is_empty() -> None:
    assert group_of(producer()) == ""
    assert group_of(consumer(v2.GOLANG)) == "g"
