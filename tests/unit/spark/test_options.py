"""Options of a read: what they mean, and that a wrong one is named with what to do."""

import pickle

import pytest

from whimbrel.spark.offsets import EARLIEST, LATEST
from whimbrel.spark.options import OptionError, parse

BASE = {"servers": "127.0.0.1:8081", "subscribe": "orders"}


def test_names_are_read_in_any_case() -> None:
    options = parse({"SERVERS": "a:1, b:2;c:3", "Subscribe": "orders,bills", "FAILONDATALOSS": "false"})
    assert options.servers == ("a:1", "b:2", "c:3")
    assert options.subscription is not None
    assert options.subscription.topics == ("orders", "bills")
    assert not options.fail_on_data_loss


def test_a_batch_starts_at_the_earliest_and_a_stream_at_the_latest() -> None:
    assert parse(BASE, streaming=False).starting == EARLIEST
    assert parse(BASE, streaming=True).starting == LATEST


def test_positions_are_read_by_topic_broker_and_queue() -> None:
    text = '{"orders": {"broker-a": {"0": 23, "1": -1}}}'
    options = parse(BASE | {"startingOffsets": text}, streaming=True)
    assert options.starting == {("orders", "broker-a", 0): 23, ("orders", "broker-a", 1): -1}


def test_subscriptions_choose_topics_and_queues() -> None:
    pattern = parse({"servers": "a:1", "subscribePattern": "ord.*"}).subscription
    assert pattern is not None
    assert pattern.wants_topic("orders", system=False, include_system=False)
    assert not pattern.wants_topic("my-orders", system=False, include_system=False)
    assert not pattern.wants_topic("ord%RETRY", system=True, include_system=False)
    assert pattern.wants_topic("ord%RETRY", system=True, include_system=True)
    assigned = parse({"servers": "a:1", "assign": '{"orders": [1, 0], "%DLQ%g": [0]}'}).subscription
    assert assigned is not None
    assert [assigned.wants_queue("orders", queue) for queue in (0, 1, 2)] == [True, True, False]
    assert assigned.wants_topic("%DLQ%g", system=True, include_system=False)  # it is named


def test_sizes_and_durations_have_units() -> None:
    options = parse(BASE | {"maxBytesPerTrigger": "64m", "maxTriggerDelay": "30s"}, streaming=True)
    assert (options.max_bytes, options.max_trigger_delay_ms) == (64 << 20, 30_000)


def test_times_are_milliseconds_or_written_out() -> None:
    assert parse(BASE | {"startingTimestamp": "1795248000000"}).starting_ms == 1_795_248_000_000
    assert parse(BASE | {"endingTimestamp": "2026-11-21T08:00"}).ending_ms == 1_795_248_000_000
    assert parse(BASE | {"endingTimestamp": "2026-11-21T10:00+02:00"}).ending_ms == 1_795_248_000_000
    assert parse(BASE).starting_ms is None


def test_tags_are_a_set_and_a_star_takes_all() -> None:
    assert parse(BASE | {"tags": "a || b"}).wanted_tags == frozenset({"a", "b"})
    assert parse(BASE | {"tags": "*"}).wanted_tags is None
    assert parse(BASE).wanted_tags is None


@pytest.mark.parametrize(
    ("changes", "streaming", "words"),
    [
        ({"servres": "x"}, None, "did you mean servers"),
        ({"colour": "red"}, None, "there is no such option"),
        ({"servers": ""}, None, "options servers, store, archive: exactly one is needed"),
        ({"servers": "127.0.0.1"}, None, "option servers: '127.0.0.1' is not of the form HOST:PORT"),
        ({"servers": "a:1,b"}, None, "option servers: 'b' is not of the form HOST:PORT"),
        ({"servers": "http://a:1"}, None, "write it without http://"),
        ({"servers": "a:99999"}, None, "the port must be a number from 1 to 65535"),
        ({"store": "/x"}, None, "options servers, store, archive: exactly one is needed"),
        ({"subscribe": ""}, None, "exactly one is needed, not none"),
        ({"subscribePattern": ".*"}, None, "exactly one is needed, not subscribe, subscribePattern"),
        ({"subscribe": "", "subscribePattern": "("}, None, "no regular expression"),
        ({"subscribe": "", "assign": "[1]"}, None, 'not of the form {"TOPIC": [0, 1]}'),
        ({"isolation": "dirty"}, None, "'dirty' is not one of confirmed, latest"),
        ({"failOnDataLoss": "maybe"}, None, "neither true nor false"),
        ({"maxOffsetsPerTrigger": "many"}, True, "not a whole number"),
        ({"maxTriggerDelay": "5 days"}, True, "not a duration"),
        ({"startingOffsets": '{"orders": 3}'}, None, "startingOffsets"),
        ({"startingOffsets": '{"orders": {"b": {"0": -3}}}'}, None, "-2 (earliest)"),
        ({"startingOffsets": "latest"}, False, "reads nothing"),
        ({"endingOffsets": "earliest"}, False, "read nothing"),
        ({"endingOffsets": "latest"}, True, "no meaning for a stream"),
        ({"maxOffsetsPerTrigger": "5"}, False, "no meaning for a batch"),
        ({"group": "g"}, False, "no meaning for a batch"),
        ({"startingTimestamp": "yesterday"}, None, "neither milliseconds nor a time"),
        ({"startingPhysicalOffset": "0"}, False, "no meaning with `servers`"),
        ({"servers": "", "store": "/x", "readFrom": "slave"}, None, "no meaning with `store`"),
        ({"servers": "", "archive": "/x", "isolation": "latest"}, None, "no meaning with `archive`"),
        ({"servers": "", "archive": "/x"}, True, "an archive is read as a batch"),
        ({"servers": "", "store": "/x", "endingPhysicalOffset": "0"}, False, "is not a range"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, None, "not one of error, latest"),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}, True, "choose one"),
    ],
)
def test_a_wrong_option_is_named_with_what_to_do(
    changes: dict[str, str], streaming: bool | None, words: str
) -> None:
    with pytest.raises(OptionError) as caught:
        parse(BASE | changes, streaming=streaming)
    assert words in str(caught.value)


def test_a_store_is_read_whole_by_a_batch_that_names_no_topic() -> None:
    assert parse({"store": "/data"}, streaming=False).subscription is None
    assert parse({"store": "/data"}, streaming=False).verify_crc
    with pytest.raises(OptionError, match="exactly one is needed, not none"):
        parse({"store": "/data"}, streaming=True)


def test_a_stream_with_a_wrong_option_is_refused_by_whatever_spark_asks_first() -> None:
    pytest.importorskip("pyspark")
    from whimbrel.spark.source import WhimbrelSource

    source = WhimbrelSource(BASE | {"endingOffsets": "latest"})
    reader = pickle.loads(pickle.dumps(source.streamReader(source.schema())))
    for ask in (
        reader.initialOffset,
        reader.getDefaultReadLimit,
        reader.prepareForTriggerAvailableNow,
        lambda: reader.latestOffset({}, None),
    ):
        with pytest.raises(OptionError, match="no meaning for a stream"):
            ask()


def test_latest_is_where_a_stream_may_start_and_a_batch_may_not() -> None:
    given = {"servers": "127.0.0.1:8081", "subscribe": "orders", "startingOffsets": "latest"}
    assert parse(given).starting == LATEST  # which kind of query is not known yet: Spark asks for the schema
    assert parse(given, streaming=True).starting == LATEST
    with pytest.raises(OptionError, match="a batch from `latest` on reads nothing"):
        parse(given, streaming=False)


def test_allow_partial_is_about_brokers_alone() -> None:
    given = {"servers": "127.0.0.1:8081", "subscribe": "orders", "allowPartial": "true"}
    assert parse(given).allow_partial
    with pytest.raises(OptionError, match="option allowPartial has no meaning with `store`"):
        parse({"store": "/x", "allowPartial": "true"})
