"""What a process tells of itself: log lines as text or JSON, and the file that says it is ready.

Log lines go to the standard error. A JSON line is one object: time, level, logger, process, message, and
`error` with the traceback when there is one. Durations, offsets and names stand in the message; there is no
second language of fields.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

__all__ = ["setup_logging", "write_ready_file"]


def setup_logging(level: str, style: str, *, process: str, stream: TextIO | None = None) -> None:
    """Send the log lines of this process to the standard error, `style` being `text` or `json`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(process) if style == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # asyncio's own lines below WARNING are about its selector, and grpcio repeats what `rpc/server.py` logs.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def timestamp(seconds: float) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


class TextFormatter(logging.Formatter):
    """One line a record for people: time, level, process, message, logger."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback on further ones."""
        logger = record.name.removeprefix("whimbrel.")
        start = f"{timestamp(record.created)} {record.levelname:<7} {self.process}"
        text = f"{start} {record.getMessage()} [{logger}]"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class JsonFormatter(logging.Formatter):
    """One JSON object a record."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as one line."""
        fields: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname,
            "logger": record.name,
            "process": self.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def write_ready_file(path: str, facts: Mapping[str, Any]) -> None:
    """Say at `path`, when there is one, that this process is ready; who sees the file sees all of it."""
    if not path:
        return
    target = Path(path)
    draft = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps({"pid": os.getpid(), **facts}) + "\n", encoding="utf-8")
    draft.replace(target)
