"""The lines of a stream as messages, within the bounds of a request."""

import io
from collections.abc import Iterator

import pytest

from whimbrel.cli.send import READ_BYTES, REQUEST_BYTES_MAX, Lines
from whimbrel.errors import MessageTooLarge
from whimbrel.model.limits import BODY_BYTES_MAX


class Pieces(io.RawIOBase):
    """A stream whose reads bring these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces: Iterator[bytes] = iter(pieces)

    def read1(self, size: int) -> bytes:
        return next(self.pieces, b"")


def lines(*pieces: bytes, batch: int = 100) -> list[list[bytes]]:
    return list(Lines(Pieces(*pieces), batch))  # type: ignore[arg-type]


def test_each_read_is_sent_at_once() -> None:
    assert lines(b"a\nb\n", b"c\n") == [[b"a", b"b"], [b"c"]]


def test_a_line_may_come_in_pieces_and_the_last_one_without_its_end() -> None:
    assert lines(b"a", b"b", b"c\nd", b"e") == [[b"abc"], [b"de"]]


def test_line_ends_may_have_a_carriage_return() -> None:
    assert lines(b"a\r\nb\r\n") == [[b"a", b"b"]]


def test_empty_lines_are_left_out_and_counted() -> None:
    found = Lines(io.BytesIO(b"\na\n\n\r\nb\n"), 100)
    assert list(found) == [[b"a", b"b"]]
    assert (found.empty, found.count) == (3, 2)
    assert lines(b"") == []
    assert lines(b"\n") == []


def test_requests_have_bounds() -> None:
    assert lines(b"1\n2\n3\n", batch=2) == [[b"1", b"2"], [b"3"]]
    body = b"x" * (REQUEST_BYTES_MAX // 2)
    assert lines(b"\n".join([body] * 3)) == [[body, body], [body]]


def test_a_line_that_no_message_can_hold_is_refused_before_all_of_it_is_read() -> None:
    stream = Pieces(b"a\n", *[b"x" * READ_BYTES] * 1000)
    with pytest.raises(MessageTooLarge, match=r"^after 1 lines comes one of more than"):
        list(Lines(stream, 100))  # type: ignore[arg-type]
    assert next(stream.pieces)
    assert lines(b"x" * BODY_BYTES_MAX + b"\r\n") == [[b"x" * BODY_BYTES_MAX]]
