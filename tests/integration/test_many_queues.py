"""More queues than a process may open files: a broker holds no descriptor for any."""

import resource
from pathlib import Path

import grpc
import pytest

from support.cluster.broker_api import Api
from support.cluster.processes import Process, lone_broker
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin

pytestmark = pytest.mark.process

OPEN_FILES = 256  # half of them are for connections
TOPICS, QUEUES = ("one", "two"), 1000
GROUP = "readers"


def start(broker: Process) -> Api:
    """Start it with few descriptors, which it can't have more of."""
    broker.launch()
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    broker.wait_ready()
    return Api(grpc.insecure_channel(broker.grpc))


def open_files(broker: Process) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


def mapped_queues(broker: Process) -> int:
    return Path(f"/proc/{broker.pid}/maps").read_text(encoding="utf-8").count("/consumequeue/")


def received(api: Api, topic: str) -> list[tuple[int, bytes]]:
    """Receive and acknowledge all of a topic; return queues and bodies."""
    found = []
    while messages := api.receive(topic, GROUP).messages:
        found += [(one.system_properties.queue_id, one.body) for one in messages]
        api.ack(topic, GROUP, *(one.system_properties.receipt_handle for one in messages))
    return found


def test_thousands_of_queues_with_few_descriptors(tmp_path: Path) -> None:
    """Sent to all of them before and after a kill -9, and received from all."""
    broker = lone_broker(tmp_path, index_entries=100_000, auto_create_topics=False)
    api = start(broker)
    with broker:
        before = open_files(broker)
        api.administer("CreateGroup", group=admin.Group(name=GROUP))
        for topic in TOPICS:
            api.administer(
                "CreateTopic", topic=admin.Topic(name=topic, read_queues=QUEUES, write_queues=QUEUES)
            )
        for turn in range(2):
            for topic in TOPICS:
                for number in range(QUEUES):
                    api.send(topic, b"%d-%d" % (turn, number))
            assert mapped_queues(broker) == len(TOPICS) * QUEUES
            assert open_files(broker) <= before + 20
            if turn == 0:
                broker.kill()
                api = start(broker)
        for topic in TOPICS:
            messages = received(api, topic)
            assert len(messages) == 2 * QUEUES
            assert {queue_id for queue_id, _ in messages} == set(range(QUEUES))
            assert {body for _, body in messages} == {
                b"%d-%d" % (turn, n) for turn in range(2) for n in range(QUEUES)
            }
        assert open_files(broker) <= before + 20
        assert broker.stop() == 0
