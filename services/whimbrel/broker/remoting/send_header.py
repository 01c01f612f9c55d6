"""The header of a send, in both of its forms, and the text of a message's properties.

    V2 (310, 320)   a producer group, b topic, c default topic, d its queues, e queue id, f system flag,
                    g born time in ms, h flag, i properties, j reconsume times, k unit mode, l their maximum,
                    m batch
    V1 (10)         the same by their long names

Numbers are decimal digits. A header without one of a to h is refused, as RocketMQ does; what else a client
sends is ignored.

The text of properties is `name 0x01 value 0x02 name 0x01 value`, with or without a final 0x02. As in RocketMQ
what has no name or no value is dropped, and of several equal names the last counts.

RocketMQ: SendMessageRequestHeaderV2, MessageDecoder.string2messageProperties.
"""

from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Final

from whimbrel.errors import BadRequest
from whimbrel.model.limits import TIME_MS_MAX
from whimbrel.rpc.remoting.codes import RequestCode
from whimbrel.rpc.remoting.command import INT_MAX, Command

__all__ = ["SendHeader", "properties_of", "properties_text", "read_header"]

LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "l": "maxReconsumeTimes",
    "m": "batch",
}
SHORT_NAMES: Final = {name: name for name in LONG_NAMES}
REQUIRED = itemgetter(*"abcdefgh")
DIGITS_MAX = 80  # of most numbers together: reading one of very many takes long
BORN_DIGITS_MAX = 15  # of a time before the year 10000
NEEDED = 5  # numbers of `numbers_of`
V1_CODES: Final = frozenset((RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE))


@dataclass(slots=True)
class SendHeader:
    """What a send says beside the body.

    Attributes:
        queue_id: negative leaves it to the broker.
        default_topic, default_queues: what a topic that is made by the send is made like.
        properties: by name.
        max_reconsume_times: -1 where it is not said.
        batch: the body holds several messages.
    """

    topic: str
    queue_id: int
    sys_flag: int
    born_ms: int
    flag: int
    reconsume_times: int
    max_reconsume_times: int
    batch: bool
    default_topic: str
    default_queues: int
    properties: dict[str, str]


def read_header(request: Command) -> SendHeader:
    """Return the header of a send.

    Raises:
        BadRequest: a field is missing, or is no number.
    """
    fields, names = request.fields, SHORT_NAMES
    if request.code in V1_CODES:
        names = LONG_NAMES
        fields = {short: fields[name] for short, name in LONG_NAMES.items() if name in fields}
    try:
        _, topic, default, queues, queue, system, born, flag = REQUIRED(fields)
    except KeyError:
        return read_unusual(request, names)
    get = fields.get
    text = get("i")
    words = f"{queue},{system},{flag},{queues},{get('j') or '0'},{get('l') or ''}"
    numbers = numbers_of(words) if len(words) < DIGITS_MAX else None
    if (
        numbers is None
        or not topic
        or not (born.isdigit() and born.isascii() and len(born) <= BORN_DIGITS_MAX)
        or (born_ms := int(born)) > TIME_MS_MAX
    ):
        return read_unusual(request, names)
    queue_id, sys_flag, flag_bits, default_queues, times, most = numbers
    return SendHeader(
        topic, queue_id, sys_flag, born_ms, flag_bits, times, most, get("m") == "true", default,
        default_queues, properties_of(text) if text else {},
    )  # fmt: skip


@lru_cache(maxsize=4096)
def numbers_of(words: str) -> tuple[int, ...] | None:
    """Return a header's numbers: queue, system flag, flag, queues, reconsume times, and their maximum.

    The last is -1 for none. None: they are no usual numbers. All sends of a producer have nearly the same.
    """
    *needed, most = words.split(",")
    if len(needed) != NEEDED or not all(word.isdigit() and word.isascii() for word in (*needed, most or "0")):
        return None
    numbers = (*map(int, needed), int(most) if most else -1)
    return numbers if max(numbers) <= INT_MAX else None


def read_unusual(request: Command, names: dict[str, str]) -> SendHeader:
    """Return a header with negative numbers, or raise what is wrong with it."""
    request.text(names["a"])
    born_ms = request.int64(names["g"])
    if not 0 <= born_ms <= TIME_MS_MAX:
        raise BadRequest(f"the born time, {born_ms} ms, is not between the years 1970 and 9999")
    return SendHeader(
        request.text(names["b"]),
        request.int32(names["e"]),
        request.int32(names["f"]),
        born_ms,
        request.int32(names["h"]),
        request.int32(names["j"], 0),
        request.int32(names["l"], -1),
        request.boolean(names["m"]),
        request.text(names["c"]),
        request.int32(names["d"]),
        properties_of(request.fields.get(names["i"], "")),
    )


def properties_of(text: str) -> dict[str, str]:
    """Return the properties of a text."""
    found: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if value and name:
            found[name] = value
    return found


def properties_text(properties: dict[str, str]) -> bytes:
    """Return properties as a record has them, each with its separator behind it."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    return text.encode("utf-8", "replace")  # half a surrogate pair is a question mark in Java as well
