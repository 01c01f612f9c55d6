"""A slave's broker keeps up with the log in bounded slices."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from whimbrel.broker.cluster.log_dispatcher import SLICE_BYTES, LogDispatcher, MasterAddress
from whimbrel.model.registration import Member


class FakeStore:
    def __init__(self) -> None:
        self.left = 0
        self.slices: list[int] = []

    def dispatch_ready(self, budget_bytes: int) -> bool:
        self.slices.append(min(self.left, budget_bytes))
        self.left -= self.slices[-1]
        return self.left > 0


class FakePage:
    def __init__(self) -> None:
        self.broker_sleeping = 0
        self.master_ha = ""
        self.elected = (0, 0)


class FakeLoop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        self.later.append(callback)
        return self

    def cancel(self) -> None:
        self.later.clear()


def _rig() -> tuple[LogDispatcher, FakeStore, FakePage, FakeLoop]:
    store, page, loop = FakeStore(), FakePage(), FakeLoop()
    return LogDispatcher(store, page, loop), store, page, loop


def test_large_log_is_dispatched_slice_by_slice_over_the_ticks() -> None:
    follower, store, page, loop = _rig()
    store.left = 3 * SLICE_BYTES
    follower.start()
    assert store.slices == [SLICE_BYTES] and page.broker_sleeping == 0
    follower.log_grew()  # changes nothing: a tick is on its way
    assert store.slices == [SLICE_BYTES]
    while loop.soon:
        loop.soon.pop()()
    assert sum(store.slices) == 3 * SLICE_BYTES and page.broker_sleeping == 1


def test_data_that_comes_while_falling_asleep_is_seen() -> None:
    follower, store, page, _ = _rig()
    looks: list[int] = []

    def dispatch_ready(budget: int) -> bool:
        looks.append(page.broker_sleeping)
        return False

    store.dispatch_ready = dispatch_ready  # type: ignore[method-assign,assignment]
    follower.start()
    assert looks == [0, 1]


def test_lost_ring_is_made_up_for_by_the_poll() -> None:
    follower, store, _, loop = _rig()
    follower.start()
    store.left = 10
    loop.later.pop()()
    assert store.left == 0


def test_stopped_follower_does_nothing() -> None:
    follower, store, _, loop = _rig()
    follower.start()
    follower.stop()
    store.left = 10
    follower.log_grew()
    assert store.left == 10 and not loop.later


def test_last_known_master_is_not_forgotten() -> None:
    page = FakePage()
    address = MasterAddress(page)
    member = Member(broker_id=0, address="m:1", ha_address="m:2", log_begin=0, log_end=0)
    address.update([member])
    address.update([])
    assert (address.grpc, page.master_ha) == ("m:1", "m:2")


def test_a_master_whose_epoch_can_not_be_true_is_not_followed() -> None:
    page = FakePage()
    address = MasterAddress(page, lambda epoch: epoch < 100)
    member = Member(broker_id=0, address="m:1", ha_address="m:2", log_begin=0, log_end=0, epoch=3)
    address.update([member, replace(member, address="x:1", ha_address="x:2", epoch=1 << 30)])
    assert (address.grpc, page.master_ha, page.elected[0]) == ("m:1", "m:2", 3)
