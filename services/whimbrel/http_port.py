"""A small HTTP port for a process's metrics and health: GET and HEAD, one request a connection.

Whoever reaches the port may send anything, so all is bounded: the threads that serve (`PLACES_MAX`), the
bytes of a request (`HEAD_BYTES_MAX`), the time for it (`REQUEST_S` from the first byte to the last) and that
for taking the answer. What a request asks of the process, its `answer` decides; it is called in the thread
that serves the connection.

    asks ──(whole request)──► is answered ──► takes the answer ──► gone
      └───────────◄ ended for a newer connection ►───────┘

When all places are taken, the connection that has waited for its client for the longest time is ended, and
the new one gets its place. So clients that dawdle keep nobody out: one that does not is served within
milliseconds. When all places are taken by answers that are being made, the new connection is closed.

The standard library's server would take 4 MB of memory in a replicator that has 10.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

__all__ = ["HEAD_BYTES_MAX", "PLACES_MAX", "REQUEST_S", "Answer", "HttpPort", "Request", "text_answer"]

REQUEST_S = 5.0  # for a client that sends or takes nothing; Prometheus asks for 10 s at most
HEAD_BYTES_MAX = 16 << 10  # of a request; browsers with many cookies stay below
RECEIVE_BYTES = 4096
ACCEPT_RETRY_S = 0.5
ROOM_S = 1.0  # until the thread of a connection that was ended has gone
PLACES_MAX = 4  # connections at a time; each takes a thread. Two Prometheus servers are usual
BACKLOG = 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """A request: `path` without the query, header names in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets; the length is added to the headers."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


def text_answer(status: int, text: str) -> Answer:
    """Return an answer of one line."""
    return Answer(status, [("Content-Type", "text/plain; charset=utf-8")], f"{text}\n".encode())


class HttpPort:
    """A port that is served until `close`.

    Attributes:
        address: `host:port` as bound, an IPv6 host in brackets.
        places: for connections that are served at the moment.
        waiting: those of them whose clients send or take, the longest one first; guarded by `lock`.
    """

    def __init__(self, host: str, port: int, answer: Callable[[Request], Answer], *, what: str) -> None:
        """Listen, and serve in a thread of its own.

        Args:
            host, port: where; port 0 is any free one.
            answer: gives the answer to a request; any thread may call it.
            what: is served, for people.

        Raises:
            OSError: the port is taken, or the host is not one of this machine's; the text says so.
        """
        self.answer, self.what = answer, what
        self.places = threading.BoundedSemaphore(PLACES_MAX)
        self.waiting: dict[socket.socket, None] = {}
        self.lock = threading.Lock()
        self.ended = threading.Event()
        try:
            self.listener = listen(host, port)
        except OSError as error:
            shown = joined(host, port)
            raise OSError(
                f"can't serve {what} on {shown}: is another process there? ({error.strerror or error})"
            ) from error
        bound = self.listener.getsockname()
        self.address = joined(str(bound[0]), int(bound[1]))
        self.thread = threading.Thread(target=self.accept, name=what, daemon=True)
        self.thread.start()

    def accept(self) -> None:
        """Accept connections; the port's own thread."""
        while not self.ended.is_set():
            try:
                sock, peer = self.listener.accept()
            except OSError:  # out of descriptors: the connection is still there, and so is the next attempt
                self.ended.wait(ACCEPT_RETRY_S)
                continue
            if not self.places.acquire(blocking=False) and not self.make_room():
                sock.close()
                continue
            try:
                threading.Thread(target=self.serve, args=(sock, peer), name=self.what, daemon=True).start()
            except RuntimeError:  # no more threads
                self.places.release()
                sock.close()

    def make_room(self) -> bool:
        """End the connection that has waited longest, and take its place; False: there is none."""
        with self.lock:
            longest = next(iter(self.waiting), None)
            if longest is None:
                return False
            del self.waiting[longest]
            with contextlib.suppress(OSError):  # its client has just left
                longest.shutdown(socket.SHUT_RDWR)  # wakes its thread
        return self.places.acquire(timeout=ROOM_S)

    def note(self, sock: socket.socket, *, waits: bool) -> None:
        """Note whether a connection waits for its client."""
        with self.lock:
            self.waiting.pop(sock, None)
            if waits:
                self.waiting[sock] = None

    def serve(self, sock: socket.socket, peer: object) -> None:
        """Serve one connection; runs in its thread."""
        try:
            with sock:
                try:
                    self.respond(sock)
                finally:
                    self.note(sock, waits=False)
        except OSError as error:
            logger.debug("%s: a request from %s ended early: %s", self.what, peer, error)
        except Exception:
            logger.exception("%s: a request from %s failed", self.what, peer)
        finally:
            self.places.release()

    def respond(self, sock: socket.socket) -> None:
        """Read a request and write its answer.

        Raises:
            OSError: the client was too slow, or has left.
        """
        self.note(sock, waits=True)
        head = receive_head(sock, time.monotonic() + REQUEST_S)
        if head is None:
            return
        self.note(sock, waits=False)
        request = parsed(head)
        if request is None:
            answer = text_answer(400, "this is no request of HTTP")
        elif request.method not in ("GET", "HEAD"):
            answer = text_answer(405, "only GET and HEAD are served")
        else:
            answer = self.answer(request)
        body = answer.body if request is None or request.method != "HEAD" else b""
        self.note(sock, waits=True)
        sock.settimeout(REQUEST_S)
        sock.sendall(head_of(answer) + body)
        sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Accept nothing more; a request that is being answered is not waited for."""
        self.ended.set()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self.thread.join()
        self.listener.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; an empty host means all interfaces."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def receive_head(sock: socket.socket, deadline: float) -> bytes | None:
    """Return a request up to its blank line, or as much as is taken; None when the client has left.

    Raises:
        TimeoutError: it was not there in time.
    """
    head = b""
    while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES_MAX:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no whole request came in time")
        sock.settimeout(left)
        data = sock.recv(RECEIVE_BYTES)
        if not data:
            return None
        head += data
    return head


def parsed(head: bytes) -> Request | None:
    """Return a request; None when it is none, or too long."""
    text, blank, _ = head.partition(b"\r\n\r\n")
    first, *lines = text.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if not blank or len(words) != 3 or not words[1].startswith("/") or not words[2].startswith("HTTP/1."):
        return None
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            return None
        headers[name.strip().lower()] = value.strip()
    path, _, query = words[1].partition("?")
    return Request(words[0], path, query, headers)


def head_of(answer: Answer) -> bytes:
    """Return the head of an answer."""
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    lines += [f"Content-Length: {len(answer.body)}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
