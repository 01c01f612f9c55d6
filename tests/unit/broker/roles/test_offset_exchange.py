"""consumerOffset.json is written by one thread at a time, and the last export stays."""

import threading
from pathlib import Path
from typing import Any, cast

from whimbrel.broker.roles.offset_exchange import OffsetExchange
from whimbrel.machine import Machine

KEY = ("orders", "billing")


class SlowFile:
    """Takes its time for the first write."""

    def __init__(self) -> None:
        self.saved: list[Any] = []
        self.begun, self.go = threading.Event(), threading.Event()
        self.writing = threading.Lock()

    def save(self, offsets: Any, now_ms: int) -> None:
        assert self.writing.acquire(blocking=False), "two threads write at once"
        if not self.begun.is_set():
            self.begun.set()
            assert self.go.wait(10)
        self.saved.append(offsets)
        self.writing.release()


class Counting:
    """Positions that go on with each look."""

    def __init__(self) -> None:
        self.offset = 0

    def committed_offsets(self) -> Any:
        self.offset += 1
        return {KEY: {0: self.offset}}


def test_an_export_at_the_end_waits_for_the_one_under_way_and_is_the_last(tmp_path: Path) -> None:
    file, none = SlowFile(), cast(Any, None)
    exchange = OffsetExchange(tmp_path, none, none, cast(Any, Counting()), cast(Any, file), Machine())
    under_way = threading.Thread(target=exchange.export)
    under_way.start()
    assert file.begun.wait(10)
    last = threading.Thread(target=exchange.export)
    last.start()
    file.go.set()
    for thread in (under_way, last):
        thread.join(10)
    assert file.saved[-1] == {KEY: {0: 2}}
