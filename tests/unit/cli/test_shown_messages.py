"""Messages as rows and lines: what fits a terminal, and what there is without one."""

import dataclasses

import pytest

from whimbrel.cli.shown_messages import WIDE_COLUMNS, message_line, message_table
from whimbrel.client import MessageType, Queue, ReceivedMessage

QUEUE = Queue(
    topic="t", broker_name="broker-a", broker_id=0, queue_id=-1, readable=True, writable=True, endpoints=()
)
MESSAGE = ReceivedMessage(
    topic="t",
    body=b"a body of several words " * 10,
    message_id="0102FC000000011C9D0B14B02EBC065344",
    tag="a-tag-that-is-long",
    keys=("a-key-that-is-long", "another"),
    properties={},
    type=MessageType.NORMAL,
    queue=QUEUE,
    queue_id=3,
    queue_offset=123_456,
    born_at=None,
    born_host="",
    stored_at=1_700_000_000.0,
    store_host="",
)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_table_fits_the_terminal_without_breaking_a_cell(width: int) -> None:
    columns, rows = message_table([MESSAGE, dataclasses.replace(MESSAGE, tag=None, keys=())], width)
    widths = [max(len(str(row[index])) for row in [columns, *rows]) for index in range(len(columns))]
    assert sum(widths) + 3 * (len(columns) - 1) + 2 <= width
    assert columns[-1] == "body"
    assert "…" in rows[0][-1]
    assert len(rows[0][-1]) > 10


@pytest.mark.parametrize("width", [None, WIDE_COLUMNS])
def test_where_there_is_room_a_table_has_everything(width: int | None) -> None:
    columns, rows = message_table([MESSAGE], width)
    assert "message id" in columns
    assert rows[0][3:6] == (MESSAGE.message_id, MESSAGE.tag, "a-key-that-is-long another")


def test_a_line_is_cut_at_the_width_of_a_terminal_only() -> None:
    assert len(message_line(MESSAGE, 80)) == 80
    line = message_line(MESSAGE, None)
    assert line.startswith("broker-a/3@123456  2023-11-14 22:13:20.000  tag=a-tag-that-is-long  keys=a-key")
    assert line.endswith("several words ")
    assert "\n" not in message_line(dataclasses.replace(MESSAGE, body=b"two\nlines"), None)
