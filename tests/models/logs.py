"""Logs of members as both models see them: entries, epoch lists, and what two of them have in common.

An entry is a number that no other entry has, at its position; its bytes never matter beyond that. An
epoch list says where in the log each epoch that the member adopted begins: `(epoch, start)`, both
ascending. All functions here are pure, and take any sequence, since one model has tuples and the other
lists.
"""

from collections.abc import Sequence

__all__ = ["Epochs", "Finding", "adopt", "consistent_point", "difference", "last_epoch", "majority", "seals"]

Epochs = tuple[tuple[int, int], ...]


class Finding(Exception):
    """An invariant does not hold.

    Attributes:
        kind: which one, as the proof numbers them: I1, I2 and so on.
        text: what was seen.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text

    def __reduce__(self) -> tuple[type["Finding"], tuple[str, str]]:
        return Finding, (self.kind, self.text)  # so that it gets from one process to another


def majority(voters: int) -> int:
    """Return how many copies commit a record, its leader's included, where most of the voters have to."""
    return voters // 2 + 1


def seals(voters: int, copies: int) -> int:
    """Return how many voters have to seal an election, so that they meet whoever committed a record."""
    return voters - copies + 1


def last_epoch(epochs: Sequence[tuple[int, int]]) -> int:
    """Return the newest epoch that a log has adopted; 0 if it has none."""
    return epochs[-1][0] if epochs else 0


def epoch_end(epochs: Sequence[tuple[int, int]], index: int, end: int) -> int:
    """Return where the epoch at an index of a list ends: where the next one begins, or the log ends."""
    return epochs[index + 1][1] if index + 1 < len(epochs) else end


def consistent_point(
    mine: Sequence[tuple[int, int]], end: int, theirs: Sequence[tuple[int, int]], their_end: int
) -> int:
    """Return up to where a follower's log is its leader's.

    That is the lesser end of the newest epoch that begins at the same position in both lists.
    """
    ends = {entry: epoch_end(mine, index, end) for index, entry in enumerate(mine)}
    for index in range(len(theirs) - 1, -1, -1):
        if theirs[index] in ends:
            return min(ends[theirs[index]], epoch_end(theirs, index, their_end))
    return 0


def adopt(mine: Sequence[tuple[int, int]], theirs: Sequence[tuple[int, int]], end: int) -> Epochs:
    """Return a follower's list with those newer epochs of its leader whose start its log has reached."""
    last = last_epoch(mine)
    return (*mine, *(entry for entry in theirs if entry[0] > last and entry[1] <= end))


def difference(
    mine: Sequence[tuple[int, int]],
    log: Sequence[int],
    theirs: Sequence[tuple[int, int]],
    their_log: Sequence[int],
) -> int | None:
    """Return the first position at which two logs differ up to their consistent point, if there is one."""
    point = consistent_point(mine, len(log), theirs, len(their_log))
    if log[:point] == their_log[:point]:
        return None
    return next(at for at in range(point) if log[at] != their_log[at])
