"""Where every cell of the shared page is, and whose: the same in all versions that may share a page."""

import itertools
import re
import sys

import pytest

from whimbrel.store.page_cells import SLAVES_MAX, Cell, Column, EpochOf, Part, RetentionCell, Text
from whimbrel.store.page_elections import ElectionMailbox
from whimbrel.store.page_log import LogProgress
from whimbrel.store.page_processes import Processes
from whimbrel.store.page_slots import PEER_BYTES, PEERS, SLAVE_IDS, ReplicaSlots
from whimbrel.store.shared_page import HEADER, PAGE_BYTES, SECOND, SharedPage

OPENER, LOG, BROKER, REPLICATOR = "the first opener", "the log's writer", "the broker", "the replicator"
COLUMN = 8 * SLAVES_MAX
Row = tuple[int, int, str]  # offset, size, writer

# A text's `..._version` is its first cell, so it is not another field.
CELLS: dict[type[Part], dict[str, Row]] = {
    SharedPage: {
        "header": (0, 24, OPENER),
        "inode": (24, 8, OPENER),
        "second header": (4096, 24, OPENER),
    },
    LogProgress: {
        "epoch": (64, 8, LOG),
        "begin": (72, 8, LOG),
        "written": (80, 8, LOG),
        "flushed": (88, 8, LOG),
        "file_size": (96, 8, LOG),
        "log_pid": (104, 8, LOG),
        "log_beat_ns": (112, 8, LOG),
        "epoch_count": (120, 8, LOG),
        "replaced": (4080, 8, LOG),
        "doubtful": (4088, 8, LOG),
    },
    Processes: {
        "ha_port": (128, 8, REPLICATOR),
        "replica_pid": (136, 8, REPLICATOR),
        "replica_beat_ns": (144, 8, REPLICATOR),
        "replica_sleeping": (152, 8, REPLICATOR),
        "connected": (160, 8, REPLICATOR),
        "broker_sleeping": (1728, 8, BROKER),
        "dispatched": (1736, 8, BROKER),
        "confirmed": (1744, 8, BROKER),
        "broker_pid": (1752, 8, BROKER),
        "broker_beat_ns": (1760, 8, BROKER),
        "broker_id": (1768, 8, BROKER),
        "writable": (1776, 8, BROKER),
        "lane_pass": (1784, 8, BROKER),
        "master_ha": (1792, 320, BROKER),
        "trouble": (2112, 320, REPLICATOR),
        "ha_host": (2496, 320, REPLICATOR),
        "broker_name": (2816, 136, BROKER),
        "replica_pass": (3080, 8, REPLICATOR),
        "replica_retention": (3104, 8, REPLICATOR),
        "local_ha": (3392, 64, REPLICATOR),
        "broker_retention": (4376, 8, BROKER),
    },
    ReplicaSlots: {
        "refused_count": (168, 8, REPLICATOR),
        "refused_offset": (176, 8, REPLICATOR),
        "refused_at_ns": (184, 8, REPLICATOR),
        "acks": (192, COLUMN, REPLICATOR),
        "sent": (320, COLUMN, REPLICATOR),
        "sent_bytes": (448, COLUMN, REPLICATOR),
        "connected_at_ms": (576, COLUMN, REPLICATOR),
        "peers": (704, 64 * SLAVES_MAX, REPLICATOR),
        "refused_peer": (2432, 64, REPLICATOR),
        "fed_epoch": (3072, 8, REPLICATOR),
        "proven_at_ms": (3136, COLUMN, REPLICATOR),
        "slave ids": (3264, COLUMN, BROKER),
        "known_hosts_text": (3456, 512, BROKER),
        "named_members": (4224, COLUMN, REPLICATOR),
    },
    ElectionMailbox: {
        "replica_flush": (3088, 8, REPLICATOR),
        "seat_bound": (3096, 8, REPLICATOR),
        "ha_dialect": (4160, 8, BROKER),
        "leader_epoch": (4168, 8, BROKER),
        "leader_start": (4176, 8, BROKER),
        "leader_log": (4184, 8, BROKER),
        "voter_bits": (4192, 8, BROKER),
        "commit": (4352, 8, BROKER),
        "broker_flush": (4360, 8, BROKER),
        "leader_begin": (4368, 8, BROKER),
        "leader_file_size": (4384, 8, BROKER),
        "heard_commit": (4416, 8, REPLICATOR),
        "heard_epoch": (4424, 8, REPLICATOR),
        "heard_ns": (4432, 8, REPLICATOR),
        "higher_epoch": (4440, 8, REPLICATOR),
        "last_epoch": (4448, 8, REPLICATOR),
        "quorum_lost": (4456, 8, REPLICATOR),
        "replica_role": (4480, 8, BROKER),
        "promise": (4488, 8, BROKER),
        "elected": (4496, 8, BROKER),
        "commit_saw": (4504, 8, BROKER),
        "empty_asked": (4512, 8, BROKER),
        "waived": (4520, 8, BROKER),
        "sealed": (4544, 8, REPLICATOR),
        "sealed_last": (4552, 8, REPLICATOR),
        "sealed_end": (4560, 8, REPLICATOR),
        "votes": (4568, 8, REPLICATOR),
        "emptied": (4576, 8, REPLICATOR),
        "group": (4608, 48, BROKER),
        "seat": (4656, 48, REPLICATOR),
        "seat_group": (4704, 48, REPLICATOR),
        "seats_text": (4752, 320, BROKER),
    },
}


def rows(part: type[Part]) -> list[tuple[int, str]]:
    """Return where the ranges of a part begin, and who writes each, as its module's text has them."""
    text = sys.modules[part.__module__].__doc__ or ""
    found = re.findall(r"^ +(\d+)  \S.*  (the \S.*)$", text, flags=re.MULTILINE)
    return [(int(at), writer) for at, writer in found]


ROWS = sorted((at, part.__name__, writer) for part in CELLS for at, writer in rows(part))


def fields(part: type[Part]) -> dict[str, tuple[int, int]]:
    """Return the fields that a part has, with offset and size each."""
    found: dict[str, tuple[int, int]] = {}
    if part is SharedPage:
        found |= {"header": (0, HEADER.size), "second header": (SECOND, HEADER.size)}
    if part is ReplicaSlots:
        found |= {"peers": (PEERS, PEER_BYTES * SLAVES_MAX), "slave ids": (SLAVE_IDS, COLUMN)}
    for name, value in vars(part).items():
        if isinstance(value, Text):
            found[name] = value.at, value.size
        elif isinstance(value, Column):
            found[name] = value.cells.start * 8, COLUMN
        elif isinstance(value, Cell | EpochOf | RetentionCell) and not name.endswith("_version"):
            found[name] = value.index * 8, 8
    return found


def test_all_parts_of_the_page_are_looked_at() -> None:
    assert set(SharedPage.__mro__) - {Part, object} == set(CELLS)


@pytest.mark.parametrize("part", CELLS, ids=lambda part: part.__name__)
def test_each_cell_is_where_it_was_and_where_the_text_of_its_part_has_its_writer(part: type[Part]) -> None:
    assert fields(part) == {name: (at, size) for name, (at, size, _) in CELLS[part].items()}
    for name, (at, size, writer) in CELLS[part].items():
        row = max(row for row in ROWS if row[0] <= at)
        assert row[1:] == (part.__name__, writer), name
        assert not any(at < start < at + size for start, *_ in ROWS), name


@pytest.mark.parametrize("name", ["trouble", "local_ha", "master_ha"])
def test_the_version_of_a_text_is_its_first_cell(name: str) -> None:
    assert SharedPage.place(f"{name}_version") == CELLS[Processes][name][0]


def test_no_two_fields_share_a_byte() -> None:
    found = sorted(field for part in CELLS for field in fields(part).values())
    assert all(at + size <= following for (at, size), (following, _) in itertools.pairwise(found))
    assert found[-1][0] + found[-1][1] <= PAGE_BYTES
    assert all(at % 8 == 0 for at, _ in found)
