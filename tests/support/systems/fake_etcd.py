"""An etcd that says what a test wants: one key, in memory, served by grpcio on a free port of the loopback.

Only for what a real one does not do on command (`etcd.py` starts real ones): stale terms, other ids,
answers that do not come, watches that end.
"""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from whimbrel.pb.etcd.v3 import etcd_pb2 as pb

__all__ = ["FakeEtcd"]


class FakeEtcd:
    """The member.

    Attributes:
        cluster, term, revision: of its answers.
        value, mod_revision: what stands under the only key; None where nothing does.
        refusals: (code, text), by each of which a call is refused, the first one first.
        silent: calls wait for `freed`, and are not answered before.
        answer_lost: the next transaction is done, and refused as if it was not.
        users: by name; with any, calls need one of `tokens`.
        asked: paths of the calls.
        watches: what each watch is answered; then it ends, or hangs with `watch_hangs`.
    """

    def __init__(self) -> None:
        self.cluster, self.term, self.revision = 0xC1, 2, 1
        self.value: bytes | None = None
        self.mod_revision = 0
        self.refusals: list[tuple[grpc.StatusCode, str]] = []
        self.silent = self.answer_lost = False
        self.freed = asyncio.Event()
        self.users: dict[str, str] = {}
        self.tokens: set[str] = set()
        self.asked: list[str] = []
        self.watches: list[pb.WatchResponse] = []
        self.watch_hangs = False
        self.watched: list[int] = []

    async def __aenter__(self) -> Self:
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((self.handlers(),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.freed.set()
        await self.server.stop(0)

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self.port}"

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return what it serves."""

        class Handler(grpc.GenericRpcHandler):
            def service(_, details: grpc.HandlerCallDetails) -> Any:
                self.asked.append(details.method)
                return {
                    "/etcdserverpb.KV/Range": unary(self.range, pb.RangeRequest),
                    "/etcdserverpb.KV/Txn": unary(self.txn, pb.TxnRequest),
                    "/etcdserverpb.Auth/Authenticate": unary(self.authenticate, pb.AuthenticateRequest),
                    "/etcdserverpb.Watch/Watch": grpc.stream_stream_rpc_method_handler(
                        self.watch, pb.WatchRequest.FromString, pb.WatchResponse.SerializeToString
                    ),
                }.get(details.method)

        return Handler()

    @property
    def header(self) -> Any:
        """Return the header of an answer."""
        return pb.ResponseHeader(cluster_id=self.cluster, revision=self.revision, raft_term=self.term)

    async def admit(self, context: Any) -> None:
        """Refuse a call, or keep it waiting, as the test wants."""
        if self.silent:
            await self.freed.wait()
        if self.refusals:
            await context.abort(*self.refusals.pop(0))
        if self.users:
            token = dict(context.invocation_metadata()).get("token")
            if token is None:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty")
            if token not in self.tokens:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")

    def found(self) -> Any:
        """Return what a read finds."""
        if self.value is None:
            return pb.RangeResponse(header=self.header)
        kv = pb.KeyValue(key=b"k", value=self.value, mod_revision=self.mod_revision)
        return pb.RangeResponse(header=self.header, kvs=[kv])

    async def range(self, request: Any, context: Any) -> Any:
        """Read."""
        await self.admit(context)
        assert not request.serializable
        return self.found()

    async def txn(self, request: Any, context: Any) -> Any:
        """Put if the comparison holds, else read."""
        await self.admit(context)
        (compare,) = request.compare
        holds = self.mod_revision == compare.mod_revision and compare.result == pb.Compare.EQUAL
        if holds:
            self.revision += 1
            self.value, self.mod_revision = request.success[0].request_put.value, self.revision
        if self.answer_lost:
            self.answer_lost = False
            await context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out")
        if holds:
            return pb.TxnResponse(header=self.header, succeeded=True)
        return pb.TxnResponse(header=self.header, responses=[pb.ResponseOp(response_range=self.found())])

    async def authenticate(self, request: Any, context: Any) -> Any:
        """Give a token."""
        if self.users.get(request.name) != request.password:
            text = "etcdserver: authentication failed, invalid user ID or password"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        token = f"token-{len(self.tokens)}-{len(self.asked)}"
        self.tokens.add(token)
        return pb.AuthenticateResponse(header=self.header, token=token)

    async def watch(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Say what the test wants."""
        async for request in requests:
            self.watched.append(request.create_request.start_revision)
            break
        yield pb.WatchResponse(header=self.header, created=True)
        for response in self.watches:
            yield response
        if self.watch_hangs:
            await self.freed.wait()


def unary(method: Any, request: Any) -> Any:
    """Return a handler of one call."""
    return grpc.unary_unary_rpc_method_handler(
        method, request.FromString, lambda response: response.SerializeToString()
    )
