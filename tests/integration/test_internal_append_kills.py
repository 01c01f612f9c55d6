"""Kill -9 while messages become dead letters: each is there once, and none is lost.

Each message that fails goes to the dead-letter topic and is done only when its copy is durable, so after a
kill at any moment it is undone, or its copy is there. A kill between the two leaves both; then the copy is
found. The number of those stands in the summary of the run with the seed.

    WHIMBREL_FAULT_SEED    repeat a run
    WHIMBREL_FAULT_ROUNDS  times 8 stores are filled and their broker is killed up to 4 times; default 1
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.handing_on import MESSAGES, QUEUES, HandingOn, fails
from support import provenance
from support.cluster.processes import environment

HERE = Path(__file__).resolve().parent
ROUNDS = 8 * int(os.environ.get("WHIMBREL_FAULT_ROUNDS", "1"))
KILLS_MAX = 4  # of one store
DAY_MS = 86_400_000
FAILING = {
    f"{queue_id}:{offset}" for queue_id in range(QUEUES) for offset in range(MESSAGES) if fails(offset)
}


class Program:
    """The program that is killed: it forks a child for each run, so that a run takes no start of Python."""

    def __init__(self) -> None:
        env = environment()
        env["PYTHONPATH"] = os.pathsep.join((env["PYTHONPATH"], str(HERE.parent)))
        self.process = subprocess.Popen(
            [sys.executable, HERE / "handing_on.py"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, store: Path, number: int, seed: int, kill_at: int) -> tuple[bool, int]:
        """Run once on a store; return whether it was killed, and its steps when it was not."""
        assert self.process.stdin is not None and self.process.stdout is not None
        wanted = {"store": str(store), "start_ms": number * DAY_MS, "seed": seed, "kill_at": kill_at}
        self.process.stdin.write(json.dumps(wanted) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        return answer["killed"], answer["steps"]


@pytest.fixture
def program() -> Iterator[Program]:
    program = Program()
    try:
        yield program
    finally:
        program.process.kill()
        program.process.communicate()


async def filled(store: Path) -> None:
    handing_on = HandingOn(store, DAY_MS)
    handing_on.fill()
    handing_on.close()


async def check(store: Path, number: int, *, finish: int | None = None) -> tuple[set[str], dict[str, int]]:
    """Open what was left and return what is undone, and the copies; `finish` seeds a run to the end first."""
    handing_on = HandingOn(store, number * DAY_MS)
    if finish is not None:
        await handing_on.run(finish)
    found = handing_on.undone(), dict(handing_on.copies())
    handing_on.close()
    return found


@pytest.mark.process
@pytest.mark.timeout(60 + 10 * ROUNDS)
async def test_each_message_that_fails_is_a_dead_letter_once_whenever_the_broker_is_killed(
    program: Program, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    """Checklist 56, and 10.3: no second copy after a crash."""
    seed = provenance.seed()
    dice = random.Random(seed)
    await filled(tmp_path / "whole")
    killed, steps = program.run(tmp_path / "whole", 2, seed, -1)
    assert not killed
    assert await check(tmp_path / "whole", 3) == (set(), dict.fromkeys(FAILING, 1))

    kills = handed_on = found = 0
    for round_number in range(ROUNDS):
        store, number, between = tmp_path / f"{round_number}", 2, set[str]()
        await filled(store)
        for _ in range(KILLS_MAX):
            kill_at = dice.randrange(1, steps // dice.choice((1, 2, 4)))
            killed, _ = program.run(store, number, dice.randrange(1 << 30), kill_at)
            kills += killed
            undone, copies = await check(store, number + 1)
            lost = FAILING - undone - copies.keys()
            assert not lost, f"seed {seed}, round {round_number}: {sorted(lost)} are done without a copy"
            between |= undone & copies.keys()
            number += 2
            if not killed:
                break
        undone, copies = await check(store, number, finish=dice.randrange(1 << 30))
        # Others have a copy as well when kills cost them the acknowledgement of each delivery.
        assert undone == set() and copies.keys() >= FAILING
        twice = {origin for origin, count in copies.items() if count > 1}
        assert not twice, f"seed {seed}, round {round_number}: copied twice"
        handed_on, found = handed_on + len(copies), found + len(between)
    measured(f"seed {seed}, {kills} kills, {handed_on} handed on, {found} copies found again")
    assert kills >= ROUNDS
