"""How long calls took and how they ended: `rocketmq_rpc_latency`, with RocketMQ 5.3.3's labels.

`protocol_type` is `grpc` or `remoting`. `request_code` is the name of the code that a request of the remoting
protocol has, in lower case as RocketMQ's, and for gRPC the method's name. `response_code` is the name of the
response's code, for gRPC its `apache.rocketmq.v2` code, or the gRPC status of calls that end with one.
`result` is RocketMQ's word: `success` (there was a response, whatever its code), `cancelled` (the caller left
first), `process_request_failed` (it ended with a gRPC status). `is_long_polling` marks receives and pulls
that waited for messages: their times tell how long there were none, not how long the broker took.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from functools import cache

from whimbrel.metrics import OTHER, SERIES_MAX, Family, Histogram, Labels, Point
from whimbrel.pb.apache.rocketmq.v2 import definition_pb2 as v2
from whimbrel.rpc.remoting.codes import RequestCode, ResponseCode
from whimbrel.rpc.server.limits import RunningServer

__all__ = ["CallTimes", "server_families"]

# RocketMQ's, in milliseconds, with finer ones below 1: an append to the page cache is faster than that.
BOUNDS_MS = (0.1, 0.3, 1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
POLLS = frozenset({"ReceiveMessage", "PullMessage", RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
REQUEST_CODES, RESPONSE_CODES = frozenset(RequestCode), frozenset(ResponseCode)
WELL = frozenset({v2.OK, "OK", ResponseCode.SUCCESS})  # how calls end that did what they were to
LABELS = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")


class CallTimes:
    """One histogram for each method and way to end.

    `observe` is made for a server's `on_call_end`, and for its `on_request_end`: methods of gRPC are names,
    those of the remoting protocol numbers.
    """

    def __init__(self) -> None:
        self.by_key: dict[tuple[str | int, int | str, bool], Histogram] = {}

    def observe(self, method: str | int, ended: int | str, was_deferred: bool, seconds: float) -> None:
        """Count one call."""
        self.observe_many(method, ended, was_deferred, seconds, 1)

    def observe_many(
        self, method: str | int, ended: int | str, was_deferred: bool, seconds: float, count: int
    ) -> None:
        """Count calls that took as long as each other."""
        key = (method, ended, was_deferred)
        found = self.by_key.get(key)
        if found is None:
            # Methods and codes are our own and far fewer; this is the only place that bounds them.
            if len(self.by_key) >= SERIES_MAX:
                key = (OTHER, OTHER, False)
            found = self.by_key.setdefault(key, Histogram(BOUNDS_MS))
        # `Histogram.observe`, inlined: this runs for each call.
        milliseconds = seconds * 1000
        found.counts[bisect_left(BOUNDS_MS, milliseconds)] += count
        found.total += milliseconds * count

    def of(self, methods: Collection[str | int]) -> Histogram | None:
        """Return how long calls of some methods took, in ms; None where there were none."""
        found = [one for (method, _, _), one in list(self.by_key.items()) if method in methods]
        return merge(found) if found else None

    def failed(self, methods: Collection[str | int]) -> int:
        """Return how many calls of some methods ended otherwise than well."""
        return sum(
            sum(one.counts)
            for (method, ended, _), one in list(self.by_key.items())
            if method in methods and ended not in WELL
        )

    def points(self) -> Iterator[Point]:
        """Yield the histograms; deferred calls that are no polls are merged with immediate ones."""
        by_labels: dict[Labels, list[Histogram]] = {}
        for (method, ended, was_deferred), histogram in list(self.by_key.items()):
            polled = "true" if was_deferred and method in POLLS else "false"
            labels: Labels
            if isinstance(method, int):
                labels = ("remoting", request_name(method), response_name(ended), polled, "success")
            else:
                labels = ("grpc", method, code_name(ended), polled, result_of(ended))
            by_labels.setdefault(labels, []).append(histogram)
        for labels, histograms in by_labels.items():
            yield labels, merge(histograms)

    def family(self) -> Family:
        """Return the metric."""
        return Family(
            name="rocketmq_rpc_latency",
            kind="histogram",
            unit="milliseconds",
            labels=LABELS,
            help="Time from a decoded call to its answer.",
            read=self.points,
        )


def server_families(server: RunningServer) -> list[Family]:
    """Return the metrics of a server's streams and connections."""
    admission, budget = server.load.admission, server.load.budget
    return [
        stream_family(server),
        Family(
            name="whimbrel_connections",
            kind="gauge",
            help="Connections to the gRPC port.",
            read=lambda: [((), admission.open)],
        ),
        Family(
            name="whimbrel_connections_refused_total",
            kind="counter",
            labels=("reason",),
            help="Connections that were not let in: their host, or the process, had as many as it may.",
            read=lambda: [((reason,), count) for reason, count in admission.refused.items()],
        ),
        Family(
            name="whimbrel_connections_cut_off_total",
            kind="counter",
            help="Connections that were ended because all together held too much.",
            read=lambda: [((), budget.cut_off)],
        ),
        Family(
            name="whimbrel_connections_held_bytes",
            kind="gauge",
            help="Bytes that connections hold: requests that are not whole, and responses that nobody reads.",
            read=lambda: [((), budget.total)],
        ),
    ]


def stream_family(server: RunningServer) -> Family:
    """Return the metric that counts a server's open streams by their method."""
    return Family(
        name="whimbrel_streams",
        kind="gauge",
        labels=("method",),
        help="Open streams, both ways or of bulk readers, by method.",
        read=lambda: [((method,), count) for method, count in list(server.streams.open_by_method.items())],
    )


def merge(histograms: list[Histogram]) -> Histogram:
    """Return the sum of histograms with the same bounds."""
    if len(histograms) == 1:
        return histograms[0]
    both = Histogram(histograms[0].bounds)
    both.counts = [sum(counts) for counts in zip(*(one.counts for one in histograms), strict=True)]
    both.total = sum(one.total for one in histograms)
    return both


def request_name(code: int) -> str:
    """Return the name of a request of the remoting protocol."""
    return RequestCode(code).name.lower() if code in REQUEST_CODES else OTHER


def response_name(code: int | str) -> str:
    """Return the name of a response's code of the remoting protocol."""
    return ResponseCode(code).name.lower() if code in RESPONSE_CODES else str(code)


@cache
def code_name(ended: int | str) -> str:
    """Return how a call ended as text."""
    if isinstance(ended, str):
        return ended
    try:
        return str(v2.Code.Name(ended))
    except ValueError:
        return str(ended)


def result_of(ended: int | str) -> str:
    """Return RocketMQ's word for how a call ended."""
    if ended == "CANCELLED":
        return "cancelled"
    return "success" if ended == "OK" or isinstance(ended, int) else "process_request_failed"
