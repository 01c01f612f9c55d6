"""Plain sends that came in one read, stored together: what one append costs is paid once.

    request ──► record ──┐
    request ──► record ──┼──► one append ──► replies, in the order of the requests
    request ──► None: it is not plain, goes to `Sends.send` behind those before it

A send is plain when its topic is there and takes it, when it names its queue, and when the message is stored
at once where it was sent to: no batch, no delay, no transaction, no retry of a group. Replies must not wait
for disk or slaves, and nothing may be traced. What is checked, and what is stored, is what `sends.py` says;
where the append takes none of them, each is sent alone, and gets its own reply.

Most requests of a producer differ in body, time and properties alone. What follows from the other fields is
kept as a `Form`, at most `FORMS_MAX` of them, and holds as long as the topic is the same.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from whimbrel.broker.remoting.send_header import properties_of, read_header
from whimbrel.broker.remoting.sends import NOT_PLAIN, REGION, WAIT, Sends, refusal
from whimbrel.errors import WhimbrelError
from whimbrel.model.limits import TOPIC_CHARS_MAX
from whimbrel.model.names import RETRY_PREFIX
from whimbrel.model.properties import CLUSTER
from whimbrel.model.topic import TopicConfig
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.frames import head_of
from whimbrel.rpc.remoting.handlers import Peer
from whimbrel.rpc.remoting.json_header import encode_response
from whimbrel.store.codec import RecordDraft

__all__ = ["FORMS_MAX", "PlainSends"]

FORMS_MAX = 4096  # some MB; all are dropped when there are more
BORN_DIGITS_MAX = 13  # of a time in ms before the year 2287
SEND: Final = int(RequestCode.SEND_MESSAGE_V2)  # asked of each request, and a member is looked up slowly
FIELDS = itemgetter(*"abcdefgh")  # that each send has to have
# The header of a reply, for: store host and offset in hexadecimal, queue, offset in the queue, opaque number.
REPLY: Final = (
    encode_response(
        ResponseCode.SUCCESS, 0, {"msgId": "%s%016X", "queueId": "%d", "queueOffset": "%d"} | REGION, None
    )
    .decode()
    .replace('"opaque":0', '"opaque":%d')
)


class Form(NamedTuple):
    """What sends that differ in body, time and properties alone have in common."""

    topic: TopicConfig
    queue_id: int
    sys_flag: int
    flag: int
    reconsume_times: int


class PlainAppender(Protocol):
    """What appends (`produce/appender.py`)."""

    waits: bool

    def append_each(self, drafts: Sequence[RecordDraft]) -> list[Any]:
        """Append messages of any queues; nothing is returned where each is to be appended alone."""


class PlainSends:
    """Plain sends of 310, on the loop's thread."""

    def __init__(self, sends: Sends, appender: PlainAppender) -> None:
        """Take what handles all other sends, and what appends for it."""
        self.sends, self.appender = sends, appender
        self.admission, self.topics = sends.admission, sends.topics
        self.forms: dict[tuple[str | None, ...], Form] = {}

    def record(self, peer: Peer, request: Command) -> RecordDraft | None:
        """Return the record of a plain send; None for what is none, or breaks a rule."""
        sends = self.sends
        if request.code != SEND or request.flag:
            return None
        if self.appender.waits or sends.traces is not None:
            return None
        fields = request.fields
        get = fields.get
        try:
            _, topic, default, queues, queue, system, born, flag = FIELDS(fields)
        except KeyError:
            return None
        key = (topic, default, queues, queue, system, flag, get("j"), get("l"), get("m"))
        form = self.forms.get(key)
        if form is None or self.topics.rows.get(topic) is not form.topic:
            form = self.form(request, key)
            if form is None:
                return None
        if not born.isdigit() or not born.isascii() or len(born) > BORN_DIGITS_MAX:
            return None
        properties = properties_of(get("i", ""))
        if not NOT_PLAIN.isdisjoint(properties):
            return None
        properties.pop(WAIT, None)
        properties[CLUSTER] = sends.cluster
        try:
            return sends.draft(
                peer, topic, form.queue_id, request.body, properties, int(born), form.sys_flag, form.flag,
                form.reconsume_times,
            )  # fmt: skip
        except WhimbrelError:
            return None

    def form(self, request: Command, key: tuple[str | None, ...]) -> Form | None:
        """Find out and keep what follows from the fields that most sends of a producer share."""
        try:
            header = read_header(request)
        except WhimbrelError:
            return None
        topic = self.topics.rows.get(header.topic)
        if (
            topic is None
            or refusal(header.topic, topic) is not None
            or header.topic.startswith(RETRY_PREFIX)
            or not 0 <= header.queue_id < max(topic.write_queues, topic.read_queues)
            or request.fields.get("m", "false") != "false"
            or len(header.default_topic) > TOPIC_CHARS_MAX
        ):
            return None
        if len(self.forms) >= FORMS_MAX:
            self.forms.clear()
        form = Form(topic, header.queue_id, header.sys_flag, header.flag, header.reconsume_times)
        self.forms[key] = form
        return form

    def store(self, requests: Sequence[Command], records: Sequence[RecordDraft]) -> list[bytes]:
        """Store records, and return a reply for each of their requests; none where nothing was stored."""
        try:
            places = self.appender.append_each(records)
        except WhimbrelError:
            return []
        if not places:
            return []
        host, replies = self.admission.store_host.hex().upper(), []
        for request, record, place in zip(requests, records, places, strict=True):
            header = REPLY % (
                host, place.physical_offset, record.queue_id, place.queue_offset, request.opaque
            )  # fmt: skip
            replies.append(head_of(header.encode(), 0))
        return replies
