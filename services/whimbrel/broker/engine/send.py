"""A send: what its rules check, in which order, which records its messages become, and what is answered.

    front ──► Send ──► checks of its rules, one after the other ──► append ──► Sent
                             │                                          '──waits──► Deferred of a Sent
                             '──► Elsewhere: another broker owns the queue of its message group

RocketMQ's two protocols check differently, in another order, and with other effects before a check that
fails: topics that were made, turns that were taken, retries that are used up. What differs is a value,
`SendRules`, which a front passes in: its named checks in their order (`send_checks.py` has them all), and a
few members that single checks read. Nothing here or there asks which protocol it is.

A check changes the `Send`: it finds the topic, chooses the queue, makes the records. A check that only what
is more than a plain message can break is passed over for plain ones (`Check.special`). All messages of a send
go to one queue; they are read once, by the check `messages`, so that what can't be read is an error in its
place among the others.

**Detours.** Messages that wait before they can be delivered are stored in a system topic, as records that say
where they go to when their time has come or their transaction is committed; a detour makes these records, and
gives the sender what it needs to speak of them later (a transaction's id, a handle to recall it).

**The answer** waits for what the send asks for (`produce/appender.py`). Where the leader is elected it waits
for a majority to know of the topics too, since a send may have made one; who is told that there is no topic
or group is told once a majority knows as much.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from whimbrel.broker.engine.message import NOT_AT_ONCE, MessageExtras, NewMessage
from whimbrel.broker.engine.policy import SendPolicy
from whimbrel.broker.engine.sampling import NEVER_SAMPLED, Sampler
from whimbrel.broker.engine.targets import SendTarget, SendTargets
from whimbrel.broker.produce.appender import Appender, PackedRecords, RecordAppender
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.shared_topics import TopicSharing
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import AlreadyExists, GroupNotFound, TopicNotFound, WhimbrelError
from whimbrel.model.limits import AUTO_QUEUES
from whimbrel.model.names import TEMPLATE_TOPIC
from whimbrel.model.topic import MessageType
from whimbrel.store.codec import RecordDraft

if TYPE_CHECKING:
    from whimbrel.broker.record_traces import Creation, RecordTraces

__all__ = [
    "DELIVERY_AHEAD_MAX_MS",
    "KNOWN_ALREADY",
    "Check",
    "Detour",
    "Elsewhere",
    "Majority",
    "PackedRoom",
    "Send",
    "SendRules",
    "Sends",
    "Sent",
]

DELIVERY_AHEAD_MAX_MS = 24 * 3600 * 1000
# What is there already, or gone already, is told only once a majority has that as well: who hears that a
# topic exists goes on as if it had made it.
KNOWN_ALREADY = (AlreadyExists, GroupNotFound, TopicNotFound)

# What a pass of the lane may append: where the log ends, bytes of records that fit there, their store time
# and the born time of those that say none, in epoch milliseconds; how many calls may be parked, None where
# none is; how many messages without a trace context come before one that is sampled.
PackedRoom: TypeAlias = tuple[int, int, int, int, int | None, int]


@dataclass(frozen=True, slots=True)
class Check:
    """A named check of a send.

    Attributes:
        name: of the rule.
        run: raises the rule's error, or does to the send what follows from it.
        special: plain messages to a plain topic can't break it.
    """

    name: str
    run: Callable[["Sends", "Send"], None]
    special: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRules:
    """How sends of a protocol are decided.

    Attributes:
        checks: in their order.
        each: checks of one message and its property text, in their order; run for every message.
        record_limits: a message that no record can hold is refused as it is read. (RocketMQ's broker:
            HookUtils; its proxy has rules of its own, and leaves a text that is too long to the broker.)
        permission: a topic's write permission counts, and only queues that may be written can be named.
            (RocketMQ's gRPC proxy asks routes for writable queues; its broker takes any queue that is there.)
        limited: topics that sends make count against what strangers may make in a second.
        group_topics: a send to a group's retry topic makes that, as the group is configured (RocketMQ:
            SendMessageProcessor by TopicConfigManager.createTopicInSendMessageBackMethod).
        writable_first: of a broker that takes no writes that is said before what a detour finds.
        no_topic: says that there is no topic `{name}`.
    """

    checks: tuple[Check, ...]
    each: tuple[Callable[["Sends", "Send", NewMessage, bytes], None], ...]
    record_limits: bool
    permission: bool
    limited: bool
    group_topics: bool
    writable_first: bool
    no_topic: str


@dataclass(eq=False)
class Send:
    """A send on its way: what the front says, and, from `target` on, what the checks have found.

    What few sends say is set behind its making, and stands in the class else: one is made for every send.

    Attributes:
        rules: of its protocol.
        topic: where it goes to; a check may send it elsewhere.
        messages: at least one, or a check fails; read once.
        born_host: the peer's address as records hold it.
        properties: what all messages of it share; checks take some out before the messages are read.
        queue: that is wanted; negative for none.
        queue_text: as the client wrote it; "" as the number is written.
        count: of the messages; 1 where they are still to be read.
        waits: the answer waits for what the broker is configured to wait for.
        batch: its messages came as a batch, which RocketMQ 4 has.
        template, template_queues: what a topic that is made by it is made like.
        reconsume_times: how often the messages were delivered, for a group's own topics.
        retries_max: how often they may be; None: as the group says.
        client: id of who can be asked about its transactions; "" for nobody.
        handed_on: the client's address, of a send that another broker has handed on to this one, which owns
            the queue of its message group; None for all others.
        target: the topic's, once it is known; None before, and while there is no topic.
        queue_id: negative before one is chosen.
        drafts: the records.
        special: extras and body of each message that is not a plain one.
        plain: nothing that is known of it makes it more than plain messages to a topic that takes them.
        context_seen: a message has a trace context.
        detour: which its messages take.
        elsewhere: it belongs to another broker.
    """

    rules: SendRules
    topic: str
    messages: Iterable[NewMessage]
    born_host: bytes
    properties: dict[str, str] = field(default_factory=dict)
    queue: int = -1
    count: int = 1
    client: str = field(default="", init=False)
    queue_text: str = field(default="", init=False)
    waits: bool = field(default=True, init=False)
    batch: bool = field(default=False, init=False)
    template: str = field(default=TEMPLATE_TOPIC, init=False)
    template_queues: int = field(default=AUTO_QUEUES, init=False)
    reconsume_times: int = field(default=0, init=False)
    retries_max: int | None = field(default=None, init=False)
    handed_on: bytes | None = field(default=None, init=False)
    target: SendTarget | None = field(default=None, init=False)
    queue_id: int = field(default=-1, init=False)
    drafts: Sequence[RecordDraft] = field(default=(), init=False)
    special: Sequence[tuple[MessageExtras, bytes]] = field(default=(), init=False)
    plain: bool = field(default=True, init=False)
    context_seen: bool = field(default=False, init=False)
    detour: "Detour | None" = field(default=None, init=False)
    elsewhere: "Elsewhere | None" = field(default=None, init=False)

    @property
    def extras(self) -> list[MessageExtras]:
        """What messages have that are not plain ones."""
        return [extras for extras, _ in self.special]


class Elsewhere(NamedTuple):
    """The answer to what another broker is to do: nothing was stored here.

    Attributes:
        broker: its name.
        queue_id: where it is to store a send; negative for anything else.
    """

    broker: str
    queue_id: int = -1


@dataclass(slots=True, eq=False)
class Sent:
    """The answer to a send whose messages are stored.

    Attributes:
        queue_id: the queue of its topic that it goes to, at once or later.
        drafts: what is stored. places: where (`store/master_store.py Appended`).
        detour: that they take; None where they can be delivered at once.
        error: why they are not as durable as was asked; None where they are.
    """

    queue_id: int
    drafts: Sequence[RecordDraft]
    places: Sequence[Any]
    detour: "Detour | None" = None
    error: WhimbrelError | None = None

    @property
    def kind(self) -> MessageType:
        """Of the messages: DELAY or TRANSACTION where they take such a detour."""
        return MessageType.NORMAL if self.detour is None else self.detour.kind


class Detour(Protocol):
    """Where messages of a kind wait until they may be delivered.

    Attributes:
        kind: of the messages.
    """

    kind: MessageType

    def redirect(
        self, drafts: Sequence[RecordDraft], special: Sequence[MessageExtras], client: str
    ) -> list[RecordDraft] | None:
        """Return the records to store instead, all for one queue; None to store them as they are.

        Their queues are set, and the first key of each stays the message's id. `client` sends them; "" where
        nobody is to be noted.
        """

    def appended(self, drafts: Sequence[RecordDraft], places: Sequence[Any]) -> None:
        """Take note of records of `redirect` that were appended; where, say the places."""

    def handle(self, draft: RecordDraft) -> str:
        """Return what a sender calls a stored message by: a transaction's id, a recall handle."""


class Majority(Protocol):
    """Holds answers until a majority has all changes so far (`cluster/state_quorum.py`)."""

    @property
    def behind(self) -> bool:
        """Whether a majority lacks some."""

    def hold(self, answer: Any) -> Any:
        """Return an answer, or a deferred of it; an error is raised, or what the deferred fails with."""

    def hold_later(self, answer: Deferred[Any]) -> Deferred[Any]:
        """Return a deferred for one that is not done."""


class Sends:
    """Decides sends, on the loop's thread.

    Attributes:
        policy: what sends may have, and what is written into records.
        detours: by kind of message.
        sharing: what other brokers have of our topics; None where there are none to know of.
        traces, sampler: None while tracing is off.
        majority: that is to know of topics before who sends is answered; None where roles are configured.
    """

    def __init__(
        self,
        topics: TopicTable,
        creation: GroupCreation,
        appender: RecordAppender,
        *,
        cluster: str,
        store_host: bytes,
        clock: Callable[[], int],
        levels: int = 18,
        delay_max_ms: int = DELIVERY_AHEAD_MAX_MS,
        sharing: TopicSharing | None = None,
        majority: Majority | None = None,
    ) -> None:
        """Take what is needed.

        Args:
            topics, creation: the tables, and what makes topics and groups that requests name.
            appender: of the log.
            cluster: the broker's.
            store_host: this broker's address as records hold it; see `serve_at`.
            clock: epoch milliseconds.
            levels: how many delay levels there are.
            delay_max_ms: how far ahead a time of delivery may be.
            sharing, majority: see above.
        """
        self.topics, self.creation, self.appender, self.clock = topics, creation, appender, clock
        self.policy = SendPolicy(cluster=cluster, store_host=store_host)
        self.levels, self.delay_max_ms = levels, delay_max_ms
        self.sharing, self.majority = sharing, majority
        self.targets = SendTargets(topics)
        self.detours: dict[MessageType, Detour] = {}
        self.traces: RecordTraces | None = None
        self.sampler: Sampler | None = None

    def trace(self, traces: "RecordTraces", ratio: float) -> None:
        """Trace sampled messages from now on, and this share of those that came without a context."""
        self.traces, self.sampler = traces, Sampler(traces.create, ratio)
        self.change_policy(traced=True)

    def serve_at(self, store_host: bytes) -> None:
        """Write another address of this broker into records from now on: its port is known."""
        self.change_policy(store_host=store_host)

    def change_policy(self, **changes: Any) -> None:
        """Have the next policy."""
        self.policy = replace(self.policy, generation=self.policy.generation + 1, **changes)

    def send(self, send: Send) -> Sent | Elsewhere | Deferred[Sent]:
        """Check and append; return the answer, at once or when the messages are as durable as was asked.

        Raises:
            WhimbrelError: a rule is broken, and nothing is stored; the first one in the order of the rules.
        """
        traces, appender, majority = self.traces, self.appender, self.majority
        began_ns = 0 if traces is None else time_ns()
        if send.batch or (send.properties and not NOT_AT_ONCE.isdisjoint(send.properties)):
            send.plain = False
        try:
            for check in send.rules.checks:
                if check.special and send.plain:
                    continue
                run = check.run
                run(self, send)
                if send.elsewhere is not None:
                    return send.elsewhere
            drafts, detour = send.drafts, send.detour
            places = appender.append(drafts)
        except KNOWN_ALREADY as error:
            if majority is None:
                raise
            known: Deferred[Sent] = majority.hold(error)
            return known
        if detour is not None:
            detour.appended(drafts, places)
        created = None
        if traces is not None and send.context_seen:
            created = traces.appended(drafts, places, began_ns)
        sent = Sent(send.queue_id, drafts, places, detour)
        if appender.waits and send.waits:
            target = send.target
            copies = None if target is None or detour is not None else target.answer_copies
            later = self.sent_later(sent, created, copies)
            return later if majority is None or not majority.behind else majority.hold_later(later)
        if created and traces is not None:
            traces.answered(created)
        if majority is None:
            return sent
        held: Sent | Deferred[Sent] = majority.hold(sent)
        return held

    def sent_later(self, sent: Sent, created: "list[Creation] | None", copies: int | None) -> Deferred[Sent]:
        """Answer when the messages are as durable as was asked, or so many other members hold them."""
        deferred: Deferred[Sent] = Deferred()

        def answer(error: WhimbrelError | None) -> None:
            if created and self.traces is not None:
                self.traces.answered(created, error)
            sent.error = error
            deferred.complete(sent)

        end = sent.places[-1].end
        if copies is None:
            self.appender.when_durable(end, answer)
        else:
            self.appender.when_held(end, copies, answer)
        return deferred

    # Packed by the lane

    def room_for_packed(self) -> PackedRoom | None:
        """Begin a pass of the lane; return what it may append, or None where each send is decided alone.

        No sends are taken packed while something is out of the ordinary (no writes are taken, the disk is
        full, the log has failed, too many wait, a majority is behind with topics), so that each error comes
        from `send`, for the same bytes.
        """
        self.targets.found.clear()
        assert isinstance(self.appender, Appender), "only a master has a lane"
        if self.majority is not None and self.majority.behind:
            return None
        room, sampler = self.appender.room_for_packed(), self.sampler
        return None if room is None else (*room, NEVER_SAMPLED if sampler is None else sampler.unsampled)

    def append_packed(self, plan: PackedRecords, now_ms: int) -> bool:
        """Append what the lane has made of plain sends, all or none; return whether it was appended.

        Args:
            plan: of targets that `targets.plain` or `targets.opened` has told of in this pass.
            now_ms: the store time of `room_for_packed`.
        """
        assert isinstance(self.appender, Appender)
        if not self.appender.append_packed(plan, now_ms):
            return False
        _, _, _, topics, messages = plan
        for name, turn, _, _ in topics:
            self.targets.found[name].turn = turn
        if self.sampler is not None:
            self.sampler.unsampled -= messages
        return True
