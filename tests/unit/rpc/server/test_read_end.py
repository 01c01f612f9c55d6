"""What is put off to the end of a read."""

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from whimbrel.rpc.server.read_end import CALLS_MIN, ReadEnd


def run(scene: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scene)


def test_what_a_read_puts_off_is_done_at_its_end() -> None:
    async def scene() -> None:
        reads, done = ReadEnd(asyncio.get_running_loop()), list[str]()
        reads.reading = True
        reads.soon(lambda: done.append("first"))
        reads.soon(lambda: done.append("second"))
        await asyncio.sleep(0)
        assert done == []
        reads.end(CALLS_MIN)
        assert done == ["first", "second"]
        reads.reading = True
        reads.end(CALLS_MIN)
        assert done == ["first", "second"]

    run(scene())


def test_behind_a_read_of_few_calls_it_is_the_loops_next_iteration() -> None:
    async def scene() -> None:
        reads, done = ReadEnd(asyncio.get_running_loop()), list[str]()
        for name in ("first", "second"):  # reads of two connections in one iteration
            reads.reading = True
            reads.soon(partial(done.append, name))
            reads.end(CALLS_MIN - 1)
        assert done == []
        await asyncio.sleep(0)
        assert done == ["first", "second"]

    run(scene())


def test_outside_of_a_read_it_is_the_loops_next_iteration() -> None:
    async def scene() -> None:
        reads, done = ReadEnd(asyncio.get_running_loop()), list[str]()
        reads.soon(lambda: done.append("first"))
        assert done == []
        await asyncio.sleep(0)
        assert done == ["first"]
        reads.reading = True
        reads.soon(lambda: reads.soon(lambda: done.append("later")))
        reads.end(CALLS_MIN)
        assert done == ["first"]
        await asyncio.sleep(0)
        assert done == ["first", "later"]

    run(scene())


def test_reads_that_were_put_off_come_before_what_they_put_off() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        reads, done, failures = ReadEnd(loop), list[str](), list[object]()

        def before() -> None:
            done.append("reads")
            reads.soon(lambda: done.append("put off by them"))
            raise ValueError("on purpose")

        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        reads.before = before
        reads.reading = True
        reads.soon(lambda: done.append("put off"))
        reads.end(1)
        reads.schedule()  # it is already
        await asyncio.sleep(0)
        assert done == ["reads", "put off", "put off by them"]
        assert [type(failure) for failure in failures] == [ValueError]
        assert (reads.reading, reads.scheduled) == (False, False)

    run(scene())


def test_one_that_fails_keeps_no_other_from_being_called() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        reads, done, failures = ReadEnd(loop), list[str](), list[object]()
        loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
        reads.reading = True
        reads.soon(lambda: done.append(str(1 // 0)))
        reads.soon(lambda: done.append("second"))
        reads.end(CALLS_MIN)
        assert done == ["second"]
        assert [type(failure) for failure in failures] == [ZeroDivisionError]

    run(scene())
