"""Topics with messages in them, for tests that read them with Spark."""

import contextlib
from typing import Any

from support.cluster.processes import Cluster, Process
from support.waiting import until
from whimbrel.client import Message
from whimbrel.client.sync import Admin, Producer
from whimbrel.errors import AlreadyExists
from whimbrel.rpc.api.bulk_calls import BrokerQueues, describe_queues, open_bulk_channel
from whimbrel.rpc.api.calls import perform_blocking

__all__ = ["bodies", "confirmed", "fill"]


def fill(cluster: Cluster, topic: str, count: int, *, queues: int = 4, start: int = 0) -> None:
    """Send messages `start`, `start + 1`...; odd ones have the tag a, even ones b. All are confirmed then."""
    with Admin(cluster.endpoint) as admin, contextlib.suppress(AlreadyExists):
        admin.create_topic(topic, queues=queues)
    with Producer(cluster.endpoint) as producer:
        for first in range(start, start + count, 25):
            producer.send_batch(
                [
                    Message(
                        topic=topic,
                        body=b"%d" % number,
                        tag="a" if number % 2 else "b",
                        keys=(f"k{number}", "both"),
                        properties={"n": str(number)},
                    )
                    for number in range(first, min(first + 25, start + count))
                ]
            )
    confirmed(cluster)


def bodies(frame: Any) -> list[int]:
    """Return the numbers in the bodies, sorted."""
    return sorted(int(bytes(row["body"])) for row in frame.select("body").collect())


def confirmed(cluster: Cluster) -> None:
    """Wait until each broker knows that what the master has now is confirmed; not while a process is down."""
    if not all(process.running for process in cluster.processes):
        return
    end = seen(cluster.master).log_written
    brokers = (cluster.master, *cluster.slaves)
    until(lambda: all(seen(each).log_confirmed >= end for each in brokers), timeout=60, what="confirmation")


def seen(broker: Process) -> BrokerQueues:
    """Return where a broker's log stands."""
    with open_bulk_channel(broker.grpc) as channel:
        return perform_blocking(channel, describe_queues(("-",)), (), 10)
