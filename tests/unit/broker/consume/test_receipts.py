"""Receipt handles as text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.broker.consume.lease_codec import OFFSET_MAX, QUEUE_ID_MAX
from whimbrel.broker.consume.receipts import RECEIPT_CHARS_MAX, ReceiptHandle, receipt_prefix
from whimbrel.errors import InvalidReceiptHandle
from whimbrel.model.limits import ATTEMPT_MAX

HANDLE = ReceiptHandle("broker-a", "g", "t", 3, 1, 17, 4096, 250, 1 << 60, 2)

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
numbers = st.integers(0, (1 << 63) - 1)
queue_ids = st.integers(0, (1 << 31) - 1)
offsets = st.integers(0, OFFSET_MAX - 1)


@given(
    st.builds(
        ReceiptHandle,
        names,
        names,
        names,
        st.integers(0, QUEUE_ID_MAX),
        numbers,
        st.integers(0, OFFSET_MAX - 1),
        numbers,
        numbers,
        numbers,
        st.integers(1, ATTEMPT_MAX),
    )
)
def test_handle_is_printable_ascii_and_reads_back(handle: ReceiptHandle) -> None:
    text = handle.encode()
    assert text.isascii() and text.isprintable() and " " not in text
    assert ReceiptHandle.decode(text) == handle


@pytest.mark.parametrize(
    "changed",
    [
        {"queue_id": QUEUE_ID_MAX + 1},
        {"offset": OFFSET_MAX},
        {"attempt": ATTEMPT_MAX + 1},
        {"attempt": 0},
        {"epoch": 1 << 63},
        {"serial": -1},
    ],
)
def test_numbers_that_no_delivery_has_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidReceiptHandle):
        ReceiptHandle.decode(HANDLE._replace(**changed).encode())


def test_prefix_ends_before_the_epoch() -> None:
    assert HANDLE.encode().startswith(receipt_prefix("broker-a", "g", "t", 3) + "1:11:")


def test_longest_names_fit() -> None:
    handle = HANDLE._replace(broker_name="b" * 255, group="%" * 127, topic="%" * 127)
    assert ReceiptHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "W1:",
        HANDLE.encode().replace("W1", "W2"),
        HANDLE.encode() + ":1",
        HANDLE.encode().rpartition(":")[0],
        HANDLE.encode().rpartition(":")[0] + ":zz",
        HANDLE._replace(attempt=0).encode(),
        HANDLE._replace(offset=-1).encode(),
        HANDLE._replace(serial=1 << 63).encode(),
        HANDLE._replace(offset=OFFSET_MAX).encode(),
        HANDLE._replace(queue_id=1 << 31).encode(),
        HANDLE.encode() + "é",
        HANDLE.encode() + "0" * RECEIPT_CHARS_MAX,
        "0 1700000000000 30000 0 0 broker-a 0 1 2",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceiptHandle):
        ReceiptHandle.decode(text)


@given(st.text(max_size=100))
def test_junk_raises_nothing_else(text: str) -> None:
    with pytest.raises(InvalidReceiptHandle):
        ReceiptHandle.decode(text)
