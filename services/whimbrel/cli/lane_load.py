"""The load of `whimbrel bench send` by the compiled lane, which takes a tenth of a core's time of our client.

    Python    the route, a Telemetry stream and heartbeats at each broker (the producer's session), sockets
    lane      HTTP/2 over one socket a broker, calls in turn, latencies (`native/core/src/load.rs`)

Calls have the headers, and messages the fields, of our client library; only `whimbrel-queue-id`, which other
SDKs do not send, is left out. A call that fails is not sent again, and a connection that breaks ends the run:
either is something that a measurement should show.

The lane runs in a thread, in slices of SLICE_S: so Ctrl-C ends it, and the session's loop goes on.
"""

import asyncio
import secrets
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any
from urllib.parse import unquote

import grpc

import whimbrel
from whimbrel.cli.load import Plan, Tally
from whimbrel.client import Producer
from whimbrel.client.ids import EPOCH_S, pack_message_id
from whimbrel.errors import ClientError, NotWritable, Unavailable, WhimbrelError, error_for_code
from whimbrel.lane import Lane
from whimbrel.model.route import Endpoint
from whimbrel.model.wire import DATE_TIME_HEADER, REQUEST_ID_HEADER
from whimbrel.rpc.api.calls import MESSAGING
from whimbrel.rpc.api.status import error_of_code
from whimbrel.rpc.client.native_calls import BY_HTTP, BY_RESET

__all__ = ["left_to_python", "send_by_lane"]

SLICE_S = 0.1  # how long Ctrl-C may wait
CONNECT_S_MAX = 5.0  # for a socket, and for the server's first bytes
UNDER_WAY_BYTES_MAX = 256 << 20  # of bodies; the lane keeps what windows hold back
MESSAGE_BYTES = 256  # beside its body, at most but for a long topic
SEQUENCE_DIGITS = 8  # of a message id
STATUSES = {code.value[0]: code for code in grpc.StatusCode}


def left_to_python(plan: Plan, lane: Lane) -> str:
    """Return why the lane does not send this, as it follows "because"; "" if it does."""
    if lane.native is None:
        return f"the lane is off, because {lane.why}"
    if plan.concurrency * plan.batch * (plan.size + MESSAGE_BYTES) > UNDER_WAY_BYTES_MAX:
        return f"more than {UNDER_WAY_BYTES_MAX >> 20} MiB would be under way"
    return ""


async def send_by_lane(lane: Lane, producer: Producer, plan: Plan, tally: Tally) -> None:
    """Send until the plan is done; what was measured is in the tally also after an error.

    Raises:
        WhimbrelError: there is no queue, a broker can't be reached, a connection broke, or too many calls in
            a row failed.
    """
    queues = await producer.queues(plan.topic)
    if not queues:
        raise NotWritable(f"topic {plan.topic} has no queue that may be written at present")
    targets: dict[Endpoint, list[int]] = {}
    for queue in queues:
        targets.setdefault(producer.session.endpoint(queue), []).append(queue.queue_id)
    stop = threading.Event()
    work = asyncio.create_task(asyncio.to_thread(drive, lane, producer, targets, plan, tally, stop))
    try:
        await asyncio.shield(work)
    finally:
        stop.set()
        await asyncio.gather(work, return_exceptions=True)


def drive(
    lane: Lane,
    producer: Producer,
    targets: dict[Endpoint, list[int]],
    plan: Plan,
    tally: Tally,
    stop: threading.Event,
) -> None:
    """Connect, and let the lane run slice by slice; blocks."""
    assert lane.native is not None
    endpoints = list(targets)
    with ExitStack() as stack:
        sockets = [stack.enter_context(connect(endpoint)) for endpoint in endpoints]
        load = lane.native.SendLoad(
            (plan.topic.encode(), b"x" * plan.size, producer.session.host_name.encode()),
            ids_of(producer),
            [
                (sock.fileno(), headers_of(producer, endpoint), targets[endpoint])
                for sock, endpoint in zip(sockets, endpoints, strict=True)
            ],
            plan.concurrency,
            plan.batch,
            plan.count,
        )
        tally.begin()
        try:
            run(load, plan, stop)
        except ConnectionError as error:
            raise Unavailable(f"{endpoints[load.at]}: {error}") from error
        except lane.native.Broken as error:
            lane.broke(error)
            raise ClientError(
                f"the compiled lane has a fault: {error}; WHIMBREL_LANE=off measures without it"
            ) from error
        finally:
            take(load, plan, tally)
        if load.hopeless:
            raise failure_of(*load.tally()[4])


def run(load: Any, plan: Plan, stop: threading.Event) -> None:
    """Let it run until the plan is done, or `stop` is set."""
    began = time.monotonic()
    ends = None if plan.seconds is None else began + plan.seconds
    stopped = False
    while not stop.is_set():
        now = time.monotonic()
        left = SLICE_S if ends is None or stopped else min(SLICE_S, ends - now)
        if left <= 0:
            load.stop()
            stopped, left = True, SLICE_S
        if not load.run(left):
            return
        if not load.ready and now - began > CONNECT_S_MAX:
            raise ConnectionError(f"the server has said nothing for {CONNECT_S_MAX:g} s")


def connect(endpoint: Endpoint) -> socket.socket:
    """Return a connected socket that does not block.

    Raises:
        Unavailable: there is nobody.
    """
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), CONNECT_S_MAX)
    except OSError as error:
        raise Unavailable(f"no answer from {endpoint}: {error.strerror or error}") from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def ids_of(producer: Producer) -> tuple[bytes, int, bytes, bytes]:
    """Return how message ids and request ids begin, and which header has the date."""
    ids = producer.ids
    first = pack_message_id(
        hardware=ids.hardware,
        process=ids.process,
        seconds=int(time.time()) - EPOCH_S,
        sequence=secrets.randbits(32),
    )
    begin, sequence = first[:-SEQUENCE_DIGITS], int(first[-SEQUENCE_DIGITS:], 16)
    mark = secrets.token_hex(8)
    request = f"{mark[:8]}-{mark[8:12]}-4{mark[12:15]}-8000-"
    return begin.encode(), sequence, request.encode(), DATE_TIME_HEADER.encode()


def headers_of(producer: Producer, endpoint: Endpoint) -> list[tuple[bytes, bytes | None]]:
    """Return the headers of a call as our client has them (`native_channel.py`); None where calls differ."""
    fixed = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", MESSAGING + "SendMessage"),
        (":authority", str(endpoint)),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", f"whimbrel-python/{whimbrel.__version__}"),
        ("grpc-timeout", f"{producer.options.send_timeout_s:.0f}S"),
        *producer.session.headers,
    )
    found: list[tuple[bytes, bytes | None]] = [(name.encode(), value.encode()) for name, value in fixed]
    return [*found, (REQUEST_ID_HEADER.encode(), None), (DATE_TIME_HEADER.encode(), None)]


def take(load: Any, plan: Plan, tally: Tally) -> None:
    """Put what the lane has measured into the tally."""
    messages, counters, greatest_ns, failures, last, ran_ns = load.tally()
    tally.messages, tally.bytes = messages, messages * plan.size
    tally.ended = tally.began + ran_ns / 1e9
    tally.latencies["send"].add_counters(counters, greatest_ns)
    for kind, code, count in failures:
        tally.errors[failure_of(kind, code, "").reason] += count
    if last is not None:
        tally.error = str(failure_of(*last))


def failure_of(kind: str, code: int, text: str) -> WhimbrelError:
    """Return the error that our client would raise."""
    match kind:
        case "code":
            return error_for_code(code, text or f"code {code}")
        case "http":
            status_code = BY_HTTP.get(str(code).encode(), grpc.StatusCode.UNKNOWN)
            return error_of_code(status_code, f"the answer is no gRPC: HTTP status {code}")
        case "reset":
            status_code = BY_RESET.get(code, grpc.StatusCode.INTERNAL)
            return error_of_code(status_code, f"the server has reset the stream: {code}")
    return error_of_code(STATUSES.get(code, grpc.StatusCode.UNKNOWN), unquote(text))
