"""Six failovers of a group that elects its leader, one of each main kind, under load: nothing that was
acknowledged is lost. `make failovers` plays hundreds of them.

Times are printed, and never asserted.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.faults import QUICK
from chaos.rounds import play, told
from support import provenance

pytestmark = pytest.mark.process


@pytest.mark.timeout(300)
def test_sends_go_on_after_each_failover_and_nothing_acknowledged_is_lost(
    tmp_path: Path, measured: Callable[[str], None]
) -> None:
    seed = provenance.seed()
    result = play(tmp_path, seed, QUICK, len(QUICK))
    for failover in result.failovers:
        measured(told(failover))
    measured(f"seed {seed}: {dict(result.counts)}, {result.again.count} delivered again")
    assert result.findings == []
    assert len(result.failovers) == len(QUICK)
