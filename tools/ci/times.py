"""What the parts of a run and their tests took, beside what the last committed page says.

    build/ci-times.json     of the last whole run of `.ci/run` in this clone
    docs/ci-times.md        the page: `make ci-times` alone writes it, from that file

The page is read back for the comparison, so its two tables have a fixed form: the first cell of a row names a
part or a test, the second has its seconds.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from xml.etree import ElementTree

__all__ = ["Counts", "PartTimes", "SlowTest", "Times", "committed", "compared", "page", "read_tests"]

SLOWEST = 100
ROW = re.compile(r"^\| `?(?P<name>[^`|]+?)`? \| (?P<seconds>[0-9.]+) \|")


@dataclass(frozen=True)
class SlowTest:
    """A test: seconds of its set-up, call and teardown."""

    name: str
    part: str
    seconds: float


@dataclass(frozen=True)
class PartTimes:
    """A part: seconds on the clock, and of CPU by its processes."""

    name: str
    seconds: float
    cpu_s: float


@dataclass(frozen=True)
class Counts:
    """How many tests ran, and why others did not.

    Attributes:
        reasons: of skipped tests, with how many each.
    """

    passed: int
    failed: int
    skipped: int
    reasons: Mapping[str, int]


@dataclass(frozen=True)
class Times:
    """A run.

    Attributes:
        seconds: from its begin to its end.
        parts: in the order of the plan.
        tests: the slowest, first the slowest of all.
    """

    commit: str
    date: str
    cores: int
    seconds: float
    parts: tuple[PartTimes, ...]
    tests: tuple[SlowTest, ...]

    def save(self, path: Path) -> None:
        """Write it."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it back."""
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        read["parts"] = tuple(PartTimes(**part) for part in read["parts"])
        read["tests"] = tuple(SlowTest(**test) for test in read["tests"])
        return cls(**read)


def read_tests(folder: Path, parts: Sequence[str]) -> tuple[list[SlowTest], Counts]:
    """Read what pytest wrote for parts (JUnit): all tests, the slowest first, and how they ended."""
    found: list[SlowTest] = []
    failed = skipped = 0
    reasons: dict[str, int] = {}
    for part in parts:
        path = folder / f"{part}.xml"
        if not path.exists():
            continue
        for case in ElementTree.parse(path).iter("testcase"):
            place = case.get("file") or str(case.get("classname")).replace(".", "/")
            found.append(SlowTest(f"{place}::{case.get('name')}", part, float(case.get("time", "0"))))
            failed += any(case.find(kind) is not None for kind in ("failure", "error"))
            why = case.find("skipped")
            if why is not None:
                skipped += 1
                reason = str(why.get("message"))
                reasons[reason] = reasons.get(reason, 0) + 1
    counts = Counts(len(found) - failed - skipped, failed, skipped, reasons)
    return sorted(found, key=lambda test: -test.seconds), counts


def committed(text: str) -> dict[str, float]:
    """Return the seconds of parts and tests that a page has."""
    return {match["name"]: float(match["seconds"]) for match in map(ROW.match, text.splitlines()) if match}


def compared(times: Times, before: Mapping[str, float]) -> str:
    """Return the parts and the slowest tests of a run as lines, beside the seconds of the committed page."""

    def line(name: str, seconds: float) -> str:
        known = before.get(name)
        return f"{seconds:8.1f} {'       -' if known is None else f'{known:8.1f}'}  {name}"

    rows = [f"{'now, s':>8} {'page, s':>8}  part"]
    rows += [line(part.name, part.seconds) for part in times.parts]
    rows += [line("all", times.seconds), "", f"{'now, s':>8} {'page, s':>8}  test"]
    rows += [line(test.name, test.seconds) for test in times.tests]
    return "\n".join(rows)


def page(times: Times, head: str) -> str:
    """Return the page: what a person wrote at its head, then the two tables."""
    parts = [f"| {part.name} | {part.seconds:.1f} | {part.cpu_s:.0f} |" for part in times.parts]
    tests = [f"| `{test.name}` | {test.seconds:.1f} | {test.part} |" for test in times.tests]
    return "\n".join(
        [
            head.rstrip(),
            "",
            f"The last run: commit {times.commit}, {times.date}, {times.cores} cores.",
            "",
            "| Part | Seconds | CPU seconds |",
            "|---|---|---|",
            *parts,
            f"| all | {times.seconds:.1f} | {sum(part.cpu_s for part in times.parts):.0f} |",
            "",
            f"The {len(tests)} slowest tests, with their set-up and teardown:",
            "",
            "| Test | Seconds | Part |",
            "|---|---|---|",
            *tests,
            "",
        ]
    )
