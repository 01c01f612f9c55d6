"""Positions in queues: as a query's checkpoint holds them, and as a person writes them.

    checkpoint   {"v": 1, "q": {"orders": {"broker-a": {"0": 123}}}}    the next offset to read, by queue
                 "w": ["broker-b"]                                     brokers that are awaited, see below
    option       {"orders": {"broker-a": {"0": 23, "1": -1}}}           -2 earliest, -1 latest

A broker that was away when a query began is awaited: its queues start where the query's options say when they
are first seen, `latest` at the end that they have then. Other queues that come later are new, and read whole.

All ranges are half open. A checkpoint of an unknown version, from another release, is an error.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

__all__ = [
    "AWAY",
    "EARLIEST",
    "LATEST",
    "Key",
    "Positions",
    "WrongCheckpoint",
    "awaited_in",
    "from_checkpoint",
    "from_option",
    "to_checkpoint",
]

VERSION = 1
LATEST, EARLIEST = -1, -2
AWAY = "away"  # key beside the offsets that a stream reports: brokers that are away, and why

Key = tuple[str, str, int]  # topic, broker name, queue id
Positions = dict[Key, int]


class WrongCheckpoint(ValueError):
    """A checkpoint is of another release, or no checkpoint of ours."""


def to_checkpoint(positions: Mapping[Key, int], awaited: Collection[str] = ()) -> dict[str, Any]:
    """Return positions, and the brokers that are awaited, as a checkpoint holds them."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for (topic, broker, queue_id), offset in sorted(positions.items()):
        topics.setdefault(topic, {}).setdefault(broker, {})[str(queue_id)] = offset
    return {"v": VERSION, "q": topics} | ({"w": sorted(awaited)} if awaited else {})


def awaited_in(value: Mapping[str, Any]) -> frozenset[str]:
    """Return the brokers that a checkpoint awaits."""
    return frozenset(map(str, value.get("w", ())))


def from_checkpoint(value: Mapping[str, Any]) -> Positions:
    """Return the positions in a checkpoint.

    Raises:
        WrongCheckpoint: it is of another release, or no checkpoint of ours.
    """
    if value.get("v") != VERSION:
        raise WrongCheckpoint(
            f"the checkpoint holds offsets of version {value.get('v')!r}, and this release knows {VERSION}:"
            " start with a new checkpoint, or with the release that wrote it"
        )
    return flat(value["q"])


def from_option(name: str, text: str) -> Positions:
    """Return the positions that a person wrote.

    Raises:
        ValueError: the text has another form.
    """
    try:
        positions = flat(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{name}: {text!r} is not of the form {{"TOPIC": {{"BROKER": {{"QUEUE": OFFSET}}}}}}'
        ) from error
    if any(offset < EARLIEST for offset in positions.values()):
        raise ValueError(f"{name}: an offset is 0 or more, -1 (latest) or -2 (earliest)")
    return positions


def flat(topics: Mapping[str, Mapping[str, Mapping[str, int]]]) -> Positions:
    """Return nested positions by key."""
    return {
        (topic, broker, int(queue_id)): int(offset)
        for topic, brokers in topics.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }
