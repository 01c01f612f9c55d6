"""What is done once for all calls of a read: at the end of that read, when their responses are written.

The loop's next iteration would be the other place. Behind the only connection that has calls it comes 20 us
later: `epoll_wait` is asked once more in between.
"""

import asyncio
from collections.abc import Callable

__all__ = ["ReadEnd"]


class ReadEnd:
    """Calls back at the end of the read that is under way; on the loop's thread.

    Outside of a read, and with a transport that does not tell of its reads, that is the next iteration.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.reading = False
        self.callbacks: list[Callable[[], None]] = []

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once."""
        if self.reading:
            self.callbacks.append(callback)
        else:
            self.loop.call_soon(callback)

    def begin(self) -> None:
        """A read begins; to be called by the transport, as `end`."""
        self.reading = True

    def end(self) -> None:
        """A read has ended, whatever came of it."""
        self.reading = False
        if self.callbacks:
            callbacks, self.callbacks = self.callbacks, []
            for callback in callbacks:
                try:
                    callback()
                except Exception as error:  # noqa: BLE001 - as the loop does with what it calls
                    text = "what was put off to the end of a read has failed"
                    self.loop.call_exception_handler({"message": text, "exception": error})
