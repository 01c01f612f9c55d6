"""The broker's side of registration: one session to each nameserver, kept up for as long as the broker runs.

    waiting ──connected, first answer──► accepted ──stream broken, or no answer within a lease──► waiting
       ▲                                                                                             │
       └───────────────────────────── a pause (`backoff.py`) ◄──────────────────────────────────────┘

A session renews every `renew_interval` that the nameserver asks for, and at once when `changed` says so. All
of it runs on the serving loop on purpose: a broker whose loop hangs does not renew, and is taken out of the
routes.

Nameservers share nothing, so each has a task and a state of its own; a dead one delays nobody.

The topic table goes whole with a session's first request. Later requests of the session carry what changed
since the one before: a stream keeps its order, so the nameserver has that version by then. One that has not
asks for the whole table, and so it gets it; one of an earlier version says nothing of changes, and gets it
whole each time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from whimbrel.broker.cluster.backoff import keep_trying
from whimbrel.errors import WhimbrelError
from whimbrel.model.limits import LEASE_S_DEFAULT, RENEW_S_DEFAULT
from whimbrel.model.registration import BrokerFacts, Member, SharedTopics
from whimbrel.model.route import Endpoint
from whimbrel.rpc.api.calls import Metadata, Outbound, perform
from whimbrel.rpc.api.registry_session import open_session, read_update, session_request
from whimbrel.rpc.client.channel import open_aio_channel

__all__ = ["BrokerFacts", "Member", "Registration"]

ASK_TIMEOUT_S = 1.0  # clients give up after 3 s
LEAVE_TIMEOUT_S = 0.5  # of a nameserver, until it takes our leave
RENEW_S_MIN = 0.05  # whatever a nameserver asks for

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Registration:
    """Keeps a broker registered with all nameservers.

    Args:
        nameservers: `host:port` of each.
        facts: gives the broker's state at the moment; called before every request, so it must be cheap.
        on_members: called with every answer: nameserver, other members of the group, whether it is settled.
        on_lost: called with the nameserver when an accepted registration is gone.
        on_displaced: called before `on_members`: nameserver, and the address of another broker that has the
            place of our name and id, or an empty one.
        on_shared: called with the nameserver, and the topics that other brokers have, too, when these change.
    """

    def __init__(
        self,
        nameservers: Sequence[str],
        *,
        facts: Callable[[], BrokerFacts],
        on_members: Callable[[str, tuple[Member, ...], bool], None],
        on_lost: Callable[[str], None],
        on_displaced: Callable[[str, str], None] = lambda nameserver, address: None,
        on_shared: Callable[[str, SharedTopics], None] = lambda nameserver, shared: None,
    ) -> None:
        self.facts, self.on_members, self.on_lost = facts, on_members, on_lost
        self.on_displaced, self.on_shared = on_displaced, on_shared
        self.sessions = [NameserverSession(nameserver, self) for nameserver in nameservers]
        self.tasks: list[asyncio.Task[None]] = []
        self.waiting: dict[Callable[[], None], tuple[int, asyncio.TimerHandle]] = {}

    def start(self) -> None:
        """Begin to register; returns at once."""
        self.tasks = [asyncio.create_task(keep_trying(session.hold)) for session in self.sessions]

    def hand_over(
        self,
        *,
        facts: Callable[[], BrokerFacts],
        on_members: Callable[[str, tuple[Member, ...], bool], None],
        on_lost: Callable[[str], None],
        on_displaced: Callable[[str, str], None] = lambda nameserver, address: None,
        on_shared: Callable[[str, SharedTopics], None] = lambda nameserver, shared: None,
    ) -> None:
        """Be another role's from now on, which hears what nameservers have said last; sessions go on."""
        self.facts, self.on_members, self.on_lost = facts, on_members, on_lost
        self.on_displaced, self.on_shared = on_displaced, on_shared
        for session in self.sessions:
            if session.accepted and session.members is not None:
                on_members(session.nameserver, *session.members)
        self.changed()

    def changed(self) -> None:
        """Tell the nameservers at once: something in the facts is new."""
        for session in self.sessions:
            session.news.set()

    @property
    def accepted(self) -> dict[str, bool]:
        """Which nameservers hold our registration now."""
        return {session.nameserver: session.accepted for session in self.sessions}

    def once_known(self, callback: Callable[[], None], seconds: float) -> None:
        """Call back once the nameservers that hold our registration know the topics as they are now.

        At once where there is none; where one does not answer, after so many seconds. Each call wants a
        callback of its own.
        """
        counter = self.facts().version.counter
        timer = asyncio.get_running_loop().call_later(seconds, self.call_back, callback)
        self.waiting[callback] = counter, timer
        self.call_those_known()

    def call_those_known(self) -> None:
        """Call back whoever waits for what is known now."""
        if self.waiting:
            known = min((one.known for one in self.sessions if one.accepted), default=None)
            for callback, (counter, _) in list(self.waiting.items()):
                if known is None or known >= counter:
                    self.call_back(callback)

    def call_back(self, callback: Callable[[], None]) -> None:
        _, timer = self.waiting.pop(callback)
        timer.cancel()
        callback()

    async def ask(self, question: Outbound[T], metadata: Metadata) -> T | None:
        """Ask the nameservers that hold our registration, one after the other; None when none answers."""
        for session in self.sessions:
            if session.channel is not None and session.accepted:
                try:
                    return await perform(session.channel, question, metadata, ASK_TIMEOUT_S)
                except WhimbrelError as error:
                    logger.debug("nameserver %s: %s", session.nameserver, error)
        return None

    async def stop(self) -> None:
        """Leave all nameservers: they free our place at once, which they keep for a broker that is lost.

        One that does not answer within `LEAVE_TIMEOUT_S` finds the stream broken.
        """
        for _, timer in self.waiting.values():
            timer.cancel()
        self.waiting.clear()
        leaving = [task for task, session in zip(self.tasks, self.sessions, strict=False) if session.leave()]
        if leaving:
            await asyncio.wait(leaving, timeout=LEAVE_TIMEOUT_S)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


class NameserverSession:
    """The session to one nameserver."""

    def __init__(
        self,
        nameserver: str,
        owner: Registration,
    ) -> None:
        self.owner = owner
        self.nameserver = nameserver
        self.host = Endpoint.parse(nameserver).host
        self.members: tuple[tuple[Member, ...], bool] | None = None  # as answered last, and whether settled
        self.accepted = False
        self.held_place = False  # as of the last answer, of this session or the one before
        self.leaving = False
        self.takes_changes = False  # the nameserver has said so in this session
        self.topics_wanted = False  # it has asked for the whole table
        self.channel: grpc.aio.Channel | None = None  # the session's
        self.warned = False  # one warning for each time it goes, not one for each attempt
        self.asked: deque[int] = deque()  # counters of the topics' version in requests not answered yet
        self.known = -1  # that of the last answer
        self.news = asyncio.Event()
        self.renew_s = RENEW_S_DEFAULT
        self.lease_s = LEASE_S_DEFAULT

    def leave(self) -> bool:
        """End the requests, which is our leave; return whether there is a session to end."""
        self.leaving = True
        self.news.set()
        return self.accepted

    async def hold(self) -> bool:
        """Hold one session; return whether the nameserver had accepted it."""
        reason = await self.session()
        if self.leaving:
            raise asyncio.CancelledError  # the task has nothing more to do; `stop` cancels what is left
        accepted, self.accepted = self.accepted, False
        if accepted:
            self.owner.on_lost(self.nameserver)
        if not self.warned:
            self.warned = True
            logger.warning("nameserver %s: not registered (%s); trying on", self.nameserver, reason)
        return accepted

    async def session(self) -> str:
        """Register and renew until the stream breaks; return why it did."""
        self.takes_changes = self.topics_wanted = False
        self.asked.clear()
        self.known = -1
        # A channel for each session: a new one resolves the name again, an old one may wait 30 s.
        async with open_aio_channel(self.nameserver) as channel:
            call = open_session(channel, self.requests())
            self.channel = channel
            try:
                while True:
                    async with asyncio.timeout(self.lease_s):
                        response = await call.read()
                    if response is grpc.aio.EOF:
                        return "the nameserver ended the session"
                    self.answered(response)
            except grpc.aio.AioRpcError as error:
                return error.details() or error.code().name
            except TimeoutError:
                return f"no answer for {self.lease_s:g} s"
            except Exception:  # a bug in a callback must not end the registration for good
                logger.exception("nameserver %s: the session failed", self.nameserver)
                return "internal error"
            finally:
                self.channel = None
                call.cancel()

    def answered(self, response: Any) -> None:
        """Take an answer."""
        answer = read_update(response)
        self.renew_s = max(answer.renew_s or RENEW_S_DEFAULT, RENEW_S_MIN)
        self.lease_s = max(answer.lease_s or LEASE_S_DEFAULT, RENEW_S_MIN)
        if not self.accepted:
            self.accepted, self.warned = True, False
            logger.info("registered with nameserver %s, lease %g s", self.nameserver, self.lease_s)
        self.takes_changes = answer.takes_changes
        if answer.topics_wanted:
            self.topics_wanted = True
            self.news.set()
        self.held_place = not answer.displaced_by
        self.members = answer.members, answer.settled
        self.owner.on_displaced(self.nameserver, answer.displaced_by)
        if answer.shared is not None:
            self.owner.on_shared(self.nameserver, answer.shared)
        self.owner.on_members(self.nameserver, answer.members, answer.settled)
        # Requests are answered in turn. A report that comes in between is taken for an answer: who waits for
        # one is then called a few milliseconds early.
        if self.asked:
            counter = self.asked.popleft()
            self.known = -1 if answer.topics_wanted else counter
            self.owner.call_those_known()

    async def requests(self) -> AsyncIterator[Any]:
        """Make the session's requests: the registration, then renewals with what changed, until we leave."""
        sent: BrokerFacts | None = None
        while not self.leaving:
            self.news.clear()
            facts, wanted, self.topics_wanted = self.owner.facts(), self.topics_wanted, False
            self.asked.append(facts.version.counter)
            yield session_request(
                facts,
                self.host,
                sent,
                held_place=self.held_place,
                takes_changes=self.takes_changes,
                topics_wanted=wanted,
            )
            sent = facts
            try:
                async with asyncio.timeout(self.renew_s):
                    await self.news.wait()
            except TimeoutError:
                continue
