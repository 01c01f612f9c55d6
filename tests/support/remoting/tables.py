"""Requests of the remoting protocol to handlers that are called without a connection, and their replies."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.broker.consumption import FakeClock, FakeJournal
from support.remoting.handlers import FakePeer
from support.store.stores import NOW, make_draft, open_master
from whimbrel.broker.consume.client_positions import ClientPositions
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.remoting.traffic import Traffic
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.remoting_clients import Consumes, Identity, RemotingClients
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import WhimbrelError
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Reply, reply_to_error

__all__ = ["Broker", "Later", "command", "json_of", "reply_to", "tables"]


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


class Broker:
    """What handlers stand on: tables, members, a store and the positions of groups.

    Attributes:
        now: the monotonic clock in seconds, which members go by.
    """

    def __init__(self, root: Path, *, master: bool = True, auto_groups: bool = True) -> None:
        self.now = 1000.0
        self.master = master
        self.topics, self.groups = tables(root, auto_groups=auto_groups)
        self.clients = RemotingClients(compile_filter)
        self.store = open_master(root / "store")
        self.consumption = GroupConsumption(
            self.store,
            FakeJournal(),
            FakeClock().waiting(),
            broker_name="broker-a",
            broker_id=0,
            now_ms=lambda: NOW,
            schedule=lambda at_ms, callback: None,
            client_alive=lambda group, client_id: True,
            follows=not master,
        )
        self.consumption.open()
        self.positions = ClientPositions(self.consumption.positions, monotonic=time.monotonic)
        self.traffic = Traffic("DefaultCluster")
        self.peer = FakePeer()
        self.handles: dict[int, Handle] = {}

    def close(self) -> None:
        self.consumption.close()
        self.store.close()

    def topic(self, name: str = "T", queues: int = 4, **more: Any) -> TopicConfig:
        made = TopicConfig(name=name, read_queues=queues, write_queues=queues, **more)
        self.topics.put(made)
        return made

    def group(self, name: str = "G", **more: Any) -> GroupConfig:
        made = GroupConfig(name=name, **more)
        self.groups.put(made)
        return made

    def put(self, count: int = 1, topic: str = "T", queue_id: int = 0) -> None:
        """Store messages."""
        for number in range(count):
            self.store.append([make_draft(number, topic=topic, queue_id=queue_id)])
        self.store.end_tick()

    def join(self, peer: FakePeer, group: str = "G", *topics: str, **more: Any) -> None:
        """Have a connection consume in a group."""
        language, version = more.pop("language", "JAVA"), more.pop("version", 399)
        named = {topic: self.clients.subscription(topic, 1, "*", sql=False) for topic in topics or ("T",)}
        identity = Identity(more.pop("client", f"id-{peer.peer}"), language, version)
        self.clients.consumes(peer, identity, Consumes(group=group, topics=named, **more), self.now)

    def outcome(
        self, code: int, body: Any = b"", /, *, peer: FakePeer | None = None, **fields: object
    ) -> Outcome:
        """Handle a request as a connection does."""
        try:
            return self.handles[code](peer or self.peer, command(code, body, **fields))
        except WhimbrelError as error:
            return reply_to_error(error)

    def __call__(self, code: int, body: Any = b"", /, **fields: Any) -> Reply:
        """Handle a request that is answered at once."""
        found = self.outcome(code, body, **fields)
        assert isinstance(found, Reply), found
        return found

    def json(self, code: int, body: Any = b"", /, **fields: Any) -> Any:
        """Return the body of a reply, which is standard JSON."""
        reply = self(code, body, **fields)
        assert reply.code == 0, reply
        return json_of(reply)
