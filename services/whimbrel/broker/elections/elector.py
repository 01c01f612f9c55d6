"""The shell of a member: does what `machine.py` decides, and tells it what happens.

    page of marks ──facts──┐
    coordinator ──records──┤                ┌── swap, with a deadline ──► coordinator
    nameservers ──members──┼─► Election ────┼── suspect, seal ──────────► other members
    other members ─────────┘                ├── promise ──► page ──► replicator ──► disk ──► page
                                            └── open, close: the broker changes its role, and the replicator

All of it runs on the broker's loop. One task watches the coordinator's record, a timer looks every
`LOOK_S`, and so does everything that may end a stream: the replicator's bell, a nameserver's news. Promises
are made one at a time, since the page has one place to ask for one. Changes of the role are made one at a
time, too: the machine asks for the next one only when it was told how the last one ended.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whimbrel.broker.api.admin import ElectionView
from whimbrel.broker.background import start_task, start_timer
from whimbrel.broker.elections.actions import (
    STANDING,
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
from whimbrel.broker.elections.coordinator import Coordinator, open_coordinator, trouble_of
from whimbrel.broker.elections.machine import Election
from whimbrel.broker.elections.operations import Operations
from whimbrel.broker.elections.peers import CALL_S, Peers
from whimbrel.broker.options import BrokerOptions
from whimbrel.errors import BadRequest, ClientError, NotMaster, NotReady, PeerError, Throttled, WhimbrelError
from whimbrel.machine import Machine
from whimbrel.model.elections import SealAnswer, Suspicion
from whimbrel.model.group_record import NOBODY, VOTERS_MAX, GroupRecord
from whimbrel.model.registration import BrokerRole, Member
from whimbrel.rpc.api.election_calls import seal, suspect
from whimbrel.store.seat_file import FLUSH_MODES
from whimbrel.store.shared_page import SharedPage
from whimbrel.wakeup import Doorbell

if TYPE_CHECKING:
    from whimbrel.broker.elections.election_traces import ElectionTraces

__all__ = ["Elector"]

logger = logging.getLogger(__name__)

LOOK_S = 0.1  # between two looks at the clock
# A replicator that has not beaten for so long hangs; it beats every `WAKE_POLL_S`. Known before its followers
# ask (`LEAST_SILENT_S`, less a beat of `BEAT_S`): its leader must not tell them then that it leads.
REPLICA_BEAT_S = 1.5
AGAIN_S = 0.5  # before a call that has failed to the coordinator, or a change of role, is tried again
PROMISE_POLL_S = 0.02  # what a lost ring costs while a promise is waited for
HANDED_BYTES_MAX = 16 << 20  # a member that lacks more is not handed over to
HAND_OVER_S = 2.0  # for it to come to hold the rest
SEALS_MAX = 8  # that are being answered; a group has few candidates at a time
OPERATIONS_MAX = 16  # commands that are under way; an operator gives one at a time
SWAPS_MAX = 5  # of an operator's change, while others change the record
REPLICA_ROLES: dict[BrokerRole, int] = {"master": 1, "slave": 2}


class Elector:
    """Keeps one member's part in its group.

    Attributes:
        machine: what decides.
        term: the record under which this broker leads, or is about to; None while it does neither.
        state_holders: returns the members that hold all that this leader has beside the log; set by its role.
        waiting_below: returns how many messages wait whose records stand below an offset; set by its role.
    """

    def __init__(
        self,
        options: BrokerOptions,
        *,
        bell: Doorbell,
        machine: Machine,
        switch: Callable[[BrokerRole], Awaitable[None]],
        drain: Callable[[], Awaitable[None]],
        reopen: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        coordinator: Coordinator | None = None,
    ) -> None:
        """Open the page of marks, and have the replicator beside be a slave's.

        Args:
            switch: gives this broker another role; raises WhimbrelError or OSError.
            drain: has the broker take no sends any more, and waits for those that wait.
            reopen: ends the role, has something done to the store, and begins the same role anew.
            coordinator: another one than the setting names.

        Raises:
            StoreError: the page can't be had.
        """
        self.options, self.bell, self.host = options, bell, machine
        self.switch, self.drain, self.reopen = switch, drain, reopen
        self.page = SharedPage.open(Path(options.store), machine)
        self.peers = Peers()
        self.coordinator = coordinator or open_coordinator(options, self.peers)
        self.machine = Election(options.id, options.voter_ids, options.copies_min)
        self.term: GroupRecord | None = None
        self.members: dict[str, tuple[Member, ...]] = {}  # by nameserver
        self.unsettled: set[str] = set()  # nameservers that have just started
        self.addresses: dict[int, str] = {}  # of the other members, as heard of last
        self.asking: set[tuple[str, int]] = set()  # what was asked, and whom, without an answer yet
        self.promising = asyncio.Lock()
        self.sealings = 0  # seals that were asked for and not answered yet
        self.moved = asyncio.Event()  # the replicator has rung
        self.tasks: set[asyncio.Task[None]] = set()
        self.operating: set[asyncio.Task[None]] = set()  # those of them that operators wait for
        self.ends: list[Callable[[], Awaitable[None]]] = []
        self.state_holders: Callable[[], frozenset[int]] = frozenset
        self.waiting_below: Callable[[int], int]
        self.waits_nowhere()
        self.logged = ""
        self.traces: ElectionTraces | None = None
        if options.trace_to:
            from whimbrel.broker.elections import election_traces  # OpenTelemetry: only where tracing is on

            self.traces = election_traces.open_election_traces(options)
        self.logged_revision = 0
        self.trouble = ""  # with the coordinator
        self.stopped = self.closed = False
        self.page.empty_asked = 0  # of a broker that was killed: the operator will ask again
        self.page.broker_flush = FLUSH_MODES.index(options.flush)  # before anything is promised
        self.operations = Operations(self)
        self.set_replica_role("slave")

    # Life

    def start(self) -> None:
        """Begin to take part."""
        self.machine.begin(self.host.monotonic())
        self.ends = [start_task(self.watch()), start_timer(LOOK_S, self.look)]

    async def stop(self) -> None:
        """Take part no longer; the role is left as it is.

        A leader lets another member lead first, which saves the others the wait.
        """
        if self.stopped:
            return
        record, leads = self.machine.record, self.machine.state is State.LEADING
        self.stopped = True
        for end in self.ends:
            await end()
        if leads and record is not None:
            await self.drain()
            with contextlib.suppress(WhimbrelError):
                await self.coordinator.swap(record.resigned(self.furthest()), self.machine.revision)
        for task in tuple(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.coordinator.close()
        await self.peers.close()

    def release(self) -> None:
        """Let go of the page; nobody looks at this member any more."""
        self.closed = True
        for task in tuple(self.tasks):  # of operators who came after `stop`
            task.cancel()
        if self.traces is not None:
            self.traces.close()
        self.page.close()

    # What is known

    def facts(self) -> Facts:
        """Return what this member knows of itself now.

        Raises:
            NotReady: it takes part no longer; its server still ends.
        """
        if self.closed:
            raise NotReady("this broker is stopping")
        page, host = self.page, self.host
        beat_s = (host.monotonic_ns() - page.replica_beat_ns) / 1e9
        alive = beat_s < REPLICA_BEAT_S and self.bell.answers("replicator")
        promised, promised_to = page.sealed
        leading = self.machine.owns_log
        return Facts(
            now=host.monotonic(),
            wall_ms=host.wall_ms(),
            heard_at=page.heard_ns / 1e9 if page.heard_ns else float("-inf"),
            connected=bool(page.connected) and alive,
            leaderless=self.leaderless(),
            promised=promised,
            promised_to=promised_to,
            last_epoch=page.leader_epoch if leading else page.last_epoch,
            end=page.written,
            votes=bool(page.votes),
            seat=page.seat if alive else "",
            group=page.seat_group,
            adopted=self.adopted() if leading else 0,
            present=frozenset(member for member, _ in page.member_ends()) if leading else frozenset(),
            alone=bool(page.quorum_lost) and alive,
        )

    def adopted(self) -> int:
        """Return how many voters besides this member have acknowledged its epoch, and hold its state."""
        record = self.machine.record
        others = set(dict(record.voters)) - {self.options.id} if record is not None else set()
        acked = others.intersection(member for member, _ in self.page.member_acks())
        return len(acked & self.state_holders())

    def leaderless(self) -> bool:
        """Return whether nameservers are heard, and none of them knows of a leader."""
        heard = [members for nameserver, members in self.members.items() if nameserver not in self.unsettled]
        return bool(heard) and not any(member.broker_id == 0 for members in heard for member in members)

    def members_changed(self, nameserver: str, members: tuple[Member, ...], settled: bool) -> None:
        """Take a nameserver's answer."""
        self.members[nameserver] = members
        (self.unsettled.discard if settled else self.unsettled.add)(nameserver)
        known = set(self.addresses.values())
        self.addresses |= {member.member_id: member.address for member in members if member.member_id}
        for address in known.difference(self.addresses.values()):
            self.peers.forget(address)
        self.look()

    def nameserver_lost(self, nameserver: str) -> None:
        """Forget what a nameserver said of who leads; addresses stay."""
        self.members.pop(nameserver, None)
        self.unsettled.discard(nameserver)

    def log_lost(self) -> None:
        """The log can't be written any more before it is opened anew."""
        self.feed(self.machine.log_lost(self.facts()))

    def rung(self) -> None:
        """The replicator has moved a mark; that of a leader does with each acknowledgement."""
        self.moved.set()
        if not self.page.connected and not self.machine.owns_log:
            self.look()

    @property
    def voters(self) -> int:
        """How many members vote."""
        record = self.machine.record
        return len(record.voters) if record is not None else len(self.options.voter_ids)

    @property
    def epoch(self) -> int:
        """The epoch that this member leads or follows, 0 while it does neither."""
        if self.term is not None:
            return self.term.epoch
        return self.page.heard_epoch

    def furthest(self) -> int:
        """Return the member whose log goes on furthest of those that acknowledge; NOBODY without one."""
        record = self.machine.record
        others = set(dict(record.voters)) if record is not None else set()
        acks = [(end, member) for member, end in self.page.member_acks() if member in others]
        return max(acks, default=(0, NOBODY))[1]

    # Events

    async def watch(self) -> None:
        """Keep the record up to date."""
        while True:
            try:
                revision = max(self.machine.revision, 0)
                record, revision = (
                    await self.coordinator.read()
                    if self.machine.revision < 0
                    else await self.coordinator.watch(revision)
                )
            except WhimbrelError as error:
                self.trouble = trouble_of(error)
                self.tell(self.trouble)
                self.answered(error)
                await asyncio.sleep(AGAIN_S)
                continue
            self.answered()
            lost = record is None and self.machine.record is not None
            trouble = self.coordinator.trouble
            self.trouble = trouble and f"the coordinator can't be used: {trouble}"
            if lost:
                self.trouble = "the coordinator has lost the record of the group: put the newest one back"
            self.feed(self.machine.learned(record, revision, self.facts()))
            if lost:
                await asyncio.sleep(AGAIN_S)  # it is told at once, again and again

    def look(self) -> None:
        """See what time, the page or the nameservers have changed."""
        if self.stopped:
            return
        page = self.page
        if page.higher_epoch > self.machine.epoch and self.machine.state is State.LEADING:
            self.feed(self.machine.heard_epoch(page.higher_epoch))
        self.feed(self.machine.tick(self.facts()))

    def feed(self, actions: Sequence[Action]) -> None:
        """Do what is to be done."""
        record = self.machine.record
        if (
            record is not None
            and self.page.group != record.group
            and self.page.seat_group in ("", record.group)
        ):
            self.page.group = record.group
        self.tell_record()
        self.tell_state()
        for action in actions:
            if isinstance(action, AskSuspicions):
                for member in action.members:
                    self.ask(("suspect", member), self.ask_suspicion(member))
            elif isinstance(action, AskSeals):
                for member in action.members:
                    self.ask(("seal", member), self.ask_seal(member, action.epoch))
            elif isinstance(action, ReadRecord):
                self.ask(("read", NOBODY), self.read_record())
            elif isinstance(action, StopStream | StartStream):
                self.stream(on=isinstance(action, StartStream))
            else:
                self.spawn(self.do(action))

    def tell_record(self) -> None:
        """Log a record that is new, as it is kept: who has lost the coordinator's files can put it back."""
        record, revision = self.machine.record, self.machine.revision
        if record is not None and revision > self.logged_revision:
            self.logged_revision = revision
            text = replace(record, history=record.history[:1]).encode().decode()
            logger.info("%s/%d: group record: %s", self.options.name, self.options.id, text)

    def tell_state(self) -> None:
        """Log what the member is about, and why."""
        machine = self.machine
        if self.traces is not None:
            self.traces.moved(machine)
        why = machine.trigger if machine.state in STANDING else machine.why
        self.tell(f"{machine.state.value}{': ' if why else ''}{why}")

    def tell(self, text: str) -> None:
        """Log what is new."""
        if text != self.logged:
            self.logged = text
            logger.info("%s/%d: %s", self.options.name, self.options.id, text)

    def ask(self, question: tuple[str, int], work: Coroutine[Any, Any, None]) -> None:
        """Ask a member, unless it has not answered yet."""
        if question in self.asking:
            work.close()
            return
        self.asking.add(question)
        self.spawn(work).add_done_callback(lambda _: self.asking.discard(question))

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a task that `stop` ends."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.over)
        return task

    def operate(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run what operators or other members ask for; `stop` ends it.

        Raises:
            Throttled: `OPERATIONS_MAX` run already.
        """
        if len(self.operating) >= OPERATIONS_MAX:
            raise Throttled(f"{OPERATIONS_MAX} commands for this member are under way: try again later")
        task = self.spawn(work)
        self.operating.add(task)
        task.add_done_callback(self.operating.discard)
        return task

    def over(self, task: "asyncio.Task[None]") -> None:
        """Log what a task has stumbled over: nobody else would hear of it."""
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("an election's task failed", exc_info=task.exception())

    # Actions

    async def do(self, action: Action) -> None:
        """Do one thing, and tell the machine how it ended."""
        if isinstance(action, Swap):
            done, record, revision = False, None, 0
            try:
                done, record, revision = await self.coordinator.swap(action.record, action.revision)
            except WhimbrelError as error:
                self.tell(trouble_of(error))
                self.answered(error)
            else:
                self.answered()
            self.feed(self.machine.swapped(done, record, revision, self.facts()))
        elif isinstance(action, Promise):
            answer = await self.promise(action.epoch, action.candidate)
            self.feed(self.machine.promised(answer, self.facts()))
        elif isinstance(action, Open):
            await self.open(action.record)
        elif isinstance(action, Close):
            await self.close(action.why)

    async def ask_suspicion(self, member: int) -> None:
        """Ask a member what it hears."""
        record, name = self.machine.record, self.options.name
        address = self.addresses.get(member, "")
        if not address:
            return
        outbound = suspect(
            name,
            group="" if record is None else record.group,
            epoch=self.machine.known_epoch,
            member=self.options.id,
        )
        try:
            answer = await self.peers.call(address, outbound)
        except WhimbrelError as error:
            logger.debug("member %d at %s: %s", member, address, error)
            self.answered(error)
            return
        if answer.member == member:
            self.feed(self.machine.suspected(answer, self.facts()))

    async def read_record(self) -> None:
        """Ask the coordinator for the record."""
        try:
            record, revision = await self.coordinator.read()
        except WhimbrelError as error:
            self.answered(error)
            return
        self.answered()
        self.feed(self.machine.learned(record, revision, self.facts()))

    def answered(self, error: WhimbrelError | None = None) -> None:
        """Note that a member or the coordinator has answered, unless that is what the error says."""
        if not isinstance(error, ClientError | PeerError):
            self.feed(self.machine.reached(self.host.monotonic()))

    async def ask_seal(self, member: int, epoch: int) -> None:
        """Ask a member for its seal."""
        candidacy, address = self.machine.candidacy, self.addresses.get(member, "")
        if not address or candidacy is None:
            return
        outbound = seal(
            self.options.name,
            group=candidacy.group,
            epoch=epoch,
            candidate=self.options.id,
            log_begin=self.page.begin,
        )
        try:
            answer = await self.peers.call(address, outbound)
        except WhimbrelError as error:
            logger.debug("member %d at %s: %s", member, address, error)
            return
        if answer.member == member:
            self.feed(self.machine.sealed(answer, self.facts()))

    async def promise(self, epoch: int, candidate: int, log_begin: int = 0) -> SealAnswer:
        """Have the replicator put a promise on disk; return what was sealed, or why nothing was."""
        asked, page = (epoch, candidate), self.page
        async with self.promising:
            deadline = self.host.monotonic() + CALL_S
            if self.machine.owns_log:
                return self.no_seal("it has not given its log back")
            record = self.machine.candidacy or self.machine.record
            waives = record is not None and record.waives and (record.epoch, record.leader) == asked
            page.waived = asked if waives else (0, 0)
            page.promise = asked
            if page.sealed != asked:
                self.bell.ring("replicator")
            while page.sealed != asked:
                if page.sealed[0] > epoch or self.host.monotonic() > deadline or self.machine.owns_log:
                    return self.no_seal("its replicator has not put the promise on disk")
                self.moved.clear()
                page.broker_sleeping = 1
                try:
                    async with asyncio.timeout(PROMISE_POLL_S):
                        await self.moved.wait()
                except TimeoutError:
                    continue
            return self.sealed_answer(asked, log_begin)

    def sealed_answer(self, asked: tuple[int, int], log_begin: int) -> SealAnswer:
        """Return the promise that the page shows, if it is the one that was asked for, to a candidate whose
        log begins there."""
        page = self.page
        answer = SealAnswer(
            sealed=True,
            promised=asked[0],
            promised_to=asked[1],
            last_epoch=page.sealed_last,
            log_end=page.sealed_end,
            seat=page.seat,
            why="" if page.votes else "it may have lost what it acknowledged, and does not vote",
            member=self.options.id,
            votes=bool(page.votes),
            waiting_below=self.waiting_below(log_begin) if log_begin > page.begin else 0,
        )
        alive = page.replica_alive(self.host.monotonic_ns())
        return answer if page.sealed == asked and alive else self.no_seal("its replicator is not there")

    def no_seal(self, why: str) -> SealAnswer:
        """Return that there is no promise."""
        promised, promised_to = self.page.sealed
        return SealAnswer(
            sealed=False,
            promised=max(promised, self.machine.epoch if self.machine.owns_log else 0),
            promised_to=promised_to,
            last_epoch=0,
            log_end=0,
            seat=self.page.seat,
            why=why,
            member=self.options.id,
            votes=False,
        )

    async def open(self, record: GroupRecord) -> None:
        """Lead: take the log over from the replicator."""
        self.term = record
        self.page.higher_epoch = 0
        self.set_replica_role("master")
        logger.info("%s/%d leads epoch %d", self.options.name, self.options.id, record.epoch)
        if self.kept_elsewhere:
            logger.warning("%s", self.kept_elsewhere)
        try:
            await self.switch("master")
        except (WhimbrelError, OSError) as error:
            why = f"the log could not be taken over: {error}"
            logger.error("%s", why)
            self.machine.open_failed(self.facts())
            await self.close(why)
            return
        self.feed(self.machine.opened(self.facts()))

    async def close(self, why: str) -> None:
        """Follow: give the log back to the replicator."""
        logger.warning("%s/%d leads no longer: %s", self.options.name, self.options.id, why)
        self.set_replica_role("slave")
        while True:
            try:
                await self.switch("slave")
                break
            except (WhimbrelError, OSError) as error:
                if self.stopped:
                    return
                logger.error("this broker can't follow yet: %s", error)
                await asyncio.sleep(AGAIN_S)
        self.term = None
        self.feed(self.machine.closed(self.facts(), why))

    def waits_nowhere(self) -> None:
        """Count nothing that waits: there is no store now to look into."""
        self.waiting_below = lambda begin: 0

    @property
    def kept_elsewhere(self) -> str:
        """Say that this leader's log lacks messages that wait in others' logs, and what to do; "": none."""
        kept = self.machine.kept_elsewhere if self.term is not None else {}
        return "; ".join(
            f"member {member} holds {count} delayed messages and undecided transactions that this leader's"
            f" log has no more: `whimbrel replication switchover {self.options.name} --to {member}` brings"
            " them back, until they are due or it removes them"
            for member, count in kept.items()
        )

    def set_replica_role(self, role: BrokerRole) -> None:
        """Tell the replicator beside what it is."""
        self.page.replica_role = REPLICA_ROLES[role]
        self.bell.ring("replicator")

    def stream(self, *, on: bool) -> None:
        """Have the replicator feed nobody while this broker leads, or the others again."""
        page = self.page
        if on and (self.term is None or page.leader_epoch != self.term.epoch):
            return  # the log is given back, or about to be
        page.leader_log = page.epoch if on else 0
        self.bell.ring("replicator")

    # What others ask

    def plausible(self, epoch: int) -> bool:
        """Whether a nameserver may be believed that somebody leads that epoch."""
        return not self.closed and self.machine.plausible(epoch, self.facts().last_epoch)

    def suspicion(self, group: str, epoch: int) -> Suspicion:
        """Return what this member hears; see `service.py`."""
        facts, machine = self.facts(), self.machine
        machine.note_epoch(epoch)
        return Suspicion(
            silent=machine.agrees(facts),
            epoch=max(machine.named_epoch, facts.promised),
            last_epoch=facts.last_epoch,
            log_end=facts.end,
            votes=facts.votes and bool(facts.seat),
            seat=facts.seat,
            group=facts.group,
            member=self.options.id,
        )

    def seal(
        self,
        group: str,
        epoch: int,
        candidate: int,
        log_begin: int,
        answer: Callable[[SealAnswer], object],
    ) -> None:
        """Promise, or not, and answer then; see `service.py`."""
        if self.stopped:
            raise NotReady("this broker is stopping")
        if self.sealings == SEALS_MAX:
            raise NotReady(f"{SEALS_MAX} candidates are being answered; ask again")

        async def work() -> None:
            try:
                answer(await self.sealing(group, epoch, candidate, log_begin))
            finally:
                self.sealings -= 1

        self.sealings += 1
        self.spawn(work())

    async def sealing(self, group: str, epoch: int, candidate: int, log_begin: int) -> SealAnswer:
        """Promise if the coordinator's record names that candidate, or the coordinator is out of reach."""
        machine = self.machine
        if self.page.seat_group not in ("", group):
            return self.no_seal(f"it belongs to group {self.page.seat_group}")
        record = machine.record
        if record is None or record.epoch < epoch:
            try:
                record, revision = await self.coordinator.read()
            except WhimbrelError:
                pass  # the candidate has reached it: who can't reach it now need not stop an election
            else:
                self.feed(machine.learned(record, revision, self.facts()))
                if record is None or record.epoch < epoch or record.group != group:
                    return self.no_seal(f"the coordinator knows of no epoch {epoch} of group {group}")
        why, actions = machine.asked_to_seal(epoch, candidate, self.facts())
        if why:
            self.feed(actions)
            return self.no_seal(why)
        if actions:
            return await self.promise(epoch, candidate, log_begin)
        return self.sealed_answer((epoch, candidate), log_begin)

    # What operators ask

    def state(self) -> ElectionView:
        """Return what is shown of this member."""
        facts, machine = self.facts(), self.machine
        record = machine.record
        return ElectionView(
            member=self.options.id,
            state=machine.state.value,
            why=machine.trigger if machine.state in STANDING else machine.why,
            may_lead=facts.votes and record is not None and record.electable(self.options.id, facts.seat),
            promised=facts.promised,
            record=b"" if record is None else record.encode(),
            coordinator_trouble=self.trouble,
        )

    async def switchover(self, member: int) -> int:
        """Have another member lead, once it holds all that this one does; return its id.

        Args:
            member: NOBODY takes the one whose log goes on furthest.

        Raises:
            NotMaster: this member does not lead.
            BadRequest: that one can't.
            NotReady: it does not follow closely enough, or the coordinator does not answer.
        """
        machine, page = self.machine, self.page
        record = machine.record
        if machine.state is not State.LEADING or record is None:
            raise NotMaster(
                "this member does not lead: ask the leader, which `whimbrel replication status` shows"
            )
        if record.paused:
            raise NotReady("elections are paused, so nobody could take over: resume them first")
        await self.coordinator.read()  # an error of it comes before this member leads no longer
        chosen = member or self.furthest()
        if chosen == self.options.id or chosen not in dict(record.voters):
            raise BadRequest(f"member {chosen} can't take over: voters besides the leader can")
        if page.written - dict(page.member_acks()).get(chosen, 0) > HANDED_BYTES_MAX:
            raise NotReady(
                f"member {chosen} lacks more than {HANDED_BYTES_MAX} bytes, or is not connected: try later"
            )
        await self.drain()
        try:
            await self.hand_over(chosen)
        except WhimbrelError:
            if machine.state is State.LEADING:  # it takes no sends any more: whoever is elected next does
                await self.close("it could not hand over")
            raise
        return chosen

    async def hand_over(self, chosen: int) -> None:
        """Resign in favour of a member, once it holds all of the log.

        Raises:
            NotReady: it does not come to hold it, we lead no longer, or the record changes all the time.
            WhimbrelError: the coordinator does not answer.
        """
        machine, page = self.machine, self.page
        deadline = self.host.monotonic() + HAND_OVER_S
        while machine.state is State.LEADING and dict(page.member_acks()).get(chosen, 0) < page.written:
            if self.host.monotonic() > deadline:
                raise NotReady(f"member {chosen} did not come to hold all of the log in {HAND_OVER_S:g} s")
            await asyncio.sleep(PROMISE_POLL_S)
        for _ in range(SWAPS_MAX):
            record = machine.record
            if machine.state is not State.LEADING or record is None:
                if record is not None and chosen in (record.leader, record.prefer):
                    return
                raise NotReady(
                    "this member has ceased to lead meanwhile: see `whimbrel replication status`, and ask the"
                    " leader"
                )
            done, found, revision = await self.coordinator.swap(record.resigned(chosen), machine.revision)
            self.feed(machine.swapped(done, found, revision, self.facts()))
            if done:
                return
        raise NotReady("the record of the group changes all the time: try again")

    async def pause(self, *, paused: bool) -> None:
        """Have nobody stand for election, or allow it again.

        Raises:
            NotReady: there is no group yet, or its record changes all the time.
            WhimbrelError: the coordinator does not answer.
        """
        for _ in range(SWAPS_MAX):
            record, revision = await self.coordinator.read()
            if record is None:
                raise NotReady("the group is not made yet")
            if record.paused == paused:
                return
            done, _, _ = await self.coordinator.swap(replace(record, paused=paused), revision)
            if done:
                return
        raise NotReady("the record of the group changes all the time: try again")

    async def set_voters(self, members: Collection[int]) -> int:
        """Have these members vote, with the stores that they have now; return the epoch that decides it.

        Raises:
            NotMaster: this member does not lead.
            BadRequest: they can't be a group's voters.
            NotReady: one of them does not answer, or another change is under way.
        """
        if not 0 < len(members) <= VOTERS_MAX:
            raise BadRequest(f"a group has 1 to {VOTERS_MAX} voters, not {len(members)}")
        if self.machine.state is not State.LEADING:
            raise NotMaster(
                "this member does not lead: ask the leader, which `whimbrel replication status` shows"
            )
        seats = {self.options.id: self.page.seat} if self.options.id in members else {}
        for member in members:
            if member != self.options.id:
                seats[member] = await self.seat_of(member)
        why, actions = self.machine.change_voters(tuple(sorted(seats.items())), self.facts())
        if why:
            raise NotReady(why)
        change = self.machine.change
        self.feed(actions)
        return 0 if change is None or not actions else change.epoch

    async def seat_of(self, member: int) -> str:
        """Return the uuid of a member's store.

        Raises:
            NotReady: it does not answer, or its store belongs elsewhere.
        """
        record, address = self.machine.record, self.addresses.get(member, "")
        if not address or record is None:
            raise NotReady(f"member {member} is not there: start its broker and its replicator")
        outbound = suspect(
            self.options.name, group=record.group, epoch=self.machine.known_epoch, member=self.options.id
        )
        try:
            answer = await self.peers.call(address, outbound)
        except WhimbrelError as error:
            raise NotReady(f"member {member} does not answer: {error}") from error
        if answer.member != member or not answer.seat or answer.group not in ("", record.group):
            raise NotReady(f"member {member} has no store that could be a voter's of this group")
        return answer.seat
