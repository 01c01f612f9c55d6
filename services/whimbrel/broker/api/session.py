"""Telemetry, Heartbeat and NotifyClientTermination: who is there, and what settings it gets.

A client writes its settings on its Telemetry stream whenever it likes, and every one is answered. Nothing
else depends on them. A client that opened a stream and says nothing for `ASK_AFTER_S` while it goes on
calling has lost a server's memory of it: it is asked to reconnect, which makes the Java, Node and Go SDKs
tell their settings again; the others ignore that, and are served with their group's settings all the same.
Node's SDK drops settings that come before all its routes are known, so it gets them once more.

Streams are never waited for: the outbox is bounded, and what does not fit is dropped (the Python SDK's push
consumer stops reading after its first settings).
"""

import itertools
import logging
from collections.abc import Callable
from typing import Any

from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.tables.clients import Client, Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.errors import ClientIdRequired
from whimbrel.model.names import check_group
from whimbrel.model.topic import GroupConfig
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call, Outbox
from whimbrel.rpc.server.responses import OK, check_client_id, status_of
from whimbrel.rpc.server.settings import group_of, settings_answer, settings_for

__all__ = ["ASK_AFTER_S", "REPEAT_AFTER_S", "SessionService"]

logger = logging.getLogger(__name__)

ASK_AFTER_S = 5.0  # every SDK writes its settings within a second of opening the stream
REPEAT_AFTER_S = 1.5  # Node's SDK knows its routes by then
NODE = "HTTP"  # what the Node SDK calls its language


class SessionService:
    """Handles the session calls on the loop's thread; `sweep` is to be called every second."""

    def __init__(
        self,
        clients: Clients,
        groups: GroupTable,
        *,
        release_client: Callable[[str, str | None], None],
        clock: Callable[[], float],
    ) -> None:
        """Take the registry and the groups; `clock` is the monotonic one."""
        self.clients, self.groups, self.release_client = clients, groups, release_client
        self.clock = clock
        self.streams: set[Stream] = set()
        groups.on_change.append(self.groups_changed)

    def heartbeat(self, call: Call, request: messaging.HeartbeatRequest) -> Any:
        """Note that the client lives, whether it was known or not."""
        group = request.group.name
        if group:
            check_group(group)
        self.clients.seen(
            check_client_id(call),
            call.metadata,
            self.clock(),
            client_type=request.client_type,
            group=group,
        )
        return messaging.HeartbeatResponse(status=OK)

    def terminate(self, call: Call, request: messaging.NotifyClientTerminationRequest) -> Any:
        """Forget a client that stops, and give back what it holds; an unknown one is fine too."""
        name = check_client_id(call)
        self.clients.left(name)
        self.release_client(name, request.group.name or None)
        return messaging.NotifyClientTerminationResponse(status=OK)

    def open_telemetry(self, call: Call, outbox: Outbox) -> "Stream":
        """Take a new Telemetry stream."""
        try:
            client = self.clients.seen(check_client_id(call), call.metadata, self.clock())
        except ClientIdRequired as error:
            outbox.send(messaging.TelemetryCommand(status=status_of(error)))
            outbox.close()
            return Stream(self, None, outbox, self.clock())
        stream = Stream(self, client, outbox, self.clock())
        self.clients.stream_opened(client)
        self.streams.add(stream)
        return stream

    def accept(self, stream: "Stream", settings: v2.Settings) -> None:
        """Note a client's settings and answer them."""
        client = stream.client
        assert client is not None
        client.last_seen = self.clock()
        client.client_type = settings.client_type or client.client_type
        answer = self.complete(settings)  # checks names
        for entry in settings.subscription.subscriptions:
            if entry.expression.type != v2.SQL:  # refused at the receive, with a code of its own
                compile_filter("tag", entry.expression.expression)
        client.group = group_of(settings) or client.group
        stream.settings = settings
        stream.tell(answer)

    def complete(self, settings: v2.Settings) -> v2.Settings:
        """Return the settings as this broker completes them."""
        name = group_of(settings)
        group = self.groups.get(name) or GroupConfig(name=name)
        return settings_for(settings, fifo=group.fifo, attempts=group.max_attempts)

    def groups_changed(self) -> None:
        for stream in tuple(self.streams):
            if stream.settings is not None and group_of(stream.settings):
                answer = self.complete(stream.settings)
                if answer != stream.told:
                    stream.tell(answer)

    def closed(self, stream: "Stream") -> None:
        """Note the end of a stream."""
        self.streams.discard(stream)
        if stream.client is not None:
            self.clients.stream_closed(stream.client, self.clock())

    def sweep(self) -> None:
        """Let go of silent clients, and remind those that owe or missed their settings."""
        now = self.clock()
        for client in self.clients.expire(now):
            if client.group:
                logger.info("client %s of group %s is gone", client.client_id, client.group)
                self.release_client(client.client_id, None)
        for stream in tuple(self.streams):
            stream.remind(now)


nonces = itertools.count(1)


class Stream:
    """One Telemetry stream."""

    def __init__(
        self, session: SessionService, client: Client | None, outbox: Outbox, opened_at: float
    ) -> None:
        self.client = client
        self.outbox = outbox
        self.settings: v2.Settings | None = None
        self.told: v2.Settings | None = None
        self.session = session
        self.opened_at = opened_at
        self.asked = False
        self.repeated = client is None or client.language != NODE

    def received(self, message: messaging.TelemetryCommand) -> None:
        """Take settings; results of commands that we never send are ignored."""
        if self.client is not None and message.HasField("settings"):
            self.session.accept(self, message.settings)

    def half_closed(self) -> None:
        """The client is done: so are we."""
        self.outbox.close()

    def closed(self) -> None:
        """Say goodbye."""
        self.session.closed(self)

    def remind(self, now: float) -> None:
        """Send what the client seems to have missed."""
        assert self.client is not None
        if self.settings is None:
            calls_on = self.client.last_seen > self.opened_at
            if not self.asked and calls_on and now - self.opened_at > ASK_AFTER_S:
                self.asked = True
                command = messaging.TelemetryCommand()
                command.reconnect_endpoints_command.nonce = str(next(nonces))
                self.outbox.send(command)
        elif not self.repeated and now - self.opened_at > REPEAT_AFTER_S:
            self.repeated = True
            if self.told is not None:
                self.tell(self.told)

    def tell(self, settings: v2.Settings) -> None:
        """Send settings; when there is no room, the client has not read those before either."""
        self.told = settings
        self.outbox.send(settings_answer(settings))
