"""What every answer of the client API shares: the status in its body, and who asks.

Business errors never become gRPC statuses here: they travel as `Status{code, message}` inside an OK call.
"""

from collections.abc import Mapping
from typing import Any

from whimbrel.errors import ClientIdRequired, WhimbrelError
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.handlers import Call

__all__ = ["OK", "client_id", "common_status", "namespace_of", "status_of"]

OK = v2.Status(code=v2.OK, message="OK")
MULTIPLE = v2.Status(code=v2.MULTIPLE_RESULTS, message="the entries differ")


def status_of(error: Exception) -> v2.Status:
    """Return the error as a status body; the transport hands over none but `WhimbrelError`s."""
    code: Any = getattr(error, "code", WhimbrelError.code)  # the stub wants the enum's class
    return v2.Status(code=code, message=str(error))


def common_status(statuses: list[v2.Status]) -> v2.Status:
    """Return the status that stands over entries: theirs when all agree, else MULTIPLE_RESULTS."""
    first = statuses[0]
    return first if all(status.code == first.code for status in statuses) else MULTIPLE


def client_id(metadata: Mapping[str, str]) -> str:
    """Return the caller's id; raises ClientIdRequired."""
    found = metadata.get("x-mq-client-id", "")
    if not found.strip():
        raise ClientIdRequired("the header x-mq-client-id is missing")
    return found


def namespace_of(call: Call, resource: v2.Resource) -> str:
    """Return the namespace that the answer must echo: Node's SDK gives it in the header only."""
    return resource.resource_namespace or call.metadata.get("x-mq-namespace", "")
