"""How many connections are let in, in all and of a host, and what those hear that are not."""

import logging
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.http2.frames import GOAWAY, HELLO, call, statuses
from support.http2.in_memory import RawPeer
from whimbrel.machine import open_files_limit
from whimbrel.pb.apache.rocketmq.v2 import service_pb2
from whimbrel.rpc.http2.errors import Code
from whimbrel.rpc.server.admission import (
    HOST_CONNECTIONS_MAX,
    TOLD_MAX,
    Admission,
    connections_max,
    network_of,
    reserved_files,
)
from whimbrel.rpc.server.handlers import Service, UnaryMethod
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.protocol_detection import ProtocolDetector
from whimbrel.rpc.server.serving import serve


@asynccontextmanager
async def serving(allowed: Admission) -> AsyncIterator[NativeServer]:
    method = UnaryMethod(
        "U", service_pb2.HeartbeatRequest, lambda call, request: service_pb2.HeartbeatResponse()
    )
    server = await serve([Service("t.T", (method,))], host="127.0.0.1", port=0, admission=allowed)
    try:
        yield server
    finally:
        await server.stop(grace=0)


@pytest.mark.parametrize(
    ("open_files", "connections"), [(1 << 16, 32_768), (20_000, 10_000), (1024, 512), (200, 72), (64, 1)]
)
def test_descriptors_stay_for_files_whatever_the_limit(open_files: int, connections: int) -> None:
    assert connections_max(open_files) == connections
    assert connections == max(1, open_files - reserved_files(open_files))


def test_limit_of_open_files_is_raised_as_far_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (1024, 4096)}

    def set_limit(_: int, to: tuple[int, int]) -> None:
        limits["now"] = to

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert (open_files_limit(), limits["now"]) == (4096, (4096, 4096))
    limits["now"] = (1024, resource.RLIM_INFINITY)
    assert (open_files_limit(), limits["now"]) == (1 << 16, (1 << 16, resource.RLIM_INFINITY))
    limits["now"] = (1 << 20, 1 << 20)
    assert (open_files_limit(), limits["now"]) == (1 << 20, (1 << 20, 1 << 20))


def test_one_host_gets_its_number_and_others_get_in() -> None:
    allowed = Admission(10_000)
    places = [allowed.enter("192.0.2.1") for _ in range(HOST_CONNECTIONS_MAX)]
    assert HOST_CONNECTIONS_MAX >= 2000 and not any(place.refused for place in places)
    assert "192.0.2.1" in allowed.enter("192.0.2.1").refused
    assert not allowed.enter("192.0.2.2").refused
    places.pop().leave()
    assert not allowed.enter("192.0.2.1").refused
    assert allowed.refused == {"process": 0, "host": 1}


def test_no_host_gets_all_and_all_together_have_a_limit() -> None:
    allowed = Admission(8)
    taken = [allowed.enter(f"192.0.2.{number}") for number in (1, 1, 1, 1, 1, 1, 1, 2, 2, 2)]
    assert [bool(place.refused) for place in taken] == [False] * 6 + [True] + [False] * 2 + [True]
    assert allowed.refused == {"process": 1, "host": 1}
    for place in taken:
        place.leave()
        place.leave()
    assert (allowed.open, allowed.hosts, allowed.telling) == (0, {}, 0)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("x:y", "x:y"),
        ("", ""),
    ],
)
def test_addresses_count_by_their_network(host: str, network: str) -> None:
    assert network_of(host) == network


async def test_refused_connection_is_told_why_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(Admission(4, by_host=2)) as server:
        peers = [RawPeer(server) for _ in range(4)]
        for number, peer in enumerate(peers):
            peer.send(HELLO)
            assert peer.closing is (number >= 2)
        found = peers[3].frames()
        (goaway,) = [payload for kind, _, _, payload in found if kind == GOAWAY]
        assert int.from_bytes(goaway[4:8], "big") == Code.ENHANCE_YOUR_CALM
        assert goaway[8:] == b"192.0.2.1 has 2 connections, as many as a host gets"
        assert caplog.text.count("as many as a host gets") == 1
        other = RawPeer(server, host="192.0.2.2")
        other.send(HELLO + call(1))
        assert statuses(other.frames()) == {1: 0}
        for peer in peers:
            peer.leave()
        again = RawPeer(server)
        again.send(HELLO + call(1))
        assert statuses(again.frames()) == {1: 0}
        assert (server.admission.open, server.admission.telling) == (2, 0)


async def test_refused_under_tls_or_silent_or_one_too_many_is_closed_without_a_word() -> None:
    async with serving(Admission(1)) as server:
        first = RawPeer(server)
        secured = RawPeer(server)
        secured.send(b"\x16\x03\x01")
        assert secured.closing and not secured.written
        silent = [RawPeer(server, host=f"192.0.2.{number}") for number in range(TOLD_MAX)]
        assert [peer.closing for peer in silent] == [False] * (TOLD_MAX - 1) + [
            True
        ]  # `secured` has not left yet
        assert isinstance(silent[0].protocol, ProtocolDetector)
        silent[0].protocol.check_timeouts(server.loop.time())
        assert silent[0].aborted and not silent[0].written
        first.send(HELLO + call(1))
        assert statuses(first.frames()) == {1: 0}
        assert server.admission.refused == {"process": 1 + TOLD_MAX, "host": 0}
