"""What each command that opens a store at rest does to the vote of the member whose store it is.

`store/offline_vote.py` has the rule. A command that is not in the table here fails: whoever adds one says
what it does to a vote.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from support.store.stores import OPTIONS, make_draft, open_master
from whimbrel.broker.export import export
from whimbrel.cli.main import main
from whimbrel.cli.store import store as store_commands
from whimbrel.errors import StoreError
from whimbrel.store.checkpoint import write_checkpoint
from whimbrel.store.epoch_file import EpochFile
from whimbrel.store.offline_recovery import recover
from whimbrel.store.offline_vote import take_moved
from whimbrel.store.recovery_marks import LogMark
from whimbrel.store.seat_file import Seat, SeatFile
from whimbrel.store.segment import segment_name
from whimbrel.store.shared_page import SharedPage
from whimbrel.store.view import LogView

SEAT = Seat(
    uuid="1" * 32, group="2" * 32, member=2, promised=7, promised_to=3, boot="3" * 32, acknowledged=900
)
GROUPLESS = Seat(uuid="1" * 32, member=2)
READS, REFUSES, TAKES = (
    "reads",
    "refuses",
    "takes",
)  # the vote stays, nothing is written; likewise; it is gone


COMMITTED = 12  # messages
ELSEWHERE = "a directory that is not there"


def damage(root: Path) -> None:
    """Have a record in the middle of the log be none."""
    with (root / "commitlog" / segment_name(0)).open("r+b") as log:
        log.seek(1000)
        log.write(b"\xff" * 600)


def nothing(root: Path) -> None:
    """Leave the log whole."""


@dataclass(frozen=True)
class Command:
    """A command line, and what it does to a vote.

    Attributes:
        before: what the log looks like.
        code: its exit code.
    """

    words: tuple[str, ...]
    does: str
    before: Callable[[Path], None] = nothing
    code: int = 0


COMMANDS = (
    Command(("dump",), READS),
    Command(("dump", "--queues"), READS),
    Command(("dump", "--config"), READS),
    Command(("verify",), READS),
    Command(("recover", "--dry-run"), READS),
    Command(("recover",), REFUSES, code=1),
    Command(("repair",), READS, damage),
    Command(("repair", "--set-aside", "--yes"), TAKES, damage),
    Command(("reinit", "--yes"), TAKES),
    Command(("export",), REFUSES, code=1),
    Command(("export", "--to", ELSEWHERE), READS),
    Command(("moved", "--yes"), READS),
)


@pytest.fixture(params=[SEAT, GROUPLESS], ids=["of a group", "of none yet"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the store of a member that votes, after a kill."""
    opened = open_master(tmp_path / "store", OPTIONS)
    for number in range(20):
        if number == COMMITTED:
            committed = opened.written
        opened.append([make_draft(number)])
    opened.close(clean=False)
    write_checkpoint(tmp_path / "store", committed=committed)
    SeatFile(tmp_path / "store").save(request.param)
    return tmp_path / "store"


def state(root: Path) -> tuple[object, ...]:
    """Return what vouches for a member's log."""
    page = SharedPage.snapshot(root)
    file = SeatFile(root)
    return (
        file.load(),
        file.number,
        (root / "abort").exists(),
        LogMark.load(root),
        page and (page.epoch_count, page.written),
        (root / "commitlog" / segment_name(0)).read_bytes(),
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.words))
def test_a_command_does_to_a_vote_what_the_table_says(command: Command, root: Path) -> None:
    command.before(root)
    before = state(root)
    rest = [str(root.parent / "new") if word == ELSEWHERE else word for word in command.words[1:]]
    words = [command.words[0], str(root), *rest]
    groupless_reinit = command.words[0] == "reinit" and not SeatFile(root).load().group  # type: ignore[union-attr]
    try:
        code = main(["store", *words])
    except SystemExit as ended:
        code = int(ended.code or 0)
    if groupless_reinit:  # it is a member's store only within a group
        assert code == 1
        return
    assert code == command.code
    seat = SeatFile(root).load()
    assert seat is not None
    if command.does == TAKES:
        assert not seat.votes
        assert (seat.promised, seat.promised_to, seat.uuid) == (
            before[0].promised, before[0].promised_to, before[0].uuid,  # type: ignore[attr-defined]
        )  # fmt: skip
    else:
        assert state(root) == before


def test_the_table_has_each_command_of_whimbrel_store() -> None:
    known = {command.words[0] for command in COMMANDS}
    assert known == set(typer.main.get_command(store_commands).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("led", [0, SEAT.promised, SEAT.promised + 1])
def test_a_store_that_was_moved_keeps_its_vote_where_nobody_knows_better(tmp_path: Path, led: int) -> None:
    store, place = tmp_path / "store", tmp_path / "place"
    open_master(store, OPTIONS).close()
    SeatFile(store).save(SEAT)
    shutil.copytree(store, place)
    copy = SeatFile(place)
    copy.load()
    if not copy.was_copied:
        pytest.skip("the file system here has nothing that tells a file from its copy")
    if led > SEAT.promised:
        with pytest.raises(StoreError, match="it is an older copy"):
            take_moved(place, led=led)
        assert main(["store", "moved", str(place), "--yes"]) == 0, "nobody was asked"
    else:
        take_moved(place, led=led)
        assert main(["store", "moved", str(place), "--yes"]) == 0
    again = SeatFile(place)
    assert again.load() == SEAT and not again.was_copied


def test_a_store_whose_member_is_known_to_have_held_more_is_an_older_copy(tmp_path: Path) -> None:
    store, place = tmp_path / "store", tmp_path / "place"
    log = open_master(store, OPTIONS)
    log.append([make_draft()])
    end = log.written
    log.close()
    SeatFile(store).save(SEAT)
    shutil.copytree(store, place)
    if (copy := SeatFile(place)).load() and not copy.was_copied:
        pytest.skip("the file system here has nothing that tells a file from its copy")
    with pytest.raises(StoreError, match=f"held the log up to {end + 1}, and the store .* ends at {end}"):
        take_moved(place, held=end + 1)
    take_moved(place, held=end)


def test_a_store_that_was_not_closed_in_order_is_not_taken_for_moved(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "place")
    if (copy := SeatFile(tmp_path / "place")).load() and not copy.was_copied:
        pytest.skip("the file system here has nothing that tells a file from its copy")
    before = state(tmp_path / "place")
    assert main(["store", "moved", str(tmp_path / "place"), "--yes"]) == 1
    assert main(["store", "moved", str(root.parent), "--yes"]) == 1, "no member's store"
    assert state(tmp_path / "place") == before


def test_who_opens_a_log_as_its_member_leaves_the_vote(root: Path) -> None:
    from whimbrel.store.commitlog import LogWriter

    LogWriter.open(root, OPTIONS, by_member=True).close()
    assert SeatFile(root).load().votes  # type: ignore[union-attr]
    LogWriter.open(root, OPTIONS).close()
    assert not SeatFile(root).load().votes  # type: ignore[union-attr]


def test_a_log_that_is_not_committed_is_not_opened_for_everybody_to_see(tmp_path: Path) -> None:
    """Kind 4: a group with configured roles that commits by majority has no seat."""
    root = tmp_path / "store"
    store = open_master(root)
    for number in range(10):
        store.append([make_draft(number)])
    committed = store.written // 2
    end = store.written
    store.close()
    recover(root, dry_run=False)
    write_checkpoint(root, committed=committed)
    recover(root, dry_run=False)  # a pair whose slave lags knows a place as well, and commits nothing
    EpochFile(root).save(((1, 0),))
    with pytest.raises(StoreError, match=f"ends at {end}, and its group is known to have committed it up to"):
        recover(root, dry_run=False)
    recover(root, dry_run=True)
    with pytest.raises(StoreError, match="an export in its place is refused"):
        export(root)
    export(root, to=tmp_path / "exported")
    assert LogView.of(tmp_path / "exported").end <= committed
    write_checkpoint(root, committed=end)
    recover(root, dry_run=False)
