"""`whimbrel.group.v1.GroupService`: the records of groups that elect their leaders, read and swapped.

One nameserver keeps the records (`keeps_groups`), in a file. All others serve the calls as well and refuse
them with a sentence, so that a coordinator that names the wrong one is told.

    Swap    is answered once the new record is on disk. If the disk refuses, the call fails and the record
            before stands; it was not answered, so whoever asked reads before it believes anything
    Read    answers at once, or waits for another revision than the one that is named, for at most
            `WAIT_MS_MAX`. At most `WAITS_MAX` calls wait; beyond, they are answered at once

A swap syncs a file and its directory on the loop's thread, so routes and sessions wait meanwhile, for
milliseconds. Elections are rare: nothing else writes, and a table of some dozen groups is small.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, Refused, StoreError
from whimbrel.model.wire import GROUP_SERVICE
from whimbrel.nameserver.group_file import GroupFile
from whimbrel.nameserver.group_table import GroupKey, GroupTable, KeptRecord, group_key
from whimbrel.pb.whimbrel.group.v1 import group_service_pb2 as pb
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod

__all__ = ["WAITS_MAX", "WAIT_MS_MAX", "GroupService"]

WAIT_MS_MAX: Final = 5000  # a member notices soon that the nameserver is gone, and asks again
WAITS_MAX: Final = 1024  # a call that waits keeps a stream of the transport, about 20 KiB
ANSWER_MARGIN_S: Final = 0.1  # between the answer and the caller's deadline, so that the answer arrives first

logger = logging.getLogger(__name__)


class Timer(Protocol):
    """A call that was scheduled."""

    def cancel(self) -> None:
        """Have it not come."""


def call_later(delay_s: float, callback: Callable[[], None]) -> Timer:
    """Schedule a call on the running loop."""
    return asyncio.get_running_loop().call_later(delay_s, callback)


class GroupService:
    """The service; `service` is what to serve. On the loop's thread.

    Args:
        file: where the records are kept; None: this nameserver keeps none.
        table: what it holds.
        now: gives the time of calls' deadlines, seconds of a monotonic clock.
        later: schedules a call, after seconds.

    Attributes:
        waits: calls that wait for a change, by group.
    """

    def __init__(
        self,
        file: GroupFile | None,
        table: GroupTable,
        *,
        now: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Timer] = call_later,
    ) -> None:
        self.file, self.table = file, table
        self.now, self.later = now, later
        self.waits: dict[GroupKey, dict[Deferred[Any], Timer]] = {}
        self.waiting = 0
        self.service = Service(
            GROUP_SERVICE,
            (
                UnaryMethod("Read", pb.ReadRequest, self.read),
                UnaryMethod("Swap", pb.SwapRequest, self.swap),
            ),
        )

    def read(self, call: Call, request: pb.ReadRequest) -> pb.ReadResponse | Deferred[pb.ReadResponse]:
        """Return a group's record, or wait for it to change.

        Raises:
            BadRequest: a field can't be what it is.
            Refused: this nameserver keeps no records.
            StoreError: what stands is not known, since the disk refuses.
        """
        file, key = self.keeper(), group_key(request.cluster, request.broker_name)
        if request.after_revision < 0 or request.wait_ms < 0:
            raise BadRequest("after_revision and wait_ms are not below 0")
        file.settle(self.table)
        kept = self.table.find(key)
        wait_s = min(request.wait_ms, WAIT_MS_MAX) / 1000
        if call.deadline is not None:
            wait_s = min(wait_s, call.deadline - self.now() - ANSWER_MARGIN_S)
        revision = 0 if kept is None else kept.revision
        if wait_s <= 0 or revision != request.after_revision or self.waiting >= WAITS_MAX:
            return read_response(kept)
        return self.wait(key, wait_s)

    def wait(self, key: GroupKey, wait_s: float) -> Deferred[pb.ReadResponse]:
        """Answer once a group's record has changed, or after `wait_s` with the one that stands."""
        deferred: Deferred[pb.ReadResponse] = Deferred()
        self.waiting += 1
        self.waits.setdefault(key, {})[deferred] = self.later(wait_s, lambda: self.answer(key, deferred))
        deferred.on_cancel = lambda: self.forget(key, deferred)
        return deferred

    def answer(self, key: GroupKey, deferred: Deferred[pb.ReadResponse]) -> None:
        """Answer one that waits with what stands."""
        self.forget(key, deferred)
        assert self.file is not None
        try:
            self.file.settle(self.table)
        except StoreError as error:
            deferred.fail(error)
        else:
            deferred.complete(read_response(self.table.find(key)))

    def forget(self, key: GroupKey, deferred: Deferred[pb.ReadResponse]) -> None:
        """Let a call wait no more."""
        waits = self.waits.get(key, {})
        timer = waits.pop(deferred, None)
        if timer is None:
            return
        timer.cancel()
        self.waiting -= 1
        if not waits:
            del self.waits[key]

    def answer_all(self, key: GroupKey) -> None:
        """Answer all that wait for a group."""
        for deferred in list(self.waits.get(key, ())):
            self.answer(key, deferred)

    def swap(self, call: Call, request: pb.SwapRequest) -> pb.SwapResponse:
        """Replace a group's record if its revision is the one that is named, and tell what stands.

        Raises:
            BadRequest: the record can't be one, or can't follow the one that stands (`group_table.py`).
            Refused: this nameserver keeps no records.
            StoreError: the disk refuses; the record before stands, and if the process ends now, either may.
        """
        file, key = self.keeper(), group_key(request.cluster, request.broker_name)
        file.settle(self.table)
        swapped = self.table.swapped(key, request.record, request.revision)
        if swapped is None:
            return swap_response(self.table.records[key], swapped=False)
        try:
            file.save(swapped)
        except StoreError as error:
            logger.error("the record of group %s can't be changed: %s", key, error)
            raise
        self.table = swapped
        kept = swapped.records[key]
        record = kept.record
        logger.info(
            "group %s: epoch %d, leader %d, revision %d, as %s wants it", key, record.epoch, record.leader,
            kept.revision, call.peer,
        )  # fmt: skip
        self.answer_all(key)
        return swap_response(kept, swapped=True)

    def keeper(self) -> GroupFile:
        """Return the file.

        Raises:
            Refused: this nameserver has none.
        """
        if self.file is None:
            raise Refused(
                "this nameserver keeps no records of groups: start one with the setting keeps_groups"
                " (--keeps-groups FILE), and name that one as coordinator"
            )
        return self.file

    def close(self) -> None:
        """Answer all that wait, and let another process have the file."""
        for key in list(self.waits):
            self.answer_all(key)
        if self.file is not None:
            self.file.close()
            self.file = None


def read_response(kept: KeptRecord | None) -> pb.ReadResponse:
    """Return a record as an answer."""
    return pb.ReadResponse() if kept is None else pb.ReadResponse(record=kept.data, revision=kept.revision)


def swap_response(kept: KeptRecord, *, swapped: bool) -> pb.SwapResponse:
    """Return what stands after a swap as an answer."""
    return pb.SwapResponse(swapped=swapped, record=kept.data, revision=kept.revision)
