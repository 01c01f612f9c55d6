"""What is done once for all calls of a read: at the end of that read, or in the loop's next iteration.

The next iteration comes behind the reads of all connections that were ready. So it is the better place when
each of many connections has brought a call or two: what is put off costs 5 to 10 us a time, and at the end of
each read it took 30 % of the rate with 256 connections. Behind a read with many calls the end of the read is
the better one: it is earlier, by whatever the other connections have brought.
"""

import asyncio
from collections.abc import Callable

__all__ = ["ReadEnd"]

CALLS_MIN = 8  # that a read must have brought for its end to be the place


class ReadEnd:
    """Calls back soon, see above; on the loop's thread.

    Outside of a read that is the next iteration.

    Attributes:
        reading: a read is being handled; its connection sets it before, and calls `end`.
        scheduled: the next iteration comes here.
        before: called there first; it may bring reads that were put off themselves.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.reading = self.scheduled = False
        self.callbacks: list[Callable[[], None]] = []
        self.before: Callable[[], None] | None = None

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once."""
        if self.reading:
            self.callbacks.append(callback)
        else:
            self.loop.call_soon(callback)

    def end(self, calls: int) -> None:
        """A read has ended, whatever came of it, which had so many calls."""
        self.reading = False
        if calls >= CALLS_MIN:
            self.call_back()
        elif self.callbacks:
            self.schedule()

    def schedule(self) -> None:
        """Come back in the next iteration."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.run)

    def run(self) -> None:
        """Do what was put off to this iteration."""
        self.scheduled = False
        try:
            if self.before is not None:
                self.reading = True
                self.before()
        finally:
            self.reading = False
            self.call_back()

    def call_back(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - as the loop does with what it calls
                text = "what was put off to the end of a read has failed"
                self.loop.call_exception_handler({"message": text, "exception": error})
