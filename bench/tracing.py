"""What tracing costs on the send path, behind the transport: CPU of the broker's thread for each message.

    python bench/tracing.py [--rounds N] [--messages N]

Variants take turns, round by round, on stores of their own; printed are medians and their ratio to the path
without tracing, from this one run. Spans go to a file. `baseline again` is the first variant once more: its
ratio is the noise. The transport comes on top; the shares of whole sends are therefore smaller than those
printed.
"""

import argparse
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whimbrel.broker.api.send import SendService
from whimbrel.broker.engine.send import Sends
from whimbrel.broker.options import BrokerOptions
from whimbrel.broker.produce.appender import Appender, Durability
from whimbrel.broker.record_traces import BrokerTraces
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call
from whimbrel.store.codec import pack_host
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

REQUESTS = 200  # different ones, sent over and over
VARIANTS: dict[str, float | None] = {
    "tracing off": None,
    "on, ratio 0": 0.0,
    "on, ratio 0.01": 0.01,
    "on, ratio 1": 1.0,
    "baseline again": None,
}


class Ticks:
    """The part of an event loop that the send path uses."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def time(self) -> float:
        """Seconds."""
        return time.monotonic()

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run it at the end of the tick."""
        self.due.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> None:
        """Timers are not needed here."""

    def end(self) -> None:
        """End the tick."""
        due, self.due = self.due, []
        for callback in due:
            callback()


class SendPath:
    """One send path over a store of its own."""

    def __init__(self, root: Path, ratio: float | None) -> None:
        def now() -> int:
            return time.time_ns() // 1_000_000

        self.ticks = Ticks()
        self.store = MasterStore.open(root, StoreOptions(commitlog_file_size=1 << 28), clock=now)
        topics = TopicTable(root / "config", cluster="C", broker_name="b", auto_create=True, clock=now)
        appender = Appender(self.store, self.store.page, Durability(), self.ticks, ring=lambda: None)
        appender.refusal = ""
        groups = GroupTable(root / "config", auto_create=True, clock=now)
        engine = Sends(
            topics,
            GroupCreation(topics, groups, master=True, clock=time.monotonic),
            appender,
            cluster="C",
            store_host=pack_host("127.0.0.1", 1),
            clock=now,
        )
        self.sends = SendService(engine, now)
        self.traces: BrokerTraces | None = None
        if ratio is not None:
            target = f"file:{root / 'spans.jsonl'}"
            options = BrokerOptions(store=str(root), trace_to=target, trace_ratio=ratio)
            self.traces = BrokerTraces(options)
            engine.trace(self.traces.of_sends(self.store, lambda callback: callback()), ratio)

    def run(self, requests: list[bytes], count: int) -> float:
        """Send so many requests; return microseconds of this thread's CPU for each."""
        parse = messaging.SendMessageRequest.FromString
        began = time.thread_time()
        for at in range(count):
            call = Call(method="SendMessage", peer="127.0.0.1:5000", metadata={}, deadline=None)
            self.sends.send(call, parse(requests[at % REQUESTS])).SerializeToString()
            self.ticks.end()
        return (time.thread_time() - began) / count * 1e6

    def close(self) -> None:
        """Close store and tracer."""
        if self.traces is not None:
            self.traces.close()
        self.store.close()


def request() -> bytes:
    """Return an encoded send of one message of 1 KiB without a trace context."""
    built: Any = messaging.SendMessageRequest()
    message = built.messages.add(body=b"x" * 1024)
    message.topic.name = "Bench"
    system = message.system_properties
    system.message_id = "01" + secrets.token_hex(16).upper()
    system.born_timestamp.seconds, system.born_host = 1_700_000_000, "host"
    system.message_type, system.body_encoding = 1, 1
    system.keys.append(f"key-{secrets.token_hex(6)}")
    encoded: bytes = built.SerializeToString()
    return encoded


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--messages", type=int, default=2000, help="of each variant in each round")
    arguments = parser.parse_args()
    requests = [request() for _ in range(REQUESTS)]
    with tempfile.TemporaryDirectory() as folder:
        paths = {
            name: SendPath(Path(folder, str(at)), ratio) for at, (name, ratio) in enumerate(VARIANTS.items())
        }
        costs: dict[str, list[float]] = {name: [] for name in paths}
        for path in paths.values():
            path.run(requests, REQUESTS)
        names = list(paths)
        for turn in range(arguments.rounds):
            start = turn % len(names)  # none always runs behind the same other one
            for name in names[start:] + names[:start]:
                costs[name].append(paths[name].run(requests, arguments.messages))
        for path in paths.values():
            path.close()
    first = costs["tracing off"]
    print(f"{'variant':<16} {'us a message':>12} {'ratio, median of rounds':>24}")
    for name, found in costs.items():
        ratio = statistics.median(one / other for one, other in zip(found, first, strict=True))
        print(f"{name:<16} {statistics.median(found):>12.2f} {ratio:>24.3f}")


if __name__ == "__main__":
    main()
