"""Telemetry, Heartbeat and NotifyClientTermination: which clients are alive, their settings, and commands.

A client writes its settings on its Telemetry stream whenever it likes, and every one is answered. Nothing
else depends on them. A client that opened a stream and writes no settings for `RECONNECT_AFTER_S` while it
makes other calls assumes that the server still knows them: it is asked to reconnect, which makes the Java,
Node and Go SDKs write their settings again; the others ignore that, and are served with their group's
settings all the same. Node's SDK drops settings that come before all its routes are known, so it gets them
once more.

`send_command` sends a command to a client or to each client of a group:

    send_command --nonce--> streams --> answers with the nonce --> on_answer(client id, answer)
                               '-- none for COMMAND_TIMEOUT_S --> on_answer(client id, None)

Streams are never waited for: the outbox is bounded, and what does not fit is dropped (the Python SDK's push
consumer stops reading after its first settings).

**What is kept.** Settings may be long, and are answered whole: an answer is what the client wrote, completed.
Of a stream stays `Answered`, some hundred bytes: its group, and what SDKs read of an answer. When the group
is changed they get that part again, without their own list of topics. A client has at most
`CLIENT_STREAMS_MAX` streams, of which the oldest ends for a new one, and all of them `STREAMS_MAX`; then new
ones are refused.
"""

import itertools
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from whimbrel.broker.consume.dead_letters import attempts_max
from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.tables.clients import Client, Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.errors import ClientIdRequired, IllegalFilter, Throttled
from whimbrel.model.names import check_group
from whimbrel.model.topic import GroupConfig
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.credentials import IgnoredCredentials
from whimbrel.rpc.server.handlers import Call, Outbox
from whimbrel.rpc.server.producers import Producers
from whimbrel.rpc.server.responses import OK, check_client_id, status_of
from whimbrel.rpc.server.settings import group_of, settings_for, settings_response

__all__ = [
    "CLIENT_STREAMS_MAX",
    "COMMANDS_PENDING_MAX",
    "COMMAND_TIMEOUT_S",
    "RECONNECT_AFTER_S",
    "REPEAT_AFTER_S",
    "STREAMS_MAX",
    "ClientStream",
    "OnAnswer",
    "SessionService",
]

logger = logging.getLogger(__name__)

RECONNECT_AFTER_S = 5.0  # every SDK writes its settings within a second of opening the stream
REPEAT_AFTER_S = 1.5  # Node's SDK knows its routes by then
NODE = "HTTP"  # what the Node SDK calls its language
COMMAND_TIMEOUT_S = 5.0  # RocketMQ: ProxyConfig.grpcProxyRelayRequestTimeoutInSeconds
COMMANDS_PENDING_MAX = 1024  # commands whose answers are awaited; operators send few at a time
# Commands that a nonce ties to their answers. An orphaned transaction is answered by an EndTransaction call.
WITH_NONCE = ("reconnect_endpoints_command", "print_thread_stack_trace_command", "verify_message_command")
CLIENT_STREAMS_MAX = 16  # an SDK has one for each broker
STREAMS_MAX = 50_000
ANSWERS = ("thread_stack_trace", "verify_message_result")

# Called with the client's id and its answer, or None when none came in time.
OnAnswer = Callable[[str, messaging.TelemetryCommand | None], None]


@dataclass(slots=True)
class PendingCommand:
    """A command whose answers are awaited: from these clients, until then."""

    clients: set[str]
    deadline: float
    on_answer: OnAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What stays of settings that were answered.

    Attributes:
        language: number of `apache.rocketmq.v2.Language`, on which the form of the backoff depends.
        group: the configuration that the answer had, the table's own object; None for producers.
    """

    client_type: int
    language: int
    group: GroupConfig | None

    def settings(self) -> v2.Settings:
        """Return the settings that a server decides, without what the client wrote of its topics."""
        wrote = v2.Settings()
        wrote.client_type = self.client_type  # type: ignore[assignment]  # the stub wants the enum's class
        wrote.user_agent.language = self.language  # type: ignore[assignment]
        if self.group is None:
            wrote.publishing.SetInParent()
            return settings_for(wrote)
        wrote.subscription.group.name = self.group.name
        return answer_of(wrote, self.group)


def answer_of(wrote: v2.Settings, group: GroupConfig) -> v2.Settings:
    """Return the answer to settings, for a consumer of this group."""
    return settings_for(wrote, fifo=group.fifo, attempts=attempts_max(group), policy=group.retry_policy)


class SessionService:
    """Handles the session calls on the loop's thread; `sweep` is to be called every second."""

    def __init__(
        self,
        clients: Clients,
        groups: GroupTable,
        release_client: Callable[[str, str | None], None],
        *,
        clock: Callable[[], float],
    ) -> None:
        """Take the registry and the groups.

        Args:
            clients: the known clients.
            groups: for the settings of their groups.
            release_client: gives back the leases of a client in a group, None for all groups.
            clock: seconds of the monotonic clock.
        """
        self.clients, self.groups = clients, groups
        self.release_client = release_client
        self.clock = clock
        self.credentials = IgnoredCredentials()
        self.producers = Producers()
        self.streams: dict[str, list[ClientStream]] = {}  # by client id, the latest last
        self.stream_count = 0
        self.nonces = itertools.count(1)
        self.pending: dict[str, PendingCommand] = {}  # by nonce, the next to time out first
        groups.on_change.append(self.groups_changed)

    # Calls

    def heartbeat(self, call: Call, request: messaging.HeartbeatRequest) -> Any:
        """Note that the client is alive, whether it was known or not."""
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
        """Forget a client that stops, and give back its leases; an unknown one is fine too."""
        name = check_client_id(call)
        self.clients.left(name)
        self.release_client(name, request.group.name or None)
        return messaging.NotifyClientTerminationResponse(status=OK)

    # Streams

    def open_telemetry(self, call: Call, outbox: Outbox) -> "ClientStream":
        """Take a new Telemetry stream."""
        self.credentials.note(call, self.clock())
        if self.stream_count >= STREAMS_MAX:
            raise Throttled(f"{STREAMS_MAX} Telemetry streams are open, and no more are taken")
        try:
            client = self.clients.seen(check_client_id(call), call.metadata, self.clock())
        except ClientIdRequired as error:
            outbox.send(messaging.TelemetryCommand(status=status_of(error)))
            outbox.close()
            return ClientStream(self, None, outbox, self.clock())
        stream = ClientStream(self, client, outbox, self.clock())
        self.clients.stream_opened(client)
        self.stream_count += 1
        streams = self.streams.setdefault(client.client_id, [])
        streams.append(stream)
        if len(streams) > CLIENT_STREAMS_MAX:
            streams[0].outbox.close(Throttled(f"{CLIENT_STREAMS_MAX} newer streams of this client are open"))
        return stream

    def all_streams(self) -> "list[ClientStream]":
        """Return the open streams of all clients."""
        return list(itertools.chain.from_iterable(self.streams.values()))

    def accept(self, stream: "ClientStream", settings: v2.Settings) -> None:
        """Note a client's settings and answer them."""
        client = stream.client
        assert client is not None
        client.last_seen = self.clock()
        client.client_type = settings.client_type or client.client_type
        name = group_of(settings)
        group = self.group(name)
        answer = answer_of(settings, group)  # checks names
        filters = [entry.expression for entry in settings.subscription.subscriptions]
        for kind, text in {(each.type, each.expression) for each in filters}:
            if kind != v2.SQL:
                compile_filter("tag", text)
            elif not text:  # RocketMQ: the same; a text that does not parse is refused at each receive
                raise IllegalFilter("an SQL filter is empty")
        client.group = name or client.group
        for topic in settings.publishing.topics:
            self.producers.name(topic.name, client.client_id)
        stream.answered = Answered(
            client_type=settings.client_type,
            language=settings.user_agent.language,
            group=group if name else None,
        )
        stream.outbox.send(settings_response(answer))

    def group(self, name: str) -> GroupConfig:
        """Return a group's configuration; of one that does not exist that which it would get."""
        return self.groups.get(name) or GroupConfig(name=name)

    def groups_changed(self) -> None:
        """Send the settings that a change of a group has changed."""
        for stream in self.all_streams():
            answered = stream.answered
            if answered is None or (before := answered.group) is None:
                continue
            group = self.group(before.name)
            if group is before:
                continue
            stream.answered = replace(answered, group=group)
            if any(
                getattr(group, name) != getattr(before, name)
                for name in ("fifo", "max_attempts", "retry_policy")
            ):
                stream.send_again()

    def closed(self, stream: "ClientStream") -> None:
        """Note the end of a stream."""
        client = stream.client
        if client is None:
            return
        self.stream_count -= 1
        streams = self.streams[client.client_id]
        streams.remove(stream)
        if not streams:
            del self.streams[client.client_id]
        self.clients.stream_closed(client, self.clock())

    # Commands

    def send_command(
        self,
        command: messaging.TelemetryCommand,
        *,
        client_id: str = "",
        group: str = "",
        on_answer: OnAnswer | None = None,
    ) -> int:
        """Send a command to the open streams of a client, or to one stream of each client of a group.

        Args:
            command: sent as a copy, with a nonce where commands of its kind have one.
            client_id: the client.
            group: the group instead; its clients are those that named it themselves.
            on_answer: called once for each client that the command went to: with its answer, or with None
                after `COMMAND_TIMEOUT_S`. None: answers are ignored.

        Returns:
            How many streams took it. 0: no such client has a stream, their outboxes are full, or
            `COMMANDS_PENDING_MAX` commands await answers already.
        """
        assert bool(client_id) != bool(group)
        if client_id:
            return self.post(command, self.streams.get(client_id, ()), on_answer)
        names = [client.client_id for client in self.clients.of_group(group)]
        return self.post(
            command, [self.streams[name][-1] for name in names if name in self.streams], on_answer
        )

    def send_to_newest(self, command: messaging.TelemetryCommand, client_id: str) -> bool | None:
        """Send a command that a call answers to a client's newest stream; return whether that took it, None
        without one."""
        streams = self.streams.get(client_id)
        return streams[-1].outbox.send(command) if streams else None

    def post(
        self,
        command: messaging.TelemetryCommand,
        streams: "Iterable[ClientStream]",
        on_answer: OnAnswer | None = None,
    ) -> int:
        """Send a command to these streams; see `send_command`."""
        if on_answer is not None and len(self.pending) >= COMMANDS_PENDING_MAX:
            return 0
        posted = messaging.TelemetryCommand()
        posted.CopyFrom(command)
        nonce = str(next(self.nonces))
        kind = posted.WhichOneof("command")
        if kind in WITH_NONCE:
            getattr(posted, kind).nonce = nonce
        took = [stream for stream in streams if stream.outbox.send(posted)]
        if took and on_answer is not None:
            clients = {stream.client.client_id for stream in took if stream.client is not None}
            self.pending[nonce] = PendingCommand(clients, self.clock() + COMMAND_TIMEOUT_S, on_answer)
        return len(took)

    def command_answered(self, client: Client, nonce: str, answer: messaging.TelemetryCommand) -> None:
        """Hand a client's answer to whoever awaits it; one that nobody awaits is ignored."""
        command = self.pending.get(nonce)
        if command is None or client.client_id not in command.clients:
            return
        command.clients.remove(client.client_id)
        if not command.clients:
            del self.pending[nonce]
        command.on_answer(client.client_id, answer)

    def expire_commands(self, now: float) -> None:
        """Report the answers that did not come in time."""
        while self.pending:
            nonce, command = next(iter(self.pending.items()))
            if now < command.deadline:
                return
            del self.pending[nonce]
            for client_id in sorted(command.clients):
                command.on_answer(client_id, None)

    # Time

    def sweep(self) -> None:
        """Forget silent clients, remind those without settings, and end commands without an answer."""
        now = self.clock()
        for client in self.clients.expire(now):
            if client.group:
                logger.info("client %s of group %s is gone", client.client_id, client.group)
                self.release_client(client.client_id, None)
        for stream in self.all_streams():
            stream.remind(now)
        self.expire_commands(now)


class ClientStream:
    """One Telemetry stream; without a client it was refused, and only waits for its end."""

    def __init__(
        self, session: SessionService, client: Client | None, outbox: Outbox, opened_at: float
    ) -> None:
        self.client = client
        self.outbox = outbox
        self.answered: Answered | None = None
        self.session = session
        self.opened_at = opened_at
        self.reconnect_sent = False
        self.repeated = client is None or client.language != NODE

    def received(self, message: messaging.TelemetryCommand) -> None:
        """Take settings, and answers to commands."""
        if self.client is None:
            return
        kind = message.WhichOneof("command")
        if kind == "settings":
            self.session.accept(self, message.settings)
        elif kind in ANSWERS:
            self.session.command_answered(self.client, getattr(message, kind).nonce, message)

    def half_closed(self) -> None:
        """End the stream from our side as well."""
        self.outbox.close()

    def closed(self) -> None:
        """Take it off the client's streams."""
        self.session.closed(self)

    def remind(self, now: float) -> None:
        """Send what the client seems to have missed."""
        assert self.client is not None
        if self.answered is None:
            calls_on = self.client.last_seen > self.opened_at
            if not self.reconnect_sent and calls_on and now - self.opened_at > RECONNECT_AFTER_S:
                self.reconnect_sent = True
                reconnect = messaging.ReconnectEndpointsCommand()
                self.session.post(messaging.TelemetryCommand(reconnect_endpoints_command=reconnect), (self,))
        elif not self.repeated and now - self.opened_at > REPEAT_AFTER_S:
            self.repeated = True
            self.send_again()

    def send_again(self) -> None:
        """Send what stays of the settings; without room, the client has not read those before either."""
        assert self.answered is not None
        self.outbox.send(settings_response(self.answered.settings()))
