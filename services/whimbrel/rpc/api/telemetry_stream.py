"""The calling side of the Telemetry stream: what a client writes there, and what it reads, as values.

The stream stays open for as long as the client uses the server. The client writes its settings first, and
again whenever the server may have lost them; the server answers each with its own, and may send commands in
between.
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
    "StackTraceWanted",
    "TelemetryStream",
    "Unknown",
    "VerificationWanted",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """The server's settings for this client."""

    settings: convert.ServerSettings


@dataclass(frozen=True, slots=True)
class SettingsRefused:
    """The server does not take the client's settings."""

    error: WhimbrelError


@dataclass(frozen=True, slots=True)
class Reconnect:
    """The client should open its stream again."""


@dataclass(frozen=True, slots=True)
class StackTraceWanted:
    """An operator asks what the client is doing; to be answered with `TelemetryStream.answer_stack_trace`."""

    nonce: str


@dataclass(frozen=True, slots=True)
class VerificationWanted:
    """An operator asks to consume a message by hand; to be answered with `refuse_verification`."""

    nonce: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A command that this client has no use for."""


Command = Settings | SettingsRefused | Reconnect | StackTraceWanted | VerificationWanted | Unknown


def decode(raw: bytes) -> Command:
    """Return what the server wrote."""
    message = service.TelemetryCommand.FromString(raw)
    match message.WhichOneof("command"):
        case "settings":
            return Settings(convert.server_settings(message.settings))
        case "reconnect_endpoints_command":
            return Reconnect()
        case "print_thread_stack_trace_command":
            return StackTraceWanted(message.print_thread_stack_trace_command.nonce)
        case "verify_message_command":
            return VerificationWanted(message.verify_message_command.nonce)
        case None if message.HasField("status"):
            error = convert.error_of_status(message.status)
            return Unknown() if error is None else SettingsRefused(error)
    return Unknown()


class TelemetryStream:
    """One open stream; use `read` until it returns None. Not for concurrent writers."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        """Open the stream; no failure shows before the first write or read."""
        opened: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            MESSAGING + "Telemetry"
        )
        self.call = opened(metadata=grpc.aio.Metadata(*metadata))

    async def write_settings(self, settings: convert.ClientSettings) -> None:
        """Tell the server who the client is.

        Raises:
            WhimbrelError: the stream is over.
        """
        await self.write(service.TelemetryCommand(settings=convert.settings_message(settings)))

    async def answer_stack_trace(self, nonce: str, text: str) -> None:
        """Answer `StackTraceWanted`."""
        await self.write(
            service.TelemetryCommand(
                status=v2.Status(code=v2.OK),
                thread_stack_trace=service.ThreadStackTrace(nonce=nonce, thread_stack_trace=text),
            )
        )

    async def refuse_verification(self, nonce: str) -> None:
        """Answer `VerificationWanted`: this client does not consume on demand."""
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
