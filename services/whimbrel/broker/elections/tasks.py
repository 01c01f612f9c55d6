"""Tasks of one member: what is under way for its elections, and how much of it may be.

    a question to a member or the coordinator    no second one before it is answered
    a command of an operator or a member         `OPERATIONS_MAX` at a time, else `Throttled`
    anything else                                as it comes

All of them end with the member, and what one stumbles over is logged.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from whimbrel.broker.elections.journal import logger
from whimbrel.errors import Throttled

__all__ = ["Tasks"]

OPERATIONS_MAX: Final = 16  # commands that are under way; an operator gives one at a time


class Tasks:
    """What is under way.

    Attributes:
        running: all of it.
        asking: what was asked, and whom, without an answer yet.
        operating: those that operators, or other members, wait for.
    """

    def __init__(self) -> None:
        self.running: set[asyncio.Task[None]] = set()
        self.asking: set[tuple[str, int]] = set()
        self.operating: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task that `cancel` ends."""
        task = asyncio.create_task(work)
        self.running.add(task)
        task.add_done_callback(self.over)
        return task

    def ask(self, question: tuple[str, int], work: Coroutine[Any, Any, None]) -> None:
        """Ask a member, unless it has not answered yet."""
        if question in self.asking:
            work.close()
            return
        self.asking.add(question)
        self.spawn(work).add_done_callback(lambda _: self.asking.discard(question))

    def operate(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run what operators or other members ask for.

        Raises:
            Throttled: `OPERATIONS_MAX` run already.
        """
        if len(self.operating) >= OPERATIONS_MAX:
            raise Throttled(f"{OPERATIONS_MAX} commands for this member are under way: try again later")
        task = self.spawn(work)
        self.operating.add(task)
        task.add_done_callback(self.operating.discard)
        return task

    def over(self, task: "asyncio.Task[None]") -> None:
        """Log what a task has stumbled over: nobody else would hear of it."""
        self.running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("an election's task failed", exc_info=task.exception())

    def cancel(self) -> None:
        """Have all of it end."""
        for task in tuple(self.running):
            task.cancel()
