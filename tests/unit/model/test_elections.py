"""What members answer at elections: what no member can say is refused."""

from typing import Any

import pytest

from whimbrel.errors import BadRequest
from whimbrel.model.elections import ANSWER_WHY_CHARS_MAX, SealAnswer, Suspicion

SEAT = "0123456789abcdef" * 2
SUSPICION: dict[str, Any] = {
    "silent": True,
    "epoch": 7,
    "last_epoch": 6,
    "log_end": 100,
    "votes": True,
    "seat": SEAT,
    "group": SEAT,
    "member": 3,
}
SEAL: dict[str, Any] = {
    "sealed": True,
    "promised": 7,
    "promised_to": 2,
    "last_epoch": 6,
    "log_end": 100,
    "seat": SEAT,
    "why": "",
    "member": 3,
    "votes": True,
}


def test_the_bounds_themselves_are_allowed() -> None:
    most = {"epoch": 2**31 - 1, "last_epoch": 2**31 - 1, "log_end": 2**62, "member": 63}
    least = {"epoch": 0, "last_epoch": 0, "log_end": 0, "member": 0, "seat": "", "group": ""}
    assert Suspicion(**SUSPICION | most).log_end == 2**62
    assert Suspicion(**SUSPICION | least).group == ""
    assert SealAnswer(**SEAL | {"promised": 2**31 - 1, "promised_to": 63}).promised_to == 63
    assert SealAnswer(**SEAL | {"promised": 0, "promised_to": 0, "seat": ""}).seat == ""


NUMBERS = [("last_epoch", -1), ("last_epoch", 2**31), ("log_end", -1), ("log_end", 2**62 + 1), ("member", 64)]
SEATS = [("seat", "x"), ("seat", SEAT + "\n"), ("seat", SEAT.upper()), ("seat", SEAT[1:])]


@pytest.mark.parametrize(
    ("field", "value"),
    [*NUMBERS, *SEATS, ("epoch", -1), ("epoch", 2**31), ("group", "y" * 32), ("member", -1)],
)
def test_a_suspicion_that_no_member_can_have_is_refused(field: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=field):
        Suspicion(**SUSPICION | {field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *NUMBERS,
        *SEATS,
        ("promised", -1),
        ("promised", 2**31),
        ("promised_to", 64),
        ("promised_to", -1),
        ("why", "x" * (ANSWER_WHY_CHARS_MAX + 1)),
    ],
)
def test_a_seal_that_no_member_can_give_is_refused(field: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=field):
        SealAnswer(**SEAL | {field: value})
