"""Lease entries merge: in any order, with repeats, from any number of sides."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from whimbrel.broker.consume.lease_codec import Lease, Order, decode_entries
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.consume.queue_leases import QueueLeases
from whimbrel.broker.consume.receipts import ReceiptHandle
from whimbrel.errors import CorruptRecord, InvalidReceiptHandle

END = 24

leases = st.builds(
    Lease,
    serial=st.integers(1, 6),
    revision=st.integers(0, 2),
    visible_at=st.integers(0, 50),
    taken_at=st.integers(0, 3),
    attempt=st.integers(1, 4),
    auto_renew=st.booleans(),
    client_id=st.sampled_from(["", "c", "déjà"]),
)


@st.composite
def entry(draw: st.DrawFn) -> bytes:
    state = QueueLeases(draw(st.sampled_from(["g", "h"])), "t", 0)
    epoch = draw(st.sampled_from([0, 0, 0, 0, 1, 2]))
    start = draw(st.integers(0, END - 1))
    end = draw(st.integers(start + 1, min(start + 5, END)))
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return state.encoder.epoch(epoch)
    if kind == 9:
        return state.encoder.order(epoch, Order(draw(st.integers(1, 6)), draw(st.sampled_from(["a", "é"]))))
    if kind < 5:
        return state.encoder.done(epoch, draw(st.sampled_from([0, start])), end)
    return state.encoder.lease(epoch, start, end, draw(leases))


def content(table: LeaseTable) -> dict[tuple[str, str, int], object]:
    return {
        (state.group, state.topic, state.queue_id): (
            state.epoch, state.started, state.committed, state.done_above(), state.leases, state.next,
        )
        for state in table.states()
        if state.started or state.epoch
    }  # fmt: skip


def joined(*pieces: bytes) -> LeaseTable:
    table = LeaseTable(origin=0)
    for piece in pieces:
        table.join(piece)
    return table


@given(st.lists(entry(), max_size=30), st.randoms(use_true_random=False))
def test_order_and_repeats_make_no_difference(entries: list[bytes], chance: random.Random) -> None:
    other = entries + [chance.choice(entries) for _ in entries]
    chance.shuffle(other)
    assert content(joined(*entries)) == content(joined(*other)) == content(joined(b"".join(other)))


@given(st.lists(entry(), max_size=30))
def test_snapshot_says_it_all_and_nothing_new_to_its_owner(entries: list[bytes]) -> None:
    table = joined(*entries)
    snapshot = list(table.snapshot())
    assert content(joined(*snapshot)) == content(table)
    assert table.join(b"".join(snapshot)) == b""


@given(st.lists(entry(), max_size=20), st.lists(entry(), max_size=20))
def test_what_a_join_returns_is_all_that_a_third_side_needs(ours: list[bytes], theirs: list[bytes]) -> None:
    table, third = joined(*ours), joined(*ours)
    third.join(table.join(b"".join(theirs)))
    assert content(third) == content(table) == content(joined(*ours, *theirs))


@given(st.lists(entry(), max_size=30))
def test_every_offset_is_in_exactly_one_state(entries: list[bytes]) -> None:
    for state in joined(*entries).states():
        unread, position = set(), 0
        while (span := state.next_unread(position, 3, END)) and span[0] < span[1]:
            unread |= set(range(*span))
            position = span[1]
        done = {offset for offset in range(END) if state.is_done(offset)}
        held = set(state.leases)
        assert not done & held and not done & unread and not held & unread
        assert done | held | unread == set(range(END))
        assert state.unfinished(END) == END - len(done)
        assert set(state.pop_ready(1 << 60, END, END)) == held


@given(st.binary(max_size=200))
def test_any_bytes_are_entries_or_corrupt(data: bytes) -> None:
    try:
        assert b"".join(one.raw for one in decode_entries(data)) == data
    except CorruptRecord:
        pass


@given(entry(), st.data())
def test_cut_entry_is_corrupt(data: bytes, choice: st.DataObject) -> None:
    cut = data[: choice.draw(st.integers(1, len(data) - 1))]
    try:
        list(decode_entries(cut))
    except CorruptRecord:
        return
    raise AssertionError("a part of an entry was taken for one")


# A master and a slave that serve the same group, apart and together.

actions = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 4)),
        st.tuples(st.just("ack"), st.integers(0, 1), st.integers(0, 1 << 16)),
        st.tuples(st.just("nack"), st.integers(0, 1), st.integers(0, 1 << 16)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 40)),
        st.tuples(st.just("meet"), st.just(0), st.just(0)),
        st.tuples(st.just("lose"), st.integers(0, 1), st.integers(1, 3)),
    ),
    max_size=60,
)


class Side:
    """One broker's state, with its journal."""

    def __init__(self, origin: int) -> None:
        self.origin = origin
        self.table = LeaseTable(origin=origin)
        self.journal: list[bytes] = []
        self.acknowledged: set[int] = set()  # as far as this side can know: its own, and what it met
        self.committed = 0

    @property
    def state(self) -> QueueLeases:
        return self.table.state("g", "t", 0)

    def commit(self, start: int, end: int, lease: Lease | None) -> None:
        change = (self.state, start, end, lease)
        self.journal.append(self.table.encode([change]))
        self.table.apply([change])

    def take(self, now: int, count: int) -> list[ReceiptHandle]:
        state, serial, handles = self.state, self.table.next_serial(now), []
        wanted = [(offset, state.leases[offset].attempt + 1) for offset in state.pop_ready(now, count, END)]
        if not wanted:
            start, end = state.next_unread(0, count, END)
            wanted = [(offset, 1) for offset in range(start, end)]
        for offset, attempt in wanted:
            assert offset not in self.acknowledged
            self.commit(offset, offset + 1, Lease(serial, 0, now + 20, now, attempt, False, ""))
            handles.append(ReceiptHandle("b", "g", "t", 0, state.epoch, offset, 0, 0, serial, attempt))
        return handles


@settings(max_examples=300)
@given(actions)
def test_nothing_acknowledged_is_delivered_again_and_no_offset_goes_back(
    script: list[tuple[str, int, int]],
) -> None:
    sides, now, handles = (Side(0), Side(1)), 100, []
    for action, index, number in script:
        side = sides[index]
        if action == "take":
            handles += side.take(now, number)
        elif action == "wait":
            now += number
        elif action == "lose":  # a crash; whatever was written before an answer left is still there
            side.table = LeaseTable(origin=side.origin)
            for piece in side.journal:
                side.table.join(piece)
        elif action == "meet":
            for one, other in (sides, sides[::-1]):
                for piece in one.table.snapshot():
                    changed = other.table.join(piece)
                    if changed:
                        other.journal.append(changed)
            known = sides[0].acknowledged | sides[1].acknowledged
            sides[0].acknowledged, sides[1].acknowledged = set(known), set(known)
            assert content(sides[0].table) == content(sides[1].table)
        elif handles:
            handle = handles[number % len(handles)]
            try:
                standing = side.state.standing(handle, now)
            except InvalidReceiptHandle:
                continue
            if action == "ack":
                side.commit(handle.offset, handle.offset + 1, None)
                side.acknowledged.add(handle.offset)
            elif standing.value != "finished":
                lease = Lease(side.table.next_serial(now), 0, now, now, handle.attempt, False, "")
                side.commit(handle.offset, handle.offset + 1, lease)
        for one in sides:
            assert one.committed <= one.state.committed
            one.committed = one.state.committed
            assert all(one.state.is_done(offset) for offset in one.acknowledged)
