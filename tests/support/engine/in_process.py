"""A whole broker on the test's own loop, a master that takes writes, and its two fronts without sockets.

    async with in_process(root) as broker:
        broker.call("SendMessage", request)             a call by `apache.rocketmq.v2`, as its server makes it
        broker.request(310, fields, body)               a request by the remoting protocol
        broker.connect(), broker.connect_remote()       connections that take bytes, and what they write

Nothing is flushed or replicated before an answer, unless the options say so; the lane is off unless one is
given.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from support.http2.in_memory import Sink
from support.remoting.handlers import FakePeer
from support.waiting import until_async
from whimbrel.broker.broker import Broker
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.roles.master import MasterRole
from whimbrel.errors import WhimbrelError
from whimbrel.lane import Lane
from whimbrel.machine import Machine
from whimbrel.model.topic import TopicConfig
from whimbrel.model.wire import CLIENT_ID_HEADER, MESSAGING_SERVICE
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import reply_to_error
from whimbrel.rpc.server.connection import NativeConnection
from whimbrel.rpc.server.handlers import Call, Method, UnaryMethod
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.remoting import RemotingConnection

__all__ = ["CLIENT", "InProcess", "in_process"]

CLIENT = "client@1"
PEER = "10.0.0.9:5000"


class InProcess:
    """A running broker and its fronts."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peer = FakePeer(PEER)

    @property
    def role(self) -> MasterRole:
        """The role that serves."""
        assert isinstance(self.broker.role, MasterRole)
        return self.broker.role

    @property
    def context(self) -> Any:
        """What the broker shares with its roles."""
        assert self.broker.context is not None
        return self.broker.context

    @property
    def server(self) -> NativeServer:
        """The native transport's."""
        return cast(NativeServer, self.broker.server)

    def topic(self, name: str, queues: int = 4, **fields: Any) -> TopicConfig:
        """Make a topic."""
        made = TopicConfig(name=name, read_queues=queues, write_queues=queues, **fields)
        self.context.topics.put(made)
        return made

    def method(self, name: str) -> Method:
        """Return a method of `apache.rocketmq.v2`, as its server has it."""
        return next(
            each
            for service in self.broker.services
            if service.name == MESSAGING_SERVICE
            for each in service.methods
            if each.name == name
        )

    def call(self, name: str, request: Any, headers: Mapping[str, str] | None = None) -> Any:
        """Call a method of one answer; return that, or a `Deferred` of it."""
        method = self.method(name)
        assert isinstance(method, UnaryMethod) and method.fail is not None
        call = Call(f"/{MESSAGING_SERVICE}/{name}", PEER, {CLIENT_ID_HEADER: CLIENT, **(headers or {})}, None)
        try:
            return method.handle(call, request)
        except WhimbrelError as error:
            return method.fail(call, error)

    def request(self, code: int, fields: Mapping[str, Any], body: bytes = b"", version: int = 399) -> Any:
        """Send a request by the remoting protocol; return the reply, or a `Deferred` of it."""
        assert self.broker.remoting is not None
        texts = {name: str(value) for name, value in fields.items()}
        try:
            return self.broker.remoting.handles[code](
                self.peer, Command(code, 7, texts, body, version=version)
            )
        except WhimbrelError as error:
            return reply_to_error(error)

    def connect(self) -> tuple[NativeConnection, Sink]:
        """Return a new connection of HTTP/2, and what it writes."""
        connection, sink = NativeConnection(self.server, self.server.loop.time()), Sink()
        connection.connection_made(sink)
        return connection, sink

    def connect_remote(self) -> tuple[RemotingConnection, Sink]:
        """Return a new connection of the remoting protocol, and what it writes."""
        connection, sink = RemotingConnection(self.server, self.server.loop.time()), Sink()
        connection.connection_made(sink)
        return connection, sink


@asynccontextmanager
async def in_process(
    root: Path, *, lane: Lane | None = None, machine: Machine | None = None, **options: Any
) -> AsyncIterator[InProcess]:
    """Start a master, or a slave where the options say so, and stop it in the end.

    Args:
        root: an empty directory for its store; a slave's has what a master has left there.
        lane: the compiled lane; None: it is off. machine: None: the real one.
        options: of `BrokerOptions`.
    """
    settings: dict[str, Any] = {
        "store": str(root), "name": "broker-a", "host": "127.0.0.1", "port": 0, "nameservers": (),
        "flush": "async", "commitlog_file_size": 64 << 20,
    } | options  # fmt: skip
    machine = machine or Machine()
    machine.lane = lane or Lane("off")
    broker = Broker(BrokerOptions(**settings), machine=machine)
    await broker.start()
    try:
        role = broker.role
        if isinstance(role, MasterRole):
            await until_async(lambda: not role.appender.refusal, what="taking writes")
        yield InProcess(broker)
    finally:
        server = cast(NativeServer, broker.server)
        for connection in list(server.connections):
            if isinstance(cast(Any, connection).transport, Sink):
                connection.connection_lost(None)
        await broker.stop()
