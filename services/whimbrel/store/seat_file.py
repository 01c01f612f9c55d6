"""`STORE/whimbrel/seat`: what a member of a group that elects its leader must never forget.

Two slots, written in turn: change number n goes into slot n % 2, by one write and one fdatasync. The valid
slot with the greater number counts. So a write that was cut short leaves the seat as it was before; it was
not answered for. Each slot is one sector in a page of its own, and no write touches the other slot.

    at             of a slot, which is 512 bytes; numbers are little-endian
      0  8 bytes   tag "whimseat"
      8  u32       version of the layout, 1
     12  u32       flags: 1 the member may vote, 2 a cut is under way, 4 the store is being emptied
     16  i64       number of the change, 0 when the seat is made
     24  16 bytes  uuid of the seat, drawn when it is made: another store, another seat
     40  16 bytes  uuid of the group; zeros before there is one
     56  16 bytes  boot id of the machine when the log was last opened; zeros before
     72  i32       member id, 1 to 63
     76  i32       newest epoch that the member has promised itself to; 0 for none
     80  i32       to which candidate; 0 for nobody
     84  4 bytes   zeros
     88  i64       floor: the log below was known to be on disk at the last change
     96  i64       where the cut that is under way begins
    104  i64       end of the log before it
    112  u8        the weakest flush mode since the whole log was known to be on disk: 1 sync, 2 async
    113  u8        flags: 1 when the file was made is known, 2 its inode has a generation
    114  2 bytes   zeros
    116  u32       generation of the file's inode
    120  i64       acknowledged: an offset that is no further than what the member has acknowledged
    128  u64       inode of the file; 0 where it is bound to none
    136  i64       when the file was made, nanoseconds since the epoch
    144  i32       epoch of the byte before `acknowledged`, 0: not known
    148            zeros
    508  u32       CRC-32 of all that stands before

    0     slot of even numbers
    4096  slot of odd numbers; behind each, zeros up to the end of its page

The file gets its name with its first slot on disk. So a file without a valid slot is damaged, and never new:
a member that has forgotten its promises would break them. A slot that was confirmed and is damaged later
looks like one that was cut short, and the change before it counts: a disk that does this to a sector that it
has confirmed is beyond what elections are safe against, and `load` warns of it.

**What was acknowledged.** Whether a member may vote is a question of what it has acknowledged, and of what
it still has. Its log, its marks and its `abort` file do not tell: a copy, a tool or another setting changes
them. So the seat has three things for it, behind byte 112, where an earlier version writes zeros:

- `acknowledged`, the end of a record no further than what was counted or reported: it is moved with the marks
  (`replicator/promises.py`), so it lags. A log that ends below it has lost something. With it stands the
  epoch of what is before: a list of epochs that says an older one there, or none, is not this log's, and the
  log would be taken for less than it is.
- the flush mode: under `async` a power cut may have taken what was acknowledged, whatever the setting is
  now. It is written before anything is acknowledged in that mode, and stays until a process with synchronous
  flush has put the whole log on disk.
- the file that it is bound to (`machine.Identity`): a seat that is found in another file was copied. It is
  another seat then: with a uuid of its own, which is no voter's, and no vote. It keeps the promises that it
  finds, which are older than what the member may have promised since. Where the file system has nothing that
  tells a file from its copy, a seat is not bound.

Zeros there are a seat of an earlier version: it votes by the rule of then, and is bound with its next
change.

Only the replicator writes, and tools while it does not run (`offline_vote.py`). Who else reads meanwhile
finds the last change or the one before.
"""

import logging
import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from whimbrel.errors import StoreError
from whimbrel.ha.epochs import OFFSET_MAX
from whimbrel.machine import FILES, Files, Identity
from whimbrel.model.group_record import EPOCH_MAX, MEMBER_MAX

__all__ = [
    "FLUSH_MODES",
    "SEAT_FILE",
    "Seat",
    "SeatFile",
    "after_cut",
    "check_no_member",
    "copied",
    "cutting",
    "draw_uuid",
    "may_vote",
    "weaker",
]

logger = logging.getLogger(__name__)

SEAT_FILE: Final = Path("whimbrel") / "seat"  # in a store directory

SLOT: Final = struct.Struct("<8sIIq16s16s16siii4xqqqBB2xIqQqi")
SEAL: Final = struct.Struct("<I")
SLOT_BYTES: Final = 512
PLACES: Final = (0, 4096)
FILE_BYTES: Final = 8192
TAG: Final = b"whimseat"
VERSION: Final = 1
VOTES, CUTTING, EMPTYING = 1, 2, 4
FLUSH_MODES: Final = ("", "sync", "async")  # by what stands in the file; "" of an earlier version
HAS_BIRTH, HAS_GENERATION = 1, 2
UUID = re.compile(r"[0-9a-f]{32}")
NONE = bytes(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a member remembers.

    Attributes:
        uuid: of the seat, 32 hex digits.
        group: uuid of the group, 32 hex digits; "" before there is one.
        member: its id in the group, 1 to 63.
        promised: the newest epoch that it has promised itself to, 0 for none.
        promised_to: the candidate of that epoch, 0 for nobody.
        votes: False after it may have lost something that it had acknowledged.
        boot: boot id of the machine when the log was last opened, 32 hex digits; "" before.
        floor: the log below this offset was known to be on disk at the last change.
        cut: the log is being cut at the first offset, and ended at the second; None when it is not.
        emptying: all that follows from the log is being removed (`emptying.py`).
        acknowledged: an offset no further than what the member has acknowledged.
        acknowledged_epoch: of the byte before it, 0 where that is not known.
        flush: the weakest mode since the whole log was known to be on disk; "" from an earlier version.

    Raises:
        ValueError: no seat can have such values.
    """

    uuid: str
    group: str = ""
    member: int
    promised: int = 0
    promised_to: int = 0
    votes: bool = True
    boot: str = ""
    floor: int = 0
    cut: tuple[int, int] | None = None
    emptying: bool = False
    acknowledged: int = 0
    acknowledged_epoch: int = 0
    flush: str = ""

    def __post_init__(self) -> None:
        """Refuse what no seat can have."""
        for what, text in (("uuid", self.uuid), ("group", self.group), ("boot", self.boot)):
            empty = not text and what != "uuid"
            if not empty and (not UUID.fullmatch(text) or text == NONE.hex()):
                raise ValueError(f"a seat's {what} has 32 hex digits, not {text[:40]!r}")
        if not 1 <= self.member <= MEMBER_MAX or not 0 <= self.promised_to <= MEMBER_MAX:
            raise ValueError(f"members have ids from 1 to {MEMBER_MAX}: {self.member}, {self.promised_to}")
        for epoch in (self.promised, self.acknowledged_epoch):
            if not 0 <= epoch <= EPOCH_MAX:
                raise ValueError(f"epochs are 0 to {EPOCH_MAX}, not {epoch}")
        begin, end = self.cut or (0, 0)
        if not 0 <= self.floor <= OFFSET_MAX or not 0 <= begin <= end <= OFFSET_MAX:
            raise ValueError(f"a log can't have a floor of {self.floor}, or be cut from {begin} to {end}")
        if not 0 <= self.acknowledged <= OFFSET_MAX or self.flush not in FLUSH_MODES:
            raise ValueError(f"nothing is acknowledged up to {self.acknowledged}, or flushed {self.flush!r}")


def check_no_member(root: Path, files: Files = FILES) -> None:
    """Refuse a store that belongs to a group which elects its leader to a process whose role is configured.

    Such a process asks nobody who leads: it would write what another leader has written otherwise.

    Raises:
        StoreError: it belongs to one, or its seat is damaged.
    """
    seat = SeatFile(root, files).load()
    if seat is not None and seat.group:
        raise StoreError(
            f"the store {root} belongs to member {seat.member} of a group that elects its leader: start"
            f" broker and replicator with --role elected --id {seat.member}, the broker with --coordinator"
        )


def draw_uuid(random: Callable[[int], bytes]) -> str:
    """Return the uuid of a new seat; `random` returns so many bytes that nobody else draws (`os.urandom`)."""
    return random(16).hex()


def cutting(seat: Seat, point: int, end: int) -> Seat:
    """Return a seat with the intent to cut a log that ends at `end` at a point (`divergence.py`)."""
    return replace(seat, cut=(point, end))


def after_cut(seat: Seat) -> Seat:
    """Return a seat whose cut is done: its log is known to be on disk up to the point at most.

    The leader of an epoch that was promised has ordered it, so what is gone was never committed, and the vote
    stays: else two of three members could not elect where the third one dies after it has ordered a cut.
    """
    if seat.cut is None:
        return seat
    point = seat.cut[0]
    known = replace(seat, cut=None, floor=min(seat.floor, point))
    if seat.acknowledged > point:
        known = replace(known, acknowledged=point, acknowledged_epoch=0)
    return known


def copied(seat: Seat, uuid: str) -> Seat:
    """Return the seat of a copy of a store: what it finds promised is a minimum, and it has no vote.

    A copy of one that never promised anything, and belongs to no group, has nothing to forget.
    """
    votes = seat.votes and not seat.promised and not seat.group
    return replace(seat, uuid=uuid, votes=votes, floor=0, acknowledged=0, acknowledged_epoch=0)


def weaker(*modes: str) -> str:
    """Return the weakest of flush modes, of which some may not be known."""
    return max(modes, key=FLUSH_MODES.index)


def may_vote(
    seat: Seat, *, end: int, epoch: int, boot: str, clean: bool, flush: str, doubtful: bool = False
) -> bool:
    """Return whether a member that has just opened its log still holds all that it ever acknowledged.

    One that may have lost some of it promises nothing to a candidate, and its acknowledgements do not count,
    until a leader has filled the gap.

    Args:
        seat: as it was before this start.
        end: of the log, as recovery has found it.
        epoch: of the byte before `seat.acknowledged`, as the list of epochs says; 0: it does not.
        boot: boot id of the machine now.
        clean: the log was closed in order when it was last open.
        flush: the setting, for a seat that does not tell what it was: under `async` what was acknowledged
            may have been in the page cache only, which a new boot has lost.
        doubtful: a sync of the log had failed: so has the page cache that let go of what it covered, without
            another boot.
    """
    known = after_cut(seat)
    if not seat.votes or end < max(known.floor, known.acknowledged) or epoch < known.acknowledged_epoch:
        return False
    kept = not doubtful and (seat.boot == boot or clean)
    return kept or (seat.flush or flush) != "async"


class SeatFile:
    """The seat of one store; its only writer has one such object for as long as it runs.

    Attributes:
        saved: what this object has put on disk last, None before its first `save`. What `load` returns may
            be in the page cache only, where a sync has failed in an earlier process of this boot: nothing may
            be answered from it before it was saved once.
        failed: why nothing can be saved any more, "" while it can.
        bound_to: the file that the last change names, None where it names none.
        was_copied: what `load` has found stands in another file than it names; the next change has another
            uuid, or `rebind` says that the store was moved.
    """

    __slots__ = ("bound_to", "copied_uuid", "failed", "files", "number", "path", "saved")

    def __init__(self, root: Path, files: Files = FILES) -> None:
        self.path, self.files = root / SEAT_FILE, files
        self.number = -1  # of the change that counts; -1: there is no file, or it was not read yet
        self.saved: Seat | None = None
        self.failed = ""
        self.bound_to: Identity | None = None
        self.copied_uuid = ""

    @property
    def was_copied(self) -> bool:
        """See the class."""
        return bool(self.copied_uuid)

    def rebind(self) -> None:
        """Take what was loaded for the seat of this store: it was moved, and where it was it is no more."""
        self.copied_uuid = ""

    def load(self) -> Seat | None:
        """Return what the file says; None without a file. Whether it was copied stands in `was_copied`.

        Raises:
            StoreError: it is damaged, of a later version, or can't be read; or a `save` has failed before.
        """
        if self.failed:
            raise StoreError(self.failed)
        try:
            if not self.files.exists(self.path):
                return None
            data = self.files.read_bytes(self.path)
            there = self.identity()
        except OSError as error:
            raise StoreError(
                f"{self.path} can't be read: {error}; see to the disk, then start again"
            ) from error
        slots = [data[at : at + SLOT_BYTES] for at in PLACES]
        found = [one for place, slot in enumerate(slots) if (one := self.decode(slot, place)) is not None]
        if not found:
            raise StoreError(
                f"{self.path} is damaged, and with it what this member has promised: do not remove it, since"
                " a member without its promises could vote twice in one epoch; move the whole store away and"
                " begin with an empty one, which then has to be made a voter anew"
            )
        if len(found) < sum(bool(slot.strip(b"\0")) for slot in slots):
            logger.warning(
                "%s: one of its two slots is not whole, as after a power loss while it was written; what the"
                " other one says counts, change %d",
                self.path,
                found[0][0],
            )
        self.number, seat, self.bound_to = max(found, key=lambda one: one[0])
        # A file system that tells nothing is another one than that of the file which is named.
        was_copied = self.bound_to is not None and (there is None or there.is_copy_of(self.bound_to))
        self.copied_uuid = seat.uuid if was_copied else ""
        return seat

    def identity(self) -> Identity | None:
        """Return what tells the file from its copies, None where nothing does."""
        fd = self.files.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self.files.identity(fd)
        finally:
            self.files.close(fd)

    def decode(self, slot: bytes, place: int) -> tuple[int, Seat, Identity | None] | None:
        """Return a slot's number and seat, and the file that it names; None when it is not valid.

        Raises:
            StoreError: another version has written it.
        """
        if len(slot) != SLOT_BYTES or SEAL.pack(zlib.crc32(slot[: -SEAL.size])) != slot[-SEAL.size :]:
            return None
        tag, version, flags, number, uuid, group, boot, *numbers = SLOT.unpack_from(slot)
        member, promised, promised_to, floor, begin, end, mode, tells, generation, *numbers = numbers
        acknowledged, inode, birth_ns, epoch = numbers
        if tag != TAG:
            return None
        if version != VERSION:
            raise StoreError(
                f"{self.path} was written by another version (layout {version}, this one knows {VERSION}):"
                " start that version"
            )
        if number < 0 or number % len(PLACES) != place:
            return None
        try:
            seat = Seat(
                uuid=uuid.hex(),
                group="" if group == NONE else group.hex(),
                member=member,
                promised=promised,
                promised_to=promised_to,
                votes=bool(flags & VOTES),
                boot="" if boot == NONE else boot.hex(),
                floor=floor,
                cut=(begin, end) if flags & CUTTING else None,
                emptying=bool(flags & EMPTYING),
                acknowledged=acknowledged,
                acknowledged_epoch=epoch,
                flush=FLUSH_MODES[mode] if mode < len(FLUSH_MODES) else "unknown",
            )
        except ValueError:
            return None
        if not inode:
            return number, seat, None
        identity = Identity(
            inode, birth_ns if tells & HAS_BIRTH else 0, generation if tells & HAS_GENERATION else -1
        )
        return number, seat, identity

    def save(self, seat: Seat) -> None:
        """Write a change, and wait until it is on disk; the first one makes the file, or its name durable.

        After an error nobody knows which of two seats is on disk: no later call of this object succeeds, and
        the process must not answer from either. The next process reads what is there.

        Raises:
            StoreError: the disk refuses, or has refused before; or the file that is there is damaged.
        """
        if self.failed:
            raise StoreError(self.failed)
        if self.number < 0:
            self.load()
        assert not self.was_copied or seat.uuid != self.copied_uuid, "the seat of a copy is another one"
        number = self.number + 1
        try:
            if number:
                self.write(seat, number)
            else:
                self.create(seat)
            if self.saved is None:  # a kill may have left names that are in the cache only
                for directory in (self.path.parent, self.path.parent.parent):
                    self.files.sync_directory(directory)
        except OSError as error:
            self.failed = (
                f"{self.path} can't be written: {error}; what this member has promised is not known to be on"
                " disk: see to the disk, then start this process again"
            )
            raise StoreError(self.failed) from error
        self.number, self.saved, self.copied_uuid = number, seat, ""

    def write(self, seat: Seat, number: int) -> None:
        """Put a slot on disk, in place."""
        fd = self.files.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            self.bound_to = self.files.identity(fd)
            self.files.write_all(fd, encode(seat, number, self.bound_to), PLACES[number % len(PLACES)])
            self.files.fdatasync(fd)
        finally:
            self.files.close(fd)

    def create(self, seat: Seat) -> None:
        """Make the file with its first slot, which is on disk before it has its name; `save` syncs that."""
        files, new = self.files, self.path.with_name(self.path.name + ".tmp")
        files.make_directory(self.path.parent)
        fd = files.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self.bound_to = files.identity(fd)
            files.write_all(fd, encode(seat, 0, self.bound_to).ljust(FILE_BYTES, b"\0"), 0)
            files.fsync(fd)
        finally:
            files.close(fd)
        files.rename(new, self.path)


def encode(seat: Seat, number: int, identity: Identity | None) -> bytes:
    """Return the slot of a change, in a file of which this is known."""
    begin, end = seat.cut or (0, 0)
    inode, birth_ns, generation = identity or (0, 0, -1)
    flags = VOTES * seat.votes | CUTTING * (seat.cut is not None) | EMPTYING * seat.emptying
    fields = SLOT.pack(
        TAG,
        VERSION,
        flags,
        number,
        bytes.fromhex(seat.uuid),
        bytes.fromhex(seat.group) or NONE,
        bytes.fromhex(seat.boot) or NONE,
        seat.member,
        seat.promised,
        seat.promised_to,
        seat.floor,
        begin,
        end,
        FLUSH_MODES.index(seat.flush),
        HAS_BIRTH * (birth_ns != 0) | HAS_GENERATION * (generation >= 0),
        max(generation, 0),
        seat.acknowledged,
        inode,
        birth_ns,
        seat.acknowledged_epoch,
    )
    data = fields.ljust(SLOT_BYTES - SEAL.size, b"\0")
    return data + SEAL.pack(zlib.crc32(data))
