"""`python -m ci.run test|ci|nightly`: runs a plan; says what was skipped, what failed, what took how long.

    test       all tests but the slow ones (`make test`)
    ci         these, the checks, the simulations, and the rest of `.ci/run`
    nightly    in full what `.ci/run` does by shares or leaves out (`make nightly`); notes what passed
    times      writes docs/ci-times.md from the last run in this clone (`make ci-times`)

`--parts` runs some parts of a plan, with nothing that they come after. Exit code 1 when a part failed, or,
for `ci`, when something was not run in full for too long (full_runs.py).
"""

import argparse
import datetime
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ci import full_runs
from ci.needs import lacking
from ci.plan import PLANS, Part
from ci.runner import Outcome, Run
from ci.times import SLOWEST, Counts, PartTimes, Times, committed, compared, page, read_tests
from support.provenance import REPOSITORY, commit, head

__all__ = ["main"]

FOLDER = REPOSITORY / "build" / "ci"
TIMES = REPOSITORY / "build" / "ci-times.json"
PAGE = REPOSITORY / "docs" / "ci-times.md"
INTERRUPTED = 130  # the exit code that shells have for that
TABLES = "\nThe last run:"  # in the page, what stands before it is a person's
# What must not reach the parts: our own path; what `make` hands to a `make` below it; and that no bytecode is
# kept: each process that collects tests would compile all of them anew, for 20 s.
NOT_HANDED_ON = ("PYTHONPATH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PYTHONDONTWRITEBYTECODE")


def chosen(plan: str, names: Sequence[str]) -> list[Part]:
    """Return the parts of a plan, or those that are named.

    Raises:
        SystemExit: there is no such part.
    """
    parts = PLANS[plan]()
    if unknown := set(names) - {part.name for part in parts}:
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in parts)}")
    if not names:
        return parts
    return [replace(part, after=()) for part in parts if part.name in names]


def summed(outcomes: Sequence[Outcome], counts: Counts, seconds: float) -> str:
    """Return what a run came to; the last line but one is `N passed, N failed, N skipped`."""
    lines = [f"skipped, {count} of: {reason}" for reason, count in sorted(counts.reasons.items())]
    bad = [each.part.name for each in outcomes if each.code]
    lines.append(f"{len(outcomes) - len(bad)} of {len(outcomes)} parts passed")
    lines += [f"    failed: {name}" for name in bad]
    # A part that is no test fails the run as well: it counts as one.
    failed = counts.failed or len(bad)
    lines.append(f"{counts.passed} passed, {failed} failed, {counts.skipped} skipped")
    minutes, rest = divmod(round(seconds), 60)
    lines.append(f"in {minutes} min {rest} s")
    return "\n".join(lines)


def noted(
    known: Mapping[str, full_runs.FullRun], outcomes: Iterable[Outcome], at: str, date: str
) -> dict[str, full_runs.FullRun]:
    """Return the last full runs, with those parts that have passed now."""
    runs = dict(known)
    for each in outcomes:
        if each.code == 0:
            name = each.part.name
            _, counts = read_tests(FOLDER, [name])
            runs[name] = full_runs.FullRun(at, date, round(each.seconds, 1), counts.passed, counts.skipped)
    return runs


def run(plan: str, names: Sequence[str]) -> int:
    """Run a plan; return the exit code."""
    parts, at, date = chosen(plan, names), head(), datetime.date.today().isoformat()
    noting, whole = plan == "nightly", plan == "ci" and not names
    if noting and commit().endswith("-dirty"):
        sys.exit(
            "files were changed since the last commit, which a full run would be noted for: commit first"
        )
    print(f"{plan}: commit {at[:8]}, {date}, {os.cpu_count()} cores, {len(parts)} parts")
    missing = list(lacking(slow=noting))
    for line in missing or ["nothing is missing on this machine"]:
        print(f"    {line}")
    if noting and missing and any(part.tests for part in parts):
        sys.exit(
            "tests would be skipped, so the run would not be full: `.ci/run nightly` installs all on Debian"
        )
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    handed = {name: value for name, value in os.environ.items() if name not in NOT_HANDED_ON}
    runner = Run(parts, FOLDER, handed)
    try:
        outcomes = runner()
    finally:
        if noting:  # what has passed by then, also where somebody interrupts the rest
            full_runs.save(noted(full_runs.load(), runner.outcomes.values(), at, date))
            print("commit .ci/full-runs.json and .ci/passed-rules")
    seconds = time.monotonic() - began
    tests, counts = read_tests(FOLDER, [part.name for part in parts if part.tests])
    if whole:
        measured = tuple(PartTimes(each.part.name, each.seconds, each.cpu_s) for each in outcomes)
        times = Times(at[:8], date, os.cpu_count() or 1, seconds, measured, tuple(tests[:SLOWEST]))
        times.save(TIMES)
        known = committed(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
        print(f"\n{compared(times, known)}\n")
    runner.show_failures()
    old: list[str] = []
    if whole:
        old, said = full_runs.check(part.name for part in PLANS["nightly"]())
        print(said)
    print(summed(outcomes, counts, seconds))
    return int(bool(old) or any(each.code != 0 for each in outcomes))


def write_page() -> int:
    """Write the page from the last run; return the exit code."""
    if not TIMES.exists():
        print(
            f"{TIMES.relative_to(REPOSITORY)} is missing: run `.ci/run` in this clone first", file=sys.stderr
        )
        return 1
    head_of_page = PAGE.read_text(encoding="utf-8").partition(TABLES)[0]
    PAGE.write_text(page(Times.load(TIMES), head_of_page), encoding="utf-8")
    print(f"{PAGE.relative_to(REPOSITORY)} is written")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Do what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="ci.run", description="Run the tests, side by side.")
    parser.add_argument("plan", choices=[*PLANS, "times"])
    parser.add_argument("--parts", nargs="*", default=[], help="only these parts of the plan")
    options = parser.parse_args(arguments)
    if options.plan == "times":
        return write_page()
    try:
        return run(options.plan, options.parts)
    except KeyboardInterrupt:
        print("interrupted: all that ran was ended", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
