"""QueryAssignment is forwarded to a nameserver, and the last answer is repeated while none answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from whimbrel.broker.api.assignments import CACHED_MAX, Assignments
from whimbrel.broker.api.route import RouteService
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.errors import IllegalGroup, NotReady, TopicNotFound
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.handlers import Call

BROKER_PORT = 8091
NAMESERVER_PORT = 8081


class Rig:
    """A broker's edge, and a nameserver that says what `answer` holds."""

    def __init__(self, root: Path) -> None:
        self.answer: Any = None
        self.asked: list[tuple[messaging.QueryAssignmentRequest, dict[str, str]]] = []
        topics = TopicTable(root, auto_create=False, cluster="c", broker_name="broker-a", clock=lambda: 1)
        self.service = RouteService(
            topics,
            GroupTable(root, auto_create=False, clock=lambda: 1),
            Assignments(self.ask),
            name="broker-a",
            takes_messages=True,
            ports=lambda: frozenset((BROKER_PORT, 0)),
        )

    async def ask(self, question: Any, metadata: Any) -> Any:
        self.asked.append((messaging.QueryAssignmentRequest.FromString(question.payload), dict(metadata)))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return None if self.answer is None else question.decode([self.answer.SerializeToString()], {})

    async def query(
        self,
        headers: dict[str, str] | None = None,
        *,
        topic: str = "t",
        group: str = "g",
        port: int = NAMESERVER_PORT,
    ) -> Any:
        request = messaging.QueryAssignmentRequest()
        request.topic.name, request.group.name = topic, group
        request.endpoints.scheme = v2.IPv4
        request.endpoints.addresses.add(host="127.0.0.1", port=port)
        call = Call("m", "p", {"x-mq-client-id": "c", **(headers or {})}, None)
        deferred = self.service.query_assignment(call, request)
        done = asyncio.Event()
        deferred.waker = done.set
        if not deferred.done:
            await done.wait()
        if deferred.error is not None:
            raise deferred.error
        return deferred.result


def response(*ports: int, code: Any = v2.OK) -> messaging.QueryAssignmentResponse:
    made = messaging.QueryAssignmentResponse(status=v2.Status(code=code))
    for port in ports:
        queue = made.assignments.add().message_queue
        queue.id = -1
        queue.broker.endpoints.addresses.add(host="127.0.0.1", port=port)
    return made


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_the_nameservers_answer_is_passed_on_and_never_the_endpoints_of_the_request(rig: Rig) -> None:
    rig.answer = response(BROKER_PORT, 8191)
    assert await rig.query(port=NAMESERVER_PORT) == rig.answer
    assert await rig.query(port=BROKER_PORT) == rig.answer
    assert [asked.endpoints.addresses[0].port for asked, _ in rig.asked] == [NAMESERVER_PORT, BROKER_PORT]


async def test_the_client_its_namespace_and_its_language_are_passed_on_too(rig: Rig) -> None:
    rig.answer = response(BROKER_PORT)
    await rig.query({"x-mq-namespace": "ns1", "x-mq-language": "HTTP", "x-mq-client-version": "1"})
    assert rig.asked[0][1] == {
        "x-mq-client-id": "c",
        "x-mq-namespace": "ns1",
        "x-mq-language": "HTTP",
        "x-whimbrel-client-peer": "p",
    }


@pytest.mark.parametrize(
    "silence", [None, response(code=v2.INTERNAL_SERVER_ERROR)], ids=["dead", "not ready"]
)
async def test_the_last_answer_to_the_same_question_stands_while_no_nameserver_answers(
    rig: Rig, silence: Any
) -> None:
    known = rig.answer = response(BROKER_PORT)
    await rig.query()
    rig.answer = silence
    assert await rig.query() == known
    assert await rig.query({"x-mq-client-id": "another"}) == known
    with pytest.raises(NotReady):  # to another SDK the answer may be another one
        await rig.query({"x-mq-language": "JAVA"})


async def test_request_without_any_answer_is_refused_instead_of_sending_pollers_to_the_nameserver(
    rig: Rig,
) -> None:
    with pytest.raises(NotReady):
        await rig.query(port=NAMESERVER_PORT)


async def test_a_broker_answers_alone_to_clients_that_were_given_its_own_address(rig: Rig) -> None:
    with pytest.raises(TopicNotFound):
        await rig.query(port=BROKER_PORT)


async def test_a_refusal_by_the_nameserver_is_passed_on(rig: Rig) -> None:
    rig.answer = response(BROKER_PORT)
    await rig.query()
    rig.answer = response(code=v2.TOPIC_NOT_FOUND)
    assert (await rig.query()).status.code == v2.TOPIC_NOT_FOUND


async def test_a_closed_channel_under_the_question_still_gives_an_answer(rig: Rig) -> None:
    rig.answer = asyncio.CancelledError()
    with pytest.raises(NotReady):
        await rig.query()


async def test_cached_answers_are_bounded(rig: Rig) -> None:
    rig.answer = response(BROKER_PORT)
    for n in range(CACHED_MAX + 1):
        await rig.query(topic=f"t{n}")
    rig.answer = None
    with pytest.raises(NotReady):
        await rig.query(topic="t0")
    assert (await rig.query(topic="t1")).assignments


async def test_bad_names_are_refused_at_once(rig: Rig) -> None:
    with pytest.raises(IllegalGroup):
        await rig.query(group="a b")
    assert rig.asked == []
