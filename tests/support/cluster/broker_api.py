"""The client API and the administration of one broker as plain calls, with no client library between."""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc

from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.rpc.http2.grpc_format import PREFIX
from whimbrel.rpc.server.calls import framed

__all__ = [
    "STREAMS",
    "Api",
    "Received",
    "as_messages",
    "duration",
    "log_end",
    "message",
    "queue",
    "replication",
]

ADMIN = "/whimbrel.admin.v1.AdminService/"
STREAMS = {"ReceiveMessage", "PullMessage"}


def as_messages(kind: type[Any], responses: Sequence[Any]) -> list[Any]:
    """Return what handlers answered as messages, also what they had serialised already."""
    found = []
    for response in responses:
        data, at = framed(response), 0
        while at < len(data):
            end = at + PREFIX.size + int.from_bytes(data[at + 1 : at + PREFIX.size], "big")
            found.append(kind.FromString(data[at + PREFIX.size : end]))
            at = end
    return found


class Api:
    """Calls of one client."""

    def __init__(self, channel: grpc.Channel, client: str | None = "client@1", **headers: str) -> None:
        self.channel = channel
        self.headers = [("x-mq-client-id", client)] if client is not None else []
        self.headers += [(name.replace("_", "-"), text) for name, text in headers.items()]

    def start(self, name: str, /, *, timeout: float = 10.0, **fields: Any) -> Any:
        """Begin a call; returns its future, or its stream."""
        request = getattr(messaging, f"{name}Request")
        kind = self.channel.unary_stream if name in STREAMS else self.channel.unary_unary
        call: Any = kind(
            f"/apache.rocketmq.v2.MessagingService/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=getattr(messaging, f"{name}Response").FromString,
        )
        begin = call if name in STREAMS else call.future
        return begin(request(**fields), timeout=timeout, metadata=self.headers)

    def __call__(self, name: str, /, *, timeout: float = 10.0, **fields: Any) -> Any:
        started = self.start(name, timeout=timeout, **fields)
        return list(started) if name in STREAMS else started.result()

    def telemetry(self, commands: Iterator[Any]) -> Any:
        call = self.channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=messaging.TelemetryCommand.SerializeToString,
            response_deserializer=messaging.TelemetryCommand.FromString,
        )
        return call(commands, timeout=30, metadata=tuple(self.headers))

    def send(self, topic: str, *bodies: bytes, **system: Any) -> Any:
        return self("SendMessage", messages=[message(topic, body, **system) for body in bodies])

    def receive(
        self, topic: str, group: str, *, batch: int = 32, poll_s: float = 0, **fields: Any
    ) -> "Received":
        invisible = fields.pop("invisible_s", 30)
        fields.setdefault("invisible_duration", duration(invisible))
        if poll_s is not None:
            fields["long_polling_timeout"] = duration(poll_s)
        frames = self(
            "ReceiveMessage",
            group=v2.Resource(name=group),
            message_queue=queue(topic, -1),
            batch_size=batch,
            timeout=fields.pop("timeout", 10.0),
            **fields,
        )
        return Received(frames)

    def ack(self, topic: str, group: str, *handles: str) -> Any:
        return self(
            "AckMessage",
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            entries=[messaging.AckMessageEntry(message_id="id", receipt_handle=handle) for handle in handles],
        )

    def change(self, topic: str, group: str, handle: str, seconds: float) -> Any:
        return self(
            "ChangeInvisibleDuration",
            group=v2.Resource(name=group),
            topic=v2.Resource(name=topic),
            receipt_handle=handle,
            invisible_duration=duration(seconds),
            message_id="id",
        )

    def route(self, topic: str, scheme: Any = v2.IPv4, host: str = "127.0.0.1", namespace: str = "") -> Any:
        return self(
            "QueryRoute",
            topic=v2.Resource(name=topic, resource_namespace=namespace),
            endpoints=v2.Endpoints(scheme=scheme, addresses=[v2.Address(host=host, port=8081)]),
        )

    def administer(self, name: str, /, **fields: Any) -> Any:
        request = getattr(admin, f"{name}Request")
        call = self.channel.unary_unary(
            ADMIN + name,
            request_serializer=request.SerializeToString,
            response_deserializer=getattr(admin, f"{name}Response").FromString,
        )
        return call(request(**fields), timeout=10)


class Received:
    """The frames of one receive, sorted; the order is checked."""

    def __init__(self, frames: Sequence[Any]) -> None:
        kinds = [frame.WhichOneof("content") for frame in frames]
        assert kinds == ["status", *["message"] * (len(frames) - 2), "delivery_timestamp"]
        self.code = frames[0].status.code
        self.messages = [frame.message for frame in frames[1:-1]]
        self.handles = [got.system_properties.receipt_handle for got in self.messages]
        self.bodies = sorted(got.body for got in self.messages)
        self.attempts = [got.system_properties.delivery_attempt for got in self.messages]


def replication(endpoint: str) -> Any:
    """Return what a broker says of its replication."""
    with grpc.insecure_channel(endpoint) as channel:
        return Api(channel).administer("DescribeReplication")


def log_end(endpoint: str) -> int:
    """Return where a broker's log ends."""
    return int(replication(endpoint).log_end)


def duration(seconds: float) -> Any:
    made = messaging.ReceiveMessageRequest().invisible_duration
    made.seconds, made.nanos = int(seconds), round(seconds % 1 * 1e9)
    return made


def queue(topic: str, queue_id: int) -> Any:
    return v2.MessageQueue(topic=v2.Resource(name=topic), id=queue_id)


def message(topic: str, body: bytes, **system: Any) -> Any:
    properties = system.pop("properties", {})
    defaults: dict[str, Any] = {
        "message_id": "01" * 17,
        "body_encoding": v2.IDENTITY,
        "message_type": v2.NORMAL,
    }
    return v2.Message(
        topic=v2.Resource(name=topic),
        body=body,
        user_properties=properties,
        system_properties=v2.SystemProperties(**(defaults | system)),
    )
