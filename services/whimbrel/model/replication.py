"""Replication and elections as a broker knows them, for whoever shows them.

Offsets are those of the log, in bytes; times are milliseconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ElectionView", "ReplicationView", "SlaveView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveView:
    """One connection of a slave to this master's replication port."""

    peer: str
    acknowledged: int
    sent: int
    sent_bytes: int
    connected_at_ms: int
    broker_id: int
    uncounted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionView:
    """What a member of a group that elects its leader knows of that; the fields of `ElectionState`."""

    member: int
    state: str
    why: str
    may_lead: bool
    promised: int
    record: bytes
    coordinator_trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationView:
    """Offsets of the log and the state of replication, as this broker knows them."""

    broker_name: str
    broker_id: int
    role: str
    log_begin: int
    log_end: int
    flushed: int
    confirmed: int
    dispatched: int
    replicator_alive: bool
    ha_address: str
    slaves: tuple[SlaveView, ...]
    connected: bool
    writable: bool
    advice: str
    replication: str
    flush: str
    expected_slaves: int = 0
    lane: str = ""
    notes: tuple[str, ...] = ()
    known_ends: Mapping[int, int] = field(default_factory=dict)
    drained: bool = False
    election: ElectionView | None = None
