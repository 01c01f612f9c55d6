"""Pulls by the remoting protocol (11, and 361, which is the same for lite pull consumers of 5.x).

Bits of `sysFlag`: 1 a valid `commitOffset`, 2 may wait, 4 the request names its subscription, 8 a class
filter, 16 lite pull. Without bit 4 the group's subscription counts, which heartbeats brought.

Replies with the codes 0, 19, 20 and 21 have all four fields, which clients unbox; the remark is the status.
On a slave offsets outside the queue are not corrected, and what is 21 on a master is 20, as in RocketMQ: the
slave may lag. There a pull that may wait does so: without a master its client would ask over and over.

What is checked, and in which order, says `REMOTING_READS`, as RocketMQ's broker does (PullMessageProcessor).
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from whimbrel.broker.engine import read_checks
from whimbrel.broker.engine.consuming import group_reads
from whimbrel.broker.engine.read import Read, ReadRules, Reads, Run, Status
from whimbrel.broker.engine.read_forms import whole_records
from whimbrel.broker.engine.waiting import HELD_PULLS
from whimbrel.broker.remoting.pull_header import (
    BYTES_MAX,
    COMMIT,
    NAMES_SUBSCRIPTION,
    SUSPEND,
    commit_offset,
    read_pull,
)
from whimbrel.errors import QueueNotFound
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply

__all__ = ["REMOTING_READS", "Pulls"]

SCANNED_MAX: Final = 800  # entries (RocketMQ: maxFilterMessageCount / CQ_STORE_UNIT_SIZE)
REMOTING_READS: Final = ReadRules(
    checks=(
        group_reads,
        read_checks.queue_there,
        read_checks.filter_known,
        read_checks.follows_reset,
        read_checks.shared_out,
    ),
    again=(group_reads, read_checks.queue_there, read_checks.filter_known, read_checks.follows_reset),
    outside=read_checks.told_outside,
    form=whole_records,
    kind=HELD_PULLS,
    entries_max=SCANNED_MAX,
    bytes_max=BYTES_MAX,
    no_topic="topic {name} does not exist",
    not_readable="topic {name} can't be read here",
    no_queue=QueueNotFound,
    limited=True,
)

CODES: Final = {  # where the reader is not to go on elsewhere
    Status.FOUND: ResponseCode.SUCCESS,
    Status.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    Status.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}


class Pulls:
    """Handles pulls on the loop's thread."""

    def __init__(self, reads: Reads, on_pull: Callable[..., None]) -> None:
        """Take what decides them, and what counts pulls that have found something, and others."""
        self.reads, self.on_pull = reads, on_pull

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, peer: Peer, request: Command) -> Outcome:
        """Answer a pull, or have it wait."""
        header = read_pull(request)
        flags = header.flags
        read = Read(
            REMOTING_READS,
            header.group,
            header.topic,
            header.text if flags & NAMES_SUBSCRIPTION else None,
            header.sql,
            header.queue_id,
            header.offset,
            header.messages,
            header.bytes,
            header.version,
            header.suspend_ms if flags & SUSPEND else 0,
            partial(commit_offset, header, request) if flags & COMMIT else None,
            peer,
        )
        return self.reads.read(read, self.reply)

    def reply(self, read: Read, run: Run) -> Reply:
        """Return the reply to a pull."""
        status = run.status
        if run.moved:
            code = ResponseCode.PULL_OFFSET_MOVED
        elif status is Status.NO_MESSAGE_IN_QUEUE and run.next_offset:
            code = ResponseCode.PULL_RETRY_IMMEDIATELY
        else:
            code = CODES.get(status, ResponseCode.PULL_RETRY_IMMEDIATELY)
        if status is not Status.OFFSET_RESET:
            self.on_pull(found=status is Status.FOUND)
        return Reply(
            code,
            {
                "suggestWhichBrokerId": str(run.broker_id),
                "nextBeginOffset": str(run.next_offset),
                "minOffset": str(run.low),
                "maxOffset": str(run.high),
            },
            run.parts,
            status.value,
        )
