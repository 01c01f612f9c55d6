"""When a send is answered: a topic may ask for an earlier answer than the commit's, never for earlier sight.

    text         the send is answered when
    committed    a majority holds the message: what is answered is never lost (the default)
    acks=K       K members besides the leader hold it
    written      it is in the leader's log: it is lost if the leader is lost before a majority has it

It counts in groups that commit by majority. Whatever it is, consumers see a message when it is committed.
"""

import re
from typing import Final

from whimbrel.errors import BadRequest

__all__ = ["COMMITTED", "WRITTEN", "answer_text", "copies_of", "parse_answer"]

COMMITTED: Final = None
WRITTEN: Final = 0
ACKS = re.compile(r"acks=([1-6])")  # a group has up to seven voters


def copies_of(text: str) -> int | None:
    """Return how many members besides the leader must hold a message; COMMITTED for any other text."""
    if text == "written":
        return WRITTEN
    match = ACKS.fullmatch(text)
    return int(match[1]) if match else COMMITTED


def parse_answer(text: str) -> int | None:
    """Return what a person has asked for, as `copies_of`.

    Raises:
        BadRequest: it is none of the three.
    """
    copies = copies_of(text)
    if copies is COMMITTED and text != "committed":
        raise BadRequest(f"answer {text!r}: `committed`, `written`, or `acks=K` with K from 1 to 6")
    return copies


def answer_text(copies: int | None) -> str:
    """Return the text of what `copies_of` returns."""
    if copies is COMMITTED:
        return "committed"
    return f"acks={copies}" if copies else "written"
