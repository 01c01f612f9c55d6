"""The record of a group in a Lease, against a stand-in for the API server (`fake_kubernetes.py`)."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.cluster.certificates import Tls
from support.systems.fake_kubernetes import FakeKube
from whimbrel.broker.elections import kubernetes_api, kubernetes_coordinator
from whimbrel.broker.elections.kubernetes_api import KubernetesApi
from whimbrel.broker.elections.kubernetes_coordinator import KubernetesCoordinator, lease_name
from whimbrel.errors import BadRequest, NotReady, RemoteProtocolError, RequestTimeout, Unavailable
from whimbrel.model.group_record import GroupRecord

VOTERS = tuple((member, f"{member:032x}") for member in (1, 2, 3))
RECORD = GroupRecord(group="ab" * 16, epoch=3, leader=1, voters=VOTERS, acks=2)
NAME = lease_name("c", "b")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let watches look more often, and end earlier."""
    monkeypatch.setattr(kubernetes_coordinator, "POLL_S", 0.01)
    monkeypatch.setattr(kubernetes_coordinator, "WATCH_S", 0.03)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Tls(tmp_path_factory.mktemp("kube") / "tls")


@pytest.fixture
def kube(tmp_path: Path, tls: Tls) -> Iterator[FakeKube]:
    with FakeKube(tmp_path, tls) as running:
        yield running


def made(kube: FakeKube, namespace: str = "ns", name: str = "b") -> KubernetesCoordinator:
    api = KubernetesApi(kube.variables, ca=str(kube.tls.ca), token_file=str(kube.token_file))
    return KubernetesCoordinator(api, namespace=namespace, cluster="c", name=name)


@pytest.fixture
def coordinator(kube: FakeKube) -> KubernetesCoordinator:
    return made(kube)


def test_leases_have_names_that_kubernetes_takes_and_no_two_groups_the_same() -> None:
    assert re.fullmatch(
        r"whimbrel-defaultcluster-broker-a-[0-9a-f]{8}", lease_name("DefaultCluster", "broker-a")
    )
    assert re.fullmatch(r"whimbrel-[0-9a-f]{8}", lease_name("%", "|"))
    names = [
        lease_name(*pair)
        for pair in (("a", "b_c"), ("a_b", "c"), ("A", "b_c"), ("a", "b-c"), ("x" * 127, "y"))
    ]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])", name) for name in names)


async def test_a_record_is_made_read_and_swapped(kube: FakeKube, coordinator: KubernetesCoordinator) -> None:
    assert await coordinator.read() == (None, 0)
    assert await coordinator.swap(RECORD, 0) == (True, RECORD, 1)
    lease = kube.leases[NAME]
    assert json.loads(lease["metadata"]["annotations"]["whimbrel/group-record"])["epoch"] == 3
    assert lease["spec"] == {"holderIdentity": "b/1", "leaseTransitions": 3}
    lease["metadata"]["labels"] = {"team": "x"}
    later = replace(RECORD, epoch=4, leader=2)
    assert (await made(kube).read()) == (RECORD, 1)
    await coordinator.read()
    assert await coordinator.swap(later, 1) == (True, later, 2)
    assert kube.leases[NAME]["metadata"]["labels"] == {"team": "x"}
    assert await coordinator.swap(replace(RECORD, epoch=9), 1) == (False, later, 2)


async def test_of_two_one_is_first(kube: FakeKube, coordinator: KubernetesCoordinator) -> None:
    other = made(kube)
    for each in (coordinator, other):
        await each.read()
    assert (await coordinator.swap(RECORD, 0))[0]
    assert await other.swap(replace(RECORD, leader=2), 0) == (False, RECORD, 1)
    later = replace(RECORD, epoch=4, leader=2)
    assert (await other.swap(later, 1))[0]
    assert await coordinator.swap(replace(RECORD, epoch=4, leader=3), 1) == (False, later, 2)


@pytest.mark.parametrize("failure", [None, 500, 503, 429])
async def test_a_swap_that_was_done_and_not_answered_was_done(
    kube: FakeKube, coordinator: KubernetesCoordinator, failure: int | None
) -> None:
    await coordinator.read()
    kube.fails = [failure]
    if failure is None:
        assert await coordinator.swap(RECORD, 0) == (True, RECORD, 1)
        return
    with pytest.raises(Unavailable, match=f"can't answer now \\({failure}: it fails\\)"):
        await coordinator.swap(RECORD, 0)
    assert await coordinator.read() == (RECORD, 1)


async def test_what_a_nameserver_refuses_is_refused_here(
    kube: FakeKube, coordinator: KubernetesCoordinator
) -> None:
    await coordinator.swap(RECORD, 0)
    with pytest.raises(BadRequest, match="which never changes"):
        await coordinator.swap(replace(RECORD, group="cd" * 16), 1)
    with pytest.raises(BadRequest, match="would lower it"):
        await coordinator.swap(replace(RECORD, epoch=2), 1)


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"whimbrel/group-record": "hello", "whimbrel/revision": "2"}, "no JSON"),
        ({"whimbrel/group-record": RECORD.encode().decode(), "whimbrel/revision": "x"}, "is no number"),
        ({"whimbrel/group-record": RECORD.encode().decode(), "whimbrel/revision": "9" * 30}, "is no number"),
        ({"whimbrel/revision": "2"}, "no JSON"),
        ({}, "is no number"),
    ],
)
async def test_what_a_stranger_puts_there_is_refused(
    kube: FakeKube, coordinator: KubernetesCoordinator, annotations: dict[str, str], says: str
) -> None:
    await coordinator.swap(RECORD, 0)
    kube.leases[NAME]["metadata"]["annotations"] = annotations
    with pytest.raises(NotReady, match=says) as caught:
        await coordinator.read()
    assert "docs/failover.md" in str(caught.value) and f"ns/{NAME}" in str(caught.value)


async def test_a_lease_that_is_gone_or_goes_back_is_missed(
    kube: FakeKube, coordinator: KubernetesCoordinator
) -> None:
    await coordinator.swap(RECORD, 0)
    before = kube.leases[NAME]
    await coordinator.swap(replace(RECORD, epoch=4), 1)
    kube.leases[NAME] = before
    with pytest.raises(NotReady, match="record of revision 1, and one of 2 was seen: if it was restored"):
        await coordinator.read()
    kube.leases.clear()
    with pytest.raises(
        NotReady, match=r"there is no annotation whimbrel/group-record of Lease ns/.* any more"
    ):
        await coordinator.read()


async def test_a_lease_that_somebody_has_made_empty_is_used(
    kube: FakeKube, coordinator: KubernetesCoordinator
) -> None:
    kube.write(NAME, {"metadata": {"name": NAME}}, dry=False)
    assert await coordinator.read() == (None, 0)
    assert (await coordinator.swap(RECORD, 0))[0]


async def test_a_watch_ends_when_the_record_changes_and_after_a_while(
    kube: FakeKube, coordinator: KubernetesCoordinator
) -> None:
    await coordinator.read()
    assert await coordinator.watch(0) == (None, 0)
    assert kube.leases == {}  # what it has tried was not done
    await made(kube).swap(RECORD, 0)
    assert await coordinator.watch(0) == (RECORD, 1)
    assert await coordinator.watch(1) == (RECORD, 1)
    assert kube.calls[-1] == ("PUT", f"/apis/coordination.k8s.io/v1/namespaces/ns/leases/{NAME}?dryRun=All")
    assert await made(kube).read() == (RECORD, 1)


async def test_that_a_swap_would_be_refused_is_known_before_one_is_needed(
    kube: FakeKube, coordinator: KubernetesCoordinator
) -> None:
    await coordinator.swap(RECORD, 0)
    kube.token_file.write_text("reader\n")  # it is read anew for each exchange
    assert await coordinator.watch(1) == (RECORD, 1)
    assert coordinator.trouble.startswith(
        "Kubernetes denies the permission: grant get, create and update on leases of coordination.k8s.io"
    )
    kube.token_file.write_text("good")
    await coordinator.watch(1)
    assert coordinator.trouble == ""


class TestAsking:
    async def test_who_is_not_known_or_asks_for_what_is_not_there(self, kube: FakeKube) -> None:
        with pytest.raises(NotReady, match="no namespace other, or no Leases"):
            await made(kube, namespace="other").swap(RECORD, 0)
        kube.token_file.write_text("bad")
        with pytest.raises(NotReady, match="does not know the token of this pod"):
            await made(kube).read()
        for content in ("", "two words", "b\x00d"):
            kube.token_file.write_text(content)
            with pytest.raises(NotReady, match="has no token"):
                await made(kube).read()
        kube.token_file.unlink()
        with pytest.raises(NotReady, match=r"coordinator_token_file: .* can't be read: No such file"):
            await made(kube).read()

    async def test_a_server_that_hangs_or_is_away(
        self, kube: FakeKube, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        coordinator = made(kube)
        monkeypatch.setattr(kubernetes_api, "CALL_S", 0.3)
        kube.hangs = True
        with pytest.raises(RequestTimeout, match="Kubernetes does not answer at"):
            await coordinator.read()
        kube.hangs = False
        kube.stop()
        with pytest.raises(Unavailable, match="Kubernetes can't be reached at"):
            await coordinator.read()
        kube.start(kube.port)

    async def test_a_server_that_is_another_one(self, kube: FakeKube, tmp_path: Path) -> None:
        other = Tls(tmp_path / "other")
        api = KubernetesApi(kube.variables, ca=str(other.ca), token_file=str(kube.token_file))
        with pytest.raises(Unavailable, match="certificate verify failed"):
            await api.exchange("GET", "/")
        assert kube.calls == []  # no token was sent

    @pytest.mark.parametrize(
        "raw",
        [
            b"", b"hello", b"HTTP/1.1 200 OK\r\n\r\n[1]", b"HTTP/1.1 200 OK\r\n\r\n{",
            b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, b"HTTP/1.1 200 OK\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 5000 + b"\r\n{}",
            b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2 << 20),
        ],
        ids=["nothing", "no http", "array", "half", "deep", "no lease", "headers", "large"],
    )  # fmt: skip
    async def test_what_is_no_answer_is_refused(
        self, kube: FakeKube, coordinator: KubernetesCoordinator, raw: bytes
    ) -> None:
        kube.raw = raw
        with pytest.raises(RemoteProtocolError):
            await coordinator.read()

    async def test_outside_of_kubernetes(self, kube: FakeKube) -> None:
        with pytest.raises(NotReady, match="coordinator kubernetes is for brokers in pods"):
            await KubernetesApi({}).exchange("GET", "/")
        api = KubernetesApi(kube.variables, ca="/nowhere", token_file=str(kube.token_file))
        with pytest.raises(NotReady, match=r"coordinator_ca: .* can't be read"):
            await api.exchange("GET", "/")
