"""The same faults, under the same clients, for a group of ours and for RocketMQ 5.3.3 in controller mode.

    python -m chaos.beside --rounds 3 --page docs/failovers-beside.md     (`make beside-failovers`)

Both groups have three members on this machine, and answer a send when more than half of them hold it
(`ours.py`, `controller_mode.py`). The clients are RocketMQ's official SDKs, unmodified (`sdks.py`), at our
nameserver or at RocketMQ's proxy. A stage is one group with its clients, and its rounds one after the other:

    in step; all clients send and receive
    the fault, and with it a client that comes, and looks at the route
    until all have gone on, `AWAY_S` at least and `BOUND_S` at most
    the end of the fault: started again, woken, mended
    in step; all clients send and receive

Each fault has a stage of its own: after a hang RocketMQ's group may not come into step again, which ends its
stage. The members of partitions are behind forwarders. At the end of a stage all that was acknowledged is
looked for in the queues. Each round is a row, a line of JSON (`--rows`);
`beside_page.py` makes the page of them, also without measuring again (`--render`).
"""

import argparse
import bisect
import dataclasses
import json
import logging
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from chaos.beside_page import page
from chaos.controller_mode import RocketMQ
from chaos.ours import Ours
from chaos.rows import AWAY_S, BOUND_S, FAULTS, Row
from chaos.sdks import LANGUAGES, Clients, Newcomer, RouteWatch, longest_pause
from support import provenance
from support.waiting import elapse, polls

__all__ = ["main", "stage"]

APART_S = 0.0, 2.0  # from the steady clients to the fault
LOOK_S = 0.1
NEWCOMERS = "newcomers"
BY_HAND = "\n## What SDKs do\n"  # from there on the page is written by hand


class System(Protocol):
    """What both groups can do; a member is whatever they say."""

    @property
    def endpoint(self) -> str:
        """Where clients go."""

    def create(self, topics: list[str]) -> None:
        """Make topics."""

    def await_in_step(self) -> Any:
        """Wait until all members follow one, and return that."""

    def address(self, member: Any) -> str:
        """Return a member's address as routes have it."""

    def begin(self, fault: str, member: Any) -> None:
        """Begin a fault of a member."""

    def mend(self) -> None:
        """End all faults."""

    def routed(self) -> str:
        """Return the leader's address by a new query of the route; empty: there is none."""

    def read_back(self, topic: str) -> list[tuple[int, int, str]]:
        """Return queue, offset and body of all messages."""

    def cut_bytes(self) -> int | None:
        """Return how much was cut off logs so far; None: that is not known."""


SYSTEMS: dict[str, Callable[..., AbstractContextManager[System]]] = {"whimbrel": Ours, "RocketMQ": RocketMQ}


@dataclass(slots=True)
class Stage:
    """The rounds of a group.

    Attributes:
        begins: when the fault of each row began.
        newcomers: what clients that came with a fault had acknowledged, and when.
    """

    system: System
    clients: Clients
    dice: random.Random
    rows: list[Row] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    newcomers: list[tuple[float, str]] = field(default_factory=list)

    def fail_over(self, row: Row) -> None:
        """Have a fault happen, and measure."""
        system, clients = self.system, self.clients
        leader = system.await_in_step()
        clients.flow()
        newcomer = Newcomer(system.endpoint, NEWCOMERS, f"{NEWCOMERS}-{len(self.rows)}")
        elapse(self.dice.uniform(*APART_S))
        cut, before = system.cut_bytes(), system.routed()
        row.connected = clients.connected(int(system.address(leader).rpartition(":")[2]))
        began = time.monotonic()
        system.begin(row.fault, leader)
        newcomer.come()
        watch = RouteWatch(system.routed, began, before)
        for _ in polls(BOUND_S, every_s=LOOK_S):
            gone_on = newcomer.found is not None and watch.found is not None and clients.gone_on(began)
            if gone_on and time.monotonic() > began + AWAY_S:
                break
        ended = time.monotonic()
        watch.end()
        newcomer.end()
        row.route, row.newcomer = watch.found, newcomer.found
        for language in clients.languages:
            row.sends[language] = over(clients.sends(language), began, ended)
            row.receives[language] = over(clients.receives(language), began, ended)
        system.mend()
        system.await_in_step()
        clients.flow()
        now = time.monotonic()
        row.away, row.back = ended - began, now - ended
        row.after = {each: longest_pause(clients.sends(each), ended, now)[0] for each in clients.languages}
        if cut is not None:
            row.cut_bytes = (system.cut_bytes() or 0) - cut
        self.rows.append(row)
        self.begins.append(began)
        if newcomer.found is not None:
            self.newcomers.append((began + newcomer.found, newcomer.body))

    def finish(self) -> None:
        """Look for all that was acknowledged; what was sent from a fault until the next one is its row's."""
        self.clients.stop_sending()
        acknowledged, given_up = list(self.newcomers), list[tuple[float, str]]()
        for producer in self.clients.producers.values():
            for line, at in zip(producer.lines, producer.times, strict=False):
                if line[0] in ("sent", "failed"):
                    (acknowledged if line[0] == "sent" else given_up).append((at, line[1]))
        stored: Counter[str] = Counter()
        for topic in (*self.clients.topics.values(), NEWCOMERS):
            stored.update(body for _, _, body in self.system.read_back(topic))
        for at, body in acknowledged:
            row = self.row_of(at)
            row.acknowledged += 1
            row.lost += body not in stored
            row.duplicates += stored[body] > 1
        for at, body in given_up:
            row = self.row_of(at)
            row.given_up += 1
            row.duplicates += stored[body] > 1

    def row_of(self, at: float) -> Row:
        """Return the row that a moment belongs to."""
        return self.rows[max(0, bisect.bisect_right(self.begins, at) - 1)]


def over(moments: Sequence[float], began: float, ended: float) -> float | None:
    """Return the longest pause of a fault; None: it was not over when the fault was ended by the bound."""
    pause, open_end = longest_pause(moments, began, ended)
    return None if open_end and ended - began >= BOUND_S and pause > AWAY_S else pause


def stage(
    name: str,
    faults: Sequence[str],
    dice: random.Random,
    *,
    languages: Sequence[str] = LANGUAGES,
    say: Callable[[str], None] = print,
) -> list[Row]:
    """Measure one group.

    Args:
        name: of the system.
        faults: one for each round.
    """
    root = Path(tempfile.mkdtemp(prefix="beside-"))
    say(f"{name}: {len(faults)} rounds; stores and logs are in {root} until all went well")
    with SYSTEMS[name](root, behind="partition" in faults) as system:
        clients = Clients(system.endpoint, "sdk", languages)
        system.create([*clients.topics.values(), NEWCOMERS])
        with clients:
            say(f"{name}: in step, and {', '.join(languages)} send and receive")
            found = Stage(system, clients, dice)
            for fault in faults:
                row = Row(system=name, fault=fault)
                try:
                    found.fail_over(row)
                except AssertionError as error:  # a wait in vain: what was measured before it counts
                    say(f"{name}, {fault}: {error}; no more rounds of this group")
                    break
                say(row.told())
            if found.rows:
                found.finish()
    if len(found.rows) == len(faults):
        shutil.rmtree(root)
    lost, twice = (sum(getattr(row, each) for row in found.rows) for each in ("lost", "duplicates"))
    say(f"{name}: {sum(row.acknowledged for row in found.rows):,} acknowledged, {lost} lost, {twice} twice")
    return found.rows


def main(words: list[str]) -> int:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description="failovers of ours and of RocketMQ, under official SDKs")
    parser.add_argument("--rounds", type=int, default=3, help="of each fault, of ours")
    parser.add_argument("--peer-rounds", type=int, default=2, help="of each fault, of RocketMQ")
    parser.add_argument("--only", choices=tuple(SYSTEMS))
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--languages", nargs="+", choices=LANGUAGES, default=LANGUAGES)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--rows", type=Path, default=None, help="where rows are added, a line of JSON each")
    parser.add_argument("--render", action="store_true", help="measure nothing: the page of --rows")
    parser.add_argument("--page", type=Path, default=None)
    given = parser.parse_args(words)
    logging.getLogger("whimbrel").setLevel(logging.CRITICAL)  # clients warn of what is done on purpose here
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all servers are ended
    seed = provenance.seed() if given.seed is None else given.seed
    rows = read(given.rows) if given.render else list[Row]()
    missing = 0  # stages of ours that ended before their time
    if not given.render:
        commit = provenance.commit()
        say(f"seed {seed}, commit {commit}")
        for name in SYSTEMS:
            if given.only not in (None, name):
                continue
            rounds = given.rounds if name == "whimbrel" else given.peer_rounds
            for fault in given.faults:
                dice = random.Random(f"{seed} {name} {fault}")
                began = time.monotonic()
                found = stage(name, [fault] * rounds, dice, languages=given.languages, say=say)
                missing += name == "whimbrel" and len(found) < rounds
                minutes = (time.monotonic() - began) / 60
                for row in found:
                    row.seed, row.commit, row.minutes = seed, commit, minutes / len(found)
                rows += found
                if given.rows is not None:
                    write(given.rows, found)
    text = page(rows)
    if given.page is not None:
        before = given.page.read_text(encoding="utf-8") if given.page.exists() else ""
        kept = before[before.find(BY_HAND) :] if BY_HAND in before else ""
        given.page.write_text(text + kept, encoding="utf-8")
    say(text)
    return 1 if missing or any(row.lost for row in rows if row.system == "whimbrel") else 0


def read(path: Path) -> list[Row]:
    """Return rows."""
    return [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: Sequence[Row]) -> None:
    """Add rows."""
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(dataclasses.asdict(row)) + "\n")


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
