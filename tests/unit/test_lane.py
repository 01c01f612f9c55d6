"""Which lane a process has, and what becomes of it when it fails."""

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from support.lane.logs import lane_or_skip
from support.store.stores import OPTIONS, StoppedClock, make_draft, open_master
from whimbrel import lane as lanes
from whimbrel.errors import StoreError
from whimbrel.lane import Lane
from whimbrel.machine import Machine
from whimbrel.store.inspect import verify
from whimbrel.store.lane_passes import FOREIGN_BYTES, LanePasses, Reach
from whimbrel.store.master_store import MasterStore
from whimbrel.store.shared_page import SharedPage


def module(**attributes: str) -> ModuleType:
    """Return what could be installed."""
    made = ModuleType("whimbrel_lane")
    vars(made).update({"SOURCES": "here"} | attributes)
    return made


@pytest.fixture(autouse=True)
def as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the environment says nothing of the lane, in a run without it either."""
    monkeypatch.delenv("WHIMBREL_LANE", raising=False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what installs a module."""
    monkeypatch.setattr(lanes, "sources", lambda: "here")

    def install(made: ModuleType) -> None:
        monkeypatch.setitem(sys.modules, "whimbrel_lane", made)

    return install


def test_one_that_is_there_is_used_unless_it_is_switched_off(installed: Any) -> None:
    installed(module())
    assert (str(Lane()), str(Lane("required"))) == ("on", "on")
    off = Lane("off")
    assert not off.active and str(off) == f"off, because it is switched off: {lanes.COST}"


def test_none_is_no_matter_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lanes, "MODULE", "whimbrel_lane_that_nobody_has")
    assert str(Lane.of_environment()).startswith("off, because it is not installed")
    assert caplog.records == []
    with pytest.raises(StoreError, match="required, and off, because it is not installed"):
        Lane("required")


def test_where_none_was_built_the_wheel_says_why(installed: Any, caplog: pytest.LogCaptureFixture) -> None:
    installed(module(WHY="there was no cargo"))
    lane = Lane.of_environment()
    assert str(lane) == f"off, because there was no cargo: {lanes.COST}"
    assert caplog.records == [], "no command tells it each time"
    with pytest.raises(StoreError, match="required, and off, because there was no cargo"):
        Lane("required")


@pytest.mark.parametrize(
    ("choice", "attributes", "level"),
    [("auto", {}, "INFO"), ("off", {}, "INFO"), ("auto", {"WHY": "there was no cargo"}, "WARNING")],
)
def test_a_process_says_at_its_start_which_it_has(
    installed: Any, caplog: pytest.LogCaptureFixture, choice: lanes.Choice, attributes: Any, level: str
) -> None:
    caplog.set_level(logging.INFO)
    installed(module(**attributes))
    lane = Lane(choice)
    lane.tell()
    assert [(record.levelname, record.message) for record in caplog.records] == [(level, f"lane {lane}")]


def test_one_of_other_sources_is_worth_one_warning(installed: Any, caplog: pytest.LogCaptureFixture) -> None:
    installed(module(SOURCES="others"))
    lane = Lane.of_environment()
    assert not lane.active and "built from other sources" in str(lane)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    with pytest.raises(StoreError, match="required"):
        Lane("required")


def test_one_that_cannot_be_loaded_is_worth_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "whimbrel_lane_of_another_machine.so").write_bytes(b"\x7fELF and no more")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lanes, "MODULE", "whimbrel_lane_of_another_machine")
    assert "can't be loaded" in str(Lane.of_environment())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("attributes", [{}, {"WHY": "this wheel was built without it"}])
def test_other_machines_than_those_it_is_offered_for_do_without(
    installed: Any, monkeypatch: pytest.MonkeyPatch, attributes: dict[str, str]
) -> None:
    installed(module(**attributes))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert str(Lane()).startswith("off, because it is not offered for aarch64")


def test_the_environment_chooses_for_what_has_no_settings(
    installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(module())
    monkeypatch.setenv("WHIMBREL_LANE", "off")
    assert not Machine().lane.active
    monkeypatch.setenv("WHIMBREL_LANE", "on")
    with pytest.raises(StoreError, match="say auto, off or required"):
        _ = Machine().lane


def test_the_lane_is_built_from_these_sources() -> None:
    lane = lane_or_skip()
    assert lane.native is not None
    assert lane.native.SOURCES == lanes.sources() != ""


def test_a_process_that_died_within_the_lane_is_followed_by_one_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lane_or_skip()
    open_master(tmp_path / "s").close()
    page = SharedPage.open(tmp_path / "s")
    page.lane_pass = 1
    for expected in (False, True):
        machine = StoppedClock(1)
        machine.lane = Lane()
        MasterStore.open(tmp_path / "s", OPTIONS, clock=lambda: 1, machine=machine).close()
        assert machine.lane.active is expected
        assert page.lane_pass == 0
    assert [record.levelname for record in caplog.records if "compiled lane" in record.message] == ["WARNING"]
    page.lane_pass = 1
    machine = StoppedClock(1)
    machine.lane = Lane("required")
    MasterStore.open(tmp_path / "s", OPTIONS, clock=lambda: 1, machine=machine).close()
    assert machine.lane.active, "required is required"
    page.close()


class PanickyPasses(LanePasses):
    """Passes whose lane panics in one of its functions, at a call."""

    calls: ClassVar[dict[str, int]] = {"entries": 0, "keys": 0, "hashed": 0, "put_keys": 0}
    panics: ClassVar[tuple[str, int]] = ("", 0)

    def run(self, work: Any, *arguments: Any) -> Any:
        """See `LanePasses`."""
        name, at = self.panics
        if work.__name__ == name:
            self.calls[name] += 1
            if self.calls[name] == at:
                assert self.lane.native is not None
                work, arguments = self.lane.native.panic, ("on purpose",)
        return super().run(work, *arguments)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("name", ["entries", "keys", "hashed", "put_keys"])
def test_a_panic_switches_the_lane_off_and_changes_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    at: int,
) -> None:
    lane_or_skip()
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr("whimbrel.store.store.LanePasses", PanickyPasses)
    monkeypatch.setattr(PanickyPasses, "calls", dict.fromkeys(PanickyPasses.calls, 0))
    monkeypatch.setattr(PanickyPasses, "panics", (name, at))
    machine = StoppedClock(1_800_000_000_000)
    machine.lane = Lane()

    def opened() -> MasterStore:
        (tmp_path / "s").mkdir(exist_ok=True)
        return MasterStore.open(tmp_path / "s", OPTIONS, clock=lambda: 1_800_000_000_000, machine=machine)

    store = opened()
    for number in range(600):  # over several files
        store.append([make_draft(number)])
    while store.end_tick():
        pass
    store.index_rest()
    store.close(clean=False)
    (tmp_path / "s" / "whimbrel" / "queue-mark").unlink()
    store = opened()  # which dispatches and indexes the whole log again
    while store.end_tick():
        pass
    assert machine.lane.failures == 1 and not machine.lane.active
    assert store.page.lane_pass == 0
    assert store.queue_range("topic", 0) == (0, 600)
    for number in (0, 150, 599):
        assert len(store.find_by_key("topic", f"key-{number}")) == 1
    store.close()
    assert verify(tmp_path / "s") == []
    assert "on purpose" in caplog.text


def test_a_pass_gets_little_of_the_log_behind_what_is_not_plain() -> None:
    reach = Reach()
    whole = reach.size
    reach.passed(foreign=False)
    assert reach.size == whole
    reach.passed(foreign=True)
    assert reach.size == FOREIGN_BYTES
    for _ in range(20):
        reach.passed(foreign=False)
    assert reach.size == whole
