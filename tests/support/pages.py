"""The pages, README.md and docs/, and the commands on them that a reader types.

    PAGE = Page("docs/backup.md")                         # at the top of a module of tests
    PAGE["whimbrel restore /backup/broker-a /data/a1"]    # fails where the page has no such command
        .words({"/backup/broker-a": backup, "/data/a1": store})

A command is a line of a block, fenced or indented by four or more, that begins with `whimbrel`, `docker` or
`cp`, behind `$ ` and assignments to variables where there are any. In a block that has a prompt, lines
without one are output. A line that ends with a backslash goes on in the next one; ` #` begins a comment.

Each is run by a test, or a comment in front of its block says why none does:

    <!-- not run by a test: REASON -->                    of the whole block
    <!-- not run by a test: REASON: `COMMAND`, ... -->    of these

What tests run is read from their source (`named`): a page is a name at the top of a module, and a command
stands behind it as it does on the page, so that none is taken for run by what a variable may hold.
"""

import ast
import functools
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Command",
    "Mark",
    "Mention",
    "Page",
    "Places",
    "Written",
    "blocks",
    "commands",
    "commands_of",
    "marks",
    "mentions",
    "named",
    "named_by",
    "pages",
    "plain",
]

ROOT = Path(__file__).resolve().parents[2]
RUNNING = ("tests/integration", "tests/spark", "tests/containers")  # where tests are that run commands
BEGINS = re.compile(r"(?:\w+=\S* +)*(?:whimbrel|docker|cp)(?= |$)")
COMMENT = re.compile(r"^ *<!--.*?-->", re.DOTALL | re.MULTILINE)  # in backticks it is none
MARK = re.compile(r"^ *<!-- not run by a test:\s+(.*?)\s*-->", re.DOTALL | re.MULTILINE)
PROMPT = "$ "
INDENT = 4
OPERATORS = "|<>"


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of a page that are shown as they are; `mark` is the comment in front of it."""

    page: str
    lines: tuple[tuple[int, str], ...]
    mark: str = ""

    def typed(self) -> Iterator[tuple[int, str]]:
        """Yield number and text of each command; continued lines are one."""
        prompted = any(text.startswith(PROMPT) for _, text in self.lines)
        rest = iter(self.lines)
        for number, text in rest:
            if prompted and not text.startswith(PROMPT):
                continue
            line = text.removeprefix(PROMPT)
            while line.endswith("\\"):
                line = f"{line[:-1]} {next(rest)[1]}"
            if BEGINS.match(line):
                yield number, plain(line)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a block; `marked`: it is said not to be run."""

    page: str
    line: int
    text: str
    marked: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Mention:
    """A command in the text of a page, in backticks."""

    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


@dataclass(frozen=True, slots=True)
class Mark:
    """Why commands are not run; without `commands`, all of the block's."""

    page: str
    reason: str
    commands: tuple[str, ...]


def plain(line: str) -> str:
    """Return a command without its comment, with one space between words; what is quoted stays as it is."""
    kept, quote = "", ""
    for sign in line.strip():
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign == "#" and (not kept or kept.endswith(" ")):
            break
        elif sign == " " and kept.endswith(" "):
            continue
        kept += sign
    return kept.rstrip()


def read_mark(page: str, text: str) -> Mark:
    """Return what a comment says."""
    words = " ".join(text.split())
    found = tuple(plain(each) for each in re.findall(r"`([^`]*)`", words) if BEGINS.match(each))
    reason = words.partition(": `")[0] if found else words
    return Mark(page, reason.strip(), found)


@functools.cache
def pages() -> dict[str, str]:
    """Return the text of each page by its name, README.md first."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in found}


def blocks(page: str, text: str) -> list[Block]:
    """Return the blocks of a page, each with the comment that stands in front of it."""
    found: list[Block] = []
    lines: list[tuple[int, str]] = []
    mark, fenced = "", False

    def end() -> None:
        nonlocal mark
        while lines and not lines[-1][1]:
            lines.pop()
        if lines:
            found.append(Block(page, tuple(lines), mark))
            mark = ""
        lines.clear()

    # A comment becomes one line that begins like none of a block.
    kept = COMMENT.sub(lambda match: "\0" + match[0].replace("\n", "\1") + "\n" * match[0].count("\n"), text)
    for number, line in enumerate(kept.split("\n"), 1):
        stripped = line.strip()
        if "\0" in line:
            end()
            told = MARK.search(line.replace("\0", "").replace("\1", "\n"))
            mark = told[1] if told else mark
        elif stripped.startswith("```"):
            end()
            fenced = not fenced
        elif fenced or (line.startswith(" " * INDENT) and stripped) or (lines and not stripped):
            lines.append((number, stripped))
        else:
            end()
            mark = mark if not stripped else ""
    end()
    return found


@functools.cache
def marks() -> tuple[Mark, ...]:
    """Return all marks."""
    return tuple(read_mark(page, told) for page, text in pages().items() for told in MARK.findall(text))


def commands_of(page: str, text: str) -> list[Command]:
    """Return the commands of a page."""
    found = []
    for block in blocks(page, text):
        mark = read_mark(page, block.mark) if block.mark else None
        for number, line in block.typed():
            marked = mark is not None and (not mark.commands or line in mark.commands)
            found.append(Command(page, number, line, marked))
    return found


@functools.cache
def commands() -> tuple[Command, ...]:
    """Return the commands of all pages."""
    return tuple(command for page, text in pages().items() for command in commands_of(page, text))


@functools.cache
def mentions() -> tuple[Mention, ...]:
    """Return what stands in backticks and begins as a command does, and is more than its name."""
    found = []
    for page, text in pages().items():
        text = COMMENT.sub("", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))
        for paragraph in re.split(r"\n *\n", text):
            quoted = (" ".join(each.split()) for each in re.findall(r"`([^`]+)`", paragraph))
            found += [Mention(page, each) for each in quoted if BEGINS.match(each) and " " in each]
    return tuple(found)


class Page:
    """A page whose commands tests run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.commands = {each.text for each in commands() if each.page == name}

    def __getitem__(self, text: str) -> "Written":
        assert text in self.commands, f"not in {self.name}: {text}"
        return Written(text)


Places = Mapping[
    str, object
]  # a word of a page, and what stands in its place; a tuple: several words, or none


@dataclass(frozen=True, slots=True)
class Written:
    """A command as it stands on a page."""

    text: str

    def split(self) -> list[str]:
        """Return its words, and operators of a shell."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars=OPERATORS)
        lexer.whitespace_split = True
        lexer.commenters = ""
        return list(lexer)

    @property
    def of_a_shell(self) -> bool:
        """Whether it needs a shell: it has a pipe, or a redirection."""
        return any(set(word) <= set(OPERATORS) for word in self.split())

    def words(self, places: Places | None = None) -> list[str]:
        """Return its words, with our places for those of the page, each of which must be there."""
        places, words = places or {}, self.split()
        absent = [word for word in places if word not in words]
        assert not absent, f"not in {self.text}: {', '.join(absent)}"
        found: list[str] = []
        for word in words:
            new = places.get(word, word)
            found += [str(each) for each in (new if isinstance(new, tuple) else (new,))]
        return found

    def line(self, places: Places | None = None, *more: object) -> str:
        """Return it for a shell; `more` words stand behind those of its first program."""
        parts, first = [], True
        for word in self.words(places):
            operator = set(word) <= set(OPERATORS)
            if operator and first:
                parts += [shlex.quote(str(each)) for each in more]
            first = first and not operator
            parts.append(word if operator else shlex.quote(word))
        return " ".join([*parts, *(shlex.quote(str(each)) for each in more if first)])


@dataclass(frozen=True, slots=True)
class Named:
    """A command in the source of a test."""

    page: str
    text: str
    test: str


def named_by(source: str, test: str) -> list[Named]:
    """Return the commands that the source of a module of tests names.

    Raises:
        AssertionError: one does not stand there as it is, or in a function that nobody calls.
    """
    tree = ast.parse(source)
    known = {
        target.id: str(node.value.args[0].value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "Page"
        and isinstance(node.value.args[0], ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found = []
    for outer in tree.body:
        for node in ast.walk(outer):
            if not (isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in known):
                continue
            assert isinstance(node.slice, ast.Constant), f"{test}:{node.lineno}: name the command as it is"
            if isinstance(outer, ast.FunctionDef):
                alive = outer.name.startswith("test_") or outer.decorator_list or outer.name in used
                assert alive, f"{test}: nobody calls {outer.name}"
            assert isinstance(node.value, ast.Name)
            found.append(Named(known[node.value.id], str(node.slice.value), f"{test}:{node.lineno}"))
    return found


@functools.cache
def named() -> tuple[Named, ...]:
    """Return what all tests name."""
    found: list[Named] = []
    for folder in RUNNING:
        for path in sorted((ROOT / folder).glob("*.py")):
            source = path.read_text(encoding="utf-8")
            if "Page(" in source:
                found += named_by(source, path.relative_to(ROOT).as_posix())
    return tuple(found)
