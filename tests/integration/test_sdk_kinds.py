"""RocketMQ's official SDKs, unmodified, with every kind of message: the cases that each of them can run.

Ordered, delayed, recalled, transactional and prioritised messages, and dead letters. The programs are those
of `test_sdks.py` (tests/sdks/README.md), and what an SDK lacks stands in the tables below. What messages
became is read with the client library, queue by queue. docs/sdks.md says what came out.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import Api
from support.systems.sdk_programs import LANGUAGES, DevCluster, Missing, Program, prepare
from support.waiting import until
from whimbrel.broker.produce.placement import owner_of_group
from whimbrel.client import MessageType, ReceivedMessage
from whimbrel.client.sync import Admin, PullConsumer
from whimbrel.errors import BadRequest, TopicNotFound
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.process

WITHOUT_PUSH = ("rust",)
WITHOUT_RECALL = ("rust",)
WITHOUT_PRIORITY = ("rust",)
WITHOUT_PRIORITY_0 = ("nodejs",)  # it takes 0 for none, and refuses the message
SECONDS_ONLY = ("python", "rust")  # of delivery times; their programs round up

QUEUES = 4
PLACES = {"order-1": 3, "a": 0, "g4": 1}  # of message groups, on four queues, by RocketMQ's function
DELAY_MS = 3000
LATE_S = 1.2  # at most; then comes what the SDK needs to receive it
POLL_S = 10.0
ASKED_S = 120.0  # a transaction is old enough for a check after 6 s, and rounds are half a minute apart


def languages(*quick: str, without: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """Run a case with every SDK that can; those that are not named here only in the slow tests."""
    chosen = [
        pytest.param(name, marks=() if name in quick else pytest.mark.slow)
        for name in LANGUAGES
        if name not in without
    ]
    return pytest.mark.parametrize("language", chosen, indirect=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """A cluster for all cases; what it has acknowledged is on its slave."""
    with DevCluster(tmp_path_factory.mktemp("kinds") / "dev", "--replication", "sync") as running:
        yield running


def make(cluster: DevCluster, topic: str, kind: MessageType) -> str:
    """Make a topic; return its name."""
    with Admin(cluster.endpoint) as admin:
        admin.create_topic(topic, message_type=kind, queues=QUEUES)
    return topic


def make_group(cluster: DevCluster, name: str, *, fifo: bool = False, max_attempts: int = 0) -> str:
    """Make a group; return its name."""
    with Admin(cluster.endpoint) as admin:
        admin.create_group(name, fifo=fifo, max_attempts=max_attempts)
    return name


def stored(cluster: DevCluster, topic: str) -> list[ReceivedMessage]:
    """Return all messages of a topic, queue by queue; none where it does not exist."""
    found: list[ReceivedMessage] = []
    with PullConsumer(cluster.endpoint, "kinds-reader") as reader:
        try:
            for queue in reader.queues(topic):  # also where a first send would make it
                begin, end = reader.offset(queue, "earliest"), reader.offset(queue, "latest")
                found += reader.stream(queue, begin, until=end) if begin < end else ()
        except TopicNotFound:
            return []
    return found


def send(language: str, role: str, endpoint: str, topic: str, prefix: str, count: int, words: str) -> Program:
    """Run a producer to its end; all that it sent was acknowledged."""
    with Program(language, role, endpoint, topic, prefix, count, words) as producer:
        producer.wait_ended()
        assert producer.bodies("sent") == [f"{prefix}-{n}" for n in range(count)], producer.lines
        return producer


@languages("nodejs", "go")
def test_message_groups_go_to_the_queues_that_rocketmq_chooses(language: str, cluster: DevCluster) -> None:
    """Checklist 1 and 2: `order-1`, `a` and `g4` go to queues 3, 0 and 1 of four, each in the order of
    sending."""
    topic = make(cluster, f"ordered-{language}", MessageType.FIFO)
    groups = list(PLACES)
    send(language, "fifo", cluster.endpoint, topic, "m", 60, ",".join(groups))
    messages = stored(cluster, topic)
    assert {message.message_group: message.queue_id for message in messages} == PLACES
    for number, group in enumerate(groups):
        own = [message for message in messages if message.message_group == group]
        assert [message.body.decode() for message in own] == [f"m-{n}" for n in range(number, 60, 3)]
        assert [message.queue_offset for message in own] == list(range(20))
        assert {message.type for message in own} == {MessageType.FIFO}


@pytest.mark.parametrize("sdks", [("java", "python"), pytest.param(LANGUAGES, marks=pytest.mark.slow)])
def test_message_groups_have_one_queue_on_two_brokers_whoever_sends(
    sdks: tuple[str, ...], tmp_path: Path
) -> None:
    """Checklist 3: Java's, Python's and other SDKs, and a client that chooses a broker freely, as C# does."""
    try:
        for language in sdks:
            prepare(language)
    except Missing as error:
        pytest.skip(f"an SDK is missing: {error}")
    groups = (*PLACES, "g3", "group-17", "用户")
    with DevCluster(tmp_path / "dev", "--brokers", "2", "--slaves", "0") as cluster:
        topic = make(cluster, "ordered", MessageType.FIFO)
        described = [each for each in cluster.described()["processes"] if each["role"] == "master"]
        masters = {f"broker-{letter}": each["grpc"] for letter, each in zip("ab", described, strict=True)}
        shared = [Path(each["store"]) / "whimbrel" / "shared-topics.json" for each in described]
        until(lambda: all(path.exists() for path in shared), what="brokers to know of each other's queues")
        expected: dict[str, list[str]] = {group: [] for group in groups}
        for language in sdks:
            send(language, "fifo", cluster.endpoint, topic, language, 2 * len(groups), ",".join(groups))
            for number in range(2 * len(groups)):
                expected[groups[number % len(groups)]].append(f"{language}-{number}")
            for name, address in masters.items():
                with grpc.insecure_channel(address) as channel:
                    for group in groups:
                        text = f"{group} after {language} through {name}"
                        sent = Api(channel).send(
                            topic, text.encode(), message_type=v2.FIFO, message_group=group
                        )
                        assert sent.status.code == v2.OK, sent
                        expected[group].append(text)
        messages = stored(cluster, topic)
    owners = {group: owner_of_group(group, dict.fromkeys(masters, QUEUES)) for group in groups}
    assert {broker for broker, _ in owners.values()} == set(masters)
    for group, owner in owners.items():
        own = [message for message in messages if message.message_group == group]
        assert {(message.queue.broker_name, message.queue_id) for message in own} == {owner}
        assert [message.body.decode() for message in own] == expected[group]


@languages("nodejs")
def test_ordered_group_gets_message_groups_in_order(language: str, cluster: DevCluster) -> None:
    """Checklist 2 and 4: an ordered group's consumer gets each message group in order, and each message
    once."""
    topic = make(cluster, f"in-order-{language}", MessageType.FIFO)
    group = make_group(cluster, f"{topic}-g", fifo=True)
    role = "simple" if language in WITHOUT_PUSH else "push"
    with Program(language, role, cluster.endpoint, topic, group, "*") as consumer:
        consumer.wait_ready()
        send(language, "fifo", cluster.endpoint, topic, "m", 40, "one,two")
        consumer.wait_bodies("got", {f"m-{n}" for n in range(40)})
        consumer.end()
    named = {body: group for body, group, *_ in consumer.of("also")}
    for group, first in (("one", 0), ("two", 1)):
        own = [body for body in consumer.bodies("got") if named[body] == group]
        assert own == [f"m-{n}" for n in range(first, 40, 2)]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fifo", [False, True], ids=["unordered", "ordered"])
@languages(without=WITHOUT_PUSH)
def test_message_that_always_fails_becomes_one_dead_letter(
    language: str, fifo: bool, cluster: DevCluster
) -> None:
    """Checklist 13 and 57: one copy in the dead-letter topic, and the messages behind it are consumed."""
    topic = make(cluster, f"dead-{language}-{fifo}", MessageType.FIFO if fifo else MessageType.NORMAL)
    group = make_group(cluster, f"{topic}-g", fifo=fifo, max_attempts=2)
    role, words = ("fifo", "one") if fifo else ("produce", "0")
    with Program(language, "push", cluster.endpoint, topic, group, "*") as consumer:
        consumer.wait_ready()
        send(language, role, cluster.endpoint, topic, "dead", 1, words)
        send(language, role, cluster.endpoint, topic, "m", 3, words)
        consumer.wait_bodies("got", {"dead-0", "m-0", "m-1", "m-2"}, timeout=90)
        letters: list[ReceivedMessage] = []

        def one_letter() -> bool:
            try:
                letters[:] = stored(cluster, f"%DLQ%{group}")
            except BadRequest:  # just made: its route was that of a topic yet to be made, with more queues
                return False
            return bool(letters)

        until(one_letter, timeout=90, what=lambda: f"a dead letter; {consumer.lines[-8:]}", every_s=0.5)
        consumer.end()
    # Python's SDK 5.1.2 repeats an ordered message by itself, and still reports attempt 1.
    attempts = ["1", "1"] if fifo and language == "python" else ["1", "2"]
    assert [line[2] for line in consumer.of("got") if line[0] == "dead-0"] == attempts, consumer.lines
    (letter,) = stored(cluster, f"%DLQ%{group}")
    (sent,) = (message for message in stored(cluster, topic) if message.body == b"dead-0")
    assert (letter.body, letter.message_id) == (b"dead-0", sent.message_id)
    assert (letter.tag, sorted(letter.keys)) == ("a", ["dead", "key-0"])
    assert letter.properties["own"] == "value-0"


@languages("nodejs")
def test_delayed_message_comes_when_it_is_due(language: str, cluster: DevCluster) -> None:
    """Checklist 21: 3 s later, not before and at most 1.2 s after; with its type and its time.

    A consumer asks one queue after the other, each for POLL_S: it may be at another broker's when one is due.
    """
    topic = make(cluster, f"delayed-{language}", MessageType.DELAY)
    with Program(language, "simple", cluster.endpoint, topic, f"{topic}-g", "*") as consumer:
        consumer.wait_ready()
        began_ms = time.time() * 1000
        send(language, "delay", cluster.endpoint, topic, "m", 3, str(DELAY_MS))
        sent_ms = time.time() * 1000
        consumer.wait_bodies("acked", {f"m-{n}" for n in range(3)})
        epoch_s = time.time() - time.monotonic()
        arrived_s = {
            line[1]: when + epoch_s
            for line, when in zip(consumer.lines, consumer.times, strict=True)
            if line[0] == "got"
        }
        due_s = {body: int(due) / 1000 for body, _, due, _ in consumer.of("also")}
        consumer.end()
    assert sorted(consumer.bodies("got")) == [f"m-{n}" for n in range(3)]
    polls = max(1, QUEUES * (cluster.masters - 1))
    for body, due in due_s.items():
        room_ms = 1000 if language in SECONDS_ONLY else 1
        assert began_ms + DELAY_MS - 1 <= due * 1000 <= sent_ms + DELAY_MS + room_ms
        assert 0 <= arrived_s[body] - due <= LATE_S + POLL_S * polls
    for message in stored(cluster, topic):
        assert message.type is MessageType.DELAY
        assert message.stored_at is not None and message.deliver_at is not None
        assert 0 <= message.stored_at - message.deliver_at <= LATE_S
    assert len(due_s) == 3


@languages("go", without=WITHOUT_RECALL)
def test_recalled_message_never_comes(language: str, cluster: DevCluster) -> None:
    """Checklist 37 and 39: recalled where the SDK asks (the nameserver, or a broker); the others come."""
    topic = make(cluster, f"recalled-{language}", MessageType.DELAY)
    sent = send(language, "delay", cluster.endpoint, topic, "m", 3, "8000")
    handles = {body: handle for body, handle in sent.of("handle")}
    ids = {body: message_id for body, message_id, _ in sent.of("sent")}
    assert set(handles) == {"m-0", "m-1", "m-2"}
    with Program(
        language, "recall", cluster.endpoint, topic, f"{handles['m-0']},{handles['m-2']}"
    ) as recaller:
        recaller.wait_ended()
        assert recaller.of("recalled") == [(handles["m-0"], ids["m-0"]), (handles["m-2"], ids["m-2"])]
    with Program(language, "simple", cluster.endpoint, topic, f"{topic}-g", "*") as consumer:
        consumer.wait_bodies("acked", {"m-1"})
        send(language, "delay", cluster.endpoint, topic, "last", 1, "1000")  # due after them all
        consumer.wait_bodies("acked", {"last-0"})
        consumer.end()
    assert sorted(consumer.bodies("got")) == ["last-0", "m-1"]


@languages("nodejs", "go")
def test_committed_messages_come_once_and_rolled_back_ones_never(language: str, cluster: DevCluster) -> None:
    """Checklist 41 and 42."""
    topic = make(cluster, f"paid-{language}", MessageType.TRANSACTION)
    endpoint = cluster.endpoint
    with Program(language, "transact", endpoint, topic, "m", 4, "commit,rollback", "unknown") as producer:
        producer.wait_bodies("ended", {f"m-{n}" for n in range(4)})
        producer.end()
        assert producer.of("ended") == [(f"m-{n}", ("commit", "rollback")[n % 2]) for n in range(4)]
        assert producer.of("failed") == []
    with Program(language, "simple", cluster.endpoint, topic, f"{topic}-g", "*") as consumer:
        consumer.wait_bodies("acked", {"m-0", "m-2"})
        consumer.end()
    assert sorted(consumer.bodies("got")) == ["m-0", "m-2"]
    messages = stored(cluster, topic)
    assert sorted(message.body for message in messages) == [b"m-0", b"m-2"]
    assert {message.type for message in messages} == {MessageType.TRANSACTION}


@pytest.mark.slow
@pytest.mark.timeout(300)
@languages()
def test_producer_is_asked_about_a_transaction_that_it_left_open(language: str, cluster: DevCluster) -> None:
    """Checklist 45: it is asked, and its answer counts."""
    topic = make(cluster, f"open-{language}", MessageType.TRANSACTION)
    endpoint = cluster.endpoint
    with (
        Program(language, "simple", cluster.endpoint, topic, f"{topic}-g", "*") as consumer,
        Program(language, "transact", endpoint, topic, "kept", 1, "leave", "commit") as committing,
    ):
        committing.wait_bodies("checked", {"kept-0"}, timeout=ASKED_S)
        consumer.wait_bodies("acked", {"kept-0"})
        committing.end()
        with Program(language, "transact", endpoint, topic, "gone", 1, "leave", "rollback") as refusing:
            refusing.wait_bodies("checked", {"gone-0"}, timeout=ASKED_S)
            refusing.end()
        with Program(language, "transact", endpoint, topic, "last", 1, "commit", "unknown") as producer:
            producer.wait_bodies("ended", {"last-0"})
            producer.end()
        consumer.wait_bodies("acked", {"last-0"})
        consumer.end()
    assert sorted(consumer.bodies("got")) == ["kept-0", "last-0"]


@languages("nodejs", "go", without=WITHOUT_PRIORITY)
def test_priorities_choose_the_queue(language: str, cluster: DevCluster) -> None:
    """Checklist 77: priorities 0 3 1 9 2 go to queues 0 3 1 3 2 of four."""
    topic = make(cluster, f"urgent-{language}", MessageType.PRIORITY)
    priorities = [4 if language in WITHOUT_PRIORITY_0 else 0, 3, 1, 9, 2]
    send(language, "priority", cluster.endpoint, topic, "m", 5, ",".join(map(str, priorities)))
    places = {message.body.decode(): message.queue_id for message in stored(cluster, topic)}
    assert places == {f"m-{n}": min(priority, QUEUES - 1) for n, priority in enumerate(priorities)}
