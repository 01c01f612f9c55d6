"""The shell of a member: does what `machine.py` decides, and tells it what happens.

    page of marks ──facts──┐
    coordinator ──records──┤                ┌── swap, with a deadline ──► coordinator
    nameservers ──members──┼─► Election ────┼── suspect, seal ──────────► other members
    other members ─────────┘                ├── promise ──► page ──► replicator ──► disk ──► page
                                            └── open, close: the broker changes its role, and the replicator

All of it runs on the broker's loop. One task watches the coordinator's record, a timer looks every
`LOOK_S`, and so does everything that may end a stream: the replicator's bell, a nameserver's news. What is
done has its own parts, which decide nothing either:

    self_view.py    what the member knows of itself; `roster.py`: what nameservers say of the others
    questions.py    what it asks the coordinator and the others
    answers.py      what it answers the others: suspicions and seals
    takeover.py     the log is taken over, and given back
    operations.py   what operators ask of it
    journal.py      what is logged; `tasks.py`: what is under way
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from whimbrel.broker.background import start_task, start_timer
from whimbrel.broker.elections.actions import (
    Action,
    AskSeals,
    AskSuspicions,
    Close,
    Open,
    Promise,
    ReadRecord,
    StartStream,
    State,
    StopStream,
    Swap,
)
from whimbrel.broker.elections.answers import Answers
from whimbrel.broker.elections.coordinator import Coordinator, open_coordinator
from whimbrel.broker.elections.journal import Journal
from whimbrel.broker.elections.machine import Election
from whimbrel.broker.elections.operations import Operations
from whimbrel.broker.elections.peers import Peers
from whimbrel.broker.elections.questions import Questions
from whimbrel.broker.elections.roster import Roster
from whimbrel.broker.elections.self_view import SelfView
from whimbrel.broker.elections.takeover import Takeover
from whimbrel.broker.elections.tasks import Tasks
from whimbrel.broker.options import BrokerOptions
from whimbrel.errors import WhimbrelError
from whimbrel.machine import Machine
from whimbrel.model.group_record import NOBODY
from whimbrel.model.registration import BrokerRole, Member
from whimbrel.model.replication import ElectionView
from whimbrel.wakeup import Doorbell

__all__ = ["Elector"]

LOOK_S: Final = 0.1  # between two looks at the clock


class Elector:
    """Keeps one member's part in its group.

    Attributes:
        machine: what decides.
        own, questions, answers, takeover, operations, journal, tasks: what does it; see above.
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
        self.options, self.drain, self.peers = options, drain, Peers()
        self.machine = Election(options.id, options.voter_ids, options.copies_min)
        self.roster = Roster(self.peers)
        self.own = SelfView(options, bell, machine, self.machine, self.roster)
        self.coordinator = coordinator or open_coordinator(options, self.peers)
        self.journal, self.tasks = Journal(options, self.machine), Tasks()
        self.questions = Questions(self.own, self.coordinator, self.journal, self.feed)
        self.answers = Answers(self.own, self.coordinator, self.tasks, self.feed)
        self.takeover = Takeover(self.own, switch, self.feed)
        self.operations = Operations(self.questions, self.takeover, self.tasks, drain=drain, reopen=reopen)
        self.ends: list[Callable[[], Awaitable[None]]] = []

    # Life

    def start(self) -> None:
        """Begin to take part."""
        self.machine.begin(self.own.host.monotonic())
        self.ends = [start_task(self.questions.watch()), start_timer(LOOK_S, self.look)]

    async def stop(self) -> None:
        """Take part no longer; the role is left as it is.

        A leader lets another member lead first, which saves the others the wait.
        """
        if self.own.stopped:
            return
        view, leads = self.machine.view, self.machine.state is State.LEADING
        record, self.own.stopped = view.record, True
        for end in self.ends:
            await end()
        if leads and record is not None:
            await self.drain()
            with contextlib.suppress(WhimbrelError):
                await self.coordinator.swap(record.resigned(self.own.furthest()), view.revision)
        self.tasks.cancel()
        await asyncio.gather(*self.tasks.running, return_exceptions=True)
        await self.coordinator.close()
        await self.peers.close()

    def release(self) -> None:
        """Let go of the page; nobody looks at this member any more."""
        self.own.closed = True
        self.tasks.cancel()  # of operators who came after `stop`
        self.journal.close()
        self.own.page.close()

    # What is known

    @property
    def voters(self) -> int:
        """How many members vote."""
        record = self.machine.view.record
        return len(record.voters) if record is not None else len(self.options.voter_ids)

    @property
    def epoch(self) -> int:
        """The epoch that this member leads or follows, 0 while it does neither."""
        term = self.takeover.term
        return term.epoch if term is not None else self.own.page.heard_epoch

    def plausible(self, epoch: int) -> bool:
        """Whether a nameserver may be believed that somebody leads that epoch."""
        own = self.own
        return not own.closed and self.machine.view.plausible(epoch, own.facts().last_epoch)

    def state(self) -> ElectionView:
        """Return what is shown of this member."""
        facts, record = self.own.facts(), self.machine.view.record
        return ElectionView(
            member=self.options.id,
            state=self.machine.state.value,
            why=self.journal.standpoint,
            may_lead=facts.votes and record is not None and record.electable(self.options.id, facts.seat),
            promised=facts.promised,
            record=b"" if record is None else record.encode(),
            coordinator_trouble=self.questions.trouble,
        )

    # Events

    def members_changed(self, nameserver: str, members: tuple[Member, ...], settled: bool) -> None:
        """Take a nameserver's answer."""
        self.roster.take(nameserver, members, settled=settled)
        self.look()

    def log_lost(self) -> None:
        """The log can't be written any more before it is opened anew."""
        self.feed(self.machine.log_lost(self.own.facts()))

    def rung(self) -> None:
        """The replicator has moved a mark; that of a leader does with each acknowledgement."""
        self.answers.moved.set()
        if not self.own.page.connected and not self.machine.owns_log:
            self.look()

    def look(self) -> None:
        """See what time, the page or the nameservers have changed."""
        if self.own.stopped:
            return
        heard = self.own.page.higher_epoch
        if heard > self.machine.epoch and self.machine.state is State.LEADING:
            self.feed(self.machine.heard_epoch(heard))
        self.feed(self.machine.tick(self.own.facts()))

    # Actions

    def feed(self, actions: Sequence[Action]) -> None:
        """Do what is to be done; how it ends, the machine is told by whatever does it."""
        self.own.join()
        self.journal.look()
        tasks = self.tasks
        for action in actions:
            match action:
                case AskSuspicions(members):
                    for member in members:
                        tasks.ask(("suspect", member), self.questions.suspicion(member))
                case AskSeals(members, epoch):
                    for member in members:
                        tasks.ask(("seal", member), self.questions.seal(member, epoch))
                case ReadRecord():
                    tasks.ask(("read", NOBODY), self.questions.read())
                case StopStream() | StartStream():
                    self.takeover.stream(on=isinstance(action, StartStream))
                case Swap():
                    tasks.spawn(self.questions.swap(action))
                case Promise():
                    tasks.spawn(self.answers.keep(action))
                case Open(record):
                    tasks.spawn(self.takeover.open(record))
                case Close(why):
                    tasks.spawn(self.takeover.close(why))
