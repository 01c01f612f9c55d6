"""What etcd may hold under a group's key, and what is taken for the group's record."""

import asyncio
from dataclasses import replace

import pytest

from whimbrel.broker.elections.coordinator import trouble_of
from whimbrel.broker.elections.etcd_coordinator import EtcdCoordinator, key_of
from whimbrel.errors import BadRequest, NotReady, Unavailable
from whimbrel.model.group_record import RECORD_BYTES_MAX, GroupRecord
from whimbrel.rpc.api.etcd_answers import EtcdRefusal
from whimbrel.rpc.api.etcd_client import EtcdAccess, EtcdClient, KeptValue

VOTERS = tuple((member, f"{member:032x}") for member in (1, 2, 3))
RECORD = GroupRecord(group="ab" * 16, epoch=3, leader=1, voters=VOTERS, acks=2)


class MemoryEtcd(EtcdClient):
    """One key of an etcd, without the etcd."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1:1"], EtcdAccess())
        self.value: bytes | None = None
        self.mod = 0
        self.store = 10
        self.full = ""
        self.waits: list[int] = []
        self.probes = 0
        self.before_read: asyncio.Event | None = None

    def put(self, value: bytes | None) -> None:
        """Write as a stranger would; None removes it."""
        self.store += 1
        self.value, self.mod = value, self.store if value is not None else 0

    def kept(self) -> KeptValue:
        return KeptValue(self.value, self.mod, self.store)

    async def read(self, key: str) -> KeptValue:
        found = self.kept()
        if self.before_read is not None:
            await self.before_read.wait()
        return found

    async def probe(self, key: str) -> KeptValue:
        self.probes += 1
        if self.full:
            raise EtcdRefusal(self.full)
        return self.kept()

    async def swap(self, key: str, value: bytes, mod_revision: int) -> tuple[bool, KeptValue]:
        if mod_revision != self.mod:
            return False, self.kept()
        self.put(value)
        return True, self.kept()

    async def changed(self, key: str, after_revision: int, wait_s: float) -> bool:
        self.waits.append(after_revision)
        return False


@pytest.fixture
def etcd() -> MemoryEtcd:
    return MemoryEtcd()


@pytest.fixture
def coordinator(etcd: MemoryEtcd) -> EtcdCoordinator:
    return EtcdCoordinator(etcd, cluster="c", name="b")


async def test_a_record_is_made_read_and_swapped(etcd: MemoryEtcd, coordinator: EtcdCoordinator) -> None:
    assert key_of("c", "b") == "/whimbrel/c/b/group"
    assert await coordinator.read() == (None, 0)
    assert await coordinator.swap(RECORD, 0) == (True, RECORD, 11)
    assert etcd.value == RECORD.encode()
    assert await coordinator.read() == (RECORD, 11)
    later = replace(RECORD, epoch=4, leader=2)
    assert await coordinator.swap(later, 11) == (True, later, 12)
    assert await coordinator.swap(RECORD, 11) == (False, later, 12)


async def test_a_swap_that_another_try_has_done_was_done(
    etcd: MemoryEtcd, coordinator: EtcdCoordinator
) -> None:
    await coordinator.read()
    etcd.put(RECORD.encode())
    assert await coordinator.swap(RECORD, 0) == (True, RECORD, 11)
    other = replace(RECORD, epoch=4, leader=2)
    etcd.put(other.encode())
    assert await coordinator.swap(replace(RECORD, epoch=4), 11) == (False, other, 12)


async def test_what_a_nameserver_refuses_is_refused_here(
    etcd: MemoryEtcd, coordinator: EtcdCoordinator
) -> None:
    await coordinator.swap(RECORD, 0)
    with pytest.raises(BadRequest, match="group c/b has the uuid abab"):
        await coordinator.swap(replace(RECORD, group="cd" * 16), 11)
    with pytest.raises(BadRequest, match="group c/b is in epoch 3: a record of epoch 2 would lower it"):
        await coordinator.swap(replace(RECORD, epoch=2), 11)
    assert etcd.store == 11


async def test_the_record_of_the_revision_that_is_named_is_what_counts(etcd: MemoryEtcd) -> None:
    """One that has not read yet reads before it swaps."""
    etcd.put(RECORD.encode())
    fresh = EtcdCoordinator(etcd, cluster="c", name="b")
    with pytest.raises(BadRequest, match="would lower it"):
        await fresh.swap(replace(RECORD, epoch=2), 11)
    fresh = EtcdCoordinator(etcd, cluster="c", name="b")
    assert await fresh.swap(replace(RECORD, epoch=9), 0) == (False, RECORD, 11)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"hello", "a group's record is no JSON"),
        (b"{}", "not of version 1"),
        (b"[" * 5000, "no JSON"),
        (b" " * (RECORD_BYTES_MAX + 1), f"at most {RECORD_BYTES_MAX}"),
        (b"\xff\xfe", "no JSON"),
        (replace(RECORD, group="cd" * 16).encode(), "has the uuid"),
        (replace(RECORD, epoch=2).encode(), "would lower it"),
    ],
)
async def test_what_a_stranger_puts_there_is_refused_with_what_to_do(
    etcd: MemoryEtcd, coordinator: EtcdCoordinator, value: bytes, says: str
) -> None:
    await coordinator.swap(RECORD, 0)
    etcd.put(value)
    for ask in (coordinator.read, lambda: coordinator.watch(11)):
        with pytest.raises(NotReady) as caught:
            await ask()
        text = str(caught.value)
        assert says in text and "/whimbrel/c/b/group" in text and "docs/failover.md" in text
        assert trouble_of(caught.value).startswith("the coordinator can't be used: what stands under key")
    etcd.put(replace(RECORD, epoch=4).encode())
    record, _ = await coordinator.watch(11)
    assert record is not None and record.epoch == 4


async def test_a_record_that_is_gone_is_missed(etcd: MemoryEtcd, coordinator: EtcdCoordinator) -> None:
    await coordinator.swap(RECORD, 0)
    etcd.put(None)
    with pytest.raises(NotReady, match="there is no key /whimbrel/c/b/group of etcd any more"):
        await coordinator.watch(11)
    etcd.put(RECORD.encode())
    assert await coordinator.watch(11) == (RECORD, 13)


async def test_an_answer_of_before_the_group_was_made_is_no_loss(
    etcd: MemoryEtcd, coordinator: EtcdCoordinator
) -> None:
    etcd.before_read = asyncio.Event()
    early = asyncio.create_task(coordinator.read())
    await asyncio.sleep(0)
    coordinator.told_at = 10
    await coordinator.swap(RECORD, 0)
    etcd.before_read.set()
    assert await early == (None, 0)
    assert (coordinator.known.record, coordinator.known.revision) == (RECORD, 11)


async def test_a_watch_begins_where_the_record_stood_last(
    etcd: MemoryEtcd, coordinator: EtcdCoordinator
) -> None:
    """Not at the record's own revision, which may have been compacted long ago."""
    await coordinator.swap(RECORD, 0)
    etcd.store = 500
    await coordinator.read()
    assert await coordinator.watch(11) == (RECORD, 11)
    assert etcd.waits == [500]
    assert await coordinator.watch(7) == (RECORD, 11)  # who does not know the newest need not wait
    assert etcd.waits == [500]


async def test_that_a_swap_would_be_refused_is_known_before_one_is_needed(
    etcd: MemoryEtcd, coordinator: EtcdCoordinator
) -> None:
    await coordinator.swap(RECORD, 0)
    etcd.full = "etcd takes no writes"
    assert await coordinator.watch(11) == (RECORD, 11)
    assert coordinator.trouble == "etcd takes no writes"
    etcd.full = ""
    assert await coordinator.watch(11) == (RECORD, 11)
    assert coordinator.trouble == ""


def test_who_does_not_answer_is_told_from_who_refuses() -> None:
    assert trouble_of(Unavailable("x")) == "the coordinator does not answer: x"
    assert trouble_of(BadRequest("x")) == "the coordinator can't be used: x"


async def test_a_record_of_before_the_one_that_is_known_is_of_a_backup(
    etcd: MemoryEtcd, coordinator: EtcdCoordinator
) -> None:
    await coordinator.swap(RECORD, 0)
    etcd.mod = 9
    for ask in (coordinator.read, lambda: coordinator.watch(11), lambda: coordinator.swap(RECORD, 11)):
        with pytest.raises(
            NotReady, match="record of revision 9, and one of 11 was seen: if it was restored"
        ):
            await ask()
    etcd.mod, etcd.value = 11, replace(RECORD, leader=2).encode()
    with pytest.raises(NotReady, match="two records of revision 11"):
        await coordinator.read()
