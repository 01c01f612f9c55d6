"""Plays the scenarios of 4.x clients, and compares with what real servers gave: `make clients4`.

    --servers ours|4.9.3     which cluster is started
    --programs NAME ...      of java-4.9.3, java-5.3.3, go, cpp; by default all that can be had here
    --scenarios NAME ...     only those that have this in their names
    --record                 plays twice, and keeps what both times gave alike (`make clients4-record`)

Prints a line for each scenario, and one for each difference. Where there is one, the exit code is 1, and logs
are kept.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from clients4.compare import UNRECORDED, differences, expected, record
from clients4.programs import PROGRAMS, outcomes, prepare, scenarios
from official.clusters import SERVERS, Cluster, started
from support import provenance
from support.systems.sdk_programs import Missing

__all__ = ["main"]


def main(words: list[str]) -> int:
    """Play; return the exit code."""
    parser = argparse.ArgumentParser(description="scenarios of 4.x clients")
    parser.add_argument("--servers", choices=SERVERS, default="ours")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--scenarios", nargs="+", default=[])
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args(words)
    if given.record and given.servers == "ours":
        parser.error("what is expected is recorded with real servers: --servers 4.9.3")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # servers end with us
    root = Path(tempfile.mkdtemp(prefix="clients4-"))
    failed = 0
    with started(given.servers, root) as cluster:
        print(f"{cluster.version}, commit {provenance.commit()}", flush=True)
        for program in given.programs:
            try:
                prepare(program)
            except Missing as error:
                print(f"{program}: not here: {error}", flush=True)
                continue
            names = [
                name
                for name in scenarios(program)
                if not given.scenarios or any(part in name for part in given.scenarios)
            ]
            if given.servers != "ours":
                _, left_out = UNRECORDED.get(program, ("", ()))
                names = [name for name in names if name not in left_out]
            failed += play(program, names, cluster, root, ours=given.servers == "ours", keep=given.record)
    print(f"{failed} scenarios differ" if failed else "no scenario differs")
    if failed:
        print(f"stores and logs are in {root}")
        return 1
    shutil.rmtree(root)
    return 0


def play(program: str, names: list[str], cluster: Cluster, root: Path, *, ours: bool, keep: bool) -> int:
    """Play a program's scenarios, and tell of each; return how many differ."""
    found = outcomes(program, cluster, names, root / program)
    wanted = expected().get(program, {})
    if keep:
        wanted = {name: outcome.said for name, outcome in found.items()}
        found = outcomes(program, cluster, names, root / f"{program}-again")
    failed = 0
    for name in names:
        outcome = found.get(name)
        lines = ["nothing is expected of it"]
        if name in wanted:
            lines = differences(name, wanted[name], outcome, ours=ours)
        if keep and outcome is not None and "error" in outcome.said:
            lines.append(f"failed: {outcome.said['error']}")
        failed += bool(lines)
        seconds = outcome.seconds if outcome else 0.0
        print(f"{'DIFFERS' if lines else 'alike  '} {seconds:5.1f} s  {program} {name}")
        for line in lines:
            print(f"        {line}", flush=True)
        if keep and not lines and outcome is not None:
            record(program, {name: outcome})
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
