"""Where recovery may start."""

from pathlib import Path

from support.store.stores import make_draft, open_master
from whimbrel.store.codec import decode_record
from whimbrel.store.recovery_marks import RECOVERIES_MAX, LogMark


def test_the_log_mark_remembers_the_lowest_end_of_recoveries_not_seen() -> None:
    mark = LogMark()
    for end in (500, 300, 400):
        mark.add_recovery(end)
    assert mark.lowest_end_since(3) is None
    assert mark.lowest_end_since(2) == 400
    assert mark.lowest_end_since(0) == 300
    for _ in range(RECOVERIES_MAX):
        mark.add_recovery(1000)
    assert mark.lowest_end_since(0) == -1
    assert mark.lowest_end_since(4) == 1000


def test_a_damaged_mark_counts_as_missing(tmp_path: Path) -> None:
    store = open_master(tmp_path / "s")
    answer = store.append([make_draft()])[0]
    store.close()
    for name in ("log-mark", "queue-mark"):
        path = tmp_path / "s" / "whimbrel" / name
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
    store = open_master(tmp_path / "s")
    assert store.written == answer.end
    assert decode_record(store.read(0, answer.size)).queue_offset == 0
    store.close()
