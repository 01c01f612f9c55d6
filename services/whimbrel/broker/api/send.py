"""SendMessage: the request's fields as a `Send` of the engine, and its answer as the response.

What is checked, and in which order, says `V2_SENDS`, as RocketMQ's proxy does (SendMessageActivity); what the
checks do: `engine/send_checks.py`. A body labelled GZIP sets the compressed bit of the record. One request
goes to one queue; requests take turns over the queues, unless the header `whimbrel-queue-id` of our own
client names one.

The property text of a record, in this order:

    (user properties)   by their names: protobuf keeps no order of a map's entries
    UNIQ_KEY            the client's message id
    CLUSTER             the broker's cluster
    BORN_TIMESTAMP      ms; the time of the append where the client names none
    TAGS                where there is a tag
    KEYS                where there are keys; joined by spaces
    __BORNHOST          where the client names its host
    TRACE_CONTEXT       where the client sent one, or the message was sampled here
    (special ones)      what makes the message more than a plain one

RocketMQ 5.3.3's gRPC path stores the same properties. Its PGROUP, RECONSUME_TIME, MSG_REGION and TRACE_ON are
left out: nothing reads them on a plain message, and they would take 70 bytes a record. A property with an
empty value is not returned to consumers, as in RocketMQ, whose text form can't hold it. With tracing on, a
message without a context may be given one: the one difference from RocketMQ's bytes.

**Message groups** on topics that several brokers have: each has one queue in all. Where the engine finds that
another broker owns it, the request is handed on, once, and that broker's answer is the client's. It stores
the request in the queue that this one has found, with the address of the client; if it has no such queue it
answers QueueNotFound, since the two know different queues for a moment. An owner that is away: OwnerAway, and
the client tries again.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from whimbrel.broker.api.response_bytes import send_answer
from whimbrel.broker.engine import send_checks as checks
from whimbrel.broker.engine.message import DigestKind, MessageExtras, NewMessage, born_host_of
from whimbrel.broker.engine.send import Elsewhere, Send, SendRules, Sends, Sent
from whimbrel.deferred import Deferred
from whimbrel.model.properties import BORN_HOST, BORN_TIMESTAMP, CLUSTER, KEYS, TAGS, UNIQ_KEY
from whimbrel.model.topic import MessageType
from whimbrel.model.trace import CONTEXT_PROPERTY
from whimbrel.model.wire import CLIENT_ID_HEADER, CLIENT_PEER_HEADER, QUEUE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.forwarder import TO_OWNER, Forwarder, Target, made
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK, status_of
from whimbrel.store.codec import COMPRESSED

__all__ = ["V2_SENDS", "SendService"]

V2_SENDS: Final = SendRules(
    checks=(
        checks.ADDRESSED, checks.MESSAGES, checks.KINDS, checks.HERE, checks.QUEUE, checks.DIGEST,
        checks.DETOUR,
    ),
    each=(checks.follow_rules,),
    record_limits=False,
    permission=True,
    limited=False,
    group_topics=False,
    writable_first=False,
    no_topic="no topic {name}; create it, or switch auto_create_topics on",
)  # fmt: skip

ID_HEAD, TAG_HEAD, KEYS_HEAD = f"{UNIQ_KEY}\x01", f"{TAGS}\x01", f"{KEYS}\x01"
HOST_HEAD, CONTEXT_HEAD = f"{BORN_HOST}\x01", f"{CONTEXT_PROPERTY}\x01"
GZIP, TRANSACTION = v2.GZIP, v2.TRANSACTION
DIGESTS: dict[Any, DigestKind] = {
    v2.CRC32: DigestKind.CRC32,
    v2.MD5: DigestKind.MD5,
    v2.SHA1: DigestKind.SHA1,
}
QUEUE_DIGITS_MAX = 10  # of a queue's number
NO_QUEUE = 1 << 62  # for what is no number: no topic has such a queue


class Owners(Protocol):
    """Who owns queues of topics that several brokers have (`tables/shared_topics.py`)."""

    def address(self, name: str) -> str:
        """Return where a broker serves, `host:port`; "" where nobody knows."""


class SendService:
    """Handles SendMessage on the loop's thread."""

    def __init__(
        self,
        sends: Sends,
        clock: Callable[[], int],
        *,
        owners: Owners | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        """Take the engine's sends, and where topics are shared what hands requests on.

        Args:
            clock: epoch milliseconds, for messages that say no time.
        """
        self.sends, self.clock, self.owners, self.forwarder = sends, clock, owners, forwarder
        self.after_id = f"\x02{CLUSTER}\x01{sends.policy.cluster}\x02{BORN_TIMESTAMP}\x01"

    def send(self, call: Call, request: Any) -> Any:
        """Store the messages of a request; answer at once or when they are durable."""
        given = request.messages
        now_ms, special, messages = 0, False, []
        after_id = self.after_id
        for message in given:
            system = message.system_properties
            born = system.born_timestamp
            seconds = born.seconds
            if seconds:
                born_ms = seconds * 1000 + born.nanos // 1_000_000
            else:
                born_ms = now_ms = now_ms or self.clock()
            users, keys = message.user_properties, system.keys
            message_id, tag, words = system.message_id, system.tag, ""
            host, context = system.born_host, system.trace_context
            text = ""
            if users:
                for name in sorted(users):
                    text += f"{name}\x01{users[name]}\x02"
            text += f"{ID_HEAD}{message_id}{after_id}{born_ms}\x02"
            if tag:
                text += f"{TAG_HEAD}{tag}\x02"
            if keys and (words := " ".join(filter(None, keys))):
                text += f"{KEYS_HEAD}{words}\x02"
            if host:
                text += f"{HOST_HEAD}{host}\x02"
            if context:
                text += f"{CONTEXT_HEAD}{context}\x02"
            has = system.HasField
            extras = None
            if (
                has("body_digest") or has("delivery_timestamp") or has("message_group")
                or has("orphaned_transaction_recovery_duration") or has("lite_topic") or has("priority")
                or system.message_type == TRANSACTION
            ):  # fmt: skip
                extras, special = extras_of(system), True
            messages.append(
                NewMessage(
                    message.topic.name, message.body, born_ms, users,
                    COMPRESSED if system.body_encoding == GZIP else 0, text, message_id, tag, words, extras,
                    keys, host, context,
                )
            )  # fmt: skip
        send = Send(
            V2_SENDS, messages[0].topic if messages else "", messages, born_host_of(call.peer),
            count=len(messages),
        )  # fmt: skip
        if (wanted := call.metadata.get(QUEUE_HEADER)) is not None:
            send.queue, send.queue_text = wanted_queue(wanted)
        if special:
            send.client = call.metadata.get(CLIENT_ID_HEADER, "")
            if made(call, TO_OWNER):
                send.handed_on = born_host_of(call.metadata.get(CLIENT_PEER_HEADER, ""))
        answer = self.sends.send(send)
        if isinstance(answer, Sent):
            if answer.detour is None:
                return send_answer(answer.drafts, answer.places)
            return response_of(answer)
        if isinstance(answer, Deferred):
            return answer.mapped(response_of)
        return self.hand_on(call, request, answer)

    def hand_on(self, call: Call, request: Any, owner: Elsewhere) -> Deferred[Any]:
        """Have the broker store a request that owns the queue of its message group.

        Raises:
            OwnerAway, Throttled: it can't be handed on.
        """
        assert self.owners is not None and self.forwarder is not None, "only shared topics have other owners"
        return self.forwarder.forward(
            call,
            request,
            [Target(owner.broker, self.owners.address(owner.broker))],
            TO_OWNER,
            messaging.SendMessageResponse.FromString,
            headers=((QUEUE_HEADER, str(owner.queue_id)),),
        )


def wanted_queue(text: str) -> tuple[int, str]:
    """Return the number of a queue that a client names, and how it wrote it."""
    numbered = text.isdecimal() and len(text) <= QUEUE_DIGITS_MAX
    return int(text) if numbered else NO_QUEUE, text[: 2 * QUEUE_DIGITS_MAX]


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


def response_of(sent: Sent) -> Any:
    """Return the response to messages that are stored, as durable as was asked or not."""
    if sent.error is None and sent.detour is None:
        return send_answer(sent.drafts, sent.places)
    status = OK if sent.error is None else status_of(sent.error)
    response = messaging.SendMessageResponse(status=status)
    for draft, place in zip(sent.drafts, sent.places, strict=True):
        entry = response.entries.add(status=status, message_id=draft.keys[0], offset=place.queue_offset)
        if sent.error is None and sent.detour is not None:
            name_entry(entry, sent.kind, sent.detour.handle(draft))
    return response


def name_entry(entry: Any, kind: MessageType, handle: str) -> None:
    """Tell a sender what it calls a message by that is not delivered yet."""
    if kind is MessageType.TRANSACTION:
        entry.transaction_id = handle
    else:
        entry.recall_handle = handle
