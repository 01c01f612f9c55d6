"""The client of etcd against a real one (`etcd.py`): swaps, watches, compaction, users and TLS, backups.

Times are printed, and never asserted.
"""

import asyncio
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.cluster.certificates import Tls
from support.systems.etcd import Etcd
from whimbrel.broker.elections.etcd_coordinator import EtcdCoordinator
from whimbrel.errors import NotReady, Unavailable
from whimbrel.model.group_record import GroupRecord
from whimbrel.rpc.api.etcd_answers import EtcdRefusal
from whimbrel.rpc.api.etcd_client import EtcdAccess, EtcdClient

pytestmark = pytest.mark.process

Note = Callable[[str], None]
NO_ACCESS = EtcdAccess()
KEY = "/whimbrel/c/b/group"
RECORD = GroupRecord(
    group="ab" * 16,
    epoch=3,
    leader=1,
    voters=tuple((member, f"{member:032x}") for member in (1, 2, 3)),
    acks=2,
)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("one")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("three"), members=3) as etcd:
        yield etcd


def coordinator(etcd: Etcd, name: str = "b", access: EtcdAccess = NO_ACCESS) -> EtcdCoordinator:
    """Return a coordinator; each test has a group of its own."""
    return EtcdCoordinator(EtcdClient(etcd.addresses, access), cluster="c", name=name)


async def test_of_swaps_at_once_one_is_done(one: Etcd) -> None:
    clients = [EtcdClient(one.addresses, EtcdAccess()) for _ in range(4)]
    revision, winners = 0, []
    for turn in range(10):
        values = [b"%d-%d" % (turn, number) for number in range(4)]
        answers = await asyncio.gather(
            *(client.swap("/race", value, revision) for client, value in zip(clients, values, strict=True))
        )
        assert sum(done for done, _ in answers) == 1
        (found,) = {(kept.value, kept.mod_revision) for _, kept in answers}
        winners.append(found[0])
        revision = found[1]
    assert len(set(winners)) == 10
    for client in clients:
        await client.close()


async def test_a_watch_tells_of_a_change_and_of_one_that_came_before_it(one: Etcd) -> None:
    client = EtcdClient(one.addresses, EtcdAccess())
    _, kept = await client.swap("/watched", b"1", 0)
    watching = asyncio.create_task(client.changed("/watched", kept.store_revision, 10.0))
    _, later = await client.swap("/watched", b"2", kept.mod_revision)
    assert await watching
    assert await client.changed("/watched", kept.store_revision, 10.0)
    assert not await client.changed("/watched", later.store_revision, 0.3)
    await client.close()


async def test_a_compaction_under_a_watch_loses_nothing(one: Etcd) -> None:
    group = coordinator(one, "compacted")
    await group.read()
    _, _, revision = await group.swap(RECORD, 0)
    for number in range(5):
        one.ctl("put", "/other", str(number))
    newest = (await group.client.read("/other")).store_revision
    one.ctl("compaction", str(newest))
    assert not await group.client.changed(
        group.key, revision, 5.0
    )  # from there on, nothing is known any more
    another = coordinator(one, "compacted")
    record, at = await another.read()
    assert record == RECORD
    watching = asyncio.create_task(group.watch(revision))
    later = replace(RECORD, epoch=4, leader=2)
    await another.swap(later, at)
    found, _ = await watching
    while found != later:  # the watch had ended before
        found, _ = await group.watch(revision)
    await group.close()
    await another.close()


async def test_what_a_campaign_takes(three: Etcd, measured: Note) -> None:
    client = EtcdClient(three.addresses, EtcdAccess())
    times = []
    for number in range(200):
        began = time.monotonic()
        kept = await client.read("/campaign")
        done, _ = await client.swap("/campaign", RECORD.encode() + b" " * number, kept.mod_revision)
        times.append((time.monotonic() - began) * 1000)
        assert done
    cuts = statistics.quantiles(times, n=100)
    measured(f"read and swap, three members: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms")
    await client.close()


async def test_a_member_that_hangs_or_is_gone_is_passed_over(three: Etcd, measured: Note) -> None:
    client = EtcdClient(three.addresses, EtcdAccess())
    _, kept = await client.swap("/faults", b"1", 0)
    leader = three.leader()
    for fault in (signal.SIGSTOP, signal.SIGKILL):
        client.at = three.members.index(leader)
        leader.signal(fault)
        began = time.monotonic()
        while True:
            try:
                done, kept = await client.swap("/faults", str(fault).encode(), kept.mod_revision)
                break
            except Unavailable:  # until etcd has elected
                assert time.monotonic() - began < 20
        assert done or kept.value == str(fault).encode()
        measured(f"{fault.name} of etcd's leader: swapped after {time.monotonic() - began:.2f} s")
        leader.signal(signal.SIGCONT)
    leader.kill()
    three.start()
    await client.close()


async def test_without_a_majority_of_etcd_nothing_is_answered(three: Etcd) -> None:
    client = EtcdClient(three.addresses, EtcdAccess())
    for member in three.members[:2]:
        member.signal(signal.SIGSTOP)
    with pytest.raises(Unavailable, match="no member of etcd can be asked: ") as caught:
        await client.read(KEY)
    assert all(address in str(caught.value) for address in three.addresses)
    assert not await client.changed(KEY, 1, 0.3)
    three.signal(signal.SIGCONT)
    three.wait_serving()
    await client.read(KEY)
    await client.close()


async def test_a_full_database_is_told_before_a_swap_is_needed(tmp_path: Path) -> None:
    with Etcd(tmp_path / "etcd", words=["--quota-backend-bytes", str(400_000)]) as etcd:
        group = coordinator(etcd)
        await group.read()
        _, _, revision = await group.swap(RECORD, 0)
        big = tmp_path / "big"
        big.write_bytes(b"x" * 100_000)
        while etcd.run("put", "/big", big.read_text()).returncode == 0:
            pass
        group.told_at = 0  # look at once
        assert await group.watch(revision) == (RECORD, revision)
        assert "alarm NOSPACE" in group.trouble and "etcdctl alarm disarm" in group.trouble
        with pytest.raises(EtcdRefusal, match="alarm NOSPACE"):
            await group.swap(RECORD, revision)
        newest = (await group.client.read("/big")).store_revision
        etcd.ctl("compaction", "--physical", str(newest))
        etcd.ctl("defrag")
        etcd.ctl("alarm", "disarm")
        group.told_at = 0
        assert await group.watch(revision) == (RECORD, revision)
        assert group.trouble == ""
        await group.close()


async def test_users_permissions_and_tls(tmp_path: Path) -> None:
    tls = Tls(tmp_path / "tls")
    password = tmp_path / "password"
    password.write_text("pw\n")
    with Etcd(tmp_path / "etcd", tls=tls) as etcd:
        etcd.ctl("role", "add", "group")
        etcd.ctl("role", "grant-permission", "group", "--prefix=true", "readwrite", "/whimbrel/c/")
        etcd.ctl("role", "add", "reader")
        etcd.ctl("role", "grant-permission", "reader", "--prefix=true", "read", "/whimbrel/c/")
        for user, role in (("root", "root"), ("w", "group"), ("r", "reader"), ("n", "")):
            etcd.ctl("user", "add", f"{user}:pw")
            if role:
                etcd.ctl("user", "grant-role", user, role)
        etcd.ctl("auth", "enable")
        etcd.user = ("root", "pw")
        files = {"ca": str(tls.ca), "certificate": str(tls.client), "key": str(tls.client_key)}

        def access(user: str = "w", **other: str) -> EtcdAccess:
            return EtcdAccess(**(files | other), user=user, password_file=str(password))

        group = coordinator(etcd, access=access())
        await group.read()
        done, _, revision = await group.swap(RECORD, 0)
        assert done
        watching = asyncio.create_task(group.client.changed(group.key, revision, 10.0))
        etcd.ctl("put", group.key, RECORD.encode().decode())
        assert await watching  # by a user's token

        reader = coordinator(etcd, access=access("r"))
        await reader.read()
        reader.told_at = 0
        await reader.watch(revision)
        assert reader.trouble.startswith(f"etcd denies the permission: grant readwrite on the key {KEY}")
        nobody = coordinator(etcd, access=access("n"))
        with pytest.raises(EtcdRefusal, match="denies the permission"):
            await nobody.read()
        password.write_text("wrong\n")
        with pytest.raises(EtcdRefusal, match="no such user and password"):
            await coordinator(etcd, access=access()).read()
        password.write_text("pw\n")
        with pytest.raises(EtcdRefusal, match="else the common name of coordinator_certificate"):
            await coordinator(etcd, access=EtcdAccess(**files)).read()
        etcd.ctl("user", "add", "client:pw")  # the name in the certificate
        etcd.ctl("user", "grant-role", "client", "group")
        assert (await coordinator(etcd, access=EtcdAccess(**files)).read())[0] == RECORD

        etcd.members[0].kill()  # it forgets the tokens that it has given
        etcd.start()
        assert (await group.read())[0] == RECORD

        other = Tls(tmp_path / "other")
        for wrong in (
            access(ca=str(other.ca)), access(certificate="", key=""),
            access(certificate=str(other.client), key=str(other.client_key)),
        ):  # fmt: skip
            with pytest.raises(Unavailable, match="no member of etcd can be asked"):
                await coordinator(etcd, access=wrong).read()
        with pytest.raises(NotReady, match=r"coordinator_ca: .* can't be read"):
            await coordinator(etcd, access=access(ca=str(tmp_path / "none"))).read()
        with pytest.raises(Unavailable):
            await coordinator(etcd, access=EtcdAccess()).read()  # without TLS


@pytest.mark.parametrize("cluster", ["", "another"])
async def test_a_restored_backup_is_refused_until_the_broker_is_restarted(
    tmp_path: Path, cluster: str
) -> None:
    first = Etcd(tmp_path / "first")
    snapshot = tmp_path / "snapshot"
    with first as etcd:
        group = coordinator(etcd)
        await group.read()
        _, _, revision = await group.swap(RECORD, 0)
        etcd.ctl("snapshot", "save", str(snapshot))
        later = replace(RECORD, epoch=4, leader=2)
        _, _, revision = await group.swap(later, revision)
        second = etcd.restored(snapshot, tmp_path / "second", cluster=cluster)
    with second as etcd:
        expected = "it is of cluster" if cluster else "the group's record of revision [0-9]+, and one of"
        for ask in (
            group.read(), group.watch(revision),
            group.swap(replace(RECORD, epoch=5), revision), group.swap(replace(RECORD, epoch=5), 3),
        ):  # fmt: skip
            with pytest.raises((Unavailable, NotReady), match=expected) as caught:
                await ask
            assert "see that the record in it is the group's newest" in str(caught.value)
            assert "restart the brokers one after the other" in str(caught.value)
        fresh = coordinator(etcd)
        record, _ = await fresh.read()
        assert record == RECORD
        await fresh.close()
    await group.close()
