"""Receives and acknowledgements go the same way by Python and by the lane: generated histories."""

import random
import socket
from pathlib import Path
from typing import Any

import pytest

from support.http2.frames import frame
from support.lane.brokers import GROUPS, STYLES
from support.lane.consumers import CLASSES, History, append_odd, odd_draft, some_filter
from support.lane.pair import SEED, play_all, request, run
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.pb import Duration
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.frames import RST_STREAM, SETTING, SETTINGS
from whimbrel.rpc.server import lane_calls

TOPICS = ("orders", "one", "fifo")
CALLS = 4_500  # of each part, at least, in a round
CONNECTIONS = 8  # to one pair of brokers
ODD_HANDLES = (
    "",
    "x",
    "W1",
    "cut",
    "upper",
    "prefix",
    "group",
    "topic",
    "queue",
    "epoch",
    "offset",
    "serial",
    "attempt",
    "percent",
    "zero",
)


def odd_handle(rng: random.Random, text: str, kind: str) -> str:
    """Return a handle with something wrong, or only unusual, about it."""
    handle = ReceiptHandle.decode(text)
    changed: dict[str, Any] = {
        "group": {"group": "other"}, "topic": {"topic": "one"},
        "queue": {"queue_id": rng.choice([1, 9, 65_536])}, "epoch": {"epoch": handle.epoch + 1},
        "offset": {"offset": rng.choice([handle.offset + 1, 1 << 20, 1 << 56])},
        "serial": {"serial": handle.serial + rng.choice([-1, 1])},
        "attempt": {"attempt": rng.choice([0, 2, 1 << 31])},
    }  # fmt: skip
    if kind in changed:
        return handle._replace(**changed[kind]).encode()
    if kind == "cut":
        return text[: rng.randrange(len(text))]
    if kind == "upper":
        return text[:9] + text[9:].upper()
    if kind == "prefix":
        return text.replace("W1:b", rng.choice(["W2:b", "W1:c", "W1:b:b"]))
    if kind == "percent":
        return text.replace(":g:", ":%67:")
    if kind == "zero":
        return text.replace(":", ":0", 5)
    return kind


def some_call(history: History) -> bytes:
    """Return the bytes of a call that a consumer or a producer may make, or of several."""
    rng = history.rng
    group, topic = rng.choice(GROUPS).name, rng.choice(TOPICS[:2] if rng.random() < 0.8 else TOPICS)
    kind = rng.choice(
        ["send", "send", "receive", "receive", "ack", "ack", "acks", "odd ack", "pull", "change", "reset"]
    )
    if kind == "send":
        return history.client.call(
            request(rng, rng.choice([1, 1, 4, 20]), topic=topic if topic != "fifo" else "orders")
        )
    if kind == "receive":
        fields = some_filter(rng)
        if rng.random() < 0.3:
            fields["long_polling_timeout"] = Duration(seconds=10)
        if rng.random() < 0.2:
            fields["auto_renew"] = True
        return history.receive(group, topic, rng.choice([1, 2, 8, 32]), **fields)
    if kind == "pull":
        polling = Duration(seconds=rng.choice([0, 0, 10]))
        queue = v2.MessageQueue(id=rng.choice([0, 0, 1]))
        fields = {"long_polling_timeout": polling, "message_queue": queue} | some_filter(rng)
        return history.pull(group, topic, rng.choice([0, 0, 1, 3, 1000]), rng.choice([1, 8, 32]), **fields)
    if not history.handles:
        return b""
    at = rng.randrange(len(history.handles))
    group, topic, message_id, handle = history.handles[at]
    if kind == "reset":
        earlier = max(history.client.id - 2, 1)
        history.client.reset.add(earlier)
        return frame(RST_STREAM, 0, earlier, (8).to_bytes(4, "big"))
    if kind == "change":
        changed = messaging.ChangeInvisibleDurationRequest(receipt_handle=handle)
        changed.group.name, changed.topic.name = group, topic
        changed.invisible_duration.seconds = rng.choice([0, 10, 60])
        return history.call("ChangeInvisibleDuration", changed)
    if kind == "odd ack":
        entries = [(message_id, odd_handle(rng, handle, rng.choice(ODD_HANDLES)))]
        if rng.random() < 0.5:
            entries.insert(rng.randrange(2), (message_id, handle))
        if rng.random() < 0.2:
            group = rng.choice(["other", "", "g"])
        if rng.random() < 0.05:
            entries = []
        return history.ack(group, rng.choice([topic, topic, "one", "none", ""]), entries)
    alike = [one for one in history.handles if one[:2] == (group, topic)]
    some = rng.sample(alike, min(len(alike), rng.choice([1, 1, 2, 10, 32])))
    if rng.random() < 0.8:
        history.handles = [one for one in history.handles if one not in some]
    if kind == "acks":
        return b"".join(history.ack(group, topic, [one[2:]], pieces=rng.choice([1, 1, 2])) for one in some)
    return history.ack(group, topic, [one[2:] for one in some])


@pytest.mark.parametrize("alone", [True, False], ids=["one by one", "together"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", CLASSES)
def test_the_lane_does_nearly_all_of_what_is_plain(
    tmp_path: Path, stub: socket.socket, kind: str, style: str, alone: bool
) -> None:
    done_by_the_lane(tmp_path, stub, kind, style, alone=alone)


@pytest.mark.parametrize("alone", [True, False], ids=["one by one", "together"])
def test_so_it_does_where_acknowledgements_wait_for_a_majority(
    tmp_path: Path, stub: socket.socket, alone: bool
) -> None:
    done_by_the_lane(tmp_path, stub, "any text", "java", alone=alone, acks_wait=True)


def done_by_the_lane(
    root: Path, stub: socket.socket, kind: str, style: str, *, alone: bool, **how: bool
) -> None:
    """Receive and acknowledge plain messages, and count those of the lane."""

    def body() -> None:
        rng = random.Random(SEED)
        history = History(root, stub, rng, style=style, **how)
        two, client, count = history.two, history.client, 100
        history.begin()
        history.window()
        for _ in range(count - 1):
            two.feed(client.call(request(rng, topic="orders", **CLASSES[kind])))
        two.settle()
        for _ in range(20):
            two.feed(history.receive("g", "orders"))
            history.learn()
            entries = [handle[2:] for handle in history.handles]
            history.handles.clear()
            for some in [[one] for one in entries] if alone else [entries] if entries else []:
                two.feed(history.ack("g", "orders", some))
            two.settle()
        history.check()
        lane = two.lane
        share = f"{lane.delivered} messages and {lane.acknowledged} acknowledgements of {count} by the lane"
        assert min(lane.delivered, lane.acknowledged) >= 0.99 * count, share
        two.close()

    run(body)


@pytest.mark.parametrize("state", ["full", "closed"])
def test_a_journal_that_takes_nothing_is_an_error_of_the_call(
    tmp_path: Path, stub: socket.socket, state: str
) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng)
        two = history.two
        history.begin()
        history.window()
        two.feed(history.receive("g", "orders"))
        history.learn()
        two.feed(history.client.call(request(rng)))  # the lane learns whose calls it may take
        ((group, topic, message_id, handle),) = history.handles
        for refuses in (True, False):
            for side in two.sides:
                setattr(side.journal, state, refuses)
            two.feed(history.ack(group, topic, [(message_id, handle)]))
            assert not two.connections[1][1].closing, "the connection goes on"
            assert two.lane.acknowledged == (0 if refuses else 1)
        history.check()
        two.close()

    run(body)


@pytest.mark.parametrize("window", ["of the stream", "of the connection"])
def test_an_answer_that_does_not_fit_into_the_window_waits(
    tmp_path: Path, stub: socket.socket, window: str
) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng)
        two, client = history.two, history.client
        history.begin()
        for _ in range(199):
            two.feed(client.call(request(rng, topic="orders", size=1, properties={}, trace_context="")))
        two.settle()
        for _ in range(7):
            two.feed(history.receive("g", "orders"))
        history.learn()
        entries = [handle[2:] for handle in history.handles]
        assert len(entries) > 150, "the receives' own answers fill the window"
        if window == "of the stream":
            history.window()
            two.feed(frame(SETTINGS, 0, 0, SETTING.pack(4, 300)))
            entries = entries[:32]
        two.feed(history.ack("g", "orders", entries))
        history.check()  # a part has left
        history.window()
        history.check()
        two.close()

    run(body)


@pytest.mark.parametrize("kind", ODD_HANDLES)
def test_odd_handles_are_pythons(tmp_path: Path, stub: socket.socket, kind: str) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng)
        two, client = history.two, history.client
        history.begin()
        history.window()
        for topic in ("orders", "one"):
            two.feed(b"".join(client.call(request(rng, topic=topic)) for _ in range(40)))
            two.settle()
            two.feed(history.receive("g", topic))
        two.settle()
        history.learn()
        for group, topic, message_id, handle in history.handles[::2]:
            two.feed(history.ack(group, topic, [(message_id, odd_handle(rng, handle, kind))]))
        history.check()
        two.close()

    run(body)


@pytest.mark.parametrize("part", range(4))
def test_generated_histories_of_consumers_go_the_same_way(
    tmp_path: Path, stub: socket.socket, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if part == 3:
        monkeypatch.setattr(lane_calls, "IDLE_READS_MAX", 1)
        monkeypatch.setattr(lane_calls, "IDLE_READS_EACH", 2)
    play_all(tmp_path, part, CALLS, lambda work, rng: generated(work, stub, rng))


def generated(work: Path, stub: socket.socket, rng: random.Random) -> int:
    """Play a generated history over some connections; return how many calls it has made."""
    history = History(work, stub, rng, waits=rng.random() < 0.3, acks_wait=rng.random() < 0.4)
    calls = play(history)
    for _ in range(CONNECTIONS - 1):
        history.connect_anew()
        calls += play(history)
    history.two.close()
    return calls


def play(history: History) -> int:
    """Play a connection."""
    rng, two = history.rng, history.two
    history.begin(*rng.choice([[], [], [(4, 20)], [(4, 300)], [(5, 16_384), (4, 1 << 20)], [(5, 1 << 20)]]))
    if rng.random() < 0.7:
        history.window()
    odd_share = rng.choice([0.0, 0.1, 0.4])
    for _ in range(rng.randrange(5, 40)):
        if rng.random() < odd_share:
            draft = odd_draft(rng, rng.choice(TOPICS))
            damaged = rng.random() < 0.1
            for side in two.sides:
                append_odd(side, draft, damaged=damaged)
        if rng.random() < 0.1:
            ms = rng.choice([10, 1000, 31_000, 100_000])
            for side in two.sides:
                side.advance(ms)
        if rng.random() < 0.05:
            history.was_full = True
            for side in two.sides:
                side.journal.full = not side.journal.full
        two.feed(b"".join(some_call(history) for _ in range(rng.choice([1, 1, 2, 5]))))
        if rng.random() < 0.5:
            two.settle()
            history.learn()
    for side in two.sides:
        side.journal.full = False
    history.window()
    history.check()
    return history.client.id // 2
