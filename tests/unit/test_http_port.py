"""The small HTTP port, asked by raw sockets: what it answers, and that nobody can hold it."""

import socket
import threading
from collections.abc import Iterator

import pytest

from whimbrel import http_port
from whimbrel.http_port import HEAD_BYTES_MAX, PLACES_MAX, Answer, HttpPort, Request, text_answer


@pytest.fixture
def asked() -> list[Request]:
    return []


@pytest.fixture
def port(asked: list[Request]) -> Iterator[HttpPort]:
    def answer(request: Request) -> Answer:
        asked.append(request)
        if request.path == "/fails":
            raise RuntimeError("no")
        return text_answer(200, "fine")

    made = HttpPort("127.0.0.1", 0, answer, what="test")
    yield made
    made.close()


def connected(port: HttpPort) -> socket.socket:
    host, _, number = port.address.rpartition(":")
    return socket.create_connection((host, int(number)), 10)


def exchange(port: HttpPort, *pieces: bytes) -> bytes:
    """Return everything that a connection gets for these bytes, sent one after the other."""
    with connected(port) as sock:
        for piece in pieces:
            sock.sendall(piece)
        found = b""
        while data := sock.recv(65536):
            found += data
        return found


def until_idle(port: HttpPort) -> None:
    """Return when no connection is served any more."""
    for _ in range(PLACES_MAX):
        assert port.places.acquire(timeout=10), "a place is not free again"
    for _ in range(PLACES_MAX):
        port.places.release()


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1])


def test_a_request_gets_its_answer_and_the_connection_ends(port: HttpPort, asked: list[Request]) -> None:
    answer = exchange(port, b"GET /a?b=c HTTP/1.1\r\nHost: x\r\nACCEPT:  text/plain \r\n\r\n")
    assert answer == (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 5\r\n"
        b"Connection: close\r\n\r\nfine\n"
    )
    assert asked == [Request("GET", "/a", "b=c", {"host": "x", "accept": "text/plain"})]


def test_a_request_may_come_byte_by_byte(port: HttpPort) -> None:
    assert status(exchange(port, *(bytes([byte]) for byte in b"GET / HTTP/1.0\r\n\r\n"))) == 200


def test_head_gets_the_length_and_no_body(port: HttpPort) -> None:
    answer = exchange(port, b"HEAD / HTTP/1.1\r\n\r\n")
    assert b"Content-Length: 5\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_other_methods_are_refused(port: HttpPort, asked: list[Request]) -> None:
    assert status(exchange(port, b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc")) == 405
    assert asked == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET  / HTTP/1.1\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"\xff\x00\xfe \x80 \x81\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEAD_BYTES_MAX // 6 + 1),
    ],
)
def test_garbage_is_a_bad_request(port: HttpPort, asked: list[Request], garbage: bytes) -> None:
    assert status(exchange(port, garbage)) == 400
    assert asked == []


def test_a_client_that_leaves_or_whose_answer_fails_harms_nobody(
    port: HttpPort, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2 * PLACES_MAX):
        connected(port).close()
    until_idle(port)
    assert exchange(port, b"GET /fails HTTP/1.1\r\n\r\n") == b""
    until_idle(port)
    assert "test: a request from" in caplog.text
    assert status(exchange(port, b"GET / HTTP/1.1\r\n\r\n")) == 200


def test_a_client_that_sends_nothing_whole_is_let_go(port: HttpPort, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "REQUEST_S", 0.05)
    assert exchange(port, b"GET / HTT") == b""


def test_who_dawdles_loses_its_place_to_a_newer_connection(port: HttpPort) -> None:
    silent = [connected(port) for _ in range(PLACES_MAX)]
    try:
        silent[1].sendall(b"GET / HTT")
        for number in range(2):
            assert status(exchange(port, b"GET / HTTP/1.1\r\n\r\n")) == 200
            assert silent[number].recv(1) == b""  # the oldest ones went
            silent.append(connected(port))
    finally:
        for sock in silent:
            sock.close()
    until_idle(port)
    assert port.waiting == {}


def test_who_takes_no_answer_loses_its_place_too() -> None:
    large = HttpPort("127.0.0.1", 0, lambda _: Answer(200, [], bytes(16 << 20)), what="test")
    try:
        lazy = [connected(large) for _ in range(PLACES_MAX)]
        for sock in lazy:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert len(exchange(large, b"GET / HTTP/1.1\r\n\r\n")) > 16 << 20
        for sock in lazy:
            sock.close()
        until_idle(large)
    finally:
        large.close()


def test_who_is_being_answered_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def answer(request: Request) -> Answer:
        begun.release()
        go_on.wait(10)
        return text_answer(200, "fine")

    busy = HttpPort("127.0.0.1", 0, answer, what="test")
    try:
        asking = [connected(busy) for _ in range(PLACES_MAX)]
        for sock in asking:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert begun.acquire(timeout=10)
        with connected(busy) as more:
            assert more.recv(1) == b""
        go_on.set()
        for sock in asking:
            assert status(sock.recv(65536)) == 200
            sock.close()
    finally:
        go_on.set()
        busy.close()


def test_a_taken_port_is_refused_with_its_address(port: HttpPort) -> None:
    number = int(port.address.rpartition(":")[2])
    with pytest.raises(OSError, match=f"can't serve test on 127.0.0.1:{number}: is another process there"):
        HttpPort("127.0.0.1", number, lambda _: text_answer(200, ""), what="test")


def test_a_closed_port_takes_no_connection_and_leaves_no_thread(port: HttpPort) -> None:
    port.close()
    assert port.thread not in threading.enumerate()
    with pytest.raises(OSError):
        connected(port)
