"""Cases for SQL filters: generated ones, and RocketMQ's own answers to them.

A case is an expression and the properties of a message; its result TRUE, FALSE, NULL, EVAL (the evaluation
is an error) or PARSE (the text is refused). `ask` has RocketMQ 5.3.3's parser answer, by the program
`tests/interop/java/SelectorOracle.java`; it needs java and mvn. A text that RocketMQ does not read to its end
is PARSE here, as it is for us (` TRAILING` in the program's answers).

Cases that need no java are recorded with RocketMQ's answers, one JSON list a line: what people thought of,
and some generated ones of each result. To add one, write its line with any answer, and run
`python -m support.broker.sql_cases`.
"""

import json
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch
from urllib.parse import quote_plus

from support.systems.real_broker import resolved
from whimbrel.broker.consume import sql_filter
from whimbrel.broker.consume.sql_filter import EvaluationError, SqlFilter, same
from whimbrel.errors import IllegalFilter

__all__ = ["RESULTS", "ZERO_DOUBLES", "Case", "agrees", "ask", "generate", "ours", "recorded", "zero_doubles"]

Case: TypeAlias = tuple[str, dict[str, str]]

ORACLE = Path(__file__).resolve().parents[2] / "interop" / "java" / "SelectorOracle.java"
ORACLE_TIMEOUT_S = 120
HEADER = (
    "# Answers of RocketMQ 5.3.3, written by `python -m support.broker.sql_cases`:"
    " expression, properties, result."
)
RESULTS = ("TRUE", "FALSE", "NULL", "EVAL", "PARSE")
RECORDED = Path(__file__).resolve().parents[2] / "unit" / "broker" / "consume" / "sql_cases.jsonl"

INTEGERS = (
    "0", "1", "5", "5L", "7l", "10", "42", "2147483646", "2147483647", "2147483648", "2147483647L",
    "2147483648L", "9223372036854775806", "9223372036854775807", "9223372036854775807L",
    "9223372036854775808",
    "99999999999999999999", "007", "0L", "9007199254740993",
)  # fmt: skip
DOUBLES = (
    "1.5", "5.", ".5", "5.0", "5e0", "1e3", "1E-3", "1.5e+2", "2147483648.0", "9223372036854775807.0",
    "1.7976931348623157e308", "1e309", "4.9e-324", "1e-400", "0.1", "00.5", "9007199254740992.0",
)  # fmt: skip
STRINGS = (
    "''", "'5'", "'1.5'", "'abc'", "'ab'", "'c'", "'it''s'", "''''", "'ABC'", "'true'", "'TRUE'", "'NULL'",
    "'a b'", "'-- no comment'", "'/* nor this */'", "'\"'", "'ü'", "'用户'", "'\U0001f600'",
    "'\\\\u0041'", "'\n'", "'x",
)  # fmt: skip
NAMES = ("a", "b", "c", "d", "$x", "_y", "A", "TAGS", "KEYS", "UNIQ_KEY", "a$1", "like", "escape")
ODD_NAMES = ("ü", "1a", "a-b", "a.b", "between", "In", "not", "null", "a#")
VALUES = (
    "0", "-0", "+0", "1", "5", "+5", "-5", "05", "10", "42", " 5 ", "5 ", "1e3", "1.5", ".5",
    "5.", "-.5e1", "1_0",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "9007199254740993", "9007199254740992",
    "0" * 40 + "5", "9" * 400,
    "NaN", "-NaN", "+NaN", "nan", "Infinity", "-Infinity", "inf", "5f", "5D", "1e400", "-1e400",
    "1e-400", "0x10",
    "0x1p3", "0X.8P1d", "-0x1.8p-1", "0x1p2000", "0x1p-2000", "0x1", "1e", "e1", ".", "-", "",
    "abc", "ab", "c", "ABC",
    "true", "TRUE", "tRuE", "false", "it's", "x y", "ü", "用户", "٥", "५५", "\U0001d7d3", "５",
    "\x005\x1f", "\xa05",
)  # fmt: skip
COMPARISONS = ("=", "<>", ">", ">=", "<", "<=")
GAPS = (
    " ",
    " ",
    " ",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\f",
    "/* x */",
    "/***/",
    "/**/ ",
    "--x\n",
    "--\r",
    " -- it's\r\n ",
    "",
)
ODD_GAPS = ("\v", "\xa0", "--x", "/*", "/* x *", "#", ";", "\x00", "\u2028")
TRAILERS = (
    " junk",
    " )",
    " (",
    " 5",
    " 'x'",
    " LIKE 'x'",
    " + 1",
    " - 1 = 2",
    " NOT",
    " -- end",
    " /* end */",
    "--",
    " a = 5",
)
WORDS = (
    "AND",
    "OR",
    "NOT",
    "BETWEEN",
    "IN",
    "TRUE",
    "FALSE",
    "NULL",
    "IS",
    "CONTAINS",
    "STARTSWITH",
    "ENDSWITH",
)
ZERO_DOUBLES = ("0.0", "0.", ".0", "0e5", "000.000E-7")
FLOAT = re.compile(r"[0-9]*\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")


class Writer:
    """Writes expressions, most of them right."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one_of(self, *choices: str) -> str:
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def condition(self, depth: int) -> list[str]:
        """Return the tokens of a condition."""
        kind = self.random.randrange(14) if depth else self.random.randrange(8)
        if kind < 4:
            return [*self.operand(depth), self.one_of(*COMPARISONS), *self.operand(depth)]
        if kind == 4:
            return [*self.operand(depth), *self.maybe_not(), "BETWEEN", *self.number(), "AND", *self.number()]
        if kind == 5:
            strings = [token for _ in range(self.random.randrange(1, 4)) for token in (self.string(), ",")]
            return [self.name(), *self.maybe_not(), "IN", "(", *strings[:-1], ")"]
        if kind == 6:
            how = self.one_of("CONTAINS", "STARTSWITH", "ENDSWITH")
            return [*self.operand(depth), *self.maybe_not(), how, self.string()]
        if kind == 7:
            return [*self.operand(depth), "IS", *self.maybe_not(), "NULL"]
        if kind < 12:
            joined = self.condition(depth - 1)
            for _ in range(self.random.randrange(1, 3)):
                joined += [self.one_of("AND", "OR"), *self.condition(depth - 1)]
            return joined
        if kind == 12:
            return ["NOT", *self.condition(depth - 1)]
        return ["(", *self.condition(depth - 1), ")"]

    def maybe_not(self) -> list[str]:
        return ["NOT"] if self.chance(0.3) else []

    def operand(self, depth: int) -> list[str]:
        kind = self.random.randrange(20)
        if kind < 9:
            return [self.name()]
        if kind < 14:
            return self.number()
        if kind < 16:
            return [self.string()]
        if kind == 16:
            return [self.one_of("TRUE", "FALSE", "NULL")]
        if kind == 17:
            return [self.one_of("+", "-", "NOT"), *self.operand(depth)]
        return ["(", *self.condition(depth - 1), ")"] if depth else [self.name()]

    def name(self) -> str:
        return self.one_of(
            *(ODD_NAMES if self.chance(0.02) else NAMES[: self.random.randrange(2, len(NAMES))])
        )

    def number(self) -> list[str]:
        if self.chance(0.1):
            return [self.name()]
        signs = [self.one_of("-", "-", "+")] if self.chance(0.25) else []
        small = self.chance(0.5)
        return [*signs, self.one_of(*(("1", "5", "5", "10") if small else INTEGERS + DOUBLES))]

    def string(self) -> str:
        return self.one_of(*(STRINGS[:-1] if self.chance(0.99) else STRINGS))

    def damaged(self, tokens: list[str]) -> list[str]:
        """Leave a token out, write one twice, exchange two, or put another one in."""
        at, other = self.random.randrange(len(tokens)), self.random.randrange(len(tokens))
        kind = self.random.randrange(4)
        if kind == 0:
            return tokens[:at] + tokens[at + 1 :]
        if kind == 1:
            return tokens[: at + 1] + tokens[at:]
        if kind == 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
            return tokens
        return [*tokens[:at], self.one_of(*WORDS, "(", ")", ",", "-", "=", "a", "5", "'x'"), *tokens[at:]]

    def text(self, tokens: Sequence[str]) -> str:
        """Write tokens with gaps between them; words in any case."""
        text = self.one_of("", "", "", " ", "\n", "/* begin */")
        for token in tokens:
            if token in WORDS and self.chance(0.3):
                token = "".join(self.one_of(char.lower(), char) for char in token)
            gap = self.one_of(*(ODD_GAPS if self.chance(0.002) else GAPS if self.chance(0.3) else (" ",)))
            text += token + gap
        if self.chance(0.02):
            at = self.random.randrange(len(text) + 1)
            text = text[:at] + text[at + 1 :]
        return text.rstrip(" ") + (self.one_of(*TRAILERS) if self.chance(0.04) else "")

    def properties(self, tokens: Sequence[str]) -> dict[str, str]:
        """Choose values: of all kinds, or such that a comparison may be TRUE."""
        strings = [token[1:-1].replace("''", "'") for token in tokens if token[0] == "'"]
        near = [token.rstrip("lL") for token in tokens if token[0].isdigit()] + strings
        found = {}
        for name in NAMES:
            if self.chance(0.7):
                pool = (
                    near
                    if near and self.chance(0.4)
                    else VALUES
                    if self.chance(0.5)
                    else ("5", "7", "1", "abc")
                )
                found[name] = self.one_of(*pool)
        return found

    def case(self) -> Case:
        tokens = self.condition(self.random.randrange(4))
        properties = self.properties(tokens)
        if self.chance(0.08):
            tokens = self.damaged(tokens)
        return self.text(tokens), properties


def zero_doubles(text: str) -> bool:
    """Return whether the text may hold a double that is 0, which RocketMQ refuses and we do not."""
    return any(
        not re.search("[1-9]", re.split("[eE]", word)[0]) for word in FLOAT.findall(text) if word != "."
    )


def generate(seed: int, count: int) -> list[Case]:
    """Return cases, without doubles that are 0."""
    writer = Writer(seed)
    found: list[Case] = []
    while len(found) < count:
        case = writer.case()
        if not zero_doubles(case[0]):
            found.append(case)
    return found


def ask(cases: Sequence[Case]) -> list[str]:
    """Return RocketMQ's answers; skips the calling test where it can't be run."""
    lines = [
        "\t".join(map(quote_plus, [text, *(word for pair in properties.items() for word in pair)]))
        for text, properties in cases
    ]
    command = ["java", "-Dfile.encoding=UTF-8", "-Xmx256m", "-cp", resolved("5.3.3").strip(), str(ORACLE)]
    done = subprocess.run(
        command,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=ORACLE_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(cases), done.stderr
    return ["PARSE" if answer.endswith(" TRAILING") else answer for answer in answers]


def agrees(case: Case, answer: str) -> bool:
    """Return whether our result is RocketMQ's, but that to it a truth left of a text is an error."""
    if ours(case) == answer:
        return True
    with patch.object(sql_filter, "same", same_as_rocketmq):
        return answer == "EVAL" == ours(case)


def same_as_rocketmq(one: sql_filter.Value, other: sql_filter.Value, convert: Any) -> bool:
    """Compare as RocketMQ does."""
    if isinstance(one, bool) and isinstance(other, str):
        raise EvaluationError
    return same(one, other, convert)


def ours(case: Case) -> str:
    """Return our answer to a case."""
    text, properties = case
    try:
        result = SqlFilter(text).result(properties)
    except IllegalFilter:
        return "PARSE"
    except EvaluationError:
        return "EVAL"
    return "NULL" if result is None else str(result).upper()


def recorded() -> list[tuple[str, dict[str, str], str]]:
    """Return the recorded cases, each with RocketMQ's answer."""
    found = []
    for line in RECORDED.read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#"):
            text, properties, answer = json.loads(line)
            found.append((text, properties, answer))
    return found


def record() -> None:
    """Write RocketMQ's answers to the recorded cases anew; what stands there as an answer does not matter."""
    cases = [(text, properties) for text, properties, _ in recorded()]
    lines = [
        json.dumps([*case, answer], ensure_ascii=False)
        for case, answer in zip(cases, ask(cases), strict=True)
    ]
    RECORDED.write_text("\n".join([HEADER, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    record()
