"""What `whimbrel dev` runs: its processes with their settings, and when one that has died is started again.

Pure. The table of processes, ports and stores stands in `supervisor.py`, which runs them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whimbrel.model.wire import NAMESERVER_PORT

__all__ = [
    "GROUP_LETTERS",
    "LOG_FILE_SIZE",
    "LOG_FILE_SIZE_MIN",
    "ChildPlan",
    "DevOptions",
    "RestartBackoff",
    "Role",
    "StartError",
    "disk_full_ratio_of",
    "full_disk_of",
    "plan",
    "vip_ports_of",
]

RESTART_FIRST_S = 0.2  # short, so that a single crash hardly affects clients
RESTART_MAX_S = 5.0  # a child that can't start is restarted for ever, without flooding the log
STEADY_S = 10.0
PORTS_PER_BROKER = 10
VIP_BELOW = 2  # RocketMQ's clients of vipChannelEnabled dial the broker's port less this
TRACES = "traces"  # folder below DIR
GROUPS = "groups.json"  # file below DIR: who leads, where brokers elect
LOG_FILE_SIZE = 64 * 1024 * 1024  # RocketMQ's 1 GiB, reserved whole for each broker, fills a laptop's disk
LOG_FILE_SIZE_MIN = 8 * 1024 * 1024  # the largest message takes half of it
INDEX_SLOT_BYTES = 200  # of log for each slot of the index: RocketMQ has 5,000,000 for 1 GiB
# A laptop's disk is 90 % full as a rule, with tens of GB free; and nobody's messages are to go from there.
DISK_FULL_RATIO = 0.98
FULL_DISK: Literal["drop", "refuse"] = "refuse"
ENTRIES_PER_SLOT = 4  # RocketMQ's ratio, from which a reader derives the slots of a file

GROUP_LETTERS = "abcdefghi"  # of the broker groups' names, broker-a and so on

Role = Literal[
    "nameserver", "master", "slave", "member", "master-replicator", "slave-replicator", "member-replicator"
]


class StartError(Exception):
    """The cluster can't start; one sentence that says why and what to do.

    Attributes:
        log: of the process that failed, if one did.
    """

    def __init__(self, text: str, log: Path | None = None) -> None:
        super().__init__(text)
        self.log = log


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """The options of `whimbrel dev`.

    Attributes:
        directory: of stores, logs and cluster.json.
        port: of the nameserver, from which the other ports follow; 0 for any free ports.
        flush: `sync`: a send is answered when it is on the disk, by majority on those of a majority.
        replication: `sync`: a send is answered when a slave has it; `majority`: when more than half of a
            group's members have it, and nobody sees it before; they elect who leads.
        brokers: broker groups, each a master with its slaves; topics are spread over them.
        slaves: number of slaves of each; with none, synchronous replication would refuse every send.
        host: address to which every port is bound.
        trace_ratio: share of messages that are traced; 0 for none.
        metrics: every process serves its metrics, on a free port.
        accept_replays: brokers accept replays of archived messages.
        auto_create: a send creates its topic, a receive its group.
        log_file_size: bytes of a commitlog file in new stores; those in the directory keep their size.
        full_disk, disk_clean_ratio, disk_full_ratio: those settings of the brokers; None: left to them and
            to the environment.
        store_mode: who may read what it makes: this user, the group as well, or everybody.
        vip_ports: brokers also listen on their port less 2, which RocketMQ's Dashboard dials.
        lease_file_size: bytes of each of the two files of a lease journal; None for the broker's default.
        ephemeral: nobody needs the stores afterwards: no child outlives a killed supervisor for a moment, not
            even a stopped one.
    """

    directory: Path
    port: int = NAMESERVER_PORT
    flush: Literal["sync", "async"] = "async"
    replication: Literal["sync", "async", "majority"] = "async"
    brokers: int = 1
    slaves: int = 1
    host: str = "127.0.0.1"
    trace_ratio: float = 0.0
    metrics: bool = False
    accept_replays: bool = False
    auto_create: bool = True
    log_file_size: int = LOG_FILE_SIZE
    full_disk: Literal["drop", "refuse"] | None = None
    disk_clean_ratio: float | None = None
    disk_full_ratio: float | None = None
    store_mode: Literal["private", "group", "all"] = "private"
    vip_ports: bool = False
    lease_file_size: int | None = None
    ephemeral: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildPlan:
    """One process to run: `python -m whimbrel.PROGRAM` with these settings."""

    name: str
    role: Role
    program: Literal["nameserver", "broker", "replicator"]
    settings: Mapping[str, str | int | float]
    store: Path | None = None

    @property
    def port(self) -> int | None:
        """Return the port it listens on, 0 for any, None when it does not listen."""
        port = self.settings.get("port")
        return None if port is None else int(port)

    @property
    def vip_port(self) -> int | None:
        """Return the further port it listens on."""
        port = self.settings.get("vip_port")
        return None if port is None else int(port)


@dataclass(slots=True)
class RestartBackoff:
    """Decides when to restart a child that has died."""

    delay: float = 0.0
    up_since: float | None = None

    def ready(self, now: float) -> None:
        """The child became ready."""
        self.up_since = now

    def died(self, now: float) -> float:
        """Return the time of its restart."""
        steady = self.up_since is not None and now - self.up_since >= STEADY_S
        self.delay = RESTART_FIRST_S if steady or not self.delay else min(self.delay * 2, RESTART_MAX_S)
        self.up_since = None
        return now + self.delay


def full_disk_of(environ: Mapping[str, str]) -> Literal["drop", "refuse"] | None:
    """Return what a disk above the ratio does in a development cluster, unless the environment says it."""
    return None if "WHIMBREL_BROKER_FULL_DISK" in environ else FULL_DISK


def disk_full_ratio_of(environ: Mapping[str, str]) -> float | None:
    """Return above which use of its disk such a cluster refuses sends, likewise."""
    return None if "WHIMBREL_BROKER_DISK_FULL_RATIO" in environ else DISK_FULL_RATIO


def vip_ports_of(environ: Mapping[str, str]) -> bool:
    """Return whether such a cluster's brokers listen on their port less 2, unless the environment says it."""
    return "WHIMBREL_BROKER_VIP_PORT" not in environ


def plan(options: DevOptions, endpoint: str) -> tuple[ChildPlan, ...]:
    """Return the processes, nameserver first; `endpoint` is the nameserver's address, "" while unknown.

    Raises:
        StartError: the options contradict each other.
    """
    if options.slaves == 0 and options.replication == "sync":
        raise StartError("synchronous replication needs a slave: drop `--slaves 0` or `--replication sync`")
    if options.slaves == 0 and options.replication == "majority":
        raise StartError("a majority needs slaves, two for one to be missing: `--slaves 2`")

    def port(step: int) -> int:
        return options.port + step if options.port else 0

    elects = options.replication == "majority"
    create = "true" if options.auto_create else "false"
    slots = options.log_file_size // INDEX_SLOT_BYTES
    shown: dict[str, str | int] = {"metrics_port": 0} if options.metrics else {}
    plans = [
        ChildPlan(
            name="nameserver",
            role="nameserver",
            program="nameserver",
            settings={
                "host": options.host,
                "port": int(endpoint.rpartition(":")[2]) if endpoint else port(0),
                "expected_brokers": options.brokers * (options.slaves + 1),
                **({"keeps_groups": str(options.directory / GROUPS)} if elects else {}),
                **shown,
            },
        )
    ]
    places = [(group, index) for group in range(options.brokers) for index in range(options.slaves + 1)]
    for step, (group, index) in enumerate(places):
        letter = GROUP_LETTERS[group]
        kind = f"slave-{index}" if index else "master"
        name = f"{letter}-{kind}" if group else kind  # the first group's are those of a cluster with one
        store = options.directory / name  # members have those that a master and its slaves would have
        role: Role = "slave" if index else "master"
        beside: Role = "slave-replicator" if index else "master-replicator"
        if elects:
            role, beside, kind = "member", "member-replicator", f"member-{index + 1}"
            name = f"{letter}-{kind}" if group else kind
        base = PORTS_PER_BROKER * (step + 1)
        broker: dict[str, str | int | float] = {
            "role": "elected" if elects else role,
            "name": f"broker-{letter}",
            "id": index + elects,
            "store": str(store),
            "store_mode": options.store_mode,
            "host": options.host,
            "port": port(base),
            "nameservers": endpoint,
            "flush": options.flush,
            "replication": options.replication,
            "expected_slaves": options.slaves,
            "auto_create_topics": create,
            "auto_create_groups": create,
            "commitlog_file_size": options.log_file_size,
            "index_slots": slots,
            "index_entries": slots * ENTRIES_PER_SLOT,
            **shown,
        }
        if elects:
            voters = ",".join(str(number + 1) for number in range(options.slaves + 1))
            broker |= {"voters": voters, "coordinator": "nameserver"}
        if options.vip_ports and options.port:
            broker |= {"vip_port": port(base) - VIP_BELOW}
        if options.lease_file_size is not None:
            broker |= {"lease_file_size": options.lease_file_size}
        disk = {
            "full_disk": options.full_disk,
            "disk_clean_ratio": options.disk_clean_ratio,
            "disk_full_ratio": options.disk_full_ratio,
        }
        broker |= {name: value for name, value in disk.items() if value is not None}
        if options.accept_replays:
            broker |= {"accept_replays": "true"}
        replicator: dict[str, str | int | float] = {
            "role": broker["role"],
            "store": str(store),
            "store_mode": options.store_mode,
            **shown,
        }
        if elects:  # what a member holds, counts as its disk does
            replicator |= {"flush": options.flush, "id": index + 1}
        if index or elects:
            replicator |= {"commitlog_file_size": options.log_file_size}
        if elects or not index:
            replicator |= {"host": options.host, "port": port(base + 1)}
        if options.trace_ratio:
            traces = options.directory / TRACES
            broker |= {"trace_to": f"file:{traces / name}.jsonl"}
            replicator |= {"trace_to": f"file:{traces / name}-replicator.jsonl"}
            if elects or not index:
                broker |= {"trace_ratio": str(options.trace_ratio)}
        plans.append(ChildPlan(name=name, role=role, program="broker", settings=broker, store=store))
        plans.append(
            ChildPlan(
                name=f"{name}-replicator", role=beside, program="replicator", settings=replicator, store=store
            )
        )
    return tuple(plans)
