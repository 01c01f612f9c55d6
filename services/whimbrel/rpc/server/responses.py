"""Shared by responses of the client API: the status in the body, the caller's identity, queues on the wire.

Business errors never become gRPC statuses there: they travel as `Status{code, message}` inside an OK call.
"""

from collections.abc import Callable, Sequence
from typing import Any

from whimbrel.errors import ClientIdRequired, IllegalAccessPoint, WhimbrelError
from whimbrel.model.limits import CLIENT_ID_CHARS_MAX, ENDPOINTS_MAX, HOST_CHARS_MAX
from whimbrel.model.wire import CLIENT_ID_HEADER, NAMESPACE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.server.handlers import Call

__all__ = [
    "ACCEPTED",
    "OK",
    "check_client_id",
    "check_endpoints",
    "common_status",
    "failing_with",
    "namespace_of",
    "permission_of",
    "status_of",
]

OK = v2.Status(code=v2.OK, message="OK")
MULTIPLE = v2.Status(code=v2.MULTIPLE_RESULTS, message="the entries differ")

# What SDKs may send to a topic of each type. An empty list would make them refuse every send.
ACCEPTED: dict[str, tuple[Any, ...]] = {
    "NORMAL": (v2.NORMAL,),
    "FIFO": (v2.FIFO,),
    "DELAY": (v2.DELAY,),
    "TRANSACTION": (v2.TRANSACTION,),
    "MIXED": (v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION),
    "LITE": (v2.LITE,),
    "PRIORITY": (v2.PRIORITY,),
}


def status_of(error: Exception) -> v2.Status:
    """Return an error as a status body; transports pass on nothing but `WhimbrelError`s."""
    code: Any = getattr(error, "code", WhimbrelError.code)  # the stub wants the enum's class
    return v2.Status(code=code, message=str(error))


def common_status(statuses: Sequence[v2.Status]) -> v2.Status:
    """Return the status of a whole response with entries: theirs when all agree, else MULTIPLE_RESULTS."""
    first = statuses[0]
    return first if all(status.code == first.code for status in statuses) else MULTIPLE


def failing_with(response: type[Any]) -> Callable[[Call, Exception], Any]:
    """Return the `fail` function of a method: a response that holds nothing but the status."""
    return lambda call, error: response(status=status_of(error))


def check_client_id(call: Call) -> str:
    """Return the caller's id.

    Raises:
        ClientIdRequired: the header is missing or blank, or no name.
    """
    found = call.metadata.get(CLIENT_ID_HEADER, "")
    if not found.strip():
        raise ClientIdRequired(f"the header {CLIENT_ID_HEADER} is missing")
    if not found.isprintable() or len(found) > CLIENT_ID_CHARS_MAX:
        raise ClientIdRequired(
            f"the header {CLIENT_ID_HEADER} must be a name: at most {CLIENT_ID_CHARS_MAX} characters, none of"
            " them for control"
        )
    return found


def namespace_of(call: Call, resource: v2.Resource) -> str:
    """Return the namespace that the response must echo: Node's SDK gives it in the header only."""
    return resource.resource_namespace or call.metadata.get(NAMESPACE_HEADER, "")


def check_endpoints(endpoints: v2.Endpoints) -> None:
    """Raise IllegalAccessPoint unless the client's access point can be dialled."""
    if not endpoints.addresses or endpoints.scheme == v2.ADDRESS_SCHEME_UNSPECIFIED:
        raise IllegalAccessPoint("the request names no access point")
    if endpoints.scheme == v2.DOMAIN_NAME and len(endpoints.addresses) != 1:
        raise IllegalAccessPoint("an access point of the scheme DOMAIN_NAME has exactly one address")
    if len(endpoints.addresses) > ENDPOINTS_MAX:
        raise IllegalAccessPoint(f"an access point has at most {ENDPOINTS_MAX} addresses")
    for address in endpoints.addresses:
        host = address.host
        if not host.strip() or not 0 < address.port < 65536:
            raise IllegalAccessPoint(f"{host[:HOST_CHARS_MAX]}:{address.port} can't be dialled")
        if not host.isprintable() or len(host) > HOST_CHARS_MAX:
            raise IllegalAccessPoint("an access point has a host that is no name and no address")


def permission_of(*, read: bool, write: bool) -> v2.Permission:
    """Return a queue's permission."""
    if read:
        return v2.READ_WRITE if write else v2.READ
    return v2.WRITE if write else v2.NONE
