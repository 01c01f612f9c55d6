"""Plain sends and acknowledgements by the compiled lane: the broker's side of `rpc/server/lane_calls.py`.

    bytes of a read ──► PlainCalls.take ──► plan: records, entries, keys, answers     nothing is written
    plan            ──► Sends.append_packed                                           or dropped, for Python
    answers         ──► sent at once, or parked until the log is durable (`Appender.parked`)

    bytes of a read ──► PlainCalls.take ──► offsets that are done, answers            nothing is written
    offsets         ──► LaneAcks.settle                                               or dropped, for Python
    answers         ──► sent at once, or parked until a majority has that (`StateQuorum.parked`)

It only proves that calls are plain: what is not stays as it was, and each error comes from the engine, for
the same bytes. A pass for sends is given the engine's policy, made anew with each generation of it, and how
much room there is (`Sends.room_for_packed`); none where something is out of the ordinary. What it has made it
has the engine append (`Sends.append_packed`).

What the lane must know of topics it asks (`find`, `queue`), once a pass for each. The client of a call must
be one that Python knows (`tables/clients.py`): its first call is Python's.

Traces: while tracing is on, messages with a trace context are Python's, and so is each message that is
sampled; both count down `Sampler.unsampled`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from whimbrel.broker.api.response_bytes import OK_FIELD, OK_FIELD_3
from whimbrel.broker.consume.lease_codec import OFFSET_MAX, QUEUE_ID_MAX
from whimbrel.broker.consume.receipts import RECEIPT_CHARS_MAX, handle_begin
from whimbrel.broker.engine.message import born_host_of
from whimbrel.broker.engine.policy import SendPolicy
from whimbrel.broker.engine.send import Sends
from whimbrel.broker.lane.acks import LaneAcks
from whimbrel.broker.lane.parked_answers import AcksQuorum, OnCalls, ParkedAnswers
from whimbrel.broker.produce.appender import Appender
from whimbrel.broker.tables.clients import Clients
from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError
from whimbrel.model.limits import (
    ACK_ENTRIES_MAX,
    ATTEMPT_MAX,
)
from whimbrel.model.properties import BORN_TIMESTAMP, CLUSTER
from whimbrel.model.trace import FALLBACK_PROPERTY
from whimbrel.model.wire import CLIENT_ID_HEADER, MESSAGING_SERVICE, QUEUE_HEADER
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.pb.apache.rocketmq.v2 import service_pb2 as messaging
from whimbrel.rpc.http2.grpc_format import OK_TRAILERS, RESPONSE_HEADERS
from whimbrel.rpc.http2.hpack import HeaderDecoder
from whimbrel.rpc.http2.lane_decoder import VARYING, LaneHeaderDecoder
from whimbrel.rpc.server.handlers import Encoded
from whimbrel.rpc.server.lanes import CallsPart, LaneAnswers, LaneFault, LanePass, TakenRead
from whimbrel.rpc.server.request_limits import SEND_ENTRIES_MAX
from whimbrel.rpc.server.responses import OK, status_of
from whimbrel.store.consumequeue import ConsumeQueue
from whimbrel.store.lane_passes import LanePasses
from whimbrel.store.master_store import MasterStore

__all__ = ["BrokerLane"]

SEND: Final = "SendMessage"
ACK: Final = "AckMessage"
SEND_PATH: Final = f"/{MESSAGING_SERVICE}/{SEND}"
ACK_PATH: Final = f"/{MESSAGING_SERVICE}/{ACK}"


class BrokerLane:
    """Takes plain sends and acknowledgements; on the loop's thread.

    Attributes:
        calls: that the lane has done since the start.
    """

    paths: tuple[str, ...] = (SEND_PATH, ACK_PATH)  # by the numbers of the methods in `pass.rs`

    def __init__(
        self,
        passes: LanePasses,
        store: MasterStore,
        sends: Sends,
        appender: Appender,
        clients: Clients,
        acks: LaneAcks,
        *,
        broker_name: str,
        size_bounds: Sequence[float] = (),
        on_calls: OnCalls | None = None,
        acks_wait_for: AcksQuorum | None = None,
        not_serving: Callable[[], str] = str,
    ) -> None:
        """Take what sends and acknowledgements need.

        Args:
            passes: run the lane's calls; the lane must be active.
            store, sends, appender, clients, acks: of the broker.
            broker_name: in the receipt handles of this broker.
            size_bounds: of the histogram of record sizes.
            on_calls: called with the calls of each pass, when they are answered.
            acks_wait_for: who must store acknowledgements before they are answered; None: nobody else.
            not_serving: returns why acknowledgements are not taken yet, "" once they are.
        """
        self.passes, self.store, self.sends, self.appender = passes, store, sends, appender
        self.clients, self.size_bounds = clients, [int(bound) for bound in size_bounds]
        self.acks, self.handle_begin = acks, handle_begin(broker_name).encode()
        self.on_calls = on_calls
        self.native = passes.lane.native
        assert self.native is not None
        self.acks_wait_for, self.not_serving = acks_wait_for, not_serving
        self.sends_parked = self.kept(SEND_PATH)
        self.acks_parked = self.kept(ACK_PATH)
        self.policy: Any = None
        self.policy_of: SendPolicy | None = None
        self.calls = 0
        appender.parked = self.sends_parked
        if acks_wait_for is not None:
            acks_wait_for.parked = self.acks_parked

    def kept(self, path: str) -> ParkedAnswers:
        """Return what keeps answers of a method."""
        assert self.native is not None
        return ParkedAnswers(self.native.ParkedAnswers(), self.appender.loop, path, self.on_calls)

    # For `LaneCalls`

    @property
    def active(self) -> bool:
        """Whether the lane takes calls."""
        return self.passes.lane.active

    def header_decoder(self, before: HeaderDecoder) -> LaneHeaderDecoder:
        """Return a decoder that goes on where the one before is."""
        assert self.native is not None
        native = self.native.HeaderDecoder(before.list_bytes_max, sorted(VARYING))
        return LaneHeaderDecoder(native, self.run, before)

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run a call of the lane.

        Raises:
            RuntimeError: it has panicked.
        """
        lane = self.passes.lane
        before = lane.failures
        found = self.passes.run(work, *arguments)
        if lane.failures != before:
            raise RuntimeError(f"the compiled lane is {lane}")
        return found

    def take(self, reads: Sequence[tuple[CallsPart, bytes]]) -> LanePass | None:
        """Do the plain calls at the begin of each read; see `CallLane.take`."""
        if not self.passes.lane.active:
            return None
        clients = self.clients.clients
        wanted = [
            (
                calls.decoder.native,
                data,
                calls.state(),
                calls.client_bytes if calls.client in clients else b"",
                born_host_of(calls.peer),
                calls.approved,
            )
            for calls, data in reads
        ]
        log = self.sends.room_for_packed()
        self.acks.begin()
        began = time.perf_counter()
        taken: list[TakenRead] = []
        leases = self.acks, self.acks_left()
        done = self.passes.run(self.current_policy().take, wanted, log, self, leases, taken)
        if done is None:
            self.undo(reads[: len(taken)])  # it has not come to the others
            raise LaneFault(len(taken), self.passes.lane.why)
        stored, offsets = done
        if stored is not None:
            assert log is not None
            if not self.sends.append_packed(stored, log[2]):
                self.undo(reads)
                return None
            self.passes.lane.messages += stored[-1]
            self.took(reads, taken, SEND, began)
            return LanePass(SEND_PATH, taken)
        if offsets is not None:
            if not self.acks.settle(offsets):
                self.undo(reads)
                return None
            self.passes.lane.acknowledged += sum(end - start for _, some in offsets for start, end in some)
            self.took(reads, taken, ACK, began)
            return LanePass(ACK_PATH, taken)
        if log is None and not any(one[0] for one in taken):
            self.undo(reads)
            return None
        return LanePass(SEND_PATH, taken)

    def undo(self, reads: Sequence[tuple[CallsPart, bytes]]) -> None:
        """Put the tables of header fields back to where they were before the pass."""
        for calls, _ in reads:
            calls.decoder.native.undo()

    def took(
        self, reads: Sequence[tuple[CallsPart, bytes]], taken: Sequence[TakenRead], method: str, began: float
    ) -> None:
        """Take note of the calls of a pass, and of whose they were."""
        clients, now = self.clients.clients, self.store.machine.monotonic()
        count = 0
        for (calls, _), one in zip(reads, taken, strict=True):
            _, ids, others = one[-1]
            if ids is not None:
                count += len(ids)
            if others is not None:
                self.calls += len(others)
                clients[calls.client].last_seen = now
        self.calls += count
        if count and self.on_calls is not None:
            self.on_calls(method, OK.code, False, (time.perf_counter() - began) / count, count)

    def acks_left(self) -> int | None:
        """Return how many acknowledgements may be parked; None where none is; 0 where Python has to look."""
        if self.acks_wait_for is None:
            return None
        return 0 if self.not_serving() else self.acks_wait_for.room

    def current_policy(self) -> Any:
        """Return the compiled policy, made anew where what it is made of has changed."""
        policy = self.sends.policy
        if self.policy_of is not policy:
            assert self.native is not None
            self.policy_of = policy
            self.policy = self.native.PlainCalls(
                after_id=f"\x02{CLUSTER}\x01{policy.cluster}\x02{BORN_TIMESTAMP}\x01".encode(),
                store_host=policy.store_host,
                reserved=[name.encode() for name in policy.reserved],
                fallback=FALLBACK_PROPERTY.encode(),
                tracing=policy.traced,
                ok=OK_FIELD,
                body_max=policy.body_bytes_max,
                properties_max=policy.users_max,
                weight_max=policy.weight_max,
                text_max=policy.text_bytes_max,
                time_max_ms=policy.time_ms_max,
                messages_max=policy.messages_max,
                entries_max=SEND_ENTRIES_MAX,
                send_path=SEND_PATH.encode(),
                ack_path=ACK_PATH.encode(),
                ok_3=OK_FIELD_3,
                handle_begin=self.handle_begin,
                acks_max=ACK_ENTRIES_MAX,
                handle_max=RECEIPT_CHARS_MAX,
                offset_max=OFFSET_MAX,
                queue_id_max=QUEUE_ID_MAX,
                attempt_max=ATTEMPT_MAX,
                queue_header=QUEUE_HEADER.encode(),
                client_header=CLIENT_ID_HEADER.encode(),
                answer_head=RESPONSE_HEADERS,
                answer_tail=OK_TRAILERS,
                indexed=self.store.options.index_enabled,
                index_tags=self.store.options.index_tags,
                size_bounds=self.size_bounds,
            )
        return self.policy

    # Asked by the lane

    def find(self, name: str) -> tuple[int, int, int, dict[int, ConsumeQueue]] | None:
        """Return how many queues of a topic sends may name, how many take turns, whose was the last, and the
        queues that are there, by their numbers; None for Python's."""
        target = self.sends.targets.plain(name)
        if target is None:
            return None
        return target.queues, target.queues, target.turn, self.store.queues.by_topic.get(name, {})

    def queue(self, name: str, queue_id: int) -> ConsumeQueue:
        """Make a queue that is not there yet."""
        return self.store.queues.get_or_create(name, queue_id)

    # Parked answers

    def park(self, calls: CallsPart, path: str, answers: LaneAnswers) -> None:
        """Keep answers until their records are durable, or enough members have the acknowledgements."""
        quorum = self.acks_wait_for
        if path == SEND_PATH:
            self.sends_parked.add(calls, answers)
            return
        assert quorum is not None
        self.acks_parked.add(calls, answers, quorum.newest())
        self.acks_parked.settle(quorum.reached)

    def take_back(self, calls: CallsPart) -> list[tuple[str, float, LaneAnswers]]:
        """Return the parked answers of a connection."""
        return self.sends_parked.take_back(calls) + self.acks_parked.take_back(calls)

    def wait(self, path: str, message: bytes, end: int, parked_at: float) -> Deferred[Any]:
        """Have Python wait for the answer to a call that was parked."""
        if path == ACK_PATH:
            assert self.acks_wait_for is not None
            return self.acks_wait_for.wait(end, parked_at, Encoded(message, OK))
        deferred: Deferred[Any] = Deferred()

        def answer(error: WhimbrelError | None) -> None:
            deferred.complete(Encoded(message, OK) if error is None else refused(message, error))

        self.appender.wait(end, parked_at, answer)
        return deferred


def refused(message: bytes, error: WhimbrelError) -> Any:
    """Return the response to messages that are stored and not as durable as was asked."""
    response = messaging.SendMessageResponse.FromString(message)
    status: v2.Status = status_of(error)
    response.status.CopyFrom(status)
    for entry in response.entries:
        entry.status.CopyFrom(status)
    return response
