"""Message filters: which messages of a topic a consumer wants.

A filter decides twice: `admits_code` by the consume queue's entry, before the record is read, and `admits` by
the record's properties and tags. A tag filter is

    filter := '*' | '' | tag { '||' tag }

Tags are trimmed and compared exactly; a message without a tag matches only `*`. The consume queue holds a
hash of each message's tag (Java's `String.hashCode`, widened to 64 bits with its sign). Its low 32 bits
select the entry; the text decides after that, since two tags may share a hash.

SQL filters are in `sql_filter.py`: the properties alone decide.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, overload

from whimbrel.broker.consume.sql_filter import SqlFilter, compile_sql
from whimbrel.errors import IllegalFilter
from whimbrel.store.codec import java_hash
from whimbrel.store.scan import Filter

__all__ = ["ALL", "FILTER_CHARS_MAX", "TagFilter", "compile_filter"]

# A filter is read for every poll, so its length is bounded; RocketMQ has no bound of its own.
FILTER_CHARS_MAX = 16 * 1024


class TagFilter:
    """A parsed tag expression.

    Attributes:
        tags: the wanted tags, and codes: the low 32 bits of their hashes; both None when all messages match.
        codes_and_texts: both of them as lists, for the lane; empty when all messages match.
    """

    __slots__ = ("admits_all", "codes", "codes_and_texts", "expression", "tags")

    weight = 1

    def __init__(self, expression: str, tags: frozenset[str] | None) -> None:
        self.expression = expression
        self.tags = tags
        self.codes = None if tags is None else frozenset(java_hash(tag) & 0xFFFFFFFF for tag in tags)
        self.codes_and_texts = sorted(self.codes or ()), sorted(tag.encode() for tag in tags or ())
        self.admits_all = tags is None

    def admits_code(self, code: int) -> bool:
        """Return whether a message with this tags code may match."""
        return self.codes is None or code & 0xFFFFFFFF in self.codes

    def admits(self, properties: Mapping[str, str], tags: str | None) -> bool:
        """Return whether a message with this tag matches; its other properties do not matter."""
        return self.tags is None or tags in self.tags

    def __repr__(self) -> str:
        return f"TagFilter({self.expression!r})"


ALL = TagFilter("*", None)


@overload
def compile_filter(kind: Literal["tag"], expression: str) -> TagFilter: ...
@overload
def compile_filter(kind: Literal["sql"], expression: str) -> SqlFilter: ...
def compile_filter(kind: Literal["tag", "sql"], expression: str) -> Filter:
    """Parse a filter expression.

    Raises:
        IllegalFilter: the expression holds no tag, or one that no message can have, or it is no SQL.
    """
    if kind == "sql":
        return compile_sql(expression)
    if expression in ("*", ""):
        return ALL
    return compile_tags(expression)


@lru_cache(maxsize=256)
def compile_tags(expression: str) -> TagFilter:
    if len(expression) > FILTER_CHARS_MAX:
        raise IllegalFilter(
            f"a filter expression may have {FILTER_CHARS_MAX} characters, not {len(expression)}"
        )
    if expression.strip() in ("*", ""):
        return ALL
    # RocketMQ drops empty parts too ("a||" is "a"), and refuses an expression with nothing but separators.
    tags = frozenset(part.strip() for part in expression.split("||")) - {""}
    if not tags:
        raise IllegalFilter("the filter expression holds no tag")
    for tag in tags:
        if "|" in tag or not tag.isprintable():
            raise IllegalFilter(f"no message can have the tag {tag!r}; tags are joined by '||'")
    return TagFilter(expression, tags)
