"""Clients' calls at a member that does not lead: where they go, what they are answered, and what waits."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.cluster.broker_api import message
from support.waiting import turns
from whimbrel.broker.api.held_calls import HOLD_S, SETTLE_S
from whimbrel.broker.api.leader_calls import STALE_S, TELL_S, TOLD_MAX, LeaderCalls
from whimbrel.broker.roles.suspended import suspended
from whimbrel.broker.tables.clients import Clients
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    ClientIdRequired,
    IllegalTopic,
    LeaderAway,
    NoReplica,
    NotMaster,
    NotReady,
    RequestTimeout,
    Unavailable,
    WhimbrelError,
)
from whimbrel.model.wire import MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.api.calls import Metadata, Outbound
from whimbrel.rpc.server.forwarder import Forwarder
from whimbrel.rpc.server.handlers import Call, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.responses import OK, status_of

STREAMS = ("ReceiveMessage", "PullMessage")
UNARY = (
    "SendMessage", "EndTransaction", "RecallMessage", "ForwardMessageToDeadLetterQueue", "AckMessage",
    "ChangeInvisibleDuration", "UpdateOffset", "GetOffset", "QueryOffset", "Heartbeat",
    "NotifyClientTermination", "QueryRoute",
)  # fmt: skip
WRITES = (*UNARY[:7], "ReceiveMessage")


class Clock:
    """The loop's timers, and the time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: Any) -> Any:
        entry = (self.now + delay, callback, arguments)
        self.timers.append(entry)

        class Handle:
            def cancel(handle) -> None:
                if entry in self.timers:
                    self.timers.remove(entry)

        return Handle()

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := sorted((each for each in self.timers if each[0] <= end), key=lambda each: each[0]):
            self.timers.remove(due[0])
            self.now = max(due[0][0], self.now)
            due[0][1](*due[0][2])
        self.now = end


class Far:
    """All other members; each call waits until it is answered here."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Outbound[Any], dict[str, str], float]] = []
        self.answers: list[asyncio.Future[Any]] = []
        self.away: set[str] = set()

    def dial(self, address: str) -> "Connection":
        return Connection(self, address)

    def answer(self, answer: Any, number: int = -1) -> None:
        self.answers[number].set_result(answer)

    @property
    def asked(self) -> list[str]:
        return [f"{address} {outbound.path.rpartition('/')[2]}" for address, outbound, *_ in self.calls]


class Connection:
    def __init__(self, far: Far, address: str) -> None:
        self.far, self.address = far, address

    async def connect(self, timeout_s: float) -> None:
        if self.address in self.far.away:
            raise NotReady(f"no connection within {timeout_s} s")

    async def perform(self, outbound: Outbound[Any], metadata: Metadata, timeout_s: float) -> Any:
        self.far.calls.append((self.address, outbound, dict(metadata), timeout_s))
        self.far.answers.append(asyncio.get_running_loop().create_future())
        answer = await self.far.answers[-1]
        if isinstance(answer, Exception):
            raise answer
        messages, trailers = answer if isinstance(answer, tuple) else ([answer], {})
        return outbound.decode(messages, trailers)

    async def close(self) -> None:
        pass


class Member:
    """A member without a server: its calls, and a role whose answers the test chooses."""

    def __init__(self, leader: str = "", *, leads: bool = False, begins: bool = True) -> None:
        self.clock, self.far, self.clients = Clock(), Far(), Clients()
        self.calls = LeaderCalls(
            self.clients, clock=lambda: self.clock.now, loop=self.clock, forwarder=Forwarder(self.far.dial)
        )
        self.served: list[str] = []  # by the role
        self.response: Callable[[str], Any] = self.status
        self.begin(leads=leads, begins=begins)
        if leader:
            self.calls.follow(leader)

    @staticmethod
    def status(name: str) -> Any:
        response = getattr(messaging, f"{name}Response")(status=OK)
        return [response] if name in STREAMS else response

    def begin(self, *, leads: bool, begins: bool = True) -> None:
        """Begin a role."""

        def handler(name: str) -> Callable[[Call, Any], Any]:
            def handle(call: Call, request: Any) -> Any:
                self.served.append(name)
                return self.response(name)

            return handle

        def made(name: str) -> UnaryMethod | ServerStreamMethod:
            kind = ServerStreamMethod if name in STREAMS else UnaryMethod
            response = getattr(messaging, f"{name}Response")
            return kind(
                name, getattr(messaging, f"{name}Request"), handler(name),
                lambda call, error: response(status=status_of(error)),
            )  # fmt: skip

        service = Service(MESSAGING_SERVICE, tuple(map(made, (*UNARY, *STREAMS))))
        other = Service("whimbrel.admin.v1.AdminService", (made("SendMessage"),))
        self.services = self.calls.wrap([service, other])
        if begins:
            self.calls.role_begun(leads=leads)

    def suspend(self) -> None:
        self.services = suspended(self.services, "no role now", self.calls)

    def call(self, name: str, request: Any = None, **headers: str) -> Any:
        method: Any = next(each for each in self.services[0].methods if each.name == name)
        fields = {"x-mq-client-id": "c@1"} | {key.replace("_", "-"): text for key, text in headers.items()}
        deadline = time.monotonic() + 1 if name in ("Heartbeat", "NotifyClientTermination") else None
        self.last = Call(f"/{MESSAGING_SERVICE}/{name}", "10.0.0.7:5000", fields, deadline)
        return method.handle(self.last, request or method.request())

    async def settle(self, seconds: float = 0.0) -> None:
        """Let time pass in small steps, so that tasks keep up with timers."""
        await turns(10)
        for _ in range(round(seconds / 0.025)):
            self.clock.advance(0.025)
            await turns(10)


def response(name: str, code: Any = v2.OK, text: str = "") -> bytes:
    made: bytes = getattr(messaging, f"{name}Response")(
        status=v2.Status(code=code, message=text)
    ).SerializeToString()
    return made


def refusal(name: str, error: WhimbrelError) -> tuple[list[bytes], dict[str, str]]:
    """Return how a leader answers with an error."""
    return [response(name, error.code, str(error))], {"whimbrel-reason": error.reason, "grpc-x": "y"}


def codes(answer: Deferred[Any]) -> list[Any]:
    assert answer.done and answer.error is None, answer.error
    found: list[Any] = answer.result if isinstance(answer.result, list) else [answer.result]
    return [each.status.code for each in found]


@pytest.mark.parametrize("name", WRITES)
async def test_what_changes_anything_goes_to_the_leader_and_its_answer_back(name: str) -> None:
    member = Member("m:1")
    answer = member.call(name, whimbrel_queue_id="0")
    await member.settle()
    assert member.far.asked == [f"m:1 {name}"] and member.served == []
    _, outbound, metadata, timeout_s = member.far.calls[0]
    assert metadata == {
        "x-mq-client-id": "c@1", "x-whimbrel-client-peer": "10.0.0.7:5000", "whimbrel-hops": "leader",
        "whimbrel-queue-id": "0",
    }  # fmt: skip
    assert outbound.stream == (name == "ReceiveMessage")
    assert timeout_s == (28.0 if name == "ReceiveMessage" else 8.0)
    member.far.answer(refusal(name, IllegalTopic("blank")))  # an error like any other answer
    await member.settle()
    assert codes(answer) == [v2.ILLEGAL_TOPIC]
    assert member.last.trailers == [("whimbrel-reason", "ILLEGAL_TOPIC")]
    assert member.clients.alive("c@1") and not member.calls.under_way


async def test_all_frames_of_a_receive_come_back_in_their_order() -> None:
    member = Member("m:1")
    answer = member.call("ReceiveMessage")
    frames = [response("ReceiveMessage"), b"*\x02me", b"**"]
    await member.settle()
    member.far.answer((frames, {}))
    await member.settle()
    assert [each.SerializeToString() for each in answer.result] == frames


async def test_the_request_goes_along_unchanged() -> None:
    member = Member("m:1")
    request = messaging.SendMessageRequest(messages=[message("t", b"x", message_group="g")])
    member.call("SendMessage", request)
    await member.settle()
    assert member.far.calls[0][1].payload == request.SerializeToString()


@pytest.mark.parametrize("name", ["PullMessage", "QueryOffset", "QueryRoute"])
async def test_what_reads_is_served_here(name: str) -> None:
    for member in (Member("m:1"), Member()):
        assert member.call(name) and member.served == [name]
        assert member.far.asked == []


async def test_a_committed_position_is_asked_of_the_leader_and_else_served_here() -> None:
    member = Member("m:1")
    answer = member.call("GetOffset")
    await member.settle()
    assert member.far.asked == ["m:1 GetOffset"] and member.served == []
    member.far.answer(response("GetOffset", v2.OFFSET_NOT_FOUND))
    await member.settle()
    assert codes(answer) == [v2.OFFSET_NOT_FOUND]
    answer = member.call("GetOffset")
    await member.settle()
    member.far.answer(Unavailable("gone"))
    await member.settle()
    assert codes(answer) == [v2.OK] and member.served == ["GetOffset"]
    member.far.away.add("m:1")
    answer = member.call("GetOffset")
    await member.settle()
    assert codes(answer) == [v2.OK] and len(member.served) == 2
    member.calls.follow("")
    assert codes(member.call("GetOffset")) == [v2.OK] and len(member.served) == 3


@pytest.mark.parametrize("name", ["Heartbeat", "NotifyClientTermination"])
async def test_who_lives_is_told_to_the_leader_and_nobody_waits_for_that(name: str) -> None:
    member = Member("m:1")
    assert member.call(name).status.code == v2.OK and member.served == [name]
    await member.settle()
    assert member.far.asked == [f"m:1 {name}"]
    assert member.call(name, whimbrel_hops="leader").status.code == v2.OK  # by a member that takes us for it
    await member.settle()
    assert len(member.far.calls) == 1
    for _ in range(TOLD_MAX + 5):
        assert member.call(name).status.code == v2.OK
    await member.settle()
    assert len(member.far.calls) == TOLD_MAX
    member.far.answer(Unavailable("gone"), 0)
    await member.settle()
    assert member.call(name).status.code == v2.OK
    await member.settle()
    assert len(member.far.calls) == TOLD_MAX + 1
    assert {timeout_s for *_, timeout_s in member.far.calls} == {TELL_S}  # the client has its answer
    await member.calls.close("over")


async def test_a_call_makes_the_hop_once_besides_others() -> None:
    for member in (Member("m:1"), Member()):
        answer = member.call("SendMessage", whimbrel_hops="leader")
        assert isinstance(answer.error, NotMaster) and member.far.asked == []
    member = Member("m:1")
    member.call("SendMessage", whimbrel_hops="owner", whimbrel_queue_id="3")
    await member.settle()
    assert member.far.calls[0][2]["whimbrel-hops"] == "owner,leader"
    assert member.far.calls[0][2]["whimbrel-queue-id"] == "3"
    assert Member(leads=True).call("SendMessage", whimbrel_hops="leader").status.code == v2.OK


async def test_a_client_names_itself() -> None:
    member = Member("m:1")
    with pytest.raises(ClientIdRequired):
        member.call("SendMessage", x_mq_client_id=" ")


async def test_calls_are_held_until_a_leader_is_known() -> None:
    member = Member()
    answers = [member.call("SendMessage", whimbrel_queue_id=str(number)) for number in range(3)]
    await member.settle(HOLD_S - 0.1)
    assert member.far.asked == [] and len(member.calls.held) == 3
    member.calls.follow("m:1")
    await member.settle()
    assert [metadata["whimbrel-queue-id"] for _, _, metadata, _ in member.far.calls] == ["0", "1", "2"]
    for number in range(3):
        member.far.answer(response("SendMessage"), number)
    await member.settle()
    assert [codes(each) for each in answers] == [[v2.OK]] * 3 and len(member.calls.held) == 0


async def test_without_a_leader_a_call_is_answered_when_its_time_is_over() -> None:
    member = Member()
    answer = member.call("SendMessage")
    await member.settle(HOLD_S - 0.1)
    assert not answer.done
    await member.settle(0.2)
    assert isinstance(answer.error, NotMaster) and "no leader is known" in str(answer.error)
    assert len(member.calls.held) == 0 and not member.clock.timers


async def test_a_leader_that_is_not_there_is_tried_until_it_is() -> None:
    member = Member("m:1")
    member.far.away.add("m:1")
    answer = member.call("SendMessage")
    await member.settle(1.0)
    assert member.far.asked == [] and not answer.done
    member.far.away.clear()
    await member.settle(0.3)
    assert member.far.asked == ["m:1 SendMessage"]
    member.far.answer(response("SendMessage"))
    await member.settle()
    assert codes(answer) == [v2.OK]


@pytest.mark.parametrize("error", [NotMaster("a slave"), NotReady("changes its role"), NoReplica("1 of 2")])
async def test_what_was_refused_goes_to_the_next_leader(error: WhimbrelError) -> None:
    member = Member("a:1")
    answer = member.call("SendMessage")
    await member.settle()
    member.far.answer(refusal("SendMessage", error))
    await member.settle()
    assert len(member.calls.held) == 1
    member.calls.follow("b:1")
    await member.settle()
    assert member.far.asked == ["a:1 SendMessage", "b:1 SendMessage"]
    member.far.answer(response("SendMessage"))
    await member.settle()
    assert codes(answer) == [v2.OK] and member.last.trailers == []


async def test_a_leader_that_goes_on_refusing_has_the_last_word() -> None:
    member = Member("a:1")
    answer = member.call("SendMessage")
    tries = 0
    while not answer.done:
        await member.settle(0.025)
        if len(member.far.calls) > tries:
            tries += 1
            member.far.answer(refusal("SendMessage", NoReplica("1 of 2 members")))
        assert member.clock.now < 1000 + HOLD_S + 1
    assert member.clock.now >= 1000 + HOLD_S and 5 < tries < 20
    assert codes(answer) == [v2.HA_NOT_AVAILABLE] and "1 of 2" in answer.result.status.message
    assert member.last.trailers == [("whimbrel-reason", "HA_NOT_AVAILABLE")]


@pytest.mark.parametrize("failure", [Unavailable("gone"), RequestTimeout("late")])
@pytest.mark.parametrize("name", [name for name in WRITES if name != "ReceiveMessage"])
async def test_what_may_have_been_done_is_never_done_again(name: str, failure: Exception) -> None:
    member = Member("a:1")
    answer = member.call(name)
    await member.settle()
    member.far.answer(failure)
    member.calls.follow("b:1")
    await member.settle(HOLD_S)
    assert isinstance(answer.error, LeaderAway) and answer.error.effect == "unknown"
    assert member.far.asked == [f"a:1 {name}"]


async def test_a_receive_that_is_cut_off_goes_to_the_next_leader() -> None:
    member = Member("a:1")
    answer = member.call("ReceiveMessage")
    await member.settle(15.0)
    member.far.answer(Unavailable("gone"))
    member.far.away.add("a:1")
    await member.settle(1.0)
    member.calls.follow("b:1")
    await member.settle()
    assert member.far.asked == ["a:1 ReceiveMessage", "b:1 ReceiveMessage"]
    member.far.answer(([response("ReceiveMessage")], {}))
    await member.settle()
    assert codes(answer) == [v2.OK]


async def test_a_leader_that_hangs_loses_its_receives_to_the_next_one_and_other_calls_fail() -> None:
    member = Member("a:1")
    member.call("ReceiveMessage")
    sent, asked = member.call("SendMessage"), member.call("GetOffset")
    await member.settle()
    member.calls.follow("b:1")
    await member.settle(STALE_S - 0.1)
    assert len(member.far.calls) == 3 and not sent.done
    await member.settle(0.2)
    assert member.far.asked[3:] == ["b:1 ReceiveMessage"]
    assert all(each.cancelled() for each in member.far.answers[:3])
    assert isinstance(sent.error, LeaderAway) and "leads no longer" in str(sent.error)
    assert asked.done and asked.error is None  # served here
    assert len(member.calls.under_way) == 1
    await member.calls.close("over")


async def test_a_leader_that_answers_late_and_before_it_is_left_is_believed() -> None:
    member = Member("a:1")
    sent = member.call("SendMessage")
    await member.settle()
    member.calls.follow("b:1")
    await member.settle(STALE_S - 0.1)
    member.far.answer(response("SendMessage"))
    await member.settle(1.0)
    assert codes(sent) == [v2.OK] and len(member.far.calls) == 1
    await member.calls.close("over")


async def test_sends_wait_for_an_old_leader_until_another_one_leads() -> None:
    member = Member("a:1")
    first, second = member.call("SendMessage"), member.call("SendMessage")
    await member.settle()
    member.calls.follow("")
    await member.settle(2 * STALE_S)
    assert not first.done
    member.far.answer(response("SendMessage"))  # to the second
    await member.settle()
    assert codes(second) == [v2.OK] and not first.done
    member.calls.follow("b:1")
    await member.settle(STALE_S + 0.1)
    assert isinstance(first.error, LeaderAway)
    await member.calls.close("over")


@pytest.mark.parametrize("leader", ["", "m:1"])
async def test_a_client_that_leaves_is_forgotten(leader: str) -> None:
    member = Member(leader)
    answer = member.call("ReceiveMessage")
    await member.settle()
    answer.cancel()
    await member.settle()
    assert (len(member.calls.held), len(member.calls.under_way), member.calls.held.bytes) == (0, 0, 0)
    assert all(each.cancelled() for each in member.far.answers) and not member.calls.forwarder.tasks
    member.calls.follow("b:1")
    await member.settle(HOLD_S)
    assert len(member.far.calls) == (1 if leader else 0)


async def test_calls_between_two_roles_are_served_by_the_next_one() -> None:
    member = Member("a:1")
    member.suspend()
    answers = [member.call(name) for name in ("SendMessage", "PullMessage", "GetOffset")]
    assert member.call("QueryRoute").status.code == v2.OK and member.call("Heartbeat").status.code == v2.OK
    admin: Any = member.services[1].methods[0]
    with pytest.raises(NotReady):  # another service's
        admin.handle(None, None)
    await member.settle(1.0)
    assert member.far.asked == [] and member.served == ["QueryRoute", "Heartbeat"]
    member.begin(leads=True)
    assert [codes(each) for each in answers] == [[v2.OK]] * 3
    assert member.served[2:] == ["SendMessage", "PullMessage", "GetOffset"]
    await member.settle()
    assert member.far.asked == []


async def test_calls_between_two_roles_go_on_to_the_leader_of_a_slave() -> None:
    member = Member(leads=True)
    member.suspend()
    sent, pulled = member.call("SendMessage"), member.call("PullMessage")
    hopped = member.call("AckMessage", whimbrel_hops="leader")
    member.begin(leads=False)
    await member.settle()
    assert codes(pulled) == [v2.OK] and isinstance(hopped.error, NotMaster)
    assert not sent.done and len(member.calls.held) == 1
    member.calls.follow("b:1")
    await member.settle()
    assert member.far.asked == ["b:1 SendMessage"]
    await member.calls.close("over")


async def test_who_led_before_this_member_did_is_forgotten() -> None:
    member = Member("a:1")
    member.suspend()
    member.begin(leads=True)
    member.suspend()
    member.begin(leads=False)
    member.call("SendMessage")
    await member.settle()
    assert member.far.asked == [] and len(member.calls.held) == 1


async def test_the_last_refusal_counts() -> None:
    member = Member("a:1")
    answers = [member.call("SendMessage"), member.call("SendMessage")]
    await member.settle()
    for number in range(2):
        member.far.answer(refusal("SendMessage", NoReplica("1 of 2 members")), number)
    await member.settle()
    member.far.away.add("a:1")
    await member.settle(1.0)
    left = answers.pop()
    left.cancel()
    await member.settle(HOLD_S)
    assert isinstance(answers[0].error, NotMaster) and "no connection" in str(answers[0].error)

    member = Member("a:1")
    answer = member.call("SendMessage")
    await member.settle()
    member.far.answer(refusal("SendMessage", NoReplica("1 of 2 members")))
    await member.settle()

    def refuses(name: str) -> Any:
        raise NotReady("still reading")

    member.response = refuses
    member.suspend()
    member.begin(leads=True)
    await member.settle(HOLD_S + 0.1)
    assert isinstance(answer.error, NotReady) and str(answer.error) == "still reading"


async def test_an_answer_lets_others_go_that_pause() -> None:
    member = Member("a:1")
    member.call("SendMessage")
    await member.settle()
    for _ in range(5):  # the pause is 200 ms then
        while member.far.answers[-1].done():
            await member.settle(0.025)
        member.far.answer(refusal("SendMessage", NotReady("still reading")))
    await member.settle(0.05)
    asked = len(member.far.calls)
    other = member.call("AckMessage")
    await member.settle()
    member.far.answer(response("AckMessage"))
    await member.settle(0.05)
    assert codes(other) == [v2.OK] and len(member.far.calls) == asked + 2
    await member.calls.close("over")


async def test_without_a_next_role_calls_are_told_so() -> None:
    member = Member(leads=True)
    member.suspend()
    answer = member.call("SendMessage")
    await member.settle(HOLD_S + 0.1)
    assert isinstance(answer.error, NotReady) and "no role now" in str(answer.error)


async def test_the_lane_takes_nothing_without_a_role() -> None:
    member = Member(leads=True)
    lane: Any = object()
    send: Any = member.services[0].methods[0]
    member.services[0] = Service(
        MESSAGING_SERVICE, (UnaryMethod("SendMessage", send.request, send.handle, lane=lane),)
    )
    assert suspended(member.services, "x", member.calls)[0].methods[0].lane is None  # type: ignore[union-attr]


async def test_a_master_serves_at_once_and_holds_what_it_refuses_while_it_is_new() -> None:
    member = Member(leads=True)
    assert member.call("SendMessage").status.code == v2.OK

    def refuses(name: str) -> Any:
        raise NoReplica("1 of 2")

    member.response = refuses
    answer = member.call("SendMessage")
    await member.settle(0.5)
    assert not answer.done and 3 < len(member.served) < 10
    member.response = member.status
    await member.settle(0.3)
    assert codes(answer) == [v2.OK]
    member.response = refuses
    answer = member.call("SendMessage")
    await member.settle(HOLD_S + 0.1)
    assert isinstance(answer.error, NoReplica)
    await member.settle(SETTLE_S)
    with pytest.raises(NoReplica):
        member.call("SendMessage")


async def test_a_held_call_may_wait_for_the_master_that_serves_it() -> None:
    member = Member(leads=True)
    member.suspend()
    answer, left = member.call("SendMessage"), member.call("SendMessage")
    parked: list[Deferred[Any]] = []

    def parks(name: str) -> Any:
        parked.append(Deferred())
        return parked[-1]

    member.response = parks
    member.begin(leads=True)
    assert len(parked) == 2 and not answer.done
    left.cancel()
    assert parked[1].cancelled
    parked[0].complete(Member.status("SendMessage"))
    assert codes(answer) == [v2.OK]


async def test_an_answer_that_is_a_refusal_already_is_held_too() -> None:
    member = Member(leads=True)
    refusals = [NotReady("still reading")]

    def once(name: str) -> Any:
        deferred: Deferred[Any] = Deferred()
        deferred.fail(refusals.pop()) if refusals else deferred.complete(Member.status(name))
        return deferred

    member.response = once
    answer = member.call("EndTransaction")
    assert not answer.done
    await member.settle(0.1)
    assert codes(answer) == [v2.OK]


async def test_the_end_answers_all() -> None:
    member = Member("a:1")
    sent, received = member.call("SendMessage"), member.call("ReceiveMessage")
    await member.settle()
    member.calls.follow("")
    waits = member.call("SendMessage")
    await member.calls.close("the broker is stopping")
    assert isinstance(waits.error, NotReady)
    assert isinstance(sent.error, LeaderAway) and isinstance(received.error, NotReady)
    assert not member.calls.under_way and len(member.calls.held) == 0
    with pytest.raises(NotReady):
        member.call("SendMessage")


async def test_an_answer_that_does_not_decode_is_an_error() -> None:
    member = Member("a:1")
    answer = member.call("SendMessage")
    await member.settle()
    member.far.answer(b"\xff\xff")
    await member.settle()
    assert isinstance(answer.error, LeaderAway)
