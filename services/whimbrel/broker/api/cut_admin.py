"""CutService: shows what was cut off this broker's log, and puts back what any member has cut.

    the operator's command ──ReplayCut──► master ──ReadCut──► the member that has the cut
                                             └── looks up ids, appends, waits until it is as safe as a send
                           ──MarkCut───────────────────────► that member: so far it was replayed

The master fetches the records itself, from a member of its group: so nobody else chooses what is in them,
and no setting has to allow it. Records that the caller brings along, from a store that no broker serves, are
taken where `accept_replays` is set, as all replays. `produce/cut_replay.py` decides what becomes of each.

Pages, of 256 records or 1 MiB, are read on the loop's thread: as much as a pull reads.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from whimbrel.broker.produce.appender import RecordAppender
from whimbrel.broker.produce.cut_replay import draft_back, fate_of, holds_id, id_of
from whimbrel.broker.tables.topics import TopicTable
from whimbrel.broker.timing.records import waiting
from whimbrel.deferred import Deferred
from whimbrel.errors import (
    BadRequest,
    CorruptRecord,
    Forbidden,
    NotReady,
    NotWritable,
    RequestError,
    WhimbrelError,
)
from whimbrel.machine import Machine
from whimbrel.model.cuts import (
    CUT_PAGE_BYTES_MAX,
    CUT_PAGE_RECORDS_MAX,
    REPLAYED_IDS_MAX,
    REPLAYED_TOPICS_MAX,
    CutPage,
)
from whimbrel.model.wire import CUT_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import cut_service_pb2 as cuts
from whimbrel.rpc.api.calls import perform
from whimbrel.rpc.api.cut_calls import mark_message, mark_of, read_cut
from whimbrel.rpc.client.channel import open_aio_channel
from whimbrel.rpc.server.handlers import Call, Service, UnaryMethod
from whimbrel.store.codec import RECORD_BYTES_MAX, StoredMessage, decode_record
from whimbrel.store.cut_reader import cut_statuses, write_mark
from whimbrel.store.cut_reader import read_cut as read_own
from whimbrel.store.store import MessageStore

__all__ = ["CutAdmin"]

FETCH_S: Final = 5.0  # for a page from another member
FETCHES_MAX: Final = 4  # replays that are under way

STORED = cuts.CUT_RESULT_STORED
PRESENT = cuts.CUT_RESULT_PRESENT
REFUSED = cuts.CUT_RESULT_REFUSED


class CutAdmin:
    """Handles the calls on the loop's thread."""

    def __init__(
        self,
        root: Path,
        topics: TopicTable,
        store: MessageStore,
        appender: RecordAppender,
        *,
        name: str,
        member: int,
        master: bool,
        accepts: bool,
        machine: Machine,
        store_host: Callable[[], bytes],
        address_of: Callable[[int], str],
    ) -> None:
        """Take what is needed.

        Args:
            root: the store's directory.
            name: of the broker group.
            member: our id in it.
            accepts: callers may bring records along.
            store_host: this broker's address as records hold it.
            address_of: where another member serves, "" where that is not known.
        """
        self.root, self.topics, self.store, self.appender = root, topics, store, appender
        self.name, self.member, self.master, self.accepts = name, member, master, accepts
        self.machine, self.store_host, self.address_of = machine, store_host, address_of
        self.closed = ""  # why nothing may be put back any more
        self.tasks: set[asyncio.Task[None]] = set()

    def service(self) -> Service:
        """Return the service for the transport."""
        return Service(
            CUT_SERVICE,
            (
                UnaryMethod("ListCuts", cuts.ListCutsRequest, self.list_cuts),
                UnaryMethod("ReadCut", cuts.ReadCutRequest, self.read),
                UnaryMethod("MarkCut", cuts.MarkCutRequest, self.mark),
                UnaryMethod("ReplayCut", cuts.ReplayCutRequest, self.replay),
            ),
        )

    def close(self, reason: str) -> None:
        """Put nothing back any more: the store is about to be closed."""
        self.closed = reason

    # Calls

    def list_cuts(self, call: Call, request: cuts.ListCutsRequest) -> Any:
        """Return what there is."""
        response = cuts.ListCutsResponse()
        for cut in cut_statuses(self.root, self.machine.files):
            shown = response.cuts.add(
                name=cut.name,
                epoch=-1 if cut.epoch is None else cut.epoch,
                begin=cut.begin,
                end=cut.end,
                records=-1 if cut.records is None else cut.records,
                why=cut.why,
                time_ms=cut.time_ms,
                size=cut.size,
            )
            if cut.mark is not None:
                shown.mark.CopyFrom(mark_message(cut.mark))
        return response

    def read(self, call: Call, request: cuts.ReadCutRequest) -> Any:
        """Return a page of our own."""
        page = self.own_page(request.name, request.position, request.count)
        response = cuts.ReadCutResponse(next=page.next, begin=page.begin)
        for offset, record in page.records:
            response.records.add(offset=offset, record=record)
        return response

    def mark(self, call: Call, request: cuts.MarkCutRequest) -> Any:
        """Write down how far a cut was replayed."""
        write_mark(self.root, request.name, mark_of(request.mark), self.machine)
        return cuts.MarkCutResponse()

    def replay(self, call: Call, request: cuts.ReplayCutRequest) -> Any:
        """Put a page back; answer when it is safe."""
        if not self.master:
            raise NotWritable("this is a slave: what was cut is put back at its master")
        if len(request.topics) > REPLAYED_TOPICS_MAX or len(request.message_ids) > REPLAYED_IDS_MAX:
            raise BadRequest(
                f"at most {REPLAYED_TOPICS_MAX} topics and {REPLAYED_IDS_MAX} message ids in a call"
            )
        if request.records:
            return self.put_back(request, self.given_page(request))
        if request.member == self.member:
            return self.put_back(
                request, self.own_page(request.name, max(request.position, 0), request.count)
            )
        address = self.address_of(request.member)
        if not address:
            raise NotReady(f"member {request.member} of {self.name} is not there: start its broker")
        if len(self.tasks) >= FETCHES_MAX:
            raise NotReady(f"{FETCHES_MAX} replays are under way: try again")
        deferred: Deferred[Any] = Deferred()

        async def work() -> None:
            try:
                page = await fetched(address, request)
                answer = self.put_back(request, page)
                if isinstance(answer, Deferred):
                    deferred.follow(answer)
                else:
                    deferred.complete(answer)
            except WhimbrelError as error:
                deferred.fail(error)

        task = asyncio.ensure_future(work())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return deferred

    # Inside

    def own_page(self, name: str, position: int, count: int) -> CutPage:
        """Return a page of our own store's."""
        wanted = min(count, CUT_PAGE_RECORDS_MAX) if count > 0 else CUT_PAGE_RECORDS_MAX
        return read_own(
            self.root,
            name,
            position,
            count=wanted,
            bytes_max=CUT_PAGE_BYTES_MAX,
            files=self.machine.files,
        )

    def given_page(self, request: cuts.ReplayCutRequest) -> CutPage:
        """Return the page that the caller has brought along."""
        if not self.accepts:
            raise Forbidden(
                "this broker takes no records that are brought along: start it with --accept-replays true, or"
                " start the broker of the store that has them, and name its member instead of the store"
            )
        if len(request.records) > CUT_PAGE_RECORDS_MAX:
            raise BadRequest(f"{len(request.records)} records in a call: at most {CUT_PAGE_RECORDS_MAX}")
        records = tuple((one.offset, one.record) for one in request.records)
        return CutPage(records, -1, request.begin)

    def put_back(self, request: cuts.ReplayCutRequest, page: CutPage) -> Any:
        """Append what is to be put back of a page; return a response that comes when it is safe."""
        if self.closed:
            raise NotReady(self.closed)
        if not request.dry_run:
            self.appender.check_writable()
        response = cuts.ReplayCutResponse(next=page.next)
        seen: set[tuple[str, str]] = set()  # a dry run does not store what comes twice
        for offset, record in page.records:
            message = decoded(offset, record)
            self.settle(request, page.begin, message, response, seen)
        if request.dry_run or not response.outcomes or not self.appender.waits:
            return response
        deferred: Deferred[Any] = Deferred()
        # Up to the log's end: what is there already may be as young.
        self.appender.when_durable(self.store.written, lambda error: deferred.settle(response, error))
        self.appender.complete_waiting()
        return deferred

    def settle(
        self,
        request: cuts.ReplayCutRequest,
        begin: int,
        message: StoredMessage,
        response: cuts.ReplayCutResponse,
        seen: set[tuple[str, str]],
    ) -> None:
        """Put a record back, if it is to be, and add what became of it."""
        fate, message_id = fate_of(message, begin, self.machine.wall_ms()), id_of(message)
        if request.topics and fate.topic not in request.topics:
            return
        if request.message_ids and message_id not in request.message_ids:
            return
        outcome = response.outcomes.add(
            offset=message.physical_offset, topic=fate.topic, message_id=message_id, result=REFUSED
        )
        if fate.why:
            outcome.why = fate.why
            return
        if (fate.topic, message_id) in seen or holds_id(self.store, fate.topic, message_id):
            outcome.result = PRESENT
            return
        try:
            draft, outcome.why = draft_back(
                message,
                fate,
                topics=self.topics,
                broker=self.name,
                cut=request.name,
                store_host=self.store_host(),
                waiting=waiting,
            )
        except RequestError as error:
            outcome.why = str(error)
            return
        if draft is None:
            return
        if not request.dry_run:
            self.appender.append([draft])
        seen.add((fate.topic, message_id))
        outcome.result = STORED


async def fetched(address: str, request: cuts.ReplayCutRequest) -> CutPage:
    """Return a page of another member's.

    Raises:
        WhimbrelError: it has no such cut, or can't be reached.
    """
    channel = open_aio_channel(address)
    try:
        outbound = read_cut(request.name, request.position, request.count)
        page = await perform(channel, outbound, (), FETCH_S)
    finally:
        await channel.close()
    if len(page.records) > CUT_PAGE_RECORDS_MAX:
        raise BadRequest(f"member {request.member} sends {len(page.records)} records in a page")
    return page


def decoded(offset: int, record: bytes) -> StoredMessage:
    """Return a record that another process sent.

    Raises:
        BadRequest: it is damaged, or none.
    """
    try:
        if len(record) > RECORD_BYTES_MAX:
            raise CorruptRecord(f"{len(record)} bytes")
        message = decode_record(record)
    except CorruptRecord as error:
        raise BadRequest(f"the record at {offset} of the cut is damaged: {error}") from error
    if message.physical_offset != offset or message.size != len(record):
        raise BadRequest(f"the record at {offset} of the cut is another one")
    return message
