"""Answers of one method that the compiled lane keeps until something is reached.

    park ──► `settle`: what they wait for is reached ──► sent
         ├─► a deadline of theirs, or who keeps time says so (`hand_over`) ──► Python waits for them
         └─► other news of their connection (`LaneCalls.hand_over`) ──► Python waits for them

Sends wait for places in the log (`produce/appender.py`), acknowledgements for numbers of changes
(`cluster/state_quorum.py`). Both rise, so what was parked first is answered first.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from whimbrel.deferred import Deferred
from whimbrel.rpc.server.lanes import LaneAnswers, LanePart
from whimbrel.rpc.server.responses import OK

__all__ = ["AcksQuorum", "OnCalls", "ParkedAnswers"]

# Between two looks at the deadlines of all parked calls, whatever deadlines clients choose.
EXPIRE_EVERY_S: Final = 0.01

# Method, or code of a request; code of the answer, whether it was deferred, seconds of each, how many.
OnCalls = Callable[[str | int, int | str, bool, float, int], None]


class ParkedAnswers:
    """Those of one method, of the remoting protocol as well; on the loop's thread.

    Attributes:
        native: has them (`whimbrel_lane.ParkedAnswers`).
    """

    def __init__(self, native: Any, loop: Any, path: str, on_calls: OnCalls | None) -> None:
        """Begin without any.

        Args:
            native: empty.
            loop: has time and timers.
            path: of the method.
            on_calls: called with those that are answered.
        """
        self.native, self.loop, self.path, self.on_calls = native, loop, path, on_calls
        self.method = path.rpartition("/")[2]
        self.timer: Any = None
        self.timer_at = 0.0

    def __len__(self) -> int:
        return len(self.native)

    @property
    def oldest_end(self) -> int:
        """What the oldest one waits for; -1 without any."""
        return int(self.native.oldest_end)

    @property
    def newest_end(self) -> int:
        """What the newest one waits for; -1 without any."""
        return int(self.native.newest_end)

    @property
    def oldest_at(self) -> float:
        """When the oldest one was parked, by the loop's clock; infinity without any."""
        return float(self.native.oldest_at)

    def add(self, calls: LanePart, answers: LaneAnswers, end: int | None = None) -> None:
        """Keep answers until `end` is reached; None: until what each of them says is."""
        now, timeout = self.loop.time(), answers.shortest_timeout
        deadline = float("inf") if timeout is None else now + timeout
        self.native.add(calls, now, deadline, answers, end)
        if timeout is not None and (self.timer is None or deadline < self.timer_at):
            self.start_timer(deadline)

    def start_timer(self, deadline: float) -> None:
        """Look at deadlines then."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer_at = deadline
        self.timer = self.loop.call_later(max(deadline - self.loop.time(), 0.0), self.expire)

    def expire(self) -> None:
        """Have Python end the calls whose deadline has come."""
        self.timer = None
        for calls, parked_at, answers in self.native.take_expired(self.loop.time()):
            calls.given_back(self.path, answers, parked_at)
        if len(self) and (deadline := self.native.next_deadline) != float("inf"):
            self.start_timer(max(deadline, self.loop.time() + EXPIRE_EVERY_S))

    def take_back(self, calls: LanePart) -> list[tuple[str, float, Any]]:
        """Return those of a connection, with their path and the time when they were parked."""
        return [(self.path, parked_at, answers) for _, parked_at, answers in self.native.take_of(calls)]

    def settle(self, reached: int) -> None:
        """Answer those that wait for no more."""
        settled = self.native.settle(reached)
        if not settled:
            return
        now = self.loop.time()
        for calls, parked_at, answers in settled:
            if calls.answered(self.path, answers, parked_at) and self.on_calls is not None:
                self.on_calls(self.method, OK.code, True, now - parked_at, len(answers))

    def hand_over(self, before: float) -> None:
        """Have Python wait for those that were parked before a time of the loop's clock."""
        for calls, parked_at, answers in self.native.take_parked_before(before):
            calls.given_back(self.path, answers, parked_at)


class AcksQuorum(Protocol):
    """What acknowledgements wait for at an elected leader (`cluster/state_quorum.py`).

    Attributes:
        newest: returns the number of the last change.
        reached: up to which number enough members have all changes.
        parked: what the lane keeps.
    """

    newest: Callable[[], int]
    reached: int
    parked: Any

    @property
    def room(self) -> int:
        """How many more answers may wait."""

    def wait(self, number: int, since: float, answer: Any) -> Deferred[Any]:
        """Wait for a number with an answer that was parked since then."""
