"""A broker group that is away: its queues count, for a new master, too, until it is let go of;
and what is left at a drained broker.
"""

from pathlib import Path
from typing import Any

import grpc
import pytest

from support.cluster.broker_api import Api
from support.cluster.processes import Cluster, Process
from support.pages import Page
from support.waiting import until
from whimbrel.broker.produce.placement import owner_of_group
from whimbrel.cli.main import main
from whimbrel.client import Message, MessageType
from whimbrel.client.sync import Admin, Consumer, Producer
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2

pytestmark = pytest.mark.process

SCALING = Page("docs/scaling.md")
TOPIC, QUEUES = "shared", 4


def test_a_new_master_refuses_the_message_groups_of_a_broker_that_is_away(tmp_path: Path) -> None:
    """Checklist 3: its slave has been told of the other group's queues; then that group is let go of."""
    with Cluster(tmp_path) as cluster:
        named: dict[str, Any] = {
            **cluster.broker_settings, "expected_slaves": 0,
            "store": tmp_path / "store-b", "nameservers": [cluster.endpoint],
        }  # fmt: skip
        away = Process(tmp_path, "broker", "broker-b", **named)
        away.settings["name"] = "broker-b"
        with away, Admin(cluster.endpoint) as admin:
            cluster.wait_usable()
            until(lambda: len(admin.cluster().masters()) == 2, what="both masters")
            ours = next(b.broker_name for b in admin.cluster().masters() if b.broker_name != "broker-b")
            admin.create_topic(TOPIC, message_type=MessageType.FIFO, queues=QUEUES)
            slave = cluster.slaves[0]
            copy = tmp_path / "store-slave-1" / "whimbrel" / "shared-topics.json"
            until(lambda: copy.exists() and "broker-b" in copy.read_text(), what="the slave's copy")
            forget = [*SCALING["whimbrel broker forget broker-b"].words()[1:], "--endpoint", cluster.endpoint]
            assert main(forget) == 1  # it lives
            away.kill()
            until(
                lambda: [each.broker_name for each in admin.cluster().absent_groups] == ["broker-b"],
                what="its absence",
            )
        for process in (cluster.master, cluster.master_replicator, slave, cluster.slave_replicators[0]):
            process.kill()
        leading: dict[str, Any] = {"role": "master", "id": 0, "expected_slaves": 0}
        with (
            Process(tmp_path, "broker", "promoted", **{**slave.settings, **leading}) as promoted,
            grpc.insecure_channel(promoted.grpc) as channel,
        ):
            api = Api(channel)
            owners = {
                group: owner_of_group(group, {ours: QUEUES, "broker-b": QUEUES})[0]
                for group in map(str, range(32))
            }
            theirs = next(group for group, owner in owners.items() if owner == "broker-b")
            mine = next(group for group, owner in owners.items() if owner == ours)

            def taken(group: str) -> bool:
                return bool(api.send(TOPIC, b"x", message_group=group).status.code == v2.OK)

            until(lambda: taken(mine), timeout=30, what="the new master to take messages")
            refused = api.send(TOPIC, b"x", message_group=theirs).status
            assert refused.code == v2.HA_NOT_AVAILABLE and "broker-b" in refused.message
            until(lambda: main(forget) == 0, timeout=40, what="the broker to be let go of", every_s=0.5)
            assert main(forget) == 0
            assert main(["broker", "forget", "broker-x", "--endpoint", cluster.endpoint]) == 1
            with Admin(cluster.endpoint) as admin:
                assert not admin.cluster().absent_groups
            assert taken(theirs) and taken(mine)


def test_what_waits_at_a_drained_broker_keeps_it_from_being_empty(tmp_path: Path) -> None:
    with Cluster(tmp_path, slaves=0) as cluster, Admin(cluster.endpoint) as admin:
        cluster.wait_usable()
        name = admin.cluster().masters()[0].broker_name
        admin.create_topic("later", message_type=MessageType.DELAY)
        admin.create_topic("unread")
        with Producer(cluster.endpoint) as producer:
            producer.send(Message(topic="later", body=b"x", delay_s=6))
            producer.send(Message(topic="unread", body=b"x"))
            producer.send(Message(topic="unread", body=b"y"))
            until(lambda: admin.drain_broker(name).delayed == 1, what="the delayed message to be counted")
            left = admin.drain_broker(name, drain=True)
            assert (left.empty, left.read_out, dict(left.unread)) == (False, False, {"unread": 2})
        until(lambda: admin.drain_broker(name).read_out, what="no delayed message", timeout=20)
        assert not admin.drain_broker(name).empty
        admin.create_group("readers")
        with Consumer(cluster.endpoint, "readers", ["unread", "later"]) as consumer:

            def emptied() -> bool:
                messages = consumer.receive(32, wait_s=1)
                consumer.ack_all(messages)
                return admin.drain_broker(name).empty

            until(emptied, timeout=30, what=lambda: str(admin.drain_broker(name)))
