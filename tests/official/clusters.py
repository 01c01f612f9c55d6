"""Clusters that speak RocketMQ's remoting protocol: real ones of 4.9.3, and ours.

    with started("4.9.3", tmp_path) as cluster:
        cluster.name_server        # "127.0.0.1:PORT"
        cluster.version            # what serves there, for tables

Both have one name server and two masters, broker-a and broker-b of the cluster DefaultCluster, which make
topics and groups as they are asked for, filter by SQL, and ask every three seconds about transactions that
have been open for one: what RocketMQ's own integration tests want.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support import provenance
from support.cluster.processes import READY_TIMEOUT_S, Process, program
from support.systems import real_broker

__all__ = ["BROKERS", "SERVERS", "Cluster", "started"]

SERVERS = ("ours", "4.9.3")
BROKERS = ("broker-a", "broker-b")
CHECK_INTERVAL_MS, TRANSACTION_TIMEOUT_MS = 3000, 1000
LOG_FILE_BYTES = 64 << 20
QUEUE_FILE_BYTES = 200_000  # RocketMQ's 6 MB are reserved for each queue of some two hundred topics


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        version: what serves, and for ours from which commit.
        name_server: the address that clients are given.
        brokers: a broker's name to its address.
    """

    version: str
    name_server: str
    brokers: dict[str, str]


@contextlib.contextmanager
def started(servers: str, root: Path) -> Iterator[Cluster]:
    """Start a cluster below `root`, and end it at the end; real ones skip the test where they can't run."""
    assert servers in SERVERS, f"{servers}: it is one of {', '.join(SERVERS)}"
    with ours(root) if servers == "ours" else real(servers, root) as cluster:
        yield cluster


@contextlib.contextmanager
def real(version: str, root: Path) -> Iterator[Cluster]:
    """Start RocketMQ's."""
    settings: dict[str, object] = {
        "enablePropertyFilter": "true",
        "transactionCheckInterval": CHECK_INTERVAL_MS,
        "transactionTimeOut": TRANSACTION_TIMEOUT_MS,
        "mappedFileSizeCommitLog": LOG_FILE_BYTES,
        "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
    }
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(real_broker.name_server(version, root / "names"))
        brokers = {}
        for name in BROKERS:
            broker = real_broker.broker(
                version, root / name, "ASYNC_MASTER", names.address, brokerName=name, **settings
            )
            brokers[name] = stack.enter_context(broker).address
        yield Cluster(f"RocketMQ {version}", names.address, brokers)


@contextlib.contextmanager
def ours(root: Path) -> Iterator[Cluster]:
    """Start ours: a nameserver, two brokers, and the replicator of each."""
    with contextlib.ExitStack() as stack:
        names = stack.enter_context(Process(root, "nameserver", "nameserver"))
        launched = []
        for name in BROKERS:
            store = root / name
            port = real_broker.free_port((-2, 0, 1))
            broker = Process(
                root,
                "broker",
                name,
                store=store,
                port=port,
                vip_port=port - 2,
                nameservers=[names.grpc],
                auto_create_topics=True,
                auto_create_groups=True,
                transaction_check_interval_ms=CHECK_INTERVAL_MS,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                commitlog_file_size=LOG_FILE_BYTES,
                consumequeue_file_size=QUEUE_FILE_BYTES,
                index_slots=50_000,
                index_entries=200_000,
            )
            broker.settings["name"] = name
            launched += [broker, Process(root, "replicator", f"{name}-replicator", store=store)]
        for process in launched:
            stack.callback(process.kill)
            process.launch()
        for process in launched:
            process.wait_ready()
        waiting = program(
            ["-m", "whimbrel.cli.usable", names.grpc, str(len(BROKERS)), str(READY_TIMEOUT_S)],
            root / "usable.log",
        )
        assert waiting.wait() == 0, (root / "usable.log").read_text(encoding="utf-8")
        brokers = {process.name: process.grpc for process in launched if process.kind == "broker"}
        yield Cluster(f"whimbrel {provenance.commit()}", names.grpc, brokers)
