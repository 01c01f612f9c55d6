"""Sends by the remoting protocol (310, 10, 320): header and body as a `Send` of the engine, and its answer.

What is checked, and in which order, says `REMOTING_SENDS`, as RocketMQ's broker does (SendMessageProcessor);
what the checks do: `engine/send_checks.py`.

A message is stored with the properties that were sent, but for WAIT, which says whether the reply waits for
disk and slaves, and with CLUSTER, as in RocketMQ 4.9.3. Those without UNIQ_KEY, the message's id, get one as
in 5.x: consumers of `apache.rocketmq.v2` know messages by it. The type of a topic does not matter here, which
4.x clients do not know; nor does its write permission, unless the broker is drained (RocketMQ: routes tell it
to producers). Limits are those of sends by gRPC.

**A batch** (the header says so, not the code) holds messages one behind the other, big-endian: size i32,
magic i32, CRC i32, flag i32, body length i32, body, properties length i16, properties. All go to one queue,
with consecutive offsets, or none is stored. A message keeps its properties, and gets those of the header that
it has not, WAIT among them; but for UNIQ_KEY, the batch's own id, which clients of 5.x send. What is delayed,
or of a transaction, can't be in a batch, wherever that is said.

Codes 10 and 12 mean that the messages are stored; what is refused is not.

RocketMQ: SendMessageProcessor, MessageDecoder.decodeMessages.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from whimbrel.broker.engine import send_checks as checks
from whimbrel.broker.engine.message import NewMessage, born_host_of
from whimbrel.broker.engine.policy import BATCH_MESSAGES_MAX
from whimbrel.broker.engine.send import Send, SendRules, Sends, Sent
from whimbrel.broker.remoting.send_header import SendHeader, properties_of, read_header
from whimbrel.deferred import Deferred
from whimbrel.errors import BadRequest, MessageCorrupted, WhimbrelError
from whimbrel.model.properties import UNIQ_KEY
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Handle, Outcome, Peer, Reply, reply_to_error
from whimbrel.rpc.remoting.json_header import encode_response
from whimbrel.store.codec import offset_message_id

__all__ = [
    "REGION",
    "REMOTING_SENDS",
    "VERSION_WITH_MAXIMUM",
    "WAIT",
    "SendRequests",
    "failed",
]

REMOTING_SENDS: Final = SendRules(
    checks=(
        checks.OPEN_TOPIC, checks.QUEUE, checks.BATCH_ALONE, checks.MESSAGES, checks.KIND_BY_PROPERTIES,
        checks.DETOUR,
    ),
    each=(),
    record_limits=True,
    permission=False,
    limited=True,
    group_topics=True,
    writable_first=True,
    no_topic="topic {name} does not exist; create it, or switch auto_create_topics on",
)  # fmt: skip

WAIT = "WAIT"
REGION: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}  # RocketMQ's defaults
VERSION_WITH_MAXIMUM = 121  # V3_4_9, whose maximum of redeliveries counts (RocketMQ: the same)
# Of a reply, for: store host and offset in hexadecimal digits, queue, offset in the queue, opaque number.
HEADER: Final = (
    encode_response(
        ResponseCode.SUCCESS, 0, {"msgId": "%s%016X", "queueId": "%d", "queueOffset": "%d"} | REGION, None
    )
    .decode()
    .replace('"opaque":0', '"opaque":%d')
)
BATCH_HEAD = struct.Struct(">iiiii")


class SendRequests:
    """Handles sends on the loop's thread."""

    def __init__(self, sends: Sends) -> None:
        """Take the engine's sends."""
        self.sends = sends

    def handles(self) -> dict[int, Handle]:
        """Return the handlers by code."""
        return dict.fromkeys(
            (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), self.send
        )

    def send(self, peer: Peer, request: Command) -> Outcome:
        """Store what a send brings; reply at once or when it is durable. Errors have replies' fields."""
        try:
            header = read_header(request)
            topic, properties = header.topic, header.properties
            messages: Iterable[NewMessage]
            if header.batch:
                waits = properties.get(WAIT, "true")
                messages = batch_messages(request.body, header)
            else:
                waits = properties.pop(WAIT, "true")
                message = NewMessage(topic, request.body, header.born_ms, properties, header.sys_flag)
                message.flag = header.flag
                messages = (message,)
            send = Send(REMOTING_SENDS, topic, messages, born_host_of(peer.peer), properties, header.queue_id)
            send.template, send.template_queues = header.default_topic, header.default_queues
            send.waits, send.batch = waits == "true" or waits.lower() == "true", header.batch
            if header.reconsume_times:
                send.reconsume_times = header.reconsume_times
            if header.max_reconsume_times >= 0 and request.version >= VERSION_WITH_MAXIMUM:
                send.retries_max = header.max_reconsume_times
            answer = self.sends.send(send)
        except WhimbrelError as error:
            return failed(error)
        if isinstance(answer, Deferred):
            return answer.mapped(self.reply, failed)
        assert isinstance(answer, Sent), "message groups, which other brokers may own, come by gRPC"
        return self.reply(answer)

    def reply(self, sent: Sent) -> Reply:
        """Return the reply that says where the messages are, or why they are not as durable as was asked."""
        host, places, error = self.sends.policy.store_host, sent.places, sent.error
        if len(places) == 1 and error is None:
            return SentReply(host, places[0].physical_offset, sent.queue_id, places[0].queue_offset)
        fields = {
            "msgId": ",".join([offset_message_id(host, place.physical_offset) for place in places]),
            "queueId": str(sent.queue_id),
            "queueOffset": str(places[0].queue_offset),
            **REGION,
        }
        return Reply(fields=fields) if error is None else Reply(error.remoting, fields, remark=str(error))


class SentReply(Reply):
    """The reply to one message that is stored, as nearly all are: its header is made without its fields."""

    __slots__ = ("store_host", "where")

    def __init__(self, store_host: bytes, place: int, queue_id: int, queue_offset: int) -> None:
        self.code, self.body, self.remark = ResponseCode.SUCCESS, (), None
        self.store_host, self.where = store_host, (place, queue_id, queue_offset)

    @property
    def fields(self) -> Mapping[str, str]:  # type: ignore[override]  # made when they are asked for
        """By name."""
        place, queue_id, queue_offset = self.where
        return {
            "msgId": offset_message_id(self.store_host, place),
            "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
            **REGION,
        }

    def header(self, opaque: int) -> bytes:
        """See `Reply`."""
        return (HEADER % (self.store_host.hex().upper(), *self.where, opaque)).encode()


def batch_messages(body: bytes, header: SendHeader) -> Iterator[NewMessage]:
    """Read the messages of a batch, one by one.

    Raises:
        MessageCorrupted: what follows is none.
    """
    common, at, end, count = header.properties, 0, len(body), 0
    common.pop(UNIQ_KEY, None)
    try:
        while at < end:
            size, _, _, flag, length = BATCH_HEAD.unpack_from(body, at)
            start = at + BATCH_HEAD.size
            stop = start + length
            text_length = int.from_bytes(body[stop : stop + 2], "big")
            if length < 0 or stop + 2 + text_length != at + size or at + size > end:
                raise MessageCorrupted(f"the batch has no whole message at byte {at}")
            if count >= BATCH_MESSAGES_MAX:
                raise BadRequest(f"a batch may have {BATCH_MESSAGES_MAX} messages")
            own = properties_of(body[stop + 2 : at + size].decode("utf-8", "replace"))
            properties = {**own, **{name: value for name, value in common.items() if name not in own}}
            message = NewMessage(header.topic, body[start:stop], header.born_ms, properties, header.sys_flag)
            message.flag, message.own = flag, own
            yield message
            count += 1
            at += size
    except struct.error as error:
        raise MessageCorrupted(f"the batch has no whole message at byte {at}") from error
    if not count:
        raise MessageCorrupted("the batch holds no message")


def failed(error: Exception) -> Reply:
    """Return the reply to a send that fails."""
    if not isinstance(error, WhimbrelError):
        raise error
    return replace(reply_to_error(error), fields=REGION)
