"""Settings of malloc for the processes that we start: ours, unless somebody has chosen others."""

from pathlib import Path

import pytest

from whimbrel.cli.malloc import SETTINGS, with_settings

ROOT = Path(__file__).resolve().parents[3]


def test_they_are_set_beside_what_is_there() -> None:
    assert with_settings({"PATH": "/bin"}) == {"PATH": "/bin", **SETTINGS}


@pytest.mark.parametrize(
    "chosen",
    [
        {"MALLOC_ARENA_MAX": "2"},
        {"MALLOC_TRIM_THRESHOLD_": "1"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1"},
    ],
)
def test_who_has_set_some_gets_no_others(chosen: dict[str, str]) -> None:
    assert with_settings(chosen) == chosen


def test_other_tunables_are_no_choice() -> None:
    assert SETTINGS.items() <= with_settings({"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}).items()


def test_the_image_has_the_same() -> None:
    words = " ".join(f"{name}={value}" for name, value in SETTINGS.items())
    assert f"ENV {words}\n" in (ROOT / "Dockerfile").read_text()
