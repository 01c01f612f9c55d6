"""What the store's tests share: small options, drafts, and stores and logs opened with them."""

from pathlib import Path

from whimbrel.machine import FILES, Machine
from whimbrel.store.codec import RecordDraft, format_properties, pack_host
from whimbrel.store.commitlog import LogWriter
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

__all__ = ["FILE", "NOW", "OPTIONS", "make_draft", "open_log", "open_master"]

FILE = 64 * 1024
NOW = 1_800_000_000_000
OPTIONS = StoreOptions(
    commitlog_file_size=FILE,
    consumequeue_file_size=2000,
    index_slots=50,
    index_entries=200,
    flush_interval_ms=3_600_000,
    prefault_bytes=0,
)
HOST = pack_host("127.0.0.1", 10911)


def make_draft(
    number: int = 0,
    *,
    topic: str = "topic",
    queue_id: int = 0,
    size: int = 100,
    delay: str = "",
    sys_flag: int = 0,
) -> RecordDraft:
    """Make a draft whose body and keys tell its number."""
    pairs = [("KEYS", f"key-{number}"), ("TAGS", "tag")]
    if delay:
        pairs.append(("DELAY", delay))
    return RecordDraft.from_properties(
        topic=topic,
        queue_id=queue_id,
        body=(b"%08d" % number) * (size // 8),
        properties=format_properties(pairs),
        born_timestamp=NOW,
        born_host=HOST,
        store_host=HOST,
        sys_flag=sys_flag,
    )


class StoppedClock(Machine):
    """This machine, at a time of its own; its files have the real one."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(FILES)
        self.now_ms = now_ms

    def wall_ns(self) -> int:
        """See `Machine`."""
        return self.now_ms * 1_000_000


def open_master(root: Path, options: StoreOptions = OPTIONS, now: int = NOW) -> MasterStore:
    """Open a store as its master."""
    root.mkdir(exist_ok=True)
    return MasterStore.open(root, options, clock=lambda: now, machine=StoppedClock(now))


def open_log(root: Path, options: StoreOptions = OPTIONS) -> LogWriter:
    """Open the log of a store as a slave's replicator."""
    root.mkdir(exist_ok=True)
    return LogWriter.open(root, options)
