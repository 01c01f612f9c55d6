"""Queues whose messages have expired, on members of which some never saw them: no offset is given twice."""

import dataclasses
import errno
import logging
import os
import shutil
import time
from pathlib import Path

import pytest

from support.store.stores import FILE, NOW, OPTIONS, make_draft, open_log, open_master
from whimbrel.errors import StoreError, StoreFull
from whimbrel.machine import Files
from whimbrel.store.codec import encode_record
from whimbrel.store.deleted_queue_offsets import DeletedQueueOffsets
from whimbrel.store.master_store import MasterStore
from whimbrel.store.offline_recovery import recover
from whimbrel.store.queue_floors import GivenQueueOffsets
from whimbrel.store.slave_store import SlaveStore
from whimbrel.store.walk import Walk

EXPIRING = dataclasses.replace(OPTIONS, delete_when=tuple(range(24)), reserved_hours=1)
PER_FILE = OPTIONS.consumequeue_file_size // 20


def expire(store: MasterStore) -> None:
    """Have retention remove all files of the log but the last."""
    store.writer.flush()
    for path in sorted((store.root / "commitlog").iterdir())[:-1]:
        os.utime(path, ((NOW - 7_200_000) / 1000,) * 2)
    store.writer.retention_clock.look(NOW, time.monotonic(), NOW)
    while store.run_retention(NOW):
        pass


def quiet_and_busy(root: Path, quiet: int = 10) -> MasterStore:
    """Return a store with a queue whose messages have expired, and another one that goes on."""
    store = open_master(root, EXPIRING)
    for number in range(quiet):
        store.append([make_draft(number, topic="quiet")])
    for number in range(900):
        store.append([make_draft(number, topic="busy")])
    expire(store)
    assert store.queue_range("quiet", 0) == (quiet, quiet)
    return store


def begun_empty(master: MasterStore, root: Path) -> Path:
    """Make the log of a slave that began with an empty store, as its replicator does."""
    log = open_log(root)
    begin = master.min_offset
    for start in range(begin, master.written, FILE):
        log.append_raw(start, master.read_log(start, min(FILE, master.written - start)))
    log.publish()
    log.close()
    return root


def dispatch_all(slave: SlaveStore) -> None:
    while slave.dispatch_ready(1 << 20):
        pass


@pytest.mark.parametrize("quiet", [10, PER_FILE, 2 * PER_FILE + 7])
def test_a_slave_that_began_empty_goes_on_where_the_masters_queues_had_come(
    tmp_path: Path, quiet: int
) -> None:
    master = quiet_and_busy(tmp_path / "m", quiet)
    begun_empty(master, tmp_path / "s")
    log = open_log(tmp_path / "s")
    slave = SlaveStore.open(tmp_path / "s", OPTIONS)
    dispatch_all(slave)
    slave.take_given_offsets(*master.given_offsets())
    assert slave.queue_range("quiet", 0) == (quiet, quiet)
    assert slave.queue_range("busy", 0)[1] == master.queue_range("busy", 0)[1]
    assert slave.queues.given_offsets.by_topic == {"quiet": {0: quiet}}  # of others the entries tell
    slave.close()
    log.close()
    promoted = open_master(tmp_path / "s")
    assert promoted.queue_range("quiet", 0) == (quiet, quiet)
    sent = promoted.append([make_draft(77, topic="quiet")])[0]
    assert sent.queue_offset == quiet
    assert promoted.queue_units("quiet", 0, quiet, 10)[0][0] == sent.physical_offset
    promoted.close()
    again = open_master(tmp_path / "s")
    assert again.queue_range("quiet", 0) == (quiet, quiet + 1)
    again.close()
    master.close()


def test_offsets_wait_until_the_log_has_come_to_their_place(tmp_path: Path) -> None:
    """Those of messages that are still to come must not be taken for given."""
    master = open_master(tmp_path / "m")
    answers = [master.append([make_draft(number, size=4000)])[0] for number in range(40)]
    place, text = master.given_offsets()
    first = next(answer for answer in answers if answer.physical_offset >= place)
    assert GivenQueueOffsets(tmp_path).decode(text) == {"topic": {0: first.queue_offset}}
    log = open_log(tmp_path / "s")
    slave = SlaveStore.open(tmp_path / "s", OPTIONS)
    slave.take_given_offsets(place, text)
    assert slave.queue_range("topic", 0) == (0, 0)
    for start in range(0, master.written, FILE):
        log.append_raw(start, master.read_log(start, min(FILE, master.written - start)))
        log.publish()
        dispatch_all(slave)
        slave.merge_given_offsets()
    assert slave.queue_range("topic", 0) == (0, 40)
    assert slave.offered_offsets is None and slave.queues.given_offsets.by_topic == {}
    slave.close()
    log.close()
    master.close()


def test_what_is_told_of_queues_is_computed_again_only_when_the_log_has_another_file(tmp_path: Path) -> None:
    master = quiet_and_busy(tmp_path)
    told = master.given_offsets()
    master.append([make_draft(topic="quiet")])
    assert master.given_offsets() is told
    for number in range(20):
        master.append([make_draft(number, size=8000)])
    place, text = master.given_offsets()
    assert place == master.written - master.written % FILE > told[0]
    assert GivenQueueOffsets(tmp_path).decode(text)["quiet"] == {0: 11}
    master.close()


def test_lost_queue_files_do_not_begin_a_queue_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = quiet_and_busy(tmp_path)
    assert GivenQueueOffsets(tmp_path).by_topic == {"quiet": {0: 10}}
    written = (tmp_path / "whimbrel" / "queue-offsets.json").stat().st_mtime_ns
    store.run_retention(NOW)
    assert (tmp_path / "whimbrel" / "queue-offsets.json").stat().st_mtime_ns == written
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_master(tmp_path)
    assert store.queue_range("quiet", 0) == (10, 10)
    store.close()
    caplog.clear()
    store = open_master(tmp_path)  # a queue without a file is none that is missing
    assert "written anew" not in caplog.text
    assert store.append([make_draft(topic="quiet")])[0].queue_offset == 10
    store.close()


def test_a_dry_run_tells_where_queues_go_on(tmp_path: Path) -> None:
    store = quiet_and_busy(tmp_path)
    store.append([make_draft(topic="gone")])
    store.delete_topic("gone")
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    told = recover(tmp_path, dry_run=True)["queues"]
    assert not (tmp_path / "consumequeue").exists()
    assert told == recover(tmp_path, dry_run=False)["queues"]
    assert told["quiet@0"] == [10, 10] and told["busy@0"][1] == 900


def test_a_queue_without_room_for_its_file_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = quiet_and_busy(tmp_path)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_master(tmp_path)

    def full(self: Files, fd: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Files, "posix_fallocate", full)
    with pytest.raises(StoreFull):
        store.append([make_draft(topic="quiet")])
    assert store.queue_range("quiet", 0) == (10, 10)
    monkeypatch.undo()
    assert store.append([make_draft(topic="quiet")])[0].queue_offset == 10
    store.close()


# The log wins


def followed(store: MasterStore, root: Path, end: int) -> None:
    """Append what another master's log holds from our end on to our log, and close both sides."""
    log = open_log(root)
    while log.end < end:
        stop = min(end, log.end - log.end % FILE + FILE)
        log.append_raw(log.end, store.read_log(log.end, stop - log.end))
    log.publish()
    slave = SlaveStore.open(root, OPTIONS)
    dispatch_all(slave)
    slave.close()
    log.close()


def test_a_number_given_again_takes_the_place_of_expired_ones(tmp_path: Path) -> None:
    """As by a master of an earlier version, that began with an empty store."""
    master = quiet_and_busy(tmp_path / "old")
    begun_empty(master, tmp_path / "new")
    master.close()
    new = open_master(tmp_path / "new")
    sent = [new.append([make_draft(number, topic="quiet")])[0] for number in range(3)]
    assert [one.queue_offset for one in sent] == [0, 1, 2]
    followed(new, tmp_path / "old", new.written)
    new.close()
    old = open_master(tmp_path / "old")
    places = [unit[0] for unit in old.queue_units("quiet", 0, 0, 10)]
    assert places == [one.physical_offset for one in sent]
    assert old.queue_range("quiet", 0)[1] == 3
    old.close()


def test_two_messages_with_one_number_are_both_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = open_master(tmp_path / "a")
    old = [first.append([make_draft(number)])[0] for number in range(3)]
    queue = first.queues.by_key["topic", 0]
    with caplog.at_level(logging.ERROR):
        assert queue.put_at(1, first.written, 100, 7) == 3
        assert queue.put_at(2, first.written + 100, 100, 7) == 4
    assert caplog.text.count("has offset") == 1
    assert queue.put_at(1, old[1].physical_offset, old[1].size, 7) == -1  # there already
    assert [unit[0] for unit in queue.units(0, 9)] == [
        *(one.physical_offset for one in old),
        first.written,
        first.written + 100,
    ]
    first.close()


def test_entries_from_before_a_cut_give_way(tmp_path: Path) -> None:
    store = open_master(tmp_path)
    old = [store.append([make_draft(number)])[0] for number in range(5)]
    queue = store.queues.by_key["topic", 0]
    assert queue.put_at(2, old[2].physical_offset - 10, 50, 7) == 2
    assert [unit[0] for unit in queue.units(0, 9)] == [
        old[0].physical_offset,
        old[1].physical_offset,
        old[2].physical_offset - 10,
    ]
    store.close()


def test_a_message_that_was_put_under_another_number_is_not_put_again(tmp_path: Path) -> None:
    """Dispatch begins again at a mark; the entries behind it are cut before."""
    store = open_master(tmp_path)
    for number in range(3):
        store.append([make_draft(number)])
    mark = store.written
    queue = store.queues.by_key["topic", 0]
    store.writer.put(encode_record(make_draft(9), mark, 0, NOW))  # of a master that did not know of them
    for _ in range(2):
        queue.truncate(mark)
        store.dispatcher.run(Walk(store.read_log, mark, store.written, FILE), 1 << 20)
        assert queue.max == 4 and queue.units(3, 1)[0][0] == mark
    store.close(clean=False)


# The file


@pytest.mark.parametrize(
    "text",
    [
        '{"topic":',
        '{"topic":{"0":-1}}',
        '{"topic":{"0":1e999}}',
        '{"topic":{"0":999999999999999999}}',
        '{"topic":{"4294967296":1}}',
        '{"../topic":{"0":1}}',
        '{"..":{"0":1}}',
        '{"":{"0":1}}',
    ],
)
@pytest.mark.parametrize("kind", [GivenQueueOffsets, DeletedQueueOffsets])
def test_what_no_queue_can_be_is_damage(
    tmp_path: Path, text: str, kind: type[GivenQueueOffsets | DeletedQueueOffsets]
) -> None:
    (tmp_path / "whimbrel").mkdir()
    (tmp_path / "whimbrel" / kind.FILE).write_text(text)
    with pytest.raises(StoreError, match=r"is damaged .* remove it"):
        kind(tmp_path)
