"""Work that a broker repeats, and tasks that end when they are told to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

__all__ = ["start_task", "start_timer"]

logger = logging.getLogger(__name__)

CANCEL_AGAIN_S = 0.5  # a task ends at once; one that has swallowed its cancellation gets another


def start_task(work: Coroutine[Any, Any, None]) -> Callable[[], Awaitable[None]]:
    """Run a coroutine as a task; return what cancels it and waits for its end."""
    task = asyncio.create_task(work)

    async def end() -> None:
        # More than once: below a task there is code that takes a cancellation for the end of its own call.
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_AGAIN_S)

    return end


def start_timer(interval_s: float, job: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    """Run a job every `interval_s` seconds; return what ends that.

    A failing job is logged; its next turn and the other jobs are not affected.
    """

    async def run() -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                job()
            except Exception:
                logger.exception("a housekeeping job failed")

    return start_task(run())
