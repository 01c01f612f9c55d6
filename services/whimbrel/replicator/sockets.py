"""Sockets for replication: addresses, and the options that suit a long, one-way stream."""

import contextlib
import os
import select
import socket

from whimbrel.errors import StoreError
from whimbrel.model.route import WILDCARD_HOSTS

__all__ = ["Network", "advertised_host", "named", "tune"]

LISTEN_BACKLOG = 64
# Loopback and LAN streams run at half speed or less under bbr, which paces them; cubic is in every kernel.
CONGESTION_CONTROL = b"cubic"


SockAddress = tuple[str, int] | tuple[str, int, int, int]


def advertised_host(wanted: str, listening: str) -> str:
    """Return the host under which slaves dial a listener: what an operator wants, or what it says itself."""
    return wanted or (socket.gethostname() if listening in WILDCARD_HOSTS else listening)


def named(address: SockAddress) -> str:
    """Return an address as `host:port`, an IPv6 host in brackets."""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tune(sock: socket.socket) -> None:
    """Set what the stream wants: small reports leave at once, large frames at full speed."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # best effort: not compiled in, or not allowed
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)


class Network:
    """What a replicator asks of the network. Tests put another one in its place."""

    def resolve(self, host: str, port: int) -> list[tuple[int, SockAddress]]:
        """Return the (family, address) pairs of a host, best first; blocks as long as the resolver takes.

        Raises:
            OSError: the name is not known.
        """
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(int(family), address) for family, _, _, _, address in found]  # type: ignore[misc]

    def listen(self, host: str, port: int) -> socket.socket:
        """Return a socket that listens.

        Raises:
            StoreError: the address is not ours, or taken.
        """
        try:
            family, address = self.resolve(host, port)[0]
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise StoreError(f"can't listen on {host}:{port}: {error}") from error
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tune(sock)
            sock.bind(address)
            sock.listen(LISTEN_BACKLOG)
        except OSError as error:
            sock.close()
            raise StoreError(f"can't listen on {host}:{port}: {error}") from error
        return sock

    def stream(self, family: int) -> socket.socket:
        """Return a socket to connect with."""
        return socket.socket(family, socket.SOCK_STREAM)

    def ended(self, sock: socket.socket) -> bool:
        """Return whether the other end has closed a connection, or it is lost, whatever is still unread."""
        poll = select.poll()
        poll.register(sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def send_file(self, sock: socket.socket, fd: int, position: int, count: int) -> int:
        """Send a part of a file; return how much of it."""
        return os.sendfile(sock.fileno(), fd, position, count)
