"""Columns of random records, random logs in random splits: as the plain reader has them, record by record."""

import itertools
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.store import column_records
from support.store.column_records import HOST_V4, HOST_V6, Log, record
from whimbrel.store.codec import decode_record, record_fault

pytest.importorskip("numpy", reason="the decoder of columns needs numpy and pyarrow")
pytest.importorskip("pyarrow", reason="the decoder of columns needs numpy and pyarrow")

from whimbrel.store.columns import ALL_COLUMNS, Decoder, Records, Scan, Stop, walk

FREE = settings(deadline=None)  # the first use of Arrow takes a second
SLOW = settings(max_examples=300, deadline=None)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.one_of(
    st.sampled_from([HOST_V4, HOST_V6]),
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=20, max_size=20),
)
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "T", "AGST", "TAGSX", "é", "漢字"])
PARTS = st.one_of(
    st.builds("{}\x01{}".format, NAMES, st.text(max_size=8)).map(str.encode),
    st.sampled_from(
        [b"", b"TAGS", b"TAGS\x01", b"\x01x", b"KEYS\x01a\x01b", b"\xff\x01\xfe", b"TAGS\x01\xc3"]
    ),
)
TEXTS = st.lists(PARTS, max_size=6).map(b"\x02".join)
TOPICS = st.one_of(
    st.sampled_from([b"orders", b"payments", "é".encode()]), st.binary(min_size=1, max_size=40)
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Make a record of any kind that decodes."""
    version = draw(st.sampled_from([1, 1, 2]))
    topic = draw(TOPICS)
    return record(
        draw(I64),
        topic=topic * (draw(st.sampled_from([1, 8])) if version == 2 else 1),
        body=draw(st.one_of(st.binary(max_size=40), st.just(b"\xda\xa3\x20\xa7"))),
        properties=draw(TEXTS),
        version=version,
        queue_id=draw(I32),
        queue_offset=draw(I64),
        born_ms=draw(I64),
        stored_ms=draw(I64),
        born_host=draw(HOSTS),
        store_host=draw(HOSTS),
        flag=draw(I32),
        sys_flag=draw(I32) & ~1,
        reconsume_times=draw(I32),
        prepared_offset=draw(I64),
        crc=draw(st.one_of(st.none(), I32)),
    )


@FREE
@given(
    st.lists(records(), max_size=12),
    st.permutations(ALL_COLUMNS),
    st.integers(1, len(ALL_COLUMNS)),
    st.data(),
)
def test_every_column_of_every_record_is_what_the_plain_reader_says(
    some: list[bytes], order: list[str], count: int, data: st.DataObject
) -> None:
    before = data.draw(st.binary(max_size=9))
    log, positions = column_records.joined([before, *some])
    walked = walk(log, len(before))
    assert (walked.stop, walked.end) == (Stop.DONE, len(log))
    assert walked.records.positions.tolist() == positions[1:]
    columns = order[:count]
    decoder = Decoder(columns, broker_name="b", rows_max=data.draw(st.integers(1, 12)))
    rows = column_records.table_rows(decoder.batches(walked.records))
    wanted = [
        column_records.expected_row(m, broker_name="b") for m in column_records.plain(log, positions[1:])
    ]
    assert rows == [{name: row[name] for name in columns} for row in wanted]


@FREE
@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_bytes_changed_anywhere_are_records_or_damage_just_as_the_plain_reader_says(
    some: list[bytes], data: st.DataObject
) -> None:
    log, positions = column_records.joined(some)
    changed = bytearray(log)
    for _ in range(data.draw(st.integers(1, 3))):
        which = data.draw(st.sampled_from(positions))
        at = data.draw(st.one_of(st.integers(0, len(log) - 1), st.integers(which, which + 95)))
        changed[min(at, len(log) - 1)] = data.draw(st.integers(0, 255))
    torn = bytes(changed[: data.draw(st.integers(0, len(log)))])
    walked = walk(torn)
    at = 0
    for position in walked.records.positions.tolist():
        assert position == at
        size: int = struct.unpack_from(">i", torn, at)[0]
        place: int = struct.unpack_from(">q", torn, at + 28)[0]
        assert not record_fault(torn[at : at + size], 0, place, check_crc=False)
        at += size
    assert walked.end == at
    if walked.stop is Stop.DONE:
        assert at == len(torn)
    elif walked.stop is Stop.DAMAGE:
        assert walked.fault
    wanted = [
        column_records.expected_row(m, body=m.body)
        for m in column_records.plain(torn, walked.records.positions)
    ]
    decoder = Decoder(ALL_COLUMNS, raw_bodies=True)
    assert column_records.table_rows(decoder.batches(walked.records)) == [
        row | {"brokerName": ""} for row in wanted
    ]


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Make a log of some files; bodies hold records, blanks and magic, older ones lie behind blanks."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    log = Log(draw(st.integers(500, 2500)), remains=column_records.ghosts)
    for number in range(draw(st.integers(0, 20))):
        body = draw(
            st.one_of(
                st.binary(max_size=60),
                st.just(record(17, body=b"inner")),
                st.binary(min_size=200, max_size=300),
                st.just(b"\xda\xa3\x20\xa7" * 9),
                st.just(struct.pack(">iI", 100, 0xCBD43194) * 5),
            )
        )
        hosts = chance.choice((HOST_V4, HOST_V6)), chance.choice((HOST_V4, HOST_V6))

        def make(place: int) -> bytes:
            return record(
                place,
                body=body,  # noqa: B023 (called at once)
                queue_offset=number,  # noqa: B023
                born_host=hosts[0],  # noqa: B023
                store_host=hosts[1],  # noqa: B023
                version=1 + number % 2,  # noqa: B023
                properties=b"KEYS\x01%d" % number,  # noqa: B023
            )

        log.add(make)
    return log


def scanned(
    data: bytes, file_size: int, cuts: list[int], chunk_bytes: int, record_bytes_max: int
) -> tuple[list[int], list[int]]:
    """Read a log in splits; return where records were found and where damage was."""
    found: list[int] = []
    faults: list[int] = []
    read = column_records.reader(data, file_size)
    borders = [0, *sorted(cuts), len(data)]
    for begin, end in itertools.pairwise(borders):
        scan = Scan(
            read,
            begin,
            end,
            limit=len(data),
            file_size=file_size,
            chunk_bytes=chunk_bytes,
            record_bytes_max=record_bytes_max,
            on_fault="skip",
        )
        for some in scan:
            assert isinstance(some, Records)
            found += some.ints("physical_offset").tolist()
        faults += [fault.offset for fault in scan.faults]
    return found, faults


@given(logs(), st.data())
@SLOW
def test_splits_find_every_record_once(log: Log, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, log.end), max_size=8))
    largest = max([*log.sizes(), 91]) + 8
    chunk_bytes = data.draw(st.integers(largest // 3, 2000))
    found = scanned(bytes(log.data), log.file_size, cuts, chunk_bytes, largest)
    assert found == (log.positions, [])


@given(logs(), st.data())
@SLOW
def test_splits_find_what_is_left_of_a_damaged_log_and_each_damage_once(
    log: Log, data: st.DataObject
) -> None:
    changed = bytearray(log.data)
    for position in data.draw(st.lists(st.sampled_from(log.positions), max_size=2)) if log.positions else []:
        at = position + data.draw(st.integers(0, 90))
        changed[at : at + 8] = data.draw(st.sampled_from([b"\0" * 8, b"\x00\x00\x01\x00\xff\xff\xff\xff"]))
    for at in data.draw(st.lists(st.integers(0, max(log.end - 1, 0)), max_size=4)) if log.end else []:
        changed[at] ^= 1 << data.draw(st.integers(0, 7))
    damaged = bytes(changed[: log.end])
    largest = log.file_size
    wanted = column_records.plain_positions(damaged, log.file_size)
    cuts = data.draw(st.lists(st.integers(0, log.end), max_size=8))
    assert scanned(damaged, log.file_size, cuts, data.draw(st.integers(100, 2000)), largest) == wanted


def test_the_plain_reader_of_the_tests_reads_what_the_codec_does() -> None:
    log = Log(400)
    for number in range(5):
        log.add(lambda place: record(place, queue_offset=number, body=b"x" * 60))  # noqa: B023
    assert column_records.plain_positions(bytes(log.data), 400) == (log.positions, [])
    assert [decode_record(bytes(log.data), at).queue_offset for at in log.positions] == list(range(5))
