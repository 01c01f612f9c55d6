"""Pulls by the remoting protocol (11, and 361, which is the same for lite pull consumers of 5.x).

    request ──► checks, in RocketMQ's order ──► read ──► commit of the offset that it carries ──► reply
                          ▲                      └──(nothing new, and it may wait)──► held ──┐
                          └───────────────(a message has come: once more, without a commit)──┘

Records go out as they stand in the log (`consume/raw_pull.py`). Bits of `sysFlag`: 1 a valid `commitOffset`,
2 may wait, 4 the request names its subscription, 8 a class filter, 16 lite pull. Without bit 4 the group's
subscription counts, which heartbeats brought: code 24 where there is none.

Where the request knows a newer subscription it gets all messages if it is one of tags: clients compare tags
themselves, since a broker compares their hashes. Java's clients give a subscription a newer version whenever
their queues change, and the heartbeat that says so may come half a minute later; RocketMQ answers 25 until
then (the client tries again), and here that is left to SQL.

Replies with the codes 0, 19, 20 and 21 have all four fields, which clients unbox; the remark is the status.
On a slave offsets outside the queue are not corrected, and what is 21 on a master is 20, as in RocketMQ: the
slave may lag. There a pull that may wait does so: without a master its client would ask over and over. Slaves
commit nothing.

A peer that leaves much unread gets no messages until it has read: 20, and the offset that it has asked for.

RocketMQ: PullMessageProcessor, PullRequestHoldService.
"""

from collections.abc import Callable
from typing import Final, Protocol

from whimbrel.broker.api.receive import ReadSplitting
from whimbrel.broker.consume.filters import ALL, Filter, compile_filter
from whimbrel.broker.consume.raw_pull import RangedSource, RawPull, RawRequest, Status, pull_raw
from whimbrel.broker.remoting.held_pulls import HeldPull, HeldPulls
from whimbrel.broker.remoting.pull_header import COMMIT, NAMES_SUBSCRIPTION, SUSPEND, read_pull
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import (
    Forbidden,
    GroupNotFound,
    NotReady,
    QueueNotFound,
    RequestError,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.topic import GroupConfig, TopicConfig
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply, reply_to_error
from whimbrel.store.lane_passes import LanePasses

__all__ = ["Pulls"]

OUTSIDE: Final = (Status.OFFSET_TOO_SMALL, Status.OFFSET_OVERFLOW_BADLY)
CODES: Final = {
    Status.FOUND: ResponseCode.SUCCESS,
    Status.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Status.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    Status.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    Status.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    Status.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    Status.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
}


class Subscription(Protocol):
    """What a group wants of a topic; see `tables/remoting_clients.py`."""

    @property
    def version(self) -> int: ...
    @property
    def sql(self) -> bool: ...
    @property
    def filter(self) -> Filter | None: ...


class ConsumerGroup(Protocol):
    """The members of a group."""

    @property
    def broadcasting(self) -> bool: ...
    def subscription(self, topic: str) -> Subscription | None: ...


class ConsumerGroups(Protocol):
    """Who consumes by the remoting protocol."""

    def group(self, name: str) -> ConsumerGroup | None: ...
    def owns_positions(self, group: str) -> bool: ...


class NotSubscribed(RequestError):
    """The group has no live member here, or none that wants the topic; the client tries again."""

    reason = "NOT_SUBSCRIBED"
    remoting = ResponseCode.SUBSCRIPTION_NOT_EXIST


class SubscriptionOutdated(RequestError):
    """The client has a newer subscription than the last heartbeat; it tries again."""

    reason = "SUBSCRIPTION_OUTDATED"
    remoting = ResponseCode.SUBSCRIPTION_NOT_LATEST


class SubscriptionUnreadable(RequestError):
    """The group's expression does not parse."""

    reason = "SUBSCRIPTION_UNREADABLE"
    remoting = ResponseCode.FILTER_DATA_NOT_EXIST


class Pulls:
    """Handles pulls on the loop's thread."""

    def __init__(
        self,
        topics: TopicTable,
        creation: GroupCreation,
        clients: ConsumerGroups,
        source: RangedSource,
        splitting: ReadSplitting,
        *,
        master: bool,
        clock: Callable[[], int],
        soon: Callable[[Callable[[], None]], object],
        commit: Callable[[str, str, int, int], None],
        passes: LanePasses | None = None,
    ) -> None:
        """Take what is needed.

        Args:
            topics, clients: the tables. creation: has groups, and makes them. source: the store.
            splitting: where slow readers go. master: offsets are committed here.
            clock: gives milliseconds that only grow.
            soon: has a function called in the loop's next iteration.
            commit: takes the offset that a pull carries: group, topic, queue id, offset.
            passes: run the compiled lane, where there may be one.
        """
        self.topics, self.creation, self.clients = topics, creation, clients
        self.source, self.splitting, self.master = source, splitting, master
        self.clock, self.commit, self.passes = clock, commit, passes
        self.held = HeldPulls(lambda: soon(self.serve_woken))
        # Called with topic, group, number and bytes of what goes to consumers.
        self.on_delivered: Callable[[str, str, int, int], None] | None = None
        self.on_pull: Callable[..., None] | None = None
        # Called with group, topic and queue id of a pull of a member that shares queues out with others.
        self.on_shared: Callable[[str, str, int], None] = lambda *place: None
        # Returns where a pull of a group (topic, queue id, offset) is to go on, after a reset; None: there.
        self.redirect: Callable[[str, str, int, int], int | None] = lambda *place: None

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    # A pull

    def pull(self, peer: Peer, request: Command) -> Outcome:
        """Answer a pull, or have it wait."""
        header = read_pull(request)
        flags, suspend_ms = header.flags, header.suspend_ms
        pull = HeldPull(peer, *header[:10])
        topic, group, wanted = self.checked(pull)
        pull.topic, pull.group = topic.name, group.name  # the tables' objects: the request's may go
        if (moved := self.redirected(pull)) is not None:
            return moved
        if self.clients.owns_positions(group.name):
            self.on_shared(group.name, topic.name, pull.queue_id)
        found = self.read(pull, wanted)
        if flags & COMMIT and self.master:
            offset = header.commit_offset
            if offset is None:
                offset = request.int64("commitOffset", 0)
            self.commit(group.name, topic.name, pull.queue_id, offset)
        if flags & SUSPEND and suspend_ms > 0 and self.may_wait(pull, found):
            self.held.park(pull, self.clock() + suspend_ms)
            return pull
        return self.reply(pull, group, found)

    def checked(self, pull: HeldPull) -> tuple[TopicConfig, GroupConfig, Filter]:
        """Return topic, group and filter of a pull.

        Raises:
            WhimbrelError: it is not served as it is; the first reason in RocketMQ's order.
        """
        group = self.group(pull.group)
        if not group.consume_enabled:
            raise Forbidden(f"reading is switched off for group {group.name}")
        topic = self.topics.rows.get(pull.topic)
        if topic is None:
            raise TopicNotFound(f"topic {pull.topic} does not exist")
        if not topic.readable:
            raise Forbidden(f"topic {topic.name} can't be read here")
        if not 0 <= pull.queue_id < topic.read_queues:
            raise QueueNotFound(
                f"queue {pull.queue_id} is not one of the {topic.read_queues} of {topic.name}"
            )
        if pull.flags & NAMES_SUBSCRIPTION:
            return topic, group, compile_filter("sql" if pull.sql else "tag", pull.text)
        return topic, group, self.subscribed(pull, group)

    def group(self, name: str) -> GroupConfig:
        """Return a group's configuration, which is made where there is none."""
        found = self.creation.group(name)
        if found is None:
            if not self.creation.groups.auto_create:
                raise GroupNotFound(f"no consumer group {name}; create it, or switch auto_create_groups on")
            found = GroupConfig(name=name)  # a slave's table is its master's
        return found

    def subscribed(self, pull: HeldPull, group: GroupConfig) -> Filter:
        """Return what the group's members want of the topic."""
        members = self.clients.group(pull.group)
        if members is None:
            raise NotSubscribed(f"no member of group {pull.group} is known here yet")
        if members.broadcasting and not group.rest.get("consumeBroadcastEnable", True):
            raise Forbidden(f"group {pull.group} may not consume by broadcast")
        subscription = members.subscription(pull.topic)
        if subscription is None:
            raise NotSubscribed(f"group {pull.group} has not subscribed to {pull.topic}")
        if subscription.version < pull.version:
            if subscription.sql or pull.sql:
                raise SubscriptionOutdated(
                    f"the newest subscription of group {pull.group} to {pull.topic} has not come here yet",
                )
            return ALL
        if subscription.filter is None:
            raise SubscriptionUnreadable(
                f"the subscription of group {pull.group} to {pull.topic} can't be read",
            )
        return subscription.filter

    def read(self, pull: HeldPull, wanted: Filter) -> RawPull:
        """Read what a pull asks for."""
        request = RawRequest(pull.topic, pull.queue_id, pull.offset, pull.messages, pull.bytes, wanted)
        return pull_raw(self.source, request, follows=not self.master, passes=self.passes)

    def may_wait(self, pull: HeldPull, found: RawPull) -> bool:
        """Return whether a pull that found this has to wait for a message."""
        if not self.master and found.status in OUTSIDE:
            return True
        return self.code(pull, found) == ResponseCode.PULL_NOT_FOUND

    def code(self, pull: HeldPull, found: RawPull) -> ResponseCode:
        """Return the code of a reply."""
        code = CODES[found.status]
        if found.status is Status.NO_MESSAGE_IN_QUEUE and pull.offset:
            code = ResponseCode.PULL_OFFSET_MOVED
        if code == ResponseCode.PULL_OFFSET_MOVED and not self.master:
            return ResponseCode.PULL_RETRY_IMMEDIATELY
        return code

    def reply(self, pull: HeldPull, group: GroupConfig, found: RawPull) -> Reply:
        """Return the reply to a pull."""
        code, next_offset, body = self.code(pull, found), found.next_offset, found.records
        status = found.status
        if body and pull.peer.overloaded:
            code, next_offset, body = ResponseCode.PULL_RETRY_IMMEDIATELY, pull.offset, []
            status = Status.NO_MATCHED_MESSAGE
        elif body and self.on_delivered is not None:
            self.on_delivered(pull.topic, pull.group, found.messages, found.size)
        if self.on_pull is not None:
            self.on_pull(found=bool(body))
        return Reply(
            code,
            {
                "suggestWhichBrokerId": str(self.splitting.suggest(group, found.last_place)),
                "nextBeginOffset": str(next_offset),
                "minOffset": str(found.low),
                "maxOffset": str(found.high),
            },
            body,
            status.value,
        )

    def redirected(self, pull: HeldPull) -> Reply | None:
        """Return the reply to a pull whose group was reset; None where it is to be read."""
        target = self.redirect(pull.group, pull.topic, pull.queue_id, pull.offset)
        if target is None:
            return None
        low, high, _ = self.source.visible_range(pull.topic, pull.queue_id)
        return Reply(
            ResponseCode.PULL_OFFSET_MOVED,
            {
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(target),
                "minOffset": str(low),
                "maxOffset": str(high),
            },
            remark="OFFSET_RESET",
        )

    # Those that wait

    def serve_woken(self) -> None:
        """Read again for those that a new message may be for."""
        for pull in self.held.woken():
            self.serve(pull, at_deadline=False)

    def expire(self) -> None:
        """Answer those whose time is over."""
        for pull in self.held.expired(self.clock()):
            self.serve(pull, at_deadline=True)

    def serve(self, pull: HeldPull, *, at_deadline: bool) -> None:
        """Read again for a pull that waits; one that still finds nothing waits on, from further behind."""
        try:
            _, group, wanted = self.checked(pull)
            if (moved := self.redirected(pull)) is not None:
                self.held.remove(pull)
                pull.complete(moved)
                return
            found = self.read(pull, wanted)
            if not at_deadline:
                if found.status is Status.NO_MATCHED_MESSAGE and found.next_offset >= found.high:
                    pull.offset = found.next_offset
                    return
                if self.may_wait(pull, found):
                    return
            reply = self.reply(pull, group, found)
        except WhimbrelError as error:
            reply = reply_to_error(error)
        self.held.remove(pull)
        pull.complete(reply)

    def close(self, reason: str) -> None:
        """Answer all that wait: the role ends."""
        for pull in self.held.all():
            self.held.remove(pull)
            pull.fail(NotReady(reason))
