"""The plans: which parts a run has, and which of them run at the same time.

    Part            one command, whose output and time are kept
    track           parts of one track run one after the other, in their order; tracks run side by side
    after           parts of other tracks that must have ended
    idle            gets the time that nothing else wants

CI has two cores. Tests that start processes mostly wait: for elections, for ports, for Spark, for containers.
So two tracks of them share the cores, and what only computes (simulations, models, rules that are broken one
by one) is idle beside them, so that what waits for a process never waits for a simulation. Spark yields: a
group whose members get no time elects another leader. Tests in memory compute as well, but have a time limit
each; they go first, beside what makes images.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PLANS", "Part"]

PYTEST = (sys.executable, "-m", "pytest", "-q")
QUICK, SLOW = ("-m", "not slow"), ("-m", "slow")
IN_MEMORY = ("tests/unit", "tests/property", "tests/scenario")
PROCESSES = ("tests/integration",)
# Programs of others, and JVMs: one at a time, after those with elections, which want the cores for them.
OTHERS = ("tests/interop", "tests/official", "tests/clients4")
# Where the tests are that run once more: with clients by the other transport, and without the lane.
MARKED_TRANSPORT = ("tests/unit/rpc", "tests/integration")
MARKED_LANE = ("tests/unit/store", "tests/property/test_store_machine.py", "tests/integration")
# More at a time than there are cores, of which CI has two, since they wait.
WORKERS = ("-n", str(max(3, os.cpu_count() or 1)))
# A file's tests stay together, so that what they share is started once.
WAITING = (*WORKERS, "--dist", "loadfile")
OTHER_TRANSPORT = {"WHIMBREL_CLIENT_TRANSPORT": "grpcio"}
WITHOUT_LANE = {"WHIMBREL_TEST_LANE": "off"}
# A full run on a machine that lacks something is none.
NOTHING_SKIPPED = {f"REQUIRE_{name}": "1" for name in ("LANE", "DOCKER", "SPARK", "ETCD")}
# Of the rules that have not changed, one of so many with each commit.
LANE_SHARE, SIM_SHARE, ELECTIONS_SHARE, MODELS_SHARE = 12, 8, 3, 4
# Seeds with each commit, from the first on: 100 to 125 s of CPU for each of the four (docs/ci-times.md).
SIM_SEEDS, MAJORITY_SEEDS, ELECTIONS_SEEDS, MODELS_SEEDS = 52, 36, 20, 850
NO_LIMIT_S = 1_000_000
# Of tests that yield: with little of the cores one that takes 20 s elsewhere may take minutes.
PATIENT = ("--timeout", "480")
SHARED_MEMORY, SHARED_MEMORY_MIN = Path("/dev/shm"), 2 << 30
# By default pytest keeps the files of what failed in three runs, which memory has no room for.
KEEP_LITTLE = ("-o", "tmp_path_retention_count=1")

# Tracks.
COMPUTE, PREPARE, STARTED, SYSTEMS, IDLE = "compute", "prepare", "started", "systems", "idle"


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a run.

    Attributes:
        name: one word, which names its files and its row.
        command: what is started, in the root of the tree.
        track: what it shares its turn with.
        after: what must have ended before it begins.
        environment: beside that of the run.
        yields: it gets a third of what other parts get where they want the same core.
        idle: it gets the time that no other process wants.
        tests: pytest runs in it, so there is more to read afterwards.
    """

    name: str
    command: tuple[str, ...]
    track: str
    after: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    yields: bool = False
    idle: bool = False
    tests: bool = False


def files_in_memory() -> dict[str, str]:
    """Return what lets tests keep their files in memory, where there is room: they wait for no disk."""
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    return {"TMPDIR": str(SHARED_MEMORY)} if free >= SHARED_MEMORY_MIN else {}


def pytest(
    name: str,
    *words: str,
    track: str,
    after: tuple[str, ...] = (),
    environment: Mapping[str, str] = {},
    yields: bool = False,
) -> Part:
    """Return a part that is one run of pytest."""
    return Part(
        name=name,
        command=(*PYTEST, *words),
        track=track,
        after=after,
        environment=environment,
        yields=yields,
        tests=True,
    )


def make(name: str, *words: object, track: str, after: tuple[str, ...] = ()) -> Part:
    """Return a part that is a target of `make`, idle in the track of that name."""
    command = ("make", "--no-print-directory", *map(str, words))
    return Part(name=name, command=command, track=track, after=after, idle=track == IDLE)


def python(name: str, *words: str, track: str, after: tuple[str, ...] = ()) -> Part:
    """Return a part that is a program of ours."""
    paths = {"PYTHONPATH": "services:tests:tools:deploy"}
    return Part(name=name, command=(sys.executable, *words), track=track, after=after, environment=paths)


def seeds(name: str, count: int, *words: object) -> Part:
    """Return a part that runs seeds, so many."""
    return make(name, name, f"COUNT={count}", f"SECONDS={NO_LIMIT_S}", *words, track=IDLE)


def in_memory(name: str, *, track: str = COMPUTE, environment: Mapping[str, str] = {}) -> Part:
    """Return the tests that start no process."""
    return pytest(
        name,
        *QUICK,
        *WORKERS,
        *KEEP_LITTLE,
        *IN_MEMORY,
        track=track,
        environment={**files_in_memory(), **environment},
    )


def waiting(
    prefix: str, *marks: str, after: tuple[str, ...] = (), environment: Mapping[str, str] = {}
) -> list[Part]:
    """Return the tests that start processes, JVMs and Spark: a part for each.

    Args:
        prefix: of the names of these parts.
        marks: of those that are wanted, as pytest takes them.
        after: what must have ended before processes begin, the first of it before Spark does.
    """
    return [
        pytest(
            f"{prefix}processes",
            *marks,
            *WAITING,
            *PROCESSES,
            track=STARTED,
            after=after,
            environment=environment,
        ),
        pytest(f"{prefix}interop", *marks, *OTHERS, track=STARTED, environment=environment),
        # It waits for nobody's elections, and computes a lot.
        pytest(
            f"{prefix}spark",
            *marks,
            *PATIENT,
            "tests/spark",
            track=SYSTEMS,
            after=after[:1],
            environment=environment,
            yields=True,
        ),
    ]


def contained(
    prefix: str, *marks: str, after: tuple[str, ...] = (), environment: Mapping[str, str] = {}
) -> Part:
    """Return the tests of containers; see `waiting`."""
    return pytest(
        f"{prefix}containers",
        *marks,
        "tests/containers",
        track=SYSTEMS,
        after=after,
        environment=environment,
    )


def testing(*, programs: tuple[str, ...] = (), images: tuple[str, ...] = ()) -> list[Part]:
    """Return all tests but the slow ones.

    Args:
        programs, images: the parts that make the programs of others, and the images, beforehand.
    """
    processes, interop, spark = waiting("", *QUICK, after=("memory", *programs))
    other_transport = pytest(
        "other-transport",
        "-m",
        "transport and not slow",
        *WAITING,
        *MARKED_TRANSPORT,
        track=STARTED,
        environment=OTHER_TRANSPORT,
    )
    return [
        in_memory("memory"),
        processes,
        other_transport,
        interop,
        spark,
        contained("", *QUICK, after=images),
    ]


def continuous() -> list[Part]:
    """Return what has to hold before a change goes in: `.ci/run`."""
    lane = bool(os.environ.get("REQUIRE_LANE"))
    no_lane = pytest(
        "no-lane", "-m", "lane and not slow", *WAITING, *MARKED_LANE, track=STARTED, environment=WITHOUT_LANE
    )
    parts = [
        make("check", "check", track=COMPUTE),
        python("base-image", "deploy/stack.py", "base", track=PREPARE),
        python("programs", "-m", "support.systems.prepared", track=PREPARE),
        python("images", "-m", "containers.images", track=PREPARE),
        *testing(programs=("programs",), images=("images",)),
    ]
    return [
        *parts,
        *([no_lane] if lane else []),
        make("release-check", "release-check", track=STARTED),
        seeds("sim", SIM_SEEDS),
        seeds("sim-majority", MAJORITY_SEEDS),
        seeds("sim-elections", ELECTIONS_SEEDS),
        seeds("models", MODELS_SEEDS),
        make("sim-rules", "sim", "RULES=1", f"SHARE={SIM_SHARE}", track=IDLE),
        make("elections-rules", "sim-elections", "RULES=1", f"SHARE={ELECTIONS_SHARE}", track=IDLE),
        make("models-rules", "models", "RULES=1", f"SHARE={MODELS_SHARE}", track=IDLE),
        # Its tests have time limits: it comes when most of what would keep it from running is over.
        *(
            [make("lane-rules", "lane-rules", f"SHARE={LANE_SHARE}", track=IDLE, after=("no-lane",))]
            if lane
            else []
        ),
    ]


def nightly() -> list[Part]:
    """Return in full what `.ci/run` takes a share of, and what it leaves out for its length.

    What is marked for the other transport is not slow: all of it runs by that with each commit.
    """
    without_lane = {**NOTHING_SKIPPED, **WITHOUT_LANE}
    return [
        make("release", "release", "OPTIONS=--allow-uncommitted --all-pythons", track=STARTED),
        python("all-programs", "-m", "support.systems.prepared", "--slow", track=STARTED),
        *waiting("slow-", *SLOW, environment=NOTHING_SKIPPED),
        contained("slow-", *SLOW, environment=NOTHING_SKIPPED),
        in_memory("all-no-lane-memory", track=STARTED, environment=without_lane),
        *waiting("all-no-lane-", *QUICK, environment=without_lane),
        contained("all-no-lane-", *QUICK, environment=without_lane),
        make("all-sim-rules", "sim", "RULES=1", "RECORD=1", track=IDLE),
        make("all-elections-rules", "sim-elections", "RULES=1", "RECORD=1", track=IDLE),
        make("all-models-rules", "models", "RULES=1", "RECORD=1", track=IDLE),
        # Its tests have time limits: it comes when all that would keep it from running is over.
        make("all-lane-rules", "lane-rules", "RECORD=1", track=IDLE, after=("all-no-lane-interop",)),
    ]


PLANS: Mapping[str, Callable[[], list[Part]]] = {"test": testing, "ci": continuous, "nightly": nightly}
