"""Which calls are measured, and under which labels."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from whimbrel.deferred import Deferred
from whimbrel.errors import NotWritable, TopicNotFound
from whimbrel.metrics import Histogram, Labels
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2, service_pb2
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.call_metrics import CallTimes
from whimbrel.rpc.server.handlers import ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.responses import failing_with
from whimbrel.rpc.server.serving import serve

pytestmark = pytest.mark.transport

REQUEST = service_pb2.HeartbeatRequest
RESPONSE = service_pb2.HeartbeatResponse
OK = definition_pb2.Status(code=definition_pb2.OK)


async def called(method: Any, *, patience_s: float = 10.0, raw: bytes = b"") -> tuple[Labels, Histogram]:
    """Call a method once, whatever comes of it, and return what was measured."""
    times = CallTimes()
    last_ended = asyncio.Event()

    def ended(*seen: Any) -> None:
        times.observe(*seen)
        last_ended.set()

    server = await serve([Service("t.T", (method,))], host="127.0.0.1", port=0, on_call_end=ended)
    channel: Any = open_aio_channel(server.address)
    try:
        path = f"/t.T/{method.name}"
        if isinstance(method, UnaryMethod):
            ask = channel.unary_unary(path)(raw, timeout=patience_s)
        else:
            ask = channel.unary_stream(path)(raw, timeout=patience_s).read()
        try:
            await ask
        except grpc.aio.AioRpcError:
            pass
        async with asyncio.timeout(10):
            await last_ended.wait()
    finally:
        await channel.close()
        await server.stop(grace=0)
    ((labels, histogram),) = times.points()
    assert isinstance(histogram, Histogram)
    return labels, histogram


def raising(error: Exception) -> Any:
    def handle(call: Any, request: Any) -> Any:
        raise error

    return handle


async def test_answer_is_measured_once_in_milliseconds() -> None:
    labels, histogram = await called(
        UnaryMethod("U", REQUEST, lambda call, request: RESPONSE(status=OK), failing_with(RESPONSE))
    )
    assert labels == ("grpc", "U", "OK", "false", "success")
    assert histogram.count == 1
    assert 0 < histogram.total < 10_000


async def test_response_of_a_method_whose_errors_are_statuses_counts_as_ok() -> None:
    labels, _ = await called(UnaryMethod("U", REQUEST, lambda call, request: RESPONSE(status=OK)))
    assert labels == ("grpc", "U", "OK", "false", "success")


async def test_error_in_the_body_counts_by_its_code() -> None:
    labels, _ = await called(UnaryMethod("U", REQUEST, raising(TopicNotFound("no")), failing_with(RESPONSE)))
    assert labels == ("grpc", "U", "TOPIC_NOT_FOUND", "false", "success")


async def test_error_as_a_status_counts_by_its_name() -> None:
    labels, _ = await called(UnaryMethod("U", REQUEST, raising(NotWritable("no"))))
    assert labels == ("grpc", "U", "UNAVAILABLE", "false", "process_request_failed")


async def test_bug_counts_as_an_internal_error() -> None:
    labels, _ = await called(UnaryMethod("U", REQUEST, raising(KeyError("oops"))))
    assert labels == ("grpc", "U", "INTERNAL", "false", "process_request_failed")


async def test_request_that_does_not_decode_counts() -> None:
    method = UnaryMethod("U", REQUEST, lambda call, request: None, failing_with(RESPONSE))
    labels, _ = await called(method, raw=b"\xff")
    assert labels == ("grpc", "U", "INVALID_ARGUMENT", "false", "process_request_failed")


async def test_caller_that_leaves_counts_as_cancelled() -> None:
    labels, _ = await called(
        UnaryMethod("U", REQUEST, lambda call, request: Deferred(), failing_with(RESPONSE)), patience_s=0.1
    )
    assert labels == ("grpc", "U", "CANCELLED", "false", "cancelled")


def frames(code: Any) -> list[Any]:
    response = service_pb2.ReceiveMessageResponse
    return [response(status=definition_pb2.Status(code=code)), response()]


async def test_stream_counts_by_the_status_in_its_first_message() -> None:
    method = ServerStreamMethod(
        "ReceiveMessage",
        REQUEST,
        lambda call, request: frames(definition_pb2.MESSAGE_NOT_FOUND),
        lambda call, error: frames(definition_pb2.INTERNAL_ERROR),
    )
    labels, _ = await called(method)
    assert labels == ("grpc", "ReceiveMessage", "MESSAGE_NOT_FOUND", "false", "success")


@pytest.mark.parametrize(("name", "polled"), [("ReceiveMessage", "true"), ("QueryThings", "false")])
async def test_only_receives_and_pulls_that_waited_are_long_polls(name: str, polled: str) -> None:
    def later(call: Any, request: Any) -> Deferred[Any]:
        deferred: Deferred[Any] = Deferred()
        asyncio.get_running_loop().call_soon(deferred.complete, frames(definition_pb2.OK))
        return deferred

    labels, _ = await called(
        ServerStreamMethod(name, REQUEST, later, lambda call, error: frames(definition_pb2.INTERNAL_ERROR))
    )
    assert labels == ("grpc", name, "OK", polled, "success")


def test_calls_with_the_same_labels_are_added_up() -> None:
    times = CallTimes()
    times.observe("SendMessage", 20000, False, 0.002)
    times.observe("SendMessage", 20000, True, 0.004)
    ((labels, histogram),) = times.points()
    assert labels == ("grpc", "SendMessage", "OK", "false", "success")
    assert isinstance(histogram, Histogram)
    assert histogram.count == 2
    assert histogram.total == pytest.approx(6.0)


def test_code_that_has_no_name_is_shown_as_its_number() -> None:
    times = CallTimes()
    times.observe("SendMessage", 12345, False, 0.0)
    ((labels, _),) = times.points()
    assert labels[2] == "12345"
