"""Where the record of a group is kept, and how it is changed: by compare-and-set, and no other way.

    nameserver    one nameserver that was started with `--keeps-groups`; elections wait while it is away,
                  and nothing else does

Every call has a deadline. A swap that was not answered is settled by a read.
"""

from typing import Protocol

from whimbrel.broker.elections.peers import CALL_S, Peers
from whimbrel.errors import WhimbrelError
from whimbrel.model.group_record import GroupRecord
from whimbrel.rpc.api.group_calls import read_record, swap_record

__all__ = ["WATCH_S", "Coordinator", "NameserverCoordinator"]

WATCH_S = 4.0  # a read that waits for another record is answered by then


class Coordinator(Protocol):
    """Keeps the record of one group."""

    async def read(self) -> tuple[GroupRecord | None, int]:
        """Return the record, and its revision; None and 0 where there is none.

        Raises:
            WhimbrelError: it is not to be had now.
        """

    async def watch(self, revision: int) -> tuple[GroupRecord | None, int]:
        """Return the record once it has another revision, or as it is after a while; errors as `read`."""

    async def swap(self, record: GroupRecord, revision: int) -> tuple[bool, GroupRecord | None, int]:
        """Put a record in the place of the one with that revision, 0 for none.

        Returns:
            Whether it stands; the record that does, and its revision.

        Raises:
            WhimbrelError: whether it was swapped is not known.
        """


class NameserverCoordinator:
    """The record is kept by a nameserver."""

    def __init__(self, peers: Peers, address: str, *, cluster: str, name: str) -> None:
        """Take where it is, `host:port`, and which group's record this is about."""
        self.peers, self.address = peers, address
        self.cluster, self.name = cluster, name

    async def read(self) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        return await self.peers.call(self.address, read_record(self.cluster, self.name))

    async def watch(self, revision: int) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        wait_ms = int(WATCH_S * 1000)
        outbound = read_record(self.cluster, self.name, after_revision=revision, wait_ms=wait_ms)
        return await self.peers.call(self.address, outbound, WATCH_S + CALL_S)

    async def swap(self, record: GroupRecord, revision: int) -> tuple[bool, GroupRecord | None, int]:
        """See `Coordinator`."""
        outbound = swap_record(self.cluster, self.name, record, revision)
        try:
            return await self.peers.call(self.address, outbound)
        except WhimbrelError:
            found, number = await self.read()
            return found == record, found, number
