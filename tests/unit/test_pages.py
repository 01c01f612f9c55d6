"""Every command on the pages is run by a test, or a comment in front of it says why none does."""

import re
from pathlib import Path

import pytest

from support import pages
from support.pages import Mark, Mention, Page, Written, blocks, commands, commands_of, marks, named, named_by

ROOT = Path(__file__).resolve().parents[2]


def test_every_command_is_run_by_a_test_or_marked_as_not_run() -> None:
    run = {(each.page, each.text) for each in named()}
    left = [str(each) for each in commands() if not each.marked and (each.page, each.text) not in run]
    assert left == []


def test_tests_name_what_is_on_the_pages() -> None:
    there = {(each.page, each.text) for each in commands()}
    assert [each for each in named() if (each.page, each.text) not in there] == []


def test_what_is_marked_as_not_run_is_run_by_no_test() -> None:
    marked = {(each.page, each.text) for each in commands() if each.marked}
    assert [each for each in named() if (each.page, each.text) in marked] == []


def test_every_mark_stands_in_front_of_its_commands() -> None:
    used = {
        told: [text for _, text in block.typed()]
        for page, content in pages.pages().items()
        for block in blocks(page, content)
        if (told := block.mark and pages.read_mark(page, block.mark))
    }
    for mark in marks():
        assert used.get(mark), f"{mark.page}: no block of commands behind the mark: {mark.reason}"
        strange = set(mark.commands) - set(used[mark])
        assert not strange, f"{mark.page}: not in the block behind the mark: {strange}"


@pytest.mark.parametrize("mark", marks(), ids=lambda mark: f"{mark.page}: {mark.reason[:40]}")
def test_the_tests_that_a_mark_names_are_there(mark: Mark) -> None:
    for name in re.findall(r"tests/[\w/]+\.py", mark.reason):
        assert (ROOT / name).is_file(), name
    assert len(mark.reason.split()) > 3, "say why"


PAGE = """# A page

Text, with `whimbrel send orders x`, `whimbrel`, `cp`,
and `whimbrel topic
create NAME` over two lines.

    whimbrel send orders 'a  # b'   --key 1     # a comment
    whimbrel/lane.py  is no command
    whimbrelx neither
    VARIABLE=1 docker compose up
    whimbrel broker --store a \\
                    --port 0

1. In a list:

       cp -a /a /b

<!-- not run by a test:
     it needs a dog: `whimbrel tail "a"`, `whimbrel pull a --queue 0` -->

    whimbrel tail   "a"
    whimbrel topic list
    whimbrel pull a --queue 0

<!-- not run by a test: there is no dog -->
```sh
whimbrel dev
```

    $ whimbrel --version   # with a prompt
    whimbrel 0.1.0, lane on
"""


def test_commands_are_lines_of_blocks() -> None:
    found = [(each.line, each.text, each.marked) for each in commands_of("page", PAGE)]
    assert found == [
        (7, "whimbrel send orders 'a  # b' --key 1", False),
        (10, "VARIABLE=1 docker compose up", False),
        (11, "whimbrel broker --store a --port 0", False),
        (16, "cp -a /a /b", False),
        (21, 'whimbrel tail "a"', True),
        (22, "whimbrel topic list", False),
        (23, "whimbrel pull a --queue 0", True),
        (27, "whimbrel dev", True),
        (30, "whimbrel --version", False),
    ]


def test_mentions_stand_in_backticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "pages", lambda: {"page": PAGE})
    assert pages.mentions.__wrapped__() == (
        Mention("page", "whimbrel send orders x"),
        Mention("page", "whimbrel topic create NAME"),
    )


def test_words_of_a_page_are_replaced_by_ours() -> None:
    written = Written("whimbrel tail 'a b' ... | head -1")
    assert written.of_a_shell and not Written("whimbrel tail 'a|b'").of_a_shell
    assert written.words({"a b": "c", "...": ("-n", 1)}) == [
        "whimbrel",
        "tail",
        "c",
        "-n",
        "1",
        "|",
        "head",
        "-1",
    ]
    assert written.line({"...": ()}, "-o", "json") == "whimbrel tail 'a b' -o json | head -1"
    with pytest.raises(AssertionError, match="not in"):
        written.words({"d": "e"})


def test_a_page_gives_only_what_it_has() -> None:
    with pytest.raises(AssertionError, match=r"not in docs/backup\.md: whimbrel restore /a /b"):
        Page("docs/backup.md")["whimbrel restore /a /b"]


SOURCE = """
PAGE = Page("docs/a.md")
def test_one():
    run(PAGE["whimbrel a"])
def helped():
    run(PAGE["whimbrel b"])
def test_two():
    helped()
"""


def test_what_tests_name_is_read_from_their_source() -> None:
    found = [(each.page, each.text, each.test) for each in named_by(SOURCE, "t.py")]
    assert found == [("docs/a.md", "whimbrel a", "t.py:4"), ("docs/a.md", "whimbrel b", "t.py:6")]
    with pytest.raises(AssertionError, match="nobody calls helped"):
        named_by(SOURCE.replace("    helped()", "    pass"), "t.py")
    with pytest.raises(AssertionError, match="name the command as it is"):
        named_by(SOURCE.replace('PAGE["whimbrel a"]', "PAGE[text]"), "t.py")
