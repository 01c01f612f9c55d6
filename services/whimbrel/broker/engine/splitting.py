"""Which broker readers should ask next: the master, or a slave for what lies far behind."""

import os
from collections.abc import Callable

from whimbrel.model.topic import GroupConfig

__all__ = ["ReadSplitting"]

MEMORY_RATIO = 0.4  # RocketMQ's accessMessageInMemoryMaxRatio: what counts as "in memory"


class ReadSplitting:
    """Which broker id a puller should ask next (`PullMessageProcessor` of RocketMQ 4.9.3)."""

    def __init__(self, *, enabled: bool, written: Callable[[], int]) -> None:
        """Take the switch `slave_read_enable` and the end of the log."""
        self.enabled = enabled
        self.written = written
        self.memory = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_RATIO)

    def suggest(self, group: GroupConfig, last_physical_offset: int | None) -> int:
        """Return the id; `last_physical_offset` is where the last examined message lies, None for nothing."""
        if not self.enabled:
            return 0
        if last_physical_offset is not None and self.written() - last_physical_offset > self.memory:
            return group.slow_broker_id
        return group.broker_id
