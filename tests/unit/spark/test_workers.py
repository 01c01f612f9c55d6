"""Spark's workers: errors of ours without a traceback, and no report of tasks that a limit cuts off."""

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest

from whimbrel.spark import workers
from whimbrel.spark.options import OptionError
from whimbrel.spark.workers import in_one_sentence, in_worker, leave_out_cut_off_tasks, without_traceback


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give the main module of one of Spark's workers; what a worker sets for itself is undone."""
    import traceback

    found = ModuleType("__main__")
    found.__spec__ = ModuleSpec("pyspark.daemon", None)
    found.traceback = traceback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", found)
    monkeypatch.setitem(os.environ, workers.HIDE_VARIABLE, "")
    return found


@without_traceback
def fail(error: Exception) -> None:
    raise error


def test_an_error_of_ours_is_shown_without_a_traceback(main: ModuleType) -> None:
    assert in_worker()
    with pytest.raises(OptionError, match="a sentence"):
        fail(OptionError("a sentence"))
    assert os.environ[workers.HIDE_VARIABLE] == "1"


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), ZeroDivisionError()])
def test_other_errors_keep_theirs(main: ModuleType, error: Exception) -> None:
    with pytest.raises(type(error)), in_one_sentence():
        raise error
    assert not os.environ[workers.HIDE_VARIABLE]


def test_nothing_is_changed_outside_of_workers(monkeypatch: pytest.MonkeyPatch, main: ModuleType) -> None:
    import traceback

    main.__spec__ = None
    with pytest.raises(OptionError):
        fail(OptionError("a sentence"))
    leave_out_cut_off_tasks()
    assert not os.environ[workers.HIDE_VARIABLE]
    assert main.traceback is traceback


@pytest.mark.parametrize(
    ("error", "printed"), [(BrokenPipeError, False), (ConnectionResetError, False), (OSError, True)]
)
def test_a_worker_whose_reader_has_gone_ends_in_silence(
    main: ModuleType, capsys: pytest.CaptureFixture[str], error: type[Exception], printed: bool
) -> None:
    leave_out_cut_off_tasks()
    namespace: SimpleNamespace = main.traceback
    try:
        raise error("told")
    except OSError:
        namespace.print_exc()
        assert "told" in namespace.format_exc()
    assert ("Traceback" in capsys.readouterr().err) is printed
