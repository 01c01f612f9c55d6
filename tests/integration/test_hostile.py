"""The attacks of `make hostile` that need no more than a second each, at the bytes that once did harm.

All of them go against one nameserver and one broker, one after the other.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from hostile.run import ATTACKS, Attack, Rig, measure, rig

pytestmark = pytest.mark.process

CPU_SLACK = 3  # `make hostile` holds the bounds themselves, on a machine that does nothing else

TIMES = {
    "window-updates": 1.0,
    "settings-entries": 1.0,
    "settings-frames": 1.0,
    "client-hello": 1.0,
    "ack-entries": 1.0,
    "many-messages": 1.0,
    "empty-messages": 1.0,
    "health-echo": 1.0,
    "dawdling-scrapers": 3.0,
    "remoting-nested": 1.0,
    "remoting-heartbeats": 1.0,
    "remoting-unread": 1.0,
    "connections": 10.0,  # 2500 of them
}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Start what is attacked."""
    with rig(tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.mark.parametrize(
    "attack", [each for each in ATTACKS if each.name in TIMES], ids=lambda each: each.name
)
def test_attack_costs_little_and_others_are_served(
    attack: Attack, attacked: Rig, measured: Callable[[str], None]
) -> None:
    bounded = replace(attack, cpu_s_max=CPU_SLACK * attack.cpu_s_max)
    cost = measure(bounded, attacked, TIMES[attack.name])
    measured(
        f"{cost.sent_bytes:,} bytes in, {cost.cpu_s:.2f} s of CPU, {cost.grown_bytes / 1e6:.0f} MB more, "
        f"the longest wait {cost.wait_s * 1000:.0f} ms"
    )
    assert not cost.faults
    assert cost.sent_bytes >= attack.bytes_told * TIMES[attack.name] * 0.99
