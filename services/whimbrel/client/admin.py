"""Topics, groups, offsets, and the state of the cluster: asks a nameserver for the brokers, then each one.

Changes go to every master, in the order of their names. When one of them fails, the error names it and the
masters before it, which have made the change. Repeating is safe: updates set absolute values, and `create`
and `delete` skip masters where it is done already, unless it was done on all of them.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from itertools import groupby
from typing import TypeVar

from whimbrel.client.options import ClientOptions
from whimbrel.client.retry import decide
from whimbrel.client.session import BaseClient, Session
from whimbrel.errors import (
    AlreadyExists,
    BadRequest,
    GroupNotFound,
    IllegalOffset,
    NotSupported,
    RequestError,
    TopicNotFound,
    Unavailable,
    WhimbrelError,
    WouldHide,
)
from whimbrel.model.cluster import (
    BrokerStatus,
    Cluster,
    DeadLetter,
    DeadLetterOutcome,
    DrainStatus,
    GroupConfig,
    GroupDescription,
    GroupProgress,
    OffsetMove,
    QueueState,
    ReplicationStatus,
    TopicConfig,
    TopicDescription,
)
from whimbrel.model.cuts import CutMark, CutPage, CutStatus, ReplayedPage
from whimbrel.model.elections import FailoverPlan
from whimbrel.model.limits import DEAD_LETTERS_MAX
from whimbrel.model.message import MessageType
from whimbrel.model.names import DEAD_LETTER_PREFIX
from whimbrel.model.retry import Customized, Exponential
from whimbrel.model.route import Endpoint, Queue
from whimbrel.model.topic import OrderedBy
from whimbrel.model.unasked import Unasked, left_out, sentence
from whimbrel.rpc.api import admin_calls, calls, cut_calls, dead_letter_calls, election_admin_calls
from whimbrel.rpc.api.calls import Outbound
from whimbrel.rpc.api.convert import ClientSettings
from whimbrel.rpc.api.dead_letter_calls import Place

__all__ = ["REPLAY_RATE", "Admin"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

READ, WRITE = 4, 2  # permission bits
ROUTED_S = 2.0  # how long a change of a topic waits for the nameserver; brokers renew every 2 s
REINIT_TIMEOUT_S = 65.0  # removing a log of many files takes a while
ADMIN_TIMEOUT_S = 10.0  # for topics with thousands of queues
# Dead letters a second: what failed once may fail again, and consumers have other work besides.
REPLAY_RATE = 100.0
# How long a listing waits for a nameserver that has just started; brokers renew every 2 s.
SETTLED_S, SETTLED_LOOK_S = 3.0, 0.1
FINISHED_LOOK_S = 0.5  # between looks whether groups have finished what would be hidden
DESCRIBE_TIMEOUT_S = 3.0  # for a broker's view of its log, which it has at hand


class Admin(BaseClient):
    """An asyncio administration client.

    async with Admin("127.0.0.1:8081") as admin:
        await admin.create_topic("orders", queues=8)

    Public methods: start, close, cluster, create_topic, update_topic, delete_topic, topics, describe_topic,
    create_group, update_group, delete_group, groups, describe_group, reset_offsets, plan_reset,
    replication, dead_letters, replay_dead_letters, drop_dead_letters.

    Attributes:
        session: connections and routes, for calls that have no method here.
    """

    def __init__(self, endpoint: str, *, options: ClientOptions | None = None) -> None:
        """Prepare.

        Raises:
            IllegalAccessPoint: `endpoint` is malformed.
        """
        super().__init__(endpoint, options or ClientOptions())

    def settings(self, session: Session) -> ClientSettings:
        return self.common_settings("producer")

    async def cluster(self) -> Cluster:
        """Return the live brokers."""
        return await self.session.cluster()

    async def create_topic(
        self,
        name: str,
        *,
        message_type: MessageType = MessageType.NORMAL,
        queues: int = 0,
        brokers: Sequence[str] = (),
        answer: str = "committed",
    ) -> TopicConfig:
        """Create a topic.

        Args:
            name: the topic's.
            message_type: what it takes.
            queues: on each of its brokers; 0 means their default.
            brokers: names of the broker groups that hold it; () for all that there are now.
            answer: when a send is answered where a majority commits: `committed`, `acks=K` (K members besides
                the leader hold it) or `written` (the leader has it); the last two may be lost with a leader.

        Raises:
            BadRequest: there is no such broker group, or no such answer.
            AlreadyExists: all of them have it.
        """
        topic = TopicConfig(
            name=name,
            read_queues=queues,
            write_queues=queues,
            permission=READ | WRITE,
            type=message_type,
            answer=answer,
        )
        call = admin_calls.create_topic(topic)
        return await self.change_topic(call, missing=AlreadyExists, brokers=brokers)

    async def update_topic(
        self,
        name: str,
        *,
        queues: int | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        message_type: MessageType | None = None,
        answer: str | None = None,
        wait_s: float = 0.0,
        hide_messages: bool = False,
        on_wait: Callable[[WouldHide], None] = lambda error: None,
    ) -> TopicConfig:
        """Change the arguments that are given, on every master; `queues` sets both counts.

        Fewer queues to read, or no reading at all, would hide what groups have not finished in the others.
        Then all the rest is changed first, so that no more comes there, and reading as soon as they have.

        Args:
            name: the topic's.
            queues, read_queues, write_queues, permission, message_type, answer: as in `create_topic`, and
                RocketMQ's bits (4 read, 2 write, 1 inherit).
            wait_s: how long it may take until groups have finished.
            hide_messages: do not wait: nobody is given them.
            on_wait: called once, if there is something to wait for.

        Raises:
            TopicNotFound: no master has it.
            WouldHide: groups have not finished within `wait_s`; the rest is changed. Repeat the call.
            BadRequest: there would be more queues to write than to read.
        """
        read = queues if read_queues is None else read_queues
        write = queues if write_queues is None else write_queues

        def call(
            read: int | None, write: int | None, permission: int | None, *, rest: bool = True
        ) -> Outbound[TopicConfig]:
            return admin_calls.update_topic(
                name,
                read_queues=read,
                write_queues=write,
                permission=permission,
                message_type=message_type if rest else None,
                answer=answer if rest else None,
                hide_messages=hide_messages,
            )

        try:
            return await self.change_topic(call(read, write, permission), missing=TopicNotFound)
        except WouldHide as error:
            on_wait(error)
        until = time.monotonic() + wait_s
        writing = None if permission is None else permission | READ
        await self.change_topic(call(None, write, writing), missing=TopicNotFound)
        while True:
            try:
                last = call(read, None, permission, rest=False)
                return await self.change_topic(last, missing=TopicNotFound)
            except WouldHide:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise
                await asyncio.sleep(min(FINISHED_LOOK_S, left_s))

    async def delete_topic(self, name: str) -> None:
        """Remove a topic and its messages from every master.

        Raises:
            TopicNotFound: no master has it.
        """
        await self.everywhere(lambda _: admin_calls.delete_topic(name), missing=TopicNotFound)

    async def topics(
        self, *, include_system: bool = False, unasked: list[Unasked] | None = None
    ) -> list[TopicConfig]:
        """Return the topics of all masters by name; queue counts are summed over them.

        Args:
            include_system: those of the brokers' own, too.
            unasked: takes who could not be asked, or is away, and is left out of the result. Without it that
                is an error.

        Raises:
            Unavailable: without `unasked`: a master does not answer, or a group has none.
        """
        merged: dict[str, TopicConfig] = {}
        call = admin_calls.list_topics(include_system=include_system)
        for topics in await self.read_everywhere(lambda _: call, unasked=unasked):
            for topic in topics:
                known = merged.get(topic.name)
                merged[topic.name] = topic if known is None else joined(known, topic)
        return [merged[name] for name in sorted(merged)]

    async def describe_topic(
        self, name: str, *, unasked: list[Unasked] | None = None
    ) -> list[TopicDescription]:
        """Return the topic as each master that has it holds it; `unasked` as in `topics`.

        Raises:
            TopicNotFound: no master has it.
        """
        return await self.read_everywhere(
            lambda broker: admin_calls.describe_topic(name, broker.broker_name),
            missing=TopicNotFound,
            unasked=unasked,
        )

    async def create_group(
        self,
        name: str,
        *,
        fifo: bool = False,
        max_attempts: int = 0,
        ordered_by: OrderedBy = OrderedBy.QUEUE,
        retry_policy: Customized | Exponential | None = None,
        priority_percent: int | None = None,
    ) -> GroupConfig:
        """Create a consumer group on every master.

        Args:
            name: the group's.
            fifo: its consumers get messages in order.
            max_attempts: deliveries before a message becomes a dead letter; 0 means the brokers' default.
            ordered_by: what a message waits for in a group with `fifo`: all before it in its queue, or those
                of its message group. Brokers of earlier versions know queues only; the result says what is.
            retry_policy: waits between attempts; None means RocketMQ's default.
            priority_percent: how many of a hundred receives on a topic of priorities begin with the greatest
                ones; None means all. Brokers of earlier versions do not take it; the result says what is.

        Raises:
            AlreadyExists: every master has it.
        """
        group = GroupConfig(
            name=name,
            fifo=fifo,
            max_attempts=max_attempts,
            ordered_by=ordered_by,
            retry_policy=retry_policy,
            priority_percent=priority_percent,
        )
        call = admin_calls.create_group(group)
        return (await self.everywhere(lambda _: call, missing=AlreadyExists))[0]

    async def update_group(
        self,
        name: str,
        *,
        fifo: bool | None = None,
        max_attempts: int | None = None,
        consume_enabled: bool | None = None,
        ordered_by: OrderedBy | None = None,
        retry_policy: Customized | Exponential | None = None,
        priority_percent: int | None = None,
    ) -> GroupConfig:
        """Change the arguments that are given, on every master; see `create_group`."""
        call = admin_calls.update_group(
            name,
            fifo=fifo,
            max_attempts=max_attempts,
            consume_enabled=consume_enabled,
            ordered_by=ordered_by,
            retry_policy=retry_policy,
            priority_percent=priority_percent,
        )
        return (await self.everywhere(lambda _: call, missing=GroupNotFound))[0]

    async def delete_group(self, name: str) -> None:
        """Remove a group, its offsets and leases, from every master.

        Raises:
            GroupNotFound: no master has it.
        """
        await self.everywhere(lambda _: admin_calls.delete_group(name), missing=GroupNotFound)

    async def groups(self, *, unasked: list[Unasked] | None = None) -> list[GroupConfig]:
        """Return the groups of all masters by name; `unasked` as in `topics`."""
        merged: dict[str, GroupConfig] = {}
        for groups in await self.read_everywhere(lambda _: admin_calls.list_groups(), unasked=unasked):
            for group in groups:
                merged.setdefault(group.name, group)
        return [merged[name] for name in sorted(merged)]

    async def describe_group(
        self, name: str, *, unasked: list[Unasked] | None = None
    ) -> list[GroupDescription]:
        """Return the group as each master that has it holds it; `unasked` as in `topics`.

        Raises:
            GroupNotFound: no master has it.
        """
        return await self.read_everywhere(
            lambda broker: admin_calls.describe_group(name, broker.broker_name),
            missing=GroupNotFound,
            unasked=unasked,
        )

    async def reset_offsets(
        self, group: str, topic: str, *, to: str | int | float, queue_id: int | None = None
    ) -> dict[str, tuple[GroupProgress, ...]]:
        """Move a group on a topic, on every master that has the topic; return its progress by broker.

        Args:
            group: the consumer group.
            topic: the topic.
            to: `earliest`, `latest`, a queue offset (int) or a time (float, epoch seconds).
            queue_id: this queue alone.
        """
        masters = await self.masters()
        call = admin_calls.reset_offsets(group, topic, to=to, queue_id=queue_id)
        named = await self.gather(masters, lambda _: call, missing=TopicNotFound)
        return {broker.broker_name: progress for broker, progress in named}

    async def plan_reset(
        self, group: str, topic: str, *, to: str | int | float, queue_id: int | None = None
    ) -> dict[str, tuple[OffsetMove, ...]]:
        """Return what `reset_offsets` with these arguments would do, by broker; nothing is moved.

        Raises:
            GroupNotFound, TopicNotFound: no master has it.
            IllegalOffset: a target lies outside its queue.
            BadRequest: the topic has no such queue.
        """

        async def moves(broker: BrokerStatus) -> tuple[OffsetMove, ...]:
            described = await self.ask(broker, admin_calls.describe_topic(topic, broker.broker_name))
            known = await self.ask(broker, admin_calls.describe_group(group, broker.broker_name))
            progress = {one.queue_id: one for one in known.progress if one.topic == topic}
            count = described.topic.read_queues
            if queue_id is not None and queue_id >= count:
                raise BadRequest(f"queue {queue_id} is not one of the {count} of {topic}")
            found = []
            for queue in described.queues[:count]:
                if queue_id in (None, queue.queue_id):
                    begun = progress.get(queue.queue_id) or not_begun(topic, queue)
                    found.append(OffsetMove.of(begun, await self.target_of(broker, topic, queue, to)))
            return tuple(found)

        answers: dict[str, tuple[OffsetMove, ...]] = {}
        absent: TopicNotFound | None = None
        for broker in await self.masters():
            try:
                answers[broker.broker_name] = await moves(broker)
            except TopicNotFound as error:
                absent = error
        if not answers and absent is not None:
            raise absent
        return answers

    async def target_of(
        self, broker: BrokerStatus, topic: str, queue: QueueState, to: str | int | float
    ) -> int:
        """Return the offset that a target of a reset is on a queue."""
        low, high = queue.min_offset, queue.max_offset
        if to == "earliest":
            return low
        if to == "latest":
            return high
        if isinstance(to, int):
            if not low <= to <= high:
                raise IllegalOffset(f"offset {to} lies outside {topic}/{queue.queue_id}: {low} to {high}")
            return to
        place = Queue(
            topic=topic,
            broker_name=broker.broker_name,
            broker_id=broker.broker_id,
            queue_id=queue.queue_id,
            readable=True,
            writable=False,
            endpoints=(broker.endpoint(),),
        )
        return await self.ask(broker, calls.query_offset(place, to, self.session.options.namespace))

    async def drain_broker(self, name: str, *, drain: bool | None = None) -> DrainStatus:
        """Have a broker group's master take no messages for its topics, or take them again; tell what is
        left.

        Its queues lose the write bit in routes; consumers go on. It stays so over restarts.

        Args:
            name: of the broker group.
            drain: None changes nothing.

        Raises:
            BadRequest: there is no such broker group.
        """
        (master,) = (await self.named_masters([name]))[:1]
        return await self.ask(master, admin_calls.drain_broker(name, drain=drain))

    async def switchover(self, name: str, member: int = 0) -> int:
        """Have another member of a group lead; return its id.

        Args:
            name: of the broker group.
            member: its id; 0 takes the one whose log goes on furthest.

        Raises:
            BadRequest: there is no such group, or that member can't take over.
            NotReady: it does not follow closely enough, or elections are impossible now.
        """
        (master,) = (await self.named_masters([name]))[:1]
        return await self.ask(master, election_admin_calls.switchover(member))

    async def pause_elections(self, name: str, *, paused: bool) -> None:
        """Have no member of a group stand for election, or allow it again; a leader that is there goes on.

        Raises:
            BadRequest: there is no such broker group.
        """
        members = await self.members(name)
        await self.ask(members[0], election_admin_calls.pause_elections(paused=paused))

    async def set_voters(self, name: str, members: Collection[int]) -> int:
        """Have these members of a group vote, with the stores that they have now.

        Returns:
            The epoch of the election that completes the change; 0 where nothing has to be changed.

        Raises:
            BadRequest: there is no such group, or they can't be its voters.
            NotReady: one of them is not there, or the last change is not done yet.
        """
        (master,) = (await self.named_masters([name]))[:1]
        return await self.ask(master, election_admin_calls.set_voters(members))

    async def reinit(self, name: str, member: int) -> None:
        """Have the store of a member of a group emptied, so that it follows anew; the leader decides.

        Raises:
            BadRequest: there is no such group, or that member leads.
            NotReady: too few others hold the log, or it does not answer.
        """
        (master,) = (await self.named_masters([name]))[:1]
        await self.session.call(master.endpoint(), election_admin_calls.reinit(member), REINIT_TIMEOUT_S)

    async def failover(
        self,
        name: str,
        member: int,
        voters: Collection[int] = (),
        *,
        accept_loss: bool = False,
        revision: int = 0,
    ) -> FailoverPlan:
        """Have a member of a group lead without those that do not answer, or tell what that would come to.

        Args:
            name: of the broker group.
            member: that is to lead.
            voters: ids of those that vote afterwards; empty: of all voters that answer.
            accept_loss: what only the others hold may be lost.
            revision: with `accept_loss`: as the plan has told.

        Raises:
            BadRequest: there is no such group, or that member is not there.
            NotReady: it can't be; the sentence says why.
        """
        brokers = await self.members(name)
        found = [broker for broker in brokers if broker.member_id == member]
        if not found:
            known = ", ".join(str(broker.member_id) for broker in brokers if broker.member_id) or "none"
            raise BadRequest(f"member {member} of {name} is not there; of its members {known} answer")
        call = election_admin_calls.failover(voters, accept_loss=accept_loss, revision=revision)
        return await self.ask(found[0], call)

    async def members(self, name: str = "") -> list[BrokerStatus]:
        """Return the live brokers of a group, masters and slaves; "" for all groups.

        Raises:
            BadRequest: none is registered.
        """
        brokers = (await self.cluster()).brokers
        found = [broker for broker in brokers if name in ("", broker.broker_name)]
        if not found:
            known = ", ".join(sorted({broker.broker_name for broker in brokers})) or "none"
            raise BadRequest(f"no broker of {name or 'any group'} is registered; there are {known}")
        return found

    async def cuts(self, broker: BrokerStatus) -> tuple[CutStatus, ...]:
        """Return what was cut off a broker's log and is kept there, the oldest first."""
        return await self.ask(broker, cut_calls.list_cuts())

    async def read_cut(self, broker: BrokerStatus, name: str, position: int = 0, count: int = 0) -> CutPage:
        """Return a page of the records of a cut: as many as there may be where `count` is 0.

        Raises:
            BadRequest: there is no such cut.
        """
        return await self.ask(broker, cut_calls.read_cut(name, position, count))

    async def mark_cut(self, broker: BrokerStatus, name: str, mark: CutMark) -> None:
        """Have a broker write down how far a cut of its log was replayed."""
        await self.ask(broker, cut_calls.mark_cut(name, mark))

    async def replay_cut(
        self,
        group: str,
        member: int,
        name: str,
        position: int,
        *,
        topics: Collection[str] = (),
        message_ids: Collection[str] = (),
        dry_run: bool = False,
        page: CutPage | None = None,
    ) -> ReplayedPage:
        """Have a group's master put a page of what a member has cut back into its topics.

        Args:
            group: name of the broker group.
            member: whose store has the cut.
            name: of the cut.
            position: of the page.
            topics, message_ids: only records of these; empty: all.
            dry_run: nothing is stored.
            page: the records, from a store that no broker serves.

        Raises:
            BadRequest: there is no such group, or no such cut.
            NotReady: that member is not there.
            Forbidden: records were brought along, and the master accepts none.
        """
        (master,) = (await self.named_masters([group]))[:1]
        call = cut_calls.replay_cut(
            member, name, position, topics=topics, message_ids=message_ids, dry_run=dry_run, page=page
        )
        return await self.ask(master, call)

    async def forget_member(self, name: str, broker_id: int) -> None:
        """Have all nameservers let go of one broker of a group, a slave or a member, that never comes back.

        Args:
            name: of the broker group.
            broker_id: its id; a member's in a group that elects its leader.

        Raises:
            BadRequest: it is registered, or no nameserver misses it.
        """
        brokers = (await self.cluster()).brokers
        if any((one.broker_name, one.member_id or one.broker_id) == (name, broker_id) for one in brokers):
            raise BadRequest(f"broker {broker_id} of {name} is registered: stop it first")
        known = [await self.forget_absent(server, name, broker_id) for server in self.session.access]
        if not any(known):
            raise BadRequest(f"no nameserver misses a broker {broker_id} of {name}; see `whimbrel health`")

    async def forget_broker(self, name: str) -> dict[str, tuple[str, ...]]:
        """Have all masters let go of a broker group that never comes back.

        Its queues no longer count when message groups are placed, so message groups move; nameservers no
        longer tell it as absent, so reads of everything do without it. May be repeated.

        Returns:
            By master, the topics whose message groups have moved; () where it knew nothing of the group.

        Raises:
            BadRequest: the group is registered, or nobody knows it.
            Unavailable: a nameserver has just started, or a master could not be asked; those before it
                have let go, so ask again.
        """
        cluster = await self.cluster()
        if not cluster.settled:
            raise Unavailable("the nameserver has just started and may not know all brokers yet: try again")
        if any(broker.broker_name == name for broker in cluster.brokers):
            raise BadRequest(f"{name} is registered: stop its master and its slaves first")
        answers = {
            master.broker_name: await self.ask(master, admin_calls.forget_broker(name))
            for master in await self.masters()
        }
        known = [await self.forget_absent(server, name) for server in self.session.access]
        if all(topics is None for topics in answers.values()) and not any(known):
            raise BadRequest(
                f"no broker knows {name}; there are {', '.join(sorted(answers))} (nameservers have noted that"
                " it is let go of)"
            )
        return {master: topics or () for master, topics in answers.items()}

    async def forget_absent(self, server: Endpoint, name: str, only: int | None = None) -> int:
        """Have a nameserver let go of an absent broker name, or of one id; return how many it knew."""
        call = admin_calls.forget_absent(name, only)
        try:
            return await self.session.call(server, call, ADMIN_TIMEOUT_S)
        except NotSupported:  # of an earlier version, which remembers none
            return 0

    async def replication(
        self, brokers: Sequence[BrokerStatus] | None = None
    ) -> list[ReplicationStatus | tuple[BrokerStatus, WhimbrelError]]:
        """Return each broker's view of its log, or the error when it could not be asked; all at once.

        Args:
            brokers: these; None asks a nameserver first which ones live.
        """
        if brokers is None:
            brokers = (await self.cluster()).brokers

        async def view(broker: BrokerStatus) -> ReplicationStatus | tuple[BrokerStatus, WhimbrelError]:
            try:
                call = admin_calls.describe_replication()
                return await self.session.call(broker.endpoint(), call, DESCRIBE_TIMEOUT_S)
            except WhimbrelError as error:
                return broker, error

        return list(await asyncio.gather(*map(view, brokers)))

    async def dead_letters(
        self, group: str, *, with_bodies: bool = True, unasked: list[Unasked] | None = None
    ) -> AsyncIterator[DeadLetter]:
        """Yield the dead letters of a group that were neither put back nor dropped, broker by broker.

        Without bodies those are empty; `unasked` as in `topics`.

        Raises:
            GroupNotFound: there are none, and no such group.
        """
        topic, found_any = DEAD_LETTER_PREFIX + group, False
        for broker in await self.listed(unasked):
            queue = Queue(
                topic=topic,
                broker_name=broker.broker_name,
                broker_id=broker.broker_id,
                queue_id=-1,
                readable=True,
                writable=False,
                endpoints=(broker.endpoint(),),
            )
            start: Place | None = None
            while True:
                call = dead_letter_calls.list_dead_letters(group, queue, start, with_bodies=with_bodies)
                try:
                    found, start = await self.ask(broker, call)
                except WhimbrelError as error:
                    note_unasked(broker, error, unasked)
                    break
                for letter in found:
                    found_any = True
                    yield letter
                if start is None:
                    break
        if not found_any:
            await self.describe_group(group, unasked=None if unasked is None else [])

    async def replay_dead_letters(
        self, letters: Sequence[DeadLetter], *, rate: float = REPLAY_RATE
    ) -> list[DeadLetterOutcome]:
        """Put dead letters back into the topics that they were sent to, each once, under their ids.

        When it raises, some may have been put back; repeating it is safe.

        Args:
            letters: of one group.
            rate: messages a second at most; 0 for no bound.

        Returns:
            What became of each.
        """
        return await self.settle(letters, dead_letter_calls.replay_dead_letters, rate)

    async def drop_dead_letters(self, letters: Sequence[DeadLetter]) -> list[DeadLetterOutcome]:
        """Have dead letters no longer listed; they stay in their topic until retention removes them."""
        return await self.settle(letters, dead_letter_calls.drop_dead_letters, 0.0)

    async def settle(
        self,
        letters: Sequence[DeadLetter],
        make: Callable[[str, Sequence[Place]], Outbound[tuple[DeadLetterOutcome, ...]]],
        rate: float,
    ) -> list[DeadLetterOutcome]:
        brokers = {broker.broker_name: broker for broker in await self.masters()}
        outcomes: list[DeadLetterOutcome] = []
        step = max(1, min(DEAD_LETTERS_MAX, int(rate))) if rate else DEAD_LETTERS_MAX
        due = 0.0  # when the next ones may go
        by_broker = groupby(letters, key=lambda letter: (letter.message.queue.broker_name, letter.group))
        for (name, group), of_broker in by_broker:
            if name not in brokers:
                raise Unavailable(f"broker {name} has the dead letters, and no master now")
            messages = [letter.message for letter in of_broker]
            for first in range(0, len(messages), step):
                some = messages[first : first + step]
                now = time.monotonic()
                if due > now:
                    await asyncio.sleep(due - now)
                due = max(due, now) + (len(some) / rate if rate else 0.0)
                places = [(one.queue_id, one.queue_offset) for one in some]
                settled = await self.ask(brokers[name], make(group, places))
                outcomes += settled
        return outcomes

    async def masters(self) -> list[BrokerStatus]:
        """Return the masters by name; waits for a nameserver that has just started to know them all."""
        attempt = 0
        while True:
            attempt += 1
            cluster = await self.cluster()
            if cluster.masters():
                return sorted(cluster.masters(), key=lambda broker: (broker.cluster, broker.broker_name))
            why = "; only slaves are left" if cluster.brokers else ""
            if not cluster.settled:
                why += "; the nameserver has just started and may not know all brokers yet"
            error = Unavailable(f"no master broker is registered with {self.session.access[0]}{why}")
            decision = decide(error, attempt, self.session.options.retry, repeatable=True)
            if cluster.settled or not decision.again:
                raise error
            await asyncio.sleep(decision.pause_s)

    async def listed(self, unasked: list[Unasked] | None) -> list[BrokerStatus]:
        """Return the masters for a listing, and note groups without one.

        Waits for a nameserver that has just started to know them all.

        Raises:
            Unavailable: there is none, or nobody wants to know which are missing.
        """
        until = time.monotonic() + SETTLED_S
        while True:
            cluster = await self.cluster()
            if cluster.settled or time.monotonic() >= until:
                break
            await asyncio.sleep(SETTLED_LOOK_S)
        away = left_out(cluster)
        if unasked is not None:
            unasked += away
        masters = await self.masters()
        if away and unasked is None:
            raise Unavailable(sentence(away[0]))
        return masters

    async def ask(self, broker: BrokerStatus, call: Outbound[T]) -> T:
        return await self.session.call(broker.endpoint(), call, ADMIN_TIMEOUT_S)

    async def everywhere(
        self,
        make: Callable[[BrokerStatus], Outbound[T]],
        missing: type[WhimbrelError] | None = None,
    ) -> list[T]:
        named = await self.gather(await self.masters(), make, missing)
        return [answer for _, answer in named]

    async def read_everywhere(
        self,
        make: Callable[[BrokerStatus], Outbound[T]],
        missing: type[WhimbrelError] | None = None,
        unasked: list[Unasked] | None = None,
    ) -> list[T]:
        """As `everywhere`, for what is to be whole, or to say what it lacks; see `listed`."""
        named = await self.gather(await self.listed(unasked), make, missing, unasked)
        return [answer for _, answer in named]

    async def gather(
        self,
        masters: list[BrokerStatus],
        make: Callable[[BrokerStatus], Outbound[T]],
        missing: type[WhimbrelError] | None = None,
        unasked: list[Unasked] | None = None,
    ) -> list[tuple[BrokerStatus, T]]:
        """Ask each master in turn; skip those that fail with `missing`, unless all do.

        With `unasked`, those that can't be asked are noted there, unless none can.
        """
        answers: list[tuple[BrokerStatus, T]] = []
        absent: WhimbrelError | None = None
        failure: WhimbrelError | None = None
        for broker in masters:
            try:
                answers.append((broker, await self.ask(broker, make(broker))))
            except WhimbrelError as error:
                if missing is not None and isinstance(error, missing):
                    absent = error
                elif unasked is None or isinstance(error, RequestError):
                    raise at(broker, error, [done for done, _ in answers]) from error
                else:
                    note_unasked(broker, error, unasked)
                    failure = error
        if not answers and (found := absent or failure) is not None:
            raise found
        return answers

    async def named_masters(self, brokers: Sequence[str]) -> list[BrokerStatus]:
        """Return the masters of these broker groups, () for all.

        Raises:
            BadRequest: one of them is not registered.
        """
        masters = await self.masters()
        known = {broker.broker_name for broker in masters}
        missing = [name for name in brokers if name not in known]
        if missing:
            raise BadRequest(
                f"no master of {', '.join(missing)} is registered; there are {', '.join(sorted(known))}"
            )
        return [broker for broker in masters if not brokers or broker.broker_name in brokers]

    async def change_topic(
        self, call: Outbound[TopicConfig], missing: type[WhimbrelError], brokers: Sequence[str] = ()
    ) -> TopicConfig:
        """Make or change a topic on masters, and wait until the nameserver has the new route.

        Brokers report changes to their nameservers in the background. A send right after the change would
        otherwise get the old route, or none, and keep that for a while.
        """
        made = await self.gather(await self.named_masters(brokers), lambda _: call, missing)
        name = made[0][1].name
        query = calls.query_route(name, self.session.access, self.session.options.namespace)
        wanted = {
            broker.broker_name: topic.write_queues if topic.permission & WRITE else 0
            for broker, topic in made
        }
        end = time.monotonic() + ROUTED_S
        pause = 0.01
        while True:
            try:
                found = Counter(queue.broker_name for queue in (await self.session.ask(query)).writable())
                if all(found[broker_name] == count for broker_name, count in wanted.items()):
                    break
            except WhimbrelError as error:
                logger.debug("the route of %s is not there yet: %s", name, error)
            if time.monotonic() > end:
                logger.warning("topic %s is changed, but its route does not show it yet", name)
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.2)
        return made[0][1]


def note_unasked(broker: BrokerStatus, error: WhimbrelError, unasked: list[Unasked] | None) -> None:
    """Note that a broker could not be asked.

    Raises:
        WhimbrelError: nobody wants to know, or the error is of the request itself.
    """
    if unasked is None or isinstance(error, RequestError):
        raise error
    unasked.append(Unasked(broker.broker_name, str(error)))


def at(broker: BrokerStatus, error: WhimbrelError, done: list[BrokerStatus]) -> WhimbrelError:
    """Return the error with the broker's name, when other brokers have made the change."""
    if not done:
        return error
    names = ", ".join(item.broker_name for item in done)
    return type(error)(f"{error} (on {broker.broker_name}; done on {names})")


def not_begun(topic: str, queue: QueueState) -> GroupProgress:
    """Return the progress of a group that has read nothing of a queue: it begins at the first message."""
    return GroupProgress(
        topic=topic,
        queue_id=queue.queue_id,
        committed_offset=queue.min_offset,
        next_offset=queue.min_offset,
        max_offset=queue.max_offset,
        in_flight=0,
        lag=queue.max_offset - queue.min_offset,
    )


def joined(one: TopicConfig, other: TopicConfig) -> TopicConfig:
    return TopicConfig(
        name=one.name,
        read_queues=one.read_queues + other.read_queues,
        write_queues=one.write_queues + other.write_queues,
        permission=one.permission,
        type=one.type,
        system=one.system,
        answer=one.answer,
        drained=one.drained or other.drained,
    )
