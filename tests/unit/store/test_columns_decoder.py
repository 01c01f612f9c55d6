"""Records to batches: columns asked for, sizes, choice of records, compressed and corrupt bodies."""

import random
import struct
import zlib
from collections.abc import Iterable

import pytest

from support.store import column_records, goldens
from support.store.column_records import HOST_V4, HOST_V6, Row, record
from whimbrel.errors import CorruptRecord
from whimbrel.store.codec import StoredMessage
from whimbrel.store.inspect import dump_queues
from whimbrel.store.view import LogView

pytest.importorskip("numpy", reason="the decoder of columns needs numpy and pyarrow")
pytest.importorskip("pyarrow", reason="the decoder of columns needs numpy and pyarrow")

import pyarrow as pa

from whimbrel.store.columns import (
    ALL_COLUMNS,
    COLUMNS,
    KAFKA_COLUMNS,
    Corrupt,
    Decoder,
    Mask,
    Records,
    Selection,
    Stop,
    Topics,
    decoder,
    frame,
    schema_of,
    walk,
)

ZLIB, LZ4, ZSTD = 0x301, 0x101, 0x201  # system flags


def rows_of(data: bytes, decoder: Decoder) -> list[Row]:
    """Decode bytes that are nothing but records."""
    return column_records.table_rows(decoder.batches(frame(data)))


def many(count: int, **fields: object) -> bytes:
    """Make records whose queue offsets count up."""
    made, place = bytearray(), 0
    for number in range(count):
        one = record(place, queue_offset=number, **fields)  # type: ignore[arg-type]
        made += one
        place += len(one)
    return bytes(made)


def compressed(name: str, body: bytes) -> bytes:
    """Compress by one of Arrow's codecs, in frames that do not tell their size."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, name) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


def test_batches_have_the_asked_columns_in_the_asked_order_and_their_schema() -> None:
    for columns in (COLUMNS, KAFKA_COLUMNS, ("body",), ("crcOk", "size"), tuple(reversed(ALL_COLUMNS))):
        for batch in Decoder(columns).batches(frame(many(3, properties=b"A\x01b"))):
            assert batch.schema.equals(schema_of(columns), check_metadata=True)
            assert batch.schema.names == list(columns)
            batch.validate(full=True)
    (batch,) = Decoder(["properties"], raw_properties=True).batches(frame(many(1, properties=b"A\x01b\x02")))
    assert batch.to_pylist() == [{"properties": b"A\x01b\x02"}]
    assert batch.schema.equals(schema_of(["properties"], raw_properties=True))


def test_the_schema_is_the_one_that_spark_makes_of_its_types() -> None:
    types = pytest.importorskip("pyspark.sql.types", reason="needs pyspark")
    pandas = pytest.importorskip("pyspark.sql.pandas.types", reason="needs pyspark and pandas")
    names = {
        "int32": types.IntegerType(),
        "int64": types.LongType(),
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "bool": types.BooleanType(),
        "timestamp[us, tz=UTC]": types.TimestampType(),
        "map<string, string>": types.MapType(types.StringType(), types.StringType()),
    }
    header = types.StructType().add("key", "string").add("value", "binary")
    schema = types.StructType()
    for field in schema_of(ALL_COLUMNS):
        kind = types.ArrayType(header) if field.name == "headers" else names[str(field.type)]
        schema = schema.add(field.name, kind)
    assert pandas.to_arrow_schema(schema, timezone="UTC").equals(schema_of(ALL_COLUMNS))


@pytest.mark.parametrize("columns", [(), ("topic", "topic"), ("topic", "nothing")])
def test_columns_that_make_no_table_are_refused(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="column"):
        Decoder(columns)


def test_no_records_make_no_batch() -> None:
    assert not list(Decoder(ALL_COLUMNS).batches(frame(b"")))
    walked = walk(b"")
    assert (len(walked.records), walked.stop, walked.end) == (0, Stop.DONE, 0)


def test_batches_are_cut_by_rows_and_by_bytes() -> None:
    data = many(100, body=b"x" * 100)
    size = len(data) // 100
    by_rows = [len(batch) for batch in Decoder(["body"], rows_max=30).batches(frame(data))]
    assert by_rows == [30, 30, 30, 10]
    by_bytes = [len(batch) for batch in Decoder(["body"], bytes_max=40 * size).batches(frame(data))]
    assert by_bytes == [40, 40, 20]
    small = [len(batch) for batch in Decoder(["body"], bytes_max=1).batches(frame(data))]
    assert small == [1] * 100
    heads = [len(batch) for batch in Decoder(["queueId"], bytes_max=1).batches(frame(data))]
    assert heads == [100]


def test_batches_are_cut_by_the_bytes_of_decompressed_bodies_too() -> None:
    body = bytes(10_000)
    data = many(20, body=zlib.compress(body), sys_flag=ZLIB) + many(3)
    decoder = Decoder(["body", "queueOffset"], bytes_max=45_000)
    batches = list(decoder.batches(frame(data)))
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 7]
    rows = column_records.table_rows(batches)
    assert [row["queueOffset"] for row in rows] == [*range(20), 0, 1, 2]
    assert [row["body"] for row in rows] == [body] * 20 + [b"body"] * 3
    alone = Decoder(["body"], bytes_max=9_000)
    assert [len(batch) for batch in alone.batches(frame(data))] == [1] * 19 + [4]


def test_a_body_of_4_mib_passes_alone() -> None:
    body = random.Random(1).randbytes(4 * 1024 * 1024)
    data = many(1, body=b"small") + many(3, body=body)
    batches = list(Decoder(COLUMNS).batches(frame(data)))
    assert [len(batch) for batch in batches] == [2, 1, 1]
    assert column_records.table_rows(batches)[2]["body"] == body


@pytest.mark.parametrize(
    ("flag", "stored"),
    [
        (0x001, zlib.compress(b"hello" * 99)),
        (ZLIB, zlib.compress(b"hello" * 99)),
        (0x001, compressed("gzip", b"hello" * 99)),
        (LZ4, compressed("lz4", b"hello" * 99)),
        (ZSTD, compressed("zstd", b"hello" * 99)),
        (ZSTD, compressed("zstd", b"hello" * 50) + compressed("zstd", b"hello" * 49)),
    ],
)
def test_bodies_are_decompressed_unless_they_are_wanted_raw(flag: int, stored: bytes) -> None:
    data = many(1) + record(9, body=stored, sys_flag=flag) + many(1)
    rows = rows_of(data, Decoder(["body", "value", "sysFlag", "crcOk"], verify_crc=True))
    assert [row["body"] for row in rows] == [b"body", b"hello" * 99, b"body"]
    assert [row["value"] for row in rows] == [row["body"] for row in rows]
    assert rows[1]["sysFlag"] == flag and rows[1]["crcOk"]
    assert rows_of(data, Decoder(["body"], raw_bodies=True))[1] == {"body": stored}


def test_an_empty_body_is_empty_whatever_its_flag_says() -> None:
    assert rows_of(record(0, body=b"", sys_flag=ZLIB), Decoder(["body"])) == [{"body": b""}]


@pytest.mark.parametrize("flag", [0x001, ZLIB, LZ4, ZSTD, 0x401, 0x701])
@pytest.mark.parametrize("stored", [b"no compressed body", zlib.compress(b"x" * 999)[:-5]])
def test_a_body_that_does_not_decompress_fails_is_left_out_or_stays_raw(flag: int, stored: bytes) -> None:
    data = many(1) + record(9, body=stored, sys_flag=flag) + many(1)
    with pytest.raises(CorruptRecord, match="the record at 9"):
        rows_of(data, Decoder(["body"]))
    skipping = Decoder(["body"], on_corrupt="skip")
    assert rows_of(data, skipping) == [{"body": b"body"}] * 2
    assert [one.physical_offset for one in skipping.corrupt] == [9]
    flagging = Decoder(["body", "crcOk", "bodyOk"], on_corrupt="flag")
    assert rows_of(data, flagging)[1] == {"body": stored, "crcOk": True, "bodyOk": False}
    assert flagging.corrupt_count == 1
    assert len(rows_of(data, Decoder(["size"]))) == 3  # nobody asked for the body
    told = rows_of(data, Decoder(["bodyOk"], on_corrupt="flag"))
    assert [row["bodyOk"] for row in told] == [True, False, True]
    assert rows_of(data, Decoder(["bodyOk"], raw_bodies=True))[1] == {"bodyOk": True}


@pytest.mark.parametrize("name", ["zlib", "lz4", "zstd"])
def test_a_body_that_inflates_without_bound_is_corrupt(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "INFLATED_BYTES_MAX", 200_000)
    flag = {"zlib": ZLIB, "lz4": LZ4, "zstd": ZSTD}[name]
    for length, good in ((200_000, True), (200_001, False), (5_000_000, False)):
        body = bytes(length)
        stored = zlib.compress(body) if name == "zlib" else compressed(name, body)
        one = Decoder(["body"], on_corrupt="skip")
        assert bool(rows_of(record(0, body=stored, sys_flag=flag), one)) is good


def test_a_body_that_does_not_match_its_crc_fails_is_left_out_or_is_flagged() -> None:
    top_bit_set = (zlib.crc32(b"body") | 1 << 31) - 2**32
    data = many(1) + record(7, crc=1) + record(8, crc=top_bit_set) + many(1, body=b"")
    columns = ["physicalOffset", "crcOk"]
    seen = [(0, True), (7, False), (8, True), (0, True)]
    with pytest.raises(CorruptRecord, match="the record at 7: its body does not match its CRC"):
        rows_of(data, Decoder(columns, verify_crc=True))
    for one, wanted in (
        (Decoder(columns), seen),
        (Decoder(columns, verify_crc=True, on_corrupt="flag"), seen),
        (Decoder(columns, verify_crc=True, on_corrupt="skip"), [seen[0], *seen[2:]]),
        (Decoder(columns, on_corrupt="skip"), seen),
    ):
        assert [tuple(row.values()) for row in rows_of(data, one)] == wanted
        assert one.corrupt == [Corrupt(7, "its body does not match its CRC")] * one.verify_crc


def test_corrupt_bodies_are_told_once_across_batches_cut_by_bytes() -> None:
    good, bad = zlib.compress(bytes(1000)), b"not compressed"
    data = b"".join(
        record(number, body=bad if number % 4 == 2 else good, sys_flag=ZLIB, crc=1 if number % 4 else None)
        for number in range(12)
    )
    flagging = Decoder(
        ["physicalOffset", "crcOk", "bodyOk", "body"], verify_crc=True, on_corrupt="flag", bytes_max=2500
    )
    rows = rows_of(data, flagging)
    assert [row["physicalOffset"] for row in rows] == list(range(12))
    for column in ("crcOk", "bodyOk"):
        assert [row[column] for row in rows] == [number % 4 == 0 for number in range(12)]
    assert [len(row["body"]) for row in rows] == [14 if number % 4 == 2 else 1000 for number in range(12)]
    assert sorted(one.physical_offset for one in flagging.corrupt) == [
        number for number in range(12) if number % 4
    ]
    skipping = Decoder(["physicalOffset"], verify_crc=True, on_corrupt="skip", bytes_max=2500)
    assert [row["physicalOffset"] for row in rows_of(data, skipping)] == [0, 4, 8]


def mixed(seed: int = 1) -> tuple[bytes, list[StoredMessage]]:
    """Make records of several topics, queues and states; return them as bytes and decoded."""
    chance = random.Random(seed)
    some = [
        record(
            place * 10,
            topic=chance.choice([b"orders", b"payments", b"clicks"]),
            queue_id=chance.choice([0, 1, -1, 2**31 - 1]),
            queue_offset=chance.choice([0, 5, 2**40, -3]),
            stored_ms=1000 + place,
            sys_flag=chance.choice([0, 4, 8, 12]),
            born_host=chance.choice([HOST_V4, HOST_V6]),
            properties=chance.choice(
                [b"", b"TAGS\x01a", b"TAGS\x01b", b"XTAGS\x01a", b"TAGS\x01b\x02TAGS\x01a", b"K\x01a"]
            ),
        )
        for place in range(300)
    ]
    data, positions = column_records.joined(some)
    return data, list(column_records.plain(data, positions))


def chosen(data: bytes, selection: Selection) -> list[int]:
    """Return the physical offsets of the records that a selection wants."""
    decoder = Decoder(["physicalOffset"], selection=selection)
    return [row["physicalOffset"] for row in rows_of(data, decoder)]


def places(messages: Iterable[StoredMessage]) -> list[int]:
    """Return their physical offsets."""
    return [message.physical_offset for message in messages]


def test_a_selection_wants_what_its_fields_say_together() -> None:
    data, all_of = mixed()
    assert chosen(data, Selection()) == places(all_of)
    assert chosen(data, Selection(topics={"orders", "absent"})) == places(
        m for m in all_of if m.topic == "orders"
    )
    assert chosen(data, Selection(queue_ids={-1, 7})) == places(m for m in all_of if m.queue_id == -1)
    assert chosen(data, Selection(queue_offsets=(0, 2**40))) == places(
        m for m in all_of if 0 <= m.queue_offset < 2**40
    )
    assert chosen(data, Selection(physical_offsets=(500, 1500))) == list(range(500, 1500, 10))
    assert chosen(data, Selection(stored_ms=(1100, 1110))) == list(range(1000, 1100, 10))
    assert chosen(data, Selection(queued_only=True)) == places(m for m in all_of if m.sys_flag & 12 in (0, 8))
    assert chosen(data, Selection(tags={"a"})) == places(m for m in all_of if m.properties.get("TAGS") == "a")
    queues = {("orders", -1): (0, 6), ("clicks", 2**31 - 1): (-(2**70), 2**70), ("absent", 0): (0, 9)}
    assert chosen(data, Selection(queues=queues)) == places(
        m
        for m in all_of
        if (m.topic, m.queue_id) in queues
        and queues[m.topic, m.queue_id][0] <= m.queue_offset < queues[m.topic, m.queue_id][1]
    )
    together = Selection(topics={"orders"}, tags={"a", "b"}, queued_only=True, stored_ms=(1000, 1200))
    assert chosen(data, together) == places(
        m
        for m in all_of[:200]
        if m.topic == "orders" and "TAGS" in m.properties and m.sys_flag & 12 in (0, 8)
    )
    assert chosen(data, Selection(topics=set())) == chosen(data, Selection(tags=set())) == []


def test_a_predicate_sees_fixed_fields_and_topics_before_anything_else_is_decoded() -> None:
    data, all_of = mixed()

    def even_payments(records: Records) -> Mask:
        topics = Topics.of(records)
        payments = topics.ids == topics.names.index("payments")
        wanted: Mask = payments & (records.ints("physical_offset") % 20 == 0)
        return wanted

    decoder = Decoder(["physicalOffset"], predicate=even_payments, selection=Selection(queue_ids={0}))
    assert [row["physicalOffset"] for row in rows_of(data, decoder)] == places(
        m for m in all_of if m.topic == "payments" and m.physical_offset % 20 == 0 and m.queue_id == 0
    )


def test_records_without_a_unique_key_show_their_offset_message_id() -> None:
    some = [
        record(300 + number, born_host=born, store_host=store, properties=properties)
        for number, (born, store, properties) in enumerate(
            (born, store, properties)
            for born in (HOST_V4, HOST_V6)
            for store in (HOST_V4, HOST_V6)
            for properties in (b"", b"UNIQ_KEY\x01U", b"UNIQ_KEY\x01", b"A\x01UNIQ_KEY\x01x")
        )
    ]
    data, positions = column_records.joined(some)
    wanted = [column_records.expected_row(m)["msgId"] for m in column_records.plain(data, positions)]
    assert {len(one) for one in wanted} == {1, 32, 56}
    assert [row["msgId"] for row in rows_of(data, Decoder(["msgId"]))] == wanted


def test_many_different_and_repeated_names_are_a_map_each() -> None:
    chance = random.Random(5)
    some = [
        record(
            number,
            properties=b"\x02".join(
                b"n%d\x01%d" % (chance.randrange(300), chance.randrange(99)) for _ in range(number % 9)
            ),
        )
        for number in range(400)
    ]
    data, positions = column_records.joined(some)
    wanted = [message.properties for message in column_records.plain(data, positions)]
    assert [row["properties"] for row in rows_of(data, Decoder(["properties"]))] == wanted
    assert [row["headers"] for row in rows_of(data, Decoder(["headers"]))] == [
        {name: value.encode() for name, value in pairs.items()} or None for pairs in wanted
    ]


def test_a_time_beyond_microseconds_is_null() -> None:
    edge = (2**63 - 1) // 1000
    data = b"".join(record(0, born_ms=value, stored_ms=value) for value in (edge, edge + 1, -edge, -(2**63)))
    rows = rows_of(data, Decoder(["bornTimestamp", "storeTimestamp", "timestamp"]))
    assert [row["bornTimestamp"] for row in rows] == [edge * 1000, None, -edge * 1000, None]
    assert [row["storeTimestamp"] for row in rows] == [row["timestamp"] for row in rows]


@pytest.mark.parametrize("name", ["v493-basic", "v493-ipv6", "v533-basic"])
def test_positions_from_a_consume_queue_give_the_records_of_that_queue(name: str) -> None:
    root = goldens.shared(name)
    view = LogView.of(root)
    size = view.segments.file_size
    for queue in dump_queues(root):
        found: list[int] = []
        for start in view.segments.starts:
            data = view.segments.read(start, size)
            inside = [unit[1] - start for unit in queue["units"] if start <= unit[1] < start + size]
            decoder = Decoder(["topic", "queueId", "queueOffset", "physicalOffset"])
            rows = column_records.table_rows(decoder.batches(Records.at(data, inside, base=start)))
            assert all((row["topic"], row["queueId"]) == (queue["topic"], queue["queueId"]) for row in rows)
            found += [row["queueOffset"] for row in rows]
        assert found == list(range(queue["min"], queue["max"]))


@pytest.mark.parametrize("positions", [[-1], [3], [0, 50], [10_000], [0, 95 * 3 - 10]])
def test_positions_without_a_record_are_refused(positions: list[int]) -> None:
    data = many(3)
    assert len(Records.at(data, [0, len(data) // 3])) == 2
    with pytest.raises(CorruptRecord, match="at "):
        Records.at(data, positions)
    with pytest.raises(CorruptRecord, match="it says that it stands at 0"):
        Records.at(data, [0], base=77)
    with pytest.raises(CorruptRecord):
        Records.at(b"", [0])
    for twisted in ([0, 0], [len(data) // 3, 0]):
        with pytest.raises(CorruptRecord, match="ascend"):
            Records.at(data, twisted)


def test_a_walk_says_what_stopped_it() -> None:
    data = many(2)
    size = len(data) // 2
    blank = struct.pack(">iI", 100, 0xCBD43194)
    for more, stop in (
        (b"", Stop.DONE),
        (data[:7], Stop.CUT),
        (data[: size - 1], Stop.CUT),
        (blank, Stop.BLANK),
        (bytes(50), Stop.ZEROS),
        (b"garbage, of course", Stop.DAMAGE),
        (struct.pack(">iI", 90, 0xDAA320A7) + bytes(90), Stop.DAMAGE),
        (struct.pack(">iI", 91, 0xDAA320A7) + bytes(90), Stop.DAMAGE),
    ):
        walked = walk(data + more)
        assert (len(walked.records), walked.end, walked.stop) == (2, 2 * size, stop)
        assert bool(walked.fault) is (stop is Stop.DAMAGE)
        if more:
            with pytest.raises(CorruptRecord):
                frame(data + more)
    assert walk(data, until=1).end == size
    assert walk(data, until=size).end == size
    assert walk(data, size).records.positions.tolist() == [size]
    assert walk(data, base=5).stop is Stop.DAMAGE
