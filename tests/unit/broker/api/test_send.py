"""SendMessage: the codes of bad input, in RocketMQ's order, and the record that a good message becomes."""

from collections.abc import Sequence
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest

from support.cluster.broker_api import as_messages
from whimbrel.broker.api.message_codec import delivered
from whimbrel.broker.api.response_bytes import send_answer
from whimbrel.broker.api.send import SendService
from whimbrel.broker.engine.send import Sends
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.deferred import Deferred
from whimbrel.errors import NotWritable, WhimbrelError
from whimbrel.model.limits import SEND_MESSAGES_MAX, TIME_MS_MAX
from whimbrel.model.topic import MessageType, TopicConfig
from whimbrel.pb import Timestamp
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.responses import OK
from whimbrel.store.codec import RecordDraft, decode_record, encode_record, pack_host

NOW = 1_800_000_000_000


class Place:
    def __init__(self, offset: int) -> None:
        self.queue_offset = offset
        self.end = offset * 10


class FakeAppender:
    def __init__(self) -> None:
        self.waits = False
        self.refusal = ""
        self.drafts: list[RecordDraft] = []
        self.answer_waiting: Any = None

    def check_writable(self) -> None:
        if self.refusal:
            raise NotWritable(self.refusal)

    def append(self, drafts: Sequence[RecordDraft]) -> list[Place]:
        self.check_writable()
        start = len(self.drafts)
        self.drafts += drafts
        return [Place(start + at) for at in range(len(drafts))]

    def when_durable(self, end: int, answer: Any) -> None:
        self.answer_waiting = answer


class Rig:
    def __init__(self, tmp_path: Path, *, auto_create: bool = False) -> None:
        self.topics = TopicTable(
            tmp_path, cluster="Cluster", broker_name="broker-a", auto_create=auto_create, clock=lambda: NOW
        )
        for kind in (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.MIXED):
            self.topics.add(TopicConfig(name=kind.lower(), read_queues=2, write_queues=2).with_type(kind))
        self.appender = FakeAppender()
        groups = GroupTable(tmp_path, auto_create=auto_create, clock=lambda: NOW)
        sends = Sends(
            self.topics,
            GroupCreation(self.topics, groups, master=True, clock=lambda: 0.0),
            self.appender,  # type: ignore[arg-type]
            cluster="Cluster",
            store_host=pack_host("127.0.0.1", 8091),
            clock=lambda: NOW,
        )
        self.service = SendService(sends, lambda: NOW)

    def send(self, *messages: Any, headers: dict[str, str] | None = None) -> Any:
        call = Call("m", "10.0.0.9:5000", headers or {}, None)
        response = self.service.send(call, messaging.SendMessageRequest(messages=messages))
        if isinstance(response, Deferred):
            return response
        return as_messages(messaging.SendMessageResponse, [response])[0]

    def code(self, *messages: Any, headers: dict[str, str] | None = None) -> int:
        """Return the code of a refused send; nothing may have been stored."""
        before = len(self.appender.drafts)
        with pytest.raises(WhimbrelError) as caught:
            self.send(*messages, headers=headers)
        assert len(self.appender.drafts) == before
        return caught.value.code


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def message(topic: str = "normal", body: bytes = b"hello", **system: Any) -> Any:
    built = v2.Message(body=body)
    built.topic.name = topic
    properties = system.pop("properties", {})
    built.user_properties.update(properties)
    due = system.pop("due_s", None)
    recovery = system.pop("recovery_s", None)
    built.system_properties.MergeFrom(
        v2.SystemProperties(**{"message_id": "01" * 17, "body_encoding": 1, **system})
    )
    if due is not None:
        built.system_properties.delivery_timestamp.seconds = due
    if recovery is not None:
        built.system_properties.orphaned_transaction_recovery_duration.seconds = recovery
    return built


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (message(topic="a b"), 40002),
        (message(topic=""), 40002),
        (message(topic="rmq_sys_x"), 40002),
        (message(topic="TBW102"), 40002),
        (message(topic="Cluster"), 40002),
        (message(body=b""), 41302),
        (message(body=b"x" * 4_194_305), 41301),
        (message(properties={f"k{n}": "v" for n in range(129)}), 43101),
        (message(properties={"KEYS": "v"}), 40007),
        (message(properties={"a": "b\x01c"}), 40007),
        (message(properties={"a\x85": "b"}), 40007),
        (message(properties={"": "b"}), 40007),
        (message(tag="a|b"), 40004),
        (message(tag="  "), 40004),
        (message(tag="a\x02"), 40004),
        (message(keys=["  "]), 40005),
        (message(keys=["a b"]), 40005),
        (message(keys=["a\n"]), 40005),
        (message(properties={"k": "v" * 16_384}), 43101),
        (message(tag="é" * 8193), 43101),
        (message(message_id="  "), 40009),
        (message(message_id=""), 40009),
        (message(message_id="a\x01"), 40009),
        (message(recovery_s=3601), 40000),
        (message(topic="delay", due_s=NOW // 1000 + 25 * 3600), 40012),
        (message(topic="fifo", message_group="g" * 64), 40006),
        (message(topic="fifo", message_group="  "), 40006),
        (message(message_group="g"), 40014),
        (message(topic="fifo"), 40014),
        (message(topic="mixed", lite_topic="l"), 40014),
        (message(topic="mixed", priority=0), 40014),
        (message(message_type=v2.TRANSACTION), 40014),
        (message(topic="delay", due_s=1), 50100),
        (message(topic="mixed", message_type=v2.TRANSACTION), 50100),
        (message(topic="unknown"), 40402),
        (message(body_digest=v2.Digest(type=v2.MD5, checksum="00")), 40016),
        (message(properties={"REPLAYED_FROM": "broker:topic:0:9"}), 40007),
        (message(born_host="a\x01"), 40000),
        (message(born_timestamp={"seconds": 253_402_300_800}), 40000),
        (message(born_timestamp={"seconds": 1 << 62}), 40000),
        (message(born_timestamp={"seconds": -1}), 40000),
    ],
)
def test_bad_message_has_its_code(rig: Rig, bad: Any, code: int) -> None:
    assert rig.code(bad) == code


def test_messages_of_a_group_go_to_its_queue_whatever_the_client_wishes(rig: Rig) -> None:
    """Checklist 2: one queue, and the group in each record."""
    for _ in range(4):
        rig.send(message("fifo", message_group="用户"), headers={"whimbrel-queue-id": "0"})
    rig.send(*[message("fifo", message_group="order-1")] * 3)
    assert [draft.queue_id for draft in rig.appender.drafts] == [1, 1, 1, 1, 0, 0, 0]
    texts = [draft.properties.decode() for draft in rig.appender.drafts]
    assert all("__SHARDINGKEY\x01用户\x02" in text for text in texts[:4])


def test_a_request_holds_messages_of_one_group(rig: Rig) -> None:
    assert rig.code(message("fifo", message_group="a"), message("fifo", message_group="b")) == 40000


def test_earlier_rule_wins_when_several_are_broken(rig: Rig) -> None:
    assert rig.code(message(tag="a|b", keys=["a b"], message_id="", properties={"KEYS": "v"})) == 40007
    assert rig.code(message(body=b"", tag="a|b")) == 41302
    assert rig.code(message(topic="unknown", message_id="")) == 40009
    assert rig.code(message(message_id="", message_group="g")) == 40009


def test_empty_requests_and_mixed_topics_are_corrupt(rig: Rig) -> None:
    assert rig.code() == 40016
    assert rig.code(message(), message("fifo")) == 40016


def test_messages_in_a_request_are_bounded(rig: Rig) -> None:
    assert rig.code(*[message()] * (SEND_MESSAGES_MAX + 1)) == 40000
    assert len(rig.send(*[message()] * SEND_MESSAGES_MAX).entries) == SEND_MESSAGES_MAX


def test_last_born_time_that_sdks_can_read_is_stored(rig: Rig) -> None:
    rig.send(message(born_timestamp={"seconds": 253_402_300_799, "nanos": 999_999_999}))
    assert rig.appender.drafts[0].born_timestamp == TIME_MS_MAX


def test_one_bad_message_rejects_the_whole_request(rig: Rig) -> None:
    assert rig.code(message(), message(message_id="")) == 40009


def test_topic_without_writable_queues_is_forbidden(rig: Rig) -> None:
    rig.topics.add(TopicConfig(name="closed", permission=4))
    assert rig.code(message("closed")) == 40300


def test_body_of_exactly_four_mebibytes_is_taken(rig: Rig) -> None:
    assert rig.send(message(body=b"x" * 4_194_304)).status.code == v2.OK


@pytest.mark.parametrize(
    "digest",
    [
        v2.Digest(type=v2.MD5, checksum=md5(b"hello").hexdigest()),
        v2.Digest(type=v2.CRC32, checksum="3610A686"),
        v2.Digest(type=v2.SHA1, checksum="AAF4C61DDCC5E8A2DABEDE0F3B482CD9AEA9434D"),
    ],
)
def test_right_digests_are_taken(rig: Rig, digest: Any) -> None:
    assert rig.send(message(body_digest=digest)).status.code == v2.OK


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 16_383, 16_384, 2**31, 2**63 - 1])
@pytest.mark.parametrize("id_bytes", [1, 127, 128, 255])
def test_answer_is_what_the_library_would_write(offset: int, id_bytes: int) -> None:
    drafts: Any = [RecordDraft("t", 0, b"", b"", 0, b"", b"", keys=("i" * id_bytes, "k")) for _ in range(3)]
    places = [Place(offset) for _ in drafts]
    wanted = messaging.SendMessageResponse(status=OK)
    for _ in drafts:
        wanted.entries.add(status=OK, message_id="i" * id_bytes, offset=offset)
    found = send_answer(drafts, places)
    assert found.SerializeToString() == wanted.SerializeToString()
    assert found.status.code == v2.OK


def test_batch_answers_one_entry_a_message_in_one_queue(rig: Rig) -> None:
    response = rig.send(*(message(message_id=f"id-{n}") for n in range(3)))
    assert [entry.message_id for entry in response.entries] == ["id-0", "id-1", "id-2"]
    assert [entry.offset for entry in response.entries] == [0, 1, 2]
    assert {entry.status.code for entry in response.entries} == {v2.OK}
    assert len({draft.queue_id for draft in rig.appender.drafts}) == 1


def test_requests_take_turns_over_the_queues(rig: Rig) -> None:
    for _ in range(4):
        rig.send(message())
    assert sorted(draft.queue_id for draft in rig.appender.drafts) == [0, 0, 1, 1]


def test_our_client_may_name_the_queue(rig: Rig) -> None:
    rig.send(message(), headers={"whimbrel-queue-id": "1"})
    rig.send(message(), headers={"whimbrel-queue-id": "1"})
    assert [draft.queue_id for draft in rig.appender.drafts] == [1, 1]
    assert rig.code(message(), headers={"whimbrel-queue-id": "2"}) == 40000
    assert rig.code(message(), headers={"whimbrel-queue-id": "x"}) == 40000


def test_send_creates_its_topic_where_that_is_switched_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, auto_create=True)
    assert rig.send(message("fresh")).status.code == v2.OK
    made = rig.topics.get("fresh")
    assert made is not None and made.message_type is MessageType.NORMAL
    assert rig.code(message("other", lite_topic="g")) == 40014


def test_broker_that_takes_no_writes_says_so_of_every_kind(rig: Rig) -> None:
    rig.topics.put(TopicConfig(name="any").with_type(MessageType.MIXED))
    rig.appender.refusal = "a slave"
    half, due = {"message_type": v2.TRANSACTION}, {"delivery_timestamp": Timestamp(seconds=5)}
    codes = [rig.code(message("any", **system)) for system in ({}, half, due, {"message_group": "g"})]
    assert codes == [50001] * 4


def test_broker_that_takes_no_writes_creates_no_topic(tmp_path: Path) -> None:
    rig = Rig(tmp_path, auto_create=True)
    rig.appender.refusal = "a slave"
    assert rig.code(message("fresh")) == 50001
    assert rig.topics.get("fresh") is None


def test_durable_send_is_answered_later_with_its_error(rig: Rig) -> None:
    from whimbrel.errors import ReplicaTimeout

    rig.appender.waits = True
    deferred = rig.send(message())
    assert isinstance(deferred, Deferred) and not deferred.done
    rig.appender.answer_waiting(ReplicaTimeout("late"))
    response: Any = deferred.result
    assert response.status.code == response.entries[0].status.code == v2.SLAVE_PERSISTENCE_TIMEOUT
    assert response.entries[0].message_id == "01" * 17


def test_message_comes_back_as_it_was_sent(rig: Rig) -> None:
    sent = message(
        body=b"\x00zip",
        tag="täg",
        keys=["k1", "", "k2"],
        born_host="vm",
        body_encoding=v2.GZIP,
        trace_context="00-ab",
        properties={"own": "value", "two": "ü 漢"},
    )
    sent.system_properties.born_timestamp.seconds = 1_700_000_000
    sent.system_properties.born_timestamp.nanos = 123_000_000
    rig.send(sent)
    draft = rig.appender.drafts[0]
    assert draft.keys == ("01" * 17, "k1", "k2")
    stored = decode_record(encode_record(draft, physical_offset=0, queue_offset=7, store_timestamp=NOW))
    assert stored.properties == {
        "own": "value",
        "two": "ü 漢",
        "UNIQ_KEY": "01" * 17,
        "CLUSTER": "Cluster",
        "TAGS": "täg",
        "KEYS": "k1 k2",
        "__BORNHOST": "vm",
        "BORN_TIMESTAMP": "1700000000123",
        "TRACE_CONTEXT": "00-ab",
    }
    assert (stored.born_host, stored.store_host, stored.sys_flag) == ("10.0.0.9:5000", "127.0.0.1:8091", 1)
    got = delivered(stored, namespace="ns", receipt_handle="h", attempt=2)
    system = got.system_properties
    assert (got.topic.name, got.topic.resource_namespace) == ("normal", "ns")
    assert got.body == b"\x00zip" and dict(got.user_properties) == {"own": "value", "two": "ü 漢"}
    assert (system.tag, list(system.keys), system.message_id) == ("täg", ["k1", "k2"], "01" * 17)
    assert system.body_digest.type == v2.MD5
    assert system.body_digest.checksum == md5(b"\x00zip").hexdigest().upper()
    assert (system.body_encoding, system.message_type) == (v2.GZIP, v2.NORMAL)
    assert (system.queue_offset, system.delivery_attempt, system.receipt_handle) == (7, 2, "h")
    assert system.born_timestamp == sent.system_properties.born_timestamp
    assert (system.born_host, system.trace_context) == ("vm", "00-ab")
    assert system.store_timestamp.seconds * 1000 == NOW


def test_record_equals_what_rocketmq_stores_for_the_same_message_but_for_its_bookkeeping(rig: Rig) -> None:
    from support.store.goldens import rows

    row = next(row for row in rows("v533-basic", "record") if row["topic"] == "FiveTopicNormal")
    sent = message(
        body=b"x",
        message_id=row["uniqKey"],
        tag=row["properties"]["TAGS"],
        keys=row["properties"]["KEYS"].split(),
        born_host=row["properties"]["__BORNHOST"],
        properties={"own": row["properties"]["own"]},
    )
    sent.system_properties.born_timestamp.seconds = row["bornTimestamp"] // 1000
    sent.system_properties.born_timestamp.nanos = row["bornTimestamp"] % 1000 * 1_000_000
    rig.send(sent)
    stored = decode_record(
        encode_record(rig.appender.drafts[0], physical_offset=0, queue_offset=0, store_timestamp=NOW)
    )
    left_out = {"PGROUP", "RECONSUME_TIME", "MSG_REGION", "TRACE_ON"}
    theirs = {key: value for key, value in row["properties"].items() if key not in left_out}
    assert {**stored.properties, "CLUSTER": "DefaultCluster"} == theirs
    assert stored.born_timestamp == row["bornTimestamp"]
