"""Server reflection, `grpc.reflection.v1` and `v1alpha`: the services of a server, and their messages.

So `grpcurl -plaintext HOST:PORT list` works without our .proto files. Both versions have the same messages,
byte for byte, so one handler serves both, with the classes of v1alpha (the package `grpcio-reflection` has
no others). They are imported at the first request, since most servers never get one.

All files that this process has loaded are served, ours from our own descriptor pool and those of the
libraries from protobuf's: all of them are public.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf import descriptor_pool

from whimbrel.errors import Throttled
from whimbrel.pb import POOL
from whimbrel.rpc.server.handlers import BidiMethod, Call, Outbox, Service
from whimbrel.rpc.server.health import Health

__all__ = ["with_standard_services"]

ALPHA, V1 = "grpc.reflection.v1alpha", "grpc.reflection.v1"
V1_FILE = "grpc/reflection/v1/reflection.proto"
NOT_FOUND, INVALID_ARGUMENT = 5, 3  # codes of gRPC

T = TypeVar("T")


class Request:
    """The request's class as a method needs it; imports the real one when a request comes."""

    @staticmethod
    def FromString(data: bytes) -> Any:
        """Decode a request."""
        return messages().ServerReflectionRequest.FromString(data)


def with_standard_services(services: Iterable[Service], health: Health) -> list[Service]:
    """Return the services of a server, and those that every server has: health and reflection."""
    found = [*services, health.service]
    names = sorted(
        [*(service.name for service in found), *(f"{each}.ServerReflection" for each in (ALPHA, V1))]
    )

    def opened(call: Call, outbox: Outbox) -> ReflectionStream:
        return ReflectionStream(names, outbox)

    method = BidiMethod("ServerReflectionInfo", Request, opened)
    return [*found, *(Service(f"{each}.ServerReflection", (method,)) for each in (ALPHA, V1))]


class ReflectionStream:
    """One stream of reflection requests; each has an immediate response."""

    def __init__(self, names: list[str], outbox: Outbox) -> None:
        self.names, self.outbox = names, outbox

    def received(self, message: Any) -> None:
        """Respond to a request."""
        if not self.outbox.send(respond(self.names, message)):
            raise Throttled("too many answers wait to be read: ask again when they are")

    def half_closed(self) -> None:
        """End the stream."""
        self.outbox.close()

    def closed(self) -> None:
        """Nothing to release."""


def respond(names: list[str], request: Any) -> Any:
    """Return the response to one request."""
    pb = messages()
    response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    try:
        if kind == "list_services":
            response.list_services_response.service.extend(pb.ServiceResponse(name=name) for name in names)
        elif kind == "all_extension_numbers_of_type":
            whole = in_pools(lambda pool: pool.FindMessageTypeByName(request.all_extension_numbers_of_type))
            found = response.all_extension_numbers_response
            found.base_type_name = whole.full_name
            found.extension_number.extend(
                sorted(each.number for each in whole.file.pool.FindAllExtensions(whole))
            )
        elif kind is None:
            response.error_response.error_code = INVALID_ARGUMENT
            response.error_response.error_message = "the request asks for nothing"
        else:
            response.file_descriptor_response.file_descriptor_proto.extend(
                with_imports(file_of(kind, request))
            )
    except KeyError:
        response.error_response.error_code = NOT_FOUND
        response.error_response.error_message = f"nothing of that name is known here ({kind})"
    return response


def file_of(kind: str, request: Any) -> Any:
    """Return the file that a request asks for.

    Raises:
        KeyError: there is none.
    """
    if kind == "file_by_filename":
        return in_pools(lambda pool: pool.FindFileByName(request.file_by_filename))
    if kind == "file_containing_symbol":
        return file_of_symbol(request.file_containing_symbol)
    asked = request.file_containing_extension
    whole = in_pools(lambda pool: pool.FindMessageTypeByName(asked.containing_type))
    return whole.file.pool.FindExtensionByNumber(whole, asked.extension_number).file


def file_of_symbol(name: str) -> Any:
    """Return the file of a service, a message, or a method, which protobuf itself does not look up by name.

    Raises:
        KeyError: there is none.
    """
    try:
        return in_pools(lambda pool: pool.FindFileContainingSymbol(name))
    except KeyError:
        service, _, method = name.rpartition(".")
        return in_pools(
            lambda pool: pool.FindServiceByName(service).methods_by_name[method]
        ).containing_service.file


def with_imports(file: Any) -> list[bytes]:
    """Return a file and all that it imports, each once, as bytes."""
    found: dict[str, bytes] = {}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each.name not in found:
            found[each.name] = each.serialized_pb
            waiting.extend(each.dependencies)
    return list(found.values())


def messages() -> Any:
    """Return the module of the messages."""
    from grpc_reflection.v1alpha import reflection_pb2

    return reflection_pb2


def in_pools(look: Callable[[Any], T]) -> T:
    """Return what the first pool finds.

    Raises:
        KeyError: no pool finds anything.
    """
    for pool in (POOL, descriptor_pool.Default()):
        try:
            return look(pool)
        except KeyError:
            continue
    add_v1()
    return look(POOL)


def add_v1() -> None:
    """Add the file of v1 to our pool: that of v1alpha under another name."""
    try:
        POOL.FindFileByName(V1_FILE)
    except KeyError:
        from google.protobuf import descriptor_pb2, text_format

        alpha, file = messages().DESCRIPTOR, descriptor_pb2.FileDescriptorProto()
        alpha.CopyToProto(file)
        text_format.Parse(str(file).replace(alpha.name, V1_FILE).replace(ALPHA, V1), renamed := type(file)())
        POOL.AddSerializedFile(renamed.SerializeToString())
