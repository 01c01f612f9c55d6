"""A connection of the remoting protocol without bytes: what handlers push and ask is kept."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Reply

__all__ = ["FakePeer", "Later", "command", "json_of", "reply_to", "tables"]


class FakePeer:
    """A connection, as handlers see it.

    Attributes:
        pushed: code and fields of oneway requests. bodies: their bodies.
        asked: requests that wait, with what completes them.
    """

    def __init__(self, peer: str = "127.0.0.1:40001") -> None:
        self.peer = peer
        self.overloaded = False
        self.pushed: list[tuple[int, dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.asked: list[tuple[int, dict[str, str], bytes, Deferred[Command]]] = []
        self.closed = False

    def push(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> bool:
        if self.closed:
            return False
        self.pushed.append((int(code), dict(fields)))
        self.bodies.append(body)
        return True

    def ask(self, code: int, fields: Mapping[str, str], body: bytes, seconds: float) -> Deferred[Command]:
        deferred: Deferred[Command] = Deferred()
        self.asked.append((int(code), dict(fields), body, deferred))
        return deferred

    def close(self) -> None:
        self.closed = True


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
