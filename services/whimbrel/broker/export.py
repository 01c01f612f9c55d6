"""Makes a store ready for RocketMQ: what groups hold goes into their retry topics (`whimbrel store export`).

A group's offset in `consumerOffset.json` is the one below which all is finished. RocketMQ knows no more than
that, so it would deliver again what was acknowledged behind a message that is still held. Offline, before a
RocketMQ broker takes the store over:

    each message that a group took and did not finish
        --> a copy in %RETRY%<group>_<topic>, its count of redeliveries raised by the attempts
        --> on the disk
        --> done in the lease journal
    consumerOffset.json: behind all that the group ever took
    epochFileCheckpoint, where there is one: the whole log is of epoch 1

RocketMQ reads that topic beside the topic proper, and so does our broker (`consume/retry_topics.py`). A crash
between the copies of a queue and the journal leads to second copies when it is done again. Groups of ordered
consumers are left alone: they go on from their offset, in order.

**Epochs.** A broker of RocketMQ's controller mode whose list names a higher epoch than its controller has
reached logs "fail to change to master", takes sends all the same, and leaves its own epoch out of the list
(5.3.3). Slaves would be compared by epochs that were not theirs. Every controller has reached 1.

**A member's store**, where a group elects its leader, is not changed: what its log holds is what it may vote
by. It is exported to another place (`store/copying.py`), up to where it is known to be committed.

    python -m whimbrel.broker.export [--json] [--to DIR] STORE
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from whimbrel.broker.consume.lease_journal import LeaseJournal
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.plan import HandOn
from whimbrel.broker.consume.queue_leases import Change, QueueLeases
from whimbrel.broker.produce.confirmed_offset import ConfirmedFile
from whimbrel.broker.produce.internal_append import onward_draft
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.offset_files import OffsetFile
from whimbrel.broker.tables.versioned import VersionedTable
from whimbrel.errors import CorruptRecord, IllegalOffset, StoreError, WhimbrelError, file_trouble
from whimbrel.machine import MACHINE, Machine
from whimbrel.model.names import RETRY_PREFIX
from whimbrel.model.topic import TopicConfig
from whimbrel.store.codec import decode_record
from whimbrel.store.copying import copy_store
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.master_store import MasterStore
from whimbrel.store.modes import same_modes
from whimbrel.store.offline_vote import check_all_committed, check_no_seat, known_commit
from whimbrel.store.seat_file import SeatFile
from whimbrel.store.view import store_options

__all__ = ["Exported", "export", "main"]

JOURNAL_FILE_BYTES = 8 << 20  # the setting's default; larger files stay as large as they are


@dataclass(frozen=True, slots=True)
class Exported:
    """What was done to one queue of a group.

    Attributes:
        copied: messages. unreadable: messages that the log no longer holds, or whose records are damaged.
        offset: where the group stands now.
    """

    group: str
    topic: str
    queue_id: int
    copied: int
    unreadable: int
    offset: int


def export(root: Path, machine: Machine = MACHINE, *, to: Path | None = None) -> list[Exported]:
    """Export a store at rest; return what was done, queue by queue.

    Args:
        to: a directory that is empty, or not there, for the export: the store is only read.

    Raises:
        StoreError: the store is in use, or is none, or its log or its lease journal is damaged; or it is a
            member's, and nothing says where the export is to go.
        StoreFull: the disk has no room for the copies.
    """
    if to is None:
        check_no_seat(
            root,
            "an export in its place, which writes records that its group does not have,",
            "name a directory for it with --to",
            machine,
        )
        check_all_committed(
            root,
            "an export in its place",
            "start the group, and stop this member once it has caught up; or name a directory with --to",
            machine,
        )
    else:
        copy_store(root, to, group=False, log_end=committed_end(root, machine), machine=machine)
        root = to
    with ExitStack() as opened:
        store = MasterStore.open(root, store_options(root), clock=machine.wall_ms, machine=machine)
        opened.callback(store.close)
        config = root / "config"
        topics = VersionedTable(
            config / "topics.json",
            "topicConfigTable",
            TopicConfig,
            clock=machine.wall_ms,
            files=machine.files,
        )
        topics.load(())
        groups = GroupTable(config, auto_create=False, clock=machine.wall_ms, files=machine.files)
        offset_file = OffsetFile(config, machine.files)
        offsets = offset_file.load()
        leases_of, files = root / "whimbrel" / "leases", machine.files
        kept = [files.size(leases_of / name) for name in files.names(leases_of)]
        journal = LeaseJournal(root, file_bytes=max([JOURNAL_FILE_BYTES, *kept]), machine=machine)
        leases = LeaseStore(journal, broker_id=0, now_ms=machine.wall_ms)
        leases.open()
        opened.callback(leases.close)
        done = list(export_states(store, topics, groups, leases))
        for group_name, topic, (queue_id, _, committed) in leases.table.positions():
            if committed >= 0:
                offsets.setdefault((topic, group_name), {})[queue_id] = committed
        for (topic, _), queues in offsets.items():
            for queue_id, offset in queues.items():
                if store.queues.get(topic, queue_id) is not None:
                    queues[queue_id] = min(offset, store.queue_range(topic, queue_id)[1])
        offset_file.save(offsets, machine.wall_ms())
        epoch_file = EpochFile(root, machine.files)
        epochs = epoch_file.load()
        if epochs:
            epoch_file.save(((1, epochs[0][1]),))
    return done


def export_states(
    store: MasterStore, topics: VersionedTable[TopicConfig], groups: GroupTable, leases: LeaseStore
) -> Iterator[Exported]:
    """Copy what is open in each queue of each group, but for ordered ones; yield what was done."""
    for state in leases.table.states():
        end = store.queue_range(state.topic, state.queue_id)[1]
        known = store.queues.get(state.topic, state.queue_id) is not None
        if state.next > end and known:  # what is known of messages that are not exported
            entries = b"".join(state.entries(state.epoch, end))
            state.reset(state.epoch)
            leases.table.join(entries)
        group = groups.get(state.group)
        if state.started and not state.at_rest and not (group and group.fifo):
            yield export_queue(store, topics, leases, state)


def committed_end(root: Path, machine: Machine) -> int | None:
    """Return where the log of a member's store is known to be committed; None: no majority commits it.

    Raises:
        StoreError: that is not known.
    """
    seat = SeatFile(root, machine.files).load()
    committed = known_commit(root, machine)
    if seat is None or not seat.group:
        return committed if committed and EpochFile(root, machine.files).load() else None
    committed = max(ConfirmedFile(root, machine.files).offset, committed)
    if not committed:
        raise StoreError(
            f"the store {root} does not say what of its log its group has committed: start the member, and"
            " stop it once it has a leader; or export the store of another one"
        )
    return committed


def export_queue(
    store: MasterStore, topics: VersionedTable[TopicConfig], leases: LeaseStore, state: QueueLeases
) -> Exported:
    """Copy what is open in one queue, and finish it."""
    name = (
        state.topic if state.topic.startswith(RETRY_PREFIX) else f"{RETRY_PREFIX}{state.group}_{state.topic}"
    )
    copied = unreadable = 0
    changes: list[Change] = []
    for offset, attempt in list(open_offsets(state)):
        changes.append((state, offset, offset + 1, None))
        try:
            ((physical_offset, size, _),) = store.queue_units(state.topic, state.queue_id, offset, 1)
            message = decode_record(store.read(physical_offset, size))
        except (CorruptRecord, IllegalOffset, ValueError):  # no entry, or no record, any more
            unreadable += 1
            continue
        if topics.get(name) is None:
            topics.put(TopicConfig(name=name, read_queues=1, write_queues=1))
        target = HandOn(topic=name, reconsume_times=message.reconsume_times + max(attempt, 0))
        store.append([onward_draft(message, target, 0, message.store_host_raw)])
        store.end_tick()
        copied += 1
    store.writer.flush()
    leases.commit(changes)
    return Exported(state.group, state.topic, state.queue_id, copied, unreadable, state.committed)


def open_offsets(state: QueueLeases) -> Iterator[tuple[int, int]]:
    """Yield the offsets that a group took and did not finish, each with how often it was delivered."""
    for offset in range(state.committed, state.next):
        if not state.is_done(offset):
            lease = state.leases.get(offset)
            yield offset, lease.attempt if lease else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the store that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="whimbrel store export", description="Make a store ready for RocketMQ."
    )
    parser.add_argument("store", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--to", type=Path)
    chosen = parser.parse_args(arguments)
    try:
        with same_modes(chosen.store):
            done = export(chosen.store, to=chosen.to)
    except (WhimbrelError, OSError) as error:
        sys.stderr.write(f"Error: {file_trouble(error) if isinstance(error, OSError) else error}\n")
        return 1
    if chosen.json:
        sys.stdout.write(json.dumps([asdict(one) for one in done]) + "\n")
        return 0
    for one in done:
        lost = f", {one.unreadable} could not be read" if one.unreadable else ""
        where = f"{one.group} on {one.topic}/{one.queue_id}"
        sys.stdout.write(f"{where}: {one.copied} copied{lost}; offset {one.offset}\n")
    count = sum(one.copied for one in done)
    sys.stdout.write(f"{chosen.to or chosen.store} is ready for RocketMQ: {count} messages copied\n")
    return 0
