"""Reading all queues of a topic at once: what is lost is skipped, what fails is tried again, all is
bounded."""

import asyncio
import dataclasses
from collections import Counter
from typing import Any

import pytest

from support.waiting import eventually
from whimbrel.cli import tail
from whimbrel.cli.tail import POLLS_MAX, RESULTS_MAX, Tailing
from whimbrel.client import MessageType, PullResult, Queue, ReceivedMessage
from whimbrel.errors import IllegalOffset, TopicNotFound, Unavailable

MESSAGE = ReceivedMessage(
    topic="t", body=b"x", message_id="", tag=None, keys=(), properties={}, type=MessageType.NORMAL,
    queue=Queue(topic="t", broker_name="b", broker_id=0, queue_id=0, readable=True, writable=True,
    endpoints=()), queue_id=0, queue_offset=0, born_at=None, born_host="", stored_at=None, store_host="",
)  # fmt: skip


class Reader:
    """A reader of queues in memory, each with offsets from `low` to `high`."""

    def __init__(self, queues: int, *, low: int = 0, high: int = 2) -> None:
        self.count, self.low, self.high = queues, low, high
        self.failures: list[Exception] = []
        self.pulls: Counter[int] = Counter()
        self.now = self.most = 0
        self.session: Any = self
        self.routes: Any = self

    def report_error(self, topic: str) -> None:
        """Take a hint that the route is wrong."""

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        return tuple(dataclasses.replace(MESSAGE.queue, queue_id=number) for number in range(self.count))

    async def current(self, queue: Queue) -> Queue:
        return queue

    async def offset(self, queue: Queue, at: str | float) -> int:
        return self.high if at == "latest" else self.low

    async def pull(self, queue: Queue, offset: int, **_: object) -> PullResult:
        self.now += 1
        self.most = max(self.most, self.now)
        self.pulls[queue.queue_id] += 1
        await asyncio.sleep(0)
        self.now -= 1
        if self.failures:
            raise self.failures.pop(0)
        if offset < self.low or offset > self.high:
            raise IllegalOffset("outside")
        if offset == self.high:
            await asyncio.Event().wait()
        message = dataclasses.replace(MESSAGE, queue_id=queue.queue_id, queue_offset=offset)
        return PullResult(messages=(message,), next_offset=offset + 1)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "PAUSE_S", 0.001)
    monkeypatch.setattr(tail, "REFRESH_S", 0.01)


def tailing(reader: Any, where: str = "earliest", *, until_end: bool = True) -> Tailing:
    return Tailing(reader, "t", where, "*", until_end=until_end)


async def all_of(one: Tailing) -> list[tuple[int, int]]:
    reading = asyncio.create_task(one.run())
    found: list[tuple[int, int]] = []
    async with asyncio.timeout(20):
        while (messages := await one.next(reading)) is not None:
            found += [(message.queue_id, message.queue_offset) for message in messages]
    return found


async def test_all_queues_are_read_to_their_ends() -> None:
    assert sorted(await all_of(tailing(Reader(3)))) == [(q, n) for q in range(3) for n in range(2)]


async def test_many_queues_take_turns_and_results_wait_for_the_printer() -> None:
    reader = Reader(3 * POLLS_MAX, high=1)
    one = tailing(reader)
    reading = asyncio.create_task(one.run())
    await eventually(one.results.full, within_s=20)
    assert one.results.qsize() == RESULTS_MAX
    found = 0
    while (messages := await one.next(reading)) is not None:
        found += len(messages)
    assert found == 3 * POLLS_MAX
    assert reader.most <= POLLS_MAX


async def test_an_offset_that_is_gone_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    class Shrinking(Reader):
        def __init__(self) -> None:
            super().__init__(1, low=4, high=6)
            self.told = iter([0])  # the first offset there was when the command began

        async def offset(self, queue: Queue, at: str | float) -> int:
            return next(self.told, self.low) if at == "earliest" else self.high

    assert await all_of(tailing(Shrinking())) == [(0, 4), (0, 5)]
    assert "b/0 has no offset 0: it holds 4 to 6" in capsys.readouterr().err


async def test_a_failure_is_told_and_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    reader = Reader(1)
    reader.failures = [Unavailable("restarting"), Unavailable("restarting")]
    assert await all_of(tailing(reader)) == [(0, 0), (0, 1)]
    assert "b/0 can't be read, and is tried again: restarting" in capsys.readouterr().err


async def test_a_queue_that_comes_is_read() -> None:
    reader = Reader(1, high=0)
    one = tailing(reader, "latest", until_end=False)
    reading = asyncio.create_task(one.run())
    async with asyncio.timeout(20):
        while not reader.pulls:
            assert await one.next(reading) == ()
        reader.count, reader.high = 2, 1
        while not (messages := await one.next(reading)):
            pass
    assert messages[0].queue_id == 1
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


async def test_an_unknown_topic_is_an_error() -> None:
    class Empty(Reader):
        async def queues(self, topic: str) -> tuple[Queue, ...]:
            raise TopicNotFound("no topic t")

    with pytest.raises(TopicNotFound):
        await all_of(tailing(Empty(0)))
