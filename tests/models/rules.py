"""The rules of automatic failover and majority commit, each of which the models can switch off.

A rule that is switched off has to be found: by level 1 in the cases that are named, by level 2 in the
histories that are named. Some are found by one level only; where a rule can't be found alone, because
another one covers it, its entry says so and which rules are off with it. Identifiers are those of the
design; primes and letters behind them are parts that can be off alone. R1 to R14 are about the log, Q0 to Q8
about what stands beside it (`broker/cluster/state_quorum.py`, `leader_state.py`, `follower_state.py`): level
1 has models of both, level 2 of the log alone.
"""

from dataclasses import dataclass
from typing import Final

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """A rule, and what finds that it is missing.

    Attributes:
        text: what it says.
        cases: level 1: the cases of `exhaustive.py` that find it.
        kinds: the invariants of which one is broken, at either level.
        histories: level 2: the kind of histories that finds it; empty if none is known to.
        seeds: among so many seeds, from the first, one is found.
        along: rules that are off with it.
        note: what has to be known of it.
    """

    id: str
    text: str
    cases: tuple[str, ...] = ()
    kinds: frozenset[str] = frozenset({"I2", "I3"})
    histories: str = ""
    seeds: int = 0
    along: tuple[str, ...] = ()
    note: str = ""

    @property
    def off(self) -> frozenset[str]:
        """The rules to switch off."""
        return frozenset({self.id, *self.along})


LOST: Final = frozenset({"I2", "I3"})  # what was committed is not there, or something else is
CUT: Final = LOST | {"I4", "I5", "I6", "I7"}  # the same, seen earlier: as it is cut, or as logs part
WAITING: Final = frozenset({"I13"})  # a leader lacks a message that is not due yet
FORGOTTEN: Final = frozenset({"I11"})  # what was told of leases or tables a later leader does not know

RULES: Final[dict[str, Rule]] = {
    rule.id: rule
    for rule in (
        Rule(
            "R1",
            "An epoch is one incarnation of one writer: a master that restarts needs a new one.",
            ("restarts", "power cuts"),
            CUT | {"I1", "R8"},
            "voters async",
            20,
        ),
        Rule("R2", "A candidate leads only with e seals.", ("elections",), LOST, "sync", 20),
        Rule(
            "R2'",
            "Seals meet every commit: e is voters less copies plus one, and one less is too few.",
            ("elections", "four members"),
            LOST,
            "five",
            20,
        ),
        Rule("R3", "A promise is on disk before it is answered.", ("restarts",), CUT),
        Rule(
            "R3a",
            "After a promise nothing of lower epochs is taken: their streams are closed.",
            ("elections", "restarts"),
            CUT,
            "sync",
            100,
        ),
        Rule(
            "R3b",
            "A promise names its candidate: a second one of the same epoch does not get it.",
            ("a restored store",),
            frozenset({"I1"}),
            "store",
            400,
        ),
        Rule(
            "R3c",
            "A seal for the leader that is followed already has no effect.",
            note="Without it a late request ends a healthy stream, and the follower connects anew; no "
            "invariant depends on that, since the new handshake is as good as the first one (R8).",
        ),
        Rule(
            "R4",
            "Only the greatest (last epoch, end) among the seals leads.",
            ("elections",),
            LOST,
            "sync",
            20,
        ),
        Rule(
            "R5",
            "A leader's (epoch, start) is on its disk before its first entry.",
            ("restarts",),
            CUT,
            "sync",
            20,
        ),
        Rule(
            "R6",
            "A follower's (epoch, start) is on its disk before it reports an end behind that start.",
            ("restarts",),
            CUT,
            "sync",
            20,
        ),
        Rule(
            "R7",
            "Reports count only after adoption, from the start of the epoch on (raft's figure 8).",
            ("figure 8",),
            LOST,
            note="Level 2 has not found it in 1,200 seeds: it takes three leaders and a commit in between.",
        ),
        Rule("R7'", "Reports count only on a connection of the leader's epoch.", ("elections",), CUT),
        Rule(
            "R8",
            "A handshake is answered after it was asked, on its connection.",
            ("restarts",),
            frozenset({"R8"}),
            "sync",
            20,
            note="Alone it costs a member that stops for nothing, since R8b holds.",
        ),
        Rule(
            "R8b",
            "A follower never cuts inside the epoch of the leader that it talks to: it stops.",
            ("restarts",),
            CUT,
            "sync",
            20,
            ("R8",),
            "It covers R8, so it matters only where that is broken.",
        ),
        Rule(
            "R9",
            "Who may have lost acknowledged entries does not vote.",
            ("power cuts",),
            CUT,
            "async",
            40,
        ),
        Rule(
            "R9b",
            "Its vote comes back as its end reaches a commit offset it was told: adoption is too little.",
            ("power cuts",),
            CUT,
            "async",
            450,
        ),
        Rule(
            "R9a",
            "Seats have a uuid: a replaced disk does not vote in the old one's name.",
            ("replaced disks", "leases and a replaced disk"),
            CUT | FORGOTTEN,
            "disks",
            60,
        ),
        Rule(
            "R9a'",
            "Nor does it count, or get the vote as R9 gives it back: its promise is gone.",
            ("replaced disks",),
            CUT,
        ),
        Rule(
            "R10",
            "Voters change by a new epoch, whose election needs seals of the prior ones, too.",
            ("voters change",),
            CUT,
            "voters async",
            40,
        ),
        Rule(
            "R10b",
            "The prior voters are kept with their seats: a replaced disk is none of them.",
            ("a replaced disk comes back",),
            CUT,
            "disks",
            60,
        ),
        Rule(
            "R10c",
            "Elections copy the prior voters.",
            ("voters change",),
            CUT,
            "voters",
            60,
        ),
        Rule(
            "R10d",
            "As long as there are prior voters, nothing else changes.",
            ("voters change twice",),
            CUT,
            "voters",
            100,
        ),
        Rule(
            "R10e",
            "The prior voters are cleared as new ones have adopted the epoch and hold all up to its start.",
            ("voters change",),
            CUT,
            "disks",
            40,
            note="A commit offset that the leader brings along says nothing of that.",
        ),
        Rule(
            "R10f",
            "A prior voter may stand for election, too.",
            (),
            frozenset({"I12"}),
            "voters async",
            150,
            note="If the best log is one of theirs, and a seal of theirs is needed, nobody else can lead.",
        ),
        Rule(
            "R11",
            "Before a handshake is answered, older connections are closed unread, and the cell is cleared.",
            ("dead connections",),
            CUT,
        ),
        Rule(
            "R11b",
            "Only a commit offset that was published after its broker saw the connection returns a vote.",
            ("dead connections",),
            CUT,
        ),
        Rule(
            "R12",
            "A classic slave gets only what is committed.",
            ("an observer",),
            frozenset({"I3"}),
            "observer",
            20,
        ),
        Rule("R12'", "A classic slave never counts.", ("an observer",), LOST, "observer", 100),
        Rule(
            "R14",
            "Once an operator has accepted a loss, an election needs the seals of all voters of its record.",
            ("an accepted loss",),
            CUT,
            note="Level 1 only: that the others are really gone can't be said of a random history.",
        ),
        Rule(
            "R14b",
            "Elections copy that a loss was accepted.",
            ("an accepted loss",),
            CUT,
        ),
        Rule(
            "R14c",
            "That is over as so many voters as commit have adopted an epoch since.",
            ("an accepted loss",),
            CUT,
        ),
        Rule(
            "R14d",
            "Who may have lost something votes in the epoch in which a loss was accepted, and not after it.",
            ("an accepted loss",),
            CUT,
        ),
        Rule(
            "R13",
            "A follower cuts at the consistent point of the epoch lists before it takes entries.",
            ("elections",),
            CUT,
            "sync",
            20,
        ),
        Rule(
            "R15",
            "A store that was copied is another one: it has a seat of its own, and is no voter.",
            ("a copied store",),
            CUT,
        ),
        Rule(
            "R15b",
            "It becomes a voter by a change of voters alone, not as R9 gives a vote back: what was promised"
            " after the copy is forgotten.",
            ("a copied store",),
            CUT,
        ),
        Rule("R16", "What a tool cuts off a log takes the vote.", ("a tool cuts",), CUT),
        Rule(
            "R17",
            "A tool that opens a log for writing takes the vote: that it closes it in order says nothing.",
            ("a tool after a power cut",),
            CUT,
        ),
        Rule(
            "R18",
            "What a power cut may have taken is judged by the weakest flush mode since the whole log was"
            " known to be on disk, not by the one at the start.",
            ("another flush mode",),
            CUT,
        ),
        Rule(
            "R18b",
            "Of the modes of broker and replicator the weaker one holds for both.",
            ("unequal flush modes",),
            CUT,
            along=("R18",),
        ),
        Rule(
            "R19",
            "A cut that a leader of a promised epoch orders keeps the vote.",
            note="No invariant needs it, but two of three that are left could not elect without it"
            " (`tests/unit/test_failover_models.py`).",
        ),
        Rule(
            "R20",
            "Retention removes nothing that is not committed.",
            ("retention",),
            CUT,
            along=("R20b",),
            note="Alone it costs a member that stops for good: its log begins behind where it parts.",
        ),
        Rule(
            "R20b",
            "Where a log begins says nothing of what is committed.",
            ("retention",),
            CUT,
            along=("R20",),
            note="R20 covers it.",
        ),
        Rule(
            "R21",
            "A follower removes nothing that its leader keeps, as far as it was told and has that log.",
            ("what waits",),
            WAITING,
        ),
        Rule(
            "R21b",
            "A leader removes nothing that waits before that is stored again, and committed.",
            ("what waits",),
            WAITING,
        ),
        Rule(
            "R22",
            "Of equal logs the one gives way that lacks what waits in the other.",
            note="No invariant needs it where R21 and R21b hold: it is for logs that older versions have cut"
            " (`tests/unit/test_failover_models.py`).",
        ),
        Rule(
            "Q0",
            "An answer waits until a majority has the change.",
            ("leases", "tables"),
            FORGOTTEN,
        ),
        Rule(
            "Q1",
            "A leader takes part only with members that have promised its epoch.",
            ("leases",),
            FORGOTTEN,
            note="Tables stand without it, since Q1b is about them.",
        ),
        Rule(
            "Q1a",
            "Who has promised another epoch reports nothing more over its older stream.",
            ("leases",),
            FORGOTTEN,
            along=("Q2a",),
            note="Q2a covers it: the older stream ends before the state is handed over on the next one.",
        ),
        Rule(
            "Q1b",
            "A member takes the tables of the leader whose epoch it has promised, and no others.",
            ("tables",),
            FORGOTTEN,
        ),
        Rule(
            "Q2",
            "Reports count over streams of this leadership only: the next one's numbers begin anew.",
            ("leases and late reports",),
            FORGOTTEN,
        ),
        Rule(
            "Q2a",
            "A member has one stream at a time.",
            note="Alone it costs nothing, since Q1a covers it; with Q1a off as well answers are lost.",
        ),
        Rule(
            "Q3",
            "What is there already is told only once a majority has all changes so far.",
            ("leases", "tables"),
            FORGOTTEN,
        ),
        Rule(
            "Q4",
            "Enough members hand their state over before a leader begins, so that they meet every answer.",
            ("leases", "tables"),
            FORGOTTEN,
        ),
        Rule(
            "Q5",
            "A leader writes its tables anew under its own epoch, as its first change.",
            ("tables",),
            FORGOTTEN,
        ),
        Rule(
            "Q5a",
            "Of the tables that are handed over the newest win.",
            ("tables",),
            FORGOTTEN,
        ),
        Rule(
            "Q5b",
            "A leader serves once a majority has its tables.",
            ("tables",),
            FORGOTTEN,
            along=("Q3",),
            note="Q3 covers it for all answers that wait. It keeps calls that don't, of consumers, from "
            "topics and groups that may be taken back.",
        ),
        Rule(
            "Q6",
            "A report, and what a leader counts of itself, is about what is on the disk.",
            ("leases and power cuts",),
            FORGOTTEN,
        ),
        Rule(
            "Q7",
            "Where queues of deleted topics ended goes back with the tables in which they were deleted.",
            ("deletions of topics",),
            frozenset({"I3"}),
        ),
        Rule(
            "Q8",
            "The prior voters are cleared as so many new ones as commit hold what the leader began with.",
            ("leases as voters change", "a power cut as voters change"),
            FORGOTTEN,
        ),
        Rule(
            "Q8a",
            "The leader is one of these only with what is on its own disk.",
            ("a power cut as voters change",),
            FORGOTTEN,
        ),
    )
}
