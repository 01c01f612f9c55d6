"""Pulls from any log have the same answers by Python and by the lane."""

import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from support.lane.brokers import Side, answers, same
from support.lane.consumers import CLASSES, FILTERS, TEXTS, History, append_odd, odd_draft, some_filter
from support.lane.pair import SEED, play_all, request, run
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.store.codec import (
    FILLER_SIZE,
    UNIT,
    UNIT_SIZE,
    tag_bytes_code,
)
from whimbrel.store.lane_messages import PackedMessages

PULLS = 200  # of each part, at least, in a round
# Texts of messages that are pulled; the tags Aa and BB have the same code.
TAGGED = tuple(b"TAGS\x01%s\x02a\x011\x02" % tag for tag in (b"a", b"Aa", b"BB", b"b"))


@pytest.mark.parametrize("tags", ["", "a", "b || a"])
@pytest.mark.parametrize("kind", CLASSES)
def test_nearly_all_plain_pulls_are_one_call(
    tmp_path: Path, stub: socket.socket, monkeypatch: pytest.MonkeyPatch, kind: str, tags: str
) -> None:
    def body() -> None:
        rng = random.Random(SEED)
        history = History(tmp_path, stub, rng)
        two, client, count = history.two, history.client, 400
        history.begin()
        history.window()
        fixed = CLASSES[kind] | ({"tag": "a"} if tags else {})
        for _ in range(count):
            two.feed(client.call(request(rng, topic="orders", **fixed)))
        two.settle()
        messages = two.compiled.store.lane_messages
        by_one_call, pull = [], messages.pull

        def counted(*arguments: Any) -> PackedMessages | None:
            packed = pull(*arguments)
            by_one_call.append(0 if packed is None else packed.messages)
            return packed

        monkeypatch.setattr(messages, "pull", counted)
        fields: dict[str, Any] = (
            {"filter_expression": v2.FilterExpression(type=v2.TAG, expression=tags)} if tags else {}
        )
        calls = 0
        for queue_id in range(4):
            low, high = two.compiled.store.queue_range("orders", queue_id)
            for offset in range(low, high, 32):
                queue = v2.MessageQueue(id=queue_id)
                two.feed(history.pull("g", "orders", offset, message_queue=queue, **fields))
                calls += 1
        history.check()
        delivered = sum(told[2] for told in two.compiled.delivered)
        assert delivered >= count
        assert sum(by_one_call) >= 0.99 * delivered, f"{sum(by_one_call)} of {delivered} messages"
        assert len(by_one_call) <= calls * 1.3, f"{len(by_one_call)} passes for {calls} calls"
        two.close()

    run(body)


def test_a_panic_in_a_pull_leaves_all_of_it_to_python(
    tmp_path: Path, stub: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> None:
        history = History(tmp_path, stub, random.Random(SEED))
        two, lane = history.two, history.two.lane
        history.begin()
        history.window()
        draft = odd_draft(history.rng, "one", TAGGED)
        for side in two.sides:
            append_odd(side, draft, damaged=False)
        native: Any = lane.native
        messages = two.compiled.store.lane_messages

        class Panicking:
            def pull(self, *arguments: Any) -> None:
                native.panic("a test")

        monkeypatch.setattr(messages, "native", Panicking())
        two.feed(history.pull("g", "one", 0))
        two.feed(history.pull("g", "one", 0))
        python, compiled = (answers(sink.sent, frozenset()) for _, sink in two.connections)
        same(python, compiled, "answers")
        assert (lane.failures, lane.active) == (1, False)
        assert [told[2] for told in two.compiled.delivered] == [1, 1]
        two.close()

    run(body)


def pulled(work: Path, stub: socket.socket, rng: random.Random) -> int:
    """Pull from a generated log; return how many calls it were."""
    history = History(work, stub, rng)
    two = history.two
    history.begin()
    history.window()
    sizes, most = rng.choice(
        [
            ((1,), 2500),
            ((0, 1, 55, 56, 64, 100), 300),
            ((1024,), 300),
            ((1, 3000, 70_000), 100),
            ((600_000,), 12),
        ]
    )
    count = rng.randrange(1, most)
    odd_share, damaged_share, gap_share, entry_share = (rng.choice([0.0, 0.0, 0.02, 0.2]) for _ in range(4))
    recoded_share = rng.choice([0.0, 0.0, 0.3])
    tagged = TAGGED[:: rng.choice([1, 1, -1])][: rng.choice([1, 2, 4])]
    for _ in range(count):
        odd = rng.random() < odd_share
        draft = odd_draft(rng, "one", TEXTS if odd else tagged, sizes)
        gap = odd_draft(rng, "many", sizes=(10, 5000)) if rng.random() < gap_share else None
        damaged = rng.random() < damaged_share / 4
        for side in two.sides:
            append_odd(side, draft, damaged=damaged)
            if gap is not None:
                append_odd(side, gap, damaged=False)
    low, high = two.python.store.queue_range("one", 0)
    for offset in range(low, high):
        if rng.random() < entry_share / 4:
            ((place, size, code),) = two.python.store.queue_units("one", 0, offset, 1)
            entry = rng.choice([
                (0, FILLER_SIZE, 0), (0, 0, 0), (place + 1, size, code), (place, size + 1, code),
                (place, size - 1, code), (1 << 40, size, code), (-1, size, code), (place, -1, code),
                (place, size, code + 1), (place, size, code + (1 << 32)), (place, 1 << 30, code),
            ])  # fmt: skip
        elif rng.random() < recoded_share:
            ((place, size, _),) = two.python.store.queue_units("one", 0, offset, 1)
            entry = (place, size, tag_bytes_code(rng.choice([b"a", b"Aa", b"b", b"none"])))
        else:
            continue
        for side in two.sides:
            overwrite_entry(side, offset, entry)
    filters = (
        *FILTERS, (v2.TAG, "a"), (v2.TAG, "Aa"), (v2.TAG, "BB || b"), (v2.TAG, "none"),
        (v2.TAG, "||".join(map(str, range(40))) + "||a"),
    )  # fmt: skip
    calls = rng.randrange(20, 60)
    for _ in range(calls):
        offset = rng.choice([low, rng.randrange(low, high + 2)])
        fields = some_filter(rng, filters, share=0.6) | {"message_queue": v2.MessageQueue(id=0)}
        two.feed(history.pull("g", "one", offset, rng.choice([1, 2, 8, 32, 32, 100]), **fields))
    history.check()
    two.close()
    return calls


def overwrite_entry(side: Side, offset: int, entry: tuple[int, int, int]) -> None:
    """Damage an entry of queue 0 of the topic `one`."""
    queue = side.store.queues.by_key["one", 0]
    per_file = queue.file_size // UNIT_SIZE
    first = offset - offset % per_file
    fd = os.open(queue.path_of(first * UNIT_SIZE), os.O_WRONLY)
    try:
        os.pwrite(fd, UNIT.pack(*entry), (offset - first) * UNIT_SIZE)
    finally:
        os.close(fd)


@pytest.mark.parametrize("part", range(4))
def test_pulls_from_any_log_have_the_same_answers(tmp_path: Path, stub: socket.socket, part: int) -> None:
    play_all(tmp_path, part, PULLS, lambda work, rng: pulled(work, stub, rng))
