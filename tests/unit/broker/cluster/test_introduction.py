"""A slave's broker tells its master's where its replicator is, when it has moved."""

import asyncio
from collections.abc import Callable

import pytest

from support.waiting import turns
from whimbrel.broker.cluster import introduction
from whimbrel.broker.cluster.introduction import Introduction
from whimbrel.errors import NotReady


class FakePage:
    local_ha = ""
    local_ha_version = trouble_version = 0

    def move(self, address: str) -> None:
        self.local_ha, self.local_ha_version = address, self.local_ha_version + 2


class Rig:
    """An introduction whose calls are listed, and fail as long as `failing` says."""

    def __init__(self) -> None:
        self.page, self.master = FakePage(), "m:1"
        self.calls: list[tuple[str, str]] = []
        self.failing = 0
        self.subject = Introduction(self.page, address=lambda: self.master, introduce=self.introduce)

    async def introduce(self, address: str, replica_address: str) -> None:
        self.calls.append((address, replica_address))
        if self.failing:
            self.failing -= 1
            raise NotReady("no master here")


def played(act: Callable[[Rig], object], *, each: int = 20) -> list[tuple[str, str]]:
    """Let a rig work while its page changes; return its calls."""

    async def play() -> list[tuple[str, str]]:
        rig = Rig()
        task = asyncio.ensure_future(rig.subject.run())
        steps = act(rig)
        for step in steps if isinstance(steps, list) else []:
            await turns(each)
            step()
        await turns(each)
        task.cancel()
        return rig.calls

    return asyncio.run(play())


def test_every_connection_is_told_once() -> None:
    calls = played(
        lambda rig: [
            lambda: rig.page.move("10.0.0.1:1000"),
            rig.subject.look,
            rig.subject.look,
            lambda: rig.page.move("10.0.0.1:1001"),
            rig.subject.look,
        ]
    )
    assert calls == [("m:1", "10.0.0.1:1000"), ("m:1", "10.0.0.1:1001")]


def test_nothing_is_told_while_an_address_is_unknown() -> None:
    def act(rig: Rig) -> list[Callable[[], object]]:
        rig.master = ""
        return [
            rig.subject.hurry,
            lambda: rig.page.move("10.0.0.1:1000"),
            rig.subject.look,
            lambda: setattr(rig, "master", "m:2"),
            rig.subject.hurry,
        ]

    assert played(act) == [("m:2", "10.0.0.1:1000")]


def test_a_master_that_refuses_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(rig: Rig) -> None:
        rig.failing = 2
        rig.page.move("10.0.0.1:1000")

    monkeypatch.setattr(introduction, "RETRY_S", 0.0)
    assert played(act, each=200) == [("m:1", "10.0.0.1:1000")] * 3
