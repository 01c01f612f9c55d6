"""Adopting what groups held under RocketMQ 5: its checkpoints and acknowledgements, recorded and made up."""

import json
from typing import Any

import pytest

from support.broker.consumption import FakeStore, Rig, offsets
from support.store.goldens import golden, sizes
from whimbrel.broker.consume import popped as popped_module
from whimbrel.broker.consume.popped import Held, popped
from whimbrel.model.names import TIMER_TOPIC
from whimbrel.store.master_store import MasterStore
from whimbrel.store.options import StoreOptions

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
RECORDED_MS = 1_795_253_240_000  # soon after the last pop of the recording
NOW = 1_700_000_000_000
QUEUE = ("g", "t", 0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = golden("v533-basic", tmp_path_factory.mktemp("golden") / "store")
    options = StoreOptions(
        commitlog_file_size=sizes("v533-basic")["commitlog_file_size"],
        consumequeue_file_size=sizes("v533-basic")["consumequeue_file_size"],
    )
    store = MasterStore.open(root, options, clock=lambda: RECORDED_MS)
    yield store
    store.close()


def held_in(store: Any, *, revived: dict[int, int], moved_ms: int, now_ms: int = RECORDED_MS) -> Any:
    return popped(
        store,
        {REVIVE: 8},
        revived=lambda topic, queue_id: revived.get(queue_id, 0),
        moved_ms=moved_ms,
        now_ms=now_ms,
    )


def test_a_store_whose_checkpoints_were_all_dealt_with_holds_nothing(recorded: MasterStore) -> None:
    timercheck = (recorded.root / "config" / "timercheck").read_bytes()
    moved_ms = int.from_bytes(timercheck[:8], "big")
    assert held_in(recorded, revived={0: 1, 1: 2}, moved_ms=moved_ms) == {}
    # And its retry topic has the three messages that had no acknowledgement.
    assert recorded.queue_range("%RETRY%five-group_FiveTopicNormal", 0) == (0, 3)


@pytest.mark.parametrize("moved_ms", [0, 1_795_253_239_000])
def test_checkpoints_less_acknowledgements_are_what_is_held(recorded: MasterStore, moved_ms: int) -> None:
    """Checklist 63, with what a real 5.3.3 wrote: as if it had been killed before it revived anything."""
    assert held_in(recorded, revived={}, moved_ms=moved_ms) == {
        ("five-group", "FiveTopicNormal", 0): [
            Held(3, 1795253212360, 1795253227360),
            Held(6, 1795253212645, 1795253227645),
        ],
        ("five-group", "FiveTopicNormal", 1): [Held(1, 1795253212645, 1795253227645)],
    }


def test_what_the_timer_has_not_moved_counts_as_well(recorded: MasterStore) -> None:
    found = held_in(recorded, revived={0: 99, 1: 99}, moved_ms=1_795_253_226_000)
    assert sum(map(len, found.values())) == 3
    assert held_in(recorded, revived={0: 99, 1: 99}, moved_ms=1_795_253_228_000) == {}


def checkpoint(start: int = 0, count: int = 3, pop_ms: int = NOW, **other: Any) -> dict[str, Any]:
    distances = list(range(count))
    return {
        "c": "g", "t": "t", "q": 0, "so": start, "n": count, "d": distances, "pt": pop_ms, "it": 5000,
        "bm": 0, **other,
    }  # fmt: skip


def acknowledgement(**fields: Any) -> dict[str, Any]:
    return {"c": "g", "t": "t", "q": 0, "so": 0, "pt": NOW, **fields}


def store_with(*records: tuple[str, Any]) -> FakeStore:
    store = FakeStore()
    for tag, body in records:
        store.put(REVIVE, 0, json.dumps(body).encode() if not isinstance(body, bytes) else body, tag)
    return store


def offsets_held(*records: tuple[str, Any]) -> list[int]:
    found = held_in(store_with(*records), revived={}, moved_ms=0, now_ms=1)
    return [one.offset for one in found.get(QUEUE, ())]


def test_every_kind_of_acknowledgement_counts() -> None:
    assert offsets_held(("ck", checkpoint())) == [0, 1, 2]
    assert offsets_held(("ck", checkpoint()), ("ack", acknowledgement(ao=1))) == [0, 2]
    assert offsets_held(("ck", checkpoint()), ("bAck", acknowledgement(aol=[0, 2]))) == [1]
    assert offsets_held(("ck", checkpoint(bm=0b110))) == [0]
    assert offsets_held(("ck", checkpoint(10, 2, d=[0, 5]))) == [10, 15]
    # An acknowledgement of another pop of the same messages is none of this one.
    assert offsets_held(("ck", checkpoint()), ("ack", acknowledgement(ao=1, pt=NOW + 1))) == [0, 1, 2]


def test_the_last_pop_of_a_message_says_until_when_it_is_held() -> None:
    store = store_with(("ck", checkpoint(count=1)), ("ck", checkpoint(count=1, pop_ms=NOW + 9, it=1)))
    assert held_in(store, revived={}, moved_ms=0, now_ms=1)[QUEUE] == [Held(0, NOW + 9, NOW + 10)]


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        ("ck", b"{"),
        ("ck", b"[]"),
        ("ck", b"[" * 100_000),
        ("ck", {}),
        ("ck", checkpoint(it="x")),
        ("ck", checkpoint(bm=None)),
        ("bAck", acknowledgement(aol=5)),
        ("ack", acknowledgement()),
    ],
)
def test_foreign_bodies_are_passed_over(tag: str, body: Any) -> None:
    assert offsets_held((tag, body), ("ck", checkpoint(count=1))) == [0]


def test_a_checkpoint_names_no_more_offsets_than_it_can_have() -> None:
    assert offsets_held(("ck", checkpoint(count=3, n=10**9, d=None))) == list(
        range(popped_module.OFFSETS_MAX)
    )


def test_timer_records_of_applications_are_none_of_ours() -> None:
    store = FakeStore()
    store.put(TIMER_TOPIC, 0, json.dumps(checkpoint()).encode(), "ck")
    assert held_in(store, revived={}, moved_ms=0, now_ms=1) == {}


def test_what_was_held_comes_again_when_its_time_is_over() -> None:
    """Checklist 63: nothing twice, nothing lost, in a group whose offset lies ahead."""
    rig = Rig()
    for number in range(6):
        rig.store.put("t", 0, b"%d" % number)
    until_ms = rig.clock.now + 5000
    held = [Held(1, rig.clock.now, until_ms), Held(3, rig.clock.now, until_ms)]
    assert rig.consumption.positions.import_offset("g", "t", 0, 5, held)
    (progress,) = rig.consumption.positions.progress("g")
    assert (progress.committed_offset, progress.in_flight, progress.lag) == (1, 2, 3)
    got = rig.take()
    assert offsets(got) == [5]
    rig.clock.advance(5001)
    again = rig.take()
    assert offsets(again) == [1, 3]
    assert [one.attempt for one in again] == [2, 2]


def test_more_than_a_group_may_hold_comes_again_from_there_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from whimbrel.broker.consume import positions

    monkeypatch.setattr(positions, "INFLIGHT_MAX", 1)
    rig = Rig()
    for number in range(6):
        rig.store.put("t", 0, b"%d" % number)
    now = rig.clock.now
    assert rig.consumption.positions.import_offset(
        "g", "t", 0, 5, [Held(1, now, now + 5000), Held(3, now, now + 5000)]
    )
    assert rig.consumption.positions.get_offset("g", "t", 0) == 1
    rig.clock.advance(5001)
    assert offsets(rig.take()) == [1, 3, 4, 5]
