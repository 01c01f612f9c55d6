"""Runs command lines of `whimbrel` in the test's own process."""

import json
from typing import Any

import pytest

from whimbrel.cli.main import main

__all__ = ["Shell"]


class Shell:
    """Runs command lines, all of which begin with the same words, and keeps what they printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *first: str) -> None:
        self.capsys = capsys
        self.first = first
        self.error = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        outcome = main((*self.first, *arguments))
        captured = self.capsys.readouterr()
        self.error = captured.err
        assert outcome == code, captured.err
        assert "Traceback" not in captured.err
        return captured.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))
