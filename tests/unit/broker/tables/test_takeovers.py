"""Which of two masters with configured roles came later: counted at takeovers, told and remembered."""

from pathlib import Path

import pytest

from whimbrel.broker.tables.takeovers import TAKEOVERS_MAX, Takeovers
from whimbrel.errors import RemoteProtocolError, StoreError, StoreFull
from whimbrel.store import jsonconfig


def started(root: Path, *, master: bool, least: int = 0) -> Takeovers:
    """Start a broker on a store."""
    found = Takeovers(root)
    if master:
        found.lead(lambda: least)
    else:
        found.follow()
    return found


def test_a_master_that_was_none_but_a_master_counts_nothing_and_has_no_file(tmp_path: Path) -> None:
    assert [started(tmp_path, master=True).count for _ in range(3)] == [0, 0, 0]
    assert not any(tmp_path.iterdir())


def test_a_slave_that_becomes_the_master_counts_one_more_and_once(tmp_path: Path) -> None:
    started(tmp_path, master=False)
    assert [started(tmp_path, master=True).count for _ in range(3)] == [1, 1, 1]
    started(tmp_path, master=False)
    assert started(tmp_path, master=True).count == 2


def test_a_slave_counts_as_its_master_does(tmp_path: Path) -> None:
    slave = started(tmp_path, master=False)
    slave.learn(5)
    slave.learn(3)
    assert slave.count == 5
    assert started(tmp_path, master=True).count == 6


def test_a_former_master_that_leads_again_without_having_followed_counts_above_what_its_slave_tells(
    tmp_path: Path,
) -> None:
    master = started(tmp_path, master=True)
    master.learn(1)
    assert master.count == 2
    master.learn(2)  # its slave has learned it
    assert master.count == 2 and started(tmp_path, master=True).count == 2


def test_states_of_later_masters_are_known_without_their_count(tmp_path: Path) -> None:
    started(tmp_path, master=False)
    assert started(tmp_path, master=True, least=7).count == 8


@pytest.mark.parametrize("told", [-1, TAKEOVERS_MAX + 1, 1 << 62])
def test_counts_that_nobody_has_are_refused(tmp_path: Path, told: int) -> None:
    slave = started(tmp_path, master=False)
    with pytest.raises(RemoteProtocolError, match="takeovers"):
        slave.learn(told)
    assert slave.count == 0


def test_the_greatest_count_stays(tmp_path: Path) -> None:
    started(tmp_path, master=False).learn(TAKEOVERS_MAX)
    assert started(tmp_path, master=True, least=1 << 40).count == TAKEOVERS_MAX


def test_from_its_predecessor_a_master_counts_one_more(tmp_path: Path) -> None:
    started(tmp_path, master=False).learn(4)
    master = started(tmp_path, master=True)
    assert master.count == 5
    master.path.write_text("{}")
    assert started(tmp_path, master=True).count == 5, "of 4, in the predecessor"
    master.path.unlink()
    assert started(tmp_path, master=True).count >= 5


@pytest.mark.parametrize("text", ["[]", '{"count":-1,"follows":true}', '{"count":"x","follows":true}', "{"])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    path = started(tmp_path, master=False).path
    path.write_text(text)
    path.with_name(path.name + ".bak").unlink(missing_ok=True)
    with pytest.raises(StoreError, match="or remove it"):
        Takeovers(tmp_path)


def test_what_a_full_disk_did_not_take_is_written_down_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(jsonconfig, "save", full)
        slave = started(tmp_path, master=False)
        slave.learn(1)
        assert not slave.path.exists()
    slave.learn(1)
    assert started(tmp_path, master=True).count == 2
