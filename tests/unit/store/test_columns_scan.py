"""Splits of a log: every size finds the same, whatever stands in it; golden stores as RocketMQ reads them."""

import struct
from collections.abc import Iterator

import pytest

from support.store import column_records, goldens
from support.store.column_records import HOST_V4, HOST_V6, Log, Row, record
from whimbrel.errors import CorruptRecord
from whimbrel.store.codec import StoredMessage, decode_record
from whimbrel.store.view import LogView

pytest.importorskip("numpy", reason="the decoder of columns needs numpy and pyarrow")
pytest.importorskip("pyarrow", reason="the decoder of columns needs numpy and pyarrow")

from whimbrel.store.columns import ALL_COLUMNS, Decoder, Fault, Records, Scan

GOLDEN_STORES = (*goldens.STORES, *goldens.TORN)
RECORD_BYTES_MAX = 50_000  # larger than any in the golden stores


def some_log() -> Log:
    """Make two files with all that can stand in a log."""
    log = Log(1200, remains=column_records.ghosts)
    bodies_of = (
        b"plain",
        b"",
        record(33, body=b"a record within a body"),
        b"\xda\xa3\x20\xa7" * 5 + b"\xcb\xd4\x31\x94" * 5,
        b"x" * 150,
    )
    for number in range(11):

        def make(place: int) -> bytes:
            return record(
                place,
                topic=b"t" * (130 if number == 6 else 5),  # noqa: B023 (called at once)
                version=2 if number in (3, 6) else 1,  # noqa: B023
                body=bodies_of[number % 5],  # noqa: B023
                born_host=HOST_V6 if number & 1 else HOST_V4,  # noqa: B023
                store_host=HOST_V6 if number & 2 else HOST_V4,  # noqa: B023
                queue_offset=number,  # noqa: B023
                sys_flag=(0, 4, 8, 12, 0x80)[number % 5],  # noqa: B023
                properties=b"TAGS\x01a\x02KEYS\x01k\x02" if number % 3 else b"",  # noqa: B023
            )

        log.add(make)
    return log


def splits(data: bytes, log: Log, size: int) -> tuple[list[Records], list[Fault]]:
    """Read a log in splits of a size."""
    found: list[Records] = []
    faults: list[Fault] = []
    for begin in range(0, len(data), size):
        scan = Scan(
            column_records.reader(data, log.file_size),
            begin,
            begin + size,
            limit=len(data),
            file_size=log.file_size,
            record_bytes_max=max(log.sizes()) + 8,
            on_fault="skip",
        )
        found += scan
        faults += scan.faults
    return found, faults


def places(found: list[Records]) -> list[int]:
    """Return the physical offsets of records."""
    return [at for records in found for at in records.ints("physical_offset").tolist()]


def test_splits_of_every_size_find_every_record_once() -> None:
    log = some_log()
    data = bytes(log.data)
    assert len(data) > log.file_size and b"ghost" in data
    wanted = [column_records.expected_row(m) for m in column_records.plain(data, log.positions)]
    decoder = Decoder(ALL_COLUMNS)
    for size in range(1, log.end + 1):
        found, faults = splits(data, log, size)
        assert (places(found), faults) == (log.positions, [])
        if size % 100 == 1 or size == log.end:
            batches = (batch for records in found for batch in decoder.batches(records))
            assert column_records.table_rows(batches) == wanted


@pytest.mark.parametrize(
    "what", ["magic", "magic of V2", "size", "zeros", "blank", "topic length", "file start"]
)
def test_splits_of_every_size_tell_damage_once(what: str) -> None:
    log = some_log()
    data = bytearray(log.data)
    at = log.positions[2]
    blank = column_records.plain_positions(bytes(data[: log.file_size]), log.file_size)[0]
    match what:
        case "magic":
            data[at + 5] ^= 1
        case "magic of V2":
            at = log.positions[3]
            data[at + 4 : at + 8] = bytes(4)
        case "size":
            data[at : at + 4] = (200).to_bytes(4, "big")
        case "zeros":
            data[at : at + 300] = bytes(300)
        case "blank":
            end = blank[-1] + struct.unpack_from(">i", data, blank[-1])[0]
            data[end : log.file_size] = bytes(log.file_size - end)
        case "topic length":
            data[at + 100 + len(decode_record(bytes(data), at).body)] += 1
        case "file start":
            data[log.file_size + 6] ^= 1
    damaged = bytes(data)
    positions, faults = column_records.plain_positions(damaged, log.file_size)
    assert len(faults) == 1
    for size in [*range(1, 200, 7), *range(200, log.end, 50), log.end]:
        found, told = splits(damaged, log, size)
        assert places(found) == positions
        assert [fault.offset for fault in told] == faults
        assert all(fault.what for fault in told)


def test_a_blank_in_mid_log_with_a_wrong_size_is_one_all_the_same() -> None:
    log = some_log()
    data = bytearray(log.data)
    last = max(at for at in log.positions if at < log.file_size)
    blank = last + struct.unpack_from(">i", data, last)[0]
    data[blank : blank + 4] = (99).to_bytes(4, "big")
    for size in (40, 500, log.end):
        found, faults = splits(bytes(data), log, size)
        assert (places(found), faults) == (log.positions, [])


def test_a_file_that_is_shorter_than_the_log_is_told_once_and_the_next_is_read() -> None:
    log = some_log()
    data = bytes(log.data)
    cut = log.positions[3] + 50

    def read(offset: int, length: int) -> bytes:
        found = column_records.reader(data, log.file_size)(offset, length)
        return found[: max(cut - offset, 0)] if offset < log.file_size else found

    for size in (30, 400, log.end):
        found: list[Records] = []
        faults: list[Fault] = []
        for begin in range(0, log.end, size):
            scan = Scan(
                read,
                begin,
                begin + size,
                limit=log.end,
                file_size=log.file_size,
                record_bytes_max=500,
                on_fault="skip",
            )
            found += scan
            faults += scan.faults
        assert places(found) == [*log.positions[:3], *(at for at in log.positions if at >= log.file_size)]
        assert [fault.offset for fault in faults] == [log.positions[3]]


def test_nothing_is_read_behind_the_limit() -> None:
    log = some_log()
    seen = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal seen
        seen = max(seen, offset + length)
        return column_records.reader(bytes(log.data), log.file_size)(offset, length)

    limit = log.positions[5]
    scan = Scan(read, 0, log.end, limit=limit, file_size=log.file_size, record_bytes_max=500)
    assert (places(list(scan)), scan.faults, seen <= limit) == (log.positions[:5], [], True)


def test_a_record_larger_than_a_chunk_is_read_whole_and_one_beyond_the_bound_is_damage() -> None:
    log = Log(6 * 1024 * 1024)
    log.add(lambda place: record(place, body=b"small"))
    log.add(lambda place: record(place, body=bytes(4 * 1024 * 1024)))
    log.add(lambda place: record(place, body=b"last"))
    data = bytes(log.data)
    read = column_records.reader(data, log.file_size)
    decoder = Decoder(["physicalOffset", "body"])
    for begin in (0, 1, log.positions[1] + 1):
        scan = Scan(read, begin, log.end, limit=log.end, file_size=log.file_size, chunk_bytes=70_000)
        rows = column_records.table_rows(batch for records in scan for batch in decoder.batches(records))
        wanted = [at for at in log.positions if at >= begin]
        assert [row["physicalOffset"] for row in rows] == wanted and not scan.faults
        assert [len(row["body"]) for row in rows] == [5, 4 * 1024 * 1024, 4][-len(wanted) :]
    with pytest.raises(CorruptRecord, match=f"damaged at {log.positions[1]}: a record with a size of 41"):
        list(Scan(read, 0, log.end, limit=log.end, file_size=log.file_size, record_bytes_max=100_000))
    scan = Scan(
        read,
        0,
        log.end,
        limit=log.end,
        file_size=log.file_size,
        record_bytes_max=100_000,
        on_fault="skip",
    )
    assert [at for records in scan for at in records.positions.tolist()] == [0, 0]
    assert [fault.offset for fault in scan.faults] == [log.positions[1]]


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_golden_stores_read_as_rocketmq_reads_them_in_splits_of_any_size(name: str) -> None:
    view = LogView.of(goldens.shared(name))
    messages = {at: message for at, message in decoded(view)}
    wanted = [column_records.expected_row(message, broker_name="b") for message in messages.values()]
    listed = goldens.rows(name, "record")
    assert [row["phyOffset"] for row in listed] == [row["physicalOffset"] for row in wanted]
    for size in (2_000, 65_536, view.end - view.begin):
        decoder = Decoder(ALL_COLUMNS, broker_name="b", verify_crc=True)
        rows: list[Row] = []
        for begin in range(view.begin, view.end, size):
            scan = Scan(
                view.segments.read,
                begin,
                begin + size,
                limit=view.end,
                file_size=view.segments.file_size,
                record_bytes_max=RECORD_BYTES_MAX,
            )
            for records in scan:
                rows += column_records.table_rows(decoder.batches(records))
            assert not scan.faults
        assert rows == wanted
    for row, golden in zip(wanted, listed, strict=True):
        assert row["properties"] == golden["properties"]
        assert row["msgId"] == (golden.get("uniqKey") or golden["offsetMsgId"])
        assert [row[column] for column in GOLDEN_FIELDS] == [
            golden[field] for field in GOLDEN_FIELDS.values()
        ]


GOLDEN_FIELDS = {
    "topic": "topic",
    "queueId": "queueId",
    "queueOffset": "queueOffset",
    "size": "size",
    "bornHost": "bornHost",
    "storeHost": "storeHost",
    "reconsumeTimes": "reconsumeTimes",
    "flag": "flag",
    "sysFlag": "sysFlag",
    "preparedTransactionOffset": "preparedTransactionOffset",
    "bodyCrc": "bodyCRC",
}


def decoded(view: LogView) -> Iterator[tuple[int, StoredMessage]]:
    """Decode a log record by record."""
    walk_of = view.walk()
    while (chunk := walk_of.next_chunk()) is not None:
        base, data, positions = chunk
        for at in positions:
            yield base + at, decode_record(data, at, check_crc=False)
