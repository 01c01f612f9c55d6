"""What becomes of halves: decisions and their records, checks, positions, and a start from the two queues."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.broker.transactions import FakePositions, TransactionRig, half_draft
from support.store.stores import NOW, make_draft
from whimbrel.broker.transactions import transactions as module
from whimbrel.broker.transactions.records import op_draft
from whimbrel.broker.transactions.recovery import LOAD_PIECE
from whimbrel.broker.transactions.table import Resolution
from whimbrel.errors import (
    CorruptRecord,
    InvalidTransactionId,
    NoReplica,
    NotReady,
    ReplicaTimeout,
    StoreFull,
    Throttled,
    TopicNotFound,
)
from whimbrel.model.names import HALF_OP_TOPIC, HALF_TOPIC, UNDECIDED_TOPIC
from whimbrel.store import commitlog
from whimbrel.store.codec import TRANSACTION_COMMIT, TRANSACTION_MASK
from whimbrel.store.retention import Removal

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TransactionRig]:
    rig = TransactionRig(tmp_path)
    yield rig
    rig.close()


def again(rig: TransactionRig, tmp_path: Path, **settings: Any) -> TransactionRig:
    """Open the store of a rig whose process was killed."""
    rig.close(clean=False)
    return TransactionRig(tmp_path, now_ms=rig.now_ms, positions=rig.positions, **settings)


# Decisions


def test_commit_stores_the_message_and_then_the_op(rig: TransactionRig) -> None:
    """Checklist 41."""
    offset = rig.half("a", queue_id=1)
    assert rig.end("a") == [None]
    rig.loop.turn()
    (record,) = rig.records()
    assert (record.queue_id, record.body.rstrip(b".")) == (1, b"a")
    assert record.sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT
    (half,) = rig.records("RMQ_SYS_TRANS_HALF_TOPIC", 1)
    assert (record.prepared_offset, half.sys_flag & TRANSACTION_MASK) == (half.physical_offset, 0)
    assert record.properties == half.properties
    (op,) = rig.records(HALF_OP_TOPIC, 1)
    assert (op.body, op.properties) == (b"%d," % offset, {"WAIT": "true", "TAGS": "d"})
    assert record.physical_offset < op.physical_offset


def test_rollback_stores_an_op_only(rig: TransactionRig) -> None:
    """Checklist 42."""
    rig.half("a")
    assert rig.end("a", ROLLBACK) == [None]
    assert (rig.committed(), rig.ops()) == ([], [b"0,"])


def test_decisions_of_a_tick_share_an_op(rig: TransactionRig) -> None:
    for name in "abc":
        rig.half(name)
        rig.end(name)
    assert rig.ops() == []
    rig.loop.turn()
    assert rig.ops() == [b"0,1,2,"]


def test_op_of_a_rollback_names_the_commits_before_it(rig: TransactionRig) -> None:
    rig.half("a")
    rig.half("b")
    rig.end("a")
    rig.end("b", ROLLBACK)
    rig.loop.turn()
    assert rig.ops() == [b"0,1,"]


def test_same_decision_again_is_fine_and_another_is_refused(rig: TransactionRig) -> None:
    """Checklist 43 and 53: an application's commit and the answer to a question make one record."""
    rig.half("a")
    rig.half("b")
    assert rig.end("a") == rig.end("a") == [None]
    assert rig.end("b", ROLLBACK) == rig.end("b", ROLLBACK) == [None]
    for name, other in (("a", ROLLBACK), ("b", COMMIT)):
        with pytest.raises(InvalidTransactionId, match="ended already"):
            rig.end(name, other)
    with pytest.raises(InvalidTransactionId, match="no transaction"):
        rig.end("c")
    with pytest.raises(InvalidTransactionId, match="no transaction"):
        rig.end("a", topic="other")
    with pytest.raises(InvalidTransactionId, match="not that of message"):
        rig.transactions.end("orders", "a", "b", COMMIT, lambda error: None)
    assert rig.committed() == ["a"]


def test_answers_wait_until_decisions_are_durable(rig: TransactionRig) -> None:
    rig.half("a")
    rig.half("b")
    rig.appender.waits = True
    committed, rolled_back, repeated = rig.end("a"), rig.end("b", ROLLBACK), rig.end("a")
    assert committed == rolled_back == repeated == []
    rig.appender.confirm()
    assert committed == rolled_back == repeated == [None]


def test_commit_that_slaves_do_not_confirm_is_stored_once(rig: TransactionRig) -> None:
    rig.half("a")
    rig.appender.waits = True
    first = rig.end("a")
    rig.appender.confirm(ReplicaTimeout("late"))
    assert [type(error) for error in first] == [ReplicaTimeout]
    second = rig.end("a")
    rig.appender.confirm()
    assert (second, rig.committed()) == ([None], ["a"])


def test_decision_that_the_store_refuses_leaves_the_transaction_open(rig: TransactionRig) -> None:
    rig.half("a")
    rig.appender.refusals = {"orders": StoreFull("full"), HALF_OP_TOPIC: StoreFull("full")}
    for resolution in (COMMIT, ROLLBACK):
        assert [type(error) for error in rig.end("a", resolution)] == [StoreFull]
    rig.appender.refusals = {}
    assert rig.end("a") == [None]
    assert rig.committed() == ["a"]


def test_op_that_the_store_refuses_is_tried_again(rig: TransactionRig) -> None:
    rig.half("a")
    rig.appender.refusals = {HALF_OP_TOPIC: StoreFull("full")}
    rig.end("a")
    rig.loop.turn()
    assert rig.ops() == []
    rig.loop.wait()
    rig.appender.refusals = {}
    rig.loop.wait()
    assert rig.ops() == [b"0,"]


def test_decisions_without_an_op_are_bounded(rig: TransactionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPS_PENDING_MAX", 2)
    for name in "abc":
        rig.half(name)
    rig.end("a")
    rig.end("b")
    with pytest.raises(Throttled):
        rig.end("c")
    rig.loop.turn()
    assert rig.end("c") == [None]


def test_topic_that_was_deleted_takes_no_commit(rig: TransactionRig) -> None:
    rig.half("a")
    rig.topics.remove("orders")
    with pytest.raises(TopicNotFound):
        rig.end("a")
    assert rig.end("a", ROLLBACK) == [None]


def test_queue_that_is_not_read_any_more_is_replaced(rig: TransactionRig) -> None:
    rig.half("a", queue_id=7)
    rig.end("a")
    assert [one.queue_id for one in rig.records()] == [1]


def test_open_transactions_are_bounded(rig: TransactionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 100)
    for number in range(100):
        rig.half(f"{number}")
    with pytest.raises(Throttled, match="100 transactions are open"):
        rig.half("one more")
    rig.end("0", ROLLBACK)
    rig.half("one more")


def test_half_sent_again_replaces_the_first(rig: TransactionRig) -> None:
    rig.half("a")
    rig.half("a")
    assert rig.end("a") == [None]
    rig.loop.turn()
    assert rig.committed() == ["a"]
    assert b"".join(rig.ops()) == b"0,1,"
    assert rig.round() == []


# Checks


def test_undecided_are_asked_about_in_each_round_and_then_given_up(rig: TransactionRig) -> None:
    """Checklist 45 and 47."""
    rig.half("a")
    rig.half("b", extra="CHECK_IMMUNITY_TIME_IN_SECONDS\x01900\x02")
    assert rig.round(5999) == []
    assert rig.round(1) == ["a"]
    assert rig.end("a", None) == [None]  # nothing is used up
    for _ in range(14):
        assert rig.round(1000) == ["a"]
    assert rig.discarded() == []
    assert rig.round(1000) == []
    assert rig.discarded() == ["a"]
    assert b"".join(rig.ops()) == b"0,"
    with pytest.raises(InvalidTransactionId, match="discard"):
        rig.end("a")
    assert rig.round(900_000) == ["b"]
    assert rig.end("b") == [None]
    assert (rig.round(), rig.discarded(), rig.committed()) == ([], ["a"], ["b"])


def test_what_is_too_old_is_given_up(rig: TransactionRig) -> None:
    rig.half("a")
    assert (rig.round(72 * 3_600_000 - 6000), rig.discarded()) == (["a"], [])
    for _ in range(2):
        assert (rig.round(3000), rig.discarded()) == (["a"], [])
    assert (rig.round(1), rig.discarded()) == ([], ["a"])


def test_what_is_too_old_when_a_broker_starts_waits_for_its_producers(
    rig: TransactionRig, tmp_path: Path
) -> None:
    """They come back some seconds after it does, so the first round may find none."""
    rig.half("a")
    rig.now_ms += 73 * 3_600_000
    other = again(rig, tmp_path)
    asks, other.transactions.ask = other.transactions.ask, lambda one, half: None
    assert (other.round(), other.discarded()) == ([], [])
    other.transactions.ask = asks
    assert (other.round(), other.discarded()) == (["a"], [])
    assert other.end("a") == [None] and other.committed() == ["a"]
    rig.store, rig.transactions = other.store, other.transactions


def test_nobody_to_ask_counts_like_silence(rig: TransactionRig) -> None:
    rig.half("a")
    rig.transactions.ask = lambda one, half: None
    for _ in range(16):
        assert rig.discarded() == []
        rig.round()
    assert rig.discarded() == ["a"]


def test_question_that_producers_have_no_room_for_does_not_count(rig: TransactionRig) -> None:
    rig.half("a")
    rig.transactions.ask = lambda one, half: False
    for _ in range(20):
        rig.round()
    assert rig.discarded() == []


def test_giving_up_is_tried_again_where_the_store_refuses(rig: TransactionRig) -> None:
    rig.half("a")
    rig.appender.refusals = {UNDECIDED_TOPIC: StoreFull("full")}
    for _ in range(16):
        rig.round()
    assert rig.round() == [] and rig.discarded() == [], "it is no longer asked about"
    rig.appender.refusals = {}
    rig.round()
    assert rig.discarded() == ["a"]


def test_round_is_done_in_pieces(rig: TransactionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_ASKED_MAX", 10)
    for number in range(100):
        rig.half(f"{number}")
    rig.now_ms += 6000
    rig.transactions.round()
    assert len(rig.asked) == 10
    rig.transactions.round()  # the next one begins when this one is over
    assert rig.end("99") == [None]
    rig.loop.turn()
    assert len(rig.asked) == len(set(rig.asked)) == 99


def test_large_halves_make_smaller_pieces(rig: TransactionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES_MAX", 5000)
    for number in range(8):
        rig.half(f"{number}", size=2000)
    rig.now_ms += 6000
    rig.transactions.round()
    assert len(rig.asked) == 3
    rig.loop.turn()
    assert len(rig.asked) == 8


# Start and positions


def test_start_finds_what_is_undecided(rig: TransactionRig, tmp_path: Path) -> None:
    """Checklist 44: also without positions, from the begin of both queues."""
    for name in "abcd":
        rig.half(name)
    rig.end("b")
    rig.end("c", ROLLBACK)
    rig.loop.turn()
    for positions in (rig.positions, FakePositions()):
        rig.positions = positions
        other = again(rig, tmp_path)
        assert [one.transaction_id for one in other.transactions.table.open.values()] == ["a", "d"]
        rig.store = other.store
    rig.transactions = other.transactions
    assert other.round() == ["a", "d"]
    assert other.end("d") == [None]
    assert other.committed() == ["b", "d"]


def test_nothing_is_decided_before_the_queues_are_read(tmp_path: Path) -> None:
    rig = TransactionRig(tmp_path)
    for number in range(3 * LOAD_PIECE):
        rig.half(f"{number}")
    other = again(rig, tmp_path, start=False)
    for attempt in (lambda: other.end("1"), lambda: other.half("x")):
        with pytest.raises(NotReady):
            attempt()
    other.transactions.start()
    assert not other.transactions.ready
    other.transactions.start()
    other.loop.turn()
    assert other.transactions.ready and len(other.transactions.table) == 3 * LOAD_PIECE
    other.close()


def test_committed_record_without_an_op_is_not_made_again(rig: TransactionRig, tmp_path: Path) -> None:
    for name in "abc":
        rig.half(name, queue_id=1)
    rig.end("a")
    rig.loop.turn()
    rig.end("b")  # killed before the end of the tick
    other = again(rig, tmp_path)
    assert other.ops() == [b"0,", b"1,"]
    assert other.end("b") == [None]
    assert other.round() == ["c"]
    assert other.committed() == ["a", "b"]
    rig.store, rig.transactions = other.store, other.transactions


def test_copy_of_a_discarded_half_without_an_op_is_not_made_again(
    rig: TransactionRig, tmp_path: Path
) -> None:
    rig.store.append([make_draft()])
    rig.half("a")
    rig.now_ms += 73 * 3_600_000
    for _ in range(3):  # none is given up before: the clock may be wrong, or its producers are not back yet
        assert rig.round() == ["a"] and rig.discarded() == []
    rig.transactions.round()
    assert rig.discarded() == ["a"] and rig.ops() == []
    other = again(rig, tmp_path)
    assert (other.round(), other.discarded(), other.ops()) == ([], ["a"], [b"0,"])
    rig.store, rig.transactions = other.store, other.transactions


def test_rocketmqs_ops_may_be_missing_for_some_seconds(rig: TransactionRig, tmp_path: Path) -> None:
    """A broker of RocketMQ that was killed: a commit of seconds before its last op has none."""
    for name in ("old", "lost", "late"):
        rig.half(name)
    rig.end("old")
    rig.loop.turn()
    rig.now_ms += 60_000
    rig.end("lost")
    rig.transactions.pending_ops = []  # as if it had been killed
    rig.now_ms += 2000
    rig.end("late", ROLLBACK)
    other = again(rig, tmp_path)
    assert (other.round(), other.committed()) == ([], ["old", "lost"])
    rig.store, rig.transactions = other.store, other.transactions


def test_store_of_rocketmq_with_halves_that_were_asked_about(rig: TransactionRig) -> None:
    """Each question made another half; the newest counts, and its op ends them all. Ops name many halves."""
    rig.half("x")
    for number in range(4):
        rig.store.append([half_draft("a", extra=f"TRANSACTION_CHECK_TIMES\x01{number}\x02")])
    rig.store.append([half_draft("b", extra="TRAN_PREPARED_QUEUE_OFFSET\x011\x02")])
    rig.store.append([op_draft([0], now_ms=NOW, host=bytes(8))])
    other = TransactionRig  # the store is opened by another process
    rig.close(clean=False)
    opened = other(rig.store.root, now_ms=rig.now_ms)
    assert opened.round() == ["a", "b"]
    assert opened.end("a") == [None]
    opened.loop.turn()
    assert opened.committed() == ["a"]
    named = {int(one) for body in opened.ops() for one in body.split(b",") if one}
    assert named == {0, 1, 2, 3, 4}
    rig.store, rig.transactions = opened.store, opened.transactions


def test_rocketmq_copies_a_half_while_the_op_of_its_commit_is_in_memory(
    rig: TransactionRig, tmp_path: Path
) -> None:
    """As seen at a 5.3.3: the commit names an earlier half than the newest, and ops name those in between."""
    rig.half("undecided")
    rig.half("done")
    rig.end("done")
    rig.transactions.pending_ops = []
    for times in range(1, 4):
        for name in ("undecided", "done"):
            rig.store.append([half_draft(name, extra=f"TRANSACTION_CHECK_TIMES\x01{times}\x02")])
    rig.now_ms += 60_000
    rig.store.append([op_draft([0, 1, 2, 4, 5], now_ms=rig.now_ms, host=bytes(8))])
    rig.now_ms += 60_000
    rig.store.append([op_draft([3], now_ms=rig.now_ms, host=bytes(8))])
    rig.positions.update({HALF_TOPIC: 6, HALF_OP_TOPIC: 1})
    other = again(rig, tmp_path)
    assert other.round() == ["undecided"]
    assert other.committed() == ["done"]
    rig.store, rig.transactions = other.store, other.transactions


def test_half_at_the_begin_of_the_log_is_not_named_by_plain_records(
    rig: TransactionRig, tmp_path: Path
) -> None:
    rig.half("a")
    rig.half("b")
    rig.end("b")
    rig.store.append([make_draft(topic="orders"), make_draft(topic="orders")])
    other = again(rig, tmp_path)
    assert other.round() == ["a"]
    other.end("a")
    rig.store, rig.transactions = other.store, other.transactions
    last = again(rig, tmp_path)
    assert last.round() == []
    rig.store, rig.transactions = last.store, last.transactions


def test_commit_that_another_master_made_is_known_by_its_record(rig: TransactionRig, tmp_path: Path) -> None:
    rig.half("a")
    rig.half("b")
    rig.end("a")
    rig.end("b", ROLLBACK)
    rig.loop.turn()
    other = again(rig, tmp_path)
    other.store.finish_derived()
    assert other.end("a") == [None]
    with pytest.raises(InvalidTransactionId, match="ended already"):
        other.end("a", ROLLBACK)
    for name, resolution in (("b", ROLLBACK), ("b", COMMIT), ("c", COMMIT)):
        with pytest.raises(InvalidTransactionId, match="no transaction"):
            other.end(name, resolution)
    assert other.committed() == ["a"]
    rig.store, rig.transactions = other.store, other.transactions


def test_id_that_is_used_again_after_its_end_is_asked_about(rig: TransactionRig, tmp_path: Path) -> None:
    for _ in range(2):
        rig.half("a")
        if not rig.committed():
            rig.end("a")
            rig.loop.turn()
    other = again(rig, tmp_path)
    assert other.round() == ["a"]
    assert other.end("a") == [None]
    assert other.committed() == ["a", "a"]
    rig.store, rig.transactions = other.store, other.transactions


def test_positions_follow_the_oldest_undecided(rig: TransactionRig) -> None:
    for name in "abcd":
        rig.half(name)
    assert rig.publish() == (0, 0)
    for name in "bca":
        rig.end(name)
        rig.loop.turn()
    assert rig.publish() == (3, 3)
    rig.end("d")
    rig.loop.turn()
    assert rig.publish() == (4, 4)


def test_positions_wait_until_slaves_and_disk_have_what_they_pass(rig: TransactionRig) -> None:
    rig.half("a")
    rig.publish()
    rig.end("a")
    rig.loop.turn()
    rig.safe = rig.store.written - 1
    rig.transactions.unpublished = None
    assert rig.publish() == (0, 0)
    rig.safe += 1
    assert rig.publish() == (1, 1)


def test_start_from_positions_knows_ops_that_are_out_of_order(rig: TransactionRig, tmp_path: Path) -> None:
    for number in range(20):
        rig.half(f"{number}")
    for number in (7, 3, 12, 0, 1, 19):
        rig.end(f"{number}")
        rig.loop.turn()
    assert rig.publish() == (2, 0)
    other = again(rig, tmp_path)
    left = {int(one.transaction_id) for one in other.transactions.table.open.values()}
    assert left == set(range(20)) - {7, 3, 12, 0, 1, 19}
    rig.store, rig.transactions = other.store, other.transactions


# Retention


def test_half_is_stored_again_before_its_file_goes(rig: TransactionRig) -> None:
    rig.half("a", extra="CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    rig.half("b")
    rig.end("b")
    rig.loop.turn()
    (first,) = rig.transactions.table.open.values()
    assert rig.transactions.move_on(10_000) == first.physical_offset  # the file stays for this round
    rig.loop.turn()
    (moved,) = rig.transactions.table.open.values()
    assert moved.physical_offset > first.physical_offset
    assert rig.transactions.move_on(moved.physical_offset) == moved.physical_offset
    assert rig.records("RMQ_SYS_TRANS_HALF_TOPIC", 1)[-1].properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert b"".join(rig.ops()) == b"1,0,"
    assert (rig.round(59_999), rig.round(1)) == ([], ["a"])
    assert rig.end("a") == [None]
    assert rig.committed() == ["b", "a"]


def test_retention_asks_before_it_removes_files(rig: TransactionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog, "expired_segments", lambda directory, closed, *_: Removal(tuple(closed)))
    rig.store.writer.before_removal = rig.transactions.move_on
    rig.half("a")
    for number in range(30):
        rig.store.append([make_draft(number, topic="other", size=8000)])
    assert rig.store.run_retention(rig.now_ms) == 0
    rig.loop.turn()
    assert rig.store.run_retention(rig.now_ms) > 0
    assert rig.store.min_offset > 0
    assert rig.end("a") == [None]
    assert rig.committed() == ["a"]


def test_moving_is_bounded_and_keeps_count(rig: TransactionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOVED_MAX", 2)
    for name in "abc":
        rig.half(name)
    assert rig.round() == ["a", "b", "c"]
    third = rig.transactions.table.open[2].physical_offset
    begin = rig.store.written
    assert rig.transactions.move_on(begin) == 0
    assert rig.transactions.move_on(begin) == third
    assert rig.transactions.move_on(begin) == begin
    assert [one.checks for one in rig.transactions.table.open.values()] == [1, 1, 1]
    assert rig.round(0) == ["a", "b", "c"]


def test_files_stay_while_halves_cant_be_moved_unless_the_disk_is_full(rig: TransactionRig) -> None:
    rig.half("a")
    rig.appender.refusals = {HALF_TOPIC: NoReplica("no slave")}
    assert rig.transactions.move_on(10_000) == 0
    rig.appender.refusals = {HALF_TOPIC: StoreFull("full")}
    assert rig.transactions.move_on(10_000) == 10_000


def test_transaction_whose_half_is_gone_ends(rig: TransactionRig) -> None:
    rig.half("a")
    rig.transactions.follow()
    rig.transactions.table.open[0].physical_offset = rig.store.written + 1000
    with pytest.raises(CorruptRecord):
        rig.end("a")
    assert rig.round() == []
    assert (len(rig.transactions.table), rig.ops(), rig.discarded()) == (0, [b"0,"], [])


def test_halves_that_say_nothing_are_left_out(rig: TransactionRig) -> None:
    draft = half_draft("a")
    draft.properties = b"UNIQ_KEY\x01a\x02"
    rig.store.append([draft])
    assert rig.round() == []
    assert rig.publish() == (1, 0)
