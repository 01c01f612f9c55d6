"""Runs failovers under load: `python -m chaos.run --count N --seed N`, or `make failovers`.

They are played in rounds of `ROUND` each: a new group of three members and a nameserver, processes all of
them, its load, one fault after the other, and the checks at the end (`checks.py`). The seed of a round is
that of the run and the round's number; every third round has its members behind forwarders and cuts leaders
off, the others draw from all other faults. Prints each failover, then the result; with `--page` it writes
docs/failovers.md. A round with a finding ends the run with exit code 1, and keeps its directory: stores and
logs of all processes. `--first N` begins with that round, which repeats it.
"""

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from chaos.faults import BEHIND, KINDS
from chaos.page import page
from chaos.rounds import Result, play
from support import provenance

__all__ = ["main"]

ROUND = 20  # failovers
CUTS_EVERY = 3  # rounds
BESIDE = "\n## Beside RocketMQ\n"  # from there on the page is written by hand, of what `beside.py` prints
CUTS = 2  # rounds with cuts have as many times fewer failovers


def main(words: list[str]) -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(description="failovers under load")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--page", type=Path, default=None)
    given = parser.parse_args(words)
    logging.getLogger("whimbrel").setLevel(logging.CRITICAL)  # clients warn of what is done on purpose here
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    commit = provenance.commit()
    say(f"seed {seed}, commit {commit}, {given.count} failovers")
    results: list[Result] = []
    began = time.monotonic()
    left, number = given.count, given.first
    while left:
        behind = number % CUTS_EVERY == CUTS_EVERY - 1
        count = min(left, ROUND // CUTS if behind else ROUND)
        result = round_of(seed, number, count, behind=behind)
        results.append(result)
        left -= len(result.failovers)
        number += 1
        if result.findings:
            break
    text = page(results, seed=seed, commit=commit, minutes=(time.monotonic() - began) / 60)
    if given.page is not None:
        before = given.page.read_text(encoding="utf-8") if given.page.exists() else ""
        given.page.write_text(text + before[before.find(BESIDE) :] * (BESIDE in before), encoding="utf-8")
    say(text)
    return 1 if any(result.findings for result in results) else 0


def round_of(seed: int, number: int, count: int, *, behind: bool) -> Result:
    """Play one round, and tell of it."""
    root = Path(tempfile.mkdtemp(prefix="failovers-"))
    say(f"round {number}: {count} failovers{', behind forwarders' if behind else ''}")
    result = play(root, seed + number, BEHIND if behind else KINDS, count, behind=behind, say=say)
    counts = ", ".join(f"{count} {what}" for what, count in result.counts.items())
    say(f"round {number}: {counts}; {result.again.count} redelivered, {len(result.findings)} findings")
    for finding in result.findings[:50]:
        say(f"  {finding}")
    if result.findings:
        say(f"stores and logs are in {root}; repeat with --seed {seed} --first {number} --count {count}")
    else:
        shutil.rmtree(root)
    return result


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
