"""Runs the models: `python -m models.run` for both levels, `--rules` to switch each rule off.

Level 1 goes first, whole; then level 2 has as many seeds as fit into `--seconds`, in their order from
`--first` on. A seed that is named is repeated, with what happened in it. Exit code 1 when an invariant is
broken with all rules on, when a case is not looked at whole, or when a rule that is off is not found.

Tasks go to `--jobs` processes. A seed is the same history everywhere as long as PYTHONHASHSEED is, as
`make models` has it.
"""

import argparse
import itertools
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models.exhaustive import CASES, Outcome, explore
from models.histories import KINDS, History, draw, run
from models.rules import RULES, Rule
from support import rule_records
from support.provenance import head

__all__ = ["main"]

HERE = Path(__file__).resolve().parent
SET = "models"
BATCH = 20  # seeds a task: a second or less


@dataclass(frozen=True)
class Search:
    """A rule that is off, and what should find that: a case, or histories of a kind."""

    rule: str
    case: str = ""
    histories: str = ""

    @property
    def place(self) -> str:
        """What finds it, for people."""
        return f"level 1, {self.case}" if self.case else f"level 2, {self.histories}"


def explore_case(name: str) -> Outcome:
    """Look at a case with all rules on."""
    return explore(CASES[name])


def run_batch(seeds: list[int]) -> list[History]:
    """Run seeds with all rules on."""
    return [run(draw(seed)) for seed in seeds]


def find(search: Search) -> tuple[Search, Outcome | History | None]:
    """Look for what a rule's absence breaks; None if nothing that was expected is found."""
    rule = RULES[search.rule]
    if search.case:
        outcome = explore(CASES[search.case], rule.off)
        return search, outcome if outcome.finding and outcome.finding.kind in rule.kinds else None
    for seed in range(1, rule.seeds + 1):
        history = run(draw(seed, search.histories), rule.off)
        if history.finding and history.finding.kind in rule.kinds:
            return search, history
    return search, None


def searches(rule: Rule) -> Iterator[Search]:
    """Yield all that should find a rule's absence."""
    for case in rule.cases:
        yield Search(rule.id, case=case)
    if rule.histories:
        yield Search(rule.id, histories=rule.histories)


def digests() -> dict[str, str]:
    """Return what each rule is now: what it says, and all of the models, which follow each in many places."""
    code = [path for path in HERE.glob("*.py") if path.name not in {"rules.py", "run.py"}]
    return {name: rule_records.digest(repr(rule), code) for name, rule in RULES.items()}


def find_rules(jobs: int, share: int, *, record: bool) -> int:
    """Switch rules off, one at a time; return the exit code."""
    began, now, commit = time.monotonic(), digests(), head()
    chosen = rule_records.chosen(now, rule_records.recorded(SET), share=share, commit=commit)
    print(f"commit {commit[:7]}, {len(chosen)} of {len(RULES)} rules", flush=True)
    wanted = [search for name in chosen for search in searches(RULES[name])]
    missed = set()
    with multiprocessing.Pool(jobs) as pool:
        for search, found in pool.imap(find, wanted):
            rule = RULES[search.rule]
            title = f"{' and '.join((rule.id, *rule.along))} off"
            if found is None:
                missed.add(search.rule)
                print(f"NOT FOUND: {title}, {search.place}: {rule.text}", flush=True)
            elif isinstance(found, Outcome):
                print(f"{title}: {search.place}, {found.groups} groups: {found.finding}")
            else:
                print(f"{title}: {search.place}, seed {found.plan.seed}: {found.finding}")
    for rule in RULES.values():
        if not (rule.cases or rule.histories):
            print(f"{rule.id}: nothing that the models look for: {rule.note}")
    if record:
        rule_records.record(SET, {name: now[name] for name in chosen if name not in missed}, now)
    count = len({search.rule for search in wanted})
    print(
        f"{count} rules off, {len(wanted)} searches, {len(missed)} not found; "
        f"{time.monotonic() - began:.0f} s"
    )
    return bool(missed)


def explain_rule(rule: Rule) -> int:
    """Show what a rule's absence leads to: the first counterexample of each search; return the exit code."""
    print(f"{rule.id}: {rule.text} {rule.note}")
    for search in searches(rule):
        _, found = find(search)
        if found is None:
            print(f"NOT FOUND: {search.place}")
            return 1
        print(f"{search.place}: {found.finding}")
        lines = found.steps if isinstance(found, Outcome) else [f"seed {found.plan.seed}", *found.log]
        print("\n".join(f"    {line}" for line in lines))
    return 0


def repeat(seed: int, kind: str) -> int:
    """Run a seed, and say what happened; return the exit code."""
    history = run(draw(seed, kind))
    print(f"seed {seed}: {history.plan}")
    print("\n".join(f"  {line}" for line in history.log))
    print(f"  {dict(sorted(history.counts.items()))}")
    print(f"  {history.events} events; {history.finding or 'nothing is wrong'}")
    return bool(history.finding)


def run_cases(jobs: int) -> int:
    """Run level 1; return how many cases are bad."""
    groups, seconds, bad = 0, 0.0, 0
    with multiprocessing.Pool(jobs) as pool:
        for outcome in pool.imap(explore_case, CASES):
            groups += outcome.groups
            seconds += outcome.seconds
            state = "all looked at, none bad" if outcome.whole else f"BAD: {outcome.finding}"
            print(
                f"{outcome.case.name}: {outcome.groups} groups, {outcome.seconds:.1f} s, {state}", flush=True
            )
            print("".join(f"    {line}\n" for line in outcome.steps), end="")
            bad += not outcome.whole
    print(f"level 1: {groups} groups in {len(CASES)} cases, {seconds:.0f} s of CPU, {bad} bad", flush=True)
    return bad


def batches(first: int, seconds: float, count: int) -> Iterator[list[int]]:
    """Yield seeds until the time is over, or so many are given out, if there is such a number."""
    end = time.monotonic() + seconds
    numbers = range(first, first + count, BATCH) if count else itertools.count(first, BATCH)
    for start in numbers:
        if time.monotonic() >= end:
            return
        yield list(range(start, min(start + BATCH, first + count) if count else start + BATCH))


def run_histories(first: int, seconds: float, count: int, jobs: int) -> int:
    """Run level 2; return how many seeds are bad."""
    began = time.monotonic()
    totals: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    last, done, events, cpu, bad = first, 0, 0, 0.0, []
    with multiprocessing.Pool(jobs) as pool:
        left = batches(first, seconds, count)
        waiting = [pool.apply_async(run_batch, (seeds,)) for seeds in itertools.islice(left, jobs + 1)]
        while waiting:
            for history in waiting.pop(0).get():
                plan = history.plan
                last, done, events = plan.seed, done + 1, events + history.events
                cpu += history.seconds
                totals.update(history.counts)
                kinds[plan.kind] += 1
                if history.finding:
                    bad.append(plan.seed)
                    print(f"seed {plan.seed} ({plan.kind}) BAD: {history.finding}")
                    print(f"  again: make models SEED={plan.seed}", flush=True)
            waiting += [pool.apply_async(run_batch, (seeds,)) for seeds in itertools.islice(left, 1)]
    took = time.monotonic() - began
    print(f"kinds: {dict(kinds)}")
    print(f"counts: {dict(sorted(totals.items()))}")
    print(
        f"level 2: {done} seeds, {first} to {last}, {events} events in {took:.0f} s "
        f"({60 * done / max(took, 0.001):.0f} seeds a minute, {60 * done / max(cpu, 0.001):.0f} a core), "
        f"{len(bad)} bad: {bad}"
    )
    return len(bad)


def main(arguments: list[str]) -> int:
    """Run what is asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="models.run", description="Run the models of automatic failover.")
    parser.add_argument("seed", nargs="?", type=int, help="a seed of level 2 to repeat, with what happened")
    parser.add_argument("--kind", default="", choices=["", *KINDS], help="its kind, if not the seed's own")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=0, help="run no more seeds than this; 0: no limit")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long level 2 goes on")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--rules", action="store_true", help="switch each rule off, and see that it is found")
    parser.add_argument(
        "--share", type=int, default=1, help="with --rules: those that have changed, and one of so many"
    )
    parser.add_argument("--record", action="store_true", help="with --rules: write down which were found")
    parser.add_argument("--without", default="", choices=["", *RULES], help="show what this rule is for")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return repeat(options.seed, options.kind)
    if options.without:
        return explain_rule(RULES[options.without])
    if options.rules:
        return find_rules(options.jobs, options.share, record=options.record)
    bad = run_cases(options.jobs)
    return bool(bad + run_histories(options.first, options.seconds, options.count, options.jobs))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
