"""Every way in which tests wait.

    await eventually(lambda: server.calls)      what the test's own loop does: by its turns, without sleeping
    await turns(5)                              the same, where nothing shows that it is done
    until(lambda: cluster.master.running)       what other processes or threads do: by looking again and again
    await until_async(has_route)                the same in a coroutine, whose loop goes on meanwhile
    always(lambda: slave.running, 2, "why")     what must stay so for a time
    elapse(5)                                   a span of time that is itself part of the test
    for _ in polls(60): ...                     beneath the four above: where more is to be done at each look

Nobody else sleeps, but for loads that pace themselves.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from inspect import isawaitable
from typing import Any

__all__ = ["always", "elapse", "eventually", "polls", "turns", "until", "until_async"]

POLL_S = 0.01


async def eventually(condition: Callable[[], Any], within_s: float = 10) -> None:
    """Let the loop turn until the condition holds; for what has no event to wait on.

    Raises:
        TimeoutError: it did not hold in time.
    """
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - turns of the loop are what is waited for
            await asyncio.sleep(0)


async def turns(count: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


def polls(seconds: float, *, every_s: float = POLL_S) -> Iterator[None]:
    """Yield at once and then every `every_s` until the time is over, to look at other processes each time."""
    deadline = time.monotonic() + seconds
    yield
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(every_s, left))
        yield


def until(
    condition: Callable[[], Any],
    *,
    timeout: float = 10.0,
    what: str | Callable[[], str] = "the condition",
    every_s: float = POLL_S,
) -> Any:
    """Wait for `condition` to return something true, and return that; fail after `timeout` seconds.

    Args:
        what: what is waited for, for the failure; a function is called then.
    """
    for _ in polls(timeout, every_s=every_s):
        if value := condition():
            return value
    raise AssertionError(f"{what if isinstance(what, str) else what()}: not within {timeout} s")


async def until_async(
    condition: Callable[[], Any], *, within_s: float = 10.0, what: str = "the condition"
) -> Any:
    """Do the same in a coroutine; what `condition` returns is awaited where it can be."""
    waits = polls(within_s)
    while await asyncio.to_thread(next, waits, waits) is not waits:
        value = condition()
        if value := (await value if isawaitable(value) else value):
            return value
    raise AssertionError(f"{what}: not within {within_s} s")


def always(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Fail if `condition` returns something false within `seconds`."""
    for _ in polls(seconds):
        assert condition(), what


def elapse(seconds: float) -> None:
    """Let other processes run, or stand still, for a time."""
    for _ in polls(seconds, every_s=seconds):
        pass
