"""`whimbrel replication cut replay`: what is written down when, so that a kill makes it skip nothing."""

from pathlib import Path
from typing import Any, Self

import pytest

from unit.store.test_divergence import BORDERS, IN_SECOND, aside, ours
from whimbrel.cli.main import main
from whimbrel.client import sync
from whimbrel.errors import NotReady
from whimbrel.model.cuts import CutOutcome, CutPage, CutResult, ReplayedPage
from whimbrel.store import cut_reader
from whimbrel.store.cut_reader import read_mark

PAGE = 5  # records
OFFSETS = [at for at in BORDERS[:-1] if at >= IN_SECOND]


class Master:
    """A master that stores what it is given, and fails when it is told to."""

    def __init__(self, store: Path, cut: str) -> None:
        self.store, self.cut = store, cut
        self.stored: list[int] = []
        self.marked: list[int] = []  # where the mark stood as each page came
        self.fails_at = -1

    def __call__(self, endpoint: str, **options: object) -> Self:
        return self

    def cluster(self) -> None:
        raise NotReady("nobody answers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def replay_cut(
        self, group: str, member: int, name: str, position: int, *, page: CutPage, **more: Any
    ) -> ReplayedPage:
        mark = read_mark(self.store, self.cut)
        self.marked.append(0 if mark is None else mark.position)
        outcomes = []
        for at, _ in page.records:
            new = at not in self.stored
            if new and not more["dry_run"]:
                self.stored.append(at)
            result = CutResult.STORED if new else CutResult.PRESENT
            outcomes.append(CutOutcome(at, "topic", str(at), result))
        if self.fails_at in (at for at, _ in page.records):
            self.fails_at = -1
            raise NotReady("the answer is lost")
        return ReplayedPage(tuple(outcomes), -1)


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Master:
    store = tmp_path / "s"
    ours(store)
    kept = aside(store, IN_SECOND)
    assert kept is not None
    found = Master(store, kept.name)
    monkeypatch.setattr(sync, "Admin", found)
    read = cut_reader.read_cut

    def read_small(root: Path, name: str, position: int, *, count: int, bytes_max: int) -> CutPage:
        return read(root, name, position, count=min(count, PAGE), bytes_max=bytes_max)

    monkeypatch.setattr(cut_reader, "read_cut", read_small)
    return found


def replay(master: Master, *more: str) -> int:
    line = ("replication", "cut", "replay", master.cut, "--store", str(master.store), "--yes", *more)
    line = (*line, "--broker", "b")
    return main((*line, "--endpoint", "127.0.0.1:1"))


def test_a_page_is_written_down_after_it_is_safe_and_repeated_where_that_is_not_known(master: Master) -> None:
    master.fails_at = OFFSETS[2 * PAGE]
    assert replay(master) == 1
    mark = read_mark(master.store, master.cut)
    assert mark is not None and (mark.position, mark.done, mark.stored) == (
        OFFSETS[2 * PAGE],
        False,
        2 * PAGE,
    )
    assert replay(master) == 0
    assert master.stored == OFFSETS, "each once, none skipped"
    assert master.marked == [0, OFFSETS[PAGE], OFFSETS[2 * PAGE], OFFSETS[2 * PAGE], OFFSETS[3 * PAGE]]
    mark = read_mark(master.store, master.cut)
    assert mark is not None and mark.done and (mark.stored, mark.present) == (len(OFFSETS) - PAGE, PAGE)


def test_a_replay_that_is_done_does_nothing_unless_again(
    master: Master, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(master) == 0
    pages = len(master.marked)
    assert replay(master) == 0
    assert len(master.marked) == pages and "--again goes through it once more" in capsys.readouterr().err
    assert replay(master, "--again") == 0
    assert len(master.marked) == 2 * pages


def test_a_dry_run_and_a_choice_write_nothing_down(master: Master) -> None:
    assert replay(master, "--dry-run") == 0 and master.stored == []
    assert replay(master, "--topic", "topic") == 0 and master.stored == OFFSETS
    assert read_mark(master.store, master.cut) is None
