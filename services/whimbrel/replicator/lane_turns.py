"""The steady state of a replicator by the compiled lane: many turns in one call, without the GIL.

    steady? ──► `Loop.feed`, `Loop.follow` (`native/binding/src/replica.rs`) ──► time is up: step
       └──► no, or something was not plain ──► step ──► Loop.turn

A run is given a connection's state and gives it back: positions, times, what of a frame or a report is only
half sent, what was received and not used. Between runs all of it is Python's, which does whatever is not
plain (`native/core/src/replica.rs` says what is). A run ends after `RUN_S` at the latest.

**Not by the lane** are: connections that are new or not proven, traces, a log that the disk refuses, the
first bytes of a log file.

**In a group that commits by majority** a run stands on some more cells of the page: who leads, who votes, the
role, the promise that is asked for, the leader that is named. They are read before `steady` looks at them,
and the run ends as soon as one of them is another (`watched_by_feeder`, `watched_by_follower`). Promises, and
all that follows from another epoch, are Python's, between two runs: nothing is taken or reported meanwhile.

**A slave that flushes synchronously** has the flush thread go on after each append, and reports what that
shows in the page. The log is lent to the run: `LogWriter.sync` goes by the page's `written` mark.

**A fault of the lane** ends the connections that it had, since what they had sent is not known any more, and
switches it off. A slave's log goes on where its `written` mark stands, which a run moves with each append.
"""

import logging
from typing import TYPE_CHECKING, Any, Final

from whimbrel.errors import IllegalOffset, StoreError
from whimbrel.ha.epochs import epoch_at
from whimbrel.ha.switching import BEAT_S, COMMIT_APART_S, SwitchingSlave
from whimbrel.lane import Lane
from whimbrel.replicator.lane_cells import FOLLOWER_CELLS, LEADER_CELLS, watched

if TYPE_CHECKING:
    from whimbrel.replicator.feeder import Feeder
    from whimbrel.replicator.follower import Follower
    from whimbrel.replicator.slave_connection import SlaveConnection

__all__ = ["feed", "follow"]

logger = logging.getLogger(__name__)

RUN_S: Final = 0.1  # the loop's own longest wait: probes, signals and metrics are asked as often
NEVER_NS: Final = -(1 << 62)
# Of a slave's log, between two looks at the next file and at pages that may be let go.
WAKE_BYTES: Final = 4 << 20


def feed(feeder: "Feeder", now: float) -> bool:
    """Feed the slaves by the lane; see `Worker.run_lane`."""
    lane, log = feeder.loop.machine.lane, feeder.log
    native = lane.native
    connections = list(feeder.connections.values())
    if native is None or log is None or not connections:
        return False
    page, options = feeder.page, feeder.options
    stands_on = watched(page, LEADER_CELLS)  # before `steady` looks at them
    if not feeder.steady():
        return False
    try:
        file = log.file_of(min(one.core.next_offset for one in connections))
    except (IllegalOffset, StoreError, OSError):  # the step that follows meets it as well, and says so
        return False
    if file is None:
        return False
    fd, start = file
    feeding = native.Feeding(
        (feeder.epoch, page.begin, feeder.end, log.replaced),
        options.frame_bytes_max,
        (start, start + log.file_size),
        limits_ns(options.heartbeat_ms, options.housekeeping_ms, now),
        feeder.ack_timer is not None,
        group_of(feeder) if feeder.majority else None,
    )
    for one in connections:
        core = one.core
        feeding.add(
            one.slot,
            core.next_offset,
            core.acknowledged,
            one.sent_bytes,
            ns(core.sent_at),
            ns(core.received_at),
            core.partial,
            member_of(one),
        )
    if not run(lane, lambda: feeder.loop.feed(native, feeding, connections, fd, start, stands_on)):
        for one in connections:
            feeder.drop(one, "the compiled lane had a fault while it fed it")
        return False
    replay(feeder, feeding)
    feeder.end = feeding.written
    feeder.acks_moved |= feeding.moved
    for one, state in zip(connections, feeding.links(), strict=True):
        next_offset, acknowledged, sent_bytes, sent_ns, received_ns, partial, unread, rest, told = state
        core = one.core
        core.next_offset, core.acknowledged, core.partial = next_offset, acknowledged, partial
        core.sent_at, core.received_at = sent_ns / 1e9, received_ns / 1e9
        feeder.sent_bytes += sent_bytes - one.sent_bytes
        one.sent_bytes = sent_bytes
        if one.member is not None:
            one.member.commit_told = told
        if rest is not None:
            one.resume(*rest)
        if unread:
            feeder.take(one, unread)
    return bool(feeding.timed_out)


def group_of(feeder: "Feeder") -> tuple[int, ...]:
    """Return what the lane must know of a group: see `Group` in `native/core/src/members.rs`."""
    beat_ns, quorum_s, needed = feeder.quorum_rules()
    until_ns = ns(feeder.led_since + quorum_s) if needed else NEVER_NS
    start = feeder.page.leader_start
    return start, beat_ns, ns(quorum_s), needed, until_ns, ns(BEAT_S), ns(COMMIT_APART_S)


def member_of(connection: "SlaveConnection") -> tuple[int | bool, ...] | None:
    """Return what the lane must know of a member's connection; None of other slaves."""
    core = connection.member
    if core is None:
        return None
    (epoch, start), end = epoch_at(core.epochs, core.next_offset)
    return core.member, core.counts, epoch, start, end, connection.connected_at_ms, core.commit_told


def replay(feeder: "Feeder", feeding: Any) -> None:
    """Tell the metrics what has happened in a run."""
    timer = feeder.ack_timer
    if timer is not None:
        for acknowledged, offset, at_ns in feeding.notes():
            (timer.acknowledged if acknowledged else timer.written)(offset, at_ns / 1e9)


def follow(follower: "Follower", now: float, ring_apart_s: float) -> bool:
    """Follow the master by the lane; see `Worker.run_lane`.

    Args:
        ring_apart_s: between two rings for the broker beside.
    """
    lane, core, log = follower.loop.machine.lane, follower.core, follower.log
    native, segment, sock, buffer = lane.native, log.segment, follower.sock, follower.buffer
    stands_on = watched(follower.page, FOLLOWER_CELLS)  # before `steady` looks at them
    if native is None or core is None or segment is None or sock is None or not follower.steady():
        return False
    assert core.end is not None
    following = native.Following(
        (core.end, log.limit, log.end + WAKE_BYTES),
        (core.reported, ns(core.reported_at)),
        ns(core.received_at),
        (follower.ring_due, NEVER_NS if follower.rung_at < 0 else ns(follower.rung_at), ns(ring_apart_s)),
        (buffer.filled, buffer.parsed),
        (ns(core.heartbeat_s), ns(core.silence_s), ns(now + RUN_S)),
        follower.sync,
        leader_of(follower),
    )
    log.lend()
    if not run(lane, lambda: follower.loop.follow(native, following, sock, buffer, log, stands_on)):
        log.grown(follower.page.written)
        follower.disconnect("the compiled lane had a fault while it followed", logging.WARNING)
        return False
    end = following.end
    if end != log.end:
        follower.appended_bytes += end - log.end
        follower.backoff.reset()
    log.grown(end)
    if isinstance(core, SwitchingSlave):
        core.commit = following.commit
    core.end = follower.appended_end = follower.bodies.frames_end = end
    core.reported, reported_ns = following.reported
    core.reported_at, core.received_at = reported_ns / 1e9, following.received_ns / 1e9
    follower.ring_due, rung_ns = following.rung
    follower.rung_at = rung_ns / 1e9
    follower.unsent = following.unsent
    buffer.filled, buffer.parsed = following.buffer
    buffer.missing = 0
    if not following.timed_out:
        follower.take_received(now)
    return bool(following.timed_out)


def leader_of(follower: "Follower") -> tuple[int, ...] | None:
    """Return what the lane must know of a leader that speaks the members' dialect: the epoch that the log is
    in, its start, where the next one starts; the commit offset that was heard, and the one that is shown."""
    core = follower.core
    if not isinstance(core, SwitchingSlave):
        return None
    (epoch, start), end = epoch_at(core.theirs, follower.log.end)
    return epoch, start, end, core.commit, follower.page.heard_commit


def run(lane: Lane, work: Any) -> bool:
    """Do a run; return whether the lane had no fault."""
    native = lane.native
    assert native is not None
    try:
        work()
    except native.Broken as error:
        lane.broke(error)
        return False
    return True


def ns(seconds: float) -> int:
    """Return seconds as nanoseconds."""
    return int(seconds * 1e9)


def limits_ns(heartbeat_ms: int, silence_ms: int, now: float) -> tuple[int, int, int]:
    """Return how long a connection may be idle and silent, and when a run that begins now ends."""
    return heartbeat_ms * 1_000_000, silence_ms * 1_000_000, ns(now + RUN_S)
