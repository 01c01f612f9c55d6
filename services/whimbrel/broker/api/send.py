"""SendMessage: reads the request's fields, has them accepted and appended, and makes the response.

What is accepted, in which order it is checked and what record a message becomes: `produce/admission.py`. A
body labelled GZIP sets the compressed bit of the record. One request goes to one queue; requests take turns
over the queues, unless the header `whimbrel-queue-id` of our own client names one.

Messages that wait before they can be delivered take a *detour*: they are stored in a system topic, as records
that say where they go to when their time has come or their transaction is committed.

    request --> admission --> detour of its kind, if any --> append --> answer, completed by the detour
"""

from collections.abc import Callable, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any, Protocol

from whimbrel.broker.api.message_groups import MessageGroups
from whimbrel.broker.api.response_bytes import send_answer
from whimbrel.broker.produce.admission import (
    Admission,
    DigestKind,
    MessageExtras,
    born_host_of,
    check_digest,
)
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, MessageCorrupted, NotSupported, WhimbrelError
from whimbrel.model.limits import SEND_MESSAGES_MAX
from whimbrel.model.topic import MessageType
from whimbrel.model.wire import QUEUE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK, status_of
from whimbrel.store.codec import COMPRESSED, RecordDraft

if TYPE_CHECKING:
    from whimbrel.broker.record_traces import Creation, RecordTraces

__all__ = ["Detour", "SendService"]

GZIP, TRANSACTION = v2.GZIP, v2.TRANSACTION
DIGESTS: dict[Any, DigestKind] = {
    v2.CRC32: DigestKind.CRC32,
    v2.MD5: DigestKind.MD5,
    v2.SHA1: DigestKind.SHA1,
}


# Kinds of messages that can't be stored without a detour.
DETOURS = frozenset({MessageType.DELAY, MessageType.TRANSACTION})


class Detour(Protocol):
    """Where messages of a kind wait until they may be delivered."""

    def redirect(
        self, drafts: Sequence[RecordDraft], special: Sequence[MessageExtras]
    ) -> list[RecordDraft] | None:
        """Return the records to store instead, all for one queue; None to store them as they are.

        Their queues are set, and the first key of each stays the message's id.
        """

    def appended(self, drafts: Sequence[RecordDraft], places: Sequence[Any]) -> None:
        """Take note of records of `redirect` that were appended; where, say the places."""

    def stored(self, entry: Any, draft: RecordDraft, place: Any) -> None:
        """Complete a message's entry of the response (protobuf); `place` is where its record was stored.

        Called when it is as durable as was asked.
        """


class SendService:
    """Handles SendMessage on the loop's thread.

    Attributes:
        detours: by kind of message.
        message_groups: finds the queue of ordered messages among several brokers; None without nameservers.
        on_detour: called with the call, kind and topic of messages that take one.
    """

    def __init__(self, admission: Admission) -> None:
        """Take what accepts messages."""
        self.admission = admission
        self.detours: dict[MessageType, Detour] = {}
        self.message_groups: MessageGroups | None = None
        self.on_detour: Callable[[Call, MessageType, str], None] | None = None
        self.traces: RecordTraces | None = None  # None: tracing is off

    def trace(self, traces: "RecordTraces", ratio: float) -> None:
        """Trace sampled messages from now on, and this share of those that came without a context."""
        self.traces = traces
        self.admission.sample(traces.create, ratio)

    def send(self, call: Call, request: Any) -> Any:
        """Check, append, and answer at once or when it is durable."""
        messages = request.messages
        if not messages:
            raise MessageCorrupted("the request holds no message")
        if len(messages) > SEND_MESSAGES_MAX:
            raise BadRequest(
                f"{len(messages)} messages in a request; at most {SEND_MESSAGES_MAX} are allowed"
            )
        admission = self.admission
        name = messages[0].topic.name
        target = admission.target(name)
        traces = self.traces
        if traces is not None:
            admission.context_seen, began_ns = False, time_ns()
        drafts, special = self.read(messages, name, born_host_of(call.peer))
        extras: Sequence[MessageExtras] = ()
        if special or target is None or not target.plain:
            extras = [one for one, _ in special]
            target = admission.admit(name, extras, plain=len(special) < len(drafts))
        place = None
        if extras and self.message_groups is not None:
            place = self.message_groups.place(call, request, target, extras, drafts)
        if isinstance(place, Deferred):
            return place
        queue_id = (
            admission.queue(target, call.metadata.get(QUEUE_HEADER), extras) if place is None else place
        )
        for draft in drafts:
            draft.queue_id = queue_id
        for one, body in special:
            if one.digest_kind is not None:
                check_digest(one.digest_kind, one.checksum, body)
        detour = None
        if extras:
            drafts, detour = self.redirected(drafts, extras)
            if detour is not None and self.on_detour is not None:
                self.on_detour(call, extras[0].kind, name)
        appended = admission.appender.append(drafts)
        if detour is not None:
            detour.appended(drafts, appended)
        created = None
        if traces is not None and admission.context_seen:
            created = traces.appended(drafts, appended, began_ns)
        if admission.appender.waits:
            copies = None if detour is not None else target.answer_copies
            return self.answer_later(drafts, appended, created, detour, copies)
        if created and traces is not None:
            traces.answered(created)
        return send_answer(drafts, appended) if detour is None else detoured(drafts, appended, detour)

    def redirected(
        self, drafts: list[RecordDraft], special: Sequence[MessageExtras]
    ) -> tuple[list[RecordDraft], Detour | None]:
        """Return what is stored of special messages, and the detour that they take.

        Raises:
            NotSupported: this broker has none for them.
        """
        kind = special[0].kind
        if kind in DETOURS and kind not in self.detours:
            self.admission.appender.check_writable()  # a slave has none, and says that it is one
            raise NotSupported(f"{kind} messages are not taken here")
        detour = self.detours.get(kind)
        instead = None if detour is None else detour.redirect(drafts, special)
        return (drafts, None) if instead is None else (instead, detour)

    def read(
        self, messages: Sequence[Any], name: str, born_host: bytes
    ) -> tuple[list[RecordDraft], list[tuple[MessageExtras, bytes]]]:
        """Return the drafts of all messages, and the extras and bodies of those that are not plain ones."""
        admission = self.admission
        now_ms = 0
        drafts: list[RecordDraft] = []
        special: list[tuple[MessageExtras, bytes]] = []
        for message in messages:
            if message.topic.name != name:
                raise MessageCorrupted("the request holds messages of several topics")
            body = message.body
            system = message.system_properties
            born = system.born_timestamp
            seconds = born.seconds
            if not seconds:
                now_ms = now_ms or admission.clock()
            extras = None
            has = system.HasField
            if (
                has("body_digest") or has("delivery_timestamp") or has("message_group")
                or has("orphaned_transaction_recovery_duration") or has("lite_topic") or has("priority")
                or system.message_type == TRANSACTION
            ):  # fmt: skip
                extras = extras_of(system)
                special.append((extras, body))
            drafts.append(
                admission.draft(
                    name, body, message.user_properties, system.message_id, system.tag, system.keys,
                    seconds * 1000 + born.nanos // 1_000_000 if seconds else now_ms, born_host,
                    system.born_host, system.trace_context,
                    COMPRESSED if system.body_encoding == GZIP else 0, extras,
                )
            )  # fmt: skip
        return drafts, special

    def answer_later(
        self,
        drafts: Sequence[RecordDraft],
        appended: Sequence[Any],
        created: "list[Creation] | None",
        detour: Detour | None,
        copies: int | None,
    ) -> Deferred[Any]:
        """Answer when the messages are as durable as was asked, or so many other members hold them."""
        deferred: Deferred[Any] = Deferred()

        def answer(error: WhimbrelError | None) -> None:
            if created and self.traces is not None:
                self.traces.answered(created, error)
            if error is not None:
                deferred.complete(response_of(drafts, appended, status_of(error)))
            elif detour is not None:
                deferred.complete(detoured(drafts, appended, detour))
            else:
                deferred.complete(send_answer(drafts, appended))

        if copies is None:
            self.admission.appender.when_durable(appended[-1].end, answer)
        else:
            self.admission.appender.when_held(appended[-1].end, copies, answer)
        return deferred


def extras_of(system: Any) -> MessageExtras:
    """Return what a message has that is not a plain one."""
    due, recovery = system.delivery_timestamp, system.orphaned_transaction_recovery_duration
    digest = system.body_digest
    has = system.HasField
    marks = (
        bool(system.message_group) and system.message_type != TRANSACTION,
        has("delivery_timestamp"),
        system.message_type == TRANSACTION,
        has("priority"),
        has("lite_topic"),
    )
    return MessageExtras(
        kind=type_of(system),
        mixed=sum(marks) > 1,
        priority=system.priority if has("priority") else None,
        delivery_ms=due.seconds * 1000 + due.nanos // 1_000_000,
        message_group=system.message_group,
        recovery_s=recovery.seconds + recovery.nanos / 1e9,
        digest_kind=DIGESTS.get(digest.type),  # others are not checked
        checksum=digest.checksum,
    )


def type_of(system: Any) -> MessageType:
    """Return what the message's properties make it, in RocketMQ's order."""
    if system.message_type == TRANSACTION:
        return MessageType.TRANSACTION
    if system.HasField("lite_topic"):
        return MessageType.LITE
    if system.HasField("priority"):
        return MessageType.PRIORITY
    if system.HasField("delivery_timestamp"):
        return MessageType.DELAY
    return MessageType.FIFO if system.message_group else MessageType.NORMAL


def detoured(drafts: Sequence[RecordDraft], appended: Sequence[Any], detour: Detour) -> Any:
    """Return the response to messages that were stored on a detour."""
    response = messaging.SendMessageResponse(status=OK)
    for draft, place in zip(drafts, appended, strict=True):
        entry = response.entries.add(status=OK, message_id=draft.keys[0], offset=place.queue_offset)
        detour.stored(entry, draft, place)
    return response


def response_of(drafts: Sequence[RecordDraft], appended: Sequence[Any], status: Any) -> Any:
    """Return the response to messages that are stored but not as durable as was asked."""
    response = messaging.SendMessageResponse(status=status)
    add = response.entries.add
    for draft, place in zip(drafts, appended, strict=True):
        add(status=status, message_id=draft.keys[0], offset=place.queue_offset)
    return response
