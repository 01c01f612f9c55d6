"""Where a topic's queues are, as clients see it: endpoints, queues, routes.

`Endpoint.parse` and `check_host` read every address that comes from outside, be it a setting or a field that
another process sent.
"""

from dataclasses import dataclass
from typing import Self

from whimbrel.model.limits import HOST_CHARS_MAX

__all__ = ["WILDCARD_HOSTS", "Endpoint", "Queue", "Route", "check_address", "check_host", "parse_endpoints"]

WILDCARD_HOSTS = frozenset({"", "0.0.0.0", "::"})  # to listen on every interface; nobody's address
PORT_DIGITS_MAX = 5
TEXT_CHARS_MAX = HOST_CHARS_MAX + len("[]:") + PORT_DIGITS_MAX
SHOWN_CHARS_MAX = 80  # of a text that is refused


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """A host and port that can be dialled; IPv6 hosts are kept without brackets."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the endpoint in `host:port` or `[v6]:port`.

        Raises:
            ValueError: there is no host, or no port in 1..65535; the text says which.
        """
        given = text.strip()
        if len(given) > TEXT_CHARS_MAX:
            raise ValueError(f"{given[:SHOWN_CHARS_MAX]!r}… is not HOST:PORT: it has {len(given)} characters")
        if "/" in given or not is_plain(given):
            raise ValueError(f"{text!r} is not HOST:PORT; write it without http:// and spaces")
        host, colon, port = given.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: put the IPv6 address in brackets, as in [::1]:8081")
        if not colon or not host:
            raise ValueError(f"{text!r} is not of the form HOST:PORT, as in 127.0.0.1:8081")
        # Digits of other scripts are digits to `isdigit`, and some of them are none to `int`.
        digits = port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX
        if not digits or not 0 < int(port) < 65536:
            raise ValueError(f"{text!r}: the port must be a number from 1 to 65535")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Return the endpoints in a list separated by `;` or `,`, in order, without repeats.

    Raises:
        ValueError: the list is empty, or one of its items is not an endpoint.
    """
    items = [item for item in text.replace(";", ",").split(",") if item.strip()]
    if not items:
        raise ValueError("the endpoint is empty; write HOST:PORT, as in 127.0.0.1:8081")
    return tuple(dict.fromkeys(Endpoint.parse(item) for item in items))


def check_address(setting: str, text: str) -> None:
    """Check the value of a setting that holds an address.

    Raises:
        ValueError: it is not of the form HOST:PORT; the text begins with the setting.
    """
    try:
        Endpoint.parse(text)
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


def check_host(setting: str, text: str) -> None:
    """Check the value of a setting, or of a field of another process, that holds a host alone.

    Raises:
        ValueError: it holds a port, too, or is a URL, or too long; the text begins with the setting.
    """
    if len(text) > HOST_CHARS_MAX:
        raise ValueError(f"{setting}: {len(text)} characters are too many; {HOST_CHARS_MAX} are allowed")
    if "/" in text or text.count(":") == 1 or not is_plain(text):
        raise ValueError(f"{setting}: {text!r} is not a host: write a name or an address, without a port")


def is_plain(text: str) -> bool:
    """Return whether a text has neither spaces nor control characters."""
    return text.isprintable() and " " not in text


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue of a topic on one broker.

    Attributes:
        broker_name: shared by a master and its slaves.
        broker_id: 0 for the one that clients use: the master, or the slave that acts for a lost one.
        queue_id: -1 means any queue of the broker.
        endpoints: where the broker is dialled; all of them lead to the same broker.
        message_types: that it takes, by name; empty when the response left it out.
    """

    topic: str
    broker_name: str
    broker_id: int
    queue_id: int
    readable: bool
    writable: bool
    endpoints: tuple[Endpoint, ...]
    message_types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """All queues of a topic, in the order of the response."""

    topic: str
    queues: tuple[Queue, ...]

    def writable(self) -> tuple[Queue, ...]:
        """Return the queues that take messages."""
        return tuple(queue for queue in self.queues if queue.writable and queue.broker_id == 0)

    def readable(self) -> tuple[Queue, ...]:
        """Return the queues that may be read, of the brokers that clients should ask first."""
        return tuple(queue for queue in self.queues if queue.readable and queue.broker_id == 0)

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return one endpoint for each broker in the route."""
        return tuple(dict.fromkeys(queue.endpoints[0] for queue in self.queues if queue.endpoints))
