"""The grammar of SQL filters: from the text of an expression to a tree (RocketMQ: SelectorParser).

    selector   := or
    or         := and { OR and }
    and        := equality { AND equality }
    equality   := comparison { ('=' | '<>') comparison | IS [NOT] NULL }
    comparison := unary { ('>' | '>=' | '<' | '<=') unary
                        | [NOT] BETWEEN unary AND unary
                        | [NOT] IN '(' string { ',' string } ')'
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary      := ('+' | '-' | NOT) unary | string | number | TRUE | FALSE | NULL | name | '(' or ')'

    name       letter, '_' or '$', then these and digits; ASCII; upper and lower case differ
    integer    0, or digits that do not begin with 0, and an optional L: an int, beyond 2^31 - 1 a long
    float      1.5  5.  .5  1e3  1.5E-3: a double
    string     'text', in which '' stands for one quote
    keywords   in upper or lower case
    between    blanks, tabs, line ends and form feeds; /* comments */; -- comments up to a line end

NOT binds tightest: `NOT a = 5` is `(NOT a) = 5`. A name that stands for a condition (as a whole, or as an
operand of AND, OR and NOT) is cast to one. RocketMQ finds faults of type while it parses, and so does this:
an order needs numbers or names on both sides, `=` takes no NULL, and so on; each stands where the node is
made.

Two things differ from RocketMQ on purpose: text behind a complete expression is an error, where RocketMQ goes
on without it (`a = 5 junk`, `b LIKE 'x'`); and `0.0` is a number, where it finds it too small.

Trees are bounded: the text's length by the caller, their height and the depth of brackets here, so that
neither the parser nor who walks a tree can run out of stack. A chain of ANDs or ORs is one level.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from whimbrel.errors import IllegalFilter

__all__ = [
    "NESTING_MAX",
    "And",
    "Cast",
    "Comparison",
    "IsNull",
    "Membership",
    "Negative",
    "Node",
    "Not",
    "Number",
    "NumberKind",
    "Or",
    "Property",
    "Text",
    "TextMatch",
    "Truth",
    "parse",
]

# What people write has a handful of levels. Five calls of the parser make a level.
NESTING_MAX = 64
INT_MAX, LONG_MAX = (1 << 31) - 1, (1 << 63) - 1
SHOWN_CHARS = 20  # of a token, in an error

GAP = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*+[\n\r]|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)*+")
TOKEN = re.compile(
    r"""
      (?P<float> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<integer> 0 | [1-9][0-9]*[lL]? )
    | (?P<string> '[^']*+(?:''[^']*+)*+' )
    | (?P<name> [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<symbol> <> | >= | <= | [=><+\-(),] )
    """,
    re.VERBOSE,
)
TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}
TEXT_OPERATORS = ("CONTAINS", "STARTSWITH", "ENDSWITH")
KEYWORDS = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "IS", *TRUTHS, *TEXT_OPERATORS))
END = "the end"


class NumberKind(Enum):
    """Java's type of a number: texts that are compared with it must be of the same one."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"


@dataclass(frozen=True, slots=True)
class OfProperty:
    """What is made of a property's name alone."""

    name: str
    height: int = 1


@dataclass(frozen=True, slots=True)
class OverOne:
    """What is made of one node."""

    operand: "Node"
    height: int


@dataclass(frozen=True, slots=True)
class OverSeveral:
    """What joins several conditions."""

    terms: "tuple[Node, ...]"
    height: int


@dataclass(frozen=True, slots=True)
class Number:
    """A number; without a sign in trees."""

    value: int | float
    kind: NumberKind
    height: int = 1


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    value: str
    height: int = 1


@dataclass(frozen=True, slots=True)
class Truth:
    """TRUE, FALSE, or NULL as None."""

    value: bool | None
    height: int = 1


@dataclass(frozen=True, slots=True)
class Property(OfProperty):
    """The value of a message's property: a text, or NULL where there is none."""


@dataclass(frozen=True, slots=True)
class Cast(OfProperty):
    """A property in the place of a condition."""


@dataclass(frozen=True, slots=True)
class Negative(OverOne):
    """The negative of a number."""


@dataclass(frozen=True, slots=True)
class Not(OverOne):
    """The contrary of a condition."""


@dataclass(frozen=True, slots=True)
class And(OverSeveral):
    """All of several conditions."""


@dataclass(frozen=True, slots=True)
class Or(OverSeveral):
    """One of several conditions."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values compared by `=`, `<>`, `>`, `>=`, `<` or `<=`."""

    operator: str
    left: "Node"
    right: "Node"
    height: int


@dataclass(frozen=True, slots=True)
class IsNull(OverOne):
    """Whether a value is NULL."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Whether a property is one of several texts."""

    name: str
    values: frozenset[str]
    negated: bool
    height: int = 1


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Whether a value holds a text, by CONTAINS, STARTSWITH or ENDSWITH."""

    operator: str
    operand: "Node"
    text: str
    negated: bool
    height: int


Condition: TypeAlias = Cast | Not | And | Or | Comparison | IsNull | Membership | TextMatch
Node: TypeAlias = Number | Text | Truth | Property | Negative | Condition


def parse(text: str) -> Node:
    """Return the tree of an expression.

    Raises:
        IllegalFilter: the text is no expression, or a deeply nested one; it says where and why.
    """
    parser = Parser(text)
    tree = parser.disjunction()
    if parser.kind != END:
        raise parser.fault("AND, OR or the end")
    return parser.condition(tree)


def nested(*operands: Node) -> int:
    """Return the height of a node over these.

    Raises:
        IllegalFilter: it is too much.
    """
    height = 1 + max(operand.height for operand in operands)
    if height > NESTING_MAX:
        raise too_deep()
    return height


def is_above(one: Number, other: Number) -> bool:
    """Return whether a number is above another one; Java makes both doubles where one of them is."""
    if one.kind is not other.kind and NumberKind.DOUBLE in (one.kind, other.kind):
        return float(one.value) > float(other.value)
    return one.value > other.value


def too_deep() -> IllegalFilter:
    return IllegalFilter(f"an SQL filter may be nested {NESTING_MAX} levels deep; this one is nested deeper")


class Parser:
    """Recursive descent with one token of look-ahead.

    Attributes:
        kind: of the token ahead: `integer`, `float`, `string` or `name`; a keyword or symbol is its own kind,
        in upper case; END is behind the last. word: its text. start, end: where it stands. depth: brackets
        and signs that are open.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.kind = self.word = ""
        self.start = self.end = 0
        self.depth = 0
        self.advance()

    def advance(self) -> str:
        """Go on to the next token; return the text of the one that was ahead."""
        word, text = self.word, self.text
        gap = GAP.match(text, self.end)
        self.start = gap.end() if gap else self.end
        if self.start == len(text):
            self.kind, self.word, self.end = END, "", self.start
            return word
        found = TOKEN.match(text, self.start)
        if found is None:
            raise IllegalFilter(
                f"the SQL filter can't be read from character {self.start + 1} on:"
                f" {text[self.start : self.start + SHOWN_CHARS]!r}"
            )
        self.word, self.end, self.kind = found.group(), found.end(), str(found.lastgroup)
        if self.kind == "symbol":
            self.kind = self.word
        elif self.kind == "name" and self.word.upper() in KEYWORDS:
            self.kind = self.word.upper()
        return word

    def fault(self, expected: str) -> IllegalFilter:
        """Return the error for a token that can't stand where it does."""
        found = repr(self.word[:SHOWN_CHARS]) if self.word else self.kind
        return IllegalFilter(
            f"the SQL filter has {found} at character {self.start + 1}, where {expected} should be"
        )

    def wrong_type(self, why: str) -> IllegalFilter:
        """Return the error for operands that do not go together; the token ahead is behind them."""
        return IllegalFilter(f"{why}, in the SQL filter before character {self.start + 1}")

    def take(self, kind: str) -> str:
        """Go past a token of this kind; return its text."""
        if self.kind != kind:
            raise self.fault(f"a {kind}" if kind in ("string", "name") else repr(kind))
        return self.advance()

    def met(self, kind: str) -> bool:
        """Go past a token of this kind if it is ahead; return whether it was."""
        if self.kind != kind:
            return False
        self.advance()
        return True

    def disjunction(self) -> Node:
        """Parse `or`."""
        return self.chain("OR", self.conjunction, Or)

    def conjunction(self) -> Node:
        """Parse `and`."""
        return self.chain("AND", self.equality, And)

    def chain(
        self, keyword: str, operand: Callable[[], Node], joined: Callable[[tuple[Node, ...], int], Node]
    ) -> Node:
        """Parse operands with a keyword between them; one alone stays as it is."""
        first = operand()
        if self.kind != keyword:
            return first
        terms = [self.condition(first)]
        while self.met(keyword):
            terms.append(self.condition(operand()))
        return joined(tuple(terms), nested(*terms))

    def condition(self, node: Node) -> Node:
        """Return a node as one that is TRUE, FALSE or NULL."""
        if isinstance(node, Property):
            return Cast(node.name)
        if isinstance(node, Truth | Condition):
            return node
        raise self.wrong_type("a number or a string stands for a condition")

    def equality(self) -> Node:
        """Parse `equality`."""
        left = self.comparison()
        while True:
            if self.kind in ("=", "<>"):
                operator = self.advance()
                right = self.comparison()
                self.check_equality(left, right)
                left = Comparison(operator, left, right, nested(left, right))
            elif self.met("IS"):
                negated = self.met("NOT")
                self.take("NULL")
                left = IsNull(left, nested(left))
                if negated:
                    left = Not(left, nested(left))
            else:
                return left

    def check_equality(self, left: Node, right: Node) -> None:
        if isinstance(left, Truth):
            if left.value is None:
                raise self.wrong_type("NULL is compared: write IS NULL")
            if isinstance(right, (Number, Text)):
                raise self.wrong_type("TRUE or FALSE is compared with a number or a string")
        if isinstance(right, Truth) and right.value is None:
            raise self.wrong_type("NULL is compared: write IS NULL")

    def comparison(self) -> Node:
        """Parse `comparison`."""
        left = self.unary()
        while True:
            if self.kind in (">", ">=", "<", "<="):
                operator = self.advance()
                left = self.ordered(operator, left, self.unary())
                continue
            negated = self.met("NOT")
            if self.met("BETWEEN"):
                left = self.between(left, negated=negated)
            elif self.met("IN"):
                left = self.membership(left, negated=negated)
            elif self.kind in TEXT_OPERATORS:
                operator = self.kind
                self.advance()
                left = TextMatch(operator, left, self.string(), negated, nested(left))
            elif negated:
                raise self.fault("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH")
            else:
                return left

    def ordered(self, operator: str, left: Node, right: Node) -> Node:
        """Return an order of two values that have one."""
        for operand in (left, right):
            if isinstance(operand, Text | Truth | Condition):
                raise self.wrong_type("an order is asked of something else than numbers and properties")
        return Comparison(operator, left, right, nested(left, right))

    def between(self, value: Node, *, negated: bool) -> Node:
        """Parse what follows BETWEEN."""
        low = self.unary()
        self.take("AND")
        high = self.unary()
        if negated:
            outside = (self.ordered("<", value, low), self.ordered(">", value, high))
            return Or(outside, nested(*outside))
        inside = (self.ordered(">=", value, low), self.ordered("<=", value, high))
        if isinstance(low, Number) and isinstance(high, Number) and is_above(low, high):
            raise self.wrong_type("the lower bound of BETWEEN is above the upper one")
        return And(inside, nested(*inside))

    def membership(self, value: Node, *, negated: bool) -> Node:
        """Parse what follows IN."""
        if not isinstance(value, Property):
            raise self.wrong_type("IN stands behind something else than the name of a property")
        self.take("(")
        values = {self.string()}
        while self.met(","):
            values.add(self.string())
        self.take(")")
        return Membership(value.name, frozenset(values), negated)

    def string(self) -> str:
        """Take a string; return what it says."""
        return self.take("string")[1:-1].replace("''", "'")

    def unary(self) -> Node:
        """Parse `unary`."""
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise too_deep()
        found = self.operand()
        self.depth -= 1
        return found

    def operand(self) -> Node:
        """Parse one operand, with its signs."""
        kind = self.kind
        if kind == "name":
            return Property(self.advance())
        if kind == "string":
            return Text(self.string())
        if kind == "integer":
            return self.integer(self.advance())
        if kind == "float":
            return self.double(self.advance())
        if kind in TRUTHS:
            self.advance()
            return Truth(TRUTHS[kind])
        if self.met("("):
            found = self.disjunction()
            self.take(")")
            return found
        if self.met("+"):
            return self.unary()
        if self.met("-"):
            found = self.unary()
            return Negative(found, nested(found))
        if self.met("NOT"):
            found = self.condition(self.unary())
            return Not(found, nested(found))
        raise self.fault("a property, a value or '('")

    def integer(self, word: str) -> Number:
        """Return an integer; its type is by its size, whether an L follows or not."""
        digits = word.rstrip("lL")
        if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
            raise self.wrong_type(f"an integer is above {LONG_MAX}")
        value = int(digits)
        return Number(value, NumberKind.INT if value <= INT_MAX else NumberKind.LONG)

    def double(self, word: str) -> Number:
        """Return a floating point number."""
        value = float(word)
        mantissa = word.lower().partition("e")[0]
        if value == float("inf") or (value == 0 and mantissa.strip("0.")):
            raise self.wrong_type("a number is too large or too small for a double")
        return Number(value, NumberKind.DOUBLE)
