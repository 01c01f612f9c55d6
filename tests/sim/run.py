"""Runs seeds: `python -m sim.run SEED ...`, or `--seconds N` for as many as fit; shrinks what fails.

Prints what it did for each seed that was named, then, for each that failed, the finding, a schedule of few
faults that fails as well, and the line that repeats it. With `--power` it draws the plans of `power.py`, with
`--without RULE` it switches rules off (`rules.py`) and looks for a seed that notices. Exit code 1 when a seed
failed, or none noticed. With `--majority` it draws those of `majority.py`, with `--elections` those of
`elections.py`.

Each run has a process of its own, forked from this one: what a run leaves behind, garbage and threads, ends
with it, and no run has another one's. Seeds begin in their order, so those that were run are a range.

One seed is one run only where the hashes of strings are: PYTHONHASHSEED has to be set, as `make sim` does.
"""

import argparse
import contextlib
import gc
import importlib
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import whimbrel.broker.broker as broker_module
from sim.cluster import Cluster
from sim.elected import watched
from sim.election_rules import ELECTION_FIRST_SEEDS, ELECTION_PLANS, ELECTION_RULES, UNSEEN
from sim.invariants import Invariants
from sim.majority import majority_plan
from sim.nodes import surroundings
from sim.operations import PLANS
from sim.plan import END_S, Plan
from sim.power import LOSSES, power_plan
from sim.process import REAL, clocks_of_processes
from sim.rules import FIRST_SEEDS, RULES, Patch, switched_off
from support import rule_records
from support.provenance import head

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

__all__ = ["Result", "apart", "main", "run", "shrink"]


# What a process imports when it first serves or connects: once for all runs, not in each.
IMPORTED_LATE = (
    "encodings.idna",
    "whimbrel.rpc.client.native_channel",
    "whimbrel.rpc.server.health",
    "whimbrel.rpc.server.native",
    "whimbrel.rpc.server.reflection",
)


HERE = Path(__file__).resolve().parent


class NoCollector:
    """What a broker does once at its start would look at the objects of all processes here."""

    collect = staticmethod(lambda: 0)
    freeze = staticmethod(lambda: None)


@dataclass
class Result:
    """What a run came to.

    Attributes:
        error: the finding that ended it; empty when it came to its end.
        acknowledged, delivered, steps: sends answered OK, messages that came to the group, events.
        seconds: of real time.
        log: faults and restarts, as lines for people.
        looks: how often each invariant was checked.
        caught: power losses of all that came upon a send.
    """

    plan: Plan
    error: str
    acknowledged: int
    delivered: int
    steps: int
    seconds: float
    log: list[str]
    looks: dict[str, int]
    caught: int = 0


def run(plan: Plan) -> Result:
    """Run a plan to its end, or to the first finding."""
    began = REAL["monotonic"]()
    random.seed(plan.seed)
    error = ""
    gc.disable()  # what is collected when must not change a run; its process ends soon
    with clocks_of_processes(), surroundings(), contextlib.ExitStack() as watching:
        cluster = Cluster(plan)
        invariants = Invariants(cluster)
        if cluster.elections is not None:
            watching.enter_context(watched(cluster.elections))
        try:
            cluster.run()
            invariants.finish()
        except Exception as found:  # noqa: BLE001 - what a check stumbles over is a finding as well
            error = f"{type(found).__name__}: {found}"
        for process in cluster.processes:
            process.die()
    return Result(
        plan,
        error,
        len(cluster.history.acknowledged),
        len(cluster.history.deliveries),
        cluster.scheduler.steps,
        REAL["monotonic"]() - began,
        cluster.log,
        invariants.looks,
        cluster.caught,
    )


def run_here(plan: Plan, to: "Connection") -> None:
    """Run a plan, and send the result to the process that asked."""
    to.send(run(plan))


def apart(plans: Iterable[Plan], jobs: int = 1) -> Generator[Result, None, None]:
    """Run plans, each in a process of its own, so many at once; yield the results as they come."""
    context = multiprocessing.get_context("fork")
    left = iter(plans)
    running: dict[Connection, tuple[ForkProcess, Plan]] = {}
    try:
        while True:
            for plan in itertools.islice(left, jobs - len(running)):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=run_here, args=(plan, theirs))
                process.start()
                theirs.close()
                running[ours] = process, plan
            if not running:
                return
            ready = multiprocessing.connection.wait(list(running))
            for ended in [end for end in running if end in ready]:
                process, plan = running.pop(ended)
                try:
                    result = ended.recv()
                except EOFError:
                    process.join()
                    error = f"its process ended with {process.exitcode}"
                    result = Result(plan, error, 0, 0, 0, 0.0, [], {})
                process.join()
                ended.close()
                yield result
    finally:
        for process, _ in running.values():
            process.kill()
            process.join()


def shrink(plan: Plan) -> Plan:
    """Return a plan with fewer faults that fails as well: each is tried once whether it can be left out."""
    faults = list(plan.faults)
    at = 0
    while at < len(faults):
        fewer = [*faults[:at], *faults[at + 1 :]]
        if next(apart([replace(plan, faults=tuple(fewer))])).error:
            faults = fewer
        else:
            at += 1
    return replace(plan, faults=tuple(faults))


def find_rules(options: argparse.Namespace) -> int:
    """Switch rules off and look for a seed that notices; return the exit code."""
    missed: list[str] = []
    text, seeds_max = options.without, options.seeds_max
    rules, firsts = (ELECTION_RULES, ELECTION_FIRST_SEEDS) if options.elections else (RULES, FIRST_SEEDS)
    name = "elections" if options.elections else "sim"
    now: dict[str, str] = {}
    if text == "all":
        now = digests(rules)
        wanted = rule_records.chosen(now, rule_records.recorded(name), share=options.share, commit=head())
        print(f"commit {head()[:7]}, {len(wanted)} of {len(now)} rules", flush=True)
    else:
        wanted = [rule for rule in rules if text in rule]
    for rule in wanted:
        begin = max(options.first, firsts.get(rule, options.first))
        kind = ELECTION_PLANS.get(rule, "plain") if options.elections else ""
        draw = PLANS[kind] if kind else drawing(options)
        plans = map(draw, range(begin, begin + seeds_max))
        with switched_off(rule, rules), contextlib.closing(apart(plans, options.jobs)) as results:
            found = next((result for result in results if result.error), None)
        if found is None:
            missed.append(rule)
            print(f"NOT FOUND in {seeds_max} seeds without {rule!r}")
        else:
            seed = found.plan.seed
            place = f"the {seed - begin + 1}."
            of_kind = f" of PLAN={kind}" if kind else ""
            print(f"found without {rule!r}: seed {seed}{of_kind}, {place}: {found.error[:160]}", flush=True)
    if options.record:
        rule_records.record(name, {rule: now[rule] for rule in wanted if rule not in missed}, now)
    return bool(missed)


def digests(rules: Mapping[str, tuple[Patch, ...]]) -> dict[str, str]:
    """Return what each rule is now: how it is switched off, and the files of the code that follows it.

    Those of elections that no seed is known to notice are left out.
    """
    name, table = ("rules.py", "RULES") if rules is RULES else ("election_rules.py", "ELECTION_RULES")
    return {
        rule: rule_records.digest(
            rule_records.definition(HERE / name, table, rule), rule_records.sources(patches)
        )
        for rule, patches in rules.items()
        if rule not in UNSEEN
    }


def prepare(*, verbose: bool) -> None:
    """Make this process fit for runs."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL + 1, format="%(name)s %(message)s"
    )
    broker_module.gc = NoCollector  # type: ignore[assignment,attr-defined]
    sys.unraisablehook = lambda _: None  # tasks of dead processes have no loop on which they could end
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    gc.freeze()  # what all runs share


def drawing(options: argparse.Namespace) -> Callable[[int], Plan]:
    """Return what draws the plans that are asked for."""
    if options.majority:
        return majority_plan
    if options.elections:
        return PLANS[options.plan]
    return power_plan if options.power else Plan.draw


def plans_of(options: argparse.Namespace) -> Iterator[Plan]:
    """Draw what is asked for, until the time is over."""
    draw = drawing(options)
    if options.seeds:
        yield from map(draw, options.seeds)
        return
    end = time.monotonic() + options.seconds
    for seed in itertools.islice(itertools.count(options.first), options.count or None):
        if time.monotonic() >= end:
            return
        yield draw(seed)


def main(arguments: list[str]) -> int:
    """Run seeds; return the exit code."""
    parser = argparse.ArgumentParser(prog="sim", description="Run seeds of a simulated cluster.")
    parser.add_argument("seeds", nargs="*", type=int, help="seeds to run, with what happened in each")
    parser.add_argument("--first", type=int, default=1, help="the first seed, where none is named")
    parser.add_argument("--count", type=int, default=0, help="run no more seeds than this; 0: no limit")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on, where none is named")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="show the log lines of all processes")
    parser.add_argument(
        "--no-shrink", action="store_true", help="leave the schedule of a failing seed as it is"
    )
    parser.add_argument("--majority", action="store_true", help="have each group commit by majority")
    parser.add_argument("--elections", action="store_true", help="have each group elect its master")
    parser.add_argument(
        "--plan", default="elections", choices=PLANS, help="with --elections: of one kind (operations.py)"
    )
    parser.add_argument("--power", action="store_true", help="have all brokers lose power in each seed")
    parser.add_argument(
        "--without", default="", help="a rule to switch off, by a part of its text; all: each in turn"
    )
    parser.add_argument(
        "--share", type=int, default=1, help="of all rules those that have changed, and one of so many"
    )
    parser.add_argument("--record", action="store_true", help="write down which rules were found")
    parser.add_argument(
        "--seeds-max", type=int, default=100, help="in so many a rule that is switched off is found"
    )
    options = parser.parse_args(arguments)
    prepare(verbose=options.verbose)
    if options.without:
        return find_rules(options)
    began = time.monotonic()
    failed, lost, caught, faults, looks = [], 0, 0, Counter[str](), Counter[str]()
    acknowledged: dict[int, int] = {}
    for result in apart(plans_of(options), options.jobs):
        plan = result.plan
        acknowledged[plan.seed] = result.acknowledged
        caught += result.caught
        faults.update(fault.kind for fault in plan.faults)
        looks.update(result.looks)
        if options.seeds:
            print(
                f"seed {plan.seed}: flush {plan.flush}, replication {plan.replication}, "
                f"{plan.groups} groups, {plan.slaves} slaves, {plan.nameservers} nameservers; "
                f"{result.acknowledged} acknowledged, "
                f"{result.delivered} delivered, {result.steps} steps, {result.seconds:.2f} s"
            )
            print("\n".join(f"  {line}" for line in result.log))
        if result.error:
            failed.append(plan.seed)
            lost += "lost: " in result.error
            print(f"seed {plan.seed} FAILED: {result.error}", flush=True)
            if not options.no_shrink:
                small = shrink(plan)
                print("  a schedule of few faults that fails as well:")
                print("\n".join(f"    {fault}" for fault in small.faults))
            kinds = [kind for kind in ("elections", "majority", "power") if getattr(options, kind)]
            target = "-".join(["sim", *kinds])
            kind = f" PLAN={options.plan}" if options.plan != "elections" else ""
            print(f"  again: make {target} SEED={plan.seed}{kind}", flush=True)
    seconds, count = time.monotonic() - began, len(acknowledged)
    print(f"faults: {dict(sorted(faults.items()))}; checks: {dict(sorted(looks.items()))}")
    if options.power:
        losses = sum(faults[kind] for kind in LOSSES)
        print(
            f"{losses} power losses of all brokers, {caught} of them upon sends; "
            f"acknowledged messages lost in {lost} seeds"
        )
    print(
        f"{count} seeds, {min(acknowledged, default=0)} to {max(acknowledged, default=0)}, "
        f"{count * END_S:.0f} virtual seconds, {sum(acknowledged.values())} acknowledged sends "
        f"({min(acknowledged.values(), default=0)} at least) in {seconds:.0f} s "
        f"({60 * count / seconds:.1f} seeds a minute); {len(failed)} failed: {sorted(failed)}"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
