"""What real servers gave, and how what others give differs from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clients4.programs import Outcome

__all__ = ["ACCEPTED", "EXPECTED", "UNRECORDED", "Otherwise", "differences", "expected", "record"]

EXPECTED = Path(__file__).resolve().parent / "expected.json"


@dataclass(frozen=True, slots=True)
class Otherwise:
    """How ours differs from real servers in one thing that a scenario says.

    Attributes:
        lacks: names of properties that a list of them does not have.
        adds: what it has besides.
        instead: another value. within: other values of some of the names that it has.
    """

    why: str
    lacks: frozenset[str] = frozenset()
    adds: tuple[str, ...] = ()
    instead: Any = None
    within: Mapping[str, Any] = field(default_factory=dict)

    def value(self, wanted: Any) -> Any:
        """Return what ours says where real servers let a client say `wanted`."""
        if self.instead is not None:
            return self.instead
        if self.within:
            return wanted | self.within
        left = [each for each in wanted if each.partition("=")[0] not in self.lacks]
        return sorted([*left, *self.adds])


WAIT = Otherwise(
    "RocketMQ's servers take WAIT, by which a producer asks its broker to wait for the disk, out of what they"
    " are sent, and put it into what they write themselves; ours does not",
    lacks=frozenset({"WAIT"}),
)
SEARCH = "a time after all messages finds the end, as in 5.x; 4.9.3 finds the last message"
BEYOND = "a pull beyond the end leads to the end, as in 5.x; 4.9.3 begins anew"
SHARED_POSITION = (
    "the C++ library's pulls keep one position for the queues of one number at all brokers, so they ask the"
    f" second broker beyond its end: {BEYOND}"
)
DEAD = "a dead letter goes to its topic at once; in 4.9.3 it is sent as a delayed one, and says so"
TRANSACTION = "a half names its transaction, as those of 5.x's clients do"

# Where ours gives something else: scenario and what it says.
ACCEPTED = {
    ("send_delayed", "properties of level 1"): WAIT,
    ("send_delayed", "properties of level 2"): WAIT,
    ("send_transactions", "properties"): replace(WAIT, adds=("__transactionId__",), why=TRANSACTION),
    ("send_transactions", "properties of a first question"): replace(
        WAIT, adds=("__transactionId__",), why=TRANSACTION
    ),
    ("push_failing", "properties of the second try"): WAIT,
    ("push_failing", "properties of the dead letter"): Otherwise(DEAD, lacks=frozenset({"WAIT", "DELAY"})),
    ("push_orderly_failing", "properties of the dead letter"): Otherwise(
        DEAD,
        lacks=frozenset({"DELAY", "MAX_RECONSUME_TIMES", "RECONSUME_TIME", "REAL_QID", "REAL_TOPIC"}),
    ),
    ("pull_sent_back", "properties"): WAIT,
    ("pull", "pulls: status, next, least, most, bodies"): Otherwise(
        BEYOND, within={"beyond the end": "OFFSET_ILLEGAL 4 0 4 []"}
    ),
    ("pull", "got"): Otherwise(SHARED_POSITION, instead=["m0", "m1", "m4", "m5"]),
    ("lite_assigned", "in an hour"): Otherwise(SEARCH, instead=6),
    ("admin_offsets", "of a full one, in an hour"): Otherwise(SEARCH, instead=5),
    ("send_batch", "properties of the first, without an id"): Otherwise(
        "a message without an id of its own gets one", adds=("UNIQ_KEY",)
    ),
}

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


def differences(scenario: str, wanted: dict[str, Any], found: Outcome | None, *, ours: bool) -> list[str]:
    """Return a line for each thing that a scenario says otherwise than real servers let it say.

    Args:
        ours: these were our servers, which may differ in what is accepted above.
    """
    if found is None:
        return ["did not end in time"]
    lines = []
    for what in sorted(wanted.keys() | found.said.keys()):
        want, have = wanted.get(what, "(nothing)"), found.said.get(what, "(nothing)")
        rule = ACCEPTED.get((scenario, what)) if ours and what in wanted else None
        if rule is not None:
            want = rule.value(want)
        if want != have:
            lines.append(f"{what}: {json.dumps(have)}, not {json.dumps(want)}")
    return lines
