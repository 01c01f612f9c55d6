"""Why a cluster takes no messages."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from support.cluster.statuses import registered
from whimbrel.cli import usable
from whimbrel.cli.usable import lacking, main, refusals
from whimbrel.client import sync
from whimbrel.errors import Unavailable
from whimbrel.model.cluster import BrokerStatus, Cluster, ReplicationStatus
from whimbrel.model.health import View


def broker(broker_id: int, *, writable: bool = False) -> BrokerStatus:
    return registered(broker_id, "a", writable=writable)


@pytest.mark.parametrize(
    ("brokers", "settled", "lack"),
    [
        ((broker(0, writable=True), broker(1)), True, ""),
        ((broker(0, writable=True), broker(1)), False, "the nameserver is not settled yet"),
        ((broker(0, writable=True),), True, "1 of 2 brokers are registered"),
        ((broker(0), broker(1)), True, "the master takes no messages"),
    ],
)
def test_the_first_thing_that_is_lacking_is_said(
    brokers: tuple[BrokerStatus, ...], settled: bool, lack: str
) -> None:
    said = lacking(Cluster(brokers, settled), 2)
    assert said.startswith(lack)
    assert bool(said) == bool(lack)


FULL = ReplicationStatus(
    broker_name="broker-a",
    broker_id=0,
    role="master",
    log_begin=0,
    log_end=0,
    flushed_offset=0,
    confirmed_offset=0,
    dispatched_offset=0,
    replicator_alive=True,
    ha_address="",
    slaves=(),
    connected=False,
    writable=False,
    advice="the disk is full",
    replication="async",
    flush="async",
)


class Admin:
    """Stands for the client: one look after the other."""

    def __init__(self, looks: Sequence[Cluster], views: Sequence[View]) -> None:
        self.looks, self.views = list(looks), views

    def __call__(self, endpoint: str) -> "Admin":
        return self

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def cluster(self) -> Cluster:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def replication(self, brokers: Sequence[BrokerStatus]) -> Sequence[View]:
        return self.views


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (FULL, "broker-a: the disk is full"),
        (replace(FULL, advice=""), ""),
        (replace(FULL, writable=True), ""),
        (replace(FULL, role="slave"), ""),
        ((broker(0), Unavailable("no answer")), ""),
    ],
)
def test_only_a_master_that_takes_nothing_is_heard(view: View, text: str) -> None:
    assert refusals([view]) == text


def test_what_a_master_says_for_long_is_not_waited_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(usable, "POLL_S", 0.0)
    monkeypatch.setattr(sync, "Admin", Admin([Cluster((broker(0),), True)], [FULL]))
    assert main("127.0.0.1:1", 1, math.inf, 0.0) == 1
    assert capsys.readouterr().out == "broker-a: the disk is full\n"


def test_what_passes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usable, "POLL_S", 0.0)
    looks = [
        Cluster((broker(0),), False),
        Cluster((broker(0),), True),
        Cluster((broker(0, writable=True),), True),
    ]
    monkeypatch.setattr(sync, "Admin", Admin(looks, [replace(FULL, advice="")]))
    assert main("127.0.0.1:1", 1, math.inf, 0.0) == 0
