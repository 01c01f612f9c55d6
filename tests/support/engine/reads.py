"""What decides reads (`engine/read.py`), over a store and tables, on a loop and a clock that tests move."""

from typing import Any

from whimbrel.broker.consume.filters import compile_filter
from whimbrel.broker.engine.read import Reads
from whimbrel.broker.engine.splitting import ReadSplitting
from whimbrel.broker.engine.waiting import Waiting
from whimbrel.broker.tables.group_creation import GroupCreation
from whimbrel.broker.tables.remoting_clients import RemotingClients

__all__ = ["CommitsKept", "make_reads", "nothing_waits"]


class CommitsKept:
    """Positions of groups that nobody has reset: what is committed is kept."""

    def __init__(self) -> None:
        self.commits: list[tuple[str, str, int, int]] = []
        self.redirected: dict[object, object] = {}

    def redirect(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Leave a read where it is."""
        return None

    def commit(self, group: str, topic: str, queue_id: int, offset: int, *, owned: bool) -> None:
        """Keep a commit."""
        self.commits.append((group, topic, queue_id, offset))


def nothing_waits() -> Waiting:
    """Return where nothing is looked at again."""
    return Waiting(clock=lambda: 0, soon=lambda callback: None, later=lambda seconds, callback: None)


def make_reads(
    store: Any,
    creation: GroupCreation,
    *,
    members: RemotingClients | None = None,
    positions: Any = None,
    splitting: ReadSplitting | None = None,
    follows: bool = False,
    waiting: Waiting | None = None,
) -> Reads:
    """Return what decides reads of a store."""
    return Reads(
        creation.topics,
        creation,
        RemotingClients(compile_filter) if members is None else members,
        positions or CommitsKept(),  # type: ignore[arg-type]
        store,
        splitting or ReadSplitting(enabled=False, written=lambda: 0),
        waiting or nothing_waits(),
        follows=follows,
    )
