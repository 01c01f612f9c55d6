"""Outbound calls about what was cut off the logs of brokers; made by `calls.perform`."""

from collections.abc import Collection, Sequence

from whimbrel.escapes import printable
from whimbrel.model.cuts import CutMark, CutOutcome, CutPage, CutResult, CutStatus, ReplayedPage
from whimbrel.model.wire import CUT_SERVICE
from whimbrel.pb.whimbrel.admin.v1 import cut_service_pb2 as cuts
from whimbrel.rpc.api.calls import Outbound, Trailers, of_text

__all__ = ["list_cuts", "mark_cut", "mark_message", "mark_of", "read_cut", "replay_cut"]

SERVICE = f"/{CUT_SERVICE}/"
RESULTS = {
    cuts.CUT_RESULT_STORED: CutResult.STORED,
    cuts.CUT_RESULT_PRESENT: CutResult.PRESENT,
}


@of_text
def list_cuts() -> Outbound[tuple[CutStatus, ...]]:
    """Ask what a broker's store keeps of its log's former ends, the oldest first."""

    def decode(responses: Sequence[bytes], _: Trailers) -> tuple[CutStatus, ...]:
        return tuple(
            CutStatus(
                name=printable(cut.name),
                epoch=cut.epoch if cut.epoch >= 0 else None,
                begin=cut.begin,
                end=cut.end,
                records=cut.records if cut.records >= 0 else None,
                why=printable(cut.why),
                time_ms=cut.time_ms,
                size=cut.size,
                mark=mark_of(cut.mark) if cut.HasField("mark") else None,
            )
            for cut in cuts.ListCutsResponse.FromString(responses[0]).cuts
        )

    return Outbound(SERVICE + "ListCuts", cuts.ListCutsRequest().SerializeToString(), decode)


@of_text
def read_cut(name: str, position: int, count: int = 0) -> Outbound[CutPage]:
    """Ask for a page of the records of a cut; 0 takes the first position, and as many as there may be."""

    def decode(responses: Sequence[bytes], _: Trailers) -> CutPage:
        response = cuts.ReadCutResponse.FromString(responses[0])
        records = tuple((one.offset, one.record) for one in response.records)
        return CutPage(records, response.next, response.begin)

    request = cuts.ReadCutRequest(name=name, position=position, count=count)
    return Outbound(SERVICE + "ReadCut", request.SerializeToString(), decode)


@of_text
def mark_cut(name: str, mark: CutMark) -> Outbound[None]:
    """Have it written down how far a cut was replayed."""
    request = cuts.MarkCutRequest(name=name, mark=mark_message(mark))
    return Outbound(SERVICE + "MarkCut", request.SerializeToString(), lambda responses, _: None)


@of_text
def replay_cut(
    member: int,
    name: str,
    position: int,
    *,
    topics: Collection[str] = (),
    message_ids: Collection[str] = (),
    dry_run: bool = False,
    page: CutPage | None = None,
) -> Outbound[ReplayedPage]:
    """Ask the master to put a page of a cut's records back into their topics.

    Args:
        member: whose store has the cut.
        name: of the cut.
        position: of the page.
        topics, message_ids: only records of these; empty: all.
        dry_run: nothing is stored.
        page: the records, from a store that no broker serves; only a broker that accepts replays takes them.
    """

    def decode(responses: Sequence[bytes], _: Trailers) -> ReplayedPage:
        response = cuts.ReplayCutResponse.FromString(responses[0])
        outcomes = tuple(
            CutOutcome(
                one.offset, one.topic, one.message_id, RESULTS.get(one.result, CutResult.REFUSED), one.why
            )
            for one in response.outcomes
        )
        return ReplayedPage(outcomes, response.next)

    request = cuts.ReplayCutRequest(
        member=member,
        name=name,
        position=position,
        topics=sorted(topics),
        message_ids=sorted(message_ids),
        dry_run=dry_run,
    )
    if page is not None:
        request.begin = page.begin
        for offset, record in page.records:
            request.records.add(offset=offset, record=record)
    return Outbound(SERVICE + "ReplayCut", request.SerializeToString(), decode)


def mark_message(mark: CutMark) -> cuts.CutMark:
    """Return a mark as it goes over the wire."""
    return cuts.CutMark(
        position=mark.position,
        done=mark.done,
        stored=mark.stored,
        present=mark.present,
        refused=mark.refused,
        time_ms=mark.time_ms,
    )


def mark_of(mark: cuts.CutMark) -> CutMark:
    """Return a mark from the wire."""
    return CutMark(
        position=mark.position,
        done=mark.done,
        stored=mark.stored,
        present=mark.present,
        refused=mark.refused,
        time_ms=mark.time_ms,
    )
