"""The client's side of the Telemetry stream: what it writes, and the commands that it reads, as values.

The stream stays open for as long as the client uses the server. The client writes its settings first, and
again whenever the server may have lost them. The server responds to each with its own, and may send commands
in between.
"""

from dataclasses import dataclass

import grpc.aio

from whimbrel.errors import WhimbrelError
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as service
from whimbrel.rpc.api import convert
from whimbrel.rpc.api.calls import MESSAGING, Metadata
from whimbrel.rpc.api.status import error_of

__all__ = [
    "Command",
    "Reconnect",
    "Settings",
    "SettingsRefused",
    "StackTraceRequested",
    "TelemetryStream",
    "UnknownCommand",
    "VerificationRequested",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """The server's settings for this client."""

    settings: convert.ServerSettings


@dataclass(frozen=True, slots=True)
class SettingsRefused:
    """The server refuses the client's settings."""

    error: WhimbrelError


@dataclass(frozen=True, slots=True)
class Reconnect:
    """The client should open its stream again."""


@dataclass(frozen=True, slots=True)
class StackTraceRequested:
    """An operator asks what the client is doing; the response is `TelemetryStream.send_stack_trace`."""

    nonce: str


@dataclass(frozen=True, slots=True)
class VerificationRequested:
    """An operator asks to consume a message by hand; the response is `refuse_verification`."""

    nonce: str


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command that this client ignores."""


Command = (
    Settings | SettingsRefused | Reconnect | StackTraceRequested | VerificationRequested | UnknownCommand
)


def decode(raw: bytes) -> Command:
    """Return a received command."""
    message = service.TelemetryCommand.FromString(raw)
    match message.WhichOneof("command"):
        case "settings":
            return Settings(convert.server_settings(message.settings))
        case "reconnect_endpoints_command":
            return Reconnect()
        case "print_thread_stack_trace_command":
            return StackTraceRequested(message.print_thread_stack_trace_command.nonce)
        case "verify_message_command":
            return VerificationRequested(message.verify_message_command.nonce)
        case None if message.HasField("status"):
            error = convert.error_of_status(message.status)
            return UnknownCommand() if error is None else SettingsRefused(error)
    return UnknownCommand()


class TelemetryStream:
    """One open stream; call `read` until it returns None. Not for concurrent writers."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        """Open the stream; a failure shows at the first write or read."""
        opened: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            MESSAGING + "Telemetry"
        )
        self.call = opened(metadata=grpc.aio.Metadata(*metadata))

    async def write_settings(self, settings: convert.ClientSettings) -> None:
        """Send the client's settings.

        Raises:
            WhimbrelError: the stream is over.
        """
        await self.write(service.TelemetryCommand(settings=convert.settings_message(settings)))

    async def send_stack_trace(self, nonce: str, text: str) -> None:
        """Respond to `StackTraceRequested`."""
        await self.write(
            service.TelemetryCommand(
                status=v2.Status(code=v2.OK),
                thread_stack_trace=service.ThreadStackTrace(nonce=nonce, thread_stack_trace=text),
            )
        )

    async def refuse_verification(self, nonce: str) -> None:
        """Respond to `VerificationRequested`: this client does not consume on demand."""
        await self.write(
            service.TelemetryCommand(
                status=v2.Status(code=v2.NOT_IMPLEMENTED, message="this client does not consume on demand"),
                verify_message_result=service.VerifyMessageResult(nonce=nonce),
            )
        )

    async def read(self) -> Command | None:
        """Return the next command, or None when the server has ended the stream.

        Raises:
            WhimbrelError: the stream broke.
        """
        try:
            raw = await self.call.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        return decode(raw) if isinstance(raw, bytes) else None

    def cancel(self) -> None:
        """End the stream at once."""
        self.call.cancel()

    async def write(self, command: service.TelemetryCommand) -> None:
        try:
            await self.call.write(command.SerializeToString())
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
