"""Plain sends of the remoting protocol by the compiled lane: the side of `rpc/server/remoting_lane.py` here.

    bytes of a read ──► RemoteSends.take ──► plan: records, entries, keys, answers     nothing is written
    plan            ──► Sends.append_packed                                            or dropped, for Python
    answers         ──► sent at once, or parked until the log is durable

It shares with the sends by gRPC (`lane/calls.py`) what a pass must know of the log, when there is none,
and what is parked: answers of both stand in the order of the log. Headers of other requests it reads as well
(`command`), those of pulls with all that they ask for. What is plain is decided by `remote.rs` in
`native/core`; what it must know of topics it asks (`find`), once a pass for each.

With tracing on, messages with a trace context are Python's, and those that are sampled; both count down
`Sampler.unsampled`.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

from whimbrel.broker.consume.filters import FILTER_CHARS_MAX
from whimbrel.broker.engine.message import NOT_PLAIN, born_host_of
from whimbrel.broker.engine.policy import SendPolicy
from whimbrel.broker.lane.calls import BrokerLane
from whimbrel.broker.remoting.pull_header import BYTES_MAX, SUSPEND_MS_MAX, PullHeader, ReadPull
from whimbrel.broker.remoting.sends import REGION
from whimbrel.deferred import Deferred
from whimbrel.errors import WhimbrelError
from whimbrel.model.trace import CONTEXT_PROPERTY, FALLBACK_PROPERTY
from whimbrel.rpc.remoting.codes import ResponseCode
from whimbrel.rpc.remoting.command import NO_FIELDS, Command
from whimbrel.rpc.remoting.frames import FRAME_BYTES_MAX, HEAD_BYTES, HEADER_BYTES_MAX, decode_frame
from whimbrel.rpc.remoting.handlers import Reply
from whimbrel.rpc.remoting.json_header import encode_response, language_of
from whimbrel.rpc.server.lanes import LaneFault, LanePart, RemotingAnswers, TakenFrames
from whimbrel.store.consumequeue import ConsumeQueue

__all__ = ["RemotingSendLane"]

LIMITS: Final = (FRAME_BYTES_MAX, HEADER_BYTES_MAX)
PULL_BOUNDS: Final = (BYTES_MAX, SUSPEND_MS_MAX, FILTER_CHARS_MAX)
TRACED: Final = (CONTEXT_PROPERTY.encode(), FALLBACK_PROPERTY.encode())
PULL_BEGINS: Final = (b'{"code":11,', b'{"code":361,')  # of the headers of nearly all clients


class RemotingSendLane:
    """Takes plain sends of the remoting protocol; on the loop's thread.

    Attributes:
        calls: that the lane has done since the start.
    """

    def __init__(self, lane: BrokerLane) -> None:
        """Take what sends by gRPC have."""
        self.lane, self.sends = lane, lane.sends
        self.passes, self.store = lane.passes, lane.store
        self.policy: Any = None
        self.policy_of: SendPolicy | None = None
        self.calls = 0

    # For `LaneRequests`

    @property
    def active(self) -> bool:
        """Whether the lane takes requests."""
        return self.passes.lane.active

    def command(self, frame: bytes) -> Command:
        """Return the command of a whole frame.

        Raises:
            RemotingError: it is none.
        """
        native = self.passes.lane.native
        if native is not None and frame.startswith(PULL_BEGINS, HEAD_BYTES):
            pull = self.passes.run(native.pull_of, frame, LIMITS, PULL_BOUNDS)
            if pull is not None:
                code, opaque, flag, version, language, values = pull
                if language != "JAVA":
                    language = language_of(language)
                return ReadPull(code, opaque, flag, version, language, PullHeader._make(values), frame)
        found = None if native is None else self.passes.run(native.decoded, frame, LIMITS)
        if found is None:
            return decode_frame(frame)
        code, opaque, fields, body, flag, language, version, remark = found
        if language != "JAVA":
            language = language_of(language)
        return Command(
            code, opaque, NO_FIELDS if fields is None else fields, body, flag, language, version, remark
        )

    def take(self, reads: Sequence[tuple[LanePart, bytes]]) -> list[TakenFrames] | None:
        """Do the plain sends at the begin of each read; see `RemotingLane.take`.

        Raises:
            LaneFault: it has panicked, and nothing was done.
        """
        lane = self.passes.lane
        log = self.sends.room_for_packed()
        if log is None:
            return None
        began, failures = time.perf_counter(), lane.failures
        taken: list[TakenFrames] = []
        wanted = [(data, born_host_of(each.peer)) for each, data in reads]
        plan = self.passes.run(self.current_policy().take, wanted, log, self, taken)
        if lane.failures != failures:
            raise LaneFault(len(taken), lane.why)
        if plan is None:
            return taken
        if not self.sends.append_packed(plan, log[2]):
            return None
        lane.messages += plan[-1]
        codes = [code for one in taken for code in one[3]]
        count = sum(number for _, number in codes)
        self.calls += count
        if log[4] is None:
            self.tell(codes, (time.perf_counter() - began) / count, deferred=False)
        return taken

    def tell(self, codes: Sequence[tuple[int, int]], seconds: float, *, deferred: bool) -> None:
        """Count requests that took so long each."""
        on_calls = self.lane.on_calls
        if on_calls is not None:
            for code, count in codes:
                on_calls(code, ResponseCode.SUCCESS, deferred, seconds, count)

    def current_policy(self) -> Any:
        """Return the compiled policy, made anew where what it is made of has changed."""
        policy = self.sends.policy
        if self.policy_of is not policy:
            assert self.lane.native is not None
            self.policy_of = policy
            self.policy = self.lane.native.RemoteSends(
                frame_max=FRAME_BYTES_MAX,
                header_max=HEADER_BYTES_MAX,
                cluster=policy.cluster,
                store_host=policy.store_host,
                special=sorted(NOT_PLAIN),
                traced=list(TRACED) if policy.traced else [],
                body_max=policy.body_bytes_max,
                text_max=policy.text_bytes_max,
                time_max_ms=policy.time_ms_max,
                messages_max=policy.batch_messages_max,
                answer=answer_parts(),
                indexed=self.store.options.index_enabled,
                index_tags=self.store.options.index_tags,
                size_bounds=self.lane.size_bounds,
            )
        return self.policy

    # Asked by the lane

    def find(self, name: str) -> tuple[int, int, int, dict[int, ConsumeQueue]] | None:
        """Return how many queues of a topic sends may name, how many take turns, whose was the last, and the
        queues that are there, by their numbers; None for Python's."""
        target = self.sends.targets.opened(name)
        if target is None:
            return None
        topic = target.topic
        queues = max(topic.write_queues, topic.read_queues)
        return queues, topic.write_queues, target.turn, self.store.queues.by_topic.get(name, {})

    def queue(self, name: str, queue_id: int) -> ConsumeQueue:
        """Make a queue that is not there yet."""
        return self.store.queues.get_or_create(name, queue_id)

    # Parked answers

    def park(self, requests: LanePart, answers: RemotingAnswers) -> None:
        """Keep answers until their records are durable."""
        self.lane.sends_parked.add(requests, answers)

    def take_back(self, requests: LanePart) -> list[tuple[str, float, Any]]:
        """Return the parked answers of a connection."""
        return self.lane.sends_parked.take_back(requests)

    def wait(self, answer: bytes, end: int, parked_at: float) -> Deferred[Reply]:
        """Have Python wait for an answer that was parked; an empty one is of a request that has none."""
        reply = Reply(fields=decode_frame(answer).fields) if answer else Reply()
        deferred: Deferred[Reply] = Deferred()

        def settled(error: WhimbrelError | None) -> None:
            if error is not None:
                reply.code, reply.remark = error.remoting, str(error)
            deferred.complete(reply)

        self.lane.appender.wait(end, parked_at, settled)
        return deferred

    def count(self, codes: Sequence[tuple[int, int]], seconds: float) -> None:
        """Count requests whose parked answers have left."""
        self.tell(codes, seconds, deferred=True)


def answer_parts() -> list[bytes]:
    """Return the header of an answer: before, between and behind ids, queue, offset and opaque number."""
    opaque = 1_234_567_890
    fields = {"msgId": "IDS", "queueId": "QUEUE", "queueOffset": "PLACE", **REGION}
    rest = encode_response(ResponseCode.SUCCESS, opaque, fields, None)
    parts = []
    for mark in (b"IDS", b"QUEUE", b"PLACE", str(opaque).encode()):
        part, _, rest = rest.partition(mark)
        parts.append(part)
    return [*parts, rest]
