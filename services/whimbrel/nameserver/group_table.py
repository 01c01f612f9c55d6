"""The records of groups that elect their leaders: who may change one, and how all of them stand in a file.

Pure. A group is named by its cluster and by the name that its brokers share. Its record is kept as the bytes
that were sent; its *revision* counts its changes, from 1 on. It is changed by compare-and-set:

    the revision that is named is    and then
    another one than is kept         nothing changes, and what stands is told: somebody else was first
    the one that is kept             the new record is checked, and stands under the next revision
    0, and no record is kept         the same: this makes the group
    above 0, and no record is kept   refused: the file was lost, or is of another nameserver

A new record is refused if it can't be one (`GroupRecord.decode`), if it is another group's (the uuid never
changes: members that were made for one group would follow another's leader), or if it lowers the epoch
(whoever has sealed a higher one would never follow). At most `GROUPS_MAX` groups are kept, of
`RECORD_BYTES_MAX` each. None is ever removed.

The file is text, so that an operator can read it. Its first line says how much follows, and the CRC-32 of
that in hex; then comes a line for each group, in order:

    {"v":1,"groups":2,"crc32":"0a1b2c3d"}
    {"cluster":"C","broker_name":"a","revision":7,"record":"{\\"v\\":1,\\"group\\":\\"...\\", ...}"}
    {"cluster":"C","broker_name":"b","revision":1,"record":"..."}
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from whimbrel.errors import BadRequest
from whimbrel.model.group_record import RECORD_BYTES_MAX, GroupRecord, check_change
from whimbrel.model.names import check_broker_name

__all__ = ["GROUPS_MAX", "TABLE_BYTES_MAX", "BadTable", "GroupKey", "GroupTable", "KeptRecord", "group_key"]

GROUPS_MAX: Final = 1024  # a cluster has some dozens of brokers; the whole table is written at each change
# Of a file: in JSON a character of a record may become six, beside names and revisions.
TABLE_BYTES_MAX: Final = GROUPS_MAX * (6 * RECORD_BYTES_MAX + 1024)
REVISION_MAX: Final = (1 << 62) - 1
VERSION: Final = 1


class BadTable(ValueError):
    """The bytes are no table of records."""


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """What names a group; `group_key` makes one of a request's fields."""

    cluster: str
    broker_name: str

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.cluster}/{self.broker_name}"


def group_key(cluster: str, broker_name: str) -> GroupKey:
    """Return what names a group.

    Raises:
        BadRequest: no cluster or broker can have that name.
    """
    try:
        check_broker_name("cluster", cluster)
        check_broker_name("broker_name", broker_name)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return GroupKey(cluster, broker_name)


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A group's record.

    Attributes:
        data: as it was sent.
        record: the same, decoded.
        revision: counts the changes; the first is 1.
    """

    data: bytes
    record: GroupRecord
    revision: int


class GroupTable:
    """All records; a value: a change makes another table.

    Attributes:
        records: by group.
    """

    __slots__ = ("records",)

    def __init__(self, records: Mapping[GroupKey, KeptRecord] = MappingProxyType({})) -> None:
        self.records = MappingProxyType(dict(records))

    def find(self, key: GroupKey) -> KeptRecord | None:
        """Return a group's record, or None where none is kept."""
        return self.records.get(key)

    def swapped(self, key: GroupKey, data: bytes, revision: int) -> "GroupTable | None":
        """Return the table with a group's new record, or None when another revision is kept than was named.

        Raises:
            BadRequest: this can't be the record of the group, or there are too many groups.
        """
        record, kept = decoded(data), self.find(key)
        if not 0 <= revision < REVISION_MAX:
            raise BadRequest(f"revision {revision}: they are counted from 1 on, and 0 stands for no record")
        if kept is None:
            if revision:
                raise BadRequest(
                    f"no record of group {key} is kept here, and revision {revision} was named: the file of"
                    " records was lost or replaced, or another nameserver keeps it"
                )
            if len(self.records) >= GROUPS_MAX:
                raise BadRequest(f"the records of {GROUPS_MAX} groups are kept here, and no more are taken")
        elif revision != kept.revision:
            return None
        else:
            check_change(str(key), kept.record, record)
        return GroupTable({**self.records, key: KeptRecord(data, record, revision + 1)})

    def encode(self) -> bytes:
        """Return the table as the content of a file."""
        rows = b"".join(
            line(
                {
                    "cluster": key.cluster,
                    "broker_name": key.broker_name,
                    "revision": kept.revision,
                    "record": kept.data.decode(),
                }
            )
            for key, kept in sorted(self.records.items(), key=lambda item: item[0])
        )
        return line({"v": VERSION, "groups": len(self.records), "crc32": f"{zlib.crc32(rows):08x}"}) + rows

    @classmethod
    def decode(cls, content: bytes) -> "GroupTable":
        """Return the table that a file holds.

        Raises:
            BadTable: it holds none.
        """
        first, _, rows = content.partition(b"\n")
        head = fields_of(first)
        if head.get("v") != VERSION:
            raise BadTable(f"its first line names no version {VERSION}")
        if head.get("crc32") != f"{zlib.crc32(rows):08x}":
            raise BadTable("its bytes are not those of the checksum in its first line")
        found = [row_of(fields_of(row)) for row in rows.splitlines()]
        if len(dict(found)) != len(found) or len(found) != head.get("groups") or len(found) > GROUPS_MAX:
            raise BadTable(f"it lists {len(found)} groups, which are not those of its first line")
        return cls(dict(found))


def decoded(data: bytes) -> GroupRecord:
    """Return a record whose bytes can be kept as text.

    Raises:
        BadRequest: it is none.
    """
    record = GroupRecord.decode(data)
    try:
        data.decode()
    except UnicodeDecodeError:
        raise BadRequest("a group's record is JSON in UTF-8") from None
    return record


def line(fields: dict[str, Any]) -> bytes:
    """Return fields as a line of a file."""
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def fields_of(row: bytes) -> dict[str, Any]:
    """Return the fields of a line.

    Raises:
        BadTable: it has none.
    """
    try:
        fields = json.loads(row)
    except (ValueError, RecursionError) as error:
        raise BadTable(f"a line is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadTable("a line is no JSON object")
    return fields


def row_of(fields: dict[str, Any]) -> tuple[GroupKey, KeptRecord]:
    """Return a group and its record from a line.

    Raises:
        BadTable: it is none.
    """
    cluster, name, revision, text = map(fields.get, ("cluster", "broker_name", "revision", "record"))
    if not (isinstance(cluster, str) and isinstance(name, str) and isinstance(text, str)):
        raise BadTable("a line names no group and record")
    if not isinstance(revision, int) or isinstance(revision, bool) or not 0 < revision <= REVISION_MAX:
        raise BadTable("a line names no revision")
    try:
        data = text.encode()
        return group_key(cluster, name), KeptRecord(data, GroupRecord.decode(data), revision)
    except (BadRequest, UnicodeEncodeError) as error:
        raise BadTable(f"a line holds no record: {error}") from None
