"""What docs/design.md, docs/walk.md and docs/alarms.md say of the code is so: steps, files, alarms."""

import ast
import functools
import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "services" / "whimbrel"
WAYS = (
    "Send",
    "A send by the remoting protocol",
    "A pull by the remoting protocol",
    "Receive",
    "Acknowledge",
    "A forwarded call",
    "A replicated frame",
)
BORDERS = ("TCP", "page", "table", "callback")  # no call by name leads there


@dataclass(frozen=True)
class Step:
    """One row of a table."""

    reached_by: str
    file: str
    name: str

    @property
    def source(self) -> str:
        module = importlib.import_module(f"whimbrel.{self.file.removesuffix('.py').replace('/', '.')}")
        found: object = module
        for part in self.name.split("."):
            found = getattr(found, part)
        return inspect.getsource(found)  # type: ignore[arg-type]

    @property
    def called(self) -> str:
        return self.name.rpartition(".")[2]


def steps(way: str) -> list[Step]:
    """Return the rows of the table below a heading of docs/design.md."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    section = text.split(f"\n### {way}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| \d+ \| (\w+) \| `([\w/]+\.py) ([\w.]+)` \|", section, flags=re.MULTILINE)
    assert len(rows) == len(re.findall(r"^\| \d+ \|", section, flags=re.MULTILINE)), (
        f"{way}: a row is unclear"
    )
    return [Step(*row) for row in rows]


@pytest.mark.parametrize("way", WAYS)
def test_each_step_leads_to_the_next_one(way: str) -> None:
    found = steps(way)
    assert len(found) >= 6
    for before, step in zip([None, *found], found, strict=False):
        assert step.source  # the name is there
        if step.reached_by in BORDERS or before is None:
            continue
        assert step.reached_by in ("call", "loop")
        earlier = found[: found.index(step)]
        assert any(re.search(rf"\b{step.called}\b", one.source) for one in reversed(earlier)), (
            f"{way}: no step before {step.name} mentions it"
        )


def files() -> set[str]:
    """Return the modules of the package that are ours to read, without packages' empty `__init__.py`."""
    found = (path for path in PACKAGE.rglob("*.py") if "pb" not in path.relative_to(PACKAGE).parts)
    return {path.relative_to(PACKAGE).as_posix() for path in found if path.stat().st_size}


def walked() -> set[str]:
    """Return the files that docs/walk.md lists, each below the heading of its folder."""
    named: set[str] = set()
    folder = ""
    for line in (ROOT / "docs" / "walk.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            place = re.search(r"`([\w/]*)/`", line)
            folder = f"{place[1]}/" if place else ""
        elif listed := re.match(r"- `(\w+\.py)`", line):
            named.add(folder + listed[1])
    return named


def test_the_walk_names_every_file_and_no_other() -> None:
    assert files() - walked() == set()
    assert walked() - files() == set()


def alarms(heading: str) -> str:
    """Return a section of docs/alarms.md."""
    text = (ROOT / "docs" / "alarms.md").read_text(encoding="utf-8")
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_every_alert_has_its_section_and_no_other_has() -> None:
    rules = (ROOT / "deploy" / "observability" / "alerts.yaml").read_text(encoding="utf-8")
    raised = re.findall(r"^ +- alert: (\w+)$", rules, flags=re.MULTILINE)
    told = re.findall(r"^### (\w+)$", alarms("Alerts"), flags=re.MULTILINE)
    assert len(raised) == rules.count("- alert:") > 0
    assert told == raised


def test_every_alert_says_what_it_means_where_to_look_and_what_to_do() -> None:
    for section in alarms("Alerts").split("\n### ")[1:]:
        for word in ("**Means**", "**Look**", "**Do**"):
            assert word in section, section.partition("\n")[0]


@functools.cache
def sentences() -> str:
    """Return all texts in the package's code, also those that stand in several pieces, without docstrings."""
    found: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        found += [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in documentation
        ]
    return "\n".join(found)


@pytest.mark.parametrize("heading", ["What a broker refuses, and advises", "Log lines"])
def test_the_sentences_of_alarms_are_those_of_the_code(heading: str) -> None:
    told = re.findall(r"^\| `([^`]+)` \|", alarms(heading), flags=re.MULTILINE)
    assert len(told) == alarms(heading).count("\n|") - 2 > 10
    known = sentences()
    assert [sentence for sentence in told if sentence not in known] == []
