"""Sends of topics that ask for an answer before the commit (`model/answers.py`); the appender owns them.

Each number of copies has a queue of its own, in the order of the log, so the head of a queue is always the
next to be answered, and the next to be late: all have the same time. What is committed is answered as well,
whatever the copies are. Pure, on the loop's thread.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from whimbrel.errors import WhimbrelError

__all__ = ["Answer", "EarlyAnswers"]

Answer = Callable[[WhimbrelError | None], None]


@dataclass(slots=True)
class EarlySend:
    """A stored message whose answer waits for some copies."""

    end: int
    deadline: float
    answer: Answer


class EarlyAnswers:
    """The queues, by how many members besides the leader must hold a message: at most six of them."""

    def __init__(self) -> None:
        self.queues: dict[int, deque[EarlySend]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def add(self, copies: int, end: int, deadline: float, answer: Answer) -> None:
        """Have a send wait; in the order of the log."""
        self.queues.setdefault(copies, deque()).append(EarlySend(end, deadline, answer))

    def settle(
        self, now: float, committed: float, held: Callable[[int], int], late: Callable[[], WhimbrelError]
    ) -> None:
        """Answer what so many hold, what is committed, and what is late.

        Args:
            held: returns up to where so many members besides the leader hold the log.
            late: makes the error of a send that is late.
        """
        for copies, queue in self.queues.items():
            if not queue:
                continue
            reached = max(committed, held(copies))
            while queue and (queue[0].end <= reached or queue[0].deadline <= now):
                send = queue.popleft()
                send.answer(None if send.end <= reached else late())

    def fail(self, beyond: float, error: Callable[[], WhimbrelError]) -> None:
        """Answer all that end beyond an offset with an error."""
        for queue in self.queues.values():
            failed = [send for send in queue if send.end > beyond]
            while queue and queue[-1].end > beyond:
                queue.pop()
            for send in failed:
                send.answer(error())
