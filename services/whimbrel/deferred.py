"""A result that is completed later, at most once, on the thread of one event loop.

Lighter than an asyncio future: it knows no loop and schedules nothing. Completion calls the waker at once.
"""

from collections.abc import Callable
from typing import Generic, TypeVar, cast

__all__ = ["Deferred", "rendered"]

R = TypeVar("R")
T = TypeVar("T")


class Deferred(Generic[R]):
    """A response to be completed later, once.

    `complete` and `fail` do nothing after the first of them, or after the caller has left (`cancelled`). A
    holder that has messages for the call must then release them.

    Attributes:
        done: there is a result or an error.
        cancelled: the caller left before there was one.
        result, error: one of them is set once `done`.
        on_cancel: set by the holder; called when the caller leaves.
        waker: set by the waiting side; called once `done`.
    """

    __slots__ = ("cancelled", "done", "error", "on_cancel", "result", "waker")

    def __init__(self) -> None:
        self.done = False
        self.cancelled = False
        self.result: R | None = None
        self.error: Exception | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.waker: Callable[[], object] | None = None

    def complete(self, result: R) -> bool:
        """Set the result; return False when it was completed before or the caller has left."""
        if self.done or self.cancelled:
            return False
        self.done, self.result = True, result
        if self.waker is not None:
            self.waker()
        return True

    def fail(self, error: Exception) -> bool:
        """Set an error as the result; return False when it was completed before or the caller has left."""
        if self.done or self.cancelled:
            return False
        self.done, self.error = True, error
        if self.waker is not None:
            self.waker()
        return True

    def settle(self, result: R, error: Exception | None) -> None:
        """Fail where there is an error, else complete."""
        if error is None:
            self.complete(result)
        else:
            self.fail(error)

    def settle_as(self, other: "Deferred[R]") -> None:
        """Complete or fail as another one that is done."""
        self.settle(cast(R, other.result), other.error)

    def follow(self, other: "Deferred[R]") -> None:
        """Be settled as another one once that is done; whoever leaves this one leaves that one."""
        self.on_cancel = other.cancel
        other.waker = lambda: self.settle_as(other)
        if other.done:
            self.settle_as(other)

    def mapped(
        self, render: Callable[[R], T], failed: Callable[[Exception], T] | None = None
    ) -> "Deferred[T]":
        """Return a deferred of what `render` makes of the result; whoever leaves it leaves this one.

        Args:
            render: makes the other result.
            failed: makes one of an error; None: the other fails as this one.
        """
        other: Deferred[T] = Deferred()
        other.on_cancel = self.cancel

        def settle() -> None:
            if self.error is None:
                other.complete(render(cast(R, self.result)))
            elif failed is None:
                other.fail(self.error)
            else:
                other.complete(failed(self.error))

        self.waker = settle
        if self.done:
            settle()
        return other

    def cancel(self) -> None:
        """Note that the caller has left, and call `on_cancel`; called by the waiting side."""
        if not self.done and not self.cancelled:
            self.cancelled = True
            if self.on_cancel is not None:
                self.on_cancel()


def rendered(found: R | Deferred[R], render: Callable[[R], T]) -> T | Deferred[T]:
    """Return what `render` makes of an answer, or a deferred of what it makes of one to come."""
    return found.mapped(render) if isinstance(found, Deferred) else render(found)
