"""Rules of the production code that can be switched off, one at a time: the simulation must find each.

That tests the simulation. A rule is switched off by a patch of the code that follows it, for the time of a
run: an entry of `RULES` says which attribute of what gets which other value.
"""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from sim.files import SimFiles
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.replicator.follower import Follower
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.mark_writer import MarkWriter
from whimbrel.store.segment import Segment
from whimbrel.store.shared_page import SharedPage

__all__ = ["RULES", "switched_off"]


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


RULES: dict[str, tuple[Any, str, Any]] = {
    "the log is synced before it counts as flushed": (Segment, "flush", nothing),
    "a failed sync is final": (LogWriter, "sync_failed", nothing),
    "sends wait for slaves": (SharedPage, "acknowledged", lambda self, needed: self.written),
    "a slave reports what is on its disk": (Follower, "held", property(lambda self: self.log.end)),
    "names are durable before what they lead to": (SimFiles, "sync_directory", nothing),
    "queues are on disk before a mark vouches for them": (
        MarkWriter,
        "write",
        lambda self, mark, files, directories, time_ms: mark.save(self.root, self.files),
    ),
    "acknowledgements are written down": (LeaseJournal, "append", nothing),
}


@contextlib.contextmanager
def switched_off(rule: str) -> Iterator[None]:
    """Run without a rule.

    Raises:
        KeyError: there is none of this name.
    """
    target, name, instead = RULES[rule]
    with patch.object(target, name, instead):
        yield
