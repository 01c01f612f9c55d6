"""What real servers gave, and how what others give differs from it."""

import json
from pathlib import Path
from typing import Any

from clients4.programs import Outcome

__all__ = ["ACCEPTED", "EXPECTED", "UNRECORDED", "differences", "expected", "record"]

EXPECTED = Path(__file__).resolve().parent / "expected.json"

# RocketMQ's servers take WAIT, by which a producer asks its broker to wait for the disk, out of what they are
# sent, and put it into what they write themselves: delayed messages, retries, halves. Ours does not.
LEFT_OUT = {"WAIT=true", "WAIT=false"}
WRITTEN_AGAIN = {
    "send_delayed",
    "send_transactions",
    "push_failing",
    "push_orderly_failing",
    "pull_sent_back",
}

# Where ours gives something else: scenario to what it says to what ours says, and why.
ACCEPTED: dict[str, dict[str, tuple[Any, str]]] = {}

# Of these nothing can be recorded: this client pulls by a code that 4.9.3's servers don't know (361), and it
# asks for ever. They are held to what the other client gives.
UNRECORDED = {"java-5.3.3": ("java-4.9.3", ("lite_subscribed", "lite_assigned"))}


def expected() -> dict[str, dict[str, Any]]:
    """Return what is expected: program to scenario to outcome."""
    found = recorded()
    for program, (other, scenarios) in UNRECORDED.items():
        for scenario in scenarios:
            if scenario in found.get(other, {}):
                found.setdefault(program, {})[scenario] = found[other][scenario]
    return found


def recorded() -> dict[str, dict[str, Any]]:
    """Return what real servers gave."""
    if not EXPECTED.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return found


def record(program: str, found: dict[str, Outcome]) -> None:
    """Keep what real servers gave, beside what is kept of other programs and scenarios."""
    kept = recorded()
    scenarios = kept.get(program, {}) | {name: outcome.said for name, outcome in found.items()}
    kept[program] = dict(sorted(scenarios.items()))
    text = json.dumps(dict(sorted(kept.items())), indent=1, sort_keys=True)
    EXPECTED.write_text(text + "\n", encoding="utf-8")


def differences(scenario: str, wanted: dict[str, Any], found: Outcome | None) -> list[str]:
    """Return a line for each thing that a scenario says otherwise than real servers let it say."""
    if found is None:
        return ["did not end in time"]
    accepted = {what: value for what, (value, _) in ACCEPTED.get(scenario, {}).items()}
    wanted = wanted | accepted
    lines = []
    for what in sorted(wanted.keys() | found.said.keys()):
        want, have = wanted.get(what, "(nothing)"), found.said.get(what, "(nothing)")
        if want != have and not (scenario in WRITTEN_AGAIN and without(want) == have):
            lines.append(f"{what}: {json.dumps(have)}, not {json.dumps(want)}")
    return lines


def without(value: Any) -> Any:
    """Return a list of properties without those that ours leaves out, and anything else as it is."""
    return [each for each in value if each not in LEFT_OUT] if isinstance(value, list) else value
