"""The rules by which records of groups change, and how the table stands in a file."""

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.errors import BadRequest
from whimbrel.model.group_record import RECORD_BYTES_MAX, GroupRecord
from whimbrel.nameserver.group_table import (
    GROUPS_MAX,
    TABLE_BYTES_MAX,
    BadTable,
    GroupKey,
    GroupTable,
    KeptRecord,
    group_key,
)

KEY = GroupKey("C", "a")
RECORD = GroupRecord(group="f" * 32, epoch=1, leader=1, voters=((1, "1" * 32), (2, "2" * 32)), acks=2)


def led(epoch: int, leader: int = 1) -> bytes:
    return RECORD.led_by(leader, epoch, at_ms=5, why="").encode()


def swapped(table: GroupTable, data: bytes, revision: int, key: GroupKey = KEY) -> GroupTable:
    """Return the table after a swap that is to succeed."""
    after = table.swapped(key, data, revision)
    assert after is not None
    return after


def test_a_record_is_made_once_and_changed_by_its_revision() -> None:
    table = swapped(GroupTable(), RECORD.encode(), 0)
    assert table.find(KEY) == KeptRecord(RECORD.encode(), RECORD, 1)
    assert table.swapped(KEY, led(2, 2), 0) is None
    table = swapped(table, led(2), 1)
    assert table.swapped(KEY, led(2, 2), 1) is None  # who comes second with the same revision loses
    kept = table.find(KEY)
    assert kept is not None and (kept.revision, kept.record.epoch, kept.record.leader) == (2, 2, 1)
    assert table.find(GroupKey("D", "a")) is None  # a group of the same name in another cluster


def test_a_swap_leaves_the_table_before_as_it_was() -> None:
    before = swapped(GroupTable(), RECORD.encode(), 0)
    after = swapped(before, led(2), 1)
    assert before.records[KEY].revision == 1 and after.records[KEY].revision == 2


def test_a_bytewise_copy_is_kept() -> None:
    data = b" " + RECORD.encode() + b"\n"
    table = swapped(GroupTable(), data, 0)
    assert table.records[KEY].data == data
    assert GroupTable.decode(table.encode()).records[KEY].data == data


def test_the_uuid_of_a_group_never_changes() -> None:
    table = swapped(GroupTable(), RECORD.encode(), 0)
    other = replace(RECORD, group="e" * 32, epoch=9)
    with pytest.raises(BadRequest, match="uuid"):
        table.swapped(KEY, other.encode(), 1)


def test_the_epoch_never_goes_down_and_may_stay() -> None:
    table = swapped(GroupTable(), led(7), 0)
    with pytest.raises(BadRequest, match="epoch 7: a record of epoch 6 would lower it"):
        table.swapped(KEY, led(6), 1)
    resigned = replace(RECORD, epoch=7).resigned(2)
    assert swapped(table, resigned.encode(), 1).records[KEY].record.prefer == 2


def test_who_lost_the_race_is_told_so_and_not_that_the_epoch_is_too_low() -> None:
    table = swapped(swapped(GroupTable(), led(7), 0), led(9), 1)
    assert table.swapped(KEY, led(8), 1) is None


def test_a_revision_of_a_record_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadRequest, match="no record of group C/a is kept here, and revision 3 was named"):
        GroupTable().swapped(KEY, RECORD.encode(), 3)


@pytest.mark.parametrize("revision", [-1, 1 << 62, (1 << 63) - 1])
def test_a_revision_that_can_not_be_is_refused(revision: int) -> None:
    with pytest.raises(BadRequest, match="revision"):
        swapped(GroupTable(), RECORD.encode(), 0).swapped(KEY, led(2), revision)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b" " * (RECORD_BYTES_MAX + 1),
        RECORD.encode().replace(b'"epoch":1', b'"epoch":0'),
        RECORD.encode().decode().encode("utf-16"),  # JSON, too
        RECORD.encode()[:-1] + b',"x":"\xed\xa0\x80"}',  # half of a surrogate pair
    ],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        GroupTable().swapped(KEY, data, 0)


@pytest.mark.parametrize(("cluster", "name"), [("", "a"), ("C", ""), ("C", "a\nb"), ("C", "a" * 128)])
def test_what_can_not_be_a_group_is_refused(cluster: str, name: str) -> None:
    with pytest.raises(BadRequest):
        group_key(cluster, name)


def full() -> GroupTable:
    one = KeptRecord(RECORD.encode(), RECORD, 1)
    return GroupTable({GroupKey("C", f"b{number}"): one for number in range(GROUPS_MAX)})


def test_groups_are_bounded_and_those_that_are_there_go_on() -> None:
    table = full()
    with pytest.raises(BadRequest, match="1024 groups"):
        table.swapped(KEY, RECORD.encode(), 0)
    there = GroupKey("C", "b7")
    assert swapped(table, led(2), 1, there).records[there].revision == 2
    assert GroupTable.decode(table.encode()).records == table.records


def test_the_largest_table_may_be_read() -> None:
    record = b'"' + b"\x00" * (RECORD_BYTES_MAX - 2) + b'"'
    row = json.dumps({"cluster": "c" * 127, "broker_name": "b" * 127, "record": record.decode()})
    assert GROUPS_MAX * len(row) < TABLE_BYTES_MAX


@given(
    st.dictionaries(
        st.builds(GroupKey, st.sampled_from("CDE"), st.sampled_from("abc")),
        st.tuples(st.integers(1, 1000), st.integers(1, (1 << 62) - 1), st.text(max_size=30)),
    )
)
def test_what_is_written_is_read(groups: dict[GroupKey, tuple[int, int, str]]) -> None:
    records = {}
    for key, (epoch, revision, why) in groups.items():
        record = RECORD.led_by(1, epoch, at_ms=1, why=why)
        records[key] = KeptRecord(record.encode(), record, revision)
    assert GroupTable.decode(GroupTable(records).encode()).records == records


TABLE = swapped(swapped(GroupTable(), led(3), 0), led(2), 0, GroupKey("C", "b"))


@given(st.integers(0, len(TABLE.encode()) - 1), st.integers(1, 255))
def test_a_byte_that_is_another_one_is_noticed(at: int, change: int) -> None:
    content = bytearray(TABLE.encode())
    content[at] ^= change
    try:
        found = GroupTable.decode(bytes(content))
    except BadTable:
        return
    assert found.records == TABLE.records  # a space in the first line may be another one


@pytest.mark.parametrize("length", [0, 1, 40, len(TABLE.encode()) // 2, len(TABLE.encode()) - 1])
def test_a_part_of_a_table_is_none(length: int) -> None:
    with pytest.raises(BadTable):
        GroupTable.decode(TABLE.encode()[:length])


def content(*rows: object, groups: int | None = None, version: int = 1) -> bytes:
    """Return a file with a right checksum."""
    below = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    head = {
        "v": version,
        "groups": len(rows) if groups is None else groups,
        "crc32": f"{zlib.crc32(below):08x}",
    }
    return json.dumps(head).encode() + b"\n" + below


ROW = {"cluster": "C", "broker_name": "a", "revision": 1, "record": RECORD.encode().decode()}


@pytest.mark.parametrize(
    "bad",
    [
        content(ROW, ROW),
        content(ROW, groups=2),
        content(ROW, version=2),
        content(ROW | {"revision": 0}),
        content(ROW | {"revision": 1 << 62}),
        content(ROW | {"revision": True}),
        content(ROW | {"cluster": "\n"}),
        content(ROW | {"record": "{}"}),
        content(ROW | {"record": "\ud800"}),
        content(ROW | {"record": 1}),
        content([]),
        content(*(ROW | {"broker_name": f"b{number}"} for number in range(GROUPS_MAX + 1))),
    ],
)
def test_a_table_that_can_not_be_is_none(bad: bytes) -> None:
    assert GroupTable.decode(content(ROW)).records[KEY].record == RECORD
    with pytest.raises(BadTable):
        GroupTable.decode(bad)
