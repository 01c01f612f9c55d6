"""A store of ours in the hands of real RocketMQ, and back: nothing is lost, and offsets go on.

Our broker writes a store and is stopped, or killed. RocketMQ's own store classes then read out of a copy what
we say is in it; a real broker opens another copy, serves all of it and appends; and ours takes that one over
again.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api, message, queue
from support.cluster.processes import Process
from support.systems.real_broker import Remoting, Server, broker, free_port, kit, name_server, need_kit
from support.waiting import until
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store import jsonconfig
from whimbrel.store.codec import decode_record
from whimbrel.store.inspect import dump_queues, dump_records, query_index
from whimbrel.store.verify import verify

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

VERSIONS = ("4.9.3", "5.3.3")
TOPICS = {"alpha": 4, "beta": 1, "gamma": 2}  # with their queues
GROUP = "readers"
OURS: dict[str, object] = {
    "commitlog_file_size": 65_536,
    "consumequeue_file_size": 2000,
    "index_slots": 100,
    "index_entries": 400,
}
THEIRS: dict[str, object] = {
    "mappedFileSizeCommitLog": 65_536,
    "mappedFileSizeConsumeQueue": 2000,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
ROCKETMQS = {"abort", "checkpoint", "commitlog", "config", "consumequeue", "index", "lock"}
CONFIG = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
# Request codes of the remoting protocol.
QUERY_MESSAGE, QUERY_OFFSET, UPDATE_OFFSET, ALL_TOPICS, ALL_GROUPS = 12, 14, 15, 21, 201
MAX_OFFSET, MIN_OFFSET = 30, 31
CONSUMED_BY_THEM = 90  # where the group is in queue 0 of beta when the real broker ends

Key = tuple[str, int]
# What is compared of a message, wherever it comes from: offset, body, properties of the user's, tag, keys.
Content = tuple[int, bytes, str, str, tuple[str, ...]]


@dataclass(frozen=True)
class Written:
    """A store of ours at rest."""

    root: Path
    killed: bool
    messages: dict[Key, list[Content]]
    keys: tuple[tuple[str, str], ...]

    @property
    def count(self) -> int:
        """Return how many messages there are."""
        return sum(map(len, self.messages.values()))


def copied(source: Path, target: Path) -> Path:
    """Copy a store, holes and all, without the sockets of its processes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-r", "--sparse=always", source, target], check=True)
    for path in (target / "whimbrel").glob("*.sock"):
        path.unlink()
    return target


def fill(api: Api, first: int, count: int) -> list[tuple[str, str]]:
    """Send single messages and batches of many sizes to all topics; return topics and keys."""
    keys = []
    for number in range(first, first + count):
        topic = list(TOPICS)[number % len(TOPICS)]
        size = 4 if number % 50 == 7 else 1
        batch = []
        for part in range(size):
            key = f"k{number}-{part}"
            keys += [(topic, key), (topic, "shared")]
            text = f"{number}.{part}. ".encode() * (1 + number * 37 % 300)
            system = {
                "keys": [key, "shared"],
                "message_id": f"{number:032X}{part:02X}",
                "properties": {"number": str(number)},
            }
            batch.append(
                message(topic, text, **system, **({"tag": f"tag-{number % 3}"} if number % 4 else {}))
            )
        answer = api("SendMessage", messages=batch)
        assert answer.status.code == v2.OK, answer
        assert len(answer.entries) == size
    return keys


def pulled(address: str) -> dict[Key, list[Content]]:
    """Pull everything from a broker of ours."""
    found: dict[Key, list[Content]] = {}
    with grpc.insecure_channel(address) as channel:
        api = Api(channel)
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                messages: list[Content] = []
                found[topic, queue_id] = messages
                while True:
                    frames = api(
                        "PullMessage",
                        group=v2.Resource(name="TOOLS_CONSUMER"),
                        message_queue=queue(topic, queue_id),
                        offset=len(messages),
                        batch_size=32,
                    )
                    new = [frame.message for frame in frames if frame.WhichOneof("content") == "message"]
                    if not new:
                        break
                    messages += [content(got) for got in new]
    return found


def content(got: Any) -> Content:
    """Return what is compared of a message of the client API."""
    system = got.system_properties
    number = got.user_properties.get("number", "")
    return system.queue_offset, got.body, number, system.tag, tuple(system.keys)


def records(body: bytes) -> Iterator[Content]:
    """Give what is compared of the records in the answer to a remoting pull."""
    at = 0
    while at < len(body):
        record = decode_record(body, at)
        at += record.size
        properties = record.properties
        yield (
            record.queue_offset,
            record.body,
            properties.get("number", ""),
            properties.get("TAGS", ""),
            tuple(properties.get("KEYS", "").split()),
        )


@pytest.fixture(scope="module", params=["stopped", "killed"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp(request.param)
    settings: dict[str, object] = {"nameservers": "", **OURS}
    with Process(root, "broker", "broker", store=root / "store", **settings) as ours:
        with grpc.insecure_channel(ours.grpc) as channel:
            api = Api(channel)
            for topic, queues in TOPICS.items():
                made = admin.Topic(name=topic, read_queues=queues, write_queues=queues)
                api.administer("CreateTopic", topic=made)
            api.administer("CreateGroup", group=admin.Group(name=GROUP, max_attempts=5))
            keys = fill(api, 0, 600)
            for _ in range(4):
                taken = api.receive("alpha", GROUP, batch=16)
                assert api.ack("alpha", GROUP, *taken.handles).status.code == v2.OK
        assert ours.stop() == 0
        ours.start()
        with grpc.insecure_channel(ours.grpc) as channel:
            keys += fill(Api(channel), 600, 100)
        messages = pulled(ours.grpc)
        if request.param == "killed":
            ours.kill()
        else:
            assert ours.stop() == 0
    made_store = Written(root / "store", request.param == "killed", messages, tuple(dict.fromkeys(keys)))
    assert made_store.count == 700 + 3 * 14
    return made_store


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    need_kit()
    with name_server("4.9.3", tmp_path_factory.mktemp("names")) as server:
        yield server


def test_what_rocketmq_does_not_know_lies_in_one_directory(written: Written) -> None:
    there = {path.name for path in written.root.iterdir()}
    assert there - {"abort"} == ROCKETMQS - {"abort"} | {"whimbrel"}
    assert ("abort" in there) == written.killed
    config = {path.name.removesuffix(".bak") for path in (written.root / "config").iterdir()}
    assert config <= set(CONFIG)
    assert {"topics.json", "subscriptionGroup.json", "consumerOffset.json"} <= config
    for path in (written.root / "commitlog").iterdir():
        assert (len(path.name), path.stat().st_size) == (20, 65_536)
    for path in written.root.glob("consumequeue/*/*/*"):
        assert (len(path.name), path.stat().st_size) == (20, 2000)
    for path in (written.root / "index").iterdir():
        assert (len(path.name), path.stat().st_size) == (17, 40 + 100 * 4 + 400 * 20)


@pytest.mark.parametrize("version", VERSIONS)
def test_rocketmqs_store_classes_read_what_we_say(
    written: Written, version: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    need_kit()
    copy, out = copied(written.root, tmp_path / "store"), tmp_path / "dump.jsonl"
    sizes = [f"{name}={size}" for name, size in THEIRS.items()]
    program = "../golden/run-java"
    # A killed store is read as a starting broker does it: what it recovers is dispatched again.
    mode = "start" if written.killed else "load"
    kit(program, version, "StoreDump", copy, out, mode, *sizes, java_options=f"-Dkit.ha={free_port()}")
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in out.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        rows.setdefault(row["type"], []).append(row)
    assert rows["meta"][0]["abort"] == written.killed
    assert rows["loaded"][0]["ok"]
    ours = list(dump_records(written.root))
    assert rows["record"] == [row for row in ours if row["type"] == "record"]
    assert rows["blank"] == [row for row in ours if row["type"] == "blank"]
    assert len(rows["record"]) == written.count
    queues = [row for row in rows["queue"] if row["max"] > 0]
    assert queues == [row for row in dump_queues(written.root) if row["max"] > 0]
    found = {(row["topic"], row["key"]): row["phyOffsets"] for row in rows["query"]}
    if (
        written.killed
    ):  # where it indexes a record again of which an older file has some keys, it has them twice
        found = {pair: list(dict.fromkeys(offsets)) for pair, offsets in found.items()}
    wanted = {pair: list(query_index(written.root, *pair)) for pair in written.keys}
    assert all(wanted.values())
    whole = sum(found[pair] == wanted[pair] for pair in wanted)
    entries = sum(len(row["units"]) for row in queues)
    measured(
        f"{len(rows['record'])} records, {len(queues)} queues with {entries} "
        f"entries, {whole} of {len(wanted)} keys found by RocketMQ {version} as by us"
    )
    assert whole == len(wanted)


@pytest.mark.parametrize(
    ("written", "version"),
    [
        ("stopped", "4.9.3"),
        ("killed", "5.3.3"),
        pytest.param("stopped", "5.3.3", marks=pytest.mark.slow),
        pytest.param("killed", "4.9.3", marks=pytest.mark.slow),
    ],
    indirect=["written"],
)
def test_a_real_broker_takes_our_store_over_and_we_take_it_back(
    written: Written, version: str, names: Server, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    settings = {"brokerName": "broker-a"} | THEIRS
    real = broker(version, tmp_path / "real", "ASYNC_MASTER", names.address, **settings)
    store = copied(written.root, real.store)
    messages = {key: list(contents) for key, contents in written.messages.items()}
    with real:
        with Remoting(real.address) as client:
            check_config(client, store)
            for (topic, queue_id), contents in messages.items():
                where = {"topic": topic, "queueId": str(queue_id)}
                assert number_of(client, MAX_OFFSET, where) == len(contents)
                assert number_of(client, MIN_OFFSET, where) == 0
                assert theirs(client, topic, queue_id) == contents
                body = f"from RocketMQ {version}".encode()
                properties = "KEYS\x01theirs\x02TAGS\x01t\x02"
                offset = client.send(topic, body, properties, queue_id)
                assert offset == len(contents)
                contents.append((offset, body, "", "t", ("theirs",)))
                until(lambda: theirs(client, topic, queue_id) == contents, what="their own message")  # noqa: B023
            where = {"topic": "beta", "queueId": "0", "consumerGroup": GROUP}
            header, _ = client.call(UPDATE_OFFSET, where | {"commitOffset": str(CONSUMED_BY_THEM)})
            assert header["code"] == 0, header
            for topic, key in written.keys[:20]:
                assert found_by_key(client, topic, key) >= 1
        if written.killed:
            real.kill()
        else:
            real.stop()
    # Killed, it has written its offsets only if its five seconds were just over.
    serves(store, messages, tmp_path, consumed=0 if written.killed else CONSUMED_BY_THEM)
    measured(
        f"{written.count} messages served by RocketMQ {version}, {len(messages)} more by it, all by us again"
    )


def number_of(client: Remoting, code: int, fields: dict[str, str]) -> int:
    """Return the offset that a request asks for."""
    header, _ = client.call(code, fields)
    assert header["code"] == 0, header
    return int(header["extFields"]["offset"])


def theirs(client: Remoting, topic: str, queue_id: int) -> list[Content]:
    """Pull a whole queue from a real broker."""
    found: list[Content] = []
    while body := client.pull("kit", topic, queue_id, len(found)):
        found += records(body)
    return found


def found_by_key(client: Remoting, topic: str, key: str) -> int:
    """Return how many messages a real broker finds by a key."""
    header, body = client.call(
        QUERY_MESSAGE,
        {
            "topic": topic,
            "key": key,
            "maxNum": "64",
            "beginTimestamp": "0",
            "endTimestamp": str(2**63 - 1),
        },
    )
    assert header["code"] == 0, header
    return len(list(records(body)))


def check_config(client: Remoting, store: Path) -> None:
    """The broker has our topics, groups and offsets."""
    _, body = client.call(ALL_TOPICS, {})
    topics = jsonconfig.loads(body.decode())["topicConfigTable"]
    for topic, queues in TOPICS.items():
        shape = [topics[topic][name] for name in ("readQueueNums", "writeQueueNums", "perm")]
        assert shape == [queues, queues, 6]
    _, body = client.call(ALL_GROUPS, {})
    groups = jsonconfig.loads(body.decode())["subscriptionGroupTable"]
    ours = jsonconfig.load(store / "config" / "subscriptionGroup.json")["subscriptionGroupTable"]
    assert {name for name in ours if name in groups} == set(ours)
    shared = ours[GROUP].keys() & groups[GROUP].keys()
    assert "retryMaxTimes" in shared
    assert {name: groups[GROUP][name] for name in shared} == {name: ours[GROUP][name] for name in shared}
    offsets = jsonconfig.load(store / "config" / "consumerOffset.json")["offsetTable"][f"alpha@{GROUP}"]
    assert sum(offsets.values()) > 0
    for queue_id, offset in offsets.items():
        where = {"topic": "alpha", "queueId": str(queue_id), "consumerGroup": GROUP}
        assert number_of(client, QUERY_OFFSET, where) == offset


def serves(store: Path, messages: dict[Key, list[Content]], root: Path, *, consumed: int) -> None:
    """Our broker opens the store that RocketMQ has written on, serves all of it, and appends."""
    settings: dict[str, object] = {"nameservers": "", **OURS}
    with Process(root, "broker", "again", store=store, **settings) as ours:
        assert pulled(ours.grpc) == messages
        with grpc.insecure_channel(ours.grpc) as channel:
            api = Api(channel)
            if consumed:
                group = v2.Resource(name=GROUP)
                assert api("GetOffset", group=group, message_queue=queue("beta", 0)).offset == consumed
            for topic, queues in TOPICS.items():
                for _ in range(queues):
                    sent = api.send(topic, b"ours again", keys=["again"])
                    assert sent.status.code == v2.OK
            after = pulled(ours.grpc)
            assert sum(map(len, after.values())) == sum(map(len, messages.values())) + sum(TOPICS.values())
            for key, contents in after.items():
                assert contents[: len(messages[key])] == messages[key]
                assert [got[0] for got in contents] == list(range(len(contents)))
        assert "Traceback" not in ours.log_tail(1000)
        assert ours.stop() == 0
    assert verify(store) == []
    assert list(query_index(store, "beta", "theirs"))
