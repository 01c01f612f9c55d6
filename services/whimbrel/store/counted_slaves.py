"""Which of a replicator's connections count as slaves, each slave once. Pure.

    the broker has told whose connection it is    counts for that slave's id
    nobody has, as for RocketMQ's slaves          counts for its host, together with all such of that host;
                                                  not where a named slave is connected from there, since it
                                                  may be the same one, come back over another port

Of several connections of one slave or host the newest that has reported anything counts, and no other: the
older ones are half open, or somebody else's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["CountedSlave", "Slot", "count_slaves", "host_of"]

MAPPED_V4 = "[::ffff:"


@dataclass(frozen=True, slots=True)
class Slot:
    """A connection in the page.

    Attributes:
        number: which slot.
        peer: `host:port` of the other end.
        broker_id: whose it is, 0 when that is not known.
        connected_at_ms: since when.
        proven: its reports count as acknowledgements.
    """

    number: int
    peer: str
    broker_id: int
    connected_at_ms: int
    proven: bool


@dataclass(frozen=True, slots=True)
class CountedSlave:
    """A slave, or a host with unnamed ones.

    Attributes:
        host: from where it is connected.
        broker_id: 0 when it is not named.
        slots: its connections, the newest first.
    """

    host: str
    broker_id: int
    slots: tuple[Slot, ...]

    def newest(self, acks: Sequence[int]) -> Slot | None:
        """Return the newest connection that has reported; None when none has.

        Args:
            acks: what was reported last, by slot; -1 for nothing.
        """
        for slot in self.slots:
            if acks[slot.number] >= 0:
                return slot
        return None


def host_of(peer: str) -> str:
    """Return the host of `host:port` as it is compared: an IPv4 address has one form only."""
    host = peer.rpartition(":")[0]
    if host.lower().startswith(MAPPED_V4):
        return host[len(MAPPED_V4) :].removesuffix("]")
    return host


def count_slaves(slots: Iterable[Slot]) -> tuple[CountedSlave, ...]:
    """Return the slaves that these connections stand for; their number is how many slaves there are."""
    newest_first = sorted(slots, key=lambda slot: (-slot.connected_at_ms, -slot.number))
    named = {slot.broker_id: slot for slot in reversed(newest_first) if slot.broker_id}  # the newest of each
    hosts_of_named = {host_of(slot.peer) for slot in newest_first if slot.broker_id}
    unnamed = dict.fromkeys(host_of(slot.peer) for slot in newest_first if not slot.broker_id)
    found = [
        CountedSlave(
            host_of(slot.peer), broker_id, tuple(one for one in newest_first if one.broker_id == broker_id)
        )
        for broker_id, slot in sorted(named.items())
    ]
    for host in unnamed:
        if host not in hosts_of_named:
            of_host = (one for one in newest_first if not one.broker_id and host_of(one.peer) == host)
            found.append(CountedSlave(host, 0, tuple(of_host)))
    return tuple(found)
