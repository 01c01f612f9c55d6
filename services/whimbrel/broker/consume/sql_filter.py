"""SQL filters: an expression over the properties of a message, compiled once into closures.

    text -> tree (`sql_grammar.py`) -> closure; closure(properties) -> TRUE, FALSE, NULL, or an error

A message matches when the result is TRUE. All stored properties have names, the reserved ones too
(UNIQ_KEY, TAGS, KEYS, ...); the tags code of a queue entry says nothing about them, so that every record is
read. Properties are texts, and only literals are numbers or truths: most of what a comparison does is known
when it is compiled. The rules, all RocketMQ's (ComparisonExpression, LogicExpression, UnaryExpression):

    l = r              both NULL: TRUE; only l: NULL; only r: FALSE. <> is the contrary; that of NULL is NULL
    l > r, >=, <, <=   NULL when either is; two properties as doubles
    text, number       the text must be a number of the literal's type, else an error: '1.5' > 1 is one
    text = TRUE        'true' in any case is TRUE, every other text FALSE; truth = text is an error
    truth = number     FALSE
    -x                 NULL unless x is a number
    x IN (...)         NULL when x is, NOT IN as well
    x CONTAINS '...'   FALSE when x is NULL or no text, or the string is empty; also with NOT
    a AND b, a OR b    from the left, no further than needed; NULL when only NULLs leave it open
    a (as condition)   FALSE, NULL when there is none

An error ends the evaluation: the message does not match, whatever else the expression says. Doubles are in
Java's order: NaN is equal to itself and above all, -0.0 is below 0.0.
"""

import operator
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import copysign
from typing import TypeAlias

from whimbrel.broker.consume import sql_grammar as sql
from whimbrel.broker.consume.sql_grammar import NumberKind
from whimbrel.errors import IllegalFilter

__all__ = ["EvaluationError", "SqlFilter", "compile_sql"]

# An expression is read for every poll, so its length is bounded; RocketMQ has no bound of its own.
SQL_CHARS_MAX = 16 * 1024
# The budget of a scan (`scan.py`) is counted in entries of which only the tags code is looked at. With these
# weights, a scan by SQL ends after 2 ms as well: 256 records are read and decoded for a short expression, and
# fewer for one of many nodes, each of which takes about 0.1 us.
RECORD_WEIGHT = 8
NODES_AN_ENTRY = 8

Properties: TypeAlias = Mapping[str, str]
Value: TypeAlias = str | bool | int | float | None
Closure: TypeAlias = Callable[[Properties], Value]
Compare: TypeAlias = Callable[[float, float], bool]

# No more digits than this are read without a look at the rest: those of Integer and Long.
INT_DIGITS_SAFE, LONG_DIGITS_SAFE = 9, 18
INTEGER = re.compile(r"[+-]?\d+")
PLAIN_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?").fullmatch
DECIMAL = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?|[+-]?(?:NaN|Infinity)")
HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
BLANKS = "".join(map(chr, range(0x21)))  # what Java's String.trim removes
LAST_JAVA_CHAR = "\uffff"  # digits beyond are two of Java's chars, and none is a digit

ORDERS: dict[str, Compare] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda value, text: text in value,
    "STARTSWITH": lambda value, text: value.startswith(text),
    "ENDSWITH": lambda value, text: value.endswith(text),
}
FLIPPED = {">": "<", ">=": "<=", "<": ">", "<=": ">="}


class EvaluationError(Exception):
    """A value is not of the type that the expression takes it for."""


class SqlFilter:
    """A compiled SQL expression.

    Attributes:
        result: the value of the expression for a message's properties; raises EvaluationError.
    """

    __slots__ = ("expression", "result", "weight")

    admits_all = False
    codes = codes_and_texts = None

    def __init__(self, expression: str) -> None:
        """Compile an expression.

        Raises:
            IllegalFilter: it is too long, or none.
        """
        if len(expression) > SQL_CHARS_MAX:
            raise IllegalFilter(f"an SQL filter may have {SQL_CHARS_MAX} characters, not {len(expression)}")
        tree = sql.parse(expression)
        self.expression = expression
        self.result = compiled(tree)
        self.weight = RECORD_WEIGHT + size(tree) // NODES_AN_ENTRY

    def admits_code(self, code: int) -> bool:
        """Return True: the tags code does not tell."""
        return True

    def admits(self, properties: Properties, tags: str | None) -> bool:
        """Return whether the expression is TRUE of these properties."""
        try:
            return self.result(properties) is True
        except EvaluationError:
            return False

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"


@lru_cache(maxsize=256)
def compile_sql(expression: str) -> SqlFilter:
    """Return the filter of an expression; it is kept for the next one who asks.

    Raises:
        IllegalFilter: as `SqlFilter`.
    """
    return SqlFilter(expression)


def size(node: sql.Node) -> int:
    """Return the number of nodes of a tree."""
    match node:
        case sql.And(terms) | sql.Or(terms):
            return 1 + sum(map(size, terms))
        case sql.Comparison(_, left, right):
            return 1 + size(left) + size(right)
        case sql.Not(operand) | sql.Negative(operand) | sql.IsNull(operand) | sql.TextMatch(_, operand):
            return 1 + size(operand)
        case _:
            return 1


def compiled(node: sql.Node) -> Closure:
    """Return a closure that evaluates a tree."""
    match node:
        case sql.Number(value) | sql.Text(value) | sql.Truth(value):
            return constant(value)
        case sql.Property(name):
            return lambda properties: properties.get(name)
        case sql.Cast(name):
            return lambda properties: False if name in properties else None
        case sql.Negative():
            return negative(node)
        case sql.Not(operand):
            return negation(compiled(operand))
        case sql.And(terms):
            return chain([compiled(term) for term in terms], decided_by=False)
        case sql.Or(terms):
            return chain([compiled(term) for term in terms], decided_by=True)
        case sql.IsNull(operand):
            inner = compiled(operand)
            return lambda properties: inner(properties) is None
        case sql.Membership(name, values, negated):
            return membership(name, values, negated=negated)
        case sql.TextMatch():
            return text_match(node)
        case sql.Comparison("=" | "<>", left, right):
            return equality(left, right, wanted=node.operator == "=")
        case sql.Comparison():
            return order(node)


def constant(value: Value) -> Closure:
    return lambda properties: value


def negation(condition: Closure) -> Closure:
    def evaluate(properties: Properties) -> Value:
        value = condition(properties)
        return None if value is None else not value

    return evaluate


def chain(conditions: list[Closure], *, decided_by: bool) -> Closure:
    """Return AND (`decided_by` FALSE) or OR (TRUE) of conditions."""
    otherwise = not decided_by
    if len(conditions) == 2:
        first, second = conditions

        def evaluate_two(properties: Properties) -> Value:
            left = first(properties)
            if left is decided_by:
                return decided_by
            right = second(properties)
            if right is decided_by:
                return decided_by
            return None if left is None or right is None else otherwise

        return evaluate_two

    def evaluate(properties: Properties) -> Value:
        result: Value = otherwise
        for condition in conditions:
            value = condition(properties)
            if value is decided_by:
                return decided_by
            if value is None:
                result = None
        return result

    return evaluate


def membership(name: str, values: frozenset[str], *, negated: bool) -> Closure:
    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in values) is not negated

    return evaluate


def text_match(node: sql.TextMatch) -> Closure:
    operand, text, negated = compiled(node.operand), node.text, node.negated
    test = TESTS[node.operator]

    def evaluate(properties: Properties) -> Value:
        value = operand(properties)
        return bool(text) and isinstance(value, str) and test(value, text) is not negated

    return evaluate


def literal(node: sql.Node) -> sql.Number | None:
    """Return the number that a node stands for, with its signs; None for everything else."""
    if isinstance(node, sql.Number):
        return node
    if isinstance(node, sql.Negative):
        positive = literal(node.operand)
        if positive is not None:
            return sql.Number(-positive.value, positive.kind)
    return None


def negative(node: sql.Negative) -> Closure:
    number = literal(node)
    if number is not None:
        return constant(number.value)
    operand = compiled(node.operand)

    def evaluate(properties: Properties) -> Value:
        operand(properties)  # it may be an error
        return None

    return evaluate


def order(node: sql.Comparison) -> Closure:
    """Return `>`, `>=`, `<` or `<=`; the sides are numbers, names, or negatives of something else."""
    left, right = node.left, node.right
    below, above = literal(left), literal(right)
    if isinstance(left, sql.Property) and above is not None:
        return property_order(left.name, node.operator, above)
    if isinstance(right, sql.Property) and below is not None:
        return property_order(right.name, FLIPPED[node.operator], below)
    compare = ORDERS[node.operator]
    if below is not None and above is not None:
        return constant(compare(ranked(below.value, above.value), 0))
    first, second = compiled(left), compiled(right)

    def evaluate(properties: Properties) -> Value:
        one, other = first(properties), second(properties)
        if isinstance(one, str) and isinstance(other, str):
            return compare(ranked(to_double(one), to_double(other)), 0)
        return None

    return evaluate


def property_order(name: str, symbol: str, number: sql.Number) -> Closure:
    """Return the order of a property and a number."""
    compare, limit = ORDERS[symbol], number.value
    if number.kind is NumberKind.DOUBLE:

        def evaluate_double(properties: Properties) -> Value:
            text = properties.get(name)
            if text is None:
                return None
            value = to_double(text)
            if limit and value == value:  # else Java's order differs
                return compare(value, limit)
            return compare(ranked(value, limit), 0)

        return evaluate_double
    convert = CONVERSIONS[number.kind]

    def evaluate(properties: Properties) -> Value:
        text = properties.get(name)
        return None if text is None else compare(convert(text), limit)

    return evaluate


def equality(left: sql.Node, right: sql.Node, *, wanted: bool) -> Closure:
    """Return `=`, or `<>` where FALSE is wanted."""
    if isinstance(left, sql.Property) and isinstance(right, sql.Text):
        return property_text(left.name, right.value, None, wanted=wanted)
    if isinstance(left, sql.Text) and isinstance(right, sql.Property):
        return property_text(right.name, left.value, not wanted, wanted=wanted)
    number = literal(left) or literal(right)
    convert = CONVERSIONS[number.kind] if number else None
    first, second = compiled(left), compiled(right)

    def evaluate(properties: Properties) -> Value:
        one, other = first(properties), second(properties)
        if one is None:
            return wanted if other is None else None
        if other is None:
            return not wanted
        return same(one, other, convert) is wanted

    return evaluate


def property_text(name: str, text: str, missing: bool | None, *, wanted: bool) -> Closure:
    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return missing if value is None else (value == text) is wanted

    return evaluate


def same(one: Value, other: Value, convert: "Callable[[str], float] | None") -> bool:
    """Return whether two values that are not NULL are equal.

    Args:
        one: the left one.
        other: the right one.
        convert: reads a text as what the other side is, where that is a number.

    Raises:
        EvaluationError: a text is not what it would have to be.
    """
    if isinstance(other, bool):
        if isinstance(one, str):
            return (one.lower() == "true") is other
        return one is other
    if isinstance(one, bool):
        if isinstance(other, str):  # RocketMQ: an error, so that `TRUE = b` matches nothing
            return (other.lower() == "true") is one
        return False
    if isinstance(one, str):
        if isinstance(other, str):
            return one == other
        assert convert is not None
        one = convert(one)
    elif isinstance(other, str):
        assert convert is not None
        other = convert(other)
    assert one is not None and other is not None
    return ranked(one, other) == 0


def ranked(one: float, other: float) -> int:
    """Return 1, 0 or -1: how Java's compareTo ranks two numbers; of different types as doubles."""
    if type(one) is not type(other):
        one, other = float(one), float(other)
    if one > other:
        return 1
    if one < other:
        return -1
    if one == other:
        return 0 if one else int(copysign(1, one) - copysign(1, other)) // 2
    return (one != one) - (other != other)  # at least one is NaN


def to_int(text: str) -> int:
    """Read a text as Java's Integer.valueOf does; raise EvaluationError when it is none."""
    if text.isascii() and text.isdigit() and len(text) <= INT_DIGITS_SAFE:
        return int(text)
    return to_integer(text, 1 << 31)


def to_long(text: str) -> int:
    """Read a text as Java's Long.valueOf does; raise EvaluationError when it is none."""
    if text.isascii() and text.isdigit() and len(text) <= LONG_DIGITS_SAFE:
        return int(text)
    return to_integer(text, 1 << 63)


def to_integer(text: str, limit: int) -> int:
    """Read a text as a whole number from -limit to limit - 1.

    Java takes the digits of all scripts, and any number of zeros in front.
    """
    if INTEGER.fullmatch(text) and max(text) <= LAST_JAVA_CHAR:
        digits = "".join(str(unicodedata.decimal(char)) for char in text.lstrip("+-")).lstrip("0")
        if len(digits) <= len(str(limit)):
            value = int(digits or "0")
            value = -value if text[0] == "-" else value
            if -limit <= value < limit:
                return value
    raise EvaluationError


def to_double(text: str) -> float:
    """Read a text as Java's Double.valueOf does; raise EvaluationError when it is none."""
    if PLAIN_DECIMAL(text):
        return float(text)
    text = text.strip(BLANKS)
    found = DECIMAL.fullmatch(text)
    if found:
        return float(found[1] or text)
    found = HEXADECIMAL.fullmatch(text)
    if not found:
        raise EvaluationError
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return float("-inf" if text[0] == "-" else "inf")


CONVERSIONS: dict[NumberKind, Callable[[str], float]] = {
    NumberKind.INT: to_int,
    NumberKind.LONG: to_long,
    NumberKind.DOUBLE: to_double,
}
