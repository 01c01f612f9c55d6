"""Settings that members of a group are to have alike: each setting is in one of the two tables."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from whimbrel.broker.cluster.agreement import (
    ALIKE,
    LOG_FILE_SIZE,
    OWN,
    SETTINGS_CHARS_MAX,
    differences,
    parse_settings,
    retention_of,
    settings_text,
)
from whimbrel.broker.options import BrokerOptions
from whimbrel.store.options import Retention

OPTIONS = BrokerOptions(store="s")


def told(**changed: object) -> str:
    return settings_text(replace(OPTIONS, **changed), 1 << 20)  # type: ignore[arg-type]


def test_each_setting_is_either_to_be_alike_or_a_members_own() -> None:
    assert {field.name for field in fields(BrokerOptions)} == ALIKE | OWN
    assert not ALIKE & OWN


def test_what_is_told_fits_and_comes_back() -> None:
    text = told()
    assert len(text) < SETTINGS_CHARS_MAX / 2
    assert set(parse_settings(text)) == ALIKE | {LOG_FILE_SIZE}
    assert not differences(parse_settings(text), parse_settings(text), "member 2")


def test_a_difference_is_said_with_both_values() -> None:
    ours, theirs = parse_settings(told()), parse_settings(told(reserved_hours=24.0))
    said = differences(ours, theirs, "member 2")
    assert "member 2 has other settings: reserved_hours is 24.0 there and 72.0 here" in said
    assert "the longer time holds" in said
    both = differences(ours, parse_settings(told(reserved_hours=24.0, flush="sync")), "member 2")
    assert "flush is sync there and async here" in both
    assert "each goes by its own" in both


def test_what_a_full_disk_does_is_compared_by_what_it_comes_to(tmp_path: Path) -> None:
    assert told(full_disk="auto") == told(full_disk="drop")
    assert told(full_disk="auto") != told(full_disk="refuse")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "7", '{"reserved_hours": [1]}', '{"name": "x"}', '{"flush": "' + "x" * 100 + '"}',
     "[" * 3000, '{"flush": "' + "x" * SETTINGS_CHARS_MAX + '"}', '{"reserved_hours": null}'],
)  # fmt: skip
def test_what_is_no_setting_is_left_out_whoever_sends_it(text: str) -> None:
    assert parse_settings(text) == {}
    assert not differences(parse_settings(told()), parse_settings(text), "member 2")


def test_for_how_long_a_member_keeps_its_log() -> None:
    assert retention_of(parse_settings(told(reserved_hours=24.0))) == Retention(24.0, 0.75, 0.85)
    for wrong in ("1e999", "NaN", "-1", '"7"'):
        found = retention_of(parse_settings(f'{{"reserved_hours": {wrong}}}'))
        assert found == Retention(), wrong
