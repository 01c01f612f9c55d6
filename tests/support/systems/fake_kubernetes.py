"""A stand-in for the API server of Kubernetes: Leases of one namespace, by HTTPS on a port of the loopback.

Written from the API's documentation, and never compared with a real one. It does what our coordinator relies
on: objects with a resourceVersion that each write moves, 409 where another one is named or the name is taken,
404, 401 and 403 by token, writes that are not done with `dryRun=All`, and answers in chunks.
"""

import json
import re
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.cluster.certificates import Tls

__all__ = ["FakeKube"]

PATH = re.compile(r"/apis/coordination\.k8s\.io/v1/namespaces/([^/]+)/leases(?:/([^/?]+))?(\?dryRun=All)?")


class FakeKube:
    """The server, started.

    Args:
        root: where its token file goes.
        tls: whose server's certificate it shows.
        namespace: the only one that there is.

    Attributes:
        leases: by name.
        tokens: those that are known, with the verbs that each may use.
        fails: the next writes are done, and answered by this status; None: not answered at all.
        hangs: requests wait until it is set back.
        calls: (method, path) of each request.
    """

    def __init__(self, root: Path, tls: Tls, namespace: str = "ns") -> None:
        self.tls = tls
        self.namespace = namespace
        self.token_file = root / "token"
        self.token_file.write_text("good")
        self.leases: dict[str, dict[str, Any]] = {}
        self.tokens = {"good": {"get", "create", "update"}, "reader": {"get"}}
        self.version = 100
        self.fails: list[int | None] = []
        self.raw: bytes | None = None
        self.hangs = False
        self.calls: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self.start()

    def start(self, port: int = 0) -> None:
        """Serve, on the port of before where one is named."""
        kube = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                kube.handle(self)

            do_GET = do_POST = do_PUT = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.tls.server, self.tls.server_key)
        self.server.socket = context.wrap_socket(
            self.server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End it; its objects stay."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hangs = False
        self.stop()

    @property
    def variables(self) -> dict[str, str]:
        """What Kubernetes sets in a container."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request."""
        length = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(length)) if length else {}
        self.calls.append((request.command, request.path))
        while self.hangs:
            time.sleep(0.01)
        with self.lock:
            status, answer = self.decide(request, body)
            if request.command != "GET" and "dryRun" not in request.path and self.fails:
                failure = self.fails.pop(0)
                if failure is None:
                    request.close_connection = True
                    return
                status, answer = failure, {"message": "it fails"}
        self.answer(request, status, answer)

    def answer(self, request: BaseHTTPRequestHandler, status: int, answer: dict[str, Any]) -> None:
        """Send an answer, in two chunks."""
        if self.raw is not None:
            request.wfile.write(self.raw)
            request.close_connection = True
            return
        payload = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        half = len(payload) // 2
        for piece in (payload[:half], payload[half:], b""):  # an empty one is the end
            request.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def decide(self, request: BaseHTTPRequestHandler, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return a status and an object."""
        token = (request.headers.get("Authorization") or "").removeprefix("Bearer ")
        verb = {"GET": "get", "POST": "create", "PUT": "update"}[request.command]
        match = PATH.fullmatch(request.path)
        if token not in self.tokens:
            return 401, {"message": "Unauthorized"}
        if verb not in self.tokens[token]:
            return 403, {"message": f"leases.coordination.k8s.io is forbidden: cannot {verb}"}
        if match is None or match[1] != self.namespace:
            return 404, {"message": "namespaces not found"}
        name, dry = match[2] or body.get("metadata", {}).get("name"), bool(match[3])
        kept = self.leases.get(name)
        if verb == "create":
            if kept is not None:
                return 409, {"message": "already exists"}
        elif kept is None:
            return 404, {"message": f'leases "{name}" not found'}
        elif verb == "get":
            return 200, kept
        elif body["metadata"].get("resourceVersion") != kept["metadata"]["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        return (201 if verb == "create" else 200), self.write(name, body, dry=dry)

    def write(self, name: str, body: dict[str, Any], *, dry: bool) -> dict[str, Any]:
        """Keep an object, under the next version."""
        written: dict[str, Any] = json.loads(json.dumps(body))
        if not dry:
            self.version += 7
            written["metadata"]["resourceVersion"] = str(self.version)
            self.leases[name] = written
        return written
