"""Clients' Telemetry streams at the nameserver: settings are answered, and producers are asked for brokers.

A broker asks about a transaction that nobody has ended. Where no producer of the topic has a stream to it, it
asks the nameservers by AskProducer, one after the other, and one sends the question to a producer whose
stream ends there: Rust's SDK reads commands from its access point only. The producer's answer is an
EndTransaction, which is handed on to the broker as every other one (`calls.py`). A question goes no further
than to a client: one hop.

A client counts as a topic's producer as at a broker (`rpc/server/producers.py`): since it has named the topic
in its settings, or ended a transaction of it. Kept are the newest stream of each, of `STREAMS_MAX` clients at
most: beyond, clients are served and not asked. All other commands are for brokers.
"""

from whimbrel.errors import ClientIdRequired
from whimbrel.model.names import check_topic
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry_pb
from whimbrel.rpc.server.handlers import Call, Outbox
from whimbrel.rpc.server.producers import Producers
from whimbrel.rpc.server.responses import check_client_id
from whimbrel.rpc.server.settings import settings_for, settings_response

__all__ = ["STREAMS_MAX", "Sessions", "TelemetryHandler"]

STREAMS_MAX = 10_000  # of some hundred bytes each


class Sessions:
    """Who can be asked. On the loop's thread."""

    def __init__(self) -> None:
        """Begin without any."""
        self.producers = Producers()
        self.streams: dict[str, TelemetryHandler] = {}  # by client id, of producers

    def open(self, call: Call, outbox: Outbox) -> "TelemetryHandler":
        """Take a new stream."""
        try:
            return TelemetryHandler(self, check_client_id(call), outbox)
        except ClientIdRequired:
            return TelemetryHandler(self, "", outbox)

    def accept(self, stream: "TelemetryHandler", message: messaging.TelemetryCommand) -> None:
        """Note a client's settings and answer them; a full outbox drops that: its client does not read."""
        settings = message.settings
        stream.outbox.send(settings_response(settings_for(settings)))
        full = len(self.streams) >= STREAMS_MAX and stream.client_id not in self.streams
        if not stream.client_id or not settings.HasField("publishing") or full:
            return
        self.streams[stream.client_id] = stream
        for topic in settings.publishing.topics:
            self.producers.name(topic.name, stream.client_id)

    def ended(self, client_id: str, topic: str) -> None:
        """Note that a client ends transactions of a topic."""
        if client_id in self.streams:
            self.producers.name(topic, client_id)

    def closed(self, stream: "TelemetryHandler") -> None:
        """Forget a stream, unless its client has a newer one."""
        if self.streams.get(stream.client_id) is stream:
            del self.streams[stream.client_id]

    def ask_producer(
        self, call: Call, request: registry_pb.AskProducerRequest
    ) -> registry_pb.AskProducerResponse:
        """Send a broker's question to one producer of the topic, another one each time."""
        check_topic(request.topic)
        command = messaging.TelemetryCommand(recover_orphaned_transaction_command=request.question)

        def ask(client_id: str) -> bool | None:
            stream = self.streams.get(client_id)
            return None if stream is None else stream.outbox.send(command)

        return registry_pb.AskProducerResponse(asked=bool(self.producers.ask_one(request.topic, ask)))


class TelemetryHandler:
    """A client's Telemetry stream."""

    def __init__(self, sessions: Sessions, client_id: str, outbox: Outbox) -> None:
        """Take who it is; empty where it does not say."""
        self.sessions, self.client_id, self.outbox = sessions, client_id, outbox

    def received(self, message: messaging.TelemetryCommand) -> None:
        """Respond to settings."""
        if message.HasField("settings"):
            self.sessions.accept(self, message)

    def half_closed(self) -> None:
        """End the stream."""
        self.outbox.close()

    def closed(self) -> None:
        """Nobody asks it any more."""
        self.sessions.closed(self)
