"""Control characters on their way out: texts that others chose reach no terminal, and begin no line.

Names are checked where they come in. What is written all the same (a message's body, the error text of a
server, a name in a store of another broker) passes one of these on its way out: in the log formatter
(`telemetry.py`) and in what the commands print (`cli/output.py`, `cli/printing.py`).

Escaped is what Python calls not printable: control characters of both sets, line separators, characters
without a form of their own, such as those that turn the direction of writing, and halves of surrogate pairs.
"""

import json

__all__ = ["printable", "printable_json", "printable_lines"]


def printable(text: str) -> str:
    """Return a text as one line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def printable_lines(text: str) -> str:
    """Return a text whose lines and tabs stay."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n"))


def printable_json(text: str) -> str:
    """Return JSON that means the same; its lines stay."""
    return "\n".join(map(json_line, text.split("\n")))


def json_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )
