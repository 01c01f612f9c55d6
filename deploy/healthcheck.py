"""Checks the process of this container: exit code 0 if it is healthy, else 1 and one line with the reason.

    python -I -S healthcheck.py READY_FILE

The engine runs it every second in each container. So it imports little of the standard library, and nothing
else, and it checks only what always holds while the process works:

    nameserver, broker    the standard gRPC health service answers SERVING: the event loop runs
    replicator            the beat in the shared page is fresh: its loop runs (store/shared_page.py)
    master's replicator   and its HA port listens; a connection would occupy a slave's place for a moment

Beats are times of CLOCK_MONOTONIC, which all containers of a machine share.
"""

import json
import socket
import struct
import sys
import time

TIMEOUT_S = 1.0
BEAT_MAX_NS = 3_000_000_000  # as in store/page_processes.py
BEAT_AT = 144  # `replica_beat_ns` in the shared page
LISTENING = "0A"  # in /proc/net/tcp

# A call of grpc.health.v1.Health/Check in HTTP/2: the preface, our settings, the header fields (RFC 7541:
# indexed fields of the static table, and literals), and an empty message of five bytes.
DATA, HEADERS, SETTINGS, GOAWAY = 0, 1, 4, 7
END_STREAM, END_HEADERS = 1, 4
SERVING = b"\x08\x01"


class Unhealthy(Exception):
    """The reason why the process is not healthy."""


def literal(prefix: bytes, *texts: bytes) -> bytes:
    """Return a literal header field."""
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
    """Check the time of the last round of the replicator's loop."""
    with open(f"{store}/whimbrel/watermark", "rb") as page:  # noqa: PTH123 - importing pathlib takes time
        page.seek(BEAT_AT)
        (beat,) = struct.unpack("=q", page.read(8))
    age_ns = time.monotonic_ns() - beat
    if age_ns > BEAT_MAX_NS:
        raise Unhealthy(f"the replicator's loop has not turned for {age_ns / 1e9:.1f} s")


def check_listens(address: str) -> None:
    """Check that a process listens on a port."""
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
