"""Runs RocketMQ 4.9.3's own integration tests: `make official`, or `python -m official.run --servers 4.9.3`.

    --servers ours|4.9.3     which cluster is started for them: ours, or a real one
    --classes NAME ...       only those that have this in their name; by default all 47
    --jobs N                 JVMs that share them
    --page docs/official.md  keeps the results of all 47, and writes the page: those of both kinds of servers

Prints a line for each class, and one for each failure. Where a class failed, the exit code is 1, and logs are
kept.
"""

import argparse
import datetime
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from official.classes import CLASSES, RACY
from official.clusters import SERVERS, started
from official.page import Results, kept, page
from official.running import Outcome, prepare, run
from support import provenance
from support.systems.sdk_programs import Missing

__all__ = ["main"]

JOBS = 2
TRIES_MAX = 3  # of a class that does not always pass


def main(words: list[str]) -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description="RocketMQ 4.9.3's own integration tests")
    parser.add_argument("--servers", choices=SERVERS, default="ours")
    parser.add_argument("--classes", nargs="+", default=[])
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--page", type=Path, default=None)
    given = parser.parse_args(words)
    names = [name for name in CLASSES if not given.classes or any(part in name for part in given.classes)]
    if not names:
        parser.error(f"no class has {' or '.join(given.classes)} in its name")
    try:
        prepare()
    except Missing as error:
        print(f"RocketMQ's tests can't be run here: {error}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with us
    root = Path(tempfile.mkdtemp(prefix="official-"))
    results = measured(given.servers, names, root, given.jobs)
    passed = [outcome for outcome in results.outcomes.values() if outcome.passed]
    print(f"{len(passed)} of {len(names)} classes passed in {results.minutes:.1f} min")
    if given.page is not None and len(names) == len(CLASSES):
        results.keep(given.servers)
        given.page.write_text(page(kept()), encoding="utf-8")
    if len(passed) < len(names):
        print(f"stores and logs are in {root}")
        return 1
    shutil.rmtree(root)
    return 0


def measured(servers: str, names: list[str], root: Path, jobs: int) -> Results:
    """Run classes against a new cluster, and tell of each."""
    commit = provenance.commit()
    outcomes: dict[str, Outcome] = {}
    with started(servers, root) as cluster:
        print(f"{cluster.version}, commit {commit}, {len(names)} classes, {jobs} JVMs", flush=True)
        began = time.monotonic()
        for outcome in run(names, cluster.name_server, root / "run", jobs=jobs):
            outcomes[outcome.name] = outcome
            print(told(outcome), flush=True)
        for name in RACY:
            while name in outcomes and not outcomes[name].passed and outcomes[name].tries < TRIES_MAX:
                (again,) = run([name], cluster.name_server, root / "again")
                outcomes[name] = replace(again, tries=outcomes[name].tries + 1)
                print(told(outcomes[name]), flush=True)
        minutes = (time.monotonic() - began) / 60
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    return Results(cluster.version, commit, today, minutes, jobs, outcomes)


def told(outcome: Outcome) -> str:
    """Return an outcome as a line, and one more for each failure."""
    word = "ok    " if outcome.passed else "FAILED"
    head = f"{word} {outcome.seconds:5.1f} s, {outcome.tests:2} tests  {outcome.name}"
    return "\n".join([head, *(f"       {failure}" for failure in outcome.failures)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
