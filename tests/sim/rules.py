"""Rules of the production code that can be switched off, one at a time: the simulation must find each.

That tests the simulation. A rule is switched off by patches of the code that follows it, for the time of a
run: an entry of `RULES` says which attributes of what get which other values.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from sim.files import SimFiles
from whimbrel.broker.cluster.write_admission import WriteAdmission
from whimbrel.broker.consume import policies
from whimbrel.broker.consume.group_consumption import GroupConsumption
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.policy import UnorderedPolicy
from whimbrel.broker.consume.positions import Positions
from whimbrel.broker.produce import confirmed_offset
from whimbrel.broker.produce.dead_letters import DeadLetters
from whimbrel.broker.produce.internal_append import InternalAppender
from whimbrel.broker.timing import slots
from whimbrel.broker.timing.effects import Doubt
from whimbrel.errors import IllegalOffset
from whimbrel.replicator.follower import Follower
from whimbrel.store import commitlog
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets
from whimbrel.store.queues import ConsumeQueues
from whimbrel.store.retention import FILES_REMOVED_MAX, Removal, RetentionClock
from whimbrel.store.segment import Segment
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.slave_store import SlaveStore

__all__ = ["FIRST_SEEDS", "RULES", "Patch", "switched_off"]

Patch = tuple[Any, str, Any]  # what, attribute, the value instead


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def all_closed(directory: Path, closed: list[int], *_: Any) -> Removal:
    """Return what retention would remove if no file were too young."""
    return Removal(tuple(closed[:FILES_REMOVED_MAX]))


def vouch_for_all(writer: LogWriter, *_: int) -> None:
    """Write the log's mark for all that was appended, whatever is on disk."""
    with contextlib.suppress(OSError, IllegalOffset):
        writer.save_mark(writer.end)


def unordered(*, hand_on: Any, delivers_up_to: int, **_: Any) -> UnorderedPolicy:
    """Return the policy of a group without order."""
    return UnorderedPolicy(hand_on, delivers_up_to=delivers_up_to)


RULES: Final[dict[str, tuple[Patch, ...]]] = {
    "the log is synced before it counts as flushed": ((Segment, "flush", nothing),),
    "a failed sync is final": ((LogWriter, "sync_failed", nothing),),
    "sends wait for slaves": ((SharedPage, "acknowledged", lambda self, needed: self.written),),
    "a slave reports what is on its disk": ((Follower, "held", property(lambda self: self.log.end)),),
    "names are durable before what they lead to": ((SimFiles, "sync_directory", nothing),),
    "acknowledgements are written down": ((LeaseJournal, "append", nothing),),
    "a slave compares before its log goes on": ((Follower, "overlap_start", lambda self, _: self.log.end),),
    "a master with less than a slave waits": (
        (WriteAdmission, "longer", nothing),
        (WriteAdmission, "slave_refused", nothing),
    ),
    "the log's mark vouches for what is on disk": ((LogWriter, "advance_mark", vouch_for_all),),
    "only what slaves hold is confirmed": (
        (confirmed_offset, "confirm", lambda before, *, written, **_: max(before, written)),
    ),
    "positions end where the log of a new master ends": ((Positions, "clamp_to_log", lambda self: 0),),
    "log files stay until they are old enough": ((commitlog, "expired_segments", all_closed),),
    "a clock that is far ahead is doubted": ((RetentionClock, "look", lambda self, wall_ms, *_: wall_ms),),
    "a doubt outlives the process": ((RetentionClock, "load", nothing),),
    "queues begin where the log does": ((ConsumeQueues, "follow_log", lambda self, log_begin, *, drop: 0),),
    "where expired queues go on is told to new slaves": (
        (
            ConsumeQueues,
            "merge_given_offsets",
            lambda self, offsets: False,
        ),
    ),
    "where deleted queues ended is remembered": ((DeletedQueueOffsets, "get", lambda self, *_: 0),),
    "a deleted topic's queues are removed on slaves": ((SlaveStore, "merge_deleted_offsets", nothing),),
    "a deleted topic's positions are forgotten": ((GroupConsumption, "delete_topic", nothing),),
    "a commit that comes late takes nothing back": (
        (
            Positions,
            "update_offset",
            Positions.reset_offset,
        ),
    ),
    "no position is beyond its queue's end": ((Positions, "check_offset", nothing),),
    "a delayed message is delivered if its delivery is not in the log": (
        (Doubt, "has_effect", lambda self, *_, **__: False),
    ),
    "what a recall names is not delivered": ((slots, "TIMER_DELETE_ID", "NOBODY"),),
    "what is held in an ordered queue holds up what is behind it": ((policies, "OrderedPolicy", unordered),),
    "a cause is done when its effect is durable": (
        (InternalAppender, "when_durable", lambda self, end, done: done(None)),
    ),
    "what was taken ahead of the clock comes by the clock": (
        (LeaseTable, "taken_ahead", lambda self, now: self.uncompared.clear() or []),
    ),
    "a dead letter is stored if it is not there": ((DeadLetters, "has_copy", lambda self, *_: False),),
}
# Rules that no seed before this one notices.
FIRST_SEEDS: Final[dict[str, int]] = {
    "what was taken ahead of the clock comes by the clock": 120,
    "a dead letter is stored if it is not there": 100,
    "a cause is done when its effect is durable": 100,
}


@contextlib.contextmanager
def switched_off(rule: str, rules: Mapping[str, tuple[Patch, ...]] = RULES) -> Iterator[None]:
    """Run without a rule.

    Raises:
        KeyError: there is none of this name.
    """
    with contextlib.ExitStack() as patches:
        for target, name, instead in rules[rule]:
            patches.enter_context(patch.object(target, name, instead))
        yield
