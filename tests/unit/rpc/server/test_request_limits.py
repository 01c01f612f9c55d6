"""How large requests may be and how many entries they may hold, by method; counted on their bytes."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.http2.frames import DATA, HEADERS, HELLO, call, frame, headers, statuses, u32
from support.http2.in_memory import RawPeer
from whimbrel.model.wire import MESSAGING_SERVICE
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.server import request_limits
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod, methods_by_path
from whimbrel.rpc.server.native import NativeServer
from whimbrel.rpc.server.request_limits import (
    ACK_ENTRIES_MAX,
    FIELDS_MAX,
    LIMITS,
    LOOK_REQUEST_BYTES_MIN,
    SEND_ENTRIES_MAX,
    SEND_MESSAGES_MAX,
    SMALL_BYTES,
    WALK_BYTES_MIN,
    Allowed,
    RequestLimit,
    RequestTooLarge,
    TooManyEntries,
    limit_of,
)
from whimbrel.rpc.server.responses import failing_with

PROTOS = (
    "apache.rocketmq.v2.service",
    "whimbrel.admin.v1.admin_service",
    "whimbrel.admin.v1.cut_service",
    "whimbrel.admin.v1.dead_letter_service",
    "whimbrel.admin.v1.election_admin_service",
    "whimbrel.bulk.v1.bulk_service",
    "whimbrel.group.v1.group_service",
    "whimbrel.registry.v1.registry_service",
    "whimbrel.replica.v1.election_service",
    "whimbrel.replica.v1.replica_service",
)
RESOURCE_EXHAUSTED = 8
SEND, ACK = f"/{MESSAGING_SERVICE}/SendMessage", f"/{MESSAGING_SERVICE}/AckMessage"
TELEMETRY = f"/{MESSAGING_SERVICE}/Telemetry"


def served() -> dict[str, Any]:
    """Return the request of every method of our protos, by its path."""
    found = {}
    for name in PROTOS:
        file = importlib.import_module(f"whimbrel.pb.{name}_pb2").DESCRIPTOR
        for service in file.services_by_name.values():
            for method in service.methods:
                found[f"/{service.full_name}/{method.name}"] = method.input_type
    return found


def lists_of(descriptor: Any, path: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the paths of all lists of messages or texts in a message, but for those within one of another."""
    for field in descriptor.fields:
        where = f"{path}{field.name}"
        if field.is_repeated and (field.message_type or field.type in (field.TYPE_STRING, field.TYPE_BYTES)):
            yield where
        elif field.message_type and field.message_type.full_name not in above:
            yield from lists_of(field.message_type, f"{where}.", (*above, field.message_type.full_name))


def test_every_method_has_a_row() -> None:
    assert set(LIMITS) - {path for path in LIMITS if path.startswith("/grpc.")} == set(served())


@pytest.mark.parametrize("path", sorted(served()))
def test_large_requests_have_a_limit_for_each_list(path: str) -> None:
    allowed, request = LIMITS[path], served()[path]
    RequestLimit(allowed, request)  # every path of it is one of the request
    if allowed.bytes > SMALL_BYTES:
        assert set(lists_of(request)) <= set(allowed.entries)


def entries(count: int) -> bytes:
    """Return an AckMessageRequest with empty entries."""
    return b"\x1a\x00" * count


def messages(count: int, message: bytes = b"") -> bytes:
    """Return a SendMessageRequest with so many of one message."""
    return (b"\x0a" + varint(len(message)) + message) * count


def varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found, number = found + bytes((number & 127 | 128,)), number >> 7
    return found + bytes((number,))


LARGE = messages(1, b"\x22" + varint(LOOK_REQUEST_BYTES_MIN) + bytes(LOOK_REQUEST_BYTES_MIN))
ACKS, SENDS = messaging.AckMessageRequest, messaging.SendMessageRequest


@pytest.mark.parametrize(
    ("path", "request_class", "within", "beyond"),
    [
        (ACK, ACKS, entries(ACK_ENTRIES_MAX), entries(ACK_ENTRIES_MAX + 1)),
        (ACK, ACKS, entries(7) + b"\x0a\x00" * 150_000, entries(ACK_ENTRIES_MAX + 1) + bytes(WALK_BYTES_MIN)),
        (SEND, SENDS, messages(SEND_MESSAGES_MAX), messages(SEND_MESSAGES_MAX + 1)),
        (SEND, SENDS, messages(SEND_MESSAGES_MAX, bytes([34, 100]) + bytes(100)), messages(1 << 20)),
        (
            SEND,
            SENDS,
            LARGE + messages(2, b"\x12\x00" * (SEND_ENTRIES_MAX // 2)),
            LARGE + messages(2, b"\x12\x00" * (SEND_ENTRIES_MAX // 2 + 1)),
        ),
        (
            SEND,
            SENDS,
            LARGE + messages(1, b"\x1a" + varint(2 * SEND_ENTRIES_MAX) + b"\x12\x00" * SEND_ENTRIES_MAX),
            LARGE + messages(70, b"\x1a" + varint(2000) + b"\x12\x00" * 1000),
        ),
        (
            TELEMETRY,
            messaging.TelemetryCommand,
            b"\x12\x04\x2a\x02\x0a\x00" * 4096,
            b"\x12\x04\x2a\x02\x0a\x00" * 4097,  # settings are merged, and their lists joined
        ),
    ],
    ids=["acks", "acks, walked", "messages", "messages, walked", "properties", "keys", "settings"],
)
def test_entries_are_counted_up_to_the_limit(
    path: str, request_class: Any, within: bytes, beyond: bytes
) -> None:
    limit = limit_of(path, request_class)
    assert limit.read(request_class, within) == request_class.FromString(within)
    with pytest.raises(TooManyEntries, match=r"more than \d+ "):
        limit.read(request_class, beyond)


def test_nothing_is_decoded_of_a_walked_request_with_too_many_entries() -> None:
    class Never:
        DESCRIPTOR = ACKS.DESCRIPTOR

        @staticmethod
        def FromString(data: bytes) -> Any:
            raise AssertionError("it was decoded")

    with pytest.raises(TooManyEntries):
        limit_of(ACK, Never).read(Never, entries(1 << 19))


def test_usual_batches_are_not_walked() -> None:
    limit = limit_of(SEND, SENDS)
    assert (limit.free_bytes, limit.walk_bytes) == (2 * SEND_MESSAGES_MAX, WALK_BYTES_MIN)
    assert limit_of(ACK, ACKS).walk_bytes == WALK_BYTES_MIN


def test_fields_that_no_limit_names_are_walked_up_to_a_bound() -> None:
    limit = limit_of(ACK, ACKS)
    data = b"\x78\x01" * (FIELDS_MAX + 1)
    with pytest.raises(TooManyEntries, match="fields"):
        limit.read(ACKS, data)


def test_request_of_too_many_bytes_names_both_numbers() -> None:
    limit = RequestLimit(Allowed(10, {}))
    with pytest.raises(RequestTooLarge, match=r"11 bytes.* 10"):
        limit.read(ACKS, bytes(11))


@pytest.mark.parametrize(
    "hidden",
    [
        b"\x9a\x80\x00\x80\x00",  # key and length in more bytes than they need
        b"\x7b\x1a\x00\x7c",  # within a group that the decoder passes over
    ],
)
def test_entries_in_unusual_forms_count(hidden: bytes) -> None:
    with pytest.raises(TooManyEntries):
        limit_of(ACK, ACKS).read(ACKS, hidden * (WALK_BYTES_MIN // 3))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(0, 60))
def test_walk_counts_what_the_decoder_makes(parts: list[bytes], extra: int) -> None:
    """Of random bytes among entries: where the decoder takes them, the walk has counted its entries."""
    data = b"".join(part + entries(1) for part in parts) + entries(extra)
    limit = RequestLimit(Allowed(1 << 20, {"entries": 1 << 19}), ACKS.DESCRIPTOR)
    walker = request_limits.Walker(data, 1)
    walker.walk(0, len(data), limit.root)
    try:
        made = ACKS.FromString(data)
    except Exception:  # noqa: BLE001 - what does not decode makes nothing
        return
    assert walker.counts[0] >= len(made.entries)


async def test_native_server_refuses_both_and_goes_on() -> None:
    def handle(call: Call, request: Any) -> Any:
        return messaging.AckMessageResponse()

    method = UnaryMethod("AckMessage", ACKS, handle, failing_with(messaging.AckMessageResponse))
    server = NativeServer([Service(MESSAGING_SERVICE, (method,))])
    peer = RawPeer(server)
    peer.send(HELLO + headers(1, ACK) + frame(DATA, 0, 1, b"\x00" + u32((1 << 20) + 1)))
    assert statuses(peer.frames()) == {1: RESOURCE_EXHAUSTED}  # at its first bytes
    peer.send(call(3, ACK, entries(ACK_ENTRIES_MAX + 1)))
    found = peer.frames()
    assert statuses(found) == {3: 0}
    (body,) = [payload[5:] for kind, _, _, payload in found if kind == DATA]
    status = messaging.AckMessageResponse.FromString(body).status
    assert (status.code, "1024 entries" in status.message) == (40000, True)
    peer.send(call(5, ACK, entries(ACK_ENTRIES_MAX)))
    found = peer.frames()
    assert [kind for kind, *_ in found if kind in (HEADERS, DATA)] == [HEADERS, DATA, HEADERS]
    peer.send(call(7, "/grpc.health.v1.Health/Check", b"\x0a" + varint(4090) + b"x" * 4090))
    trailers = b"".join(payload for _, _, stream, payload in peer.frames() if stream == 7)
    assert b"no service" in trailers and len(trailers) < 1000
    peer.send(headers(9, "/grpc.health.v1.Health/Check") + frame(DATA, 0, 9, b"\x00" + u32(5000)))
    assert statuses(peer.frames()) == {9: RESOURCE_EXHAUSTED}


def test_methods_get_their_limits_by_their_paths() -> None:
    method = UnaryMethod("AckMessage", ACKS, lambda call, request: None)
    found = methods_by_path([Service(MESSAGING_SERVICE, (method,)), Service("t.T", (method,))])
    assert found[ACK].limit.bytes == LIMITS[ACK].bytes
    assert found["/t.T/AckMessage"].limit is request_limits.UNBOUNDED
