"""A cluster in one process, by a plan: its processes, and what goes wrong with them.

    layout     one or two nameservers; one or two groups of a master and slaves, each broker with its
               replicator on a host and a disk of its own; two producers, a consumer, a reader of all queues
    upkeep     log files that expire, a topic that is deleted, positions that are committed (`upkeep.py`)
    phases     from BEGIN_S until QUIET_S faults come and go; then all is healed and what is dead is started
               again, and the cluster must come to rest by END_S: take sends, have equal logs, deliver all

A process that has ended is started again after some of RESTART_S, as a supervisor does, or when the fault
that keeps it down ends.

`plan.py` draws layout, modes and faults. `invariants.py` says what is checked, and when.
"""

import logging
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sim.classic import ClassicClient
from sim.clients import BurstClient, ConsumerClient, ProducerClient, ReaderClient
from sim.disk import File, SimDisk
from sim.elected import GROUPS_FILE, PARTS, Elections
from sim.kinds import KIND_GROUPS, STEPS, Kinds
from sim.lifecycle import AdminClient
from sim.machine import SimHost
from sim.network import SimNetwork
from sim.nodes import BrokerNode, LoopNode, NameserverNode, ReplicatorNode
from sim.operators import OPERATIONS, Operators
from sim.plan import END_S, QUIET_S, Fault, Mode, Plan
from sim.positions import LedgerClient, role_of
from sim.process import SimProcess
from sim.resets import ResetClient
from sim.scheduler import Crash, Scheduler
from sim.tables import TablesClient
from sim.takeover import Takeovers
from sim.upkeep import SELDOM, TRANSIENT
from support.history.histories import History, Sent
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.roles.master import MasterRole
from whimbrel.machine import Machine
from whimbrel.nameserver.options import NameserverOptions
from whimbrel.replicator.options import ReplicatorOptions
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.options import StoreOptions
from whimbrel.store.repair import examine, set_aside
from whimbrel.store.segment import segment_name
from whimbrel.store.shared_page import PAGE_BYTES, SharedPage

__all__ = ["LOG_FILE", "ROOT", "TOPIC", "Cluster", "Member"]

logger = logging.getLogger("sim")

ROOT = Path("/store")
LOG_FILE = 64 * 1024
TOPIC = "orders"
BROKER_NAMES = ("broker-a", "broker-b")
# Who is to get all of a topic.
GROUPS = {TOPIC: "billing", TRANSIENT: "passers-by", STEPS: KIND_GROUPS[STEPS]}
RESTART_S = (0.3, 2.0)
SLOW_SYNC_S = (0.1, 0.5)
SENDS = 60  # of each producer that are to be acknowledged
EXPIRING_SENDS = 150  # where log files are to be filled
SENDING_S = 0.05  # a send that takes longer may not be the brokers' to answer
LOOK_S = (0.0, 0.004)  # from one look for such a send to the next
NAMESERVER_PORT, BROKER_PORT, HA_PORT = 8081, 8082, 10912


@dataclass
class Member:
    """A host of a group with its broker and its replicator.

    Attributes:
        group: the name that the group's brokers share.
        number: the broker's id; 0 is the master, unless that is elected.
        up: whether its host has power.
        held_down: parts that a fault keeps from being started again.
        lives: how often its disk was replaced.
        replaced_at: when it was last.
        flush: modes of its broker and replicator from their next start on, where they are not the plan's.
        backup: a copy of its store.
        seen: what invariants remember of it.
    """

    name: str
    address: str
    host: SimHost
    group: str
    number: int
    broker: BrokerNode | None = None
    replicator: ReplicatorNode | None = None
    up: bool = True
    held_down: set[str] = field(default_factory=set)
    lives: int = 0
    replaced_at: float = 0.0
    flush: dict[str, Mode] = field(default_factory=dict)
    backup: dict[str, bytes | None] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)

    @property
    def disk(self) -> SimDisk:
        """Its disk."""
        return self.host.disk

    @property
    def wall_ms(self) -> int:
        """What its clock says."""
        return self.host.wall_ns() // 1_000_000

    @property
    def page(self) -> SharedPage | None:
        """A copy of its page; None when there is none of this boot."""
        node = self.disk.find(ROOT / "whimbrel" / "watermark")
        if not isinstance(node, File) or node.size < PAGE_BYTES:
            return None
        data = node.cache()
        if data[8:24] != self.host.boot:
            return None
        return SharedPage(bytearray(data[:PAGE_BYTES]))


class Cluster:
    """A run of a plan.

    Attributes:
        history: what clients saw of the main topic.
        histories: the same, by topic.
        admin, ledger, tables, resets, classic, kinds: clients that not each plan has.
        log: lines for people about faults and restarts.
        processes, nodes: all that there ever were: what a dead process leaves is collected after the run.
        addresses: of hosts, by name.
        held: nameservers that a fault keeps from being started again.
        after_step: called after every fault and every CHECK_S.
        on_ack: called when a send was answered OK.
        takeovers: the person who sees to groups whose master is lost.
        elections: where the group elects its master; else None.
        operators: who gives commands to such a group, in plans that have them; else None.
        caught: power losses of all that were to come upon a send, and did.
    """

    CHECK_S = 0.5
    ROOT, LOG_FILE = ROOT, LOG_FILE

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.scheduler = Scheduler(plan.seed)
        self.network = SimNetwork(self.scheduler, random.Random(self.scheduler.rng.getrandbits(64)))
        self.history = History()
        self.histories = {TOPIC: self.history}
        others = [*plan.upkeep.topics, *sorted(plan.kinds)]
        self.histories |= {topic: History(losses=self.history.losses) for topic in others}
        self.kinds = Kinds(self)
        self.admin: AdminClient | None = None
        self.ledger: LedgerClient | None = None
        self.tables: TablesClient | None = None
        self.resets: ResetClient | None = None
        self.classic: ClassicClient | None = None
        self.log: list[str] = []
        self.processes: list[SimProcess] = []
        self.nodes: list[LoopNode | ReplicatorNode] = []
        self.nameservers: dict[str, tuple[SimHost, str, NameserverNode | None]] = {}
        self.members: dict[str, Member] = {}
        self.addresses: dict[str, str] = {}
        self.held: set[str] = set()
        self.after_step: list[Callable[[], None]] = []
        self.on_ack: list[Callable[[Sent], None]] = []
        self.elections = Elections(self) if plan.elected else None
        self.operators: Operators | None = None
        self.takeovers = Takeovers(self)
        self.caught = 0
        self.build()

    # Building

    def build(self) -> None:
        """Start everything."""
        plan = self.plan
        for number in range(plan.nameservers):
            self.addresses[f"n{number}"] = f"10.0.1.{number + 1}"
        for number, name in enumerate(plan.brokers):
            self.addresses[name] = f"10.0.0.{number + 1}"
        self.endpoints = tuple(
            f"{self.addresses[f'n{number}']}:{NAMESERVER_PORT}" for number in range(plan.nameservers)
        )
        for number in range(plan.nameservers):
            name = f"n{number}"
            host = SimHost(self.scheduler, self.nameserver_disk(), name=name)
            self.nameservers[name] = (host, self.addresses[name], None)
            self.start_nameserver(name)
        for group in range(plan.groups):
            for number, name in enumerate(plan.hosts_of(group)):
                host = SimHost(self.scheduler, self.new_disk(), name=name, line_share=plan.line_share)
                member = Member(name, self.addresses[name], host, BROKER_NAMES[group], number + plan.elected)
                member.flush = {part: mode for there, part, mode in plan.modes if there == name}
                self.members[name] = member
                self.start_replicator(member)
                self.start_broker(member)
        access = ";".join(self.endpoints)
        for number in range(2):
            name = f"c{number}"
            self.addresses[name] = f"10.0.2.{number + 1}"
            common: dict[str, Any] = {"endpoint": access, "topic": TOPIC}
            self.nodes.append(
                ProducerClient(
                    self.process(f"p{number}", self.addresses[name]),
                    self.network,
                    self.history,
                    pause_s=(0.01, 2.0),
                    aim=EXPIRING_SENDS if plan.upkeep.reserved_s else SENDS,
                    until=END_S - 12.0,
                    on_ack=self.acknowledged,
                    pads=(0, 200, 3000, 3000, 8000) if plan.upkeep.reserved_s else (0, 0, 200, 3000, 6000),
                    **common,
                )
            )
            if number == 0:
                consumer = self.process("consumer", self.addresses[name])
                self.nodes.append(
                    ConsumerClient(consumer, self.network, self.history, group=GROUPS[TOPIC], **common)
                )
            else:
                reader = self.process("reader", self.addresses[name])
                self.nodes.append(ReaderClient(reader, self.network, self.history, **common))
        self.bursts = BurstClient(
            self.process("p2", self.addresses["c1"]),
            self.network,
            self.history,
            endpoint=access,
            topic=TOPIC,
            pause_s=(0.0, 0.0),
            until=END_S,
            on_ack=self.acknowledged,
        )
        self.nodes.append(self.bursts)
        self.add_upkeep(access)
        if plan.operated and self.elections is not None:
            self.operators = Operators(self, self.elections, access)
        self.kinds.start(access)
        for fault in plan.faults:
            self.scheduler.at(fault.at, partial(self.happen, fault))
        self.scheduler.at(QUIET_S, self.heal)

    def add_upkeep(self, access: str) -> None:
        """Start the clients that not each plan has."""
        upkeep, network = self.plan.upkeep, self.network
        for topic in upkeep.topics:
            seldom = topic == SELDOM
            self.nodes.append(
                ProducerClient(
                    self.process(f"{topic}-producer", self.addresses["c0"]),
                    network,
                    self.histories[topic],
                    endpoint=access,
                    topic=topic,
                    pause_s=(0.1, 2.0),
                    aim=SENDS,
                    rest_s=(8.0, 52.0) if seldom else (0.0, 0.0),
                    until=8.0 if seldom and not upkeep.seldom_again else END_S - 12.0,
                    on_ack=self.acknowledged,
                )
            )
        if upkeep.deletions:
            process = self.process("transient-consumer", self.addresses["c1"])
            history = self.histories[TRANSIENT]
            self.nodes.append(
                ConsumerClient(
                    process, network, history, endpoint=access, topic=TRANSIENT, group=GROUPS[TRANSIENT]
                )
            )
            self.admin = AdminClient(
                self.process("admin", self.addresses["c1"]),
                network,
                endpoint=access,
                topic=TRANSIENT,
                times=upkeep.deletions,
                pause_s=(8.0, 14.0),
            )
            self.nodes.append(self.admin)
        if upkeep.commits:
            process = self.process("ledger", self.addresses["c1"])
            self.ledger = LedgerClient(
                process,
                network,
                endpoint=access,
                topic=TOPIC,
                master="" if self.plan.elected else self.addresses["b0"],
            )
            self.nodes.append(self.ledger)
        if self.plan.elected and not self.plan.loses:
            process = self.process("tables", self.addresses["c1"])
            self.tables = TablesClient(process, network, endpoint=access, until=QUIET_S)
            self.nodes.append(self.tables)
        if self.plan.classic:
            self.classic = ClassicClient(self.process("classic", self.addresses["c1"]), network, self, TOPIC)
            self.nodes.append(self.classic)
        if self.plan.resets:
            process = self.process("resets", self.addresses["c1"])
            self.resets = ResetClient(process, network, endpoint=access, topic=TOPIC, until=QUIET_S)
            self.nodes.append(self.resets)

    def acknowledged(self, sent: Sent) -> None:
        """Tell that a send was answered OK."""
        for look in self.on_ack:
            look(sent)

    def new_disk(self) -> SimDisk:
        """Return an empty disk with the directory of the store."""
        disk = SimDisk(random.Random(self.scheduler.rng.getrandbits(64)), own_entry=self.plan.own_entry)
        disk.format(ROOT)
        return disk

    def nameserver_disk(self) -> SimDisk:
        """Return an empty disk for a nameserver, with a directory for records of groups."""
        rng = random.Random(self.scheduler.rng.getrandbits(64) if self.plan.elected else 0)
        disk = SimDisk(rng, own_entry=self.plan.own_entry)
        if self.plan.elected:
            disk.format(GROUPS_FILE.parent)
        return disk

    def process(self, name: str, address: str, host: SimHost | None = None) -> SimProcess:
        """Return a new process."""
        host = host or SimHost(self.scheduler, SimDisk(random.Random(0)), name=name)
        rng = random.Random(self.scheduler.rng.getrandbits(64))
        process = SimProcess(name, address, host.process(name), self.scheduler, rng)
        self.processes.append(process)
        return process

    def start_nameserver(self, name: str) -> None:
        """Start a nameserver."""
        host, address, _ = self.nameservers[name]
        process = self.process(f"{name}.nameserver", address, host)
        options = NameserverOptions(
            host=address,
            port=NAMESERVER_PORT,
            expected_brokers=len(self.plan.brokers),
            keeps_groups=str(GROUPS_FILE) if self.plan.elected and name == "n0" else "",
        )
        node = NameserverNode(process, self.network, options)
        self.nameservers[name] = (host, address, node)
        self.nodes.append(node)

    def start_broker(self, member: Member) -> None:
        """Start a broker."""
        plan = self.plan
        process = self.process(f"{member.name}.broker", member.address, member.host)
        options = BrokerOptions(
            name=member.group,
            id=member.number,
            role=self.role_of(member),
            coordinator="nameserver" if plan.elected else "none",
            store=str(ROOT),
            host=member.address,
            port=BROKER_PORT,
            advertise_host=member.address,
            nameservers=self.endpoints,
            flush=member.flush.get("broker", plan.flush),
            replication=plan.replication,
            voters=self.voters(member.group),
            copies_min=plan.copies_min,
            expected_slaves=plan.slaves,
            auto_create_topics=True,
            auto_create_groups=True,
            commitlog_file_size=LOG_FILE,
            consumequeue_file_size=20 * 16,
            index_slots=64,
            index_entries=96,
            lease_file_size=32 * 1024,
            flush_interval_ms=500,
            transaction_timeout_ms=2000,
            transaction_check_interval_ms=3000,
            disk_full_ratio=1.0,
            full_disk="drop",
            **self.retention_options(),
        )
        member.broker = BrokerNode(process, self.network, options)
        self.nodes.append(member.broker)

    def voters(self, group: str) -> tuple[str, ...]:
        """Return the ids of those whose copies count where a majority commits."""
        if self.plan.replication != "majority":
            return ()
        if self.plan.elected:  # of a new group; afterwards its record counts
            return tuple(map(str, range(1, 2 + self.plan.slaves)))
        known = [member for member in self.members.values() if member.group == group]
        numbers = {member.number for member in known} if len(known) > self.plan.slaves else set()
        return tuple(map(str, sorted(numbers or range(1 + self.plan.slaves))))

    def role_of(self, member: Member) -> Literal["master", "slave", "elected"]:
        """Return the role that a member's processes are started with."""
        if self.plan.elected:
            return "elected"
        return "slave" if member.number else "master"

    def retention_options(self) -> dict[str, Any]:
        """Return what broker and replicator know of expiry."""
        reserved_s = self.plan.upkeep.reserved_s
        # Above no use of a disk, files expire at any hour; else those of 72 h ago, at 4.
        aged: dict[str, Any] = {"reserved_hours": reserved_s / 3600} if reserved_s else {}
        crowded = any(fault.kind == "crowded" for fault in self.plan.faults)
        return aged | {
            "disk_used_ratio_max": 0.0 if reserved_s else 1.0,
            "disk_clean_ratio": 0.95 if crowded else 1.0,
        }

    def start_replicator(self, member: Member) -> None:
        """Start a replicator."""
        process = self.process(f"{member.name}.replicator", member.address, member.host)
        options = ReplicatorOptions(
            role=self.role_of(member),
            id=member.number if self.plan.elected else 0,
            store=str(ROOT),
            host=member.address,
            port=HA_PORT,
            advertise_host=member.address,
            flush=member.flush.get("replicator", self.plan.flush),
            commitlog_file_size=LOG_FILE,
            **self.retention_options(),
        )
        member.replicator = ReplicatorNode(process, self.network, options)
        self.nodes.append(member.replicator)

    # Who is who

    @property
    def groups(self) -> list[str]:
        """Names of the groups."""
        return list(BROKER_NAMES[: self.plan.groups])

    def group(self, name: str) -> list[Member]:
        """Return a group's members."""
        return [member for member in self.members.values() if member.group == name]

    def master(self, group: str) -> Member:
        """Return the present master of a group."""
        if self.elections is not None:
            return self.elections.leader()
        return next(member for member in self.group(group) if not member.number)

    def slaves(self, group: str) -> list[Member]:
        """Return the present slaves of a group."""
        master = self.master(group)
        return [member for member in self.group(group) if member is not master]

    # Running

    def run(self, until: float = END_S) -> None:
        """Run to a virtual time.

        Raises:
            Exception: what checks found, and what a worker stumbled over.
        """
        self.scheduler.later(self.CHECK_S, self.check)
        self.scheduler.later(0.2, self.supervise)
        while True:
            try:
                self.scheduler.run_until(until)
            except Crash:  # out of a process that a fault has ended within a call (`fault_stop`)
                continue
            return

    def check(self) -> None:
        """Look at everything, again and again."""
        for look in self.after_step:
            look()
        self.scheduler.later(self.CHECK_S, self.check)

    def supervise(self) -> None:
        """Start again what has ended by itself."""
        for member in self.members.values():
            if not member.up:
                continue
            for part, start in (("broker", self.start_broker), ("replicator", self.start_replicator)):
                node = getattr(member, part)
                if node.process.dead and part not in member.held_down:
                    self.note(f"{member.name}.{part} is started again ({node.exit or 'killed'})")
                    start(member)
        for name, (_, _, nameserver) in list(self.nameservers.items()):
            up = self.network.up(self.addresses[name])
            if up and nameserver is not None and nameserver.process.dead and name not in self.held:
                self.start_nameserver(name)
        rng = self.scheduler.rng
        self.scheduler.later(rng.uniform(*RESTART_S), self.supervise)

    def note(self, text: str) -> None:
        """Keep a line for people."""
        self.log.append(f"{self.scheduler.now:8.3f} {text}")
        logger.info("%s", self.log[-1])

    # Faults

    def parts(self, name: str) -> tuple[SimProcess, Member | None, str]:
        """Return a process, its member if it has one, and by what it is held down."""
        host, part = name.split(".")
        if part == "nameserver":
            nameserver = self.nameservers[host][2]
            assert nameserver is not None
            return nameserver.process, None, host
        member = self.members[host]
        return getattr(member, part).process, member, part

    def happen(self, fault: Fault) -> None:
        """Let a fault happen, and end after its time."""
        if self.elections is not None:
            if fault.upon:
                self.elections.upon(fault)
                return
            fault = self.elections.resolve(fault)
        if not (self.elections or self.takeovers).bears(fault):
            self.note(f"{fault} is more than the modes promise to stand now: left out")
            return
        self.note(str(fault))
        if fault.kind not in OPERATIONS:
            getattr(self, f"fault_{fault.kind}")(fault)
        elif self.operators is not None:
            self.operators.give(fault)
        for look in self.after_step:
            look()

    def fault_kill(self, fault: Fault) -> None:
        """Kill a process; it stays away for a while."""
        process, member, part = self.parts(fault.target)
        if member is not None and not member.up:
            return
        held = self.held if member is None else member.held_down
        held.add(part)
        process.die()
        self.scheduler.later(fault.for_s, lambda: held.discard(part))

    def fault_crash(self, fault: Fault) -> None:
        """Kill a host's broker and replicator."""
        for part in PARTS:
            self.fault_kill(replace(fault, target=f"{fault.target}.{part}"))

    def fault_hang(self, fault: Fault) -> None:
        """Stop a host's broker and replicator for a while."""
        for part in PARTS:
            self.fault_pause(replace(fault, target=f"{fault.target}.{part}"))

    def fault_stop(self, fault: Fault) -> None:
        """End a process at one of its next calls of files, the amount says which; its host, for `power`."""
        process, member, _ = self.parts(fault.target)
        if process.dead:
            return
        files, left = process.machine.files, int(fault.amount)

        def count(call: str, _: tuple[Any, ...]) -> None:
            nonlocal left
            left -= 1
            if left:
                return
            files.on_call = None
            self.note(f"{process.name} ends at a call of {call}{', with its host' * bool(fault.other)}")
            if not fault.other:
                self.fault_kill(fault)
            elif member is None:
                self.lose_nameserver(fault.target.partition(".")[0], fault.for_s)
            else:
                self.lose_power(member, fault.for_s)

        files.on_call = count

    def fault_isolate(self, fault: Fault) -> None:
        """Cut a host off from the other members, and from nameservers as well unless `other` says so.

        An amount of 1: nothing comes to it any more; of 2: nothing comes from it.
        """
        here = self.addresses[fault.target]
        names = [*self.members, *(() if fault.other else self.nameservers)]
        others = [self.addresses[name] for name in names if name != fault.target]
        for other in others:
            if fault.amount != 2:
                self.network.cut(other, here)
            if fault.amount != 1:
                self.network.cut(here, other)

        def end() -> None:
            for other in others:
                self.network.mend(here, other)

        self.scheduler.later(fault.for_s, end)

    def fault_pause(self, fault: Fault) -> None:
        """Stop a process for a while."""
        process, _, _ = self.parts(fault.target)
        process.pause()
        self.scheduler.later(fault.for_s, process.resume)

    def fault_cut(self, fault: Fault) -> None:
        """Cut two hosts off from each other, or one way."""
        one, other = self.addresses[fault.target], self.addresses[fault.other]
        self.network.cut(other, one)
        if not fault.amount:
            self.network.cut(one, other)
        self.scheduler.later(fault.for_s, lambda: self.network.mend(one, other))

    def fault_reset(self, fault: Fault) -> None:
        """Lose connections."""
        self.network.lose_connections(fault.amount)

    def fault_power(self, fault: Fault) -> None:
        """Let a host lose power."""
        if fault.target in self.nameservers:
            self.lose_nameserver(fault.target, fault.for_s)
        else:
            self.lose_power(self.members[fault.target], fault.for_s)

    def lose_nameserver(self, name: str, for_s: float) -> None:
        """Let a nameserver's host lose power, and come back."""
        host, address, node = self.nameservers[name]
        assert node is not None
        if not self.network.up(address):
            return
        self.network.lose_power(address)
        self.held.add(name)
        node.process.die()
        host.power_loss()

        def power_on() -> None:
            self.network.power_on(address)
            self.held.discard(name)

        self.scheduler.later(for_s, power_on)

    def fault_power_all(self, fault: Fault) -> None:
        """Let all hosts with brokers lose power."""
        for member in self.members.values():
            self.lose_power(member, fault.for_s * self.scheduler.rng.uniform(0.5, 1.5))

    def fault_power_sending(self, fault: Fault) -> None:
        """Let all hosts of the group lose power as soon as a send has begun that has no answer."""
        sending = self.sending() if all(member.up for member in self.members.values()) else []
        if sending:
            self.note(f"power is lost while {' and '.join(sending)} are sent")
            self.caught += 1
            self.fault_power_all(fault)
        elif self.scheduler.now < QUIET_S:
            self.scheduler.later(self.scheduler.rng.uniform(*LOOK_S), lambda: self.fault_power_sending(fault))

    def sending(self) -> list[str]:
        """Return the sends that began a moment ago and have no answer."""
        sends, since = self.history.sends.values(), self.scheduler.now - SENDING_S
        return [repr(sent.id) for sent in sends if sent.began >= since and sent.ended == float("inf")]

    def lose_power(self, member: Member, for_s: float | None, disk: SimDisk | None = None) -> None:
        """Let a host lose power, and come back unless that is for good, with another disk if one is given."""
        if not member.up:
            return
        self.takeovers.loses(member, all_of_it=disk is not None)
        self.network.lose_power(member.address)
        self.halt(member)
        member.host.power_loss(disk=disk)
        if disk is not None:
            member.lives += 1
            member.replaced_at = self.scheduler.now
        if for_s is not None:
            self.scheduler.later(for_s, lambda: self.power_on(member))

    def halt(self, member: Member) -> None:
        """End a host's processes, until it is powered on."""
        member.up = False
        if self.elections is None:  # else what was seen stays, whoever is lost
            self.history.losses.append(self.scheduler.now)
        for node in (member.broker, member.replicator):
            assert node is not None
            node.process.die()
        member.seen.clear()

    def power_on(self, member: Member) -> None:
        """Start a host again."""
        member.up = True
        self.network.power_on(member.address)
        parts = [self.start_broker, self.start_replicator]
        if self.scheduler.rng.random() < 0.5:
            parts.reverse()
        for start in parts:
            start(member)

    def fault_slow(self, fault: Fault) -> None:
        """Let a disk take its time for a while."""
        host = self.members[fault.target].host
        host.slow_s = SLOW_SYNC_S

        def end() -> None:
            host.slow_s = None

        self.scheduler.later(fault.for_s, end)

    def fault_burst(self, fault: Fault) -> None:
        """Let many messages come at once."""
        self.bursts.burst(int(fault.amount))

    def fault_promote(self, fault: Fault) -> None:
        """Lose a master for good; `takeover.py` says what follows."""
        self.takeovers.lose_master(fault)

    fault_rejoin = fault_shorter = fault_promote

    def fault_replace(self, fault: Fault) -> None:
        """Give a slave an empty disk; an operator names it a voter again."""
        self.lose_power(self.members[fault.target], fault.for_s, disk=self.new_disk())
        if self.operators is not None:
            self.operators.name_again(after_s=fault.for_s)

    def fault_backup(self, fault: Fault) -> None:
        """Copy a store while its processes run."""
        member = self.members[fault.target]
        member.backup = member.disk.tree(ROOT)

    def fault_restore(self, fault: Fault) -> None:
        """Put the copy of a store in its place; an operator names its member a voter again."""
        member = self.members[fault.target]
        if not member.backup:
            return
        self.lose_power(member, fault.for_s)
        self.changed_by_hand(member)
        member.disk.put_tree(ROOT, member.backup)
        if self.operators is not None:
            self.operators.name_again(after_s=fault.for_s)

    def fault_set_aside(self, fault: Fault) -> None:
        """Stop a member, have a record of its log go bad so many bytes before its end, and cut it there."""
        member = self.members[fault.target]
        page = member.page
        if not member.up or page is None or page.written - page.begin <= fault.amount:
            return
        self.fault_crash(fault)
        self.changed_by_hand(member)
        at = page.written - int(fault.amount)

        def cut(machine: Machine) -> None:
            files, start = machine.files, at - at % LOG_FILE
            fd = files.open(ROOT / "commitlog" / segment_name(start), os.O_RDWR | os.O_CLOEXEC)
            place = 0
            while place + (size := int.from_bytes(files.pread(fd, 4, place))) <= at - start:
                place += size
            files.pwrite(fd, b"\xff" * 8, place)
            files.fsync(fd)
            files.close(fd)
            set_aside(ROOT, examine(ROOT, machine=machine), machine=machine)

        self.by_tool(member, cut)

    def fault_damage(self, fault: Fault) -> None:
        """Let a host crash, and its files of topics and groups be damaged: their predecessors are there."""
        member = self.members[fault.target]
        if not member.up:
            return
        self.fault_crash(fault)

        def damage(machine: Machine) -> None:
            files = machine.files
            for name in ("topics.json", "subscriptionGroup.json"):
                path = ROOT / "config" / name
                if files.exists(path):
                    fd = files.open(path, os.O_RDWR | os.O_CLOEXEC)
                    files.ftruncate(fd, 7)
                    files.close(fd)

        self.by_tool(member, damage)

    def fault_recover(self, fault: Fault) -> None:
        """Let a host lose power; before its processes start, a tool opens the log and closes it in order."""
        member = self.members[fault.target]
        self.lose_power(member, fault.for_s)
        options = StoreOptions(commitlog_file_size=LOG_FILE)
        self.by_tool(member, lambda machine: LogWriter.open(ROOT, options, machine=machine).close())

    def fault_flush(self, fault: Fault) -> None:
        """Have a member's processes be set to another flush mode from their next start on: synchronous."""
        self.members[fault.target].flush = {"broker": "sync", "replicator": "sync"}

    def changed_by_hand(self, member: Member) -> None:
        """Take note that a member's log may have less now, whatever its seat says."""
        member.lives += 1
        member.replaced_at = self.scheduler.now
        member.seen.clear()

    def by_tool(self, member: Member, work: Callable[[Machine], None]) -> None:
        """Run a command on a store at rest, to its end."""
        process = self.process(f"{member.name}.tool", member.address, member.host)
        with process.running():
            work(process.machine)
        process.die()

    def fault_gone(self, fault: Fault) -> None:
        """Let a host lose power whatever the modes promise, with an amount of 1 its disk as well."""
        self.history.losses.append(self.scheduler.now)
        self.lose_power(
            self.members[fault.target], fault.for_s, disk=self.new_disk() if fault.amount else None
        )

    def fault_resume(self, fault: Fault) -> None:
        """Let all go on that are paused."""
        for part in PARTS:
            self.parts(f"{fault.target}.{part}")[0].resume()

    def fault_mend(self, fault: Fault) -> None:
        """Let everything pass between two hosts again."""
        self.network.mend(self.addresses[fault.target], self.addresses[fault.other])

    def fault_clock(self, fault: Fault) -> None:
        """Let a wall clock jump."""
        self.members[fault.target].host.jump(fault.amount)

    def fault_sync_error(self, fault: Fault) -> None:
        """Let the next syncs of the log fail with EIO."""
        self.takeovers.loses(self.members[fault.target], all_of_it=False)
        disk = self.members[fault.target].disk
        # One count for commitlog/ and whimbrel/segment-*, since a log file was opened under its first name.
        disk.inject("sync", path=f"{ROOT}/[cw][oh][mi]*/*[0-9][0-9][0-9][0-9]", times=int(fault.amount))

    def fault_full(self, fault: Fault) -> None:
        """Let a disk have no room for a while, or for so many bytes."""
        disk = self.members[fault.target].disk
        disk.capacity = disk.used + int(fault.amount)

        def end() -> None:
            disk.capacity = None

        self.scheduler.later(fault.for_s, end)

    def fault_crowded(self, fault: Fault) -> None:
        """Let others fill the disk of a host while it follows, up to where retention removes files; there is
        room for ours. What a leader removes so is given up, which no check takes into account."""
        member = self.members[fault.target]
        member.disk.crowded = lambda: not isinstance(role_of(member), MasterRole)

    def heal(self) -> None:
        """End all faults."""
        self.note("healed")
        self.network.heal()
        self.held.clear()
        for process in self.processes:
            process.resume()
            process.machine.files.on_call = None
        for member in self.members.values():
            member.held_down.clear()
            member.disk.heal()
            member.disk.capacity, member.disk.crowded = None, bool
        if self.operators is not None:
            self.operators.tidy()
