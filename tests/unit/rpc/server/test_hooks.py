"""What every server has: a guard before all calls, and reflection."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from whimbrel.errors import Forbidden
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2, service_pb2
from whimbrel.rpc.api.status import error_of
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import (
    BidiMethod,
    Call,
    Outbox,
    PulledStreamMethod,
    ServerStreamMethod,
    Service,
    UnaryMethod,
)
from whimbrel.rpc.server.limits import Guard
from whimbrel.rpc.server.responses import failing_with
from whimbrel.rpc.server.serving import serve

pytestmark = pytest.mark.transport

REQUEST, RESPONSE = service_pb2.HeartbeatRequest, service_pb2.HeartbeatResponse
OK = RESPONSE(status=definition_pb2.Status(code=20000))  # type: ignore[arg-type]
SERVICE = "apache.rocketmq.v2.MessagingService"  # it is asked for by reflection


class Rig:
    """Methods of all kinds, a guard, and what was heard."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.asked: list[str] = []
        self.ended: list[tuple[str, int | str]] = []

    def guard(self, call: Call) -> None:
        self.asked.append(call.method.rpartition("/")[2])
        if call.metadata.get("x-who") != "me":
            raise Forbidden(f"{call.metadata.get('x-who')} may not")

    def note_end(self, method: str, code: int | str, later: bool, seconds: float) -> None:
        assert 0 <= seconds < 60
        self.ended.append((method, code))

    def answer(self, call: Call, request: Any) -> Any:
        self.reached.append(call.method.rpartition("/")[2])
        return OK

    def answers(self, call: Call, request: Any) -> list[Any]:
        return [self.answer(call, request)]

    async def pulled(self, call: Call, request: Any) -> AsyncGenerator[Any, None]:
        yield self.answer(call, request)

    def opened(self, call: Call, outbox: Outbox) -> Any:
        self.answer(call, None)
        outbox.send(OK)
        outbox.close()
        return Nobody()

    @property
    def service(self) -> Service:
        return Service(
            SERVICE,
            (
                UnaryMethod("Unary", REQUEST, self.answer),
                UnaryMethod("Body", REQUEST, self.answer, failing_with(RESPONSE)),
                ServerStreamMethod("Several", REQUEST, self.answers),
                PulledStreamMethod("Pulled", REQUEST, self.pulled),
                BidiMethod("Both", REQUEST, self.opened),
                BidiMethod("Single", REQUEST, self.opened, single_request=True),
            ),
        )


class Nobody:
    """A stream's handler that does nothing."""

    def received(self, message: Any) -> None:
        pass

    def half_closed(self) -> None:
        pass

    def closed(self) -> None:
        pass


@asynccontextmanager
async def serving(rig: Rig, guard: Guard | None = None) -> AsyncIterator[grpc.aio.Channel]:
    server = await serve([rig.service], host="127.0.0.1", port=0, guard=guard, on_call_end=rig.note_end)
    channel = open_aio_channel(server.address)
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(grace=0)


async def called(channel: grpc.aio.Channel, name: str, who: str) -> list[Any]:
    """Call a method; one answer is a stream of one on the wire."""
    kind, words = (channel.stream_stream, ()) if name == "Both" else (channel.unary_stream, (REQUEST(),))
    method: Any = kind(
        f"/{SERVICE}/{name}",
        request_serializer=REQUEST.SerializeToString,
        response_deserializer=RESPONSE.FromString,
    )
    return [each async for each in method(*words, metadata=(("x-who", who),), timeout=20)]


async def test_guard_is_asked_before_each_kind_of_call() -> None:
    rig = Rig()
    names = [method.name for method in rig.service.methods]
    async with serving(rig, rig.guard) as channel:
        for name in names:
            assert await called(channel, name, "me") == [OK]
        assert rig.reached == rig.asked == names
        rig.reached.clear()
        for name in names:
            if name == "Body":
                (response,) = await called(channel, name, "you")
                assert (response.status.code, response.status.message) == (40300, "you may not")
                continue
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await called(channel, name, "you")
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert isinstance(error_of(caught.value), Forbidden)
            assert str(error_of(caught.value)) == "you may not"
        assert rig.reached == []
        assert rig.ended[-3:] == [
            ("Unary", "PERMISSION_DENIED"),
            ("Body", 40300),
            ("Several", "PERMISSION_DENIED"),
        ]


async def test_guard_is_asked_for_health_and_reflection_too_and_its_bugs_stay_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()

    def broken(call: Call) -> None:
        raise RuntimeError("secret")

    async with serving(rig, broken) as channel:
        check: Any = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await check(health_pb2.HealthCheckRequest())
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(caught.value)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked(channel, "v1", reflection_pb2.ServerReflectionRequest(list_services=""))
        assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" in caplog.text


async def asked(channel: grpc.aio.Channel, version: str, *questions: Any) -> list[Any]:
    """Ask by reflection."""
    method = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return [each async for each in method(iter(questions), timeout=20)]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_tells_services_and_their_messages(version: str) -> None:
    ask = reflection_pb2.ServerReflectionRequest
    questions = [
        ask(list_services=""),
        ask(file_containing_symbol=f"{SERVICE}.SendMessage"),  # a method
        ask(file_containing_symbol=f"grpc.reflection.{version}.ServerReflection"),
        ask(file_by_filename="google/protobuf/timestamp.proto"),
        ask(file_containing_symbol="no.such.Name"),
        ask(all_extension_numbers_of_type="google.protobuf.FieldOptions"),
        ask(),
    ]
    async with serving(Rig()) as channel:
        listed, service, own, file, unknown, numbers, nothing = await asked(channel, version, *questions)
    assert [each.name for each in listed.list_services_response.service] == [
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    # What was told is whole: it can be loaded by who knows nothing.
    pool = descriptor_pool.DescriptorPool()
    files = [descriptor_pb2.FileDescriptorProto.FromString(each) for each in told_files(service)]
    names = {each.name for each in files}
    assert all(set(each.dependency) <= names for each in files)
    while files:
        each = next(each for each in files if not {file.name for file in files} & set(each.dependency))
        files.remove(each)
        pool.Add(each)
    assert pool.FindServiceByName(SERVICE).methods_by_name["SendMessage"].input_type.full_name == (
        "apache.rocketmq.v2.SendMessageRequest"
    )
    described = descriptor_pb2.FileDescriptorProto.FromString(told_files(own)[0])
    assert described.package == f"grpc.reflection.{version}"
    assert descriptor_pb2.FileDescriptorProto.FromString(told_files(file)[0]).package == "google.protobuf"
    assert (unknown.error_response.error_code, nothing.error_response.error_code) == (5, 3)
    assert numbers.all_extension_numbers_response.base_type_name == "google.protobuf.FieldOptions"


def told_files(answer: Any) -> list[bytes]:
    return list(answer.file_descriptor_response.file_descriptor_proto)
