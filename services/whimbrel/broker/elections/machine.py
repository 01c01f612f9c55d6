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

**Safety rests on epochs and on quorums that meet, never on a clock.** An epoch has one candidate, since a
compare-and-set of the record makes it; it leads only with `GroupRecord.seals` promises of voters to take
nothing from lower epochs any more (R2, R3), and only with the log that goes on furthest among them (R4), by
(last epoch, end). So whatever any `acks` voters acknowledged is in the log of whoever leads, from where that
begins: of logs that go on equally far, the one gives way that begins behind what still waits in another
(R22). Times only say when somebody tries. The rules by number, with what happens where one is missing, are in
`tests/models/rules.py`; `replicator/promises.py` keeps the promises, `produce/commit.py` counts copies.

**When a member stands.** It has heard no leader for `silent_s`, which differs by member so that two seldom
stand at once, while those whom it asks agree after `LEAST_SILENT_S`; or its stream has ended and no
nameserver knows of a leader any more, which is so within milliseconds of a kill; or the record says that the
leader has resigned. In the last two cases it gives a member that it has just promised itself to `OPENING_S`
to open its log; so it does with one that the record has just named, which may need nobody's promise but its
own: of two voters each can lead without having asked the other, and they would take the lead from each other
for ever. Then it asks all others (`Suspect`): enough of them must be silent as well, so that a member which
alone is cut off disturbs nobody; only those count whose seals would. One with a better log is left to stand
itself, for `BETTER_S`.

Where `copies_min` says so, a leader takes a voter out that has been away for `OUT_S`, one at a time, by such
a change: as long as `copies_min` copies still commit, and enough of the present voters are there to seal it.
So the survivor of two goes on alone: it has all that both had committed. The other one follows when it is
back, and an operator makes it a voter again.

**An operator may accept loss** where no election can succeed any more (`accepted_loss.py`). As long as the
record's `loss` stands, an election needs the seals of all its voters (R14), and takes the best log among
them, so no more is given up than was. The leader has it cleared once enough of them have adopted its epoch
(R14c); from then on any `seals` of them meet those.

**A store may be emptied** at an operator's request (`emptying`): the member keeps its promises, and does not
vote until it has all that is committed (R9), as after a power cut that left nothing. It must not be standing
meanwhile: the log that it was to lead with is gone.

**A leader that reaches nobody** tells no follower that it leads (`isolated`). Followers hear its replicator,
which may be on another host or in another container than the broker: while the broker alone is cut off they
would hear a leader that no client reaches. So a leader asks all other members every `CONTACT_APART_S`, and
the coordinator too once none of them has answered. Where for `ISOLATED_S` nobody has, and `CONTACTS` rounds
were asked in it, its replicator ends the streams, and the others elect. It leads on until they have: one
answer of anybody, a refusal too, and the streams begin again. A coordinator that is away costs no leader
whose members answer, members that are away none whose coordinator does; where all are away nobody could be
elected, and little be committed. What is safe does not depend on it: without streams it only commits nothing.

**Voters change** by a new epoch of the leader's, whose record keeps the prior ones (R10). It gathers seals of
both, and has the prior ones forgotten once enough of the new ones have adopted its epoch (`Facts.adopted`): a
commit offset that it brought along says nothing of them. Until then nothing else changes.

A member whose record or promise is not to be had, whose store is no voter's, or which may have lost what it
acknowledged (R9), never stands. What it answers to `Seal` then does not count, but it promises all the same.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

from whimbrel.broker.elections.accepted_loss import record_with_loss
from whimbrel.broker.elections.actions import (
    Action,
    AskSeals,
    AskSuspicions,
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
from whimbrel.model.elections import SealAnswer, Suspicion
from whimbrel.model.group_record import EPOCH_MAX, NOBODY, GroupRecord, Voters, ids_text, majority

__all__ = ["Election", "silent_s"]

SILENT_S: Final = 2.5  # without a frame of a leader, which sends one every half second
SPREAD: Final = 0.2  # of it, more or less, by member
# Who is asked agrees after the shortest of these times: only who asks has waited for its own. Else the
# slowest of those that an election needs would decide when it begins.
LEAST_SILENT_S: Final = SILENT_S * (1 - SPREAD)
LED_S: Final = 2.0  # a member that hears no leader asks again so long after the leader said that it leads
ASK_APART_S: Final = 0.1  # between two questions to the same member
BETTER_S: Final = 1.5  # a member with a better log is given so long to stand
PREFER_S: Final = 2.0  # as is the one that a candidate which resigned let go first
# For what waits nobody gives way to the same member again before: it may not be able to lead.
GIVE_WAY_APART_S: Final = 30.0
OPENING_S: Final = 2.0  # a member that we have promised ourselves to opens its log in so long
SEALING_S: Final = 2.0  # then a candidate gives up
REST_S: Final = 5.0  # a member that could not open its log leaves others as long to stand
OUT_S: Final = 15.0  # a voter that is away for so long may be taken out
# Between two rounds of questions of a leader that only has to know whether it reaches anybody.
CONTACT_APART_S: Final = 0.4
ISOLATED_S: Final = 1.2  # without an answer of anybody; more than the second by which a busy machine is late
CONTACTS: Final = 3  # rounds without an answer, too: a broker that has slept itself has not asked
REPLICA_GONE_S: Final = 1.0  # a leader resigns whose replicator is away for longer than a restart takes
# What others say of epochs raises ours by no more at a time. Each epoch stands in the record before anybody
# promises it, so only the record of a coordinator that was set back is further behind.
EPOCH_STEP_MAX: Final = 1000


def silent_s(member: int) -> float:
    """Return how long a member hears no leader before it stands, in seconds."""
    return SILENT_S * (1 - SPREAD + 2 * SPREAD * (member * 5 % 11) / 10)


@dataclass(slots=True)
class Election:
    """The machine of one member.

    Every event returns what is to be done. After `Swap`, `Promise`, `Open` and `Close` the one that asked
    waits for the outcome; there is no more than one of them under way. Questions may stay without an answer.

    Attributes:
        member: its id.
        configured: ids of those that vote in a group which is still to be made, its own among them.
        copies_min: voters that are away are taken out while so many copies still commit; 0: never.
        record, revision: as the coordinator has told last.
        known_epoch: the highest that was heard of.
        why: the last reason why it does not stand or lead, for people.
    """

    member: int
    configured: frozenset[int]
    copies_min: int = 0
    state: State = State.FOLLOWING
    record: GroupRecord | None = None
    revision: int = -1  # before the coordinator has told
    known_epoch: int = 0
    why: str = ""
    since: float = float("-inf")  # of the state
    quiet_since: float = float("-inf")  # what was heard before counts as heard then
    sealed_at: float = float("-inf")  # when we promised ourselves to another member
    preferred_at: float = float("-inf")  # when the record began to prefer another member
    named_at: float = float("-inf")  # when it began to name another leader, since we know it
    asked_at: float = float("-inf")
    trigger: str = ""  # why it stands
    suspicions: dict[int, Suspicion] = field(default_factory=dict)
    seals: dict[int, SealAnswer] = field(default_factory=dict)
    candidacy: GroupRecord | None = None  # what it swaps in, then what it gathers seals for
    replica_at: float = float("-inf")  # when the leader's replicator was there last
    rests_until: float = float("-inf")  # it does not stand before
    change: GroupRecord | None = None  # with other voters, which the coordinator is to take
    emptying: bool = False  # its store is being emptied
    present_at: dict[int, float] = field(
        default_factory=dict
    )  # when members were connected last; of a leader
    reached_at: float = float("-inf")  # when somebody answered last; of a leader
    contact_at: float = float("-inf")  # when it asked last whether anybody does
    unanswered: int = 0  # rounds of such questions since anybody has answered
    isolated: bool = False  # it leads, and reaches nobody
    gave_way_at: dict[int, float] = field(default_factory=dict)  # to members, for what waits in their logs
    # Of a leader: how many messages wait in logs of other members and not in its own, as far as it was told.
    kept_elsewhere: dict[int, int] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The epoch that it leads, or wants to."""
        return self.candidacy.epoch if self.candidacy is not None else 0

    @property
    def named_epoch(self) -> int:
        """The epoch that it leads or is about to, with other voters for instance."""
        return self.epoch if self.change is None else self.change.epoch

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
        self.quiet_since = self.since = now

    def tick(self, facts: Facts) -> list[Action]:
        """Time has passed; to be called every `ASK_APART_S` or sooner."""
        if self.state is State.GATHERING:
            return self.gather(facts)
        if self.state is State.FOLLOWING:
            return self.consider(facts)
        if self.state is State.ASKING:
            return self.ask(facts)
        if self.state is State.SEALING:
            return self.ask_seals(facts)
        if self.state is State.LEADING:
            wanted = self.look_at_replica(facts) or self.forget_prior(facts) or self.take_out(facts)
            return [*self.keep_contact(facts), *wanted]
        return []

    def learned(self, record: GroupRecord | None, revision: int, facts: Facts) -> list[Action]:
        """The coordinator has told the record, or that there is none."""
        if record is None:
            if self.record is None:
                self.revision = 0
            return []
        if self.record is not None and revision <= self.revision:
            return []
        self.take(record, revision, facts.now)
        if actions := self.deposed(record):
            return actions
        asking = self.state is State.ASKING and record.leader != NOBODY  # else somebody has resigned
        if asking or (self.state is State.SEALING and record.epoch > self.epoch):
            self.follow(facts.now, f"member {record.leader} stands in epoch {record.epoch}")
        if self.state is State.GATHERING:
            self.follow(facts.now, "the group was made")
        return []

    def suspected(self, answer: Suspicion, facts: Facts) -> list[Action]:
        """A member has answered what it hears."""
        self.note_epoch(answer.epoch)
        if self.state not in (State.GATHERING, State.ASKING):
            return self.reached(facts.now)
        self.suspicions[answer.member] = answer
        record = self.record
        if self.state is State.GATHERING or record is None:
            return self.gather(facts)
        if answer.member == record.leader and not answer.silent and answer.epoch >= record.epoch:
            self.follow(facts.now, f"member {answer.member} leads, or is about to")
            self.quiet_since = facts.now - silent_s(self.member) + LED_S
            return []
        return self.ask(facts)

    def swapped(self, done: bool, record: GroupRecord | None, revision: int, facts: Facts) -> list[Action]:
        """The coordinator has answered a swap; a swap whose outcome is not known was not done."""
        candidacy = self.candidacy
        if record is not None and revision > self.revision:
            self.take(record, revision, facts.now)
        if self.state is not State.SWAPPING:  # of a leader, or too late
            if record != self.change:
                self.change = None
            return [] if self.record is None else self.deposed(self.record)
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
        self.seals[self.member] = answer
        return self.ask_seals(facts)

    def sealed(self, answer: SealAnswer, facts: Facts) -> list[Action]:
        """A member has answered a request for its seal."""
        self.note_epoch(answer.promised)
        if self.state is not State.SEALING:
            return []
        if answer.promised > self.epoch:
            self.follow(facts.now, f"member {answer.member} has promised epoch {answer.promised}")
            return []
        if answer.sealed and (answer.promised, answer.promised_to) == (self.epoch, self.member):
            self.seals[answer.member] = answer
            return self.look_at_seals(facts)
        self.why = f"member {answer.member}: {answer.why}"
        return []

    def opened(self, facts: Facts) -> list[Action]:
        """The log is ours, and our epoch begun in it."""
        self.go(State.LEADING, facts.now)
        self.why, self.replica_at, self.present_at = "", facts.now, {}
        self.reached_at, self.unanswered, self.isolated = facts.now, 0, False
        return [] if self.record is None else self.deposed(self.record)

    def open_failed(self, facts: Facts) -> None:
        """The log could not be opened; `closed` follows. Others may do better."""
        self.state, self.rests_until = State.CLOSING, facts.now + REST_S

    def closed(self, facts: Facts, why: str = "") -> list[Action]:
        """The log is given back, or could not be opened."""
        change, self.change = self.change, None
        self.follow(facts.now, why or self.why)
        if change is not None and change == self.record and change.epoch > facts.promised:
            return self.gather_seals(change, facts)
        return []

    def heard_epoch(self, epoch: int) -> list[Action]:
        """A higher epoch may have been heard of: from a member's stream, a nameserver, a request."""
        self.note_epoch(epoch)
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
        record = self.record
        if record is not None and record.epoch == epoch and record.leader not in (candidate, NOBODY):
            return f"the record names member {record.leader} for epoch {epoch}", []
        if not self.plausible(epoch, facts.last_epoch):
            return f"epoch {epoch} is too far beyond what this member knows of", []
        if self.state is State.CLOSING or (self.state is State.OPENING and epoch > self.epoch):
            self.note_epoch(epoch)
            return "it gives its log back", []
        if self.state is State.LEADING:
            if epoch <= self.epoch:
                return f"it leads epoch {self.epoch}", []
            return "it gives its log back", self.heard_epoch(epoch)
        if self.state is State.OPENING:
            return f"it is about to lead epoch {self.epoch}", []
        self.note_epoch(epoch)
        if self.state is State.SEALING and epoch <= self.epoch:
            return f"it stands in epoch {self.epoch} itself", []
        self.follow(facts.now, f"member {candidate} stands in epoch {epoch}")
        self.sealed_at = facts.now
        if (epoch, candidate) == (facts.promised, facts.promised_to):
            return "", []
        return "", [Promise(epoch, candidate)]

    def log_lost(self, facts: Facts) -> list[Action]:
        """Let another one lead: our log takes nothing more before the replicator has opened it anew."""
        if self.state is not State.LEADING or self.record is None:
            return []
        swap = Swap(self.record.resigned(NOBODY), self.revision)
        return [swap, *self.close("the disk refused a sync of the log, and what it covered is lost")]

    def deposed(self, record: GroupRecord) -> list[Action]:
        """Stop leading where the record names another leader, or another epoch."""
        if self.state is not State.LEADING or (record.epoch, record.leader) == (self.epoch, self.member):
            return []
        if record == self.change:
            return self.close("the voters change")
        self.change = None
        if record.leader == NOBODY:
            return self.close("it has resigned")
        return self.close(f"the coordinator names member {record.leader} in epoch {record.epoch}")

    def look_at_replica(self, facts: Facts) -> list[Action]:
        """Resign where the replicator beside is gone: nothing can be committed without it.

        It leads on until the coordinator has taken that: without the coordinator nobody else could.
        """
        if facts.seat:
            self.replica_at = facts.now
        record, gone_s = self.record, facts.now - self.replica_at
        if gone_s < REPLICA_GONE_S or facts.now - self.asked_at < REPLICA_GONE_S or record is None:
            return []
        self.asked_at = facts.now
        return [Swap(record.resigned(NOBODY), self.revision)]

    # Contact

    def keep_contact(self, facts: Facts) -> list[Action]:
        """Ask whether anybody answers, and tell nobody that we lead where nobody does."""
        record, now = self.record, facts.now
        others = () if record is None else tuple(sorted(record.members - {self.member}))
        if not others:
            return []
        actions: list[Action] = []
        silent_for_s = now - self.reached_at
        if not self.isolated and self.unanswered >= CONTACTS and silent_for_s >= ISOLATED_S:
            self.isolated = True
            self.why = (
                "neither the coordinator nor another member answers: it lets the others elect a leader, and"
                " leads on until they have"
            )
            actions.append(StopStream())
        if now - self.contact_at >= CONTACT_APART_S:
            actions.append(AskSuspicions(others))
            if self.unanswered:
                actions.append(ReadRecord())
            self.contact_at, self.unanswered = now, self.unanswered + 1
        return actions

    def reached(self, now: float) -> list[Action]:
        """A member or the coordinator has answered, if only by a refusal."""
        self.reached_at, self.unanswered = now, 0
        if not self.isolated:
            return []
        self.isolated = False
        if self.state is not State.LEADING:
            return []
        self.why = ""
        return [StartStream(), ReadRecord()]  # others may have elected meanwhile

    # Voters

    def change_voters(self, voters: Voters, facts: Facts) -> tuple[str, list[Action]]:
        """Have other members vote.

        Returns:
            Why that is not to be, "" where it is or nothing changes; and what is to be done.
        """
        record = self.record
        if self.state is not State.LEADING or record is None:
            return "this member does not lead", []
        if record.prior or record.loss:
            return "the last change of the voters is not done yet", []
        if (self.member, facts.seat) not in voters:
            return f"member {self.member} leads: have another one lead first", []
        if voters == record.voters:
            return "", [Swap(replace(record, out=()), self.revision)] * bool(record.out)
        return "", self.name_voters(replace(record, out=()), voters, "the voters change", facts)

    def name_voters(self, record: GroupRecord, voters: Voters, why: str, facts: Facts) -> list[Action]:
        """Have the coordinator take a record with other voters, in a new epoch of ours."""
        changed = replace(
            record, voters=voters, acks=majority(len(voters)), prior=record.voters, prior_acks=record.acks
        )
        epoch = max(record.epoch, self.known_epoch) + 1
        self.change = changed.led_by(self.member, epoch, at_ms=facts.wall_ms, why=why)
        return [Swap(self.change, self.revision)]

    def take_out(self, facts: Facts) -> list[Action]:
        """Have a voter vote no longer that has been away for long, where that is wanted."""
        record, now = self.record, facts.now
        if record is not None and self.isolated:  # it has ended the streams: nobody is said to be away
            self.present_at |= dict.fromkeys(record.members, now)
        self.present_at |= dict.fromkeys(facts.present, now)
        if not self.copies_min or record is None or self.change is not None or record.paused:
            return []
        if record.prior or record.loss or not facts.seat or now - self.asked_at < REPLICA_GONE_S:
            return []
        there = facts.present | {self.member}
        away = [
            (now - self.present_at.get(member, self.since), member)
            for member, _ in record.voters
            if member not in there
        ]
        away_s, member = max(away, default=(0.0, NOBODY))
        rest = tuple(voter for voter in record.voters if voter[0] != member)
        if away_s < OUT_S or majority(len(rest)) < self.copies_min:
            return []
        if len(there.intersection(dict(record.voters))) < record.seals:
            return []  # nobody would lead
        self.asked_at = now
        out = tuple(sorted({*record.out, member}))
        why = f"member {member} was away for {away_s:.0f} s"
        return self.name_voters(replace(record, out=out), rest, why, facts)

    def forget_prior(self, facts: Facts) -> list[Action]:
        """Have the prior voters forgotten once enough of the new ones have adopted the epoch (R10e).

        The same for what an operator has accepted.
        """
        record = self.record
        if record is None or not facts.seat or facts.now - self.asked_at < REPLICA_GONE_S:
            return []
        votes = (self.member, facts.seat) in record.voters
        pending = bool(record.prior or record.loss)
        if pending and facts.adopted + votes >= record.acks:
            record = replace(record, prior=(), prior_acks=0, loss=0)
        elif not pending and not votes:  # it was a prior voter, and the best log (R10f)
            record = record.resigned(NOBODY)
        else:
            return []
        self.asked_at = facts.now
        return [Swap(record, self.revision)]

    def begin_emptying(self, epoch: int, leader: int) -> str:
        """Let our store be emptied, as the leader asks; return why it is not to be, "" where it is."""
        record = self.record
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

    # Accepted loss

    def forced(
        self, answers: dict[int, Suspicion], chosen: Collection[int], facts: Facts
    ) -> tuple[str, GroupRecord | None]:
        """Return the record with which we would lead without those that do not answer, or why we can't.

        Args:
            answers: of all other members that answer.
            chosen: ids of those that are to vote, ours among them; empty: of all voters that answer.
        """
        record = self.record
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
            self.note_epoch(answer.epoch)
        return record_with_loss(record, self.member, answers, chosen, facts, self.known_epoch)

    def force(self, record: GroupRecord, facts: Facts) -> list[Action]:
        """Have the coordinator take what `forced` has returned; a leader without a majority begins anew."""
        if self.state is State.LEADING:
            self.change = record
            return [Swap(record, self.revision)]
        self.candidacy, self.trigger = record, record.history[0].why
        self.go(State.SWAPPING, facts.now)
        return [Swap(record, self.revision)]

    # Standing

    def agrees(self, facts: Facts) -> bool:
        """Return whether a candidate that asks may count us among those that hear no leader."""
        heard = facts.heard_at >= self.preferred_at and facts.heard_at > self.sealed_at
        # A leader that is new, and was not heard yet, may take longer on a busy machine.
        return bool(self.silent(facts, LEAST_SILENT_S if heard else None))

    def silent(self, facts: Facts, after_s: float | None = None) -> str:
        """Return why we hear no leader; "" while there is, or may be, one.

        Args:
            after_s: without a frame of one; None: as long as it takes until we stand ourselves.
        """
        if self.leads and not facts.seat:
            return f"the replicator of member {self.member} is gone"
        if self.leads and facts.alone:  # it has ceased to beat, and keeps nobody from standing
            return f"too few members report to member {self.member}"
        if self.leads and self.isolated:
            return f"member {self.member} reaches nobody"
        if self.leads or self.state in (State.SWAPPING, State.SEALING) or self.change is not None:
            return ""
        record, now = self.record, facts.now
        if record is None:
            return "there is no record of the group"
        # Since then nobody else is heard: who was heard has opened its log.
        promised_lately = now - self.sealed_at < OPENING_S and facts.heard_at <= self.sealed_at
        named_lately = now - self.named_at < OPENING_S and facts.heard_at <= self.named_at
        if record.leader == NOBODY and (record.epoch >= facts.promised or not promised_lately):
            return "the leader has resigned"
        if not facts.connected and facts.leaderless and not promised_lately and not named_lately:
            return f"member {record.leader} is gone"
        quiet = now - max(facts.heard_at, self.quiet_since)
        enough_s = silent_s(self.member) if after_s is None else after_s
        return f"member {record.leader} is silent for {quiet:.1f} s" if quiet >= enough_s else ""

    def consider(self, facts: Facts) -> list[Action]:
        """Stand where it has to be."""
        record = self.record
        if self.revision < 0 or not facts.seat:
            return []
        if record is None:
            if facts.group:
                self.why = (
                    f"the coordinator has no record of group {facts.group}, which this store belongs to:"
                    " put the newest record back, as docs/failover.md says"
                )
            elif self.member in self.configured:
                self.go(State.GATHERING, facts.now)
                self.suspicions, self.asked_at = {}, float("-inf")
                return self.gather(facts)
            return []
        if not self.may_stand(record, facts) or facts.now < self.rests_until:
            return []
        self.trigger = self.silent(facts)
        if not self.trigger:
            return []
        if record.prefer not in (NOBODY, self.member) and facts.now - self.preferred_at < PREFER_S:
            return []
        self.go(State.ASKING, facts.now)
        self.suspicions, self.asked_at, self.candidacy = {}, float("-inf"), None
        return self.ask(facts)

    def may_stand(self, record: GroupRecord, facts: Facts) -> bool:
        """Return whether we may lead at all; `why` says why not."""
        if facts.group not in ("", record.group):
            self.why = (
                f"this store belongs to group {facts.group}, the coordinator's record is of {record.group}"
            )
        elif not record.electable(self.member, facts.seat):
            self.why = f"the store of member {self.member} is not the one that votes: it only follows"
        elif self.emptying:
            self.why = "its store is being emptied"
        elif not facts.votes:
            self.why = (
                "this member may have lost what it acknowledged: it votes again once it has all that is"
                " committed"
            )
        elif record.paused:
            self.why = "elections are paused"
        else:
            return True
        return False

    def ask(self, facts: Facts) -> list[Action]:
        """Ask the others what they hear, and stand once enough hear no leader of those whose seals count.

        One whose seal does not count would have it stand in vain, and again and again: each time the record
        changes, and an operator who is to accept a loss meets another one than the one that was shown.
        """
        record, now = self.record, facts.now
        assert record is not None
        if not self.silent(facts) or not self.may_stand(record, facts):
            self.follow(now, self.why)
            self.quiet_since = float("-inf")  # nothing was heard that would have to be waited for
            return []
        quiet = {
            (member, answer.seat)
            for member, answer in self.suspicions.items()
            if answer.silent and answer.votes
        }
        # A leader whose stream is there, and that hears none either, lets others lead: it does not stand.
        yields = record.leader if facts.connected else NOBODY
        better = [
            member
            for member, answer in self.suspicions.items()
            if answer.votes
            and member != yields
            and record.electable(member, answer.seat)
            and (answer.last_epoch, answer.log_end) > facts.position
        ]
        waits = bool(better) and now - self.since < BETTER_S and record.prefer != self.member
        if not waits and enough(record, quiet | {(self.member, facts.seat)}):
            return self.stand(record, facts)
        if now - self.asked_at < ASK_APART_S:
            return []
        self.asked_at = now
        return [AskSuspicions(tuple(sorted(record.members - {self.member})))]

    def stand(self, record: GroupRecord, facts: Facts) -> list[Action]:
        """Have the coordinator name us in a new epoch."""
        epoch = max(record.epoch, facts.promised, self.known_epoch, facts.last_epoch) + 1
        if epoch > EPOCH_MAX:
            self.follow(facts.now, f"epoch {epoch - 1} is the last there can be")
            return []
        self.candidacy = record.led_by(self.member, epoch, at_ms=facts.wall_ms, why=self.trigger)
        self.go(State.SWAPPING, facts.now)
        return [Swap(self.candidacy, self.revision)]

    # A group that is still to be made

    def gather(self, facts: Facts) -> list[Action]:
        """Make the group once all that are to vote have told their stores, if ours is the best log."""
        known = {member: answer for member, answer in self.suspicions.items() if member in self.configured}
        missing = self.configured - {self.member} - known.keys()
        foreign = [answer for answer in known.values() if answer.group]
        if foreign:
            self.why = f"member {foreign[0].member} belongs to group {foreign[0].group} already"
        elif missing or not all(answer.seat for answer in known.values()):
            self.why = f"the group is made once all its members are there; missing: {ids_text(missing)}"
        else:
            best = max(
                ((answer.last_epoch, answer.log_end, -member) for member, answer in known.items()),
                default=(-1, -1, 0),
            )
            if (*facts.position, -self.member) > best:
                return self.found(known, facts)
            self.why = f"member {-best[2]} is to make the group: its log goes on furthest"
        if facts.now - self.asked_at < ASK_APART_S:
            return []
        self.asked_at = facts.now
        return [AskSuspicions(tuple(sorted(self.configured - {self.member})))]

    def found(self, known: dict[int, Suspicion], facts: Facts) -> list[Action]:
        """Have the coordinator take a first record."""
        seats = {member: answer.seat for member, answer in known.items()} | {self.member: facts.seat}
        voters: Voters = tuple(sorted(seats.items()))
        epoch = (
            max(facts.promised, facts.last_epoch, *(answer.last_epoch for answer in known.values()), 0) + 1
        )
        record = GroupRecord(
            group=group_of(voters), epoch=epoch, leader=self.member, voters=voters, acks=majority(len(voters))
        )
        self.candidacy = record.led_by(self.member, epoch, at_ms=facts.wall_ms, why="the group was made")
        self.go(State.SWAPPING, facts.now)
        return [Swap(self.candidacy, 0)]

    # Seals

    def gather_seals(self, candidacy: GroupRecord, facts: Facts) -> list[Action]:
        """Promise ourselves to the epoch in which the record names us, and ask the others to."""
        self.candidacy = candidacy
        self.go(State.SEALING, facts.now)
        self.seals, self.asked_at = {}, float("-inf")
        return [Promise(candidacy.epoch, self.member), *self.ask_seals(facts)]

    def ask_seals(self, facts: Facts) -> list[Action]:
        """Ask for the seals that are missing; give up after a while."""
        candidacy = self.candidacy
        assert candidacy is not None
        if facts.now - self.since > SEALING_S:
            self.follow(
                facts.now, f"too few sealed epoch {candidacy.epoch}: {ids_text(self.seals)}; {self.why}"
            )
            return []
        if actions := self.look_at_seals(facts):
            return actions
        if self.state is not State.SEALING or facts.now - self.asked_at < ASK_APART_S:
            return []
        self.asked_at = facts.now
        missing = candidacy.members - self.seals.keys() - {self.member}
        return [AskSeals(tuple(sorted(missing)), candidacy.epoch)]

    def look_at_seals(self, facts: Facts) -> list[Action]:
        """Lead, or resign, once there are enough seals (R2, R4, R10)."""
        candidacy = self.candidacy
        assert candidacy is not None
        if self.member not in self.seals or not self.sealed_by(candidacy):
            return []
        best = max(
            (
                seal
                for seal in self.seals.values()
                if seal.member == self.member
                or ((seal.votes or candidacy.waives) and candidacy.electable(seal.member, seal.seat))
            ),
            key=lambda seal: (seal.last_epoch, seal.log_end, seal.member == self.member),
        )
        if best.member != self.member:
            why = f"the log of member {best.member} goes on further"
        elif keeper := self.keeper(candidacy, best, facts.now):
            self.gave_way_at[keeper] = facts.now
            best, why = (
                self.seals[keeper],
                f"member {keeper} has messages that wait, and this one has no more",
            )
        else:
            self.kept_elsewhere = {
                seal.member: seal.waiting_below for seal in self.seals.values() if seal.waiting_below
            }
            self.go(State.OPENING, facts.now)
            return [Open(candidacy)]
        self.follow(facts.now, why)
        return [Swap(candidacy.resigned(best.member), self.revision)]

    def keeper(self, candidacy: GroupRecord, ours: SealAnswer, now: float) -> int:
        """Return the member whose log goes on as far as ours, and holds most of what waits and is gone here
        (R22); NOBODY where none does, or was let go first lately and did not stand.

        Such a member's log begins before ours: no two give way to each other.
        """
        found = [
            (seal.waiting_below, seal.member)
            for seal in self.seals.values()
            if seal.waiting_below
            and seal.votes
            and candidacy.electable(seal.member, seal.seat)
            and (seal.last_epoch, seal.log_end) == (ours.last_epoch, ours.log_end)
            and now - self.gave_way_at.get(seal.member, float("-inf")) >= GIVE_WAY_APART_S
        ]
        return max(found, default=(0, NOBODY))[1]

    def sealed_by(self, record: GroupRecord) -> bool:
        """Return whether enough voters, and enough of the prior ones, have sealed with their stores (R9a)."""
        seals = {(member, seal.seat) for member, seal in self.seals.items() if seal.votes or record.waives}
        return (
            len(seals.intersection(record.voters)) >= record.seals
            and len(seals.intersection(record.prior)) >= record.prior_seals
        )

    # Steps

    def go(self, state: State, now: float) -> None:
        self.state, self.since = state, now

    def follow(self, now: float, why: str) -> None:
        """Follow whoever leads; silence is counted anew."""
        if self.state is not State.FOLLOWING:
            self.go(State.FOLLOWING, now)
        self.why, self.quiet_since, self.candidacy = why, now, None
        self.trigger = ""

    def close(self, why: str) -> list[Action]:
        """Stop leading."""
        self.state, self.why = State.CLOSING, why
        return [Close(why)]

    def note_epoch(self, epoch: int) -> None:
        """Note an epoch that somebody else has named."""
        known = 0 if self.record is None else self.record.epoch
        self.known_epoch = max(self.known_epoch, min(epoch, known + EPOCH_STEP_MAX))

    def plausible(self, epoch: int, last_epoch: int) -> bool:
        """Whether an epoch may be true that the coordinator has not confirmed.

        A promise stays on the disk, and there are only so many epochs: a stranger must not use them up.

        Args:
            last_epoch: the last one in our log, which counts while there is no record.
        """
        known = last_epoch if self.record is None else self.record.epoch
        return epoch <= known + EPOCH_STEP_MAX

    def take(self, record: GroupRecord, revision: int, now: float) -> None:
        """Take the coordinator's record."""
        before, self.record, self.revision = self.record, record, revision
        self.known_epoch = max(self.known_epoch, record.epoch)
        if before is None or (before.epoch, before.prefer) != (record.epoch, record.prefer):
            self.preferred_at = now
        if before is not None and before.epoch < record.epoch and record.leader not in (NOBODY, self.member):
            self.named_at = now


def enough(record: GroupRecord, quiet: Collection[tuple[int, str]]) -> bool:
    """Return whether so many members, with their seats, hear no leader that an election can succeed."""
    voters = sum(voter in quiet for voter in record.voters)
    prior = sum(voter in quiet for voter in record.prior)
    return voters >= record.seals and prior >= record.prior_seals


def group_of(voters: Voters) -> str:
    """Return the uuid of a group that is made of these stores, which have uuids of their own."""
    mixed = 0
    for member, seat in voters:
        mixed = (mixed * 1_000_003 + member * 0x9E3779B97F4A7C15 + int(seat, 16)) % (1 << 128)
    return f"{mixed:032x}"
