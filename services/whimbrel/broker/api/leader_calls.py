"""Clients' calls at a member of a group that elects its leader: the leader does them, whoever is asked.

SDKs may talk to any member. What they ask for goes

    to the leader        sends, EndTransaction, RecallMessage, ForwardMessageToDeadLetterQueue,
                         ReceiveMessage, AckMessage, ChangeInvisibleDuration, UpdateOffset: handed on as they
                         are, and the answer back
    to both              Heartbeat, NotifyClientTermination: answered here, and the leader is told, so that it
                         takes the client for alive; nobody waits for that
    to the leader first  GetOffset: UpdateOffset went there, so a client that commits a position and asks for
                         it finds it. Where the leader does not answer it is served here, perhaps late
    nowhere              PullMessage and QueryOffset read the log, QueryRoute and QueryAssignment tables,
                         which each member has. A slave's queues may end some milliseconds below the leader's:
                         a pull waits for what it lacks

While nobody leads, the leader does not answer or this member changes its role, calls are held; what is held,
for how long, and what is tried again: `held_calls.py`. A call that was handed over and not answered may have
been done: it fails with LeaderAway, and the SDK decides: at once where the connection ends, `STALE_S` after
another member leads where the old leader hangs. Receives are the exception: one whose answer is lost leaves
messages invisible, whoever asks next, so it goes to the next leader within its client's time.

    slave    handed on, or held until a leader is known     hop `leader` made: NotMaster, at once
    switch   held for whichever role comes                  routes, sessions: need no role
    master   served, by the role's own services             refused because it is new: held

A master's plain sends may go by the compiled lane, past all this. A slave that becomes the master serves what
it holds; what it has handed on to its predecessor is answered, or fails, as before.

The leader sees the address of this member as the caller's, and the client's in a header. So the born host of
a record is the member's, as the lane makes it too; the client's own is in the record's properties.

Concurrency: one loop's thread. A call is held, or under way, or over; whatever ends it takes it out of both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from whimbrel.broker.api.held_calls import AGAIN, HOLD_S, TICK_S, HeldCall, HeldCalls, Leads, Place
from whimbrel.broker.engine.waiting import POLLS_MAX
from whimbrel.broker.tables.clients import Clients
from whimbrel.deferred import Deferred
from whimbrel.errors import LeaderAway, NotMaster, NotReady, WhimbrelError
from whimbrel.model.limits import POLL_MS_MAX
from whimbrel.model.wire import MESSAGING_SERVICE, QUEUE_HEADER, REASON_TRAILER
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.forwarder import (
    FORWARD_S_MAX,
    FORWARDS_MAX,
    TO_LEADER,
    Answer,
    Forwarder,
    Target,
    made,
)
from whimbrel.rpc.server.handlers import Call, Encoded, Method, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.responses import OK, check_client_id

__all__ = ["CALLS_MAX", "STALE_S", "TOLD_MAX", "LeaderCalls"]

Handle = Callable[[Call, Any], Any]

CALLS_MAX = FORWARDS_MAX + POLLS_MAX  # under way, and as many held: each consumer has one that waits long
STALE_S = 1.0  # how long an old leader may still answer what went to it
TOLD_MAX = 64  # heartbeats on their way to the leader; each call of a client tells it as much
TELL_S = 2.0  # how long the leader has for one

TO_LEADER_ONLY = frozenset(
    {
        "SendMessage",
        "EndTransaction",
        "RecallMessage",
        "ForwardMessageToDeadLetterQueue",
        "ReceiveMessage",
        "AckMessage",
        "ChangeInvisibleDuration",
        "UpdateOffset",
    }
)
TO_LEADER_FIRST = frozenset({"GetOffset"})
TO_BOTH = frozenset({"Heartbeat", "NotifyClientTermination"})
HERE = frozenset({"PullMessage", "QueryOffset", "SyncLiteSubscription"})
HELD = TO_LEADER_ONLY | TO_LEADER_FIRST | HERE  # while this member changes its role


@dataclass(eq=False, slots=True, kw_only=True)
class LeaderCall(HeldCall):
    """A client's call.

    Attributes:
        name: of its method.
        deferred: its answer.
        waits_for: what it was handed to; None while it is held.
        target: the other member that it was handed to.
        answer: a refusal as the leader answered it, for when its time is over.
    """

    name: str
    call: Call
    request: Any
    deferred: Deferred[Any]
    waits_for: Deferred[Any] | None = None
    target: Target | None = None
    answer: Answer | None = None


class Timer(Protocol):
    """What can be called off."""

    def cancel(self) -> None:
        """Call it off."""


class Timers(Protocol):
    """What is used of the event loop."""

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> Timer:
        """Call back after some seconds."""


class LeaderCalls:
    """Hands calls of clients on to the leader; serves or holds them, as the member's role asks for.

    Attributes:
        forwarder: what hands them on; belongs to this alone.
        held: the calls that wait.
    """

    def __init__(
        self,
        clients: Clients,
        *,
        clock: Callable[[], float],
        loop: Timers,
        forwarder: Forwarder | None = None,
    ) -> None:
        """Begin without a role, and without a known leader.

        Args:
            clients: those of this member; whoever calls is noted as alive.
            clock: seconds of the monotonic clock.
            loop: for timers.
            forwarder: None: one with the bounds that suit.
        """
        self.clients, self.clock, self.loop = clients, clock, loop
        self.forwarder = Forwarder(calls_max=CALLS_MAX) if forwarder is None else forwarder
        self.held: HeldCalls[LeaderCall] = HeldCalls(calls_max=CALLS_MAX)
        self.under_way: dict[LeaderCall, None] = {}  # at other members
        self.handles: dict[str, Handle] = {}  # of the role that serves now
        self.role: bool | None = None  # whether it leads; None: there is none
        self.leader: Target | None = None  # another member
        self.why = "this broker starts"  # there is no role
        self.told = 0
        self.timer: Timer | None = None
        self.closed = False

    # What the member is

    def wrap(self, services: Sequence[Service]) -> list[Service]:
        """Take the services of a role that is about to begin; return those to serve."""
        return [
            Service(service.name, tuple(map(self.wrapped, service.methods)))
            if service.name == MESSAGING_SERVICE
            else service
            for service in services
        ]

    def wrapped(self, method: Method) -> Method:
        """Return a method that goes where it belongs."""
        if not isinstance(method, UnaryMethod | ServerStreamMethod):
            return method
        name, handle = method.name, method.handle
        if name in TO_BOTH:
            return replace(method, handle=lambda call, request: self.both(handle, call, request))
        if name in HELD:
            self.handles[name] = handle
            return replace(method, handle=lambda call, request: self.take(name, call, request))
        return method

    def suspend(self, why: str) -> frozenset[str]:
        """Hold calls until there is a role again; return the names of those that are held.

        Args:
            why: for people, as a sentence; what calls are told whose time is over.
        """
        self.role, self.why = None, why
        self.settle()
        return HELD

    def role_begun(self, *, leads: bool) -> None:
        """Let the role whose services were wrapped last take calls, those that were held first."""
        self.role = leads
        if leads:
            self.leader = None
        self.settle()

    def follow(self, address: str) -> None:
        """Learn where the leader serves, `host:port`, if it is another member; "" where nobody knows one."""
        self.leader = Target(address, address) if address else None
        self.settle()

    def settle(self) -> None:
        """Let calls go where they belong now."""
        place: Place = Leads.CHANGING
        if self.role:
            place = Leads.HERE
        elif self.role is not None:
            place = self.leader or Leads.NOBODY
        before = self.held.place
        if place == before or self.closed:
            return
        for one in self.held.moved(place, self.clock()):
            self.go(one)
        stale = [
            (one, one.target) for one in self.under_way if one.target is not None and one.target != place
        ]
        if stale:
            self.loop.call_later(STALE_S, self.leave, stale)

    def leave(self, stale: Sequence[tuple[LeaderCall, Target]]) -> None:
        """Wait no longer for an old leader: it answers nothing any more, or nothing that would count.

        All but receives wait for it as long as nobody is known to lead: it may lead on.

        Args:
            stale: calls, and where they were under way.
        """
        place = self.held.place
        for one, target in stale:
            if one not in self.under_way or one.target != target or target == place or one.waits_for is None:
                continue
            if one.name == "ReceiveMessage":
                one.waits_for.cancel()
                self.again(one, target, NotMaster("another member leads now"))
            elif place not in (Leads.NOBODY, Leads.CHANGING):
                one.waits_for.cancel()
                self.under_way.pop(one, None)
                one.waits_for = one.target = None
                away = "has this call, does not answer, and leads no longer: it may have been done"
                self.give_up(one, LeaderAway(f"{target.address} {away}"))

    async def close(self, reason: str) -> None:
        """Answer all calls with NotReady, those under way with LeaderAway; take no more.

        Args:
            reason: for people, as a sentence.
        """
        self.closed = True
        for one in self.held.drain(self.clock()):
            one.deferred.fail(NotReady(reason))
        if self.timer is not None:
            self.timer.cancel()
        await self.forwarder.close()

    # Calls

    def both(self, handle: Handle, call: Call, request: Any) -> Any:
        """Answer a call here, and tell the leader; raises what its handler raises."""
        response = handle(call, request)
        leader = self.held.place
        if isinstance(leader, Target) and self.told < TOLD_MAX and not made(call, TO_LEADER):
            self.tell(call, request, leader)
        return response

    def tell(self, call: Call, request: Any, leader: Target) -> None:
        """Hand a call on whose answer nobody needs."""
        # The client has its answer, and its time is not this call's any more.
        later = replace(call, deadline=None)
        try:
            telling = self.forwarder.pass_on(later, request, leader, TO_LEADER, answer_s=TELL_S)
        except WhimbrelError:
            return  # the next call tells it

        def over() -> None:
            self.told -= 1

        self.told += 1
        telling.waker = over

    def take(self, name: str, call: Call, request: Any) -> Any:
        """Serve a call, hand it on, or hold it; raises the errors that refuse it."""
        place = self.held.place
        if place is Leads.HERE or (name in HERE and place is not Leads.CHANGING):
            refusal: WhimbrelError | None = None
            try:
                response = self.handles[name](call, request)
            except AGAIN as error:
                refusal = error
            else:
                refusal = refused(response)
                if refusal is None:
                    return response
            one = self.arrival(name, call, request)
            self.held.arrived(one, self.clock())
            if not self.hold(one, place, refusal):
                raise refusal
            return one.deferred
        if self.closed:
            raise NotReady("the broker is stopping")
        self.clients.seen(check_client_id(call), call.metadata, self.clock())
        one = self.arrival(name, call, request)
        if self.held.arrived(one, self.clock()):
            self.go(one)
        else:
            self.watch()
        return one.deferred

    def arrival(self, name: str, call: Call, request: Any) -> LeaderCall:
        """Return a call as it comes in."""
        one = LeaderCall(
            name=name,
            call=call,
            request=request,
            deferred=Deferred(),
            size=request.ByteSize(),
            # One that was handed on by another member is answered as soon as there is a role.
            needs_leader=name in TO_LEADER_ONLY and not made(call, TO_LEADER),
        )

        def left() -> None:
            self.held.drop(one)
            self.under_way.pop(one, None)
            if one.waits_for is not None:
                one.waits_for.cancel()

        one.deferred.on_cancel = left
        return one

    def go(self, one: LeaderCall) -> None:
        """Let a call go on."""
        place = self.held.place
        if place is Leads.HERE or one.name in HERE:
            self.serve(one)
        elif made(one.call, TO_LEADER):
            one.deferred.fail(NotMaster("another member took this one for the leader; it is not"))
        elif isinstance(place, Target):
            self.hand_over(one, place)
        else:  # who asks the leader first, and there is none
            self.serve(one)

    def serve(self, one: LeaderCall) -> None:
        """Have a call served by the role of this member."""
        place, one.answer = self.held.place, None
        try:
            response = self.handles[one.name](one.call, one.request)
            if refusal := refused(response):
                raise refusal
        except AGAIN as error:
            if not self.hold(one, place, error):
                one.deferred.fail(error)
            return
        except Exception as error:  # noqa: BLE001 - the transport makes a status of it
            one.deferred.fail(error)
            return
        if not isinstance(response, Deferred):
            one.deferred.complete(response)
            return
        one.waits_for = response

        def over() -> None:
            one.waits_for = None
            one.deferred.settle_as(response)

        response.waker = over
        if response.done:
            over()

    def hand_over(self, one: LeaderCall, leader: Target) -> None:
        """Hand a call on to the leader."""
        one.answer = None
        queue_id = one.call.metadata.get(QUEUE_HEADER)
        stream = one.name == "ReceiveMessage"
        try:
            attempt = self.forwarder.pass_on(
                one.call,
                one.request,
                leader,
                TO_LEADER,
                stream=stream,
                answer_s=FORWARD_S_MAX + (POLL_MS_MAX / 1000 if stream else 0.0),
                headers=() if queue_id is None else ((QUEUE_HEADER, queue_id),),
            )
        except WhimbrelError as error:
            one.deferred.fail(error)
            return
        one.waits_for, one.target = attempt, leader
        self.under_way[one] = None
        attempt.waker = lambda: self.tried(one, leader, attempt)

    def tried(self, one: LeaderCall, leader: Target, attempt: Deferred[Answer]) -> None:
        """Take what has become of a call at the leader."""
        self.under_way.pop(one, None)
        one.waits_for = one.target = None
        answer, error = attempt.result, attempt.error
        if answer is not None:
            reason = WhimbrelError.known.get(answer.trailers.get(REASON_TRAILER, ""))
            if reason is None or not issubclass(reason, AGAIN):
                self.held.answered(leader, self.clock())
                self.deliver(one, answer)
                return
            one.answer = answer
            self.again(one, leader, reason(f"{leader.address} has refused it"))
            return
        assert isinstance(error, WhimbrelError)
        if isinstance(error, LeaderAway) and one.name == "ReceiveMessage":
            error = NotReady(str(error))
        if self.closed or not isinstance(error, AGAIN):
            self.give_up(one, error)
        else:
            self.again(one, leader, error)

    def again(self, one: LeaderCall, leader: Target, refusal: WhimbrelError) -> None:
        """Hold a call that was tried in vain, or answer it."""
        self.under_way.pop(one, None)
        one.waits_for = one.target = None
        if one.name in TO_LEADER_FIRST:
            self.give_up(one, refusal)
        elif not self.hold(one, leader, refusal):
            self.refuse(one)

    def hold(self, one: LeaderCall, place: Place, refusal: WhimbrelError) -> bool:
        """Hold a call that was refused, if it may be tried again; return whether it is."""
        if self.closed or not self.held.refused(one, place, refusal, self.clock()):
            return False
        self.watch()
        return True

    def give_up(self, one: LeaderCall, error: WhimbrelError) -> None:
        """Answer a call that the leader can't."""
        if one.name in TO_LEADER_FIRST and self.held.place is not Leads.CHANGING:
            self.serve(one)
        else:
            one.deferred.fail(error)

    def refuse(self, one: LeaderCall) -> None:
        """Answer a call whose time is over."""
        place = self.held.place
        if place is Leads.CHANGING:
            one.deferred.fail(NotReady(self.why))
        elif one.answer is not None:
            self.deliver(one, one.answer)
        elif place is Leads.HERE and one.refusal is not None:
            one.deferred.fail(one.refusal)
        else:
            why = one.refusal or "no leader is known here"
            one.deferred.fail(NotMaster(f"this member does not lead, and within {HOLD_S:g} s: {why}"))

    def deliver(self, one: LeaderCall, answer: Answer) -> None:
        """Give a client the leader's answer."""
        response = getattr(messaging, f"{one.name}Response")
        frames: list[Any] = [Encoded(data, OK) for data in answer.messages]
        try:
            frames[:1] = [Encoded(data, response.FromString(data).status) for data in answer.messages[:1]]
        except DecodeError as error:
            one.deferred.fail(LeaderAway(f"the leader's answer does not decode: {error}"))
            return
        one.call.trailers += [
            (name, text) for name, text in answer.trailers.items() if name.startswith("whimbrel-")
        ]
        one.deferred.complete(frames if one.name == "ReceiveMessage" else frames[0])

    # Time

    def watch(self) -> None:
        """Look at the calls that are held again in a moment."""
        if self.timer is None and self.held.held:
            self.timer = self.loop.call_later(TICK_S, self.tick)

    def tick(self) -> None:
        """Try calls again, and answer those whose time is over."""
        self.timer = None
        now = self.clock()
        for one in self.held.over(now):
            self.refuse(one)
        for one in self.held.due(now):
            self.go(one)
        self.watch()


def refused(response: Any) -> WhimbrelError | None:
    """Return the refusal that a handler has answered with already, if nothing was done."""
    if isinstance(response, Deferred) and response.done and isinstance(response.error, AGAIN):
        return response.error
    return None
