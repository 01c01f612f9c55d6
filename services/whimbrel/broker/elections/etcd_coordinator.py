"""The record of a group kept by etcd, under `/whimbrel/CLUSTER/NAME/group`, as JSON.

etcd takes whatever is put there; what is taken for the record says `known_record.py`.

**A watch** ends with a read that could have been a swap (`EtcdClient.probe`), so that `trouble` tells a full
database or a missing permission within `WATCH_S`, and not at the next election.
"""

from typing import Final

from whimbrel.broker.elections.coordinator import WATCH_S
from whimbrel.broker.elections.known_record import KnownRecord
from whimbrel.model.group_record import GroupRecord
from whimbrel.rpc.api.etcd_answers import EtcdRefusal
from whimbrel.rpc.api.etcd_client import EtcdClient, KeptValue

__all__ = ["EtcdCoordinator", "key_of"]

KEY: Final = "/whimbrel/{cluster}/{name}/group"


def key_of(cluster: str, name: str) -> str:
    """Return the key of a group's record; names have no slash (`model/names.py check_broker_name`)."""
    return KEY.format(cluster=cluster, name=name)


class EtcdCoordinator:
    """The record is kept by etcd.

    Attributes:
        trouble: see `Coordinator`.
        told_at: revision of the store at which the known record stood last; 0 before the first answer.
    """

    def __init__(self, client: EtcdClient, *, cluster: str, name: str) -> None:
        """Take how etcd is asked, and which group's record this is about."""
        self.client = client
        self.key = key_of(cluster, name)
        self.known = KnownRecord(f"{cluster}/{name}", f"key {self.key} of etcd")
        self.told_at = 0
        self.trouble = ""

    async def read(self) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        before = self.known.revision
        return self.take(await self.client.read(self.key), before)

    async def watch(self, revision: int) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        if revision == self.known.revision and self.told_at:
            await self.client.changed(self.key, self.told_at, WATCH_S)
        before = self.known.revision
        try:
            found = await self.client.probe(self.key)
        except EtcdRefusal as error:
            self.trouble = str(error)
            return await self.read()
        self.trouble = ""
        return self.take(found, before)

    async def swap(self, record: GroupRecord, revision: int) -> tuple[bool, GroupRecord | None, int]:
        """See `Coordinator`."""
        if revision != self.known.revision or not self.told_at:
            found, number = await self.read()
            if number != revision:
                return False, found, number
        self.known.check_swap(record)
        before = self.known.revision
        done, kept = await self.client.swap(self.key, record.encode(), revision)
        found, number = self.take(kept, before)
        return done or found == record, found, number

    async def close(self) -> None:
        """See `Coordinator`."""
        await self.client.close()

    def take(self, kept: KeptValue, before: int) -> tuple[GroupRecord | None, int]:
        """Return the record that etcd has told, and its revision.

        Args:
            before: the revision that was known when etcd was asked.

        Raises:
            NotReady: it can't be the group's record.
        """
        found, number = self.known.take(kept.value, kept.mod_revision, before)
        if number == self.known.revision:
            self.told_at = max(self.told_at, kept.store_revision)
        return found, number
