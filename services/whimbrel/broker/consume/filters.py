"""Tag filters: which messages of a topic a consumer wants.

    filter := '*' | '' | tag { '||' tag }

Tags are trimmed and compared exactly; a message without a tag matches only `*`. The consume queue holds a
hash of each message's tag (Java's `String.hashCode`, widened to 64 bits with its sign): `admits_code`
decides by its low 32 bits before the record is read, `admits` by the text after that, since two tags may
share a hash.

SQL filters are refused with NotSupported: they come with a parser of their own.
"""

from functools import lru_cache
from typing import Literal

from whimbrel.errors import IllegalFilter, NotSupported
from whimbrel.store.codec import java_hash

__all__ = ["ALL", "FILTER_CHARS_MAX", "TagFilter", "compile_filter"]

# A filter is read for every poll, so its length is bounded; RocketMQ has no bound of its own.
FILTER_CHARS_MAX = 16 * 1024


class TagFilter:
    """A parsed tag expression; `tags` is None for a filter that admits everything."""

    __slots__ = ("codes", "expression", "tags")

    def __init__(self, expression: str, tags: frozenset[str] | None) -> None:
        self.expression = expression
        self.tags = tags
        self.codes = frozenset(java_hash(tag) & 0xFFFFFFFF for tag in tags or ())

    def admits_code(self, code: int) -> bool:
        """Tell whether a message with this tags code may match."""
        return self.tags is None or code & 0xFFFFFFFF in self.codes

    def admits(self, tag: str | None) -> bool:
        """Tell whether a message with this tag matches."""
        return self.tags is None or tag in self.tags

    def __repr__(self) -> str:
        return f"TagFilter({self.expression!r})"


ALL = TagFilter("*", None)


def compile_filter(kind: Literal["tag", "sql"], expression: str) -> TagFilter:
    """Parse a filter expression.

    Raises:
        IllegalFilter: the expression holds no tag, or one that no message can have.
        NotSupported: an SQL filter.
    """
    if kind == "sql":
        raise NotSupported("SQL filters are not supported yet; use a tag expression")
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
