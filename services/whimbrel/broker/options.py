"""Settings of one broker process.

Their names, defaults and texts are read by the command line, too; so nothing that stores or serves is
imported before it is asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from whimbrel.config import check_rules, gone, option, refusal
from whimbrel.model.coordinators import parse_coordinator
from whimbrel.model.names import check_broker_name, is_text
from whimbrel.model.route import check_address, check_host
from whimbrel.model.wire import BROKER_PORT, NAMESERVER_PORT
from whimbrel.telemetry import LogLevel, check_trace_target

if TYPE_CHECKING:
    from whimbrel.broker.produce.appender import Durability
    from whimbrel.store.options import StoreOptions

__all__ = ["BrokerOptions"]

MIB = 1024 * 1024
VOTERS_MAX = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """A broker, master or slave, beside whose store directory a replicator runs."""

    process: ClassVar[str] = "broker"

    name: str = option("broker-a", help="name shared by a master and its slaves")
    id: int = option(
        0,
        help="0 for the master, above 0 for slaves and elected members, each its own",
        minimum=0,
        maximum=63,
    )
    role: Literal["master", "slave", "elected"] = option(
        "master", help="what this broker is; elected: the members of its group agree on who leads"
    )
    cluster: str = option("DefaultCluster", help="cluster name; a property of every message")
    store: str = option(
        "",
        help="store directory, shared with the replicator beside this broker",
        example="/var/lib/whimbrel/broker-a",
    )
    store_mode: Literal["private", "group", "all"] = option(
        "private", help="who may read the files that it makes: its user, its group as well, or everybody"
    )
    # Loopback, so that nothing is open by accident.
    host: str = option("127.0.0.1", help="address to listen on")
    port: int = option(BROKER_PORT, help="port to listen on; 0 takes a free one", minimum=0, maximum=65535)
    transport: Literal["native"] = gone(
        "native", "the transport grpcio is gone, native is the only one: leave the setting out"
    )
    # What it does, and what Python does without it: docs/lane.md.
    lane: Literal["auto", "off", "required"] = option(
        "auto",
        help="the compiled lane: used if it is there, not used, or no start without it",
        shared="WHIMBREL_LANE",
    )
    tls_certificate: str = option("", help="PEM file for TLS; empty: self-signed, kept in the store")
    tls_key: str = option("", help="PEM file of the certificate's key")
    advertise_host: str = option("", help="host that clients are told; empty: chosen by how they come")
    advertise_port: int = option(0, help="port that clients are told; 0: the bound one", minimum=0)
    # They share nothing, so the broker registers with each.
    nameservers: tuple[str, ...] = option(
        (f"127.0.0.1:{NAMESERVER_PORT}",), help="all nameservers, HOST:PORT"
    )
    flush: Literal["sync", "async"] = option("async", help="sync answers a send after its record is on disk")
    replication: Literal["sync", "async", "majority"] = option(
        "async",
        help="sync answers after `acks` slaves hold it; majority after more than half of `voters` do, and"
        " shows nobody what they do not hold",
    )
    # Where members are elected this says whom the group is made of; then its record counts.
    voters: tuple[str, ...] = option(
        (), help="majority: ids of the members whose copies count; with a configured master 0 is among them"
    )
    copies_min: int = option(
        0,
        minimum=0,
        maximum=7,
        help="elected: a voter that is away for 15 s votes no longer, as long as so many copies still commit;"
        " 1 lets the survivor of two go on alone; 0: never",
    )
    coordinator: str = option(
        "none",
        help="who keeps the record of a group that elects its leader: nameserver (the first one),"
        " nameserver:HOST:PORT, etcd:HOST:PORT,HOST:PORT,..., or kubernetes:NAMESPACE; none: roles are as"
        " configured",
    )
    coordinator_ca: str = option(
        "",
        help="PEM file of those who sign the coordinator's certificates; empty: etcd is asked without TLS,"
        " and Kubernetes' is the pod's",
    )
    coordinator_certificate: str = option("", help="PEM file by which etcd knows this broker")
    coordinator_key: str = option("", help="PEM file of that certificate's key")
    coordinator_user: str = option("", help="user of etcd; empty: none")
    coordinator_password_file: str = option("", help="file whose first line is that user's password")
    coordinator_token_file: str = option(
        "", help="file with the token that Kubernetes asks for; empty: that of the pod's service account"
    )
    # SDKs may talk to any member of a group that elects its leader.
    forward: Literal["auto", "on", "off"] = option(
        "auto",
        help="a broker that does not lead hands clients' calls on to the one that does; auto: in groups that"
        " elect their leader",
    )
    acks: int = option(1, help="slaves that must confirm", minimum=1, maximum=16)
    expected_slaves: int = option(0, help="a master is settled once so many are registered", minimum=0)
    auto_create_topics: bool = option(False, help="a send creates its topic")
    auto_create_groups: bool = option(False, help="a receive creates its group")
    # Clients dial the port that routes and message ids name, which is the broker's own; others that are
    # configured with RocketMQ's ports find it here.
    remoting_port: int = option(
        -1,
        help="one more port to listen on, for RocketMQ's clients; 0 takes a free one, -1 none",
        minimum=-1,
        maximum=65535,
    )
    # Producers of 4.4 use it unless told otherwise (vipChannelEnabled).
    vip_port: int = option(
        -1,
        help="one more port to listen on, for clients that send to the broker's port less 2; -1 none",
        minimum=-1,
        maximum=65535,
    )
    # RocketMQ lets anybody who reaches its port delete topics.
    remoting_admin: Literal["loopback", "any", "none"] = option(
        "loopback",
        help="who may change topics, groups, offsets and settings by RocketMQ's remoting protocol: peers on"
        " this machine, anybody, or nobody",
    )
    remoting_accounts: str = option(
        "",
        help="file with an access key and a secret on each line: who signs by one, as RocketMQ's clients do,"
        " may change something from anywhere; empty: signatures are not looked at",
    )
    # RocketMQ's traceTopicEnable. Where sends create topics, the first trace creates it.
    trace_topic_enable: bool = option(
        False, help="the topic RMQ_SYS_TRACE_TOPIC is there, for message traces of RocketMQ 4's clients"
    )
    # RocketMQ: true. Then messages of those queues are consumed by both.
    share_pulled_queues: bool = option(
        False, help="receives of a group get queues, too, that its 4.x consumers pull"
    )
    # Whoever may replay chooses queue, born time and id of messages, which a producer may not.
    accept_replays: bool = option(False, help="takes archived messages back (AppendPreserved)")
    slave_read_enable: bool = option(False, help="pulls far behind are sent to a slave")
    # RocketMQ's haSlaveFallbehindMax.
    slave_fallbehind_max_bytes: int = option(
        256 * MIB, help="a slave that lacks as much does not count", minimum=1
    )
    sync_flush_timeout_ms: int = option(5000, help="how long a send waits for the disk", minimum=1)
    slave_timeout_ms: int = option(3000, help="how long a send waits for slaves", minimum=1)
    commitlog_file_size: int = option(1 << 30, help="bytes; that of existing files wins", minimum=64 * 1024)
    consumequeue_file_size: int = option(6_000_000, help="bytes, a multiple of 20", minimum=20)
    index_slots: int = option(
        5_000_000,
        help="slots of an index file; a store that moves keeps RocketMQ's maxHashSlotNum",
        minimum=1,
    )
    index_entries: int = option(20_000_000, help="entries of an index file; likewise maxIndexNum", minimum=2)
    # RocketMQ writes them from 5.4 on.
    index_tags: bool = option(False, help="messages are found by their tags, too, as with RocketMQ 5.4")
    # Reserved whole, twice for each store. A smaller one is started over more often.
    # Holds about 80,000 changes, so that a busy broker writes a snapshot only every few seconds.
    lease_file_size: int = option(
        8 * MIB, help="bytes of each of the two files of the lease journal", minimum=1 << 20
    )
    # RocketMQ's transactionTimeOut, transactionCheckInterval and transactionCheckMax.
    transaction_timeout_ms: int = option(
        6000, help="after it, producers are asked about an open transaction", minimum=0
    )
    transaction_check_interval_ms: int = option(
        30_000, help="time between two rounds of questions about open transactions", minimum=1
    )
    transaction_check_max: int = option(
        15, help="questions about a transaction, then it is given up", minimum=0
    )
    flush_interval_ms: int = option(500, help="asynchronous flush: time between two", minimum=1)
    # RocketMQ's enabledAppendPropCRC. Without it only bodies are covered, by the CRC in the record's head.
    append_property_crc: bool = option(False, help="each record gets a CRC of all its bytes, in a property")
    # RocketMQ's priorityOrderAsc.
    priority_order_asc: bool = option(True, help="the greater a priority, the sooner; else 0 goes first")
    # RocketMQ's 24 h for its v2 clients. What waits for longer than its log file stays is stored again.
    delay_max_hours: float = option(
        24.0, help="how far ahead a message's time of delivery may be", minimum=0, maximum=960
    )
    reserved_hours: float = option(72.0, help="log files older than this are removed", minimum=0)
    # RocketMQ's cleanFileForciblyEnable, which is true.
    full_disk: Literal["auto", "drop", "refuse"] = option(
        "auto",
        help="what a disk above `disk_clean_ratio` does: drop the oldest log files, read or not; or refuse:"
        " keep them, and take no sends above `disk_full_ratio`; auto: refuse in groups that elect",
    )
    disk_used_ratio_max: float = option(0.75, help="above it old files go at any hour", minimum=0, maximum=1)
    disk_clean_ratio: float = option(
        0.85, help="above it files go whatever their age, unless `full_disk` refuses", minimum=0, maximum=1
    )
    disk_full_ratio: float = option(0.90, help="above it writes are refused", minimum=0, maximum=1)
    trace_to: str = option("", help="spans go to file:PATH or to a collector, http://HOST:PORT; empty: none")
    trace_ratio: float = option(
        0.0, help="share of messages without a trace context that the broker traces", minimum=0, maximum=1
    )
    # Off: OpenTelemetry costs 0.1 s of CPU time at the start, and 6 to 9 MB.
    metrics_port: int = option(
        -1,
        help="port for Prometheus on the same host; 0 takes a free one, -1 none",
        minimum=-1,
        maximum=65535,
    )
    # Needs no OpenTelemetry, and about 0.2 MB.
    health_port: int = option(
        -1,
        help="port for /healthz and /readyz on the same host; 0 takes a free one, -1 none",
        minimum=-1,
        maximum=65535,
    )
    ready_file: str = option("", help="written once the broker serves")
    log_level: LogLevel = option("INFO", help="least severe log lines to write")
    log_format: Literal["text", "json"] = option("text", help="how log lines look")

    def __post_init__(self) -> None:
        """Refuse what can't work."""
        check_rules(self)

    def wrong_store(self) -> Iterator[str]:
        """Yield why the store can't be."""
        if not self.store:
            yield "store: name the store directory"

    def wrong_store_options(self) -> Iterator[str]:
        """Yield what no store can have."""
        yield from refusal(lambda: self.store_options)

    def wrong_coordinator(self) -> Iterator[str]:
        """Yield why the coordinator can't be."""
        yield from refusal(parse_coordinator, self.coordinator)

    def wrong_name(self) -> Iterator[str]:
        """Yield why the name can't be."""
        yield from refusal(check_broker_name, "name", self.name)

    def wrong_cluster(self) -> Iterator[str]:
        """Yield why the cluster's name can't be."""
        yield from refusal(check_broker_name, "cluster", self.cluster)

    def wrong_nameservers(self) -> Iterator[str]:
        """Yield which addresses are none."""
        for address in self.nameservers:
            yield from refusal(check_address, "nameservers", address)

    def wrong_hosts(self) -> Iterator[str]:
        """Yield which hosts are none."""
        yield from refusal(check_host, "host", self.host)
        yield from refusal(check_host, "advertise_host", self.advertise_host)

    def wrong_tls(self) -> Iterator[str]:
        """Yield what is wrong with TLS."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            yield "tls_certificate and tls_key belong together: name both files, or none"

    def wrong_trace(self) -> Iterator[str]:
        """Yield what is wrong with where spans go."""
        yield from refusal(check_trace_target, self.trace_to)
        if self.trace_ratio and not self.trace_to:
            yield "trace_ratio: say with trace_to where the spans are to go"

    def wrong_ports(self) -> Iterator[str]:
        """Yield which further ports nothing would serve, or are taken."""
        for name, port in (("remoting_port", self.remoting_port), ("vip_port", self.vip_port)):
            if port == self.port != 0:
                yield f"{name}: RocketMQ's protocol is served on port anyway, name another one"
        if self.remoting_port == self.vip_port > 0:
            yield "vip_port: remoting_port is the same, name another one"

    @property
    def extra_ports(self) -> tuple[int, ...]:
        """Where the server listens besides."""
        return tuple(port for port in (self.remoting_port, self.vip_port) if port >= 0)

    def wrong_role(self) -> Iterator[str]:
        """Yield why the role does not fit the id, where roles are as configured."""
        if self.elects:
            return
        if self.copies_min:
            yield "copies_min: only a group that elects its leader changes its voters"
        if self.role == "elected":
            yield "role: who is elected needs a coordinator, such as --coordinator nameserver"
        elif (self.role == "master") != (self.id == 0):
            yield f"id: a {self.role} can't have id {self.id}; the master's is 0, slaves' are above"

    def wrong_election(self) -> Iterator[str]:
        """Yield why its members could not elect."""
        if not self.elects or any(self.wrong_coordinator()):
            return
        if self.coordinator == "nameserver" and not self.nameservers:
            yield "coordinator: there is no nameserver that could be it"
        if self.copies_min and self.flush != "sync":
            yield (
                "copies_min: needs flush sync, since a member that is alone may lose in a power cut what it"
                " has answered, and would not be elected afterwards"
            )
        if self.replication != "majority":
            yield "coordinator: only a group that commits by majority elects, set replication to it"
        if not self.id:
            yield "id: members of a group that elects have ids from 1 on, each its own"

    def wrong_access(self) -> Iterator[str]:
        """Yield which files and users the coordinator has no use for, or are of no use alone."""
        used = {
            "none": (),
            "nameserver": (),
            "etcd": ("ca", "certificate", "key", "user", "password_file"),
            "kubernetes": ("ca", "token_file"),
        }.get(self.coordinator.partition(":")[0])
        access = {
            "ca": self.coordinator_ca,
            "certificate": self.coordinator_certificate,
            "key": self.coordinator_key,
            "user": self.coordinator_user,
            "password_file": self.coordinator_password_file,
            "token_file": self.coordinator_token_file,
        }
        for name, value in access.items():
            if value and used is not None and name not in used:
                yield f"coordinator_{name}: coordinator {self.coordinator} does not ask for that"
        if bool(self.coordinator_certificate) != bool(self.coordinator_key):
            yield "coordinator_certificate and coordinator_key belong together: name both files, or none"
        if self.coordinator_certificate and not self.coordinator_ca:
            yield "coordinator_certificate: only TLS uses it, name coordinator_ca as well"
        if not is_text(self.coordinator_user):
            yield f"coordinator_user: {self.coordinator_user!r} is not UTF-8"
        if bool(self.coordinator_user) != bool(self.coordinator_password_file):
            yield "coordinator_user and coordinator_password_file belong together: name both, or none"

    @property
    def elects(self) -> bool:
        """Whether the group elects its leader."""
        return self.coordinator != "none"

    @property
    def place(self) -> int:
        """The broker id at nameservers: 0 for the master, whoever that is."""
        return 0 if self.role == "master" else self.id

    def wrong_voters(self) -> Iterator[str]:
        """Yield which voters can't be, or that nobody asks them."""
        if self.replication != "majority":
            if self.voters:
                yield "voters: only replication majority counts them, set replication to majority"
            return
        if not self.voters:
            yield (
                "voters: replication majority needs the ids of all members whose copies count,"
                " such as 0, 1 and 2 for a master and two slaves"
            )
            return
        from whimbrel.model.group_record import MEMBER_MAX

        none = [
            text
            for text in self.voters
            if not (text.isascii() and text.isdecimal() and int(text) <= MEMBER_MAX)
        ]
        for text in none:
            yield f"voters: {text!r} is no id of a member: they are 0 to {MEMBER_MAX}"
        if none:
            return
        if len(self.voter_ids) < len(self.voters):
            yield f"voters: {', '.join(self.voters)} names a member twice"
        if len(self.voter_ids) > VOTERS_MAX:
            yield f"voters: {len(self.voter_ids)} members; at most {VOTERS_MAX} vote"
        if (0 in self.voter_ids) == self.elects:
            yield (
                "voters: members of a group that elects have ids from 1 on"
                if self.elects
                else "voters: the master's id 0 must be among them"
            )

    @property
    def voter_ids(self) -> frozenset[int]:
        """The ids of the members whose copies count."""
        return frozenset(map(int, self.voters))

    @property
    def by_majority(self) -> bool:
        """Whether a majority commits, and nothing else is seen."""
        return self.replication == "majority"

    @property
    def forwards(self) -> bool:
        """Whether clients' calls are handed on to the leader, and held while there is none."""
        return self.forward == "on" or (self.forward == "auto" and self.elects)

    @property
    def store_options(self) -> "StoreOptions":
        """The settings of the message store."""
        from whimbrel.store.options import StoreOptions

        return StoreOptions(
            commitlog_file_size=self.commitlog_file_size,
            consumequeue_file_size=self.consumequeue_file_size,
            index_slots=self.index_slots,
            index_entries=self.index_entries,
            index_tags=self.index_tags,
            flush=self.flush,
            flush_interval_ms=self.flush_interval_ms,
            reserved_hours=self.reserved_hours,
            full_disk=self.when_full,
            disk_used_ratio_max=self.disk_used_ratio_max,
            disk_clean_ratio=self.disk_clean_ratio,
            disk_full_ratio=self.disk_full_ratio,
            append_property_crc=self.append_property_crc,
        )

    @property
    def when_full(self) -> Literal["drop", "refuse"]:
        """What a disk that fills does."""
        if self.full_disk == "auto":
            return "refuse" if self.elects else "drop"
        return self.full_disk

    @property
    def delay_max_ms(self) -> int:
        """How long a message may wait for its time."""
        return int(self.delay_max_hours * 3_600_000)

    @property
    def durability(self) -> "Durability":
        """What the response to a send promises."""
        from whimbrel.broker.produce.appender import Durability

        return Durability(
            sync_flush=self.flush == "sync",
            acks=self.acks if self.replication == "sync" else 0,
            fallbehind_max=self.slave_fallbehind_max_bytes,
            flush_timeout_s=self.sync_flush_timeout_ms / 1000,
            slave_timeout_s=self.slave_timeout_ms / 1000,
        )
