"""Credentials are not checked, and nobody is left to believe that they are."""

import logging
from typing import Any

import grpc.aio
import pytest

from whimbrel.broker.api.session import SessionService
from whimbrel.broker.tables.clients import Clients
from whimbrel.broker.tables.groups import GroupTable
from whimbrel.nameserver.registry import Registry
from whimbrel.nameserver.resolver import Resolver
from whimbrel.nameserver.routes_service import RoutesService
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server.credentials import REPEAT_S, IgnoredCredentials, access_key_of
from whimbrel.rpc.server.handlers import Call
from whimbrel.rpc.server.serving import serve

SIGNED = "MQv2-HMAC-SHA1 Credential=AK, SignedHeaders=x-mq-date-time, Signature=2720feac"
WARNING = "credentials are ignored: this version has no access control"


def call(header: str | None) -> Call:
    return Call("m", "10.0.0.9:5", {} if header is None else {"authorization": header}, None)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (SIGNED, "AK"),
        ("MQv2-HMAC-SHA1 Credential=AK//Rocketmq, SignedHeaders=x-mq-date-time, Signature=A", "AK"),
        ("MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature=", ""),
        ("Bearer token", ""),
        ("", ""),
        ("Credential", ""),
    ],
)
def test_the_access_key_is_read_as_sdks_write_it(header: str, key: str) -> None:
    assert access_key_of(header) == key


def test_credentials_are_warned_of_once_and_then_once_an_hour(caplog: pytest.LogCaptureFixture) -> None:
    ignored = IgnoredCredentials()
    for now in (0.0, 1.0, REPEAT_S - 1, REPEAT_S):
        ignored.note(call(SIGNED), now)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    first, second = (record.getMessage() for record in caplog.records)
    assert WARNING in first
    assert "10.0.0.9:5 sent the access key 'AK' (calls with credentials so far: 1)" in first
    assert "so far: 4)" in second


@pytest.mark.parametrize("header", [None, "MQv2-HMAC-SHA1 Credential=, SignedHeaders=x, Signature="])
def test_clients_without_keys_are_not_warned_of(header: str | None, caplog: pytest.LogCaptureFixture) -> None:
    IgnoredCredentials().note(call(header), 0.0)
    assert caplog.text == ""


def test_a_hostile_key_is_cut_and_cant_write_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    IgnoredCredentials().note(call("x Credential=" + "a\n" * 1000), 0.0)
    (record,) = caplog.records
    assert len(record.getMessage()) < 400
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize("method", ["QueryRoute", "Telemetry"])
async def test_a_nameserver_warns_of_credentials(method: str, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(lease_s=8.0, renew_s=2.0, started=0.0)
    routes = RoutesService(registry, own=lambda: (), resolver=Resolver(), now=lambda: 1000.0)
    server = await serve([routes.service], host="127.0.0.1", port=0)
    metadata = (("authorization", SIGNED), ("x-mq-client-id", "c"))
    channel: Any
    async with grpc.aio.insecure_channel(server.address) as channel:
        path = f"/apache.rocketmq.v2.MessagingService/{method}"
        if method == "QueryRoute":
            await channel.unary_unary(path)(
                messaging.QueryRouteRequest().SerializeToString(), metadata=metadata
            )
        else:
            stream = channel.stream_stream(path)(metadata=metadata)
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
    await server.stop(grace=0)
    assert WARNING in caplog.text
    assert routes.credentials.count == 1


def test_a_broker_warns_of_credentials_when_a_client_opens_its_stream(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Outbox:
        def send(self, message: Any) -> bool:
            return True

        def close(self, error: Exception | None = None) -> None:
            pass

    groups = GroupTable(tmp_path, auto_create=False, clock=lambda: 1)
    sessions = SessionService(Clients(), groups, lambda client, group: None, clock=lambda: 100.0)
    headers = {"x-mq-client-id": "c", "authorization": SIGNED}
    sessions.open_telemetry(Call("m", "p", headers, None), Outbox())
    assert WARNING in caplog.text
