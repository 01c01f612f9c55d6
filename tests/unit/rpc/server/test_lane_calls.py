"""Calls that the compiled lane has parked, and connections that it gives back: what Python makes of them."""

import asyncio
import random
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from support.http2.frames import frame, frames_of
from support.lane.brokers import SERVICE, Client, Side, answers, plain_message, same
from support.lane.connected import OPTIONS, Rig, run
from support.lane.logs import lane_or_skip
from whimbrel.broker.api.response_bytes import varint
from whimbrel.broker.engine import targets
from whimbrel.errors import Forbidden
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.frames import DATA, HEAD_BYTES, PING, RST_STREAM, SETTING, SETTINGS, WINDOW_UPDATE
from whimbrel.rpc.http2.hpack import HeaderDecoder, HpackError, value_of
from whimbrel.rpc.http2.sending import GONE_KEPT
from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.lane_calls import IDLE_READS_EACH, IDLE_READS_MAX
from whimbrel.rpc.server.limits import HeaderGuard


def test_parked_calls_are_answered_when_they_are_durable(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        rig.feed(rig.send() + rig.send())
        assert (rig.lane.parked, rig.connection.open_calls, rig.codes()) == (2, 2, {})
        assert rig.side.appender.waiting_count == 2
        rig.side.settle()
        assert (rig.lane.parked, rig.connection.open_calls, rig.side.appender.waiting_count) == (0, 0, 0)
        assert list(rig.codes().values()) == [v2.OK, v2.OK]
        rig.close()

    run(body)


def test_a_parked_call_that_is_reset_is_not_answered(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        first = rig.client.id
        rig.feed(rig.send() + rig.send())
        rig.feed(frame(RST_STREAM, 0, first, (8).to_bytes(4, "big")))
        assert (rig.lane.parked, len(rig.connection.conn.streams)) == (0, 1)
        rig.side.settle()
        assert rig.codes() == {first + 2: v2.OK}
        rig.close()

    run(body)


def test_a_frame_of_no_stream_leaves_calls_parked(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        rig.feed(rig.send() + frame(PING, 0, 0, b"12345678"))
        assert rig.lane.parked == 1
        rig.feed(frame(SETTINGS, 0, 0, SETTING.pack(4, 10)))  # it changes the windows of open streams
        assert (rig.lane.parked, len(rig.connection.conn.streams)) == (0, 1)
        rig.side.settle()
        assert rig.connection.conn.waiting_bytes > 0
        rig.close()

    run(body)


@pytest.mark.parametrize("waits", [True, False])
def test_pings_that_follow_the_lanes_answers_are_not_counted(
    waits: bool, tmp_path: Path, stub: socket.socket
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=waits)
        ping = frame(PING, 0, 0, bytes(8))
        for _ in range(3):
            rig.feed(rig.send())
            rig.side.settle()
            rig.feed(ping)
        assert (rig.connection.conn.pings, len(rig.codes())) == (0, 3)
        rig.feed(ping + ping)
        assert rig.connection.conn.pings == 2
        rig.close()

    run(body)


def test_a_deadline_ends_a_parked_call(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        rig.feed(rig.send(timeout="20m") + rig.send(timeout="1H"))
        assert rig.lane.parked == 2
        ended = asyncio.Event()
        rig.side.server.on_call_end = lambda *_: ended.set()
        await asyncio.wait_for(ended.wait(), 5)
        assert (rig.lane.parked, len(rig.connection.conn.streams)) == (0, 1)  # they go on together
        rig.side.server.flush()
        assert b"grpc-status\x014" in rig.sink.sent
        rig.side.settle()
        assert list(rig.codes().values()) == [v2.OK]
        rig.close()

    run(body)


def test_sends_that_wait_too_long_are_told_so(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        rig.feed(rig.send())
        appender = rig.side.appender
        later = appender.loop.time() + appender.durability.flush_timeout_s + 1
        flushed, acknowledged = appender.durable_offsets()
        appender.answer_durable(later, flushed, acknowledged)
        assert rig.lane.parked == 0
        rig.side.server.flush()
        assert list(rig.codes().values()) == [v2.MASTER_PERSISTENCE_TIMEOUT]
        rig.close()

    run(body)


def test_an_appender_that_closes_answers_parked_calls(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        rig.feed(rig.send())
        rig.side.appender.close("it ends")
        rig.side.server.flush()
        assert list(rig.codes().values()) == [v2.MASTER_PERSISTENCE_TIMEOUT]
        rig.close()

    run(body)


def test_a_connection_that_is_lost_takes_its_parked_calls_with_it(
    tmp_path: Path, stub: socket.socket
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        rig.feed(rig.send() + rig.send())
        rig.connection.connection_lost(None)
        assert len(rig.side.appender.parked) == 0
        rig.side.settle()
        assert rig.sink.written == []
        cancelled = rig.side.counted.calls.by_key["SendMessage", "CANCELLED", True]
        assert cancelled.count == 2
        rig.side.close()

    run(body)


def test_newer_and_older_sends_wait_in_the_order_of_the_log(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        rig.feed(rig.send())
        odd = messaging.SendMessageRequest(messages=[plain_message("one", body_digest=v2.Digest())])
        rig.feed(rig.client.call(odd.SerializeToString()))  # Python's
        rig.feed(rig.send())
        rig.lane.hand_over()
        ends = [send.end for send in rig.side.appender.waiting]
        assert len(ends) == 3
        assert ends == sorted(ends)
        rig.side.settle()
        assert list(rig.codes().values()) == [v2.OK] * 3
        rig.close()

    run(body)


def test_the_begin_of_a_call_waits_for_a_while_and_is_pythons_then(
    tmp_path: Path, stub: socket.socket
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        call = rig.send(b"x" * 1000)
        rig.feed(call[:-10])
        assert (len(rig.connection.conn.streams), rig.connection.held_bytes() > 1000) == (0, True)
        rig.connection.check_timeouts(rig.connection.received_at + 2)
        assert len(rig.connection.conn.streams) == 1
        rig.feed(call[-10:])
        assert list(rig.codes().values()) == [v2.OK]
        rig.close()

    run(body)


@pytest.mark.parametrize("cut", [0, 4])
def test_a_whole_call_does_not_wait_for_the_rest_of_another(
    cut: int, tmp_path: Path, stub: socket.socket
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        begun, whole = rig.send(b"x" * 1000), rig.send()
        headers = HEAD_BYTES + int.from_bytes(begun[:3], "big")
        rig.feed(begun[:headers] + whole + begun[headers : headers + cut])
        assert list(rig.codes().values()) == [v2.OK]
        rig.feed(begun[headers + cut :])
        assert list(rig.codes().values()) == [v2.OK, v2.OK]
        rig.close()

    run(body)


def test_other_services_take_the_lane_away_and_bring_it_back(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        rig.feed(rig.send())
        server, services = rig.side.server, [rig.side.service()]
        by_lane, rig.side.by_lane = rig.side.by_lane, None
        server.replace([rig.side.service()])
        assert rig.connection.lane is None
        assert isinstance(rig.connection.conn.decoder, HeaderDecoder)
        assert len(rig.connection.conn.streams) == 1
        rig.feed(rig.send())
        server.replace(services)
        lane = rig.connection.lane
        assert lane is not None
        rig.feed(rig.send())  # Python's: the connection's new part has not met the client
        rig.feed(rig.send())
        assert lane.parked == 1
        rig.side.settle()
        assert list(rig.codes().values()) == [v2.OK] * 4
        rig.side.by_lane = by_lane
        rig.close()

    run(body)


def test_a_panic_ends_its_connection_and_switches_the_lane_off(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        by_lane, end = rig.by_lane, rig.side.store.written

        class Panics:
            def take(self, *_: Any) -> None:
                by_lane.passes.lane.native.panic("on purpose")  # type: ignore[union-attr]

        by_lane.current_policy = lambda: Panics()  # type: ignore[method-assign]
        rig.feed(rig.send())
        assert rig.sink.closing
        assert (rig.side.store.written, rig.side.store.page.lane_pass) == (end, 0)
        assert not by_lane.active
        other, sink = rig.side.connect(stub)
        client = Client(random.Random(2), "java")
        other.data_received(client.begin())
        request = messaging.SendMessageRequest(messages=[plain_message("one")])
        for _ in range(3):
            other.data_received(client.call(request.SerializeToString()))
        assert rig.side.store.written > end
        assert not sink.closing
        rig.close()

    run(body)


def test_a_queue_without_room_is_pythons(tmp_path: Path, stub: socket.socket, monkeypatch: Any) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        monkeypatch.setattr(rig.side.store, "append_packed", lambda *_: False)
        rig.feed(rig.send() + rig.send())
        assert list(rig.codes().values()) == [v2.OK] * 2
        by_lane = rig.by_lane
        assert by_lane.calls == 0
        rig.close()

    run(body)


def test_answers_beyond_the_windows_wait_for_them(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        conn, before = rig.connection.conn, rig.by_lane.calls
        rig.feed(frame(SETTINGS, 0, 0, SETTING.pack(4, 20)))
        first = rig.client.id
        rig.feed(rig.send() + rig.send())
        assert (rig.by_lane.calls, len(conn.streams)) == (before + 2, 2)
        assert conn.waiting_bytes > 0
        assert rig.connection.open_calls == 2
        # One of them is reset; the other goes on when its window grows.
        rig.feed(frame(RST_STREAM, 0, first, (8).to_bytes(4, "big")))
        rig.feed(rig.send() + frame(WINDOW_UPDATE, 0, first + 2, (1000).to_bytes(4, "big")))
        assert (rig.by_lane.calls, len(conn.streams)) == (before + 3, 1)
        rig.feed(frame(SETTINGS, 0, 0, SETTING.pack(4, 65_535)))
        assert (conn.waiting_bytes, len(conn.streams)) == (0, 0)
        rig.sink.written.clear()
        rig.feed(rig.send())
        assert list(rig.codes().values()) == [v2.OK]
        counted = rig.side.counted.calls.by_key["SendMessage", v2.OK, False]
        assert counted.count == 6
        rig.close()

    run(body)


def test_an_answer_larger_than_a_frame_is_sent_in_several(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        before = rig.by_lane.calls
        messages = [plain_message("one", message_id=f"{number:034}") for number in range(400)]
        request = messaging.SendMessageRequest(messages=messages).SerializeToString()
        rig.feed(rig.client.call(request))
        sent = [each[HEAD_BYTES:] for each in frames_of(rig.sink.sent) if each[3] == DATA]
        assert [len(payload) <= 16_384 for payload in sent] == [True, True]
        assert len(messaging.SendMessageResponse.FromString(b"".join(sent)[5:]).entries) == len(messages)
        assert rig.by_lane.calls == before + 1
        rig.close()

    run(body)


def test_a_connections_window_that_grows_behind_a_call_is_pythons(
    tmp_path: Path, stub: socket.socket
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        conn = rig.connection.conn
        conn.send_window, before = 30, rig.by_lane.calls
        grown = frame(WINDOW_UPDATE, 0, 0, (1000).to_bytes(4, "big"))
        rig.feed(rig.send() + grown + rig.send())
        assert (rig.by_lane.calls, conn.waiting_bytes, len(conn.streams)) == (before + 2, 0, 0)
        assert list(rig.codes().values()) == [v2.OK] * 2
        rig.close()

    run(body)


def test_answers_that_wait_go_on_when_the_connections_window_grows(
    tmp_path: Path, stub: socket.socket
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        conn, before = rig.connection.conn, rig.by_lane.calls
        conn.send_window, first = 100, rig.client.id
        several = messaging.SendMessageRequest(messages=[plain_message("one")] * 3)
        # The second answer would fit, but for the first one, which does not.
        rig.feed(rig.client.call(several.SerializeToString()) + rig.send())
        assert (rig.by_lane.calls, list(conn.streams)) == (before + 2, [first, first + 2])
        assert conn.send_window == 0
        rig.feed(frame(WINDOW_UPDATE, 0, 0, (1000).to_bytes(4, "big")))
        assert not conn.streams
        assert list(answers(rig.sink.sent, frozenset())) == [first, first + 2]
        rig.close()

    run(body)


def test_a_peer_that_leaves_too_much_unread_is_refused(
    tmp_path: Path, stub: socket.socket, monkeypatch: Any
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        rig.feed(frame(SETTINGS, 0, 0, SETTING.pack(4, 0)))
        monkeypatch.setattr("whimbrel.rpc.server.budget.UNREAD_BYTES_MAX", 100)
        rig.feed(rig.send())
        end, before = rig.side.store.written, rig.by_lane.calls
        rig.feed(rig.send() + rig.send())
        assert (rig.side.store.written > end, rig.by_lane.calls) == (True, before + 2)
        end = rig.side.store.written
        rig.feed(rig.send())
        assert (rig.side.store.written, rig.by_lane.calls) == (end, before + 2)
        rig.close()

    run(body)


def test_calls_with_headers_that_a_guard_has_let_in_are_the_lanes(
    tmp_path: Path, stub: socket.socket
) -> None:
    asked: list[str | None] = []

    def decide(call: Call) -> None:
        asked.append(call.metadata.get("authorization"))
        if asked[-1] == "wrong":
            raise Forbidden("who are you?")

    async def body() -> None:
        guard = HeaderGuard(decide, ("authorization", "x-mq-date-time"))
        rig = Rig(tmp_path, stub, waits=False, guard=guard)
        rig.client.dated = False

        def send(*words: str, time: str = "now") -> tuple[int, int]:
            """Send; return how many calls the lane and the guard had."""
            before = rig.by_lane.calls, len(asked)
            more = [("authorization", word) for word in words] + [("x-mq-date-time", time)]
            request = messaging.SendMessageRequest(messages=[plain_message("one")])
            rig.feed(rig.client.call(request.SerializeToString(), more=more))
            return rig.by_lane.calls - before[0], len(asked) - before[1]

        assert send("me") == (0, 1)
        assert send("me") == send("me") == (1, 0)
        assert send("me", time="later") == (0, 1)  # another header that it has looked at
        assert send("me", time="later") == (1, 0)
        assert send("wrong") == send("wrong") == (0, 1)
        assert rig.codes()[rig.client.id - 2] == v2.FORBIDDEN
        assert send("me", time="later") == (1, 0)  # the last one that it has let in
        assert send("me", "you", time="later") == (0, 1)  # which of them counts is Python's to say
        assert send() == (0, 1)
        guard.generation += 1  # it may decide otherwise now
        assert send("me", time="later") == (0, 1)
        assert send("me", time="later") == (1, 0)
        rig.close()

    run(body)


def test_a_guard_that_looks_at_anything_keeps_the_lane_out(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        side = Side(tmp_path / "lane", lane_or_skip(), OPTIONS, guard=lambda call: None).open()
        connection, _ = side.connect(stub)
        assert connection.lane is None
        connection.connection_lost(None)
        side.close()

    run(body)


def test_a_queue_that_is_not_there_is_refused(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        by_lane, end = rig.by_lane, rig.side.store.written
        before = by_lane.calls
        rig.feed(rig.send(more=[("whimbrel-queue-id", "1")]))  # the topic has queue 0 alone
        assert rig.side.store.written == end
        rig.feed(rig.send(more=[("whimbrel-queue-id", "0")]))
        assert (by_lane.calls, rig.side.store.written > end) == (before + 1, True)
        rig.close()

    run(body)


def test_a_pass_knows_its_topics_also_where_more_are_in_use_than_are_kept(
    tmp_path: Path, stub: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "TARGETS_MAX", 1)

    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        by_lane, before = rig.by_lane, rig.by_lane.calls
        sends = [
            rig.client.call(messaging.SendMessageRequest(messages=[plain_message(topic)]).SerializeToString())
            for topic in ("orders", "one", "orders", "many")
        ]
        rig.side.engine.targets.kept.clear()
        rig.feed(b"".join(sends))
        assert by_lane.calls == before + 4
        assert list(rig.codes().values()) == [v2.OK] * 4
        rig.close()

    run(body)


def test_a_refused_group_leaves_the_turns_of_topics_as_they_were(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        by_lane = rig.by_lane
        good = messaging.SendMessageRequest(messages=[plain_message("orders")]).SerializeToString()
        wrong = messaging.SendMessageRequest(messages=[plain_message("none")]).SerializeToString()
        first, second, third = (rig.client.call(each) for each in (good, good, wrong))
        head, wrong_head = (9 + int.from_bytes(call[:3], "big") for call in (second, third))
        # One group, whose last call is none for the lane.
        rig.feed(first + second[:head] + third[:wrong_head] + second[head:] + third[wrong_head:])
        assert rig.side.engine.targets.kept["orders"].turn == 2
        assert by_lane.calls == 1
        rig.close()

    run(body)


def test_a_connection_goes_on_after_the_panic_of_another_one(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        by_lane = rig.by_lane
        panic = by_lane.native.panic  # type: ignore[union-attr]
        with pytest.raises(RuntimeError, match="is off, because it has a fault"):
            by_lane.run(panic, "on purpose")
        with pytest.raises(HpackError):
            rig.lane.decoder.decode(b"\x80")  # it is told what is wrong with the block
        rig.close()

    run(body)


def test_of_all_parked_calls_those_of_one_connection_are_taken(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        other, _ = rig.side.connect(stub)
        client = Client(random.Random(2), "java")
        other.data_received(client.begin())
        request = messaging.SendMessageRequest(messages=[plain_message("one")]).SerializeToString()
        other.data_received(client.call(request))  # Python's: the connection has not met the client
        for _ in range(3):
            rig.feed(rig.send())
            other.data_received(client.call(request))
        assert other.lane is not None
        assert (rig.lane.parked, other.lane.parked) == (3, 3)
        other.lane.hand_over()
        assert (rig.lane.parked, other.lane.parked, len(other.conn.streams)) == (3, 0, 4)
        rig.side.settle()
        assert list(rig.codes().values()) == [v2.OK] * 3
        assert not other.conn.streams
        other.connection_lost(None)
        rig.close()

    run(body)


def test_deadlines_are_looked_at_together(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub)
        looks: list[float] = []
        parked = rig.by_lane.sends_parked
        expire, done = parked.expire, asyncio.Event()

        def look() -> None:
            looks.append(0.0)
            expire()
            if not rig.lane.parked:
                done.set()

        parked.expire = look  # type: ignore[method-assign]
        for number in range(60):
            rig.feed(rig.send(timeout=f"{1000 + 100 * number}u"))
        await asyncio.wait_for(done.wait(), 5)
        assert len(looks) <= 4
        rig.side.settle()
        rig.close()

    run(body)


def test_windows_are_kept(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False, limits=Limits(connection_window=65_535))
        conn = rig.connection.conn
        before = conn.send_window
        rig.feed(frame(WINDOW_UPDATE, 0, 0, (1000).to_bytes(4, "big")))
        assert conn.send_window == before + 1000
        rig.feed(rig.send())
        assert before < conn.send_window < before + 1000
        rig.feed(rig.send(b"x" * 70_000))
        assert rig.sink.closing  # more than the window allows
        rig.close()

    run(body)


def test_a_field_that_is_there_twice_is_merged(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        properties = v2.SystemProperties(message_id="id")
        properties.born_timestamp.seconds = 5
        system = properties.SerializeToString()
        nanos = Timestamp(nanos=500_000_000).SerializeToString()
        system += b"\x3a" + varint(len(nanos)) + nanos  # a second born time, which adds to the first
        message = plain_message("one")
        message.ClearField("system_properties")
        data = message.SerializeToString() + b"\x1a" + varint(len(system)) + system
        rig.feed(rig.client.call(b"\x0a" + varint(len(data)) + data))
        assert b"BORN_TIMESTAMP\x015500\x02" in rig.side.contents()["log"]
        rig.close()

    run(body)


def test_a_compressed_message_is_refused(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        request = messaging.SendMessageRequest(messages=[plain_message("one")]).SerializeToString()
        call, end = bytearray(rig.client.call(request)), rig.side.store.written
        call[len(call) - len(request) - 5] = 1
        rig.feed(bytes(call))
        assert (rig.side.store.written, b"grpc-status\x0212" in rig.sink.sent) == (end, True)
        rig.close()

    run(body)


def test_sampled_messages_are_pythons(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        made: list[str] = []

        class Traces:
            def create(self) -> str:
                made.append("x")
                return "00-context"

            def appended(self, drafts: Any, places: Any, began_ns: int) -> list[Any]:
                return []

        rig.side.engine.trace(cast(Any, Traces()), 1.0)
        rig.feed(rig.send())
        assert len(made) == 1
        rig.side.engine.trace(cast(Any, Traces()), 0.0)
        by_lane = rig.by_lane
        before = by_lane.calls
        rig.feed(rig.send())
        traced = messaging.SendMessageRequest(messages=[plain_message("one", trace_context="00-a")])
        rig.feed(rig.client.call(traced.SerializeToString()))
        assert (len(made), by_lane.calls) == (1, before + 1)
        rig.close()

    run(body)


def test_blocks_are_decoded_as_by_python() -> None:
    native = lane_or_skip().native
    assert native is not None
    rng = random.Random(1)
    for style in ("ours", "go", "java", "python", "huffman"):
        client = Client(rng, style)
        python, compiled = HeaderDecoder(list_bytes_max=1 << 14), native.HeaderDecoder(1 << 14, [])
        for _ in range(200):
            block = client.block(more=[("x", "y" * rng.randrange(200))])
            if rng.random() < 0.3:  # a damaged copy changes nothing
                damaged = bytearray(block)
                damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
                check_damaged(bytes(damaged), python, native)
            fields, _, valid = compiled.decode(block)
            assert valid
            assert [field[:2] for field in fields] == [
                (name, value) for name, value, _ in decoded(python, block)
            ]
            capacity, table = compiled.table()
            assert (capacity, [each[:2] for each in table]) == (
                python.capacity,
                [each[:2] for each in python.table],
            )


def check_damaged(block: bytes, python: HeaderDecoder, native: Any) -> None:
    """Compare what becomes of a block, from copies of a table."""
    mine = HeaderDecoder(list_bytes_max=1 << 14)
    mine.table, mine.size, mine.capacity = python.table.copy(), python.size, python.capacity
    compiled = native.HeaderDecoder(1 << 14, [])
    compiled.restore(python.capacity, [each[:2] for each in python.table])
    before = compiled.table()
    found = compiled.decode(block)
    try:
        expected = [(name, value) for name, value, _ in decoded(mine, block)]
    except (HpackError, IndexError):
        assert found is None
        assert compiled.table() == before
        return
    assert found is not None
    same(expected, [each[:2] for each in found[0]], "fields")
    same([each[:2] for each in mine.table], [each[:2] for each in compiled.table()[1]], "table")


def decoded(decoder: HeaderDecoder, block: bytes) -> list[Any]:
    """Return a block's fields, all values decoded."""
    return [(name, value_of((name, value, coded)), False) for name, value, coded in decoder.decode(block)]


def test_ended_calls_are_remembered(tmp_path: Path, stub: socket.socket) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        number = rig.client.id
        rig.feed(rig.send())
        assert rig.connection.conn.gone[(number >> 1) % GONE_KEPT] == number
        rig.feed(frame(RST_STREAM, 0, number, bytes(4)))  # late, and ignored
        assert not rig.sink.closing
        rig.close()

    run(body)


def test_a_connection_without_calls_for_the_lane_has_it_asked_seldom(
    tmp_path: Path, stub: socket.socket, monkeypatch: Any
) -> None:
    async def body() -> None:
        rig = Rig(tmp_path, stub, waits=False)
        passes, take = 0, rig.lane.lane.take

        def counted(*arguments: Any) -> Any:
            nonlocal passes
            passes += 1
            return take(*arguments)

        monkeypatch.setattr(rig.lane.lane, "take", counted)
        rig.feed(rig.send())
        passes, before = 0, rig.side.store.passes.lane.messages
        for _ in range(IDLE_READS_MAX + 10 * IDLE_READS_EACH):
            rig.feed(rig.client.call(b"", path=f"/{SERVICE}/Heartbeat"))
        assert passes == IDLE_READS_MAX + 10
        for _ in range(IDLE_READS_EACH + 4):
            rig.feed(rig.send())
        rig.side.settle()
        assert rig.side.store.passes.lane.messages >= before + 5, "it takes them again"
        assert len(rig.codes()) == IDLE_READS_MAX + 11 * IDLE_READS_EACH + 5, "all calls are answered"
        rig.close()

    run(body)
