"""What a member answers the others: what it hears, and its promises.

    asked    --the machine refuses--> why not
             --it agrees, the promise is on disk already--> the seal
             --it agrees--> the page asks the replicator for it
    awaited  --it is on disk--> the seal
             --a higher one is, or the log is not given back, or `CALL_S` is over--> why not

Promises are made one at a time, since the page has one place to ask for one. Whom the coordinator's record
does not name yet is promised nothing, unless the coordinator is out of reach: the candidate has reached it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from whimbrel.broker.elections.actions import Action, Promise
from whimbrel.broker.elections.coordinator import Coordinator
from whimbrel.broker.elections.peers import CALL_S
from whimbrel.broker.elections.self_view import SelfView
from whimbrel.broker.elections.tasks import Tasks
from whimbrel.errors import NotReady, WhimbrelError
from whimbrel.model.elections import SealAnswer, Suspicion

__all__ = ["PROMISE_POLL_S", "Answers"]

PROMISE_POLL_S: Final = 0.02  # what a lost ring costs while a promise is waited for
SEALS_MAX: Final = 8  # that are being answered; a group has few candidates at a time


class Answers:
    """What one member answers.

    Attributes:
        waiting_below: returns how many messages wait whose records stand below an offset; set by its role.
        moved: set when the replicator has rung.
        sealings: seals that were asked for and not answered yet.
    """

    def __init__(
        self,
        own: SelfView,
        coordinator: Coordinator,
        tasks: Tasks,
        feed: Callable[[Sequence[Action]], None],
    ) -> None:
        """Take what does what the machine wants done then."""
        self.own, self.coordinator, self.tasks, self.feed = own, coordinator, tasks, feed
        self.machine, self.page = own.machine, own.page
        self.promising, self.moved = asyncio.Lock(), asyncio.Event()
        self.sealings = 0
        self.waiting_below: Callable[[int], int]
        self.waits_nowhere()

    def waits_nowhere(self) -> None:
        """Count nothing that waits: there is no store now to look into."""
        self.waiting_below = lambda begin: 0

    def suspicion(self, group: str, epoch: int) -> Suspicion:
        """Return what this member hears; see `service.py`."""
        facts, machine = self.own.facts(), self.machine
        machine.view.note_epoch(epoch)
        return Suspicion(
            silent=machine.agrees(facts),
            epoch=max(machine.named_epoch, facts.promised),
            last_epoch=facts.last_epoch,
            log_end=facts.end,
            votes=facts.votes and bool(facts.seat),
            seat=facts.seat,
            group=facts.group,
            member=machine.member,
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
        if self.own.stopped:
            raise NotReady("this broker is stopping")
        if self.sealings == SEALS_MAX:
            raise NotReady(f"{SEALS_MAX} candidates are being answered; ask again")

        async def work() -> None:
            try:
                answer(await self.sealing(group, epoch, candidate, log_begin))
            finally:
                self.sealings -= 1

        self.sealings += 1
        self.tasks.spawn(work())

    async def sealing(self, group: str, epoch: int, candidate: int, log_begin: int) -> SealAnswer:
        """Promise if the coordinator's record names that candidate, or the coordinator is out of reach."""
        machine = self.machine
        if self.page.seat_group not in ("", group):
            return self.no_seal(f"it belongs to group {self.page.seat_group}")
        record = machine.view.record
        if record is None or record.epoch < epoch:
            try:
                record, revision = await self.coordinator.read()
            except WhimbrelError:
                pass  # the candidate has reached it: who can't reach it now need not stop an election
            else:
                self.feed(machine.learned(record, revision, self.own.facts()))
                if record is None or record.epoch < epoch or record.group != group:
                    return self.no_seal(f"the coordinator knows of no epoch {epoch} of group {group}")
        why, actions = machine.asked_to_seal(epoch, candidate, self.own.facts())
        if why:
            self.feed(actions)
            return self.no_seal(why)
        if actions:
            return await self.promise(epoch, candidate, log_begin)
        return self.sealed_answer((epoch, candidate), log_begin)

    async def keep(self, action: Promise) -> None:
        """Promise ourselves to an epoch, as the machine wants."""
        answer = await self.promise(action.epoch, action.candidate)
        self.feed(self.machine.promised(answer, self.own.facts()))

    async def promise(self, epoch: int, candidate: int, log_begin: int = 0) -> SealAnswer:
        """Have the replicator put a promise on disk; return what was sealed, or why nothing was."""
        asked, page, machine, host = (epoch, candidate), self.page, self.machine, self.own.host
        async with self.promising:
            deadline = host.monotonic() + CALL_S
            if machine.owns_log:
                return self.no_seal("it has not given its log back")
            record = machine.candidacy or machine.view.record
            waives = record is not None and record.waives and (record.epoch, record.leader) == asked
            page.waived = asked if waives else (0, 0)
            page.promise = asked
            if page.sealed != asked:
                self.own.bell.ring("replicator")
            while page.sealed != asked:
                if page.sealed[0] > epoch or host.monotonic() > deadline or machine.owns_log:
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
            member=self.machine.member,
            votes=bool(page.votes),
            waiting_below=self.waiting_below(log_begin) if log_begin > page.begin else 0,
        )
        alive = page.replica_alive(self.own.host.monotonic_ns())
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
            member=self.machine.member,
            votes=False,
        )
