"""A client of the remoting protocol over a socket, for tests with real processes; one thread, no library.

Requests are answered in any order: `call` waits for its own answer, and keeps what else comes (answers to
`start`, requests of the server) for `answer` and `pushed`.
"""

import json
import socket
import time
from types import TracebackType
from typing import Any, Self

from support.remoting.handlers import frame, messages_in, send_fields
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.frames import FrameReader
from whimbrel.store.codec import StoredMessage

__all__ = ["Wire", "heartbeat", "pull_fields"]

RESPONSE = 1


class Wire:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)), timeout=20)
        self.reader = FrameReader()
        self.answers: dict[int, Command] = {}
        self.requests: list[Command] = []
        self.last = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def start(self, code: int, fields: dict[str, Any], body: bytes = b"", flag: int = 0) -> int:
        """Send a request; return its number."""
        self.last += 1
        self.sock.sendall(frame(code, self.last, fields, body, flag))
        return self.last

    def receive(self, timeout: float) -> None:
        """Take what comes next."""
        self.sock.settimeout(max(timeout, 0.001))
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionError("the server has closed the connection")
        for command in self.reader.feed(data):
            if command.flag & RESPONSE:
                self.answers[command.opaque] = command
            else:
                self.requests.append(command)

    def answer(self, number: int, timeout: float = 20.0) -> Command:
        """Return the answer to a request."""
        until = time.monotonic() + timeout
        while number not in self.answers:
            self.receive(until - time.monotonic())
        return self.answers.pop(number)

    def call(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Command:
        """Return the answer to a request that is sent now."""
        return self.answer(self.start(code, fields or {}, body))

    def pushed(self, code: int, timeout: float = 20.0) -> Command:
        """Return a request of the server."""
        until = time.monotonic() + timeout
        while True:
            for request in self.requests:
                if request.code == code:
                    self.requests.remove(request)
                    return request
            self.receive(until - time.monotonic())

    def send(self, topic: str, body: bytes, **fields: Any) -> Command:
        """Send a message."""
        return self.call(310, send_fields(topic, **fields), body)

    def pull(self, topic: str, queue_id: int = 0, offset: int = 0, **fields: Any) -> Command:
        """Pull with a subscription of its own, without waiting."""
        return self.call(11, pull_fields(topic, queue_id, offset, **fields))

    def messages(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
        """Return all messages of a queue from an offset on."""
        found: list[StoredMessage] = []
        while True:
            answer = self.pull(topic, queue_id, offset)
            if answer.code != 0:
                return found
            found += messages_in([answer.body])
            offset = int(answer.fields["nextBeginOffset"])

    def json(self, code: int, fields: dict[str, Any] | None = None, body: Any = None) -> Any:
        """Return the body of an answer, which is standard JSON."""
        answer = self.call(code, fields, b"" if body is None else json.dumps(body).encode())
        assert answer.code == 0, answer
        return json.loads(answer.body)


def pull_fields(topic: str, queue_id: int, offset: int, **fields: Any) -> dict[str, Any]:
    """Return the fields of a pull."""
    return {
        "consumerGroup": "wire", "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*",
        "subVersion": 0, "expressionType": "TAG",
    } | fields  # fmt: skip


def heartbeat(
    client: str, *, group: str = "", producer: str = "", topics: dict[str, int] | None = None
) -> bytes:
    """Return the body of a heartbeat: topics with the versions of their subscriptions."""
    consumers = [
        {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [
                {
                    "classFilterMode": False, "codeSet": [], "expressionType": "TAG", "subString": "*",
                    "subVersion": version, "tagsSet": [], "topic": topic,
                }
                for topic, version in (topics or {}).items()
            ],
            "unitMode": False,
        }
    ]  # fmt: skip
    body = {
        "clientID": client,
        "consumerDataSet": consumers if group else [],
        "producerDataSet": [{"groupName": producer}] if producer else [],
    }
    return json.dumps(body).encode()
