"""Rules of elections that can be switched off, one at a time, as in `rules.py`: `make sim-elections RULES=1`.

R1 to R21 bear the identifiers of `tests/models/rules.py`, whose models find them as well. Q0 to Q6 concern
what stands beside the log (`cluster/state_quorum.py`, `cluster/leader_state.py`).

Each is looked for in plans of one kind (`operations.py`): `ELECTION_PLANS` says of which; the others in plain
ones.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

from sim.operations import PLANS
from sim.rules import Patch
from whimbrel.broker.cluster.leader_state import LeaderState, MemberStream
from whimbrel.broker.cluster.state_quorum import StateQuorum
from whimbrel.broker.consume import client_positions
from whimbrel.broker.consume.lease_store import LeaseStore
from whimbrel.broker.consume.leases import LeaseTable
from whimbrel.broker.elections import pre_vote
from whimbrel.broker.elections.actions import Action, Facts, Open, State
from whimbrel.broker.elections.leadership import Leadership
from whimbrel.broker.elections.machine import Election
from whimbrel.broker.elections.seals import Seals
from whimbrel.broker.produce.commit import MajorityCommit
from whimbrel.broker.roles import master
from whimbrel.broker.roles.epochs import begin_epoch
from whimbrel.broker.tables.metadata_version import MetadataVersionFile
from whimbrel.broker.timing.levels import Levels
from whimbrel.errors import WhimbrelError
from whimbrel.ha.epochs import encode_epochs
from whimbrel.ha.switching import SwitchingSlave
from whimbrel.model.elections import Suspicion
from whimbrel.model.group_record import NOBODY, VOTERS_MAX, GroupRecord, Voters
from whimbrel.replicator import promises
from whimbrel.replicator.feeder import Feeder
from whimbrel.replicator.follower import Follower
from whimbrel.replicator.promises import Promises
from whimbrel.store import commitlog, divergence
from whimbrel.store.codec import UNIT
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.master_store import MasterStore
from whimbrel.store.seat_file import Seat, SeatFile, may_vote
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.uncommitted import PackedRun

__all__ = ["ELECTION_FIRST_SEEDS", "ELECTION_PLANS", "ELECTION_RULES", "UNSEEN"]


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def lead_again(self: Election, facts: Facts) -> list[Action]:
    """Go on in the epoch that the record names, where it names this member (R1 off)."""
    record = self.view.record
    if record is not None and record.leader == self.member and facts.seat and self.state is State.FOLLOWING:
        self.candidacy = record
        self.go(State.OPENING, facts.now)
        return [Open(record)]
    return consider(self, facts)


def begin_any_epoch(store: MasterStore, voters: Any, term: GroupRecord | None = None) -> int:
    """Begin an epoch that may have been begun before (R1 off)."""
    page, known = store.page, EpochFile(store.root, store.files).load()
    if term is not None and known and known[-1][0] == term.epoch:
        page.leader_epoch, page.leader_start, page.commit = *known[-1], store.visible_end
        page.set_seats(term.voters)
        page.set_voters(dict(term.voters))
        page.leader_log = page.epoch
        return term.epoch
    return begin_epoch(store, voters, term)


def own_seal(self: Seals, candidacy: GroupRecord, now: float) -> tuple[int, str]:
    """Lead with enough seals, whoever has the best log (R4 off)."""
    return self.member if self.member in self.given and self.sealed_by(candidacy) else NOBODY, ""


def sealed_by_ids(self: Seals, record: GroupRecord) -> bool:
    """Return whether enough members have sealed, whatever their disks (R9a off)."""
    return sum(seal.votes for seal in self.given.values()) >= record.seals


class AnySeat(str):
    """A seat that is each other one, too."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False


def keep_in_mind(self: Promises, seat: Seat) -> None:
    """Remember a seat, and put it on disk no more than at the start (R3 off)."""
    self.seat = seat


def promise_beside_a_stream(self: Follower, kept: Promises, epoch: int, candidate: int) -> bool:
    """Promise, and go on with the stream that is there (R3a off)."""
    end = self.log.flushed if self.sync else self.log.end
    kept.promise(epoch, candidate, last_epoch=self.last_epoch(), end=end, flushed=self.log.flushed)
    if self.sock is not None:
        self.leader = self.page.elected
    return True


def save_in_the_cache(self: EpochFile, epochs: Any) -> None:
    """Replace the list without a sync (R5 and R6 off)."""
    fd = self.files.open(self.path, 0o102, 0o644)
    try:
        self.files.ftruncate(fd, 0)
        self.files.write_all(fd, encode_epochs(epochs), 0)
    finally:
        self.files.close(fd)


def adopt_in_mind(self: Follower, core: SwitchingSlave, epochs: Any) -> None:
    """Adopt epochs without writing them down (R6 off)."""
    core.adopt(epochs)
    self.page.last_epoch = epochs[-1][0]


def acks_of_any_epoch(self: SharedPage) -> list[tuple[int, int]]:
    """Count what is below the leader's epoch, too (R7 off)."""
    return [(member, self.cells[cell]) for member, cell in self.look_at_members().counted]


def take_files_apart(self: MasterStore) -> None:
    """Commit what the log holds from before the epoch file by file (R7 off: as a whole it covers that)."""
    take_uncommitted(self)
    waiting = self.uncommitted
    if waiting is None or not waiting.groups:
        return
    end, runs, *rest = waiting.groups.pop()
    size = self.options.commitlog_file_size
    borders = [*range(waiting.committed - waiting.committed % size + size, end, size), end]
    for low, high in zip([0, *borders], borders, strict=False):
        pieces: list[PackedRun] = []
        for queue, entries, _ in runs:
            units = [unit for unit in UNIT.iter_unpack(entries) if low <= unit[0] < high]
            if units:
                pieces.append((queue, b"".join(UNIT.pack(*unit) for unit in units), units[-1][2]))
        waiting.groups.append((high, pieces, *rest))


def regain_at_adoption(self: Follower, kept: Promises, core: SwitchingSlave) -> None:
    """Vote again once the epoch is adopted (R9b off)."""
    if core.epochs and core.epochs[-1][0] == core.leader_epoch:
        kept.regain_vote(core.commit)


def tell_any_commit(self: Feeder, connection: Any) -> int:
    """Tell a commit offset that was published before the connection was seen (R11b off)."""
    core = connection.member
    if core is None:
        return end_for(self, connection)
    core.lead(commit=self.commit, beating=self.quorum)
    return self.end


def cut_without_keeping(*arguments: Any) -> Path:
    """Save nothing of what is cut (I10)."""
    return Path(arguments[0]) / "whimbrel"


def answer_at_once(answer: Any) -> Any:
    """Wait for nobody (Q0 off)."""
    if isinstance(answer, WhimbrelError):
        raise answer
    return answer


def hold_news_only(self: StateQuorum, answer: Any) -> Any:
    """Let an answer wait only where its call has changed something (Q3 off)."""
    number = self.newest()
    before, LAST[self] = LAST.get(self, 0), number
    return answer_at_once(answer) if number == before else hold(self, answer)


def take_no_tables(self: LeaderState, stream: MemberStream, piece: bytes, *, done: bool) -> None:
    """Go on with our own tables (Q5a off)."""
    stream.tables_done = stream.tables_done or done


def sealed_by_prior_ids(self: Seals, record: GroupRecord) -> bool:
    """Return whether enough have sealed, of the prior voters whatever their disks (R10b off)."""
    given = [seal for seal in self.given.values() if seal.votes or record.waives]
    prior = {member for member, _ in record.prior}
    return (
        len({(seal.member, seal.seat) for seal in given}.intersection(record.voters)) >= record.seals
        and len({seal.member for seal in given} & prior) >= record.prior_seals
    )


def stand_without_prior(self: Election, record: GroupRecord, facts: Facts) -> list[Action]:
    """Stand, and forget the prior voters (R10c off)."""
    return stand(self, replace(record, prior=(), prior_acks=0), facts)


def stand_without_loss(self: Election, record: GroupRecord, facts: Facts) -> list[Action]:
    """Stand, and forget that a loss was accepted (R14b off)."""
    return stand(self, replace(record, loss=0), facts)


def change_again(
    self: Leadership, record: GroupRecord, voters: Voters, facts: Facts
) -> tuple[str, list[Action]]:
    """Have other voters take the place of those that a change has named which is not done (R10d off)."""
    if record.prior and voters != record.voters:
        return "", self.name_voters(replace(record, out=()), voters, "the voters change", facts)
    return change_voters(self, record, voters, facts)


def forget_prior_at_once(self: Leadership, facts: Facts) -> list[Action]:
    """Have the prior voters forgotten, whoever has adopted the epoch (R10e off)."""
    pending = self.view.record is not None and self.view.record.prior
    return forget_prior(self, replace(facts, adopted=VOTERS_MAX) if pending else facts)


def forget_loss_at_once(self: Leadership, facts: Facts) -> list[Action]:
    """Have an accepted loss be over, whoever has adopted the epoch (R14c off)."""
    pending = self.view.record is not None and self.view.record.loss
    return forget_prior(self, replace(facts, adopted=VOTERS_MAX) if pending else facts)


def may_stand_after_loss(self: Election, record: GroupRecord, facts: Facts) -> bool:
    """Return whether a member may lead, whatever it has lost since a loss was accepted (R14d off)."""
    return may_stand(self, record, replace(facts, votes=True) if record.loss else facts)


def suspected_after_loss(self: Election, answer: Suspicion, facts: Facts) -> list[Action]:
    """Count a member that hears no leader, whatever it has lost since a loss was accepted (R14d off)."""
    pending = self.view.record is not None and self.view.record.loss
    return suspected(self, replace(answer, votes=True) if pending else answer, facts)


def vote_by_setting(seat: Seat, **about: Any) -> bool:
    """Judge what a power cut has taken by the flush mode of now (R18 off)."""
    return may_vote(replace(seat, flush=""), **about)


LAST: WeakKeyDictionary[StateQuorum, int] = WeakKeyDictionary()
hold = StateQuorum.hold
consider, end_for = Election.consider, Feeder.end_for
take_uncommitted = MasterStore.take_uncommitted
may_stand, suspected = Election.may_stand, Election.suspected
stand, change_voters, forget_prior = Election.stand, Leadership.change_voters, Leadership.forget_prior

ELECTION_RULES: Final[dict[str, tuple[Patch, ...]]] = {
    "R1 a leader that restarts needs a new epoch": (
        (Election, "consider", lead_again),
        (master, "begin_epoch", begin_any_epoch),
    ),
    "R2 a candidate leads only with enough seals": (
        (Seals, "sealed_by", lambda self, _: self.member in self.given),
    ),
    "R3 a promise is on disk before it is answered": (
        (Promises, "save", keep_in_mind),
        (Promises, "note", nothing),
    ),
    "R3a after a promise nothing of lower epochs is taken": (
        (Follower, "keep_promise", promise_beside_a_stream),
    ),
    "R4 only the best log among the seals leads": (
        (Seals, "best", own_seal),
        (pre_vote, "BETTER_S", 0.0),
    ),
    "R5, R6 the list of epochs is on disk before what is in them": ((EpochFile, "save", save_in_the_cache),),
    "R6 a follower writes down which epochs its log is in": ((Follower, "write_epochs", adopt_in_mind),),
    "R7 reports count from the start of the epoch on": (
        (SharedPage, "member_acks", acks_of_any_epoch),
        (MasterStore, "take_uncommitted", take_files_apart),
    ),
    "R9 who may have lost what it acknowledged does not vote": (
        (promises, "may_vote", lambda *_, **__: True),
    ),
    "R9a a replaced disk does not vote": (
        (GroupRecord, "electable", lambda self, member, _: member in self.members),
        (Seals, "sealed_by", sealed_by_ids),
        (SharedPage, "seat_of", lambda *_: AnySeat()),
    ),
    "R9b a vote comes back with all that is committed": ((Follower, "regain_vote", regain_at_adoption),),
    "R10 an election needs seals of the prior voters, too": (
        (GroupRecord, "prior_seals", property(lambda self: 0)),
    ),
    "R10b prior voters are those with their stores": (
        (Seals, "sealed_by", sealed_by_prior_ids),
        (
            GroupRecord,
            "electable",
            lambda self, member, seat: (member, seat) in self.voters or member in dict(self.prior),
        ),
    ),
    "R10c elections copy the prior voters": ((Election, "stand", stand_without_prior),),
    "R10d nothing else changes as long as there are prior voters": (
        (Leadership, "change_voters", change_again),
    ),
    "R10e prior voters are forgotten when new ones have adopted the epoch": (
        (Leadership, "forget_prior", forget_prior_at_once),
    ),
    "R10f a prior voter may stand, too": (
        (GroupRecord, "electable", lambda self, member, seat: (member, seat) in self.voters),
    ),
    "R11b only what was published for this connection returns a vote": (
        (Feeder, "end_for", tell_any_commit),
    ),
    "R13 a log is cut where it parts from the leader's": (
        (SwitchingSlave, "judge", nothing),
        (Follower, "overlap_start", lambda self, _: self.log.end),
    ),
    "R14 after a loss an election needs all voters": (
        (GroupRecord, "seals", property(lambda self: len(self.voters) - self.acks + 1)),
    ),
    "R14b elections copy that a loss was accepted": ((Election, "stand", stand_without_loss),),
    "R14c a loss is over when voters have adopted an epoch since": (
        (Leadership, "forget_prior", forget_loss_at_once),
    ),
    "R14d what is lost later is not accepted": (
        (GroupRecord, "waives", property(lambda self: bool(self.loss))),
        (Election, "may_stand", may_stand_after_loss),
        (Election, "suspected", suspected_after_loss),
    ),
    "R15 a store that was copied is another one": ((SeatFile, "was_copied", property(lambda self: False)),),
    "R16 what a tool cuts takes the vote": ((commitlog, "take_vote", nothing),),
    "R17 a tool that opens a log takes the vote": ((commitlog, "take_vote", nothing),),
    "R18 the weakest flush mode since the log was on disk counts": ((promises, "may_vote", vote_by_setting),),
    "R18b of broker and replicator the weaker mode counts": (
        (Promises, "weakest_flush", lambda self: self.flush),
    ),
    "R21 a follower keeps what its leader keeps": (
        (
            Follower,
            "before_removal",
            lambda self, begin: min(begin, max(self.page.heard_commit, self.page.confirmed)),
        ),
    ),
    "a majority holds what is committed": ((MajorityCommit, "advance", lambda self: commit_alone(self)),),
    "Q0 answers wait until a majority has the change": (
        (StateQuorum, "hold", lambda self, answer: answer_at_once(answer)),
        (StateQuorum, "hold_later", lambda self, made: made),
    ),
    "Q1 a stream bears the epoch that its member has promised": ((LeaderState, "check_epoch", nothing),),
    "Q3 what is done already waits as well": ((StateQuorum, "hold", hold_news_only),),
    "Q4 enough hand their state over before a leader leads": ((LeaderState, "missing", lambda self: ""),),
    "Q5 a leader's tables are a majority's before it takes changes": (
        (LeaderState, "unstored", lambda self: ""),
    ),
    "Q5a the newest tables win": ((LeaderState, "take_piece", take_no_tables),),
    "Q6 a report is of what is on the disk": ((LeaseStore, "durable", property(lambda self: self.number)),),
    "Q10 a delay level looks back for what its log has not delivered": (
        (Levels, "look_back", lambda self, level, until: setattr(level, "trusted", True)),
    ),
    "Q9 unknown is not nobody: a late commit moves nothing back": ((client_positions, "UNHEARD_S", 0),),
    "Q8 epochs of lease states are a leader's and a counter": (
        (LeaseStore, "next_epoch", lambda self, epoch: epoch + 1),
        (LeaseTable, "join", lambda self, *entries, **how: join_any_epoch(self, *entries, **how)),
    ),
    "Q7 tables that are older than their version have none": ((MetadataVersionFile, "forget", nothing),),
    "what is cut is kept": ((divergence, "save", cut_without_keeping),),
}
# Kinds of plans in which rules are looked for.
ELECTION_PLANS: Final[dict[str, str]] = {
    rule: rule.partition(" ")[0] for rule in ELECTION_RULES if rule.partition(" ")[0] in PLANS
}
# Seeds, of the kinds of plans above, before which none notices.
ELECTION_FIRST_SEEDS: Final[dict[str, int]] = {
    "Q8 epochs of lease states are a leader's and a counter": 5,
    "R1 a leader that restarts needs a new epoch": 11,
    "R2 a candidate leads only with enough seals": 58,
    "R3a after a promise nothing of lower epochs is taken": 3,
    "R4 only the best log among the seals leads": 8,
    "R9a a replaced disk does not vote": 7,
    "R9b a vote comes back with all that is committed": 17,
    "R10 an election needs seals of the prior voters, too": 2,
    "R10b prior voters are those with their stores": 2,
    "R10d nothing else changes as long as there are prior voters": 2,
    "R10e prior voters are forgotten when new ones have adopted the epoch": 3,
    "R10f a prior voter may stand, too": 2,
    "R14b elections copy that a loss was accepted": 2,
    "R14c a loss is over when voters have adopted an epoch since": 2,
}
# Rules that no seed is known to notice: looked for by name only. The models of `tests/models` find those of
# them that begin with R, units state the others.
UNSEEN: Final = frozenset(
    rule for rule in ELECTION_RULES if rule.startswith(("R11b ", "R14d ", "Q1 ", "Q3 ", "Q4 ", "Q5", "Q6 "))
)


def commit_alone(commit: MajorityCommit) -> bool:
    """Commit what the leader has written."""
    commit.copies = 1
    return advance(commit)


advance = MajorityCommit.advance


def join_any_epoch(self: LeaseTable, *entries: Any, **how: Any) -> bytes:
    """Merge entries of greater epochs, too, at a leader that has begun (Q8 off)."""
    return join(self, *entries, **how | {"no_greater_epoch": False})


join = LeaseTable.join
