"""`make beside-failovers` in small: one kill of a leader of ours, and one cut, under one SDK."""

import random
from collections.abc import Callable

import pytest

from chaos.beside import stage
from chaos.beside_page import page

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["kill -9", "partition"])
def test_a_round_of_ours(fault: str, measured: Callable[[str], None]) -> None:
    (row,) = stage("whimbrel", [fault], random.Random(1), languages=["python"])
    measured(row.told())
    assert row.route is not None and row.newcomer is not None
    assert row.sends["python"] is not None and row.receives["python"] is not None
    assert row.acknowledged > 40 and row.lost == 0
    assert "missed by" in page([row]) or "met by all" in page([row])
