"""Which voters a broker's settings may name."""

from typing import Any

import pytest

from whimbrel.broker.options import BrokerOptions

CHOSEN: dict[str, Any] = {"replication": "majority", "voters": ("0", "1", "2"), "store": "/somewhere"}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"voters": ()}, "ids of all members"),
        ({"voters": ("1", "2")}, "the master's id 0"),
        ({"voters": ("0", "1", "1")}, "twice"),
        ({"voters": ("0", "x")}, "no id of a member"),
        ({"voters": ("0", "64")}, "no id of a member"),
        ({"voters": tuple(map(str, range(8)))}, "at most 7"),
        ({"replication": "sync"}, "only replication majority"),
    ],
)
def test_voters_that_can_not_be_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        BrokerOptions(**CHOSEN | settings)


def test_voters_are_numbers() -> None:
    options = BrokerOptions(**CHOSEN)
    assert (options.voter_ids, options.by_majority) == (frozenset({0, 1, 2}), True)
