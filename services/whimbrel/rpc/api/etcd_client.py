"""Asks an etcd cluster, member by member: reads a key, swaps it, waits for it to change.

A call goes to the member that answered last, and on to the next one while members can't (`etcd_answers.py`
says what that is); each gets `CALL_S`. A member's channel is closed when it fails, and opened anew at its
next turn, with the files of TLS as they are then.

    read     Range, linearizable: the member asks the others whether it is up to date
    probe    a Txn that can never write, though it names a put: a read, which is refused where a put would
             be, for want of space or of a permission. Costs etcd an entry of its log, and no revision
    swap     Txn: puts the value if the key's mod_revision is the one named (0: no such key), else reads.
             Sent again to the next member where one does not answer: if the first one was done the second
             finds its own value there. So one answer says what stands, and whether it was put
    changed  Watch from a revision on. Says only that it is time to read: what a member shows that is cut
             off counts for nothing. It may end at any time for any reason (a compaction, a member that has
             lost its leader), with or without its connection; so it is bounded, and a read follows

**Users.** A token is asked for before the first call, and anew when a call is refused for it: once, then the
call fails. A wrong password is not sent more often than every `AUTH_AGAIN_S`: checking one costs etcd 50 ms
of CPU time.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from whimbrel.errors import NotReady, RemoteProtocolError, Unavailable
from whimbrel.pb.etcd.v3 import etcd_pb2 as pb
from whimbrel.rpc.api.etcd_answers import EtcdRefusal, Otherwise, Seen, Verdict, sentence_of, verdict_of
from whimbrel.rpc.api.secret_files import read_secret
from whimbrel.rpc.client.channel import merged

__all__ = ["CALL_S", "EtcdAccess", "EtcdClient", "KeptValue"]

logger = logging.getLogger(__name__)

CALL_S: Final = 1.0  # for one member to answer
EARLY_S: Final = (
    0.2  # at least so long lasts a watch that tells nothing, so that none is begun again and again
)
AUTH_AGAIN_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 2 << 20  # etcd takes values of 1.5 MiB; ours have 16 KiB at most
OPTIONS: Final = merged(
    (
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        # Etcd refuses pings more often than every 5 s. One is under way whenever a watch is.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 2_000),
    )
)
# A member without a leader ends a watch that says so (etcd's `rpctypes.MetadataRequireLeaderKey`).
REQUIRE_LEADER: Final = ("hasleader", "true")
TOKEN: Final = "token"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAccess:
    """How a client shows who it is; all empty where etcd asks nobody.

    Attributes:
        ca: PEM file of those who sign etcd's certificates; makes it TLS.
        certificate, key: PEM files of the client.
        user: its name.
        password_file: whose first line is the password.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    user: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A key as it stands in etcd.

    Attributes:
        value: None where there is no such key.
        mod_revision: of its last change; 0 where there is none.
        store_revision: of the whole store when this stood.
    """

    value: bytes | None
    mod_revision: int
    store_revision: int


class EtcdClient:
    """Asks one cluster; on a running loop.

    Attributes:
        seen: the furthest that its answers have told.
    """

    def __init__(
        self, addresses: Sequence[str], access: EtcdAccess, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Take `host:port` of its members; nothing is asked yet."""
        self.addresses, self.access, self.now = tuple(addresses), access, now
        self.at = 0  # the member that answered last
        self.channels: dict[str, grpc.aio.Channel] = {}
        self.closing: set[asyncio.Task[None]] = set()
        self.seen = Seen()
        self.token = ""
        self.authenticating = asyncio.Lock()
        self.refused: tuple[float, str] | None = None  # when a password was, and how

    async def read(self, key: str) -> KeptValue:
        """Return what stands under a key.

        Raises:
            Unavailable: no member answers; the text has what each of them says.
            EtcdRefusal: etcd refuses.
        """
        request = pb.RangeRequest(key=key.encode(), limit=1)
        return kept(await self.call("KV/Range", request, pb.RangeResponse, key))

    async def probe(self, key: str) -> KeptValue:
        """Return the same, if a swap of the key would not be refused; errors as `read`."""
        never = pb.Compare(result=pb.Compare.LESS, target=pb.Compare.MOD, key=key.encode(), mod_revision=0)
        _, found = await self.transact(key, never, b"")
        return found

    async def swap(self, key: str, value: bytes, mod_revision: int) -> tuple[bool, KeptValue]:
        """Put a value in the place of the one of that revision; 0: of none.

        Returns:
            Whether it was put by this call's last try; what stands then.

        Raises:
            Unavailable: no member answers; it may have been put, or may yet be.
            EtcdRefusal: etcd refuses.
        """
        same = pb.Compare(
            result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key.encode(), mod_revision=mod_revision
        )
        return await self.transact(key, same, value)

    async def transact(self, key: str, compare: Any, value: bytes) -> tuple[bool, KeptValue]:
        """Put a value if the comparison holds, else read."""
        put = pb.RequestOp(request_put=pb.PutRequest(key=key.encode(), value=value))
        get = pb.RequestOp(request_range=pb.RangeRequest(key=key.encode(), limit=1))
        request = pb.TxnRequest(compare=[compare], success=[put], failure=[get])
        answer = await self.call("KV/Txn", request, pb.TxnResponse, key)
        revision = answer.header.revision
        if answer.succeeded:
            return True, KeptValue(value, revision, revision)
        if not answer.responses:
            raise RemoteProtocolError("etcd answers a transaction without what was read in it")
        return False, kept(answer.responses[0].response_range, revision)

    async def changed(self, key: str, after_revision: int, wait_s: float) -> bool:
        """Wait until a key changes after a revision of the store; return whether that is known.

        Returns False after `wait_s`, and when the watch ends, whatever the reason: `read` tells it.
        """
        address, began = self.addresses[self.at], self.now()
        found = False
        try:
            async with asyncio.timeout(wait_s):
                found = await self.watch(address, key, after_revision + 1)
                if not found:
                    await asyncio.sleep(max(0.0, EARLY_S - (self.now() - began)))
        except TimeoutError:
            pass
        return found

    async def watch(self, address: str, key: str, start_revision: int) -> bool:
        """Return True at the first change, False when the watch ends before."""
        create = pb.WatchCreateRequest(key=key.encode(), start_revision=start_revision)
        stream = None
        try:
            channel = self.channel(address)
            opened = channel.stream_stream(
                "/etcdserverpb.Watch/Watch",
                request_serializer=pb.WatchRequest.SerializeToString,
                response_deserializer=pb.WatchResponse.FromString,
            )
            stream = opened(metadata=(*self.credentials(), REQUIRE_LEADER))
            await stream.write(pb.WatchRequest(create_request=create))
            async for response in stream:
                if response.events:
                    return True
                if response.canceled:
                    logger.debug(
                        "etcd %s ends a watch: %s, compacted to %d",
                        address, response.cancel_reason[:200], response.compact_revision,
                    )  # fmt: skip
                    return False
        except asyncio.CancelledError:
            if cancelled():
                raise
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError, NotReady) as error:
            logger.debug("etcd %s: a watch has ended: %s", address, error)
        finally:
            if stream is not None:
                stream.cancel()
        return False

    async def call(self, method: str, request: Any, answer: Any, key: str) -> Any:
        """Ask the members, one after the other, until one answers; errors as `read`."""
        said: dict[str, list[str]] = {}
        begin = self.at
        for step in range(len(self.addresses)):
            number = (begin + step) % len(self.addresses)
            address = self.addresses[number]
            try:
                found = await self.call_member(address, method, request, answer, key)
            except (Unavailable, Otherwise) as error:
                said.setdefault(str(error), []).append(address)
                self.drop(address)
                continue
            self.at = number
            return found
        each = "; ".join(f"{', '.join(addresses)}: {text}" for text, addresses in said.items())
        raise Unavailable(f"no member of etcd can be asked: {each}")

    async def call_member(self, address: str, method: str, request: Any, answer: Any, key: str) -> Any:
        """Ask one member, with a new token if it wants one.

        Raises:
            Unavailable: it does not answer, or can't now.
            Otherwise: what it answers does not go on from what was known.
            EtcdRefusal: it refuses, as the others would.
        """
        for attempt in range(2):
            if self.access.user and not self.token:
                await self.authenticate(address, key)
            before, token = self.seen, self.token
            try:
                found = await self.ask(address, method, request, answer)
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details() or ""
                verdict = verdict_of(code, details)
                if verdict is Verdict.RENEW and self.access.user and not attempt:
                    if self.token == token:
                        self.token = ""
                    continue
                sentence = sentence_of(code, details, key)
                raise (Unavailable if verdict is Verdict.NEXT else EtcdRefusal)(sentence) from None
            before.check(found.header)
            self.seen = self.seen.with_header(found.header)
            return found
        raise EtcdRefusal("etcd takes none of the tokens that it gives")

    async def ask(self, address: str, method: str, request: Any, answer: Any) -> Any:
        """Make one call to one member."""
        channel = self.channel(address)
        try:
            send = channel.unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return await send(request, timeout=CALL_S, metadata=self.credentials())
        except (asyncio.CancelledError, grpc.aio.UsageError):
            if cancelled():
                raise
            raise Unavailable("its channel was closed") from None

    def credentials(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that say who calls."""
        return ((TOKEN, self.token),) if self.token else ()

    async def authenticate(self, address: str, key: str) -> None:
        """Get a token, once for all calls that need one.

        Raises:
            Unavailable: the member does not answer.
            EtcdRefusal: etcd does not know this user.
            NotReady: the password can't be read.
        """
        async with self.authenticating:
            if self.token:
                return
            if self.refused is not None and self.now() - self.refused[0] < AUTH_AGAIN_S:
                raise EtcdRefusal(self.refused[1])
            request = pb.AuthenticateRequest(name=self.access.user, password=self.password())
            try:
                answer = await self.ask(address, "Auth/Authenticate", request, pb.AuthenticateResponse)
            except grpc.aio.AioRpcError as error:
                code, details = error.code(), error.details() or ""
                if code is grpc.StatusCode.FAILED_PRECONDITION and "not enabled" in details:
                    raise EtcdRefusal(
                        f"etcd has no users, and coordinator_user names {self.access.user}: enable them"
                        " (`etcdctl auth enable`), or name none"
                    ) from None
                sentence = sentence_of(code, details, key)
                if verdict_of(code, details) is Verdict.NEXT:
                    raise Unavailable(sentence) from None
                self.refused = self.now(), sentence
                raise EtcdRefusal(sentence) from None
            self.refused = None
            self.token = answer.token

    def password(self) -> str:
        """Return the password, as its file has it now.

        Raises:
            NotReady: it can't be read.
        """
        path = self.access.password_file
        text = read_secret(path, "coordinator_password_file")
        try:
            return text.decode().splitlines()[0]
        except (UnicodeDecodeError, IndexError):
            raise EtcdRefusal(
                f"coordinator_password_file: {path} has no password in its first line"
            ) from None

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return the channel to a member.

        Raises:
            NotReady: a file of TLS can't be read.
        """
        found = self.channels.get(address)
        if found is None:
            found = self.channels[address] = self.open(address)
        return found

    def open(self, address: str) -> grpc.aio.Channel:
        """Open a channel; it connects at its first call."""
        access = self.access
        if not access.ca:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(
            read_secret(access.ca, "coordinator_ca"),
            read_secret(access.key, "coordinator_key") if access.key else None,
            read_secret(access.certificate, "coordinator_certificate") if access.certificate else None,
        )
        return grpc.aio.secure_channel(address, credentials, options=OPTIONS)

    def drop(self, address: str) -> None:
        """Close the channel to a member: one that has failed waits too long before it connects again."""
        channel = self.channels.pop(address, None)
        if channel is not None:
            task = asyncio.ensure_future(channel.close())
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)

    async def close(self) -> None:
        """Close all channels."""
        for address in tuple(self.channels):
            self.drop(address)
        if self.closing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait(self.closing, timeout=CALL_S)


def cancelled() -> bool:
    """Return whether it is this task that is to end: a call whose channel is closed ends like that, too."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def kept(answer: Any, revision: int = 0) -> KeptValue:
    """Return what a read has found.

    Raises:
        RemoteProtocolError: that is no key which was ever written.
    """
    store = revision or answer.header.revision
    if not answer.kvs:
        return KeptValue(None, 0, store)
    found = answer.kvs[0]
    if found.mod_revision < 1:
        raise RemoteProtocolError("etcd answers a key without a revision")
    return KeptValue(found.value, found.mod_revision, store)
