"""Records the lag of consumer groups: what brokers report, snapshot by snapshot, as files for the job `lag`.

    FOLDER/dt=2026-11-21/2026-11-21T14-03-00.120Z.jsonl      one file for each snapshot, named by its time

A file is written under a name that begins with `_`, which Spark and others ignore, synced and renamed: so a
reader sees the whole file or none. Its first line says how the snapshot was taken, each further one is a
group's state on one queue; `v` is the version of the format, and `at` milliseconds since the epoch:

    {"v": 1, "kind": "snapshot", "at": ..., "every_ms": 60000, "silent": ["broker-b"]}
    {"v": 1, "kind": "queue", "at": ..., "group": "billing", "topic": "orders", "broker": "broker-a",
     "queue": 0, "committed": 120, "end": 150, "lag": 30}

`silent` names the brokers that did not answer, including those that this recorder has seen earlier and that
are gone. `lag` is the broker's number: the messages of a queue that the group has not acknowledged. A message
acknowledged out of order does not count, though `committed` stays below it.

Brokers are asked as by `whimbrel group describe`: the nameserver for the brokers, then each master for each
group, or a slave while the master does not answer; over one connection a broker. Recording needs neither
Spark nor Java.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from whimbrel.errors import GroupNotFound, WhimbrelError
from whimbrel.model.cluster import BrokerStatus
from whimbrel.rpc.api import admin_calls
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark import nameservers
from whimbrel.spark.reporting import ProgressCallback

__all__ = ["VERSION", "GroupPoller", "QueueLag", "Snapshot", "record", "save"]

VERSION = 1
ANSWER_S = 10.0  # of one call


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLag:
    """A group on one queue."""

    group: str
    topic: str
    broker: str
    queue: int
    committed: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of groups at one time; `silent` are the brokers that did not answer."""

    queues: tuple[QueueLag, ...]
    silent: tuple[str, ...]


class GroupPoller:
    """Polls the brokers that a nameserver knows for the state of groups.

    Attributes:
        known: names of the brokers that were ever seen, or that the nameserver says are absent.
    """

    def __init__(self, endpoint: str, groups: Sequence[str] = ()) -> None:
        """Take the nameserver's address and the groups; without any, all groups are polled."""
        self.endpoint, self.groups = endpoint, tuple(groups)
        self.known: set[str] = set()

    def poll(self, on_progress: ProgressCallback) -> Snapshot:
        """Return the state of the groups now.

        Raises:
            WhimbrelError: the nameserver does not answer, and no broker was seen before.
        """
        members: dict[str, list[BrokerStatus]] = {}
        try:
            cluster = nameservers.describe_cluster(self.endpoint, ANSWER_S)
        except WhimbrelError as error:
            if not self.known:
                raise
            on_progress(f"the nameserver does not answer: {error}")
        else:
            for broker in sorted(cluster.brokers, key=lambda broker: broker.broker_id):
                members.setdefault(broker.broker_name, []).append(broker)
            self.known = (
                self.known | {group.broker_name for group in cluster.absent_groups}
            ) - cluster.forgotten
        self.known |= members.keys()
        queues: list[QueueLag] = []
        silent = sorted(self.known - members.keys())
        for name, brokers in members.items():
            found = self.ask(name, brokers, on_progress)
            if found is None:
                silent.append(name)
            else:
                queues += found
        return Snapshot(tuple(queues), tuple(silent))

    def ask(
        self, name: str, members: Sequence[BrokerStatus], on_progress: ProgressCallback
    ) -> list[QueueLag] | None:
        """Return the groups' state on a broker, from the first member that answers; None when none does."""
        for broker in members:
            try:
                with open_channel(broker.address) as channel:
                    return list(self.described(channel, name))
            except WhimbrelError as error:
                on_progress(f"{broker.role} {name} at {broker.address} does not answer: {error}")
        return None

    def described(self, channel: grpc.Channel, broker: str) -> Iterator[QueueLag]:
        """Yield the groups' state on one broker."""
        groups: Sequence[str] = self.groups or [
            group.name for group in perform_blocking(channel, admin_calls.list_groups(), (), ANSWER_S)
        ]
        for group in groups:
            with contextlib.suppress(GroupNotFound):  # not on this broker, or deleted in between
                found = perform_blocking(channel, admin_calls.describe_group(group, broker), (), ANSWER_S)
                for one in found.progress:
                    yield QueueLag(
                        group=group,
                        topic=one.topic,
                        broker=broker,
                        queue=one.queue_id,
                        committed=one.committed_offset,
                        end=one.max_offset,
                        lag=one.lag,
                    )


def record(
    folder: Path,
    poll: Callable[[], Snapshot],
    *,
    every_s: float,
    for_s: float | None,
    clock: Callable[[], float],
    wait: Callable[[float], bool],
    on_progress: ProgressCallback,
) -> int:
    """Take snapshots until the time is over or `wait` returns true; return how many.

    The first is taken at once, the others at whole multiples of `every_s` after it. If one takes longer than
    that, those that were due meanwhile are left out: the record then has a gap, which the job reports.

    Args:
        folder: where they go; created if it is not there.
        poll: asks the brokers.
        every_s: seconds between two snapshots.
        for_s: seconds after which to end; None for never.
        clock: returns seconds since the epoch.
        wait: waits so many seconds; returns true to end now.
        on_progress: called with a line for each snapshot.

    Raises:
        WhimbrelError: the first snapshot failed, since nothing answers.
        OSError: a file can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begun = clock()
    count, turn = 0, 0
    while True:
        at = clock()
        found = poll()
        path = save(folder, found, at_ms=round(at * 1000), every_ms=round(every_s * 1000))
        count += 1
        missing = f"; silent: {', '.join(found.silent)}" if found.silent else ""
        on_progress(
            f"{path.name}: {len(found.queues)} queues of groups,"
            f" lag {sum(queue.lag for queue in found.queues)}{missing}"
        )
        turn = max(turn, int((clock() - begun) // every_s)) + 1
        due = begun + turn * every_s
        if for_s is not None and due > begun + for_s:
            return count
        if wait(max(due - clock(), 0.0)):
            return count


def save(folder: Path, found: Snapshot, *, at_ms: int, every_ms: int) -> Path:
    """Write a snapshot; return its file."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    day = folder / f"dt={at:%Y-%m-%d}"
    day.mkdir(parents=True, exist_ok=True)
    path = day / f"{at:%Y-%m-%dT%H-%M-%S}.{at_ms % 1000:03d}Z.jsonl"
    head = {"v": VERSION, "kind": "snapshot", "at": at_ms, "every_ms": every_ms, "silent": found.silent}
    rows = [{"v": VERSION, "kind": "queue", "at": at_ms, **asdict(queue)} for queue in found.queues]
    temporary = path.with_name(f"_{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in (head, *rows))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    for changed in (day, folder):
        handle = os.open(changed, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    return path
