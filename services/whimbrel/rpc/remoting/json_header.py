"""Headers as JSON, which Java, Go and C++ write by default, and which all of our own commands have.

    {"code":310,"extFields":{"a":"pg","b":"T"},"flag":0,"language":"JAVA","opaque":12,"remark":"...",
     "serializeTypeCurrentRPC":"JSON","version":399}

Written as fastjson 1.2.76 does: keys in this order, nothing between them, absent ones left out. Read as
strict JSON, in any order, unknown keys ignored: clients that exist send nothing else (fastjson itself would
take single quotes and comments). Ext fields may be numbers and booleans (librocketmq); a null is left out.
White space may follow (librocketmq ends headers and bodies with a line feed).
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from whimbrel.rpc.remoting.command import INT_MAX, INT_MIN, LANGUAGES, NO_FIELDS, VERSION, Command
from whimbrel.rpc.remoting.errors import FieldsError, HeaderError

__all__ = ["FIELDS_MAX", "decode_json", "encode_json", "encode_response", "json_text"]

FIELDS_MAX: Final = 64
WHITE_SPACE = " \t\n\r"
REMARK = ',"remark":'
END_OF_OURS = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'

read: Final = json.JSONDecoder().raw_decode
quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
# What fastjson escapes, and the standard library does not; both escape what is below U+0020.
ESCAPED_BY_FASTJSON = re.compile("[\x7f-\x9f\u2028\u2029]|\\\\u00[01][0-9a-f]")


def json_text(text: str) -> str:
    """Return a text in quotes, as fastjson writes it."""
    return ESCAPED_BY_FASTJSON.sub(escaped, quoted(text))


def escaped(found: re.Match[str]) -> str:
    """Return an escape; fastjson's have capital letters."""
    text = found[0]
    return f"\\u{ord(text):04X}" if len(text) == 1 else text[:2] + text[2:].upper()


@lru_cache(maxsize=256)
def name_text(name: str) -> str:
    """Return the name of a field in quotes, with its colon; few differ."""
    return json_text(name) + ":"


def fields_text(fields: Mapping[str, str]) -> str:
    """Return ext fields as a member of the header, with a comma before it; "" for `NO_FIELDS`."""
    if fields is NO_FIELDS:
        return ""
    values = tuple(fields.values())
    together = "".join(values)
    if together.isalnum() and together.isascii():  # numbers and ids, of which nothing is to be escaped
        return template(tuple(fields)) % values
    pairs = [name_text(name) + json_text(value) for name, value in fields.items()]
    return f',"extFields":{{{",".join(pairs)}}}'


@lru_cache(maxsize=256)
def template(names: tuple[str, ...]) -> str:
    """Return the text of fields with these names, for their values; few differ."""
    pairs = [name_text(name).replace("%", "%%") + '"%s"' for name in names]
    return f',"extFields":{{{",".join(pairs)}}}'


def encode_json(command: Command) -> bytes:
    """Return the header of a command."""
    language = f',"language":{json_text(command.language)}' if command.language else ""
    remark = "" if command.remark is None else f',"remark":{json_text(command.remark)}'
    text = (
        f'{{"code":{command.code}{fields_text(command.fields)},"flag":{command.flag}{language}'
        f',"opaque":{command.opaque}{remark},"serializeTypeCurrentRPC":"JSON","version":{command.version}}}'
    )
    return text.encode("utf-8", "replace")  # half a surrogate pair is a question mark in Java as well


def encode_response(code: int, opaque: int, fields: Mapping[str, str], remark: str | None) -> bytes:
    """Return the header of a response of ours, as `encode_json` does: it is made for each request."""
    text = (
        f'{{"code":{code:d}{fields_text(fields)},"flag":1,"language":"JAVA","opaque":{opaque}'
        f"{'' if remark is None else REMARK + json_text(remark)}{END_OF_OURS}"
    )
    return text.encode("utf-8", "replace")


def decode_json(header: bytes, body: bytes) -> Command:
    """Return a command.

    Raises:
        HeaderError: it is no JSON object, or has no code, opaque number or flag.
        FieldsError: its ext fields are no object, or too many.
    """
    text = header.decode("utf-8", "replace")
    try:
        found, end = read(text)
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"the header is no JSON: {error}") from error
    if type(found) is not dict or (end < len(text) and text[end:].strip(WHITE_SPACE)):
        raise HeaderError("the header is no JSON object, or something follows it")
    get = found.get
    fields, remark, language = get("extFields"), get("remark"), get("language")
    code, opaque, flag, version = get("code"), get("opaque"), get("flag", 0), get("version", 0)
    if not (
        type(code) is type(opaque) is type(flag) is type(version) is int
        and INT_MIN <= code <= INT_MAX
        and INT_MIN <= opaque <= INT_MAX
        and INT_MIN <= flag <= INT_MAX
        and INT_MIN <= version <= INT_MAX
    ):
        raise HeaderError("code, opaque, flag or version of the header is no number of 32 bits")
    if fields is None:
        fields = NO_FIELDS
    else:
        try:
            "".join(fields.values())
            few = len(fields) <= FIELDS_MAX
        except (AttributeError, TypeError):
            few = False
        if not few:
            fields = texts(fields)
    return Command(
        code,
        opaque,
        fields,
        body,
        flag,
        language if language == "JAVA" else language_of(language),
        version,
        None if remark is None else str(remark),
    )


def language_of(found: Any) -> str:
    """Return a language, which is a name, or its number."""
    if type(found) is int:
        return LANGUAGES[found] if 0 <= found < len(LANGUAGES) else ""
    return found if found in LANGUAGES else ""


def texts(fields: Any) -> dict[str, str]:
    """Return ext fields of which some are no texts.

    Raises:
        FieldsError: they are no object, or too many.
    """
    if type(fields) is not dict:
        raise FieldsError("the ext fields of the header are no JSON object")
    if len(fields) > FIELDS_MAX:
        raise FieldsError(f"the header has {len(fields)} ext fields; {FIELDS_MAX} are the most")
    return {name: text_of(each) for name, each in fields.items() if each is not None}


def text_of(value: Any) -> str:
    """Return a value as text; that of lists and objects, in which nobody sends any, is their JSON."""
    return value if type(value) is str else json.dumps(value, separators=(",", ":"))
