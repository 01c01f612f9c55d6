"""Which options and columns a write takes, and what becomes of a row."""

from typing import Any

import pyarrow as pa
import pytest

from whimbrel.spark.options import OptionError
from whimbrel.spark.sink import RowError, messages_of
from whimbrel.spark.sink_options import PRESERVED_COLUMNS, SinkOptions, check_columns, parse_sink

SERVERS = {"servers": "127.0.0.1:8081"}


def parsed(*, streaming: bool = False, **given: str) -> SinkOptions:
    return parse_sink({**SERVERS, **given}, streaming=streaming)


def test_defaults_and_names_in_any_case() -> None:
    options = parsed(TOPIC="orders", BatchBytes="64k", path="x")
    assert (options.topic, options.delivery, options.batch_bytes, options.in_flight) == (
        "orders", "atLeastOnce", 65536, 4)  # fmt: skip
    assert parsed(preserve="true", brokers="a=b, c=d").brokers == (("a", "b"), ("c", "d"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"topik": "x"}, "option topik: a write has no such option; did you mean topic"),
        ({"subscribe": "x"}, "option subscribe: a write has no such option"),
        ({"delivery": "exactlyOnce"}, "neither atLeastOnce nor idempotent"),
        ({"delivery": "transactional"}, "sends no transactions"),
        ({"delivery": "idempotent"}, "option runId: delivery=idempotent of a batch needs it"),
        ({"runId": "x"}, "option runId: it has a meaning with delivery=idempotent only"),
        ({"idColumn": "x"}, "option idColumn: it has a meaning with delivery=idempotent only"),
        ({"preserve": "true", "delivery": "atLeastOnce"}, "options delivery, preserve"),
        ({"brokers": "a=b"}, "option brokers: it has a meaning with preserve"),
        ({"preserve": "true", "brokers": "a"}, "SOURCE=TARGET"),
        ({"batchBytes": "17m"}, "option batchBytes: 17825792 is not in 1 to"),
        ({"maxInFlight": "0"}, "option maxInFlight: 0 is not in 1 to 64"),
        ({"servers": ""}, "option servers: a write needs it"),
        ({"servers": "127.0.0.1"}, "option servers: '127.0.0.1' is not of the form HOST:PORT"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        parse_sink({**SERVERS, **given}, streaming=False)


def test_a_stream_has_an_id_of_its_own() -> None:
    assert parsed(streaming=True, delivery="idempotent").delivery == "idempotent"
    with pytest.raises(OptionError, match="a stream has an id of its own"):
        parsed(streaming=True, delivery="idempotent", runId="x")


def test_columns_are_checked_by_name_and_type() -> None:
    check_columns([("body", "string"), ("topic", "string"), ("keys", "array<string>")], parsed())
    check_columns(
        [("body", "binary"), ("id", "bigint")], parsed(topic="a", delivery="idempotent", idColumn="id")
    )
    check_columns([(name, kinds[0]) for name, kinds in PRESERVED_COLUMNS.items()], parsed(preserve="true"))
    with pytest.raises(OptionError, match="column brokerName: a write has no use for it"):
        check_columns([("body", "binary"), ("brokerName", "string")], parsed(topic="a"))
    with pytest.raises(OptionError, match="column body: it is of type int, not binary or string"):
        check_columns([("body", "int")], parsed(topic="a"))
    with pytest.raises(OptionError, match="column topic: a write needs it; or the option topic"):
        check_columns([("body", "binary")], parsed())
    with pytest.raises(OptionError, match="name the properties propertiesText"):
        check_columns([("body", "binary"), ("topic", "string")], parsed(preserve="true"))


def rows(*given: dict[str, Any], prefix: str = "", **options: str) -> list[Any]:
    table = pa.Table.from_pylist(list(given))
    return list(
        messages_of(
            table.to_batches(), parse_sink({**SERVERS, "topic": "t", **options}, streaming=False), prefix
        )
    )


def test_a_row_becomes_a_message() -> None:
    row = {
        "body": "text", "topic": "other", "keys": "a b", "tags": "red", "queueId": 3, "messageGroup": "g",
        "flag": 0,
    }  # fmt: skip
    ((number, message, queue_id),) = rows(row, topic="")
    assert (number, queue_id, message.topic, message.body) == (0, 3, "other", b"text")
    assert (message.keys, message.tag, message.message_group) == (("a", "b"), "red", "g")
    ((_, delayed, _),) = rows(
        {"body": "text", "topic": "t", "deliveryTimestamp": 1_700_000_000_500}, topic=""
    )
    assert (delayed.deliver_at, delayed.message_group) == (1_700_000_000.5, None)
    assert rows(row)[0][1].topic == "t"  # the option wins


def test_ids_name_the_row_or_come_from_a_column() -> None:
    two = [{"body": b"x", "id": 7}, {"body": b"y", "id": 8}]
    options = {"delivery": "idempotent", "runId": "run"}
    found = rows(*[{"body": row["body"]} for row in two], prefix="run:5", **options)
    assert [message.properties for _, message, _ in found] == [
        {"MQ_SPARK_ID": "run:5:0"}, {"MQ_SPARK_ID": "run:5:1"}]  # fmt: skip
    found = rows(*two, delivery="idempotent", idColumn="id")
    assert [message.properties["MQ_SPARK_ID"] for _, message, _ in found] == ["7", "8"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"body": b""}, "its body is empty"),
        ({"body": None}, "its body is empty"),
        ({"body": b"x", "flag": 4}, "only preserve=true keeps it"),
        ({"body": b"x", "tags": "a|b"}, "tag 'a|b' holds"),
        ({"body": b"x", "keys": ["a b"]}, "holds a space"),
        ({"body": b"x", "messageGroup": "g", "deliveryTimestamp": 5}, "a message has only one of them"),
        ({"body": b"x", "queueId": -1}, "queueId -1 is below 0"),
    ],
)
def test_what_a_send_cannot_carry_is_refused_with_the_row(row: dict[str, Any], says: str) -> None:
    with pytest.raises(RowError, match="row 1 of this task can't be sent") as refused:
        first = {name: None for name in row} | {"body": b"x"}
        rows(first, row)
    assert says in str(refused.value)


def test_reserved_properties_are_refused_and_preserve_is_named() -> None:
    kind = pa.schema([("body", pa.binary()), ("properties", pa.map_(pa.string(), pa.string()))])
    batch = pa.RecordBatch.from_pylist([{"body": b"x", "properties": [("UNIQ_KEY", "1")]}], schema=kind)
    with pytest.raises(RowError, match=r"UNIQ_KEY is reserved; .* preserve=true"):
        list(messages_of([batch], parsed(topic="t"), ""))
