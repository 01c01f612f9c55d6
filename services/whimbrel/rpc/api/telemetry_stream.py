"""The client's side of the Telemetry stream: what it writes, and the commands that it reads, as values.

The stream stays open for as long as the client uses the server. The client writes its settings first, and
again whenever the server may have lost them. The server responds to each with its own, and may send commands
in between.
"""

import asyncio
from dataclasses import dataclass, replace

import grpc.aio

from whimbrel.errors import WhimbrelError
from whimbrel.model.message import ReceivedMessage
from whimbrel.model.route import Endpoint, Queue
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
    "TransactionAsked",
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
class TransactionAsked:
    """A broker asks what became of a transaction; the response is EndTransaction, at the same broker."""

    message: ReceivedMessage


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command that this client ignores."""


Command = (
    Settings
    | SettingsRefused
    | Reconnect
    | StackTraceRequested
    | TransactionAsked
    | VerificationRequested
    | UnknownCommand
)


def decode(raw: bytes, endpoint: Endpoint) -> Command:
    """Return a command that was received from this server.

    Raises:
        CorruptRecord: it carries a message that can't be read.
    """
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
        case "recover_orphaned_transaction_command":
            asked = message.recover_orphaned_transaction_command
            queue = Queue(
                topic=asked.message.topic.name,
                broker_name="",
                broker_id=0,
                queue_id=asked.message.system_properties.queue_id,
                readable=False,
                writable=True,
                endpoints=(endpoint,),
            )
            half = convert.received_message(asked.message, queue)
            return TransactionAsked(replace(half, transaction_id=asked.transaction_id))
        case None if message.HasField("status"):
            error = convert.error_of_status(message.status)
            return UnknownCommand() if error is None else SettingsRefused(error)
    return UnknownCommand()


class TelemetryStream:
    """One open stream; call `read` until it returns None. Writes of several tasks wait for each other."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata, endpoint: Endpoint) -> None:
        """Open the stream to the server at `endpoint`; a failure shows at the first write or read."""
        self.endpoint = endpoint
        self.writing = asyncio.Lock()
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
        return decode(raw, self.endpoint) if isinstance(raw, bytes) else None

    def cancel(self) -> None:
        """End the stream at once."""
        self.call.cancel()

    async def write(self, command: service.TelemetryCommand) -> None:
        try:
            async with self.writing:
                await self.call.write(command.SerializeToString())
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
