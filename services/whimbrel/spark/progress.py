"""A query's progress as a consumer group's, so that lag displays show it.

    micro-batch done ──► Spark's progress event ──► the listener on the driver ──► UpdateOffset to the masters

The event has the batch's end offset, and what the reader reported as the newest: the latter carries the group
and the nameservers, since an event knows no options. It stays out of the checkpoint. What is reported is the
end offset itself: the next offset to read.

`attach(spark)` adds the listener; `whimbrel.spark.session()` has done so. Without one, the reader reports
when Spark tells it to commit: that is when the next batch begins, and after the last one never.

Reporting is for displays: what fails is logged, and the next report tells all that is new. A query reads from
its checkpoint, whatever the group's offsets say.
"""

import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from whimbrel.errors import WhimbrelError
from whimbrel.rpc.api.calls import perform_blocking, update_offset
from whimbrel.rpc.client.channel import open_channel
from whimbrel.spark.brokers import HEADERS, Brokers, queue_of
from whimbrel.spark.offsets import Positions, from_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GROUP", "SERVERS", "Reporter", "attach", "carrying"]

log = logging.getLogger(__name__)

GROUP, SERVERS = "group", "servers"  # beside the offsets in what a reader reports as the newest
REPORT_S_MAX = 5.0  # spent on one report; queues that are left are in the next one
CALL_S = 3.0


def carrying(newest: Mapping[str, Any], group: str, servers: tuple[str, ...]) -> dict[str, Any]:
    """Return reported offsets that say whose progress they are."""
    return {**newest, GROUP: group, SERVERS: ",".join(servers)} if group else dict(newest)


class Reporter:
    """Reports one group's progress, what is new of it.

    Attributes:
        reported: what the masters have been told.
    """

    def __init__(self, group: str, brokers: Brokers) -> None:
        self.group, self.brokers = group, brokers
        self.reported: Positions = {}

    def report(self, positions: Positions) -> None:
        """Tell the masters where the group stands; failures are logged."""
        news: dict[str, Positions] = {}
        for key, offset in positions.items():
            if self.reported.get(key) != offset:
                news.setdefault(key[1], {})[key] = offset
        if not news:
            return
        try:
            members = self.brokers.members()
        except WhimbrelError as error:
            log.warning("progress of %s is not reported: %s", self.group, error)
            return
        until = time.monotonic() + REPORT_S_MAX
        for name, queues in news.items():
            masters = [member.address for member in members.get(name, ()) if member.broker_id == 0]
            if masters:
                self.tell(masters[0], queues, until)
            else:
                log.warning("progress of %s is not reported to %s: it has no master", self.group, name)

    def tell(self, address: str, queues: Positions, until: float) -> None:
        """Tell one master."""
        try:
            with open_channel(address) as channel:
                for key, offset in queues.items():
                    if time.monotonic() >= until:
                        return
                    call = update_offset(queue_of(key, address), self.group, offset)
                    perform_blocking(channel, call, HEADERS, CALL_S)
                    self.reported[key] = offset
        except WhimbrelError as error:
            log.warning("progress of %s is not reported to %s: %s", self.group, address, error)


def attach(spark: "SparkSession") -> None:
    """Report the progress of a session's queries that have the option `group`."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class ProgressListener(StreamingQueryListener):
        """Reports each batch when it is done."""

        def __init__(self) -> None:
            self.reporters: dict[tuple[str, str], Reporter] = {}

        def onQueryStarted(self, event: Any) -> None:
            """Wait for progress."""

        def onQueryProgress(self, event: Any) -> None:
            """Report where the batch ended."""
            for source in event.progress.sources:
                try:
                    report(self.reporters, source.latestOffset, source.endOffset)
                except Exception:  # a listener that raises is not called again
                    log.exception("progress is not reported")

        def onQueryIdle(self, event: Any) -> None:
            """Wait for progress."""

        def onQueryTerminated(self, event: Any) -> None:
            """Nothing is left: each batch was reported when it was done."""

    spark.streams.addListener(ProgressListener())


def report(reporters: dict[tuple[str, str], Reporter], newest: str | None, end: str | None) -> None:
    """Report a source's progress, if it is one of ours that has a group.

    Args:
        newest, end: as JSON; of sources of other kinds they may be anything.
    """
    told = json.loads(newest) if newest and newest.startswith("{") else {}
    if not end or not isinstance(told, dict) or not told.get(GROUP) or not told.get(SERVERS):
        return
    key = told[GROUP], told[SERVERS]
    if key not in reporters:
        reporters[key] = Reporter(told[GROUP], Brokers.at(told[SERVERS]))
    reporters[key].report(from_checkpoint(json.loads(end)))
