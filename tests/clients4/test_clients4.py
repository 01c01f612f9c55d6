"""What RocketMQ's 4.x clients see of our servers is what they see of RocketMQ 4.9.3's, scenario by scenario.

What they saw of real servers is in `expected.json`, which `make clients4-record` writes. The quick scenarios
of one client run always, all scenarios of all clients with the slow tests, or by `make clients4`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from clients4.compare import ACCEPTED, differences, expected
from clients4.programs import PROGRAMS, Outcome, outcomes, prepare, scenarios
from official.clusters import started
from support.systems.sdk_programs import Missing

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


def test_what_real_servers_gave_is_alike_with_real_servers_and_ours_differs_only_as_is_said() -> None:
    """No rule of what ours does otherwise stands for something that nobody says, or that is the same."""
    rules = set(ACCEPTED)
    for outcomes_of in expected().values():
        for scenario, said in outcomes_of.items():
            found = Outcome(said, 1.0)
            assert differences(scenario, said, found, ours=False) == []
            lines = differences(scenario, said, found, ours=True)
            named = {what for (of, what) in ACCEPTED if of == scenario and what in said}
            assert {what for what in named if any(line.startswith(f"{what}: ") for line in lines)} == named
            assert len(lines) == len(named)
            rules -= {(scenario, what) for what in named}
    assert rules == set()


def test_a_scenario_that_says_less_or_more_or_nothing_differs() -> None:
    wanted = {"got": ["a", "b"], "status": 1}
    assert differences("push", wanted, None, ours=True) == ["did not end in time"]
    assert differences("push", wanted, Outcome({"got": ["a", "b"]}, 1.0), ours=True) == [
        'status: "(nothing)", not 1'
    ]
    assert differences("push", wanted, Outcome(wanted | {"error": "x"}, 1.0), ours=True) == [
        'error: "x", not "(nothing)"'
    ]


@pytest.mark.interop
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("program", [QUICK_PROGRAM], indirect=True)
def test_quick_scenarios_end_as_with_real_servers(program: str, tmp_path: Path) -> None:
    assert compare(program, list(QUICK), tmp_path) == ""


@pytest.mark.interop
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", PROGRAMS, indirect=True)
def test_all_scenarios_end_as_with_real_servers(
    program: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    names = scenarios(program)
    assert compare(program, names, tmp_path) == ""
    measured(f"{len(names)} scenarios of {program}")
