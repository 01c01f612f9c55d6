"""What the gate costs: CPU of a master's store for a message that is seen once it is committed.

    python bench/gate.py [--blocks 200]

Two stores of this process take the same messages, in turns of 640: one shows what it has appended at once,
the other one after `commit`, which is called for 1, 8 or 32 appends together. "Python": one `append` each.
"The lane": `append_packed`, as after a pass of the compiled lane, of 1, 8 or 32 records. Printed are medians
of the turns, in us a message, and of the differences of turns that follow each other.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from whimbrel.store.codec import UNIT, RecordDraft, encode_record, format_properties, pack_host
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

TOGETHER = (1, 8, 32)
QUEUES = 4
BLOCK = 640  # messages of a turn
BODY = bytes(100)  # what is longer is copied longer, on both sides
HOST = pack_host("127.0.0.1", 8081)
NOW = 1_800_000_000_000
OPTIONS = StoreOptions(flush_interval_ms=3_600_000)

Write = Callable[[MasterStore, int], None]


def draft(queue_id: int) -> RecordDraft:
    """Return a message without keys: with them both stores do the same work for the index."""
    return RecordDraft.from_properties(
        topic="gate", queue_id=queue_id, body=BODY, properties=format_properties([("TAGS", "t")]),
        born_timestamp=NOW, born_host=HOST, store_host=HOST,
    )  # fmt: skip


DRAFTS = [[draft(queue_id)] for queue_id in range(QUEUES)]
RECORD = encode_record(DRAFTS[0][0], 0, 0, NOW)  # its place is wrong, which nobody reads here
ENTRY = UNIT.pack(0, len(RECORD), 0)


def by_python(store: MasterStore, together: int) -> None:
    """Append a turn one by one; commit so many together."""
    append, gated = store.append, store.uncommitted is not None
    for begin in range(0, BLOCK, together):
        for number in range(begin, begin + together):
            append(DRAFTS[number % QUEUES])
        if gated:
            store.commit(store.writer.end)


def by_lane(store: MasterStore, together: int) -> None:
    """Append so many to one queue at once, as they come from a pass; commit them."""
    gated = store.uncommitted is not None
    records, entries = RECORD * together, ENTRY * together
    runs = [(store.queues.get_or_create("gate", 0), entries, 0)]
    for _ in range(0, BLOCK, together):
        if store.room_for_packed() < len(records):
            append_one(store)  # into the next file
        assert store.append_packed(records, runs, b"", together, NOW)
        if gated:
            store.commit(store.writer.end)
        else:
            store.make_visible(runs)


def append_one(store: MasterStore) -> None:
    """Append a message that the lane has no room for."""
    store.append(DRAFTS[0])
    if store.uncommitted is not None:
        store.commit(store.writer.end)


def tell_nobody(*_: object) -> None:
    """Stand for receives that wait."""


@contextmanager
def opened(committed: int | None) -> Iterator[MasterStore]:
    """Give a new store, with the gate or without."""
    with tempfile.TemporaryDirectory(prefix="gate-") as folder:
        store = MasterStore.open(Path(folder), OPTIONS, clock=lambda: NOW, committed=committed)
        store.dispatcher.on_arrival = tell_nobody
        try:
            yield store
        finally:
            store.close()


def timed(write: Write, store: MasterStore, together: int) -> float:
    """Return us a message of one turn."""
    began = time.thread_time_ns()
    write(store, together)
    return (time.thread_time_ns() - began) / BLOCK / 1000


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="what the gate costs")
    parser.add_argument("--blocks", type=int, default=200, help="turns of each store")
    given = parser.parse_args()
    print("| Messages come by | committed together | without, us | with | the gate |\n|---|---|---|---|---|")
    for name, write in (("Python", by_python), ("the lane", by_lane)):
        for together in TOGETHER:
            with opened(None) as plain, opened(0) as gated:
                turns = [
                    (timed(write, plain, together), timed(write, gated, together))
                    for _ in range(given.blocks)
                ]
            without, with_it = (statistics.median(times) for times in zip(*turns, strict=True))
            gate = statistics.median(after - before for before, after in turns)
            print(f"| {name} | {together} | {without:.2f} | {with_it:.2f} | {gate:.2f} |")


if __name__ == "__main__":
    main()
