"""Turns our errors into gRPC statuses, and received statuses into our errors.

A status carries `google.rpc.Status` in the trailing metadata (`grpc-status-details-bin`), with one
`google.rpc.ErrorInfo`: `reason` is the error's, `domain` is ours, `metadata` says whether to retry and what
the server has done. The caller raises the same class. Works for the synchronous client and for grpc.aio
alike: both give an error with `code()`, `details()` and `trailing_metadata()`.
"""

from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from whimbrel.errors import (
    ConnectionClosed,
    NotSupported,
    RequestTimeout,
    Throttled,
    Unavailable,
    WhimbrelError,
)

__all__ = ["DETAILS_KEY", "DOMAIN", "error_of", "error_of_code", "grpc_status"]

DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "whimbrel"

# For statuses of others: grpcio's own, a proxy's.
BY_CODE: dict[grpc.StatusCode, type[WhimbrelError]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: RequestTimeout,
    grpc.StatusCode.CANCELLED: ConnectionClosed,
    grpc.StatusCode.UNIMPLEMENTED: NotSupported,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Throttled,
}


def grpc_status(error: WhimbrelError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the code, the text and the trailing metadata that end a call with `error`."""
    code = grpc.StatusCode[error.grpc]
    text = str(error)
    info = error_details_pb2.ErrorInfo(
        reason=error.reason,
        domain=DOMAIN,
        metadata={"effect": error.effect, "retry": str(error.retry).lower(), "code": str(error.code)},
    )
    packed = any_pb2.Any()
    packed.Pack(info)
    status = status_pb2.Status(code=code.value[0], message=text, details=[packed])
    return code, text, ((DETAILS_KEY, status.SerializeToString()),)


def error_of(failure: Any) -> WhimbrelError:
    """Return our error for one of grpcio: a `grpc.RpcError` that is a call, or an `AioRpcError`."""
    text = failure.details() or ""
    for key, value in failure.trailing_metadata() or ():
        if key == DETAILS_KEY and (named := named_error(value, text)) is not None:
            return named
    return error_of_code(failure.code(), text)


def error_of_code(code: grpc.StatusCode | None, text: str) -> WhimbrelError:
    """Return our error for a status that names none; `text` is its message."""
    known = None if code is None else BY_CODE.get(code)
    if code is not None and known is not None:
        return known(text or code.name)
    return WhimbrelError(f"{text} ({code.name if code else 'no status'})")


def named_error(details: bytes, text: str) -> WhimbrelError | None:
    """Return the error that the details name, or None when they are not ours."""
    try:
        status = status_pb2.Status.FromString(details)
        for packed in status.details:
            info = error_details_pb2.ErrorInfo()
            if packed.Unpack(info) and info.domain == DOMAIN:
                return WhimbrelError.known.get(info.reason, WhimbrelError)(status.message or text)
    except DecodeError:
        return None
    return None
