"""Decides what is stored when messages of another queue are replayed, and knows how far each replay came.

Each replayed message carries a property with its origin:

    REPLAYED_FROM = broker:topic:queue:offset       of the *source*: where it stood originally

so the log itself records how far a replay came, also after a crash, and on a slave that became the master:

    queue here     m m r7 r8 m r9 m      r: replayed, m: sent
                               <-- searched from its end until a message of the source is found: 9

That search is made once for a source and kept while this process may write (`Searches`). It advances by
`SEARCH_MAX` messages in each call, so that a long queue holds the loop no longer than a short one. A caller
names the source offset after which it goes on, so an append compares before it stores:

    last == after                 all are appended
    after < last <= end of batch  a retry: what is stored is skipped, the rest is appended
    last < after                  refused: what was answered is gone, after a failover to a slave that lagged
    last > end of batch           refused: another replay of the same queue is running

so that nothing is stored twice and nothing is left out, whichever process was killed in between. Messages
come by rising source offset. A *selection* (single messages of a dead-letter topic) has no order that shows
what is stored: each is looked up in the index by its id instead. Sources of the two kinds are kept apart by
their topic's name.

Kept of a message: born time and host, flag, the bits of its body's compression, property text, body. The id
is UNIQ_KEY of the text. A message without one has an id made of its place in the log, which it can't keep
here, so that id is added as UNIQ_KEY: readers look there first. REPLAYED_FROM comes last; of equal names the
last one counts, so a message that is replayed again names the cluster that it came from.

**Only a replay says how far a replay came.** A message that was sent must not: one with an offset far ahead
would make a replay leave out all before it. So producers can't set the property (`model/names.py`), and it
counts only at the end of the text, with nothing but a checksum of the text behind it. That keeps out what
producers sent to earlier versions, which let the name pass: a record of a send has the users' properties
first, and always some of the broker's behind them. What earlier versions replayed ends with it, so replays
that they began go on. In a record that RocketMQ's own broker wrote, where properties stand in the order of
their hashes, a user's property of this name may come last: put archives into topics that such a broker has
not filled.
"""

import logging
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

from whimbrel.errors import (
    BadRequest,
    CorruptRecord,
    IllegalOffset,
    MessageTooLarge,
    PropertiesTooLarge,
)
from whimbrel.model.limits import BODY_BYTES_MAX, REPLAY_BATCH_MAX, REPLAY_BYTES_MAX, REPLAY_SELECTION_MAX
from whimbrel.model.names import CONTROL, DEAD_LETTER_PREFIX
from whimbrel.model.properties import REPLAYED_FROM as REPLAYED_FROM_PROPERTY
from whimbrel.store.codec import (
    COMPRESSION_BITS,
    FILLER_SIZE,
    PROPERTIES_BYTES_MAX,
    RAW_UNIQ_KEY,
    RecordDraft,
    decode_record,
    pack_host,
    property_of,
)

__all__ = [
    "REPLAYED_FROM",
    "SEARCH_MAX",
    "QueueLog",
    "ReplayedMessage",
    "Search",
    "Searches",
    "Source",
    "already_stored",
    "check_batch",
    "draft_of",
    "replayed_from",
]

logger = logging.getLogger(__name__)

REPLAYED_FROM = REPLAYED_FROM_PROPERTY.encode()
# At the end of a property text.
ORIGIN = re.compile(
    rb"(?:^|\x02)REPLAYED_FROM\x01([^\x01\x02]*):([^\x01\x02:]*):([0-9]{1,10}):([0-9]{1,19})\x02"
    rb"(?:\x02?__CRC32#\x01[^\x01\x02]*\x02?)?\Z"
)
SEARCH_MAX = 1024  # messages searched in one call
SAME_ID_MAX = 64  # messages of one id that a selection is compared with
UNKNOWN_HOST = bytes(8)


class Source(NamedTuple):
    """A queue from which messages are replayed."""

    broker: str
    topic: str
    queue_id: int

    def mark(self, offset: int) -> str:
        """Return the value of REPLAYED_FROM for a message of this queue."""
        return f"{self.broker}:{self.topic}:{self.queue_id}:{offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedMessage:
    """A message with all that is kept of it, see `PreservedRecord` of the protocol."""

    source_offset: int
    born_ms: int
    born_host: str
    flag: int
    sys_flag: int
    properties: bytes
    body: bytes
    message_id: str


class QueueLog(Protocol):
    """What is read of the store; `MessageStore` implements it."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def queue_units(
        self, topic: str, queue_id: int, offset: int, count: int
    ) -> list[tuple[int, int, int]]: ...
    def read(self, physical_offset: int, size: int) -> bytes: ...
    def find_written(self, topic: str, key: str, *, limit: int = 64) -> list[int]: ...
    def read_log(self, physical_offset: int, size: int, /) -> bytes: ...


def replayed_from(properties: bytes) -> tuple[Source, int] | None:
    """Return the origin of a replayed message, from its property text; None for a message that was sent."""
    found = ORIGIN.search(properties)
    if found is None:
        return None
    broker, topic, queue_id, offset = found.groups()
    source = Source(broker.decode("utf-8", "replace"), topic.decode("utf-8", "replace"), int(queue_id))
    return source, int(offset)


def message_id_of(message: ReplayedMessage) -> str:
    """Return the id under which a message is stored."""
    return property_of(message.properties, RAW_UNIQ_KEY).decode("utf-8", "replace") or message.message_id


def draft_of(
    message: ReplayedMessage, topic: str, queue_id: int, source: Source, store_host: bytes
) -> RecordDraft:
    """Return a message as a record that is to be appended.

    Raises:
        MessageTooLarge, PropertiesTooLarge, BadRequest: it can't be stored.
    """
    if len(message.body) > BODY_BYTES_MAX:
        raise MessageTooLarge(f"the body has {len(message.body)} bytes; at most {BODY_BYTES_MAX} are allowed")
    text = message.properties
    added = f"{REPLAYED_FROM_PROPERTY}\x01{source.mark(message.source_offset)}\x02"
    if not property_of(text, RAW_UNIQ_KEY):
        if not message.message_id or CONTROL.search(message.message_id):
            raise BadRequest(
                f"message id {message.message_id!r} can't be stored, and the text has no UNIQ_KEY"
            )
        added = f"UNIQ_KEY\x01{message.message_id}\x02{added}"
    joint = b"" if not text or text.endswith(b"\x02") else b"\x02"
    whole = text + joint + added.encode()
    if len(whole) > PROPERTIES_BYTES_MAX:
        raise PropertiesTooLarge(
            f"the property text has {len(text)} bytes and {len(whole)} with its origin;"
            f" {PROPERTIES_BYTES_MAX} can be stored"
        )
    return RecordDraft.from_properties(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=whole,
        born_timestamp=message.born_ms,
        born_host=host_bytes(message.born_host),
        store_host=store_host,
        flag=message.flag,
        sys_flag=message.sys_flag & COMPRESSION_BITS,
    )


def host_bytes(text: str) -> bytes:
    """Return IP:PORT as records hold it; zeros for an unknown host.

    Raises:
        BadRequest: it is no address.
    """
    if not text:
        return UNKNOWN_HOST
    host, _, port = text.rpartition(":")
    try:
        return pack_host(host, int(port) & 0xFFFFFFFF)  # a port is signed where it was decoded
    except ValueError as error:
        raise BadRequest(f"born host {text!r} is not IP:PORT") from error


def check_batch(messages: Sequence[ReplayedMessage], source: Source, *, selection: bool) -> None:
    """Raise BadRequest unless these messages may come in one call."""
    if not source.broker or CONTROL.search(source.broker) or source.queue_id < 0:
        raise BadRequest("the source needs a broker's name without control characters, and a queue")
    if selection != source.topic.startswith(DEAD_LETTER_PREFIX):
        raise BadRequest(
            f"selections, and only they, are of topics whose names begin with {DEAD_LETTER_PREFIX}"
        )
    count_max = REPLAY_SELECTION_MAX if selection else REPLAY_BATCH_MAX
    if not 0 < len(messages) <= count_max:
        raise BadRequest(f"{len(messages)} messages in a call: 1 to {count_max} are allowed")
    size = sum(len(message.body) + len(message.properties) for message in messages)
    if size > REPLAY_BYTES_MAX and len(messages) > 1:
        raise BadRequest(f"{size} bytes in a call: {REPLAY_BYTES_MAX} are allowed unless it is one message")
    if messages[0].source_offset < 0:
        raise BadRequest("a source offset is below 0")
    if any(later.source_offset <= earlier.source_offset for earlier, later in pairwise(messages)):
        raise BadRequest("the messages must come by rising source offset, each once")


def already_stored(source: Source, offsets: Sequence[int], *, last: int, after: int) -> int:
    """Return how many of the messages, from the first on, the queue holds already.

    Args:
        source: for the error's text.
        offsets: their source offsets, rising.
        last: of the source's last message in the queue; -1 for none.
        after: what the caller expects it to be.

    Raises:
        IllegalOffset: the caller's view of the queue is wrong, and not only a retry's.
    """
    where = f"{source.topic}, queue {source.queue_id} of {source.broker}"
    if last < after:
        raise IllegalOffset(
            f"{where}: this queue has its messages up to {last}, not up to {after} as was answered before:"
            " the log was cut, after a failover perhaps; replay it again from there"
        )
    if last > after and last > offsets[-1]:
        raise IllegalOffset(
            f"{where}: its messages up to {last} came in meanwhile: another replay of it is running"
        )
    return bisect_right(offsets, last)


@dataclass(slots=True)
class Search:
    """What is known of one queue here.

    Attributes:
        queue: the store's own object; another one means that the topic was deleted and made again.
        down: messages from here on were searched, going backwards.
        up: messages up to here were searched, going forwards.
        last, first: source offsets, by source.
    """

    queue: object
    down: int
    up: int
    last: dict[Source, int] = field(default_factory=dict)
    first: dict[Source, int] = field(default_factory=dict)


class Searches:
    """How far each source was replayed into the queues here; used by the loop's thread only."""

    def __init__(self, store: QueueLog) -> None:
        """Take the store; nothing is read yet."""
        self.store = store
        self.by_queue: dict[tuple[str, int], Search] = {}

    def forget(self) -> None:
        """Forget everything: this process may have lost the right to write, and others may have written."""
        self.by_queue.clear()

    def of(self, topic: str, queue_id: int, queue: object) -> Search:
        """Return what is known of a queue; `queue` is the store's object for it, None before its first
        message.
        """
        found = self.by_queue.get((topic, queue_id))
        if found is None or (found.queue is not queue and found.queue is not None):
            low, high = self.store.queue_range(topic, queue_id)
            found = self.by_queue[topic, queue_id] = Search(queue, high, low)
        found.queue = queue
        return found

    def advance(self, search: Search, topic: str, queue_id: int, source: Source, *, first: bool) -> int:
        """Search a bounded part of the queue.

        Returns:
            How many messages are left to search; 0 when the answer is known.
        """
        low, _ = self.store.queue_range(topic, queue_id)
        room = SEARCH_MAX
        if source not in search.last and search.down > low:
            start = max(search.down - room, low)
            room -= search.down - start
            for found, offset in reversed(list(self.replayed(topic, queue_id, start, search.down))):
                search.last.setdefault(found, offset)
            search.down = start
        if source not in search.last:
            return max(search.down - low, 0)  # with none left there is no first one either
        if not first or source in search.first:
            return 0
        search.up, high = max(search.up, low), self.store.queue_range(topic, queue_id)[1]
        end = min(search.up + room, high)
        for found, offset in self.replayed(topic, queue_id, search.up, end):
            search.first.setdefault(found, offset)
        search.up = end
        return 0 if source in search.first else high - end  # none: retention has removed them

    def replayed(self, topic: str, queue_id: int, start: int, end: int) -> Iterator[tuple[Source, int]]:
        """Yield the sources of the replayed messages of a range, in its order."""
        while start < end:
            units = self.store.queue_units(topic, queue_id, start, end - start)
            if not units:
                return
            start += len(units)
            for physical_offset, size, _ in units:
                if size == FILLER_SIZE:
                    continue
                try:
                    record = self.store.read(physical_offset, size)
                    if REPLAYED_FROM in record:
                        origin = replayed_from(decode_record(record, check_crc=False).properties_raw)
                        if origin is not None:
                            yield origin
                except IllegalOffset:
                    continue  # retention has removed it meanwhile
                except CorruptRecord as error:
                    logger.error("%s/%d: passing over a damaged record: %s", topic, queue_id, error)

    def contains(self, topic: str, source: Source, message: ReplayedMessage) -> bool:
        """Return whether a topic holds this replayed message, according to the index.

        Raises:
            BadRequest: more messages share its id than are compared.
        """
        wanted = (source, message.source_offset)
        key = message_id_of(message)
        places = self.store.find_written(topic, key, limit=SAME_ID_MAX)
        for place in places:
            size = int.from_bytes(self.store.read_log(place, 4), "big")
            try:
                record = decode_record(self.store.read(place, size), check_crc=False)
            except (CorruptRecord, IllegalOffset):
                continue
            if replayed_from(record.properties_raw) == wanted:
                return True
        if len(places) >= SAME_ID_MAX:
            raise BadRequest(
                f"{SAME_ID_MAX} messages have the id {key}: nobody can say whether this one is in"
            )
        return False
