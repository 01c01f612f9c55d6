"""Asks the API server of the Kubernetes around this process: an exchange of JSON by HTTPS, with a deadline.

    address    KUBERNETES_SERVICE_HOST and _PORT, which Kubernetes sets in each container
    trust      the CA file, and the bearer token in the token file: read at each exchange, for they rotate

A connection for each exchange: there is one every half second at most. Python's own parser reads the answer
(`http.client`), of which at most `ANSWER_BYTES_MAX` are taken.
"""

import asyncio
import http.client
import io
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from whimbrel.errors import NotReady, RemoteProtocolError, RequestTimeout, Unavailable
from whimbrel.rpc.api.secret_files import read_secret

__all__ = ["ANSWER_BYTES_MAX", "CALL_S", "KubernetesApi"]

CALL_S: Final = 1.0
ANSWER_BYTES_MAX: Final = 1 << 20  # an object has 1.5 MiB at most in etcd; ours some 20 KiB
ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
DETAIL_CHARS_MAX: Final = 160


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the API server.

    Attributes:
        status: HTTP's.
        body: the JSON object; empty where there was none.
    """

    status: int
    body: dict[str, Any]

    @property
    def message(self) -> str:
        """What the server says of a failure, cut, without what would break a line."""
        text = str(self.body.get("message", ""))[:DETAIL_CHARS_MAX]
        return "".join(each if each.isprintable() else " " for each in text)


class Received(io.BytesIO):
    """Bytes as the socket that `http.client` reads from."""

    def makefile(self, mode: str) -> io.BytesIO:
        """Return what is read."""
        return self


class KubernetesApi:
    """The API server."""

    def __init__(self, variables: Mapping[str, str], *, ca: str = "", token_file: str = "") -> None:
        """Take the environment, and other files than those of the service account."""
        self.variables = variables
        self.ca, self.token_file = ca or f"{ACCOUNT}/ca.crt", token_file or f"{ACCOUNT}/token"

    async def exchange(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        """Make a request.

        Raises:
            Unavailable: there is no connection, or it ends.
            RequestTimeout: there is no answer in time.
            RemoteProtocolError: what is answered is no HTTP with JSON.
            NotReady: this process is not in Kubernetes, or its files can't be read.
        """
        host, port = self.variables.get(HOST, ""), self.variables.get(PORT, "")
        if not (host and port.isascii() and port.isdecimal()):
            raise NotReady(f"{HOST} and {PORT} are not set: coordinator kubernetes is for brokers in pods")
        request = encoded(method, path, f"[{host}]" if ":" in host else host, self.token(), body)
        try:
            async with asyncio.timeout(CALL_S):
                received = await converse(host, int(port), self.context(), request)
        except TimeoutError:
            raise RequestTimeout(f"Kubernetes does not answer at {host}:{port}") from None
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"Kubernetes can't be reached at {host}:{port}: {error}") from None
        return decoded(received)

    def context(self) -> ssl.SSLContext:
        """Return what the server's certificate is checked by."""
        try:
            return ssl.create_default_context(cadata=ascii_of(read_secret(self.ca, "coordinator_ca")))
        except ssl.SSLError as error:
            raise NotReady(f"coordinator_ca: {self.ca} has no certificate: {error.reason}") from None

    def token(self) -> str:
        """Return the token as it is now."""
        token = ascii_of(read_secret(self.token_file, "coordinator_token_file")).strip()
        if not token or not token.isascii() or not token.isprintable() or " " in token:
            raise NotReady(f"coordinator_token_file: {self.token_file} has no token")
        return token


def ascii_of(data: bytes) -> str:
    """Return text; what is no ASCII makes it useless, and is refused by who uses it."""
    return data.decode("ascii", "replace")


def encoded(method: str, path: str, host: str, token: str, body: dict[str, Any] | None) -> bytes:
    """Return a request."""
    payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        "Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: whimbrel\r\n"
        f"Connection: close\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode("ascii") + payload


async def converse(host: str, port: int, context: ssl.SSLContext, request: bytes) -> bytes:
    """Send a request and return all that comes, until the server closes the connection."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(request)
        await writer.drain()
        received = bytearray()
        while piece := await reader.read(1 << 16):
            received += piece
            if len(received) > ANSWER_BYTES_MAX:
                raise RemoteProtocolError(f"Kubernetes answers with more than {ANSWER_BYTES_MAX} bytes")
        return bytes(received)
    finally:
        writer.transport.abort()


def decoded(received: bytes) -> Answer:
    """Return an answer.

    Raises:
        RemoteProtocolError: these bytes are none.
    """
    response = http.client.HTTPResponse(Received(received))  # type: ignore[arg-type]  # it reads, and no more
    try:
        response.begin()
        body = response.read()
        fields = json.loads(body) if body else {}
    except (http.client.HTTPException, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"Kubernetes answers what can't be read: {type(error).__name__}") from None
    if not isinstance(fields, dict):
        raise RemoteProtocolError("Kubernetes answers JSON that is no object")
    return Answer(response.status, fields)
