"""Torn, damaged and missing small files: a broker serves every stored message, or ends with one sentence that
names the file and what to do. Never a traceback, never a silent loss.

The stores are made by a real broker process, stopped or killed; each damage is done to a copy, which a broker
in this process opens and which is then read over gRPC.
"""

import asyncio
import functools
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api, queue
from support.cluster.processes import Process
from whimbrel.broker.broker import Broker
from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.options import BrokerOptions
from whimbrel.errors import StoreError
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.store import jsonconfig
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets
from whimbrel.store.inspect import dump_records
from whimbrel.store.verify import verify

pytestmark = pytest.mark.process

TOPIC, LATER, GROUP = "damage", "later", "damage-group"
SIZES: dict[str, Any] = {
    "commitlog_file_size": 65_536,
    "consumequeue_file_size": 2000,
    "index_slots": 100,
    "index_entries": 400,
}
QUEUES = [(TOPIC, 0), (TOPIC, 1), *((LATER, number) for number in range(4))]
CONFIG = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
BINARY = ("watermark", "log-mark", "queue-mark", "leases/a.journal", "leases/b.journal")
ENDINGS = ("stopped", "killed")

Bodies = dict[tuple[str, int], list[bytes]]
Offsets = dict[tuple[str, str], dict[int, int]]


@dataclass(frozen=True)
class Original:
    """A store that was written by a broker process, and what is in it."""

    root: Path
    bodies: Bodies
    offsets: Offsets


def pulled(api: Api, topic: str, queue_id: int) -> list[bytes]:
    """Return the bodies of a queue; their offsets have no gap."""
    found: list[bytes] = []
    while True:
        frames = api(
            "PullMessage",
            group=v2.Resource(name="TOOLS_CONSUMER"),
            message_queue=queue(topic, queue_id),
            offset=len(found),
            batch_size=32,
        )
        messages = [frame.message for frame in frames if frame.WhichOneof("content") == "message"]
        if not messages:
            return found
        offsets = [message.system_properties.queue_offset for message in messages]
        assert offsets == list(range(len(found), len(found) + len(messages)))
        found += [message.body for message in messages]


def everything(address: str) -> Bodies:
    """Pull all queues that the originals have."""
    with grpc.insecure_channel(address) as channel:
        return {key: pulled(Api(channel), *key) for key in QUEUES}


def write(broker: Process, ending: str) -> Original:
    """Send, receive and acknowledge; end the broker."""
    with grpc.insecure_channel(broker.grpc) as channel:
        api = Api(channel)
        api.administer("CreateTopic", topic=admin.Topic(name=TOPIC, read_queues=2, write_queues=2))
        for number in range(160):
            answer = api.send(TOPIC, (b"%08d" % number) * 100, keys=[f"key-{number}"])
            assert answer.status.code == v2.OK
        taken = api.receive(TOPIC, GROUP, batch=16)
        acknowledged = api.ack(TOPIC, GROUP, *taken.handles)
        assert acknowledged.status.code == v2.OK
        assert len(taken.handles) >= 8
    assert broker.stop() == 0
    broker.start()
    with grpc.insecure_channel(broker.grpc) as channel:
        # Its topic is in topics.json, and not in the .bak.
        assert Api(channel).send(LATER, b"later").status.code == v2.OK
        bodies = everything(broker.grpc)
    if ending == "stopped":
        assert broker.stop() == 0
    else:
        broker.kill()
    _, offsets = opened(copied(broker.store, broker.store.with_name("look")))
    return Original(broker.store, bodies, offsets)


@pytest.fixture(scope="module", params=ENDINGS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    root = tmp_path_factory.mktemp(request.param)
    auto: dict[str, object] = {"auto_create_topics": True, "auto_create_groups": True, "nameservers": ""}
    with Process(root, "broker", "broker", store=root / "store", **auto, **SIZES) as broker:
        made = write(broker, request.param)
    (made.root / "config" / "delayOffset.json").write_text('{\n\t"offsetTable":{3:7\n\t}\n}')
    assert sum(map(len, made.bodies.values())) == 161
    assert made.offsets
    return made


def copied(source: Path, target: Path) -> Path:
    """Copy a store, holes and all, without the sockets of its processes."""
    subprocess.run(["cp", "-r", "--sparse=always", source, target], check=True)
    for path in (target / "whimbrel").glob("*.sock"):
        path.unlink()
    return target


def opened(root: Path) -> tuple[Bodies, Offsets]:
    """Open a store with a broker in this process; return all messages and the groups' offsets."""
    options = BrokerOptions(store=str(root), nameservers=(), port=0, **SIZES)

    async def run() -> tuple[Bodies, Offsets]:
        broker = Broker(options)
        await broker.start()
        try:
            bodies = await asyncio.to_thread(everything, broker.server.address)
            assert broker.role is not None
            return bodies, broker.role.consumption.positions.committed_offsets()
        finally:
            await broker.stop()

    return asyncio.run(run())


def damages(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Give ways to damage a file, each with its name."""
    data = path.read_bytes()
    chance = random.Random(f"seed {path.name}")
    used = len(data.rstrip(b"\0"))  # journals have their room allocated
    at = chance.randrange(used // 4, used // 2)
    contents = {
        "cut at 1/4": data[: used // 4],
        "cut at 1/2": data[: used // 2],
        "torn": data[: used - 1].ljust(len(data), b"\0"),
        "without its last byte": data[:-1],
        "empty": b"",
        "zeros": bytes(len(data)),
        "garbage": chance.randbytes(len(data)),
        "garbage in the middle": data[:at] + chance.randbytes(64) + data[at + 64 :],
        "garbage behind it": data + chance.randbytes(100),
    }
    for what, content in contents.items():
        yield what, functools.partial(path.write_bytes, content)
    yield "missing", path.unlink


def damaged(original: Original, name: str, tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """Give copies of a store, each with a damage done to one file: what, the store, and the file."""
    for number, (what, _) in enumerate(list(damages(original.root / name))):
        root = copied(original.root, tmp_path / str(number))
        dict(damages(root / name))[what]()
        yield f"{name} {what}", root, root / name
        shutil.rmtree(root)


@pytest.mark.parametrize(
    "original", ["stopped", pytest.param("killed", marks=pytest.mark.slow)], indirect=True, scope="module"
)
@pytest.mark.parametrize(
    ("name", "backup"),
    [(name, backup) for name in CONFIG[:3] for backup in ("good", "damaged", "none")] + [(CONFIG[3], "none")],
)
def test_damaged_config_file(
    original: Original, name: str, backup: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    served = refused = 0
    for what, root, path in damaged(original, f"config/{name}", tmp_path):
        spare = path.with_name(path.name + ".bak")
        if backup == "good" and not spare.exists():
            shutil.copy(original.root / "config" / name, spare)
        elif backup == "damaged":
            spare.write_bytes(spare.read_bytes()[:-2] if spare.exists() else b"{")
        elif backup == "none":
            spare.unlink(missing_ok=True)
        try:
            bodies, offsets = opened(root)
        except StoreError as error:
            refused += 1
            assert backup != "good", what
            assert name in ("topics.json", "subscriptionGroup.json"), what
            assert f"{path} is damaged" in str(error), what
            assert "put a good copy there" in str(error)
            assert f"or remove it and {name}.bak" in str(error)
            path.unlink(missing_ok=True)  # as the sentence says
            spare.unlink(missing_ok=True)
            bodies, offsets = opened(root)
        served += 1
        assert bodies == original.bodies, what
        assert offsets == original.offsets, what
    assert bool(refused) == (backup != "good" and name in ("topics.json", "subscriptionGroup.json"))
    measured(f"{served} damaged stores served, {refused} of them after what the refusal says was done")


@pytest.mark.parametrize("name", [f"whimbrel/{name}" for name in BINARY] + ["checkpoint", "lock"])
def test_damaged_binary_file(
    original: Original, name: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    served = 0
    count = sum(map(len, original.bodies.values()))
    for what, root, _ in damaged(original, name, tmp_path):
        assert sum(row["type"] == "record" for row in dump_records(root)) == count, what
        bodies, offsets = opened(root)
        assert bodies == original.bodies, what
        for key, queues in offsets.items():  # a damaged journal may deliver again, and skips nothing
            for queue_id, offset in queues.items():
                assert offset <= original.offsets[key][queue_id], what
        if "leases" not in name:
            assert offsets == original.offsets, what
        assert verify(root) == [], what
        served += 1
    measured(f"{served} damaged stores served")


def test_all_small_files_at_once_are_gone(original: Original, tmp_path: Path) -> None:
    """What is left is a log: everything else can be made from it, but for groups and how far they are."""
    root = copied(original.root, tmp_path / "store")
    for name in ("config", "whimbrel", "consumequeue", "index"):
        shutil.rmtree(root / name)
    for name in ("checkpoint", "lock", "abort"):
        (root / name).unlink(missing_ok=True)
    bodies, offsets = opened(root)
    assert bodies == original.bodies
    assert offsets == {}
    assert verify(root) == []


def test_abort_says_the_opposite_of_what_happened(original: Original, tmp_path: Path) -> None:
    root = copied(original.root, tmp_path / "store")
    marker = root / "abort"
    if marker.exists():
        marker.unlink()
    else:
        marker.touch()
    bodies, offsets = opened(root)
    assert (bodies, offsets) == (original.bodies, original.offsets)
    assert not marker.exists()


def test_offsets_of_a_store_without_a_journal_are_not_given_up_silently(
    original: Original, tmp_path: Path
) -> None:
    root = copied(original.root, tmp_path / "store")
    shutil.rmtree(root / "whimbrel")
    path = root / "config" / "consumerOffset.json"
    good = path.read_bytes()
    path.write_bytes(good[:-5])
    path.with_name(path.name + ".bak").unlink(missing_ok=True)
    with pytest.raises(StoreError, match=r"consumerOffset\.json is damaged .* or remove it"):
        opened(root)
    assert path.read_bytes() == good[:-5]
    path.write_bytes(good)
    assert opened(root) == (original.bodies, original.offsets)


@pytest.mark.parametrize("offset", [1_000_000, 10**30])
def test_offsets_beyond_the_log_are_taken_as_its_end(
    original: Original, tmp_path: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker of an earlier version wrote down what a client named, and never started again."""
    root = copied(original.root, tmp_path / "store")
    topic, queue_id = next((name, number) for (name, number), found in original.bodies.items() if found)
    path = root / "config" / "consumerOffset.json"
    content = jsonconfig.load(path)
    content["offsetTable"][f"{topic}@poisoned"] = {queue_id: offset}
    path.write_text(jsonconfig.dumps(content))
    end = len(original.bodies[topic, queue_id])
    for _ in range(2):
        bodies, offsets = opened(root)
        assert bodies == original.bodies
        assert offsets == {**original.offsets, (topic, "poisoned"): {queue_id: end}}
    assert caplog.text.count("positions beyond what the log holds") == 1
    repaired = jsonconfig.load(path)["offsetTable"]
    assert repaired[f"{topic}@poisoned"] == {queue_id: end}


def test_damaged_floors_of_deleted_topics(original: Original, tmp_path: Path) -> None:
    """Refused by name, since a queue offset given twice loses a message; without the file all is served."""
    root = copied(original.root, tmp_path / "store")
    floors = DeletedQueueOffsets(root)
    floors.merge({"gone": {0: 5, 3: 7}})
    refused = 0
    for what, damage in damages(floors.path):
        damage()
        try:
            assert opened(root) == (original.bodies, original.offsets), what
        except StoreError as error:
            assert str(floors.path) in str(error)
            assert "remove it" in str(error)
            refused += 1
    assert refused == 9  # all but the missing file


def test_a_journal_of_another_version_is_not_taken_for_damage(original: Original, tmp_path: Path) -> None:
    """A frame that is whole and says nothing we know."""
    root = copied(original.root, tmp_path / "store")
    write_strange_frame(root / "whimbrel" / "leases")
    with pytest.raises(StoreError, match=r"the lease journal .* move it away"):
        opened(root)
    shutil.rmtree(root / "whimbrel" / "leases")
    assert opened(root) == (original.bodies, original.offsets)


def write_strange_frame(folder: Path) -> None:
    """Put a journal with one entry of an unknown kind in the place of the real one."""
    for path in folder.iterdir():
        path.unlink()
    journal = LeaseJournal(folder.parent.parent, file_bytes=1 << 20)
    journal.start(lambda: [bytes([99]) * 40])
    journal.close()
