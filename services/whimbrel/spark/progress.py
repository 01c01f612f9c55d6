"""Commits a query's progress as a consumer group's offsets, so that lag displays show it.

    micro-batch done ──► Spark's progress event ──► the listener on the driver ──► UpdateOffset to the masters

The event has the batch's end offset, and the latest offset that the reader reported. An event does not have
the query's options, so the reader adds the group and the nameservers to the latest offset; they do not get
into the checkpoint. The end offset is committed as it is: the next offset to read.

`attach(spark)` adds the listener; `whimbrel.spark.session()` has done so. Without a listener, the reader
commits when Spark calls its `commit`: that is when the next batch begins, so never after the last one.

The offsets are only for display. A failure is logged, and the next report has all that is new. A query reads
from its checkpoint, not from the group's offsets.
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

__all__ = ["GROUP", "SERVERS", "ProgressReporter", "attach", "with_group"]

logger = logging.getLogger(__name__)

GROUP, SERVERS = "group", "servers"  # keys beside the offsets in the latest offset
REPORT_S_MAX = 5.0  # of one report; the queues that are left are in the next one
CALL_S = 3.0


def with_group(newest: Mapping[str, Any], group: str, servers: tuple[str, ...]) -> dict[str, Any]:
    """Return the latest offsets with the group whose progress they are; unchanged without a group."""
    return {**newest, GROUP: group, SERVERS: ",".join(servers)} if group else dict(newest)


class ProgressReporter:
    """Commits one group's offsets, as far as they have changed.

    Attributes:
        reported: the offsets that the masters have.
    """

    def __init__(self, group: str, brokers: Brokers) -> None:
        self.group, self.brokers = group, brokers
        self.reported: Positions = {}

    def report(self, positions: Positions) -> None:
        """Commit offsets at the masters; failures are logged."""
        changed: dict[str, Positions] = {}
        for key, offset in positions.items():
            if self.reported.get(key) != offset:
                changed.setdefault(key[1], {})[key] = offset
        if not changed:
            return
        try:
            members = self.brokers.members()
        except WhimbrelError as error:
            logger.warning("progress of %s is not reported: %s", self.group, error)
            return
        until = time.monotonic() + REPORT_S_MAX
        for name, queues in changed.items():
            masters = [member.address for member in members.get(name, ()) if member.broker_id == 0]
            if masters:
                self.report_to_master(masters[0], queues, until)
            else:
                logger.warning("progress of %s is not reported to %s: it has no master", self.group, name)

    def report_to_master(self, address: str, queues: Positions, until: float) -> None:
        """Commit offsets at one master."""
        try:
            with open_channel(address) as channel:
                for key, offset in queues.items():
                    if time.monotonic() >= until:
                        return
                    call = update_offset(queue_of(key, address), self.group, offset)
                    perform_blocking(channel, call, HEADERS, CALL_S)
                    self.reported[key] = offset
        except WhimbrelError as error:
            logger.warning("progress of %s is not reported to %s: %s", self.group, address, error)


def attach(spark: "SparkSession") -> None:
    """Commit the progress of a session's queries that have the option `group`."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class ProgressListener(StreamingQueryListener):
        """Commits each batch when it is done."""

        def __init__(self) -> None:
            self.reporters: dict[tuple[str, str], ProgressReporter] = {}

        def onQueryStarted(self, event: Any) -> None:
            """Nothing has been read yet."""

        def onQueryProgress(self, event: Any) -> None:
            """Commit where the batch ended."""
            for source in event.progress.sources:
                try:
                    report(self.reporters, source.latestOffset, source.endOffset)
                except Exception:  # a listener that raises is not called again
                    logger.exception("progress is not reported")

        def onQueryIdle(self, event: Any) -> None:
            """Nothing new was read."""

        def onQueryTerminated(self, event: Any) -> None:
            """Nothing is left to do: each batch was reported when it was done."""

    spark.streams.addListener(ProgressListener())


def report(reporters: dict[tuple[str, str], ProgressReporter], newest: str | None, end: str | None) -> None:
    """Commit a source's progress, if it is a source of ours and has a group.

    Args:
        newest, end: JSON of latest and end offset; those of other sources may be anything.
    """
    latest = json.loads(newest) if newest and newest.startswith("{") else {}
    if not end or not isinstance(latest, dict) or not latest.get(GROUP) or not latest.get(SERVERS):
        return
    key = latest[GROUP], latest[SERVERS]
    if key not in reporters:
        reporters[key] = ProgressReporter(latest[GROUP], Brokers.at(latest[SERVERS]))
    reporters[key].report(from_checkpoint(json.loads(end)))
