"""What real clients sent (unit/rpc/http2/recordings), and a server that has the methods which they called."""

import functools
from pathlib import Path
from typing import Any

from support.http2 import echoing
from whimbrel.rpc.http2.stream import Limits
from whimbrel.rpc.server.handlers import BidiMethod, ServerStreamMethod, Service, UnaryMethod
from whimbrel.rpc.server.native import NativeServer

__all__ = ["NAMES", "echo_server", "recording"]

FOLDER = Path(__file__).resolve().parents[2] / "unit" / "rpc" / "http2" / "recordings"
NAMES = tuple(path.stem for path in sorted(FOLDER.glob("*.bin")))
SDK_ONCE = (
    "QueryRoute",
    "Heartbeat",
    "SendMessage",
    "AckMessage",
    "ChangeInvisibleDuration",
    "NotifyClientTermination",
)


@functools.cache
def recording(name: str) -> bytes:
    """Return a client's bytes."""
    return (FOLDER / f"{name}.bin").read_bytes()


def echo_server(limits: Limits) -> NativeServer:
    """Return a server that gives back what it gets, by the methods of tests/echo and by those of the SDKs."""
    sdk = [UnaryMethod(name, echoing.Raw, echoing.echo) for name in SDK_ONCE]
    methods: list[Any] = [
        *sdk,
        ServerStreamMethod("ReceiveMessage", echoing.Raw, echoing.listed),
        BidiMethod("Telemetry", echoing.Raw, echoing.Both),
    ]
    services = [
        echoing.EchoServer().service(),
        Service("apache.rocketmq.v2.MessagingService", tuple(methods)),
    ]
    return NativeServer(services, limits=limits)
