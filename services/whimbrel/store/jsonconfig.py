"""RocketMQ's `config/*.json`: the text that fastjson writes, read and written without losing a byte.

The text is JSON except that integer map keys have no quotes, and such maps are on one line.

    {                                       pretty: one TAB a level, no space behind `:`
    <TAB>"offsetTable":{
    <TAB><TAB>"TopicTest@GroupA":{0:250,1:250       an integer-keyed map: its entries follow on the line,
    <TAB><TAB>}                                     its bracket stands on the next
    <TAB>}
    }

Arrays are on one line, empty maps are `{}`, and the models leave absent (null) fields out. The compact form,
which brokers send each other, is the same without line ends and indents. The models give bean fields in
alphabetical order; the order of maps is kept, so that a file read and written again has the same bytes.

The reader accepts `{0:1}` and `{"0":1}`, trailing commas, and raw control characters in strings, as fastjson
does.

A file is saved as `NAME.tmp`, flushed, its predecessor kept as `NAME.bak`, and renamed. When the main file is
missing, empty or does not parse, the `.bak` is used, and the file's owner renames the broken one to
`NAME.damaged`, so that it does not become the next `.bak`. When one is there and neither can be read, the
owner refuses to start: starting without it would lose what the file held.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from whimbrel.errors import StoreError
from whimbrel.machine import FILES, Files
from whimbrel.store.pages import refusing_when_full

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "Encoded",
    "dumps",
    "encoded_map",
    "encoded_member",
    "load",
    "loads",
    "open_own",
    "save",
    "save_pieces",
    "split_at",
]

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Strings first, so that what looks like a key or a comma inside one is not replaced.
UNUSUAL = re.compile(r'"(?:[^"\\]|\\.)*"|(-?\d+)(?=\s*:)|,(?=\s*[}\]])', re.DOTALL)
INTEGER_KEY = "\x00int:"  # no name in a RocketMQ file may hold a control character
ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
SPECIAL = re.compile(r'["\\\x00-\x1f]')
GAP = "\x00"  # stands in no text: control characters in strings are escaped


def loads(text: str) -> Any:
    """Parse the text; unquoted integer keys become ints. Raises StoreError when it does not parse."""
    try:
        return json.loads(UNUSUAL.sub(standard, text), object_pairs_hook=restore, strict=False)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not a configuration text: {error}") from error


def standard(match: re.Match[str]) -> str:
    if match[1] is not None:
        return f'"\\u0000int:{match[1]}"'
    return "" if match[0] == "," else match[0]


def restore(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
    return {int(key[5:]) if key.startswith(INTEGER_KEY) else key: value for key, value in pairs}


def dumps(value: Any, *, pretty: bool = True) -> str:
    """Write the value as fastjson does; dict keys that are ints stand without quotes."""
    parts: list[str] = []
    write(value, "\n" if pretty else "", parts)
    return "".join(parts)


class Encoded(str):
    """A value's text, which `dumps` takes as it is."""

    __slots__ = ()


def encoded_member(key: str, value: Any, *, level: int, pretty: bool) -> str:
    """Return the text of a map's entry, for `encoded_map`: who keeps these need not write all of them anew.

    Args:
        key, value: the entry.
        level: how many maps its map stands in.
        pretty: as in `dumps`.
    """
    inner = "\n" + "\t" * (level + 1) if pretty else ""
    parts = [inner, quoted(key), ":"]
    write(value, inner, parts)
    return "".join(parts)


def encoded_map(members: Iterable[str], *, level: int, pretty: bool) -> Encoded:
    """Return the text of a map of such entries."""
    text = ",".join(members)
    line = "\n" + "\t" * level if pretty and text else ""
    return Encoded(f"{{{text}{line}}}")


def split_at(key: str, content: dict[str, Any], *, pretty: bool) -> tuple[str, str]:
    """Return what stands before and behind the value of `key`, in the text of a map that has that key, too.

    Fields go by their names. Who keeps a large value's text need not copy it into that of the whole.
    """
    whole = dict(sorted({**content, key: Encoded(GAP)}.items()))
    before, _, behind = dumps(whole, pretty=pretty).partition(GAP)
    return before, behind


def write(value: Any, line: str, parts: list[str]) -> None:
    """Append the text of `value`.

    `line` is the line end with the indent of its level, or empty when compact.
    """
    if isinstance(value, dict):
        write_map(value, line, parts)
    elif isinstance(value, Encoded):
        parts.append(value)
    elif isinstance(value, str):
        parts.append(quoted(value))
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif value is None:
        parts.append("null")
    elif isinstance(value, list | tuple):
        parts.append("[")
        for index, item in enumerate(value):
            if index:
                parts.append(",")
            write(item, line and line + "\t", parts)
        parts.append("]")
    else:
        parts.append(json.dumps(value))


def write_map(value: dict[Any, Any], line: str, parts: list[str]) -> None:
    inner = line and line + "\t"
    parts.append("{")
    for index, (key, item) in enumerate(value.items()):
        if index:
            parts.append(",")
        if isinstance(key, int):
            parts.append(str(key))
        else:
            parts.append(inner)
            parts.append(quoted(key))
        parts.append(":")
        write(item, inner, parts)
    if value:
        parts.append(line)
    parts.append("}")


def quoted(text: str) -> str:
    return '"' + SPECIAL.sub(lambda match: ESCAPES.get(match[0]) or f"\\u{ord(match[0]):04x}", text) + '"'


def load(path: Path) -> Any:
    """Return the parsed file, its parsed `.bak` when it is missing or broken, None when neither can be read.

    Nothing is changed.
    """
    for candidate in (path, backup_of(path)):
        try:
            return read(candidate)
        except FileNotFoundError:
            continue
        except StoreError as error:
            logger.warning("%s: %s", candidate, error)
    return None


def open_own(path: Path, decode: Callable[[Any], T], files: Files = FILES) -> tuple[T | None, bool]:
    """Return what the file or its `.bak` decodes to, and whether it was the file; None when neither is there.

    A broken file whose `.bak` is good is renamed to `NAME.damaged`.

    Args:
        path: the file.
        decode: turns the parsed file into what is returned; raises StoreError when that is impossible.

    Raises:
        StoreError: one is there, and none can be read; its text is what to do.
    """
    faults = []
    for candidate in (path, backup_of(path)):
        try:
            value = decode(read(candidate, files))
        except FileNotFoundError:
            continue
        except StoreError as error:
            faults.append(f"{candidate.name}: {error}")
            continue
        if candidate != path and faults:
            aside = path.with_name(path.name + ".damaged")
            files.rename(path, aside)
            logger.error(
                "%s is damaged and now called %s; going on with %s, which is one change older: %s",
                path,
                aside.name,
                candidate.name,
                faults[0],
            )
        return value, candidate == path
    if faults:
        raise StoreError(
            f"{path} is damaged ({'; '.join(faults)}): put a good copy there, another broker of the group "
            f"has one, or remove it and {path.name}.bak to go on without what it held"
        )
    return None, False


def backup_of(path: Path) -> Path:
    """Return the name of a file's predecessor."""
    return path.with_name(path.name + ".bak")


def read(path: Path, files: Files = FILES) -> Any:
    """Parse one file.

    Raises:
        FileNotFoundError: there is none.
        StoreError: it can't be read, is empty, or does not parse.
    """
    try:
        text = files.read_bytes(path).decode("utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"it can't be read: {error}") from error
    if not text.strip():
        raise StoreError("it is empty")
    return loads(text)


def save(path: Path, text: str, files: Files = FILES) -> None:
    """Replace the file by `text`; a crash leaves either the old or the new one, whole.

    Raises:
        StoreFull: the disk has no room; the old file is as it was.
    """
    save_pieces(path, (text.encode("utf-8"),), files)


def save_pieces(path: Path, pieces: Iterable["ReadableBuffer"], files: Files = FILES) -> None:
    """Replace the file by the pieces of a text, UTF-8, as `save` does.

    Raises:
        StoreFull: the disk has no room; the old file is as it was.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with refusing_when_full(f"no room for {path.name}"):
            files.make_directory(path.parent)
            files.write_new(temporary, *pieces)
            replace(temporary, path, files)
    except BaseException:
        files.unlink(temporary, missing_ok=True)
        raise


def replace(temporary: Path, path: Path, files: Files) -> None:
    """Put a file that is on disk in the place of another, which becomes its `.bak`."""
    backup = backup_of(path)
    if files.exists(path):
        # A link and not a rename: the main name must exist at every moment.
        files.unlink(backup, missing_ok=True)
        files.link(path, backup)
    files.rename(temporary, path)
    files.sync_directory(path.parent)
