"""What `beside.py` measures: clusters of ours, RocketMQ's brokers and its proxy, each with its generator."""

import contextlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPO / "services"), str(REPO / "tests"), str(REPO / "bench")]

import raw  # noqa: E402 - its modes and points, and its way to count CPU
from beside_tables import BY_REMOTING, OURS, WITH_LANE  # noqa: E402
from raw import READS, SENDS, Row, quiet  # noqa: E402
from run import FULL_SIZES, page, tool  # noqa: E402

from support.cluster import processes  # noqa: E402 - the tests' ways to start our processes, and RocketMQ's
from support.systems import real_broker  # noqa: E402
from support.waiting import polls  # noqa: E402

PEER_SETTINGS: dict[str, dict[str, object]] = {
    "none": {},
    "slave": {},
    "sync": {"inSyncReplicas": 2, "totalReplicas": 2},
    "flush": {"flushDiskType": "SYNC_FLUSH"},
}
# What RocketMQ's own start script gives a broker, as far as a machine with few cores allows it.
PEER_JAVA = {
    "RMQ_HEAP": "2g",
    "JAVA_OPT_EXTRA": "-XX:-UseSerialGC -XX:+UseG1GC -XX:G1HeapRegionSize=16m -XX:G1ReservePercent=25"
    " -XX:InitiatingHeapOccupancyPercent=30 -XX:SoftRefLRUPolicyMSPerMB=0",
}
PEER_QUIET_CPU_S = 0.04  # in `raw.QUIET_S`: idle JVMs take some of it
CORE = ("c1", "c32", "c32x32", "c256", "c256x256", "batch")  # of all systems in all modes
SETTLE_S_MAX = 60.0
SDK_LANGUAGES = ("java", "go", "python")
ENTRY = struct.Struct(">qiq")  # of a queue file: position, size, hash of the tag


@dataclass
class System:
    """What is measured: one master, perhaps a slave, and the generator that calls it."""

    name: str
    mode: str
    tool: str
    address: str
    pids: dict[str, int]
    stores: list[Path]
    quiet_cpu_s: float = raw.QUIET_CPU_S
    made: processes.Cluster | None = None
    access: str = ""  # what an SDK is given
    remoting: tuple[str, ...] = ()  # a RocketMQ's addresses: the master's, the slave's
    names: str = ""  # its name server's

    def can(self, point: str) -> bool:
        """Tell whether there are such calls, and whether they are measured in this mode."""
        if point in CORE:
            return True
        if self.mode != "none":
            return False
        if self.name == "proxy":
            return not point.startswith("pull")
        return self.tool == "v2calls" or point.startswith("pull")


def entries(path: Path) -> int:
    """Count the entries of a queue file; those behind them are zeroes."""
    with path.open("rb") as file:
        low, high = 0, path.stat().st_size // ENTRY.size
        while low < high:
            middle = (low + high) // 2
            data = os.pread(file.fileno(), ENTRY.size, middle * ENTRY.size)
            if len(data) == ENTRY.size and ENTRY.unpack(data)[1] > 0:
                low = middle + 1
            else:
                high = middle
    return low


def stored(store: Path, topic: str) -> int:
    """Count what the queues of a topic hold."""
    return sum(map(entries, (store / "consumequeue" / topic).glob("*/*")))


def settle(system: System, topic: str, wanted: int) -> list[int]:
    """Wait until all stores have so many messages of a topic and no process has work left.

    Returns:
        How many each store has: more or less than was wanted is for the caller to tell.
    """
    for _ in polls(SETTLE_S_MAX):
        if all(stored(store, topic) >= wanted for store in system.stores):
            break
    if system.made is not None:
        raw.caught_up(system.made)
    quiet(system.pids.values(), system.quiet_cpu_s)
    return [stored(store, topic) for store in system.stores]


def generate(system: System, point: str, *arguments: object) -> Row:
    """Run the generator of a system; what it counts as errors is left to the caller."""
    row = tool(system.tool, "--addr", system.address, *arguments)
    if "failed" in row:
        raise RuntimeError(f"{system.name} {system.mode} {point}: {row['failed']}")
    return row


def fill(system: System, topic: str, count: int) -> None:
    """Send so many messages in batches."""
    generate(system, topic, "--topic", topic, *SENDS["batch"], "--count", count // raw.BATCH * raw.BATCH)


def log_end(system: System) -> int:
    """Return how long the master's log is."""
    if system.made is None:
        with real_broker.Remoting(system.remoting[0]) as broker:
            return broker.log_end()
    with contextlib.closing(page(system.stores[0])) as marks:
        return int(marks.written)


def kind_of(process: processes.Process) -> str:
    """Return what a process of ours is in the table."""
    role = process.name.partition("-")[0]
    return f"{role}'s replicator" if process.kind == "replicator" else role


@contextlib.contextmanager
def ours(name: str, mode: str, scratch: Path, *, verify: bool = True, **more: object) -> Iterator[System]:
    """A cluster of ours, verified at its end."""
    slaves, options = raw.MODES[mode]
    os.environ["WHIMBREL_TEST_LANE"] = "required" if name in WITH_LANE else "off"
    with processes.Cluster(scratch, slaves=slaves, broker=FULL_SIZES | options | more) as made:
        made.wait_usable()
        pids = {kind_of(process): process.pid for process in made.processes}
        stores = [process.store for process in (made.master, *made.slaves)]
        words = ["topic", "create", "Lag", "--queues", "1", "--endpoint", made.endpoint]
        command = [sys.executable, "-c", processes.COMMAND, *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=processes.environment())
        kind = "remload" if name in BY_REMOTING else "v2calls"
        yield System(name, mode, kind, made.master.grpc, pids, stores, made=made, access=made.endpoint)
        if verify and (why := raw.verify(made)):
            raise RuntimeError(f"{name} {mode}: {why}")


@contextlib.contextmanager
def theirs(name: str, mode: str, scratch: Path, **more: object) -> Iterator[System]:
    """A RocketMQ."""
    version = "5.3.3" if name == "proxy" else name
    settings = PEER_SETTINGS[mode] | more
    with contextlib.ExitStack() as stack:

        def started(server: real_broker.Server) -> real_broker.Server:
            stack.callback(server.kill)
            server.start()
            return server

        registry = started(real_broker.name_server(version, scratch / "names"))
        names = registry.address
        role = "SYNC_MASTER" if mode == "sync" else "ASYNC_MASTER"
        if name == "proxy":
            master = started(real_broker.proxy(scratch / "master", names, **settings))
        else:
            master = started(real_broker.broker(version, scratch / "master", role, names, **settings))
        servers = [master]
        if mode in ("slave", "sync"):
            servers.append(started(real_broker.broker(version, scratch / "slave", "SLAVE", names, **more)))
        make_topics(master.address, "Beside", *(f"Beside-{each}" for each in (*READS, *SDK_LANGUAGES)))
        make_topics(master.address, "Lag", queues=1)
        follow(servers)
        pids = {"nameserver": registry.pid}
        pids |= {("master", "slave")[at]: server.pid for at, server in enumerate(servers)}
        yield System(
            name,
            mode,
            "v2calls" if name == "proxy" else "remload",
            master.grpc or master.address,
            pids,
            [server.store for server in servers],
            PEER_QUIET_CPU_S,
            access=master.grpc,
            remoting=tuple(server.address for server in servers),
            names=names,
        )


def make_topics(address: str, *topics: str, queues: int = 4) -> None:
    """Create topics in a RocketMQ broker."""
    with real_broker.Remoting(address) as broker:
        for topic in topics:
            broker.create_topic(topic, queues, attributes="+message.type=NORMAL")


def follow(servers: list[real_broker.Server]) -> None:
    """Wait until a RocketMQ takes messages and its slave has them."""
    for _ in polls(SETTLE_S_MAX, every_s=0.3):
        sent = tool(
            "remload", "--addr", servers[0].address, "--topic", "First", "--mode", "probe", "--secs", 30
        )
        ends = set()
        for server in servers:
            with real_broker.Remoting(server.address) as broker:
                ends.add(broker.log_end())
        if sent.get("ok") and len(ends) == 1 and min(ends) > 0:
            return
    raise RuntimeError("RocketMQ takes no messages, or its slave does not follow")


def start(
    name: str, mode: str, scratch: Path, *, verify: bool, **more: object
) -> AbstractContextManager[System]:
    """Start a system."""
    return (
        ours(name, mode, scratch, verify=verify, **more)
        if name in OURS
        else theirs(name, mode, scratch, **more)
    )


def installed(wheels: Path, work: Path, *, lane: bool) -> str:
    """Let our servers run from an environment with the wheels installed; return what it says it is."""
    found = sorted(wheels.glob("whimbrel-*.whl"), key=lambda wheel: "abi3" in wheel.name)[-1:]
    if not found:
        raise SystemExit(f"there are no wheels in {wheels}: `make release` builds them")
    if lane and "abi3" not in found[0].name:
        raise SystemExit(
            f"there is no wheel with the compiled lane in {wheels}: `make release` builds it;"
            " without it: --only python 4.9.3 5.3.3 proxy"
        )
    uv = shutil.which("uv") or str(REPO / ".venv" / "bin" / "uv")
    python, pins = work / "env" / "bin" / "python", work / "pins.txt"
    subprocess.run([uv, "venv", "-q", "--clear", "--python", sys.executable, work / "env"], check=True)
    export = ["export", "-q", "--frozen", "--no-dev", "--no-hashes", "--no-emit-project", "-o", str(pins)]
    subprocess.run([uv, *export], cwd=REPO, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([uv, "pip", "install", "-q", "--python", python, "-c", pins, *found], check=True)
    processes.PYTHON = str(python)
    version = [str(python.with_name("whimbrel")), "--version"]
    environment = {name: value for name, value in processes.environment().items() if name != "PYTHONPATH"}
    return subprocess.check_output(version, env=environment, text=True).strip()
