"""A slave hands over what it knows of leases once that is about what its log holds."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from whimbrel.broker.roles import slave
from whimbrel.broker.roles.slave import SlaveRole
from whimbrel.errors import NotReady


class Rig:
    """A slave whose log ends at 571 and is known to be committed, and dispatched, up to 382.

    What it knows of leases goes beyond its queues until these have come to 571.

    Attributes:
        handed: whether anything was forgotten, for each stream that was begun.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, elects: bool, votes: bool, promised: int = 3
    ) -> None:
        self.store = SimpleNamespace(written=571, dispatched=382)
        self.forgotten = 0
        self.handed: list[bool] = []
        role: Any = SlaveRole.__new__(SlaveRole)
        self.role = role
        role.options = SimpleNamespace(elects=elects)
        role.page = SimpleNamespace(votes=int(votes), sealed=(promised, 1))
        role.store, role.state, role.leases_fit = self.store, None, False
        role.hello = lambda: None
        self.lost: list[str] = []
        role.context = SimpleNamespace(
            takeovers=None, metadata_version=SimpleNamespace(lose_leases=self.lost.append)
        )
        positions = SimpleNamespace(beyond_log=self.beyond_log, forget_beyond_log=self.forget)
        leases = SimpleNamespace(journal=SimpleNamespace(rewrite=lambda: True))
        role.consumption = SimpleNamespace(positions=positions, lease_store=leases)
        role.lease_state_exchanged = None

        async def exchanged(*_: object, **__: object) -> None:
            self.handed.append(bool(self.forgotten))

        monkeypatch.setattr(slave, "sync_leases", exchanged)
        monkeypatch.setattr(slave, "LOOK_APART_S", 0)

    def beyond_log(self) -> list[int]:
        return [1] if self.store.dispatched < 571 else []

    def forget(self) -> None:
        self.forgotten += 1

    def exchange(self) -> None:
        asyncio.run(self.role.exchange_leases("a:1"))


def test_a_member_that_votes_has_lost_nothing_and_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts behind what it knew as a leader to be committed, and is one of two that are left."""
    rig = Rig(monkeypatch, elects=True, votes=True)
    rig.exchange()
    assert rig.handed == [False] and not rig.lost


@pytest.mark.parametrize(
    ("elects", "votes", "promised"), [(True, False, 3), (True, True, 0), (False, False, 0)]
)
def test_others_wait_until_their_queues_show_what_the_log_holds(
    monkeypatch: pytest.MonkeyPatch, elects: bool, votes: bool, promised: int
) -> None:
    rig = Rig(monkeypatch, elects=elects, votes=votes, promised=promised)
    with pytest.raises(NotReady, match="still being made"):
        rig.exchange()
    assert not rig.forgotten and not rig.handed and not rig.lost
    rig.store.dispatched = 571
    rig.exchange()
    rig.store.dispatched = 382  # never looked at again
    rig.exchange()
    assert rig.handed == [False, False]


@pytest.mark.parametrize("elects", [True, False])
def test_what_the_master_does_not_have_is_cut_and_forgotten(
    monkeypatch: pytest.MonkeyPatch, elects: bool
) -> None:
    rig = Rig(monkeypatch, elects=elects, votes=False)
    rig.store.written = 382
    rig.exchange()
    assert rig.handed == [True]
    assert bool(rig.lost) == elects
