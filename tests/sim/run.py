"""Runs seeds: `python -m sim.run SEED ...`, or `--seconds N` for as many as fit; shrinks what fails.

Prints what it did for each seed that was named, then, for each that failed, the finding, a schedule of few
faults that fails as well, and the line that repeats it. With `--without RULE` it switches rules off instead
(`rules.py`), and looks for a seed that notices. Exit code 1 when a seed failed, or none noticed.

One seed is one run only where the hashes of strings are: PYTHONHASHSEED has to be set, as `make sim` does.
"""

import argparse
import gc
import itertools
import logging
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace

import whimbrel.broker.broker as broker_module
from sim.cluster import Cluster
from sim.invariants import Invariants, Violation
from sim.machine import WorkerFailed
from sim.plan import END_S, Plan
from sim.process import REAL, clocks_of_processes
from sim.rules import RULES, switched_off
from sim.scheduler import Deadlock

__all__ = ["Result", "main", "run", "shrink"]


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
    """

    plan: Plan
    error: str
    acknowledged: int
    delivered: int
    steps: int
    seconds: float
    log: list[str]
    looks: dict[str, int]


def run(plan: Plan) -> Result:
    """Run a plan to its end, or to the first finding."""
    began = REAL["monotonic"]()
    random.seed(plan.seed)
    error = ""
    gc.disable()  # what is collected when must not change a run
    with clocks_of_processes():
        cluster = Cluster(plan)
        invariants = Invariants(cluster)
        try:
            cluster.run()
            invariants.finish()
        except (Violation, Deadlock, WorkerFailed, AssertionError) as found:
            error = f"{type(found).__name__}: {found}"
        for process in cluster.processes:
            process.die()
    result = Result(
        plan,
        error,
        len(cluster.history.acknowledged),
        len(cluster.history.deliveries),
        cluster.scheduler.steps,
        REAL["monotonic"]() - began,
        cluster.log,
        invariants.looks,
    )
    del cluster, invariants
    gc.enable()
    gc.collect()
    return result


def shrink(plan: Plan) -> Plan:
    """Return a plan with fewer faults that fails as well: each is tried once whether it can be left out."""
    faults = list(plan.faults)
    at = 0
    while at < len(faults):
        fewer = [*faults[:at], *faults[at + 1 :]]
        if run(replace(plan, faults=tuple(fewer))).error:
            faults = fewer
        else:
            at += 1
    return replace(plan, faults=tuple(faults))


def find_rules(text: str, first: int, seeds_max: int) -> int:
    """Switch rules off and look for a seed that notices; return the exit code."""
    missed = 0
    for rule in RULES:
        if text not in ("all", rule) and text not in rule:
            continue
        for seed in range(first, first + seeds_max):
            with switched_off(rule):
                result = run(Plan.draw(seed))
            if result.error:
                print(f"found without {rule!r}: seed {seed}, the {seed - first + 1}.: {result.error[:160]}")
                break
        else:
            missed += 1
            print(f"NOT FOUND in {seeds_max} seeds without {rule!r}")
    return bool(missed)


def run_seed(seed: int) -> Result:
    """Run a seed; for processes of a pool."""
    prepare(verbose=False)
    return run(Plan.draw(seed))


def prepare(*, verbose: bool) -> None:
    """Make this process fit for runs."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL + 1, format="%(name)s %(message)s"
    )
    broker_module.gc = NoCollector  # type: ignore[assignment,attr-defined]
    sys.unraisablehook = lambda _: None  # tasks of dead processes have no loop on which they could end


def results(options: argparse.Namespace) -> Iterator[Result]:
    """Run what is asked for."""
    if options.seeds:
        yield from (run(Plan.draw(seed)) for seed in options.seeds)
        return
    end = time.monotonic() + options.seconds
    seeds = itertools.islice(itertools.count(options.first), options.count or None)
    if options.jobs == 1:
        for seed in seeds:
            if time.monotonic() >= end:
                return
            yield run(Plan.draw(seed))
        return
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(run_seed, seed) for seed in itertools.islice(seeds, 2 * options.jobs)}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()
            if time.monotonic() < end:
                waiting |= {pool.submit(run_seed, seed) for seed in itertools.islice(seeds, len(done))}


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
    parser.add_argument(
        "--without", default="", help="a rule to switch off, by a part of its text; all: each in turn"
    )
    parser.add_argument(
        "--seeds-max", type=int, default=60, help="in so many a rule that is switched off is found"
    )
    options = parser.parse_args(arguments)
    prepare(verbose=options.verbose)
    if options.without:
        return find_rules(options.without, options.first, options.seeds_max)
    began = time.monotonic()
    failed, count, acknowledged, faults, looks = [], 0, 0, Counter[str](), Counter[str]()
    for result in results(options):
        plan = result.plan
        count += 1
        acknowledged += result.acknowledged
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
            print(f"seed {plan.seed} FAILED: {result.error}", flush=True)
            if not options.no_shrink:
                small = shrink(plan)
                print("  a schedule of few faults that fails as well:")
                print("\n".join(f"    {fault}" for fault in small.faults))
            print(f"  again: make sim SEED={plan.seed}", flush=True)
    seconds = time.monotonic() - began
    print(f"faults: {dict(sorted(faults.items()))}; checks: {dict(sorted(looks.items()))}")
    print(
        f"{count} seeds from {options.first} on, {count * END_S:.0f} virtual seconds, "
        f"{acknowledged} acknowledged sends in {seconds:.0f} s ({60 * count / seconds:.1f} seeds a minute); "
        f"{len(failed)} failed: {sorted(failed)}"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
