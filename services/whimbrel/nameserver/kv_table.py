"""Values that RocketMQ's tools keep at name servers, by namespace and key, as a value. Pure.

RocketMQ itself uses one namespace: `ORDER_TOPIC_CONFIG` says for a topic how many queues each broker has for
ordered messages, `broker-a:4;broker-b:4`. Clients take exactly those queues for theirs, and can't use a route
whose text they can't read, so it is checked here.

The encoded table is that of RocketMQ's `kvConfig.json`, which may be taken over:

    {"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}

Bounds: `ENTRIES_MAX` and `BYTES_MAX` of all together.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from whimbrel.errors import BadRequest, Forbidden
from whimbrel.model.limits import ROUTE_QUEUES_MAX

__all__ = ["BYTES_MAX", "ENTRIES_MAX", "FILE_BYTES_MAX", "ORDER_NAMESPACE", "BadKvTable", "KvTable"]

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
ENTRIES_MAX: Final = 4096  # one for each topic with an order
BYTES_MAX: Final = 1 << 20  # of names and values, in UTF-8; the whole table is written with each change
FILE_BYTES_MAX: Final = 8 * BYTES_MAX  # a control character takes six bytes, and people may indent


class BadKvTable(Exception):
    """The text holds no table, or too much."""


@dataclass(frozen=True, slots=True)
class KvTable:
    """The values, by namespace and key."""

    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value; None: there is none."""
        return self.namespaces.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> "KvTable":
        """Return the table with a value.

        Raises:
            BadRequest: it is the order of a topic, and can't be read as such.
            Forbidden: there would be too much.
        """
        if namespace == ORDER_NAMESPACE:
            check_order(value)
        after = KvTable({**self.namespaces, namespace: {**self.namespaces.get(namespace, {}), key: value}})
        after.check_size()
        return after

    def delete(self, namespace: str, key: str) -> "KvTable":
        """Return the table without a value; a namespace without one is gone."""
        left = {name: value for name, value in self.namespaces.get(namespace, {}).items() if name != key}
        others = {name: table for name, table in self.namespaces.items() if name != namespace}
        return KvTable({**others, namespace: left} if left else others)

    def check_size(self) -> None:
        """Check the bounds.

        Raises:
            Forbidden: there is too much.
        """
        entries = sum(map(len, self.namespaces.values()))
        if entries > ENTRIES_MAX:
            raise Forbidden(f"{entries} values are too many, {ENTRIES_MAX} are allowed; delete some")
        size = sum(
            bytes_of(namespace) + bytes_of(key) + bytes_of(value)
            for namespace, table in self.namespaces.items()
            for key, value in table.items()
        )
        if size > BYTES_MAX:
            raise Forbidden(f"keys and values have {size} bytes, {BYTES_MAX} are allowed; delete some")

    def encode(self) -> bytes:
        """Return the table as text of a file."""
        text = json.dumps({"configTable": self.namespaces}, separators=(",", ":"), sort_keys=True)
        return text.encode() + b"\n"

    @classmethod
    def decode(cls, text: bytes) -> "KvTable":
        """Return the table in the text of a file, of ours or of RocketMQ; a null stands for no value.

        Raises:
            BadKvTable: it holds none, or too much.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadKvTable(f"it is no JSON: {error}") from error
        tables = found.get("configTable") if isinstance(found, dict) else None
        if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
            raise BadKvTable("it has no configTable, by namespace and key")
        namespaces = {
            namespace: {key: value for key, value in table.items() if value is not None}
            for namespace, table in tables.items()
        }
        if not all(isinstance(value, str) for table in namespaces.values() for value in table.values()):
            raise BadKvTable("it has values that are no texts")
        kept = cls({namespace: table for namespace, table in namespaces.items() if table})
        try:
            for value in kept.namespaces.get(ORDER_NAMESPACE, {}).values():
                check_order(value)
            kept.check_size()
        except (BadRequest, Forbidden) as error:
            raise BadKvTable(str(error)) from error
        return kept


def bytes_of(text: str) -> int:
    """Return how long a text is in UTF-8."""
    return len(text.encode("utf-8", "replace"))


def check_order(value: str) -> None:
    """Check how many queues each broker has for ordered messages; an empty text stands for no order.

    Raises:
        BadRequest: a client could not read it, or would make too many queues by it.
    """
    queues = 0
    # Java's own reader forgives what is empty at the end, and nowhere else.
    for entry in value.rstrip(";").split(";") if value else ():
        name, _, count = entry.partition(":")
        if not (name and count.isascii() and count.isdigit() and len(count) <= 9):
            raise BadRequest(
                f"the order of a topic is BROKER:QUEUES, with ; between brokers, as broker-a:4;broker-b:4;"
                f" {entry[:80]!r} is no such entry"
            )
        queues += int(count)
    if queues > ROUTE_QUEUES_MAX:
        raise BadRequest(f"the order of a topic names {queues} queues; {ROUTE_QUEUES_MAX} are the most")
