"""Heartbeats (34): what a client says of itself, and of the groups in which it consumes and produces. Pure.

    {"clientID":"10.0.0.9@1234#5",
     "consumerDataSet":[{"groupName":"G","messageModel":"CLUSTERING","consumeType":"CONSUME_PASSIVELY",
                         "consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",
                         "subscriptionDataSet":[{"topic":"T","subString":"A || B","subVersion":1795335853253,
                                                 "expressionType":"TAG","tagsSet":[...],"codeSet":[...]}]}],
     "producerDataSet":[{"groupName":"P"}]}

What clients send beside that (recorded): sets and fields that are absent or null; enums as their ordinals
(C++); `subVersion` as a text (C++) or in nanoseconds (Go); `codeSet` as `[0,0]` (C++) or as texts (Go), which
is not looked at: the expression says which tags are wanted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whimbrel.broker.tables.remoting_clients import Consumes, Subscription
from whimbrel.errors import BadRequest
from whimbrel.model.limits import CLIENT_ID_CHARS_MAX, GROUP_CHARS_MAX
from whimbrel.model.names import RETRY_PREFIX
from whimbrel.rpc.remoting.command import LONG_MAX, LONG_MIN
from whimbrel.rpc.remoting.fastjson import load_body

__all__ = ["HEARTBEAT_BYTES_MAX", "SUBSCRIPTIONS_MAX", "Heartbeat", "read_heartbeat", "read_subscription"]

HEARTBEAT_BYTES_MAX = 1 << 20
SUBSCRIPTIONS_MAX = 1024  # of a heartbeat, all groups together, and as many groups
NAME_CHARS_MAX = len(RETRY_PREFIX) + GROUP_CHARS_MAX  # of a topic that is subscribed to

# RocketMQ's enums in the order of their ordinals.
MODELS = ("BROADCASTING", "CLUSTERING")
KINDS = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
BEGINS = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
SQL, TAG = "SQL92", "TAG"

Subscribe = Callable[[str, int, str, bool], Subscription]  # topic, version, expression, whether it is SQL


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """One heartbeat; names of groups are as they came, empty ones left out."""

    client_id: str
    consumers: tuple[Consumes, ...]
    producers: tuple[str, ...]


def read_heartbeat(body: bytes, subscribe: Subscribe) -> Heartbeat:
    """Return what a heartbeat says.

    Args:
        subscribe: makes its subscriptions.

    Raises:
        BadRequest: it can't be read, or says more than is bearable.
    """
    if len(body) > HEARTBEAT_BYTES_MAX:
        raise BadRequest(f"the heartbeat has {len(body)} bytes; {HEARTBEAT_BYTES_MAX} are the most")
    found = load_body(body, "the heartbeat")
    client_id = text_of(found, "clientID")
    if len(client_id) > CLIENT_ID_CHARS_MAX or not client_id.isprintable():
        raise BadRequest(f"clientID of the heartbeat is no name of up to {CLIENT_ID_CHARS_MAX} characters")
    consuming, producing = rows_of(found, "consumerDataSet"), rows_of(found, "producerDataSet")
    if len(consuming) + len(producing) > SUBSCRIPTIONS_MAX:
        raise BadRequest(f"the heartbeat names more than {SUBSCRIPTIONS_MAX} groups")
    kept = found.get("withoutSub") is True
    room = SUBSCRIPTIONS_MAX
    consumers = []
    for row in consuming:
        topics = None
        if not kept:
            topics = topics_of(row, subscribe, room)
            room -= len(topics)
        if group := text_of(row, "groupName"):
            consumers.append(
                Consumes(
                    group=group,
                    model=enum_of(row, "messageModel", MODELS, "CLUSTERING"),
                    kind=enum_of(row, "consumeType", KINDS, "CONSUME_PASSIVELY"),
                    begin=enum_of(row, "consumeFromWhere", BEGINS, BEGINS[0]),
                    topics=topics,
                )
            )
    producers = [group for row in producing if (group := text_of(row, "groupName"))]
    if not client_id and (consumers or producers):
        raise BadRequest("the heartbeat has no clientID")
    return Heartbeat(client_id, tuple(consumers), tuple(dict.fromkeys(producers)))


def topics_of(row: Mapping[str, Any], subscribe: Subscribe, room: int) -> dict[str, Subscription]:
    """Return the subscriptions of a consumer group, by topic; of two to one topic the last."""
    rows = rows_of(row, "subscriptionDataSet")
    if len(rows) > room:
        raise BadRequest(f"the heartbeat has more than {SUBSCRIPTIONS_MAX} subscriptions")
    found = [read_subscription(each, subscribe) for each in rows]
    return {one.topic: one for one in found}


def read_subscription(row: Mapping[str, Any], subscribe: Subscribe) -> Subscription:
    """Return a `SubscriptionData`.

    Raises:
        BadRequest: its topic, version or kind is none.
    """
    topic = text_of(row, "topic")
    if not topic or len(topic) > NAME_CHARS_MAX:
        raise BadRequest(f"a subscription's topic is no name of up to {NAME_CHARS_MAX} characters")
    kind = text_of(row, "expressionType") or TAG
    if kind not in (TAG, SQL):
        raise BadRequest(f"a subscription is of the kind {kind[:32]!r}: {TAG} and {SQL} are served")
    return subscribe(topic, version_of(row), text_of(row, "subString", "*"), kind == SQL)


def version_of(row: Mapping[str, Any]) -> int:
    """Return a subscription's version, which may be a text; 0 where there is none."""
    value = row.get("subVersion")
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    if value is None:
        return 0
    if type(value) is not int or not LONG_MIN <= value <= LONG_MAX:
        raise BadRequest("subVersion of a subscription is no number of 64 bits")
    return value


def text_of(row: Mapping[str, Any], name: str, default: str = "") -> str:
    value = row.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise BadRequest(f"{name} of the heartbeat is no text")
    return value


def rows_of(row: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    value = row.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadRequest(f"{name} of the heartbeat is no list of objects")
    return value


def enum_of(row: Mapping[str, Any], name: str, names: Sequence[str], default: str) -> str:
    """Return the name of an enum's value, which may be its ordinal."""
    value = row.get(name)
    if value is None:
        return default
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    if value in names:
        return str(value)
    raise BadRequest(f"{name} of the heartbeat is none of {', '.join(names)}")
