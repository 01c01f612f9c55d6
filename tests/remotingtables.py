"""Requests of the remoting protocol to handlers that are called without a connection, and their replies."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remotingkit import FakePeer
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Reply

__all__ = ["Later", "command", "json_of", "reply_to", "tables"]


class Later:
    """What is to be called later, and when."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Any]] = []

    def __call__(self, seconds: float, callback: Any) -> None:
        self.due.append((seconds, callback))

    def run(self) -> list[float]:
        """Call what is due, but not what that asks for; return after which times it was."""
        due, self.due = self.due, []
        for _, callback in due:
            callback()
        return [seconds for seconds, _ in due]


def command(code: int, body: Any = b"", /, **fields: object) -> Command:
    """Return a request of Java's; a body that is no bytes goes as JSON."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Command(code, 1, {name: str(value) for name, value in fields.items()}, sent)


def reply_to(handles: Mapping[int, Handle], peer: FakePeer, request: Command) -> Reply:
    """Return what a handler answers at once."""
    found = handles[request.code](peer, request)
    assert isinstance(found, Reply), found
    return found


def json_of(reply: Reply) -> Any:
    """Return the body, which is standard JSON."""
    return json.loads(b"".join(reply.body))


def tables(
    path: Path, *, auto_topics: bool = False, auto_groups: bool = True
) -> tuple[TopicTable, GroupTable]:
    """Return the tables of a fresh broker."""
    topics = TopicTable(
        path, cluster="C", broker_name="broker-a", auto_create=auto_topics, clock=lambda: 1_000
    )
    return topics, GroupTable(path, auto_create=auto_groups, clock=lambda: 1_000)
