"""Tells whether the process of this container serves: exit code 0, or 1 and one line that says what is wrong.

    python -I -S healthcheck.py READY_FILE

The engine runs it every second in each container, so it needs nothing but the standard library, starts in
20 ms, and asks only for what can't be wrong while the process works:

    nameserver, broker    the standard gRPC health service answers SERVING: the event loop turns
    replicator            the beat in the page of marks is fresh: its loop turns (store/shared_page.py)
    master's replicator   and its HA port listens; connecting would take a slave's place for a moment

A beat is CLOCK_MONOTONIC's, which all containers of a machine share.
"""

import json
import socket
import struct
import sys
import time

TIMEOUT_S = 1.0
BEAT_MAX_NS = 3_000_000_000  # as store/shared_page.py has it
BEAT_AT = 144  # `replica_beat_ns` in the page of marks
LISTENING = "0A"  # in /proc/net/tcp

# A call of grpc.health.v1.Health/Check as HTTP/2 has it: the preface, our settings, the header fields
# (RFC 7541: indexed fields of the static table, and literals), and an empty message of five bytes.
DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
END_STREAM, END_HEADERS = 1, 4
SERVING = b"\x08\x01"


class Unhealthy(Exception):
    """What is wrong."""


def literal(prefix: bytes, *texts: bytes) -> bytes:
    """Return a header field that is written out."""
    return prefix + b"".join(bytes([len(text)]) + text for text in texts)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


REQUEST = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(SETTINGS, 0, 0)
    + frame(
        HEADERS,
        END_HEADERS,
        1,
        b"\x83\x86"  # POST, http
        + literal(b"\x04", b"/grpc.health.v1.Health/Check")
        + literal(b"\x01", b"localhost")
        + literal(b"\x0f\x10", b"application/grpc")
        + literal(b"\x00", b"te", b"trailers"),
    )
    + frame(DATA, END_STREAM, 1, bytes(5))
)


def check_grpc(address: str) -> None:
    """Ask the gRPC health service."""
    port = int(address.rpartition(":")[2])
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as sock, sock.makefile("rb") as answer:
            sock.sendall(REQUEST)
            while len(head := answer.read(9)) == 9:
                length, kind, flags, stream = struct.unpack("!IBBI", b"\0" + head)
                payload = answer.read(length)
                if kind == DATA and stream == 1:
                    if payload[5:] == SERVING:
                        return
                    raise Unhealthy(f"port {port}: it says that it does not serve")
                if kind == GOAWAY or (kind == HEADERS and flags & END_STREAM):
                    break
    except OSError as error:
        raise Unhealthy(f"port {port}: {error}") from error
    raise Unhealthy(f"port {port}: no answer to a health check")


def check_beat(store: str) -> None:
    """Look at the time of the replicator's last turn."""
    with open(f"{store}/whimbrel/watermark", "rb") as page:  # noqa: PTH123 - importing pathlib takes 10 ms
        page.seek(BEAT_AT)
        (beat,) = struct.unpack("=q", page.read(8))
    age_ns = time.monotonic_ns() - beat
    if age_ns > BEAT_MAX_NS:
        raise Unhealthy(f"the replicator's loop has not turned for {age_ns / 1e9:.1f} s")


def check_listens(address: str) -> None:
    """Look whether anything listens on a port."""
    port = int(address.rpartition(":")[2])
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:  # noqa: PTH123
                for line in lines:
                    words = line.split()
                    if words[1].endswith(wanted) and words[3] == LISTENING:
                        return
        except FileNotFoundError:  # no IPv6
            continue
    raise Unhealthy(f"nothing listens on the HA port {port}")


def check(ready_file: str) -> None:
    """Check the process that wrote this ready file."""
    try:
        with open(ready_file, encoding="utf-8") as file:  # noqa: PTH123
            facts = json.load(file)
    except FileNotFoundError:
        raise Unhealthy("it is still starting: there is no ready file") from None
    if facts["grpc"]:
        check_grpc(facts["grpc"])
    else:
        check_beat(facts["store"])
        if facts["ha"]:
            check_listens(facts["ha"])


if __name__ == "__main__":
    try:
        check(sys.argv[1])
    except (Unhealthy, OSError, ValueError) as error:
        sys.exit(f"not healthy: {error}")
