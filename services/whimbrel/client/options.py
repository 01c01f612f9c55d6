"""Options of clients, with the reason for each default. Durations are seconds."""

from dataclasses import dataclass, field
from typing import Any

from whimbrel.client.retry import RetryPolicy
from whimbrel.model.limits import POLL_MS_MAX, RECEIVE_BATCH_MAX
from whimbrel.rpc.client.channel import ClientTransport

__all__ = ["ClientOptions", "ConsumerOptions", "ProducerOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Options of all clients.

    Attributes:
        request_timeout_s: how long one call may take; the official SDKs' value.
        route_ttl_s: age at which a route is fetched again without an error; RocketMQ's poll interval.
        heartbeat_s: interval of heartbeats to brokers; they forget a client after about ten times that.
        namespace: sent with every name; brokers without namespaces ignore it.
        client_id: how brokers tell clients apart; left empty, one is made from host, process and a random
            part.
        retry: when and how often failed calls are repeated.
        tracer_provider: OpenTelemetry's, for the spans of this client; None takes the program's, if it has
            set one.
        transport: "native" is our own HTTP/2, "grpcio" grpc.aio; None takes what WHIMBREL_CLIENT_TRANSPORT
            names, else the default.
    """

    request_timeout_s: float = 3.0
    route_ttl_s: float = 30.0
    heartbeat_s: float = 10.0
    namespace: str = ""
    client_id: str = ""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    tracer_provider: Any = None
    transport: ClientTransport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """Options of producers.

    Attributes:
        send_timeout_s: how long one attempt of a send may take. Above the 5 s that a broker waits for its
            disk and its slaves, so that its own response (stored, but not confirmed) arrives instead of a
            mere timeout. Where a route names several members, and messages may be sent again
            (`RetryPolicy.duplicates`), it is 4 s at most: the next member is asked then.
        oneway_max: one-way sends that may be under way; the next one is refused, so that memory stays
            bounded.
    """

    send_timeout_s: float = 10.0
    oneway_max: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """Options of consumers.

    Attributes:
        invisible_s: how long received messages stay hidden from the rest of the group.
        long_polling_s: how long a receive waits for the first message, unless the call says otherwise.
        batch_max: messages received with one call; brokers give no more than 32.
        concurrency: handlers that `Consumer.run` lets run at a time.
        assignment_s: how often the assignments are fetched; the official SDKs' value.
        nack_s: delays before the next delivery after the first, second... failure of a handler, the last one
            repeated; used only when the broker's settings have none.
        close_grace_s: how long `Consumer.run` lets running handlers finish when it is cancelled.
    """

    invisible_s: float = 30.0
    long_polling_s: float = POLL_MS_MAX / 1000
    batch_max: int = RECEIVE_BATCH_MAX
    concurrency: int = 20
    assignment_s: float = 5.0
    nack_s: tuple[float, ...] = (1.0, 5.0, 10.0, 30.0, 60.0)
    close_grace_s: float = 10.0
