"""What is accepted, from plain values: the order of checks, and the record's property text."""

from collections.abc import Callable, Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any, NoReturn

import pytest

from whimbrel.broker.api.send import V2_SENDS, wanted_queue
from whimbrel.broker.engine import send_checks as checks
from whimbrel.broker.engine.message import (
    DigestKind,
    MessageExtras,
    NewMessage,
    born_host_of,
    check_digest,
    compose,
    special_text,
)
from whimbrel.broker.engine.sampling import Sampler
from whimbrel.broker.engine.send import DELIVERY_AHEAD_MAX_MS, Send, Sends
from whimbrel.broker.engine.send_checks import RECOVERY_MAX_S
from whimbrel.broker.engine.targets import TARGETS_MAX, SendTarget
from whimbrel.broker.produce.appender import ReadOnlyAppender
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import (
    BadRequest,
    Forbidden,
    IllegalDeliveryTime,
    IllegalKey,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalPropertyKey,
    IllegalTag,
    IllegalTopic,
    MessageCorrupted,
    MessageEmpty,
    MessageTooLarge,
    MessageTypeConflict,
    NotWritable,
    PropertiesTooLarge,
    QueueNotFound,
    TopicNotFound,
    WhimbrelError,
)
from whimbrel.model.limits import (
    BODY_BYTES_MAX,
    MESSAGE_GROUP_BYTES_MAX,
    PROPERTIES_COUNT_MAX,
    PROPERTY_BYTES_MAX,
)
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.store.codec import COMPRESSED, PROPERTIES_BYTES_MAX, RecordDraft, pack_host, tags_code

NOW = 1_800_000_000_000
PEER = pack_host("10.0.0.9", 5000)
CONTEXT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"


class WritableAppender:
    """An appender that takes writes; nothing is appended here."""

    refusal = ""
    waits = False

    def check_writable(self) -> None:
        """Refuse nothing."""

    def append(self, drafts: Sequence[Any]) -> NoReturn:
        raise AssertionError("checks do not append")

    def when_durable(self, end: int, answer: Callable[[Any], None]) -> None:
        raise AssertionError("checks do not append")

    def when_held(self, end: int, copies: int, answer: Callable[[Any], None]) -> None:
        raise AssertionError("checks do not append")

    def complete_waiting(self) -> None:
        """Do nothing."""


def topics_of(root: Path, *, auto_create: bool = False) -> TopicTable:
    topics = TopicTable(
        root, cluster="Cluster", broker_name="broker-a", auto_create=auto_create, clock=lambda: NOW
    )
    for kind in (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.MIXED):
        topics.add(TopicConfig(name=kind.lower(), read_queues=2, write_queues=2).with_type(kind))
    return topics


class Rig:
    """The engine's checks, one by one or some in their order, by the rules of `apache.rocketmq.v2`."""

    def __init__(self, root: Path, topics: TopicTable, *, writable: bool = True) -> None:
        self.topics = topics
        groups = GroupTable(root, auto_create=False, clock=lambda: NOW)
        self.sends = Sends(
            topics,
            GroupCreation(topics, groups, master=True, clock=lambda: 0.0),
            WritableAppender() if writable else ReadOnlyAppender("a slave"),
            cluster="Cluster",
            store_host=pack_host("127.0.0.1", 8091),
            clock=lambda: NOW,
        )
        self.context_seen = False

    def sample(self, create: Callable[[], str], ratio: float) -> None:
        self.sends.sampler = Sampler(create, ratio)

    def target(self, name: str) -> SendTarget | None:
        send = Send(V2_SENDS, name, [], PEER)
        checks.ADDRESSED.run(self.sends, send)
        return send.target

    def admit(self, name: str, special: Sequence[MessageExtras], *, plain: bool) -> SendTarget:
        """Run the checks of kinds for messages of which some are special."""
        send = Send(V2_SENDS, name, [], PEER)
        send.special = [(extras, b"") for extras in special]
        send.drafts = [RecordDraft(name, 0, b"", b"", 0, PEER, PEER)] * (len(special) + plain)
        checks.ADDRESSED.run(self.sends, send)
        checks.KINDS.run(self.sends, send)
        assert send.target is not None
        return send.target

    def queue(self, target: SendTarget, wanted: str | None, special: Sequence[MessageExtras] = ()) -> int:
        send = Send(V2_SENDS, target.topic.name, [], PEER)
        send.target = target
        send.special = [(extras, b"") for extras in special]
        if wanted is not None:
            send.queue, send.queue_text = wanted_queue(wanted)
        checks.QUEUE.run(self.sends, send)
        return send.queue_id


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, topics_of(tmp_path))


def draft(
    rig: Rig,
    *,
    body: bytes = b"hello",
    properties: dict[str, str] | None = None,
    message_id: str = "id",
    tag: str = "",
    keys: Sequence[str] = (),
    host_text: str = "",
    trace_context: str = "",
    sys_flag: int = 0,
    extras: MessageExtras | None = None,
) -> RecordDraft:
    users = properties or {}
    stored = {**users, "UNIQ_KEY": message_id, "CLUSTER": "", "BORN_TIMESTAMP": str(NOW - 5)}
    words = " ".join(filter(None, keys))
    named = {"TAGS": tag, "KEYS": words, "__BORNHOST": host_text, "TRACE_CONTEXT": trace_context}
    stored |= {name: value for name, value in named.items() if value}
    message = NewMessage("normal", body, NOW - 5, stored, sys_flag)
    compose(message, "Cluster")
    message.extras, message.users, message.keys, message.host = extras, users, keys, host_text
    send = Send(V2_SENDS, "normal", [message], PEER)
    send.queue_id = 0
    try:
        checks.MESSAGES.run(rig.sends, send)
    finally:
        rig.context_seen = send.context_seen
    return send.drafts[0]


def text_of(made: RecordDraft) -> list[tuple[str, str]]:
    pairs = made.properties.decode().split("\x02")
    assert pairs.pop() == ""
    return [(name, value) for name, _, value in (pair.partition("\x01") for pair in pairs)]


# The record


def test_message_becomes_a_record_with_its_properties_in_order(rig: Rig) -> None:
    made = draft(
        rig,
        properties={"own": "ü", "two": ""},
        tag="täg",
        keys=["k1", "", "k2"],
        host_text="vm",
        trace_context=CONTEXT,
        sys_flag=COMPRESSED,
    )
    assert text_of(made) == [
        ("own", "ü"),
        ("two", ""),
        ("UNIQ_KEY", "id"),
        ("CLUSTER", "Cluster"),
        ("BORN_TIMESTAMP", str(NOW - 5)),
        ("TAGS", "täg"),
        ("KEYS", "k1 k2"),
        ("__BORNHOST", "vm"),
        ("TRACE_CONTEXT", CONTEXT),
    ]
    assert made.keys == ("id", "k1", "k2")
    assert (made.topic, made.queue_id, made.body) == ("normal", 0, b"hello")
    assert (made.born_timestamp, made.born_host, made.sys_flag) == (NOW - 5, PEER, COMPRESSED)
    assert made.store_host == pack_host("127.0.0.1", 8091)
    assert made.tags_code == tags_code("täg")


def test_what_is_missing_leaves_no_property(rig: Rig) -> None:
    made = draft(rig, keys=[""])
    assert [name for name, _ in text_of(made)] == ["UNIQ_KEY", "CLUSTER", "BORN_TIMESTAMP"]
    assert (made.keys, made.tags_code) == (("id",), 0)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.9:5000", pack_host("10.0.0.9", 5000)),
        ("[::1]:5000", pack_host("::1", 5000)),
        ("unix:", bytes(8)),
        ("", bytes(8)),
    ],
)
def test_peer_becomes_a_born_host(peer: str, host: bytes) -> None:
    assert born_host_of(peer) == host


# The order of checks

# From the rule that comes first to the last one.
BROKEN: list[tuple[type[Exception], dict[str, Any]]] = [
    (MessageEmpty, {"body": b""}),
    (MessageTooLarge, {"body": bytes(BODY_BYTES_MAX + 1)}),
    (PropertiesTooLarge, {"properties": {f"k{n}": "v" for n in range(PROPERTIES_COUNT_MAX + 1)}}),
    (IllegalPropertyKey, {"properties": {"KEYS": "v"}}),
    (IllegalTag, {"tag": "a|b"}),
    (IllegalKey, {"keys": ["a b"]}),
    (PropertiesTooLarge, {"properties": {"k": "v" * PROPERTY_BYTES_MAX}}),
    (IllegalMessageId, {"message_id": " "}),
    (BadRequest, {"recovery_s": RECOVERY_MAX_S + 0.5}),
    (IllegalDeliveryTime, {"delivery_ms": NOW + DELIVERY_AHEAD_MAX_MS + 1}),
    (IllegalMessageGroup, {"message_group": "g" * 64}),
    (BadRequest, {"host_text": "a\x01"}),
]


def refused(rig: Rig, broken: dict[str, Any]) -> type[Exception]:
    fields = dict(broken)
    names = ("recovery_s", "delivery_ms", "message_group")
    extras = {name: fields.pop(name) for name in names if name in fields}
    with pytest.raises(WhimbrelError) as caught:
        draft(rig, **fields, extras=MessageExtras(**extras) if extras else None)
    return caught.type


@pytest.mark.parametrize("at", range(len(BROKEN)))
def test_each_rule_is_checked(rig: Rig, at: int) -> None:
    error, broken = BROKEN[at]
    assert refused(rig, broken) is error


@pytest.mark.parametrize("at", range(len(BROKEN)))
def test_earlier_rule_wins_over_all_that_follow(rig: Rig, at: int) -> None:
    error, broken = BROKEN[at]
    for _, later in BROKEN[at + 1 :]:
        both = {**later, **broken}
        if "properties" in broken and "properties" in later:
            both["properties"] = {**later["properties"], **broken["properties"]}
        assert refused(rig, both) is error


@pytest.mark.parametrize(
    "broken",
    [
        {"properties": {"": "v"}},
        {"properties": {"a": "b\x01c"}},
        {"properties": {"a\x85": "b"}},
    ],
)
def test_property_that_would_change_the_text_is_refused(rig: Rig, broken: dict[str, Any]) -> None:
    with pytest.raises(IllegalPropertyKey):
        draft(rig, **broken)


@pytest.mark.parametrize(
    "unusual",
    [
        {"body": bytes(BODY_BYTES_MAX)},
        {"properties": {"k": "v" * (PROPERTY_BYTES_MAX - 1)}},
        {"tag": "a\u2028b"},  # not printable, and no control character either
        {"extras": MessageExtras(delivery_ms=NOW + DELIVERY_AHEAD_MAX_MS)},
        {"extras": MessageExtras(recovery_s=RECOVERY_MAX_S)},
        {"extras": MessageExtras(message_group="g" * 63)},
    ],
)
def test_what_is_only_unusual_is_taken(rig: Rig, unusual: dict[str, Any]) -> None:
    assert draft(rig, **unusual).keys == ("id",)


# Topics, types and queues


def test_target_is_kept_until_its_topic_changes(rig: Rig) -> None:
    first = rig.target("normal")
    assert first is not None and (first.plain, first.queues) == (True, 2)
    assert rig.target("normal") is first
    rig.topics.put(TopicConfig(name="normal", permission=4))
    changed = rig.target("normal")
    assert changed is not None and changed is not first and changed.queues == 0
    with pytest.raises(Forbidden):
        rig.queue(changed, None)


@pytest.mark.parametrize("name", ["", "a b", "TBW102", "rmq_sys_x", "Cluster", "broker-a"])
def test_topics_that_no_client_sends_to_have_no_target(rig: Rig, name: str) -> None:
    with pytest.raises(IllegalTopic):
        rig.target(name)


def test_kept_targets_are_bounded(rig: Rig) -> None:
    topics = {f"t{n}": TopicConfig(name=f"t{n}") for n in range(TARGETS_MAX + 1)}
    rig.topics.rows = {**rig.topics.rows, **topics}
    for name in topics:
        assert rig.target(name) is not None
    assert len(rig.sends.targets.kept) == 1


def of_kinds(*kinds: MessageType) -> list[MessageExtras]:
    return [MessageExtras(kind=kind) for kind in kinds]


def test_topic_takes_messages_of_its_type_only(rig: Rig) -> None:
    for name in ("normal", "mixed"):
        assert rig.admit(name, [], plain=True).topic.name == name
    for name, kind in (("fifo", MessageType.FIFO), ("mixed", MessageType.DELAY)):
        assert rig.admit(name, of_kinds(kind), plain=False).topic.name == name
    with pytest.raises(MessageTypeConflict):
        rig.admit("fifo", [], plain=True)
    for name, kind in (
        ("normal", MessageType.FIFO),
        ("mixed", MessageType.LITE),
        ("mixed", MessageType.PRIORITY),
    ):
        with pytest.raises(MessageTypeConflict):
            rig.admit(name, of_kinds(kind), plain=False)


GROUPED = MessageExtras(kind=MessageType.FIFO, message_group="g")
DELAYED = MessageExtras(kind=MessageType.DELAY, delivery_ms=NOW + 1000)
PAST = MessageExtras(kind=MessageType.DELAY, delivery_ms=NOW - 1000)
BOTH = MessageExtras(kind=MessageType.DELAY, message_group="g", delivery_ms=NOW + 1000, mixed=True)
TRANSACTIONAL = MessageExtras(kind=MessageType.TRANSACTION)
GROUPED_TRANSACTIONAL = MessageExtras(kind=MessageType.TRANSACTION, message_group="g")
DELAYED_TRANSACTIONAL = MessageExtras(kind=MessageType.TRANSACTION, delivery_ms=NOW + 1000, mixed=True)
URGENT = MessageExtras(kind=MessageType.PRIORITY, priority=0)
LITE = MessageExtras(kind=MessageType.LITE)
TAKEN: dict[MessageType, list[MessageExtras | None]] = {
    MessageType.NORMAL: [None],
    MessageType.FIFO: [GROUPED],
    MessageType.DELAY: [DELAYED, PAST],
    MessageType.TRANSACTION: [TRANSACTIONAL, GROUPED_TRANSACTIONAL],
    MessageType.MIXED: [None, GROUPED, DELAYED, PAST, TRANSACTIONAL, GROUPED_TRANSACTIONAL],
    MessageType.PRIORITY: [URGENT],
    MessageType.LITE: [],
}
SENT = (
    None, GROUPED, DELAYED, PAST, BOTH, TRANSACTIONAL, GROUPED_TRANSACTIONAL, DELAYED_TRANSACTIONAL,
    URGENT, LITE,
)  # fmt: skip


@pytest.mark.parametrize("kind", list(MessageType))
@pytest.mark.parametrize("extras", SENT)
def test_message_is_taken_by_topics_of_its_type(
    rig: Rig, kind: MessageType, extras: MessageExtras | None
) -> None:
    """Checklist 76 and 79: every cell; None is a plain message. All that is refused has the code 40014."""
    rig.topics.put(TopicConfig(name="topic").with_type(kind))
    special = [] if extras is None else [extras]
    if extras in TAKEN[kind]:
        assert rig.admit("topic", special, plain=not special).topic.name == "topic"
    else:
        with pytest.raises(MessageTypeConflict) as caught:
            rig.admit("topic", special, plain=not special)
        assert caught.value.code == 40014


@pytest.mark.parametrize(
    ("takes", "kind", "way"),
    [
        (MessageType.FIFO, MessageType.NORMAL, "NORMAL: give it a message group"),
        (MessageType.DELAY, MessageType.NORMAL, "NORMAL: give it a time of delivery"),
        (MessageType.TRANSACTION, MessageType.NORMAL, "NORMAL: send it in a transaction"),
        (MessageType.PRIORITY, MessageType.NORMAL, "NORMAL: give it a priority"),
        (MessageType.LITE, MessageType.NORMAL, "NORMAL: send it to a topic of type NORMAL"),
        (MessageType.NORMAL, MessageType.DELAY, "DELAY: send it to a topic of type DELAY"),
        (MessageType.MIXED, MessageType.PRIORITY, "PRIORITY: send it to a topic of type PRIORITY"),
    ],
)
def test_refusal_of_a_type_says_what_to_do(rig: Rig, takes: MessageType, kind: MessageType, way: str) -> None:
    rig.topics.put(TopicConfig(name="topic").with_type(takes))
    special = [] if kind is MessageType.NORMAL else of_kinds(kind)
    with pytest.raises(MessageTypeConflict, match=f"and this one is {way}$"):
        rig.admit("topic", special, plain=not special)


def test_request_holds_messages_of_one_kind(rig: Rig) -> None:
    with pytest.raises(MessageTypeConflict, match="only one of"):
        rig.admit("mixed", [MessageExtras(kind=MessageType.DELAY, mixed=True)], plain=False)
    with pytest.raises(BadRequest, match="DELAY and FIFO messages"):
        rig.admit("mixed", of_kinds(MessageType.FIFO, MessageType.DELAY), plain=False)
    with pytest.raises(BadRequest, match="FIFO and NORMAL messages"):
        rig.admit("mixed", of_kinds(MessageType.FIFO), plain=True)
    with pytest.raises(BadRequest, match="one message of a transaction"):
        rig.admit("mixed", of_kinds(MessageType.TRANSACTION, MessageType.TRANSACTION), plain=False)


def test_a_digest_or_a_usual_message_group_costs_no_second_look(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked(*_: Any) -> None:
        raise AssertionError("the message is a plain one")

    monkeypatch.setattr(checks, "check_in_order", looked)
    plain = draft(rig)
    assert draft(rig, extras=MessageExtras(digest_kind=DigestKind.CRC32)) == plain
    draft(rig, extras=MessageExtras(kind=MessageType.FIFO, message_group="g"))
    for group in ("gé", "  ", "g\n", "g" * (MESSAGE_GROUP_BYTES_MAX + 1)):
        with pytest.raises(AssertionError):
            draft(rig, extras=MessageExtras(kind=MessageType.FIFO, message_group=group))


def test_priority_names_the_queue_up_to_the_last_one(rig: Rig) -> None:
    target = rig.target("normal")
    assert target is not None
    chosen = [
        rig.queue(target, None, [MessageExtras(kind=MessageType.PRIORITY, priority=priority)])
        for priority in (0, 1, 2, 9)
    ]
    assert chosen == [0, 1, 1, 1]


def test_group_of_a_transaction_chooses_its_queue_too(rig: Rig) -> None:
    target = rig.target("mixed")
    assert target is not None
    for kind in (MessageType.FIFO, MessageType.TRANSACTION):
        chosen = [rig.queue(target, None, [MessageExtras(kind=kind, message_group="用户")])] * 3
        assert chosen == [1, 1, 1]
    with pytest.raises(BadRequest, match="groups a and b"):
        rig.queue(target, None, [MessageExtras(message_group=name) for name in "ab"])


@pytest.mark.parametrize(
    ("extras", "text"),
    [
        (MessageExtras(kind=MessageType.FIFO, message_group="g"), "__SHARDINGKEY=g"),
        (MessageExtras(kind=MessageType.DELAY, delivery_ms=5), "TIMER_DELIVER_MS=5"),
        (MessageExtras(kind=MessageType.DELAY), "TIMER_DELIVER_MS=0"),
        (MessageExtras(kind=MessageType.TRANSACTION), "TRAN_MSG=true PGROUP=t"),
        (
            MessageExtras(kind=MessageType.TRANSACTION, message_group="g", recovery_s=60.5),
            "__SHARDINGKEY=g TRAN_MSG=true PGROUP=t CHECK_IMMUNITY_TIME_IN_SECONDS=60",
        ),
        (MessageExtras(kind=MessageType.PRIORITY, priority=0), "_SYS_MSG_PRIORITY_=0"),
        (MessageExtras(digest_kind=DigestKind.CRC32), ""),
    ],
)
def test_special_messages_say_in_their_properties_what_they_are(extras: MessageExtras, text: str) -> None:
    shown = special_text("t", extras).replace("\x01", "=").replace("\x02", " ")
    assert shown.strip() == text


def test_send_creates_its_topic_only_where_topics_are_made_and_writes_taken(tmp_path: Path) -> None:
    def made_for(*, auto_create: bool, writable: bool = True) -> Rig:
        root = tmp_path / f"{auto_create}{writable}"
        return Rig(root, topics_of(root, auto_create=auto_create), writable=writable)

    closed, made = made_for(auto_create=False), made_for(auto_create=True)
    read_only = made_for(auto_create=True, writable=False)
    for one in (closed, made, read_only):
        assert one.target("fresh") is None
    with pytest.raises(TopicNotFound):
        closed.admit("fresh", [], plain=True)
    with pytest.raises(NotWritable):
        read_only.admit("fresh", [], plain=True)
    assert read_only.topics.get("fresh") is None
    assert made.admit("fresh", [], plain=True).topic is made.topics.get("fresh")
    assert (
        made.admit("later", of_kinds(MessageType.DELAY), plain=False).topic.message_type is MessageType.DELAY
    )
    with pytest.raises(MessageTypeConflict):
        made.admit("lite", of_kinds(MessageType.LITE), plain=False)


def test_requests_take_turns_unless_a_queue_is_wanted(rig: Rig) -> None:
    target = rig.target("normal")
    assert target is not None
    assert sorted(rig.queue(target, None) for _ in range(4)) == [0, 0, 1, 1]
    assert [rig.queue(target, wanted) for wanted in ("1", "1", "0")] == [1, 1, 0]
    for wanted in ("2", "-1", "x", ""):
        with pytest.raises(QueueNotFound, match="is not one of the 2 of normal"):
            rig.queue(target, wanted)


def test_each_topic_has_turns_of_its_own(rig: Rig) -> None:
    used: dict[str, set[int]] = {"normal": set(), "mixed": set()}
    for _ in range(4):
        for name, queues in used.items():
            target = rig.target(name)
            assert target is not None
            queues.add(rig.queue(target, None))
    assert used == {"normal": {0, 1}, "mixed": {0, 1}}


def test_topics_that_are_created_or_not_plain_take_turns_too(tmp_path: Path) -> None:
    rig = Rig(tmp_path, topics_of(tmp_path, auto_create=True))
    for name in ("fresh", "mixed"):
        queues = rig.admit(name, [], plain=True).queues
        chosen = [rig.queue(rig.admit(name, [], plain=True), None) for _ in range(queues)]
        assert sorted(chosen) == list(range(queues))


# Digests


@pytest.mark.parametrize(
    ("kind", "checksum"),
    [
        (DigestKind.CRC32, "3610A686"),
        (DigestKind.CRC32, "003610a686"),
        (DigestKind.MD5, "5d41402abc4b2a76b9719d911017c592"),
        (DigestKind.SHA1, sha1(b"hello").hexdigest()),
    ],
)
def test_digests_are_compared(kind: DigestKind, checksum: str) -> None:
    check_digest(kind, checksum, b"hello")
    with pytest.raises(MessageCorrupted):
        check_digest(kind, checksum, b"hallo")


# Trace contexts


def test_without_tracing_no_message_gets_a_context(rig: Rig) -> None:
    assert "TRACE_CONTEXT" not in dict(text_of(draft(rig, properties={"traceparent": CONTEXT})))
    assert not rig.context_seen


@pytest.mark.parametrize(
    ("fields", "ratio", "stored", "seen"),
    [
        ({}, 1.0, "ours", True),
        ({}, 0.0, None, False),
        ({"trace_context": CONTEXT}, 1.0, CONTEXT, True),
        ({"properties": {"traceparent": CONTEXT}}, 1.0, None, True),
    ],
)
def test_messages_without_a_context_are_sampled(
    rig: Rig, fields: dict[str, Any], ratio: float, stored: str | None, seen: bool
) -> None:
    rig.sample(lambda: "ours", ratio)
    found = dict(text_of(draft(rig, **fields))).get("TRACE_CONTEXT")
    assert (found, rig.context_seen) == (stored, seen)


def test_context_that_does_not_fit_is_left_out(rig: Rig) -> None:
    rig.sample(lambda: "c" * PROPERTIES_BYTES_MAX, 1.0)
    assert "TRACE_CONTEXT" not in dict(text_of(draft(rig)))
    assert not rig.context_seen
