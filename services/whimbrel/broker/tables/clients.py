"""The clients of this broker: SDK instances by client id.

A client is known from its first call on, whatever that is: after a restart of the broker the SDKs go on with
sends, receives and heartbeats for up to ten minutes before they write their settings again, so nothing here
waits for settings.

    unknown --any call, or a Telemetry stream--> known --NotifyClientTermination--> gone
                                                   |----silent for SILENT_S--------> gone
                                                   '----stream lost, silent for LOST_S> gone

The leases of a consumer that has gone are given back by the caller of `left` and `expire`. Pure: times are
seconds of the monotonic clock, and arguments.

Ids are chosen by the callers, so their number is bounded: beyond `CLIENTS_MAX` the one that has been without
a Telemetry stream for longest is forgotten, to be known again from its next call on. Where all have one, a
new client is served, and not noted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from whimbrel.model.wire import LANGUAGE_HEADER, VERSION_HEADER

__all__ = ["CLIENTS_MAX", "LOST_S", "SILENT_S", "Client", "Clients"]

CLIENTS_MAX = 50_000  # with the longest ids 40 MB
SILENT_S = 120.0  # RocketMQ's; the slowest SDK (Rust) sends a heartbeat every 30 s
LABEL_CHARS_MAX = 64  # of what a client says of its language and version
LOST_S = 35.0  # with its stream gone as well, one missed heartbeat of the slowest SDK is enough


@dataclass(slots=True, eq=False)
class Client:
    """One SDK instance.

    Attributes:
        client_type: number of `apache.rocketmq.v2.ClientType`; 0 until the client has sent it.
        group: its consumer group; empty for producers.
        streams: its open Telemetry streams.
    """

    client_id: str
    language: str
    version: str
    last_seen: float
    client_type: int = 0
    group: str = ""
    streams: int = 0
    stream_lost: bool = False


class Clients:
    """The known clients. Reading and writing cost the same however many there are."""

    def __init__(self) -> None:
        """Begin without clients."""
        self.clients: dict[str, Client] = {}
        self.streamless: dict[str, Client] = {}  # those without an open stream, the longest first

    def __len__(self) -> int:
        return len(self.clients)

    def seen(
        self,
        client_id: str,
        metadata: Mapping[str, str],
        now: float,
        *,
        client_type: int = 0,
        group: str = "",
    ) -> Client:
        """Note a call; a type and a group in it replace the known ones."""
        client = self.clients.get(client_id)
        if client is None:
            client = Client(client_id, label(metadata, LANGUAGE_HEADER), label(metadata, VERSION_HEADER), now)
            self.note(client)
        client.last_seen = now
        if client_type:
            client.client_type = client_type
        if group:
            client.group = group
        return client

    def note(self, client: Client) -> None:
        """Take a new client into the table, if there is room or can be made some."""
        if len(self.clients) >= CLIENTS_MAX:
            longest = next(iter(self.streamless), None)
            if longest is None:
                return
            self.left(longest)
        self.clients[client.client_id] = self.streamless[client.client_id] = client

    def get(self, client_id: str) -> Client | None:
        """Return the client, or None."""
        return self.clients.get(client_id)

    def stream_opened(self, client: Client) -> None:
        """Note a Telemetry stream."""
        client.streams += 1
        client.stream_lost = False
        self.streamless.pop(client.client_id, None)

    def stream_closed(self, client: Client, now: float) -> None:
        """Note the end of a stream: it counts as a call, so that `LOST_S` begins now."""
        client.streams -= 1
        if client.streams <= 0:
            client.stream_lost = True
            client.last_seen = max(client.last_seen, now)
            if self.clients.get(client.client_id) is client:
                self.streamless[client.client_id] = client

    def alive(self, client_id: str) -> bool:
        """Return whether the client is known and not taken for gone."""
        return client_id in self.clients

    def alive_in(self, group: str, client_id: str) -> bool:
        """Tell whether the client is alive; a client is in one group only."""
        return self.alive(client_id)

    def left(self, client_id: str) -> Client | None:
        """Forget a client that stops; return it."""
        self.streamless.pop(client_id, None)
        return self.clients.pop(client_id, None)

    def expire(self, now: float) -> list[Client]:
        """Forget the silent clients; return them."""
        gone = [
            client
            for client in self.streamless.values()
            if now - client.last_seen > (LOST_S if client.stream_lost else SILENT_S)
        ]
        for client in gone:
            self.left(client.client_id)
        return gone

    def all(self) -> list[Client]:
        """Return all clients, in no order; may run in any thread."""
        return list(self.clients.values())

    def of_group(self, group: str) -> list[Client]:
        """Return the clients of a consumer group, by id."""
        return sorted(
            (client for client in self.clients.values() if client.group == group),
            key=lambda client: client.client_id,
        )


def label(metadata: Mapping[str, str], header: str) -> str:
    """Return what a client says of itself in a header, as far as it may be shown; nothing depends on it."""
    text = metadata.get(header, "")[:LABEL_CHARS_MAX]
    return text if text.isprintable() else ""
