"""Which answers of an etcd are taken, what its refusals mean, and when the next member is asked.

Real ones are asked in tests/integration/test_etcd.py.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from support.systems.fake_etcd import FakeEtcd
from support.waiting import eventually
from whimbrel.errors import NotReady, Unavailable
from whimbrel.pb.etcd.v3 import etcd_pb2 as pb
from whimbrel.rpc.api import etcd_client
from whimbrel.rpc.api.etcd_answers import EtcdRefusal, Otherwise, Seen, Verdict, sentence_of, verdict_of
from whimbrel.rpc.api.etcd_client import EtcdAccess, EtcdClient

Code = grpc.StatusCode
KEY = "/whimbrel/c/b/group"


class TestAnswers:
    KNOWN = Seen(cluster=0xC1, term=7, revision=100)

    @pytest.mark.parametrize(
        ("cluster", "term", "revision", "says"),
        [
            (0xC2, 7, 100, "it is of cluster c2, and c1 keeps the record"),
            (0xC1, 6, 100, "it is in raft term 6, and 7 was seen"),
            (0xC1, 7, 99, "its revision is 99, and 100 was seen"),
        ],
    )
    def test_one_that_goes_back_is_refused(self, cluster: int, term: int, revision: int, says: str) -> None:
        header = SimpleNamespace(cluster_id=cluster, raft_term=term, revision=revision)
        with pytest.raises(Otherwise, match=says) as caught:
            self.KNOWN.check(header)
        assert "restored from a backup" in str(caught.value)
        assert "restart the brokers one after the other" in str(caught.value)

    def test_one_that_goes_on_is_taken_and_remembered(self) -> None:
        header = SimpleNamespace(cluster_id=0xC1, raft_term=9, revision=100)
        self.KNOWN.check(header)
        assert self.KNOWN.with_header(header) == Seen(0xC1, 9, 100)
        Seen().check(header)

    @pytest.mark.parametrize(
        ("code", "text", "verdict"),
        [
            (Code.UNAVAILABLE, "etcdserver: no leader", Verdict.NEXT),
            (Code.UNKNOWN, "", Verdict.NEXT),
            (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", Verdict.NEXT),
            (Code.UNIMPLEMENTED, "unknown service", Verdict.NEXT),
            (None, "", Verdict.NEXT),
            (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", Verdict.RENEW),
            (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Verdict.RENEW),
            (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", Verdict.FINAL),
            (Code.PERMISSION_DENIED, "etcdserver: permission denied", Verdict.FINAL),
            (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Verdict.FINAL),
            (Code.DATA_LOSS, "etcdserver: corrupt cluster", Verdict.FINAL),
        ],
    )
    def test_what_is_to_be_done_about_a_refusal(self, code: Code | None, text: str, verdict: Verdict) -> None:
        assert verdict_of(code, text) is verdict

    def test_a_strangers_text_is_cut_and_breaks_no_line(self) -> None:
        said = sentence_of(Code.ABORTED, "a\nb\x1b[2J" + "x" * 5000, KEY)
        assert said.startswith("a b [2Jxx") and len(said) < 200 and said.isprintable()


@pytest.fixture
async def etcds() -> AsyncIterator[list[FakeEtcd]]:
    """Give three members."""
    async with FakeEtcd() as one, FakeEtcd() as two, FakeEtcd() as three:
        yield [one, two, three]


@pytest.fixture
async def client(etcds: list[FakeEtcd]) -> AsyncIterator[EtcdClient]:
    made = EtcdClient([each.address for each in etcds], EtcdAccess())
    yield made
    await made.close()


async def test_the_next_member_is_asked_when_one_can_not_and_stays_the_one_that_is_asked(
    etcds: list[FakeEtcd], client: EtcdClient
) -> None:
    etcds[0].refusals = [(Code.UNAVAILABLE, "etcdserver: no leader")] * 9
    etcds[1].refusals = [(Code.UNKNOWN, "context deadline exceeded")]
    for _ in range(3):
        assert (await client.read(KEY)).value is None
    assert [len(each.asked) for each in etcds] == [1, 1, 3]


async def test_a_member_that_hangs_costs_one_deadline(
    etcds: list[FakeEtcd], client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_client, "CALL_S", 0.2)
    etcds[0].silent = True
    for _ in range(3):
        await client.read(KEY)
    assert [len(each.asked) for each in etcds] == [1, 3, 0]


async def test_when_none_can_the_error_has_what_each_of_them_says(
    etcds: list[FakeEtcd], client: EtcdClient
) -> None:
    etcds[0].refusals = [(Code.UNAVAILABLE, "etcdserver: no leader")]
    etcds[1].refusals = [(Code.UNIMPLEMENTED, "unknown service etcdserverpb.KV")]
    etcds[2].refusals = [(Code.DEADLINE_EXCEEDED, "")]
    with pytest.raises(Unavailable) as caught:
        await client.read(KEY)
    assert str(caught.value) == (
        "no member of etcd can be asked:"
        f" {etcds[0].address}: etcdserver: no leader (UNAVAILABLE);"
        f" {etcds[1].address}: there is no etcd of version 3.4 or later;"
        f" {etcds[2].address}: it does not answer in time"
    )


async def test_a_swap_that_was_done_and_not_answered_is_not_done_twice(
    etcds: list[FakeEtcd], client: EtcdClient
) -> None:
    first, second = etcds[0], etcds[1]
    first.answer_lost = True
    second.value, second.mod_revision, second.revision = (
        b"mine",
        2,
        2,
    )  # what the first has done has come to it
    done, found = await client.swap(KEY, b"mine", 0)
    assert (done, found.value, found.mod_revision) == (False, b"mine", 2)
    assert (first.value, first.mod_revision) == (b"mine", 2)


async def test_a_member_that_is_behind_is_passed_over(etcds: list[FakeEtcd], client: EtcdClient) -> None:
    etcds[0].term = 5
    await client.read(KEY)
    etcds[0].refusals = [(Code.UNAVAILABLE, "")]
    etcds[1].term, etcds[2].term = 4, 5
    await client.read(KEY)
    assert client.addresses[client.at] == etcds[2].address


async def test_another_cluster_is_refused_whoever_tells_of_it(
    etcds: list[FakeEtcd], client: EtcdClient
) -> None:
    await client.read(KEY)
    for each in etcds:
        each.cluster = 0xBAD
    with pytest.raises(
        Unavailable, match=r"it is of cluster bad, and c1 keeps the record: if it was restored"
    ):
        await client.read(KEY)


async def test_what_is_refused_by_one_is_not_asked_of_the_others(
    etcds: list[FakeEtcd], client: EtcdClient
) -> None:
    etcds[0].refusals = [(Code.PERMISSION_DENIED, "etcdserver: permission denied")]
    with pytest.raises(EtcdRefusal, match=f"grant readwrite on the key {KEY}"):
        await client.read(KEY)
    assert not etcds[1].asked


async def test_a_value_of_megabytes_is_not_taken(etcds: list[FakeEtcd], client: EtcdClient) -> None:
    etcds[0].value, etcds[0].mod_revision = bytes(3 << 20), 1
    with pytest.raises(EtcdRefusal, match="far more than a group's record"):
        await client.read(KEY)


class TestUsers:
    @pytest.fixture
    def access(self, tmp_path: Path) -> EtcdAccess:
        (tmp_path / "password").write_text("secret\n")
        return EtcdAccess(user="w", password_file=str(tmp_path / "password"))

    async def test_a_token_is_got_once_and_renewed_when_it_is_not_good_any_more(
        self, access: EtcdAccess
    ) -> None:
        async with FakeEtcd() as etcd:
            etcd.users = {"w": "secret"}
            client = EtcdClient([etcd.address], access)
            await asyncio.gather(*(client.read(KEY) for _ in range(5)))
            assert etcd.asked.count("/etcdserverpb.Auth/Authenticate") == 1
            etcd.tokens.clear()
            await asyncio.gather(*(client.read(KEY) for _ in range(5)))
            assert etcd.asked.count("/etcdserverpb.Auth/Authenticate") == 2
            await client.close()

    async def test_a_token_that_is_never_good_ends_the_call(self, access: EtcdAccess) -> None:
        async with FakeEtcd() as etcd:
            etcd.users = {"w": "secret"}
            etcd.refusals = [(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")] * 2
            client = EtcdClient([etcd.address], access)
            with pytest.raises(EtcdRefusal, match="the token that it has just given"):
                await client.read(KEY)
            await client.close()

    async def test_a_wrong_password_is_sent_again_after_a_while_only(self, access: EtcdAccess) -> None:
        async with FakeEtcd() as etcd:
            etcd.users = {"w": "another"}
            now = 0.0
            client = EtcdClient([etcd.address], access, now=lambda: now)
            for _ in range(3):
                with pytest.raises(EtcdRefusal, match="no such user and password: see coordinator_user"):
                    await client.read(KEY)
            assert len(etcd.asked) == 1
            now, etcd.users["w"] = 5.0, "secret"
            await client.read(KEY)
            await client.close()

    async def test_no_user_where_one_is_wanted(self) -> None:
        async with FakeEtcd() as etcd:
            etcd.users = {"w": "secret"}
            client = EtcdClient([etcd.address], EtcdAccess())
            with pytest.raises(EtcdRefusal, match="set coordinator_user and coordinator_password_file"):
                await client.read(KEY)
            await client.close()

    @pytest.mark.parametrize(
        ("content", "says"),
        [(None, "can't be read: No such file"), (b"", "has no password"), (b"x" * 70_000, "more than 65536")],
    )
    async def test_a_password_that_can_not_be_read(
        self, tmp_path: Path, content: bytes | None, says: str
    ) -> None:
        path = tmp_path / "password"
        if content is not None:
            path.write_bytes(content)
        client = EtcdClient(["127.0.0.1:1"], EtcdAccess(user="w", password_file=str(path)))
        with pytest.raises(NotReady, match=f"coordinator_password_file: .*{says}"):
            await client.read(KEY)
        await client.close()


class TestWatches:
    async def test_a_change_ends_it(self, etcds: list[FakeEtcd], client: EtcdClient) -> None:
        etcds[0].watch_hangs = True
        etcds[0].watches = [pb.WatchResponse(events=[pb.Event(kv=pb.KeyValue(key=b"k", mod_revision=6))])]
        assert await client.changed(KEY, 5, 10.0)
        assert etcds[0].watched == [6]

    async def test_one_that_tells_nothing_ends_by_itself(
        self, etcds: list[FakeEtcd], client: EtcdClient
    ) -> None:
        etcds[0].watch_hangs = True
        assert not await client.changed(KEY, 5, 0.1)

    @pytest.mark.parametrize(
        "last",
        [
            [],
            [pb.WatchResponse(canceled=True, compact_revision=50)],
            [pb.WatchResponse(canceled=True, cancel_reason="etcdserver: no leader")],
        ],
    )
    async def test_one_that_ends_early_is_not_begun_again_and_again(
        self,
        etcds: list[FakeEtcd],
        client: EtcdClient,
        last: list[pb.WatchResponse],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        slept: list[float] = []

        async def sleep(delay_s: float) -> None:
            slept.append(delay_s)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        etcds[0].watches = last
        assert not await client.changed(KEY, 5, 10.0)
        assert len(slept) == 1 and 0 < slept[0] <= etcd_client.EARLY_S

    async def test_one_whose_channel_is_closed_ends_and_its_task_goes_on(
        self, etcds: list[FakeEtcd], client: EtcdClient
    ) -> None:
        etcds[0].watch_hangs = True
        watching = asyncio.create_task(client.changed(KEY, 5, 10.0))
        await eventually(lambda: etcds[0].watched)
        client.drop(etcds[0].address)
        assert not await watching

    async def test_a_call_whose_channel_is_closed_goes_to_the_next_member(
        self, etcds: list[FakeEtcd], client: EtcdClient
    ) -> None:
        etcds[0].silent = True
        reading = asyncio.create_task(client.read(KEY))
        await eventually(lambda: etcds[0].asked)
        client.drop(etcds[0].address)
        assert (await reading).value is None
