"""What RocketMQ's 4.x clients see of our servers is what they see of RocketMQ 4.9.3's, scenario by scenario.

What they saw of real servers is in `expected.json`, which `make clients4-record` writes. The quick scenarios
of one client run always, all scenarios of all clients with the slow tests, or by `make clients4`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients4.compare import differences, expected
from clients4.programs import PROGRAMS, outcomes, prepare, scenarios
from official.clusters import started
from sdkkit import Missing

pytestmark = [pytest.mark.interop, pytest.mark.process]

QUICK_PROGRAM = "java-4.9.3"
QUICK = (
    "send_sync",
    "send_to_new_topic",
    "send_batch",
    "send_async",
    "send_selected",
    "send_refused",
    "send_request",
    "send_tls",
    "send_vip",
    "push_tags",
    "push_sql",
    "push_goes_on",
    "push_two_members",
    "push_broadcast",
    "push_orderly",
    "lite_subscribed",
    "lite_assigned",
    "pull",
    "admin_offsets",
    "admin_messages",
)


def compare(program: str, names: list[str], root: Path) -> str:
    """Play scenarios against ours; return what differs, a line for each thing."""
    wanted = expected()[program]
    with started("ours", root) as cluster:
        found = outcomes(program, cluster, names, root / program, timeout_s=WAIT_S)
    return "\n".join(
        f"{name}: {line}"
        for name in names
        for line in differences(name, wanted[name], found.get(name), ours=True)
    )


WAIT_S = 300.0  # for all scenarios of a program


@pytest.fixture
def program(request: pytest.FixtureRequest) -> str:
    """Fetch and compile a program, or skip."""
    name = str(request.param)
    try:
        prepare(name)
    except Missing as error:
        pytest.skip(f"{name} can't be had here: {error}")
    return name


@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", [QUICK_PROGRAM], indirect=True)
def test_quick_scenarios_end_as_with_real_servers(program: str, tmp_path: Path) -> None:
    assert compare(program, list(QUICK), tmp_path) == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", PROGRAMS, indirect=True)
def test_all_scenarios_end_as_with_real_servers(
    program: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    names = scenarios(program)
    assert compare(program, names, tmp_path) == ""
    measured(f"{len(names)} scenarios of {program}")
