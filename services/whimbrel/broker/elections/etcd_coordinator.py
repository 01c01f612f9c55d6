"""The record of a group kept by etcd, under `/whimbrel/CLUSTER/NAME/group`, as JSON.

etcd takes whatever is put there. So what a nameserver checks when it swaps (`check_change`) is checked here
before a swap: against the record of that very revision, which etcd's comparison makes sure of. And a record
that somebody else has put is taken only if it may follow the one that was known:

    what stands under the key                                       then
    a record of a later revision, which may follow                  taken
    no record, too long, of another group, of a lower epoch         refused with a sentence; nobody is elected
    nothing, though a record was known when etcd was asked          the same
    one of an earlier revision than was known then, or another      the same: etcd was restored from a backup,
    one of the same revision                                        and its ids and counters fit by chance

What was known is forgotten when the process ends. What is safe never depends on it: members promise no epoch
that is not above those which they have promised, on their disks.

**A watch** ends with a read that could have been a swap (`EtcdClient.probe`), so that `trouble` tells a full
database or a missing permission within `WATCH_S`, and not at the next election.
"""

from typing import Final

from whimbrel.broker.elections.coordinator import WATCH_S
from whimbrel.errors import BadRequest
from whimbrel.model.group_record import GroupRecord, check_change
from whimbrel.rpc.api.etcd_answers import RESTORED, EtcdRefusal
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
    """

    def __init__(self, client: EtcdClient, *, cluster: str, name: str) -> None:
        """Take how etcd is asked, and which group's record this is about."""
        self.client, self.cluster, self.name = client, cluster, name
        self.key = key_of(cluster, name)
        self.known: GroupRecord | None = None
        self.revision = 0  # of the record that is known
        self.told_at = 0  # revision of the store at which that stood last
        self.trouble = ""

    async def read(self) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        before = self.revision
        return self.take(await self.client.read(self.key), before)

    async def watch(self, revision: int) -> tuple[GroupRecord | None, int]:
        """See `Coordinator`."""
        if revision == self.revision and self.told_at:
            await self.client.changed(self.key, self.told_at, WATCH_S)
        before = self.revision
        try:
            found = await self.client.probe(self.key)
        except EtcdRefusal as error:
            self.trouble = str(error)
            return await self.read()
        self.trouble = ""
        return self.take(found, before)

    async def swap(self, record: GroupRecord, revision: int) -> tuple[bool, GroupRecord | None, int]:
        """See `Coordinator`."""
        if revision != self.revision or not self.told_at:
            found, number = await self.read()
            if number != revision:
                return False, found, number
        known = self.known
        if known is not None:
            check_change(f"{self.cluster}/{self.name}", known, record)
        before = self.revision
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
            EtcdRefusal: it can't be the group's record.
        """
        if kept.value is None:
            if before:
                raise EtcdRefusal(
                    f"etcd has no key {self.key} any more: somebody has removed it; put the group's newest"
                    " record back there, as docs/failover.md says"
                )
            self.told_at = max(self.told_at, kept.store_revision)
            return None, 0
        if kept.mod_revision < before:
            raise EtcdRefusal(
                f"etcd has the group's record of revision {kept.mod_revision}, and one of {before} was seen:"
                f" {RESTORED}"
            )
        try:
            record = GroupRecord.decode(kept.value)
            if self.known is not None and kept.mod_revision > self.revision:
                check_change(f"{self.cluster}/{self.name}", self.known, record)
        except BadRequest as error:
            raise EtcdRefusal(
                f"what stands under the key {self.key} of etcd can't be the group's record, so somebody else"
                f" has written it ({error}): put the group's newest record back there, as docs/failover.md"
                " says"
            ) from None
        if kept.mod_revision == self.revision and record != self.known:
            raise EtcdRefusal(f"etcd has two records of revision {kept.mod_revision}: {RESTORED}")
        if kept.mod_revision >= self.revision:
            self.known, self.revision = record, kept.mod_revision
            self.told_at = max(self.told_at, kept.store_revision)
        return record, kept.mod_revision
