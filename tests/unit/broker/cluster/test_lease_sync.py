"""One stream of lease entries, with a transport that takes as much as it is told to."""

import pytest

from support.broker.consumption import FakeJournal
from whimbrel.broker.cluster import lease_sync
from whimbrel.broker.cluster.lease_sync import LeaseExchange
from whimbrel.broker.consume.lease_checks import CLOCK_AHEAD_MS
from whimbrel.broker.consume.lease_codec import Lease, Order, decode_entries
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.errors import RemoteProtocolError

NOW = 1_700_000_000_000


class Pipe:
    """The sending half of a stream."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.room = room
        self.sent: list[tuple[bytes, bool]] = []

    def send(self, entries: bytes, complete: bool) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.sent.append((entries, complete))
        return True


def lease_store(broker_id: int = 0) -> LeaseStore:
    made = LeaseStore(FakeJournal(), broker_id=broker_id, now_ms=lambda: NOW)
    made.open()
    return made


def change(one: LeaseStore, offset: int, topic: str = "t") -> None:
    one.commit([(one.table.state("g", topic, 0), offset, offset + 1, None)])


def ignore() -> None:
    pass


def test_full_state_comes_first_and_its_end_is_marked() -> None:
    one, pipe = lease_store(), Pipe()
    for offset in range(0, 200, 2):
        change(one, offset)
    link = LeaseExchange(one, ready=ignore, chunk_bytes=500)
    link.push(pipe.send)
    assert len(pipe.sent) > 5
    assert [complete for _, complete in pipe.sent] == [False] * (len(pipe.sent) - 1) + [True]
    assert all(len(entries) < 600 for entries, _ in pipe.sent)
    other = lease_store(1)
    for entries, _ in pipe.sent:
        other.merge(entries)
    assert other.table.state("g", "t", 0).done_above() == one.table.state("g", "t", 0).done_above()


def test_empty_state_is_marked_complete_too() -> None:
    pipe = Pipe()
    LeaseExchange(lease_store(), ready=ignore).push(pipe.send)
    assert pipe.sent == [(b"", True)]


def test_changes_wait_until_the_full_state_is_through() -> None:
    one, pipe = lease_store(), Pipe(room=1)
    for queue in range(20):
        change(one, 5, f"topic-{queue}")
    link = LeaseExchange(one, ready=ignore, chunk_bytes=100)
    link.push(pipe.send)
    change(one, 9, "late")
    pipe.room = 1 << 30
    link.push(pipe.send)
    end = [complete for _, complete in pipe.sent].index(True)
    assert all(b"late" not in entries for entries, _ in pipe.sent[: end + 1])
    assert b"late" in pipe.sent[end + 1][0]


def test_refused_message_comes_again() -> None:
    one, pipe = lease_store(), Pipe(room=0)
    change(one, 0)
    link = LeaseExchange(one, ready=ignore)
    link.push(pipe.send)
    assert link.pending
    pipe.room = 5
    link.push(pipe.send)
    assert not link.pending
    assert len(pipe.sent) == 1 and pipe.sent[0][1]


def test_ready_is_called_once_until_the_next_push() -> None:
    one, pipe, calls = lease_store(), Pipe(), []
    link = LeaseExchange(one, ready=lambda: calls.append(1))
    link.push(pipe.send)
    change(one, 0)
    change(one, 1)
    assert len(calls) == 1
    link.push(pipe.send)
    assert len(pipe.sent) == 2
    change(one, 2)
    assert len(calls) == 2


def test_what_came_from_the_peer_does_not_go_back_to_it() -> None:
    one, pipe, third_pipe = lease_store(), Pipe(), Pipe()
    link, third = LeaseExchange(one, ready=ignore), LeaseExchange(one, ready=ignore)
    link.push(pipe.send)
    third.push(third_pipe.send)
    entries = one.table.state("g", "t", 0).entry(0, 5, None)
    link.received(entries)
    link.push(pipe.send)
    third.push(third_pipe.send)
    assert len(pipe.sent) == 1
    assert third_pipe.sent[1:] == [(entries, False)]
    link.received(entries)
    third.push(third_pipe.send)
    assert len(third_pipe.sent) == 2


def test_peer_that_takes_nothing_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_sync, "OUTBOX_BYTES_MAX", 1_000)
    one, calls = lease_store(), []
    link = LeaseExchange(one, ready=lambda: calls.append(1))
    for offset in range(100):
        change(one, 2 * offset)
    assert link.overflowed and calls
    pipe = Pipe()
    link.push(pipe.send)
    assert pipe.sent == []


def test_closed_stream_hears_of_nothing() -> None:
    one, calls = lease_store(), []
    link = LeaseExchange(one, ready=lambda: calls.append(1))
    link.close()
    change(one, 0)
    assert not calls and not link.pending


def test_junk_from_the_peer_is_its_error() -> None:
    link = LeaseExchange(lease_store(), ready=ignore)
    with pytest.raises(RemoteProtocolError):
        link.received(b"junk")


def test_serials_go_on_above_those_of_the_peer() -> None:
    one, other = lease_store(0), lease_store(1)
    far_ahead = one.table.next_serial(NOW + CLOCK_AHEAD_MS)
    lease = Lease(far_ahead, 0, 10, 0, 1, False, "")
    other.merge(one.table.state("g", "t", 0).entry(0, 1, lease))
    assert other.table.next_serial(NOW) > far_ahead
    assert other.table.next_serial(NOW) & 0x3F == 1


def take(one: LeaseStore, offset: int, attempt_id: str) -> None:
    """Hold an offset under an attempt id."""
    serial = one.table.next_serial(NOW)
    state = one.table.state("g", "t", 0)
    lease = Lease(serial, 0, NOW + 30_000, NOW, 1, False, "")
    one.commit([(state, offset, offset + 1, lease)], [(state, Order(serial, attempt_id))])


def orders_in(pipe: Pipe) -> list[str]:
    entries = decode_entries(b"".join(entries for entries, _ in pipe.sent))
    return [entry.order.attempt_id for entry in entries if entry.order is not None]


def test_orders_go_to_peers_that_read_them_only() -> None:
    one, old, new = lease_store(), Pipe(), Pipe()
    take(one, 0, "a")
    links = [
        (LeaseExchange(one, ready=ignore), old),
        (LeaseExchange(one, ready=ignore, peer_reads_orders=True), new),
    ]
    take(one, 1, "b")
    for link, pipe in links:
        link.push(pipe.send)
    take(one, 2, "c")
    for link, pipe in links:
        link.push(pipe.send)
    assert (orders_in(old), orders_in(new)) == ([], ["a", "b", "b", "c"])
    other = lease_store(1)
    for entries, _ in old.sent:
        other.merge(entries)
    assert other.table.state("g", "t", 0).leases == one.table.state("g", "t", 0).leases


def test_orders_follow_when_the_peer_says_later_that_it_reads_them() -> None:
    one, pipe = lease_store(), Pipe()
    take(one, 0, "a")
    take(one, 1, "done")
    one.commit([(one.table.state("g", "t", 0), 1, 2, None)])
    link = LeaseExchange(one, ready=ignore)
    link.push(pipe.send)
    link.peer_reads()
    link.peer_reads()
    take(one, 2, "b")
    link.push(pipe.send)
    assert orders_in(pipe) == ["a", "b"]
