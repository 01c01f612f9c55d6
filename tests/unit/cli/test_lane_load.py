"""The load by the compiled lane: its calls, and what it says of a server that is not as it should be."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from support.http2.frames import frame
from support.http2.scripted_server import Peer, Script, listening
from support.lane.logs import lane_or_skip
from support.waiting import eventually
from whimbrel.cli import lane_load
from whimbrel.cli.lane_load import drive, failure_of, left_to_python
from whimbrel.cli.latencies import Latencies
from whimbrel.cli.load import FAILURES_MAX, Plan, Tally
from whimbrel.client import Producer
from whimbrel.errors import (
    ConnectionClosed,
    NotSupported,
    ReplicaTimeout,
    Throttled,
    Unavailable,
    WhimbrelError,
)
from whimbrel.lane import Lane
from whimbrel.model.route import Endpoint
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as service
from whimbrel.rpc.http2.frames import GOAWAY, RST_STREAM
from whimbrel.rpc.http2.stream import Data, Headers, Limits

PLAN = Plan(topic="orders", count=None, seconds=None, size=10, concurrency=4, batch=1)
ENDS_S_MAX = 5.0
OK = v2.Status(code=v2.OK)


class Bench:
    """A load against one server, in a thread."""

    def __init__(self, address: str, plan: Plan) -> None:
        host, _, port = address.rpartition(":")
        self.lane = lane_or_skip()
        self.producer = Producer(address)
        self.targets = {Endpoint(host, int(port)): [0, 5]}
        self.plan = plan
        self.tally = Tally({"send": Latencies()})
        self.stop = threading.Event()

    async def run(self) -> None:
        parts = (self.lane, self.producer, self.targets, self.plan, self.tally, self.stop)
        async with asyncio.timeout(ENDS_S_MAX):
            await asyncio.to_thread(drive, *parts)


def response(request: Any, code: Any = v2.OK) -> bytes:
    status = v2.Status(code=code, message=v2.Code.Name(code))
    entries = [service.SendResultEntry(status=status) for _ in request.messages]
    own = OK if code == v2.OK else v2.Status(code=v2.MULTIPLE_RESULTS)
    encoded: bytes = service.SendMessageResponse(status=own, entries=entries).SerializeToString()
    return encoded


def answering(requests: list[Any], *codes: Any) -> Script:
    """Answer every call; the first ones with these codes."""
    left = list(codes)
    parts: dict[int, bytes] = {}

    def script(peer: Peer, event: Any) -> None:
        if isinstance(event, Data):
            body = parts.pop(event.stream.id, b"") + event.data
            if not event.ended:
                parts[event.stream.id] = body
                return
            request = service.SendMessageRequest.FromString(body[5:])
            requests.append(request)
            peer.answer(event.stream, response(request, left.pop(0) if left else v2.OK))

    return script


async def test_calls_and_messages_are_those_of_our_client() -> None:
    requests: list[Any] = []
    async with listening(answering(requests)) as made:
        bench = Bench(made.address, replace(PLAN, count=7, batch=2))
        await bench.run()
    assert [len(request.messages) for request in requests] == [2, 2, 2, 1]
    messages = [message for request in requests for message in request.messages]
    assert len({message.system_properties.message_id for message in messages}) == 7
    for message in messages:
        system = message.system_properties
        assert (message.topic.name, message.body) == ("orders", b"x" * 10)
        assert (system.body_encoding, system.message_type) == (v2.IDENTITY, v2.NORMAL)
        assert system.born_host == bench.producer.session.host_name
        assert abs(system.born_timestamp.ToMicroseconds() / 1e6 - time.time()) < 60
        assert len(system.message_id) == 34
        assert system.message_id[:18] == bench.producer.ids.next()[:18]  # version, machine, process
    assert Counter(message.system_properties.queue_id for message in messages) == {0: 4, 5: 3}
    found = [{field[0]: field[1] for field in event.fields} for event in made.peers[0].of(Headers)]
    fixed = {name: value for name, value in lane_load.headers_of(bench.producer, next(iter(bench.targets)))}
    ids = set()
    for fields in found:
        ids.add(fields[b"x-mq-request-id"])
        assert len(fields[b"x-mq-request-id"]) == 36
        assert fields[b"x-mq-date-time"].startswith(time.strftime("%Y", time.gmtime()).encode())
        assert {name: fields[name] for name, value in fixed.items() if value is not None} == {
            name: value for name, value in fixed.items() if value is not None
        }
    assert len(ids) == 4
    tally = bench.tally
    assert (tally.messages, tally.bytes, tally.latencies["send"].count, tally.errors) == (7, 70, 4, {})


async def test_bodies_go_through_small_windows_and_frames() -> None:
    requests: list[Any] = []
    limits = Limits(window=20_000, connection_window=70_000)
    async with listening(answering(requests), limits=limits) as made:
        await Bench(made.address, replace(PLAN, count=20, size=100_000)).run()
    assert [request.messages[0].body for request in requests] == [b"x" * 100_000] * 20


async def test_failures_count_by_reason_and_too_many_in_a_row_end_it() -> None:
    async with listening(answering([], v2.SLAVE_PERSISTENCE_TIMEOUT)) as made:
        bench = Bench(made.address, replace(PLAN, count=10))
        await bench.run()
        assert (bench.tally.messages, bench.tally.errors) == (9, {"SLAVE_PERSISTENCE_TIMEOUT": 1})
        assert bench.tally.error == "SLAVE_PERSISTENCE_TIMEOUT"
    async with listening(answering([], *[v2.TOO_MANY_REQUESTS] * 1000)) as made:
        bench = Bench(made.address, PLAN)
        with pytest.raises(Throttled, match="TOO_MANY_REQUESTS"):
            await bench.run()
    assert FAILURES_MAX <= bench.tally.errors[Throttled.reason] < FAILURES_MAX + PLAN.concurrency


def first(action: Callable[[Peer, Any], None]) -> Script:
    """Answer 50 calls, and then do this."""
    requests: list[Any] = []
    answer = answering(requests)

    def script(peer: Peer, event: Any) -> None:
        if len(requests) < 50:
            answer(peer, event)
        elif isinstance(event, Data):
            action(peer, event)

    return script


def put(*frames: bytes) -> Callable[[Peer, Any], None]:
    def write(peer: Peer, event: Any) -> None:
        peer.transport.write(b"".join(frames))

    return write


BREACHES = [
    (lambda peer, event: peer.transport.close(), "the server has closed the connection"),
    (lambda peer, event: peer.transport.abort(), "(the connection broke|the server has closed)"),
    (put(frame(GOAWAY, 0, 0, bytes(4) + (2).to_bytes(4, "big") + b"restart")), r"code 2\): restart"),
    (put(frame(RST_STREAM, 0, 2, bytes(4))), "a call that was not made"),
    (put(frame(1, 4, 1, b"\xff" * 9)), "can't be decoded"),
    (put(frame(1, 0, 1, bytes(16_000)), frame(9, 0, 1, bytes(16_000))), "header block that is too large"),
    (put(frame(0, 0, 1, bytes(20_000))), "a frame that is too large"),
    (put(b"\xff" * 100), "a frame that is too large"),
    (lambda peer, event: peer.answer(event.stream, b"\xff\xff"), "no SendMessageResponse"),
    (lambda peer, event: peer.answer(event.stream, b"", b""), "not one message"),
]  # fmt: skip


@pytest.mark.parametrize(("action", "said"), BREACHES)
async def test_a_server_that_breaks_off_ends_the_run_with_a_sentence(
    action: Callable[[Peer, Any], None], said: str
) -> None:
    async with listening(first(action)) as made:
        bench = Bench(made.address, PLAN)
        with pytest.raises(Unavailable, match=said) as caught:
            await bench.run()
    assert str(caught.value).startswith(f"{made.address}: ")
    assert 50 - PLAN.concurrency <= bench.tally.messages <= 50
    assert bench.tally.latencies["send"].count == bench.tally.messages


async def raw(answer: bytes) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("answer", "said"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak HTTP/2"), (b"", r"has said nothing for 0\.3 s")],
)
async def test_who_speaks_no_http2_is_said_so(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str
) -> None:
    monkeypatch.setattr(lane_load, "CONNECT_S_MAX", 0.3)
    async with await raw(answer) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable, match=said):
            await Bench(f"127.0.0.1:{port}", PLAN).run()
    with pytest.raises(Unavailable, match=r"no answer from .*: Connection refused"):
        await Bench(f"127.0.0.1:{port}", PLAN).run()


async def test_it_ends_when_it_is_told_to_also_where_nothing_is_answered() -> None:
    async with listening(first(lambda peer, event: None)) as made:
        bench = Bench(made.address, PLAN)
        running = asyncio.create_task(bench.run())
        await eventually(lambda: made.peers and len(made.peers[0].of(Data)) >= 54)
        began = time.monotonic()
        bench.stop.set()
        await running
        assert time.monotonic() - began < 1.0
    assert bench.tally.messages == 50


async def test_it_ends_after_its_time() -> None:
    async with listening(answering([])) as made:
        bench = Bench(made.address, replace(PLAN, seconds=0.3))
        await bench.run()
    assert 0.2 < bench.tally.seconds < 2.0
    assert bench.tally.messages == bench.tally.latencies["send"].count > 10


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        (("code", 50402, "no slave"), ReplicaTimeout, "no slave"),
        (("code", 0, ""), WhimbrelError, "code 0"),
        (("code", 99999, ""), WhimbrelError, "code 99999"),
        (("status", 14, "gone%20%C3%A4"), Unavailable, "gone ä"),
        (("status", 99, "what"), WhimbrelError, "what"),
        (("reset", 8, ""), ConnectionClosed, "reset the stream: 8"),
        (("reset", 11, ""), Throttled, "reset the stream: 11"),
        (("http", 404, ""), NotSupported, "HTTP status 404"),
        (("http", 503, ""), Unavailable, "HTTP status 503"),
    ],
)
def test_failures_are_those_of_our_client(
    failure: tuple[str, int, str], error: type[WhimbrelError], text: str
) -> None:
    found = failure_of(*failure)
    assert type(found) is error
    assert text in str(found)


def test_what_the_lane_does_not_send_is_sent_by_python() -> None:
    off = Lane("off")
    assert left_to_python(PLAN, off) == "the lane is off, because it is switched off"
    lane = lane_or_skip()
    assert left_to_python(PLAN, lane) == ""
    huge = replace(PLAN, size=4 << 20, concurrency=100)
    assert left_to_python(huge, lane) == "more than 256 MiB would be under way"
