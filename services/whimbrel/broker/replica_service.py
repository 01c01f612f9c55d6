"""ReplicaService: what slaves take from their master, and the slaves' end of it.

A master answers only while it is authoritative (`roles.py`): one that came back with a shorter log would hand
out tables and lease states that undo what its slaves hold.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio

from whimbrel.broker.metadata import ROUND_S, Metadata, MetadataSource
from whimbrel.errors import BadRequest, ConnectionClosed, NotReady, Throttled
from whimbrel.pb.whimbrel.replica.v1 import replica_service_pb2 as replica
from whimbrel.rpc.channel import open_aio_channel
from whimbrel.rpc.handlers import BidiMethod, Call, Outbox
from whimbrel.rpc.status import error_of

__all__ = ["SERVICE", "MetadataWatches", "watch_metadata"]

SERVICE = "whimbrel.replica.v1.ReplicaService"
SILENCE_MAX_S = 3 * ROUND_S  # a master that says nothing for longer is taken for gone


class MetadataWatches:
    """The slaves that watch this broker's metadata."""

    def __init__(self, name: str, source: MetadataSource, *, authoritative: Callable[[], bool]) -> None:
        """Serve the metadata of the broker group `name`."""
        self._name = name
        self._source = source
        self._authoritative = authoritative
        self._open: set[_Watch] = set()
        source.on_change(self._changed)

    def method(self) -> BidiMethod:
        """Return the WatchMetadata method."""
        return BidiMethod("WatchMetadata", replica.WatchMetadataRequest, self._opened, single_request=True)

    def _opened(self, call: Call, outbox: Outbox) -> "_Watch":
        return _Watch(self, outbox)

    def start(self, watch: "_Watch", request: replica.WatchMetadataRequest) -> None:
        """Begin to tell a slave."""
        if request.broker_name != self._name:
            raise BadRequest(f"this is {self._name}, not {request.broker_name}")
        if not self._authoritative():
            raise NotReady("this broker is not a settled master, or is behind one of its slaves")
        self._open.add(watch)
        watch.tell(self._source.everything())

    def stop(self, watch: "_Watch") -> None:
        """Forget a slave."""
        self._open.discard(watch)

    def _changed(self) -> None:
        if self._open:
            tables = self._source.tables()
            for watch in tuple(self._open):
                watch.tell(tables)

    def round(self) -> None:
        """Tell all slaves everything that changed; to be called every `ROUND_S`, and it says that we live."""
        if self._open:
            everything = self._source.everything()
            for watch in tuple(self._open):
                watch.tell(everything)


class _Watch:
    """One slave's stream."""

    def __init__(self, watches: MetadataWatches, outbox: Outbox) -> None:
        self._watches = watches
        self._outbox = outbox
        self._told = Metadata()

    def received(self, message: Any) -> None:
        """Take the request."""
        self._watches.start(self, message)

    def half_closed(self) -> None:
        """Nothing: the request is the only message."""

    def closed(self) -> None:
        """Forget the slave."""
        self._watches.stop(self)

    def tell(self, now: Metadata) -> None:
        """Send what differs from what was sent."""
        news = now.since(self._told)
        response = replica.WatchMetadataResponse(
            topics_json=news.topics,
            groups_json=news.groups,
            offsets_json=news.offsets,
            delay_offsets_json=news.delay_offsets,
        )
        self._told = news.over(self._told)
        if not self._outbox.send(response):
            # It would miss a change; from a new stream it gets everything.
            self._watches.stop(self)
            self._outbox.close(Throttled("the slave does not read"))


async def watch_metadata(address: str, name: str, broker_id: int) -> AsyncIterator[Metadata]:
    """Yield what the master at `address` tells, until it is gone.

    Raises:
        WhimbrelError: it refuses, or can't be reached.
    """
    async with open_aio_channel(address) as channel:
        open_stream = channel.unary_stream(
            f"/{SERVICE}/WatchMetadata",
            request_serializer=replica.WatchMetadataRequest.SerializeToString,
            response_deserializer=replica.WatchMetadataResponse.FromString,
        )
        stream = open_stream(replica.WatchMetadataRequest(broker_name=name, broker_id=broker_id))
        try:
            while True:
                response: Any = await asyncio.wait_for(stream.read(), SILENCE_MAX_S)
                if response is grpc.aio.EOF:
                    return
                yield Metadata(
                    topics=response.topics_json if response.HasField("topics_json") else None,
                    groups=response.groups_json if response.HasField("groups_json") else None,
                    offsets=response.offsets_json if response.HasField("offsets_json") else None,
                    delay_offsets=response.delay_offsets_json
                    if response.HasField("delay_offsets_json")
                    else None,
                )
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except TimeoutError:
            raise ConnectionClosed(f"the master has said nothing for {SILENCE_MAX_S:g} s") from None
        finally:
            stream.cancel()
