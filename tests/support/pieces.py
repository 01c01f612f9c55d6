"""A stream as reads give it: cut anywhere."""

from collections.abc import Sequence

__all__ = ["cut"]


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut `data` into pieces of these sizes, over and over."""
    found, at, turn = [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        found.append(data[at : at + size])
        at, turn = at + size, turn + 1
    return found
