"""What is said of a log that ends below what was on disk, instead of opening it."""

from pathlib import Path

from whimbrel.errors import StoreError
from whimbrel.store.recovery import NO_NEXT_FILE, LogState
from whimbrel.store.segment import segment_name
from whimbrel.store.segments import Segments, repair_advice
from whimbrel.store.survey import survey

__all__ = ["check_whole"]


def check_whole(root: Path, segments: Segments, state: LogState) -> None:
    """Refuse a log that ends below what was on disk by its mark.

    Raises:
        StoreError: it does; the text names file, offset and the number of whole records behind.
    """
    if not state.lost:
        return
    end, file_size = state.end, segments.file_size
    if not segments.starts:
        raise StoreError(
            f"the log of {root} has no files, although it was on disk up to {state.synced}; nothing was"
            f" changed: {repair_advice(root)}"
        )
    limit = segments.starts[-1] + file_size
    behind = survey(segments.read, end, limit, file_size, torn=True)
    start = end - end % file_size
    if state.fault == NO_NEXT_FILE:
        start += file_size
    if start in segments.starts:
        where = f"is damaged at {end}, byte {end - start} of {segments.directory / segment_name(start)}"
        where += f" ({state.fault or 'zeros'})"
    else:
        where = f"ends at {end}: {segments.directory / segment_name(start)} is missing or empty"
    raise StoreError(
        f"the log of {root} {where}, although it was on disk up to {state.synced}; whole records behind it:"
        f" {behind.records}; nothing was changed: {repair_advice(root)}"
    )
