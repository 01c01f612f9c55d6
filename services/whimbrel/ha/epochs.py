"""Epoch lists: which leader wrote which part of a log, and how far two logs are therefore the same.

    epoch 1          epoch 2    epoch 4
    |----------------|----------|--------------> end of the log
    0                1000       1500

A list is a tuple of (epoch, start) pairs: from `start` on, the log was written by the leader of that epoch,
up to where the next one starts. Both numbers grow strictly, so an epoch that wrote nothing gives way to the
next one that starts at the same offset. Two logs that have the same epoch with the same start hold the same
bytes up to the lesser of that epoch's two ends, because an epoch has one leader, who writes its log but once.

Bytes before the first start belong to no epoch: they were written before the group had any.

`STORE/epochFileCheckpoint` holds the list as text, in the format of RocketMQ's controller mode:

    2            how many entries follow
    1953333299   CRC-32 of all that follows, without its highest bit; 0: not to be checked
    1-0          epoch-start, a line each, every line ended by a line feed
    2-1000

(RocketMQ 5.3.3: EpochFileCache, CheckpointFile.)
"""

import re
import zlib
from typing import Final

from whimbrel.errors import WhimbrelError
from whimbrel.model.group_record import EPOCH_MAX

__all__ = [
    "EPOCHS_MAX",
    "OFFSET_MAX",
    "TEXT_BYTES_MAX",
    "BadEpochs",
    "Epochs",
    "adopted",
    "check_epochs",
    "common_epoch",
    "consistent_point",
    "cut",
    "decode_epochs",
    "encode_epochs",
    "epoch_at",
    "reached",
]

Epochs = tuple[tuple[int, int], ...]  # (epoch, offset of its first byte), the oldest first

EPOCHS_MAX: Final = 1000  # of a list; RocketMQ's answer to a handshake has room for so many
OFFSET_MAX: Final = (1 << 63) - 1
# Two head lines, and of each entry the two numbers, a hyphen and the line end, which may have two characters.
TEXT_BYTES_MAX: Final = 32 + EPOCHS_MAX * (10 + 1 + 19 + 2)

LINE = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")


class BadEpochs(WhimbrelError):
    """A list of epochs that no log can have, or a text that is none; the message says what is wrong."""

    reason = "BAD_EPOCHS"
    effect = "none"


def check_epochs(epochs: Epochs, end: int = OFFSET_MAX) -> None:
    """Refuse a list that no log can have.

    Args:
        end: of the log; no epoch may start behind it.

    Raises:
        BadEpochs: too many entries, numbers out of bounds, or numbers or starts that do not grow.
    """
    if len(epochs) > EPOCHS_MAX:
        raise BadEpochs(f"{len(epochs)} epochs: the limit is {EPOCHS_MAX}")
    before = (0, -1)
    for epoch, start in epochs:
        if not 0 < epoch <= EPOCH_MAX or not 0 <= start <= OFFSET_MAX:
            raise BadEpochs(f"epoch {epoch} from {start} on: one of the two numbers is out of bounds")
        if epoch <= before[0] or start <= before[1]:
            raise BadEpochs(f"epoch {epoch} from {start} on follows epoch {before[0]} from {before[1]} on")
        before = epoch, start
    if epochs and before[1] > end:
        raise BadEpochs(f"epoch {before[0]} starts at {before[1]}, behind the log's end {end}")


def common_epoch(mine: Epochs, theirs: Epochs) -> tuple[int, int] | None:
    """Return the newest epoch that stands in both lists with the same start; None without one."""
    known = dict(theirs)
    for epoch, start in reversed(mine):
        if known.get(epoch) == start:
            return epoch, start
    return None


def consistent_point(mine: Epochs, my_end: int, theirs: Epochs, their_end: int) -> int | None:
    """Return up to where two logs are the same by their lists; None when no epoch is common to both.

    That is the lesser end of the newest epoch that both have with the same start
    (RocketMQ: EpochFileCache.findConsistentPoint).
    """
    common = common_epoch(mine, theirs)
    if common is None:
        return None
    return min(end_of(mine, common, my_end), end_of(theirs, common, their_end))


def end_of(epochs: Epochs, entry: tuple[int, int], end: int) -> int:
    """Return where an epoch of a log that ends at `end` ends itself."""
    at = epochs.index(entry) + 1
    return epochs[at][1] if at < len(epochs) else end


def cut(epochs: Epochs, point: int) -> Epochs:
    """Return the list of a log that was cut at `point` because it is not the same from there on.

    An epoch that starts at the point has no byte left, and goes (RocketMQ:
    EpochFileCache.truncateSuffixByOffset).
    """
    return tuple(entry for entry in epochs if entry[1] < point)


def reached(epochs: Epochs, end: int) -> Epochs:
    """Return the epochs that a log which reaches `end` is in: those that start there or before."""
    return tuple(entry for entry in epochs if entry[1] <= end)


def adopted(mine: Epochs, theirs: Epochs, end: int) -> Epochs:
    """Return the list of a follower whose log equals the leader's and has reached `end`.

    What the leader's list says replaces what ours does, from its first epoch on: ours may hold epochs that
    wrote nothing. Of lists that are too long the oldest entries go. A leader that begins an epoch where its
    log ends calls it with that epoch alone.
    """
    new = reached(theirs, end)
    if not new:
        return mine
    epoch, start = new[0]
    return (*(entry for entry in mine if entry[0] < epoch and entry[1] < start), *new)[-EPOCHS_MAX:]


def epoch_at(epochs: Epochs, offset: int) -> tuple[tuple[int, int], int]:
    """Return the entry of the epoch in which a byte at `offset` is, and where that epoch ends.

    Returns:
        ((0, 0), end) before the first epoch; the end of the last epoch is `OFFSET_MAX`.
    """
    found, end = (0, 0), OFFSET_MAX
    for entry in reversed(epochs):
        if entry[1] <= offset:
            found = entry
            break
        end = entry[1]
    return found, end


def encode_epochs(epochs: Epochs) -> bytes:
    """Return a list as the text of `epochFileCheckpoint`."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in epochs)
    return f"{len(epochs)}\n{crc_of(lines)}\n{lines}".encode()


def decode_epochs(text: bytes) -> Epochs:
    """Return the list that a text of `epochFileCheckpoint` holds.

    Raises:
        BadEpochs: it is none: a line is broken, the count or the CRC does not fit, the list is impossible.
    """
    if len(text) > TEXT_BYTES_MAX:
        raise BadEpochs(f"a list of epochs in {len(text)} bytes: the limit is {TEXT_BYTES_MAX}")
    count, _, rest = text.decode("ascii", "replace").partition("\n")
    crc, _, lines = rest.partition("\n")
    count, crc = count.removesuffix("\r"), crc.removesuffix("\r")
    if not re.fullmatch("[0-9]{1,10}", count) or not re.fullmatch("[0-9]{1,10}", crc):
        raise BadEpochs(f"a list of epochs begins with {count[:20]!r} and {crc[:20]!r}: its count, its CRC")
    if int(crc) and int(crc) != crc_of(lines):
        raise BadEpochs(f"the CRC of a list of epochs is {crc_of(lines)}, but {crc} stands above it")
    epochs = []
    for line in lines.splitlines():
        fields = LINE.fullmatch(line)
        if fields is None:
            raise BadEpochs(f"a line in a list of epochs is {line[:40]!r}, not epoch-start")
        epochs.append((int(fields[1]), int(fields[2])))
    if len(epochs) != int(count):
        raise BadEpochs(f"a list of {len(epochs)} epochs says that it has {count}")
    check_epochs(tuple(epochs))
    return tuple(epochs)


def crc_of(lines: str) -> int:
    """Return the CRC of the lines that hold entries, line ends included."""
    return zlib.crc32(lines.encode("ascii", "replace")) & 0x7FFF_FFFF
