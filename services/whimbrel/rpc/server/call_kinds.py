"""What the header fields of a call ask for, worked out once for all calls of a shape (`hpack.Shape`)."""

from collections.abc import Mapping
from dataclasses import dataclass

from whimbrel.rpc.http2.grpc_format import CallMetadata, timeout_s
from whimbrel.rpc.server.handlers import Method

__all__ = ["KIND_FIELDS", "CallKind", "kind_of"]

KIND_FIELDS = frozenset((b":path", b"content-type", b"grpc-timeout"))


@dataclass(slots=True, eq=False)
class CallKind:
    """What the fields of a call say.

    Attributes:
        method: None for an unknown one.
        methods: the server's table that `method` was found in; another one: the services were replaced.
        seconds: the call's timeout; None without one.
        known, varying: arguments of `CallMetadata`.
    """

    path: str
    methods: Mapping[str, Method]
    method: Method | None = None
    seconds: float | None = None
    grpc: bool = False
    known: dict[str, str | None] | None = None
    varying: frozenset[bytes] = frozenset()


def kind_of(metadata: CallMetadata, methods: Mapping[str, Method]) -> CallKind:
    """Work out what a call's fields ask for.

    Raises:
        HpackError: a field is wrongly coded.
    """
    path = (metadata.raw(b":path") or b"").decode("latin-1")
    content = metadata.raw(b"content-type")
    if content is None or not content.startswith(b"application/grpc"):
        return CallKind(path, methods)
    timeout = metadata.raw(b"grpc-timeout")
    seconds = None if timeout is None else timeout_s(timeout)
    return CallKind(path, methods, methods.get(path), seconds, grpc=True)
