"""Masters and slaves that are compared, each a store directory or a broker, and how far each holds the log.

A directory is described with all its faults: an audit has to report files that are missing, too short or too
long, which recovery, and everything that serves messages, refuse.

    directory                                    end of its log
    with a shared page of this boot, in          what that broker has confirmed
    which a broker has confirmed something
    else                                         the end of the last whole record of its last file; but at
                                                 least what the log mark says was on disk once

Without a broker, that end lies behind the offset at which recovery would end a log whose last file is damaged
in the middle. The records behind the damage are compared too, so that a single damaged bit is a difference,
and not a slave that is behind. `damage` says where recovery would end the log.

The log mark shows that a last file was lost. RocketMQ has no log mark; there, a lost last file looks like a
slave that is behind. A first file that was lost looks like one that retention has removed.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from whimbrel.errors import CorruptRecord, IllegalOffset, NotSupported, StoreError, WhimbrelError
from whimbrel.model.cluster import Cluster
from whimbrel.model.route import parse_endpoints
from whimbrel.rpc.api.bulk_calls import describe_queues, log_bytes, open_bulk_channel, stream_blocking
from whimbrel.rpc.api.calls import perform_blocking
from whimbrel.spark import nameservers
from whimbrel.spark.reporting import JobError
from whimbrel.store.codec import BLANK_MAGIC, PREFIX, RECORD_MAGICS, SIZE_AND_MAGIC, record_fault
from whimbrel.store.columns import Scan
from whimbrel.store.locking import is_locked
from whimbrel.store.recovery import recover_log
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import Segments
from whimbrel.store.shared_page import SharedPage

__all__ = [
    "CALL_S_MAX",
    "GONE",
    "FileState",
    "Member",
    "MemberState",
    "agreed_size",
    "bytes_between",
    "check_member",
    "describe_member",
    "group_addresses",
]

BROKER = re.compile(r"(?:[^/\s:]+|\[[0-9a-fA-F:]+\]):\d{1,5}")
ASK_S_MAX = 10.0  # of a small call to a broker
CALL_S_MAX = 1800.0  # of a stream: checksums of a file of 1 GiB take seconds, on a busy disk minutes
NO_TOPIC = "-"  # named in a call, so that the broker describes its log, and no queues
MAGICS = (*RECORD_MAGICS, BLANK_MAGIC)
GONE = (IllegalOffset, CorruptRecord)  # a broker's answer when a file is missing or cut off


@dataclass(frozen=True, slots=True)
class Member:
    """A master or a slave, as the operator names it.

    Attributes:
        file_size: of the files of its log, as the other members' files tell; 0 to find it out.
    """

    text: str
    file_size: int = 0

    @property
    def address(self) -> str:
        """Where the broker is; "" for a directory."""
        return self.text if BROKER.fullmatch(self.text) else ""

    @property
    def root(self) -> Path:
        """The store directory."""
        return Path(self.text)


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of a log file; if it is the same twice, the file was not written in between."""

    size: int
    modified_ns: int
    changed_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member at the time it was described.

    Attributes:
        begin, end: of the log that it holds; `end` is confirmed.
        file_size: of each file; 0 without files.
        files: of a directory, by the offset at which they begin; not known of a broker.
        damage: why recovery would end the log before `end`; "" when it would not.
        identity: of the store, under which its known checksums are kept.
    """

    member: Member
    begin: int
    end: int
    file_size: int
    identity: str
    files: dict[int, FileState] = field(default_factory=dict)
    damage: str = ""


def describe_member(member: Member) -> MemberState:
    """Describe a member; runs in a task, where the files are.

    Raises:
        JobError: there is no store, or no broker answers.
    """
    return describe_broker(member) if member.address else describe_store(member)


def group_addresses(server: str, broker: str) -> list[str]:
    """Return the addresses of a broker's members, the master first, as a nameserver knows them.

    Args:
        server: nameservers, HOST:PORT,...
        broker: the broker's name; "" for the only one that has a slave.

    Raises:
        JobError: the nameserver does not answer, or does not know a master and a slave of that name.
    """
    try:
        cluster = nameservers.describe_any([str(each) for each in parse_endpoints(server)], ASK_S_MAX)
    except NotSupported as error:
        raise JobError(f"--endpoint: {error}") from error
    except (WhimbrelError, ValueError) as error:
        raise JobError(f"--endpoint {server}: no nameserver answers there ({error})") from error
    if not broker:
        broker = only_replicated(cluster)
    found = sorted(
        (each for each in cluster.brokers if each.broker_name == broker), key=lambda each: each.broker_id
    )
    if not found:
        names = ", ".join(sorted({each.broker_name for each in cluster.brokers})) or "none"
        raise JobError(f"--broker {broker}: the nameserver does not know it; it knows {names}")
    if found[0].broker_id or len(found) < 2:
        lives = ", ".join(f"{each.role} {each.address}" for each in found)
        raise JobError(f"--broker {broker}: an audit needs a master and a slave, and there is only {lives}")
    return [each.address for each in found]


def only_replicated(cluster: Cluster) -> str:
    """Return the only broker name under which a slave is registered.

    Raises:
        JobError: there is none, or there are several.
    """
    names = sorted({each.broker_name for each in cluster.brokers if each.broker_id})
    if len(names) == 1:
        return names[0]
    if not names:
        alone = ", ".join(sorted({each.broker_name for each in cluster.brokers}))
        raise JobError(
            f"an audit compares a master with its slaves, and no slave is registered beside {alone}"
        )
    raise JobError(f"--broker says which one is audited: {', '.join(names)}")


def check_member(text: str, *, local: bool) -> None:
    """Raise JobError if a broker does not answer, or a directory is no store; before Spark starts.

    Args:
        text: the member, as the operator names it.
        local: tasks run on this machine, and so see its directories.
    """
    member = Member(text)
    if member.address:
        describe_broker(member)
    elif local:
        check_directory(member.root)


def check_directory(root: Path) -> None:
    """Raise JobError if a directory is no store."""
    if not (root / "commitlog").is_dir():
        hint = "" if root.is_dir() else " (there is no such directory; a broker is named as HOST:PORT)"
        raise JobError(f"{root} is no store: it has no commitlog directory{hint}")


def describe_broker(member: Member) -> MemberState:
    """Describe a broker, by asking it."""
    try:
        with open_bulk_channel(member.address) as channel:
            found = perform_blocking(channel, describe_queues((NO_TOPIC,)), (), ASK_S_MAX)
    except WhimbrelError as error:
        raise JobError(f"{member.text}: no broker answers there ({error}); is it running?") from error
    if not found.log_file_size:
        raise JobError(f"{member.text} does not tell the size of its log files: audit its store directory")
    identity = f"{found.broker_name}/{found.broker_id} at {member.address}"
    return MemberState(member, found.log_begin, found.log_confirmed, found.log_file_size, identity)


def describe_store(member: Member) -> MemberState:
    """Describe a directory."""
    root = member.root
    check_directory(root)
    files = files_of(root / "commitlog")
    size = member.file_size or usual_size(files)
    identity = str(root.resolve())
    if not files or not size:
        return MemberState(member, 0, 0, 0, identity)
    begin = min(files)
    try:
        page = SharedPage.snapshot(root)
        if page is not None and (page.confirmed or is_locked(root)):
            return MemberState(member, begin, max(page.confirmed, begin), size, identity, files)
        end, damage = end_at_rest(root, sorted(files), size)
        mark = LogMark.load(root)
    except (OSError, StoreError) as error:
        raise JobError(f"{root}: {error}") from error
    return MemberState(member, begin, max(end, mark.offset if mark else 0), size, identity, files, damage)


def files_of(directory: Path) -> dict[int, FileState]:
    """Return the files of a log, by the offset at which they begin."""
    found = {}
    for entry in os.scandir(directory):
        if len(entry.name) == 20 and entry.name.isdigit() and entry.is_file():
            stat = entry.stat()
            found[int(entry.name)] = FileState(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    return found


def usual_size(files: dict[int, FileState]) -> int:
    """Return the size that most files of this log have; 0 if no size fits the files' names."""
    fitting = Counter(
        state.size
        for state in files.values()
        if state.size and all(start % state.size == 0 for start in files)
    )
    return max(fitting, key=lambda size: (fitting[size], size)) if fitting else 0


def agreed_size(states: Sequence[MemberState]) -> int:
    """Return the size that most files of all members have; 0 without files."""
    sizes: Counter[int] = Counter()
    for each in states:
        sizes.update(state.size for state in each.files.values())
        sizes.update({each.file_size: 1} if not each.files else {})
    del sizes[0]
    fitting = [size for size in sizes if all(start % size == 0 for each in states for start in each.files)]
    return max(fitting, key=lambda size: (sizes[size], size), default=0)


def end_at_rest(root: Path, starts: Sequence[int], file_size: int) -> tuple[int, str]:
    """Return where the last whole record ends, and why recovery would end the log before."""
    segments = Segments(root / "commitlog", file_size)
    segments.starts = list(starts)
    try:
        last = next((at for at in reversed(starts) if begins_with_record(segments, at)), starts[0])
        behind = [at for at in starts if last <= at <= last + file_size]
        state = recover_log(segments.read, behind, file_size, clean=True, mark=None, checkpoint=None)
        file_end = last + file_size
        if state.end >= file_end or not (state.fault or state.dirty):
            return state.end, ""
        further = last_whole_record(segments, state.end, file_end)
        if further <= state.end:
            return state.end, ""
        return further, f"recovery would end the log at {state.end}: {state.fault or 'zeros within'}"
    finally:
        segments.close()


def begins_with_record(segments: Segments, start: int) -> bool:
    """Return whether a file was ever written."""
    head = segments.read(start, SIZE_AND_MAGIC.size)
    return len(head) == SIZE_AND_MAGIC.size and SIZE_AND_MAGIC.unpack(head)[1] in MAGICS


def last_whole_record(segments: Segments, at: int, file_end: int) -> int:
    """Return the end of the last record behind damage whose body matches its CRC; `at` without one."""
    end = at
    scan = Scan(segments.read, at, file_end, limit=file_end, file_size=segments.file_size, on_fault="skip")
    for records in scan:
        for position in reversed(records.positions.tolist()):
            size = PREFIX.unpack_from(records.data, position)[0]
            chunk = bytes(records.data[position : position + size])
            place = int(records.head["physical_offset"][np.searchsorted(records.positions, position)])
            if not record_fault(chunk, 0, place):
                end = max(end, place + size)
                break
    return end


def bytes_between(member: Member, begin: int, end: int, file_size: int) -> bytes:
    """Return the bytes of a range of one log file; fewer if the file is truncated or gone.

    Raises:
        WhimbrelError: a broker does not answer.
    """
    if end <= begin:
        return b""
    if member.address:
        pieces: list[bytes] = []
        try:
            with open_bulk_channel(member.address) as channel:
                for _, data in stream_blocking(channel, log_bytes(begin, end), timeout_s=CALL_S_MAX):
                    pieces.append(data)
        except GONE:
            pass
        return b"".join(pieces)
    position = begin % file_size
    try:
        with (member.root / "commitlog" / segment_name(begin - position)).open("rb") as file:
            return os.pread(file.fileno(), end - begin, position)
    except FileNotFoundError:
        return b""
