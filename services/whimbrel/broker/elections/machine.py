"""What one member of a group does about its leader. Pure: events in, actions out.

    GATHERING --all voters answer, I am the best of them: record swapped in--> SEALING    once for a group
    FOLLOWING --no leader is heard, I may lead--> ASKING
    ASKING    --enough others hear none either, none of them is better--> SWAPPING
              --one that leads or opens answers, or a newer record comes--> FOLLOWING
    SWAPPING  --the record names me, in a new epoch--> SEALING        --else--> FOLLOWING
    SEALING   --enough voters have sealed, I am the best of them--> OPENING
              --another one is: the record says so (`prefer`)--> FOLLOWING
              --a higher epoch was promised, or `SEALING_S` over--> FOLLOWING
    OPENING   --the log is ours, the epoch is begun in it--> LEADING  --it can't be--> CLOSING
    LEADING   --a higher epoch is heard of, or the record names another one--> CLOSING
              --the record has other voters, in a new epoch of ours--> CLOSING
    CLOSING   --the log is given back--> FOLLOWING, or SEALING where the voters change

The states stand here, and what a member promises. What it decides by is in parts, each with its own rule:

    group_view.py    the record as the coordinator has told it, and the epochs that were heard of
    pre_vote.py      whether it stands: no leader is heard, and enough others hear none either
    founding.py      the first record of a group
    seals.py         who leads by the seals of a candidacy
    contact.py       whether a leader reaches anybody
    leadership.py    what a leader has changed in the record: voters, prior ones, itself
    accepted_loss.py the record of a member that an operator names, where the others may be lost

**Safety rests on epochs and on quorums that meet, never on a clock.** An epoch has one candidate, since a
compare-and-set of the record makes it; it leads only with `GroupRecord.seals` promises of voters to take
nothing from lower epochs any more (R2, R3), and only with the log that goes on furthest among them (R4), by
(last epoch, end). So whatever any `acks` voters acknowledged is in the log of whoever leads, from where that
begins: of logs that go on equally far, the one gives way that begins behind what still waits in another
(R22). Times only say when somebody tries. The rules by number, with what happens where one is missing, are in
`tests/models/rules.py`; `replicator/promises.py` keeps the promises, `produce/commit.py` counts copies.
"""

from collections.abc import Collection
from typing import Final

from whimbrel.broker.elections.accepted_loss import record_with_loss
from whimbrel.broker.elections.actions import (
    Action,
    Close,
    Facts,
    Open,
    Promise,
    ReadRecord,
    StartStream,
    State,
    StopStream,
    Swap,
)
from whimbrel.broker.elections.contact import ISOLATED, Contact
from whimbrel.broker.elections.founding import first_record
from whimbrel.broker.elections.group_view import GroupView
from whimbrel.broker.elections.leadership import Leadership
from whimbrel.broker.elections.pre_vote import PreVote
from whimbrel.broker.elections.seals import SEALING_S, Seals
from whimbrel.model.elections import SealAnswer, Suspicion
from whimbrel.model.group_record import EPOCH_MAX, NOBODY, GroupRecord, Voters, ids_text

__all__ = ["Election"]

REST_S: Final = 5.0  # a member that could not open its log leaves others as long to stand


class Election:
    """The machine of one member.

    Every event returns what is to be done. After `Swap`, `Promise`, `Open` and `Close` the one that asked
    waits for the outcome; there is no more than one of them under way. Questions may stay without an answer.

    Attributes:
        configured: ids of those that vote in a group which is still to be made, its own among them.
        state, since: where it is, and when it came to that.
        why: the last reason why it does not stand or lead, for people.
        trigger: why it stands.
        candidacy: the record that it swaps in, then gathers seals for, and leads by.
        rests_until: it does not stand before.
        emptying: its store is being emptied.
        view, pre_vote, seals, contact, leadership: the parts; see above.
    """

    def __init__(self, member: int, configured: frozenset[int], copies_min: int = 0) -> None:
        """Follow, and know nothing yet.

        Args:
            member: its id.
            copies_min: voters that are away are taken out while so many copies still commit; 0: never.
        """
        self.member, self.configured = member, configured
        self.view, self.seals, self.contact = GroupView(member), Seals(member), Contact()
        self.pre_vote, self.leadership = PreVote(self.view), Leadership(self.view, copies_min)
        self.state, self.why, self.trigger = State.FOLLOWING, "", ""
        self.since = self.rests_until = float("-inf")
        self.candidacy: GroupRecord | None = None
        self.emptying = False

    @property
    def epoch(self) -> int:
        """The epoch that it leads, or wants to."""
        return self.candidacy.epoch if self.candidacy is not None else 0

    @property
    def named_epoch(self) -> int:
        """The epoch that it leads or is about to, with other voters for instance."""
        change = self.leadership.change
        return self.epoch if change is None else change.epoch

    @property
    def leads(self) -> bool:
        """Whether it leads, or opens its log to."""
        return self.state in (State.OPENING, State.LEADING)

    @property
    def owns_log(self) -> bool:
        """Whether the broker has the log, so that no promise can be made."""
        return self.state in (State.OPENING, State.LEADING, State.CLOSING)

    # Events

    def begin(self, now: float) -> None:
        """The process has started."""
        self.since = now
        self.pre_vote.hear(now)

    def tick(self, facts: Facts) -> list[Action]:
        """Time has passed; to be called every `ASK_APART_S` or sooner."""
        match self.state:
            case State.GATHERING:
                return self.gather(facts)
            case State.FOLLOWING:
                return self.consider(facts)
            case State.ASKING:
                return self.ask(facts)
            case State.SEALING:
                return self.ask_seals(facts)
            case State.LEADING:
                wanted = self.leadership.tick(facts, isolated=self.contact.isolated)
                contact = self.contact.look(self.view.others, facts.now)
                self.why = ISOLATED if StopStream() in contact else self.why
                return [*contact, *wanted]
        return []

    def learned(self, record: GroupRecord | None, revision: int, facts: Facts) -> list[Action]:
        """The coordinator has told the record, or that there is none."""
        if not self.view.told(record, revision, facts.now) or record is None:
            return []
        if actions := self.deposed():
            return actions
        asking = self.state is State.ASKING and record.leader != NOBODY  # else somebody has resigned
        if asking or (self.state is State.SEALING and record.epoch > self.epoch):
            self.follow(facts.now, f"member {record.leader} stands in epoch {record.epoch}")
        if self.state is State.GATHERING:
            self.follow(facts.now, "the group was made")
        return []

    def suspected(self, answer: Suspicion, facts: Facts) -> list[Action]:
        """A member has answered what it hears."""
        self.view.note_epoch(answer.epoch)
        if self.state not in (State.GATHERING, State.ASKING):
            return self.reached(facts.now)
        leads = self.pre_vote.note(answer)
        if self.state is State.GATHERING:
            return self.gather(facts)
        if leads:
            self.follow(facts.now, f"member {answer.member} leads, or is about to")
            self.pre_vote.led(facts.now)
            return []
        return self.ask(facts)

    def swapped(self, done: bool, record: GroupRecord | None, revision: int, facts: Facts) -> list[Action]:
        """The coordinator has answered a swap; a swap whose outcome is not known was not done."""
        candidacy = self.candidacy
        self.view.told(record, revision, facts.now)
        if self.state is not State.SWAPPING:  # of a leader, or too late
            self.leadership.settled(record)
            return self.deposed()
        if not done or candidacy is None or record != candidacy:  # the last: of an earlier candidacy
            self.follow(facts.now, "another member was faster, or the coordinator did not answer")
            return []
        if candidacy.epoch <= facts.promised:
            self.follow(facts.now, f"epoch {facts.promised} was promised meanwhile")
            return []
        return self.gather_seals(candidacy, facts)

    def promised(self, answer: SealAnswer, facts: Facts) -> list[Action]:
        """Our own promise is on disk, or could not be made."""
        if self.state is not State.SEALING or answer.promised != self.epoch:
            return []
        if not answer.sealed or answer.promised_to != self.member:
            self.follow(facts.now, answer.why or "our own promise could not be put on disk")
            return []
        self.seals.note(answer)
        return self.ask_seals(facts)

    def sealed(self, answer: SealAnswer, facts: Facts) -> list[Action]:
        """A member has answered a request for its seal."""
        self.view.note_epoch(answer.promised)
        if self.state is not State.SEALING:
            return []
        if answer.promised > self.epoch:
            self.follow(facts.now, f"member {answer.member} has promised epoch {answer.promised}")
            return []
        if answer.sealed and (answer.promised, answer.promised_to) == (self.epoch, self.member):
            self.seals.note(answer)
            return self.look_at_seals(facts)
        self.why = f"member {answer.member}: {answer.why}"
        return []

    def opened(self, facts: Facts) -> list[Action]:
        """The log is ours, and our epoch begun in it."""
        self.go(State.LEADING, facts.now)
        self.why = ""
        self.leadership.begin(facts.now, self.seals.asked_at)
        self.contact.begin(facts.now)
        return self.deposed()

    def open_failed(self, facts: Facts) -> None:
        """The log could not be opened; `closed` follows. Others may do better."""
        self.state, self.rests_until = State.CLOSING, facts.now + REST_S

    def closed(self, facts: Facts, why: str = "") -> list[Action]:
        """The log is given back, or could not be opened."""
        change = self.leadership.end()
        self.follow(facts.now, why or self.why)
        if change is not None and change == self.view.record and change.epoch > facts.promised:
            return self.gather_seals(change, facts)
        return []

    def heard_epoch(self, epoch: int) -> list[Action]:
        """A higher epoch may have been heard of: from a member's stream, a nameserver, a request."""
        self.view.note_epoch(epoch)
        if self.state is State.LEADING and epoch > self.epoch:
            return self.close(f"epoch {epoch} was heard of")
        return []

    def asked_to_seal(self, epoch: int, candidate: int, facts: Facts) -> tuple[str, list[Action]]:
        """A candidate asks for a seal.

        Returns:
            Why there is none now, "" where the promise is to be made (`Promise` is among the actions, or the
            promise is on disk already); and what is to be done.
        """
        if epoch < facts.promised or (
            epoch == facts.promised and facts.promised_to not in (candidate, NOBODY)
        ):
            return f"epoch {facts.promised} is promised to member {facts.promised_to}", []
        if self.emptying:
            return "its store is being emptied", []
        record = self.view.record
        if record is not None and record.epoch == epoch and record.leader not in (candidate, NOBODY):
            return f"the record names member {record.leader} for epoch {epoch}", []
        if not self.view.plausible(epoch, facts.last_epoch):
            return f"epoch {epoch} is too far beyond what this member knows of", []
        if self.state is State.CLOSING or (self.state is State.OPENING and epoch > self.epoch):
            self.view.note_epoch(epoch)
            return "it gives its log back", []
        if self.state is State.LEADING:
            if epoch <= self.epoch:
                return f"it leads epoch {self.epoch}", []
            return "it gives its log back", self.heard_epoch(epoch)
        if self.state is State.OPENING:
            return f"it is about to lead epoch {self.epoch}", []
        self.view.note_epoch(epoch)
        if self.state is State.SEALING and epoch <= self.epoch:
            return f"it stands in epoch {self.epoch} itself", []
        self.follow(facts.now, f"member {candidate} stands in epoch {epoch}")
        self.pre_vote.sealed(facts.now)
        if (epoch, candidate) == (facts.promised, facts.promised_to):
            return "", []
        return "", [Promise(epoch, candidate)]

    def log_lost(self, facts: Facts) -> list[Action]:
        """Let another one lead: our log takes nothing more before the replicator has opened it anew."""
        record = self.view.record
        if self.state is not State.LEADING or record is None:
            return []
        swap = Swap(record.resigned(NOBODY), self.view.revision)
        return [swap, *self.close("the disk refused a sync of the log, and what it covered is lost")]

    def reached(self, now: float) -> list[Action]:
        """A member or the coordinator has answered, if only by a refusal."""
        if not self.contact.reached(now) or self.state is not State.LEADING:
            return []
        self.why = ""
        return [StartStream(), ReadRecord()]  # others may have elected meanwhile

    # What operators ask

    def change_voters(self, voters: Voters, facts: Facts) -> tuple[str, list[Action]]:
        """Have other members vote.

        Returns:
            Why that is not to be, "" where it is or nothing changes; and what is to be done.
        """
        record = self.view.record
        if self.state is not State.LEADING or record is None:
            return "this member does not lead", []
        return self.leadership.change_voters(record, voters, facts)

    def begin_emptying(self, epoch: int, leader: int) -> str:
        """Let our store be emptied, as the leader asks; return why it is not to be, "" where it is.

        A member must not be standing meanwhile: the log that it was to lead with is gone.
        """
        record = self.view.record
        if record is None or (record.epoch, record.leader) != (epoch, leader):
            return f"member {leader} does not lead epoch {epoch}, as far as this member knows: try again"
        if self.state is not State.FOLLOWING:
            return f"this member is {self.state.value}, and does not only follow"
        if self.emptying:
            return "its store is being emptied already"
        self.emptying = True
        return ""

    def emptied(self) -> None:
        """Our store is empty, or could not be emptied."""
        self.emptying, self.why = False, ""

    def forced(
        self, answers: dict[int, Suspicion], chosen: Collection[int], facts: Facts
    ) -> tuple[str, GroupRecord | None]:
        """Return the record with which we would lead without those that do not answer, or why we can't; see
        `record_with_loss`."""
        record = self.view.record
        if record is None or not facts.seat or facts.group not in ("", record.group):
            return "this member has no record of the group, or no store of it", None
        if self.state not in (State.FOLLOWING, State.ASKING, State.LEADING) or self.emptying:
            return f"this member is {self.state.value}: try again in a few seconds", None
        if record.paused:
            return "elections are paused: `whimbrel replication resume` allows them again", None
        hearing = [self.member] * (not self.silent(facts))
        hearing += [member for member, answer in answers.items() if not answer.silent]
        if hearing:
            return f"member {ids_text(hearing)} hears a leader, or did a moment ago: it is not needed", None
        for answer in answers.values():
            self.view.note_epoch(answer.epoch)
        return record_with_loss(record, self.member, answers, chosen, facts, self.view.known_epoch)

    def force(self, record: GroupRecord, facts: Facts) -> list[Action]:
        """Have the coordinator take what `forced` has returned; a leader without a majority begins anew."""
        if self.state is State.LEADING:
            return self.leadership.wants(record)
        self.trigger = record.history[0].why
        return self.propose(record, self.view.revision, facts.now)

    # Standing

    def silent(self, facts: Facts, *, asked: bool = False) -> str:
        """Return why we hear no leader; "" while there is, or may be, one.

        Args:
            asked: by another member, which has waited for as long as it waits itself.
        """
        if self.leads and not facts.seat:
            return f"the replicator of member {self.member} is gone"
        if self.leads and facts.alone:  # it has ceased to beat, and keeps nobody from standing
            return f"too few members report to member {self.member}"
        if self.leads and self.contact.isolated:
            return f"member {self.member} reaches nobody"
        changing = self.leadership.change is not None
        if self.leads or self.state in (State.SWAPPING, State.SEALING) or changing:
            return ""
        return self.pre_vote.silent(facts, asked=asked)

    def agrees(self, facts: Facts) -> bool:
        """Return whether a candidate that asks may count us among those that hear no leader."""
        return bool(self.silent(facts, asked=True))

    def consider(self, facts: Facts) -> list[Action]:
        """Stand where it has to be."""
        record = self.view.record
        if self.view.revision < 0 or not facts.seat:
            return []
        if record is None:
            if facts.group:
                self.why = (
                    f"the coordinator has no record of group {facts.group}, which this store belongs to:"
                    " put the newest record back, as docs/failover.md says"
                )
            elif self.member in self.configured:
                self.go(State.GATHERING, facts.now)
                self.pre_vote.begin()
                return self.gather(facts)
            return []
        if not self.may_stand(record, facts) or facts.now < self.rests_until:
            return []
        self.trigger = self.silent(facts)
        if not self.trigger or self.pre_vote.yields(record, facts.now):
            return []
        self.go(State.ASKING, facts.now)
        self.pre_vote.begin()
        self.candidacy = None
        return self.ask(facts)

    def may_stand(self, record: GroupRecord, facts: Facts) -> bool:
        """Return whether we may lead at all; `why` says why not."""
        barred = self.pre_vote.barred(record, facts, emptying=self.emptying)
        self.why = barred or self.why
        return not barred

    def ask(self, facts: Facts) -> list[Action]:
        """Ask the others what they hear, and stand once enough hear no leader."""
        record = self.view.record
        if record is None or not self.silent(facts) or not self.may_stand(record, facts):
            self.follow(facts.now, self.why)
            self.pre_vote.hear(float("-inf"))  # nothing was heard that would have to be waited for
            return []
        if self.pre_vote.succeeds(record, facts, self.since):
            return self.stand(record, facts)
        return self.pre_vote.ask(self.view.others, facts.now)

    def gather(self, facts: Facts) -> list[Action]:
        """Make the group once all that are to vote have told their stores, if ours is the best log."""
        why, record = first_record(self.member, self.configured, self.pre_vote.suspicions, facts)
        if record is not None:
            # Only where there is none: a late swap may have made one.
            return self.propose(record, 0, facts.now)
        self.why = why
        return self.pre_vote.ask(self.configured - {self.member}, facts.now)

    def stand(self, record: GroupRecord, facts: Facts) -> list[Action]:
        """Have the coordinator name us in a new epoch."""
        epoch = max(record.epoch, facts.promised, self.view.known_epoch, facts.last_epoch) + 1
        if epoch > EPOCH_MAX:
            self.follow(facts.now, f"epoch {epoch - 1} is the last there can be")
            return []
        named = record.led_by(self.member, epoch, at_ms=facts.wall_ms, why=self.trigger)
        return self.propose(named, self.view.revision, facts.now)

    def propose(self, record: GroupRecord, revision: int, now: float) -> list[Action]:
        """Have the coordinator put a record that names us in the place of that revision."""
        self.candidacy = record
        self.go(State.SWAPPING, now)
        return [Swap(record, revision)]

    # Seals

    def gather_seals(self, candidacy: GroupRecord, facts: Facts) -> list[Action]:
        """Promise ourselves to the epoch in which the record names us, and ask the others to."""
        self.candidacy = candidacy
        self.go(State.SEALING, facts.now)
        self.seals.begin()
        return [Promise(candidacy.epoch, self.member), *self.ask_seals(facts)]

    def ask_seals(self, facts: Facts) -> list[Action]:
        """Ask for the seals that are missing; give up after a while."""
        candidacy = self.candidacy
        assert candidacy is not None
        if facts.now - self.since > SEALING_S:
            given = ids_text(self.seals.given)
            self.follow(facts.now, f"too few sealed epoch {candidacy.epoch}: {given}; {self.why}")
            return []
        return self.look_at_seals(facts) or self.seals.ask(candidacy, facts.now)

    def look_at_seals(self, facts: Facts) -> list[Action]:
        """Lead, or resign, once there are enough seals."""
        candidacy = self.candidacy
        assert candidacy is not None
        best, why = self.seals.best(candidacy, facts.now)
        if best == NOBODY:
            return []
        if best == self.member:
            self.go(State.OPENING, facts.now)
            return [Open(candidacy)]
        self.follow(facts.now, why)
        return [Swap(candidacy.resigned(best), self.view.revision)]

    # Steps

    def go(self, state: State, now: float) -> None:
        self.state, self.since = state, now

    def follow(self, now: float, why: str) -> None:
        """Follow whoever leads; silence is counted anew."""
        if self.state is not State.FOLLOWING:
            self.go(State.FOLLOWING, now)
        self.why, self.trigger, self.candidacy = why, "", None
        self.pre_vote.hear(now)

    def deposed(self) -> list[Action]:
        """Stop leading where the record names another leader, or another epoch."""
        why = self.leadership.deposed(self.epoch) if self.state is State.LEADING else ""
        return self.close(why) if why else []

    def close(self, why: str) -> list[Action]:
        """Stop leading."""
        self.state, self.why = State.CLOSING, why
        return [Close(why)]
