"""Signatures of requests, as RocketMQ 4's clients and tools make them (ACL 1.0, `AclClientRPCHook`). Pure.

    fields     AccessKey, Signature, and SecurityToken where there is one; librocketmq adds OnsChannel
    content    the values of all ext fields but Signature, ordered by the fields' names, then the body
    Signature  Base64(HMAC-SHA1(secret, content))

Names are ordered by their characters, capitals first. 4.9.3 and older leave `_UNIQUE_KEY_QUERY` out: they
sign the fields of the header's class alone. librocketmq always signs, by default with an empty key.

There is no time and no number in a content: who has seen a signed request can send it again. TLS keeps
others from seeing it.

**What a signature is good for here.** Nothing needs one. A request that one of the *accounts* has signed may
change the server's state from wherever it comes (`admin_access.py`); one that names an account and is not
signed by its secret is refused, whatever it asks. A key that is no account's says nothing.

RocketMQ: AclUtils, AclSigner, PlainAccessResource.parse; checked on recordings of Java 4.9.3, 5.3.3 and C++.
"""

import base64
import hmac
from collections.abc import Mapping
from hashlib import sha1
from typing import Final

from whimbrel.errors import BadRequest
from whimbrel.rpc.remoting.command import Command

__all__ = ["ACCOUNTS_MAX", "NO_ACCOUNTS", "Accounts", "parse_accounts", "signature_of", "signed_by"]

ACCESS_KEY, SIGNATURE, UNIQUE_KEY_QUERY = "AccessKey", "Signature", "_UNIQUE_KEY_QUERY"
VERSION_UNSIGNED = 399  # V4_9_3: it and older ones sign fewer fields
ACCOUNTS_MAX = 10_000
SECRET_CHARS_MIN = 6  # RocketMQ asks for more

Accounts = Mapping[str, bytes]  # secrets by access key
NO_ACCOUNTS: Final[Accounts] = {}


def parse_accounts(text: str) -> Accounts:
    """Return the accounts of a file: on each line an access key and its secret; `#` begins a remark.

    Raises:
        ValueError: a line is none of these, or a key is there twice.
    """
    found: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or len(words[1]) < SECRET_CHARS_MIN:
            raise ValueError(
                f"line {number} is not an access key and a secret of {SECRET_CHARS_MIN} characters or more"
            )
        key, secret = words
        if key in found or len(found) >= ACCOUNTS_MAX:
            raise ValueError(f"line {number} names {key} again, or is one of more than {ACCOUNTS_MAX}")
        found[key] = secret.encode()
    return found


def content_of(request: Command) -> bytes:
    """Return what a request's signature is about."""
    left_out = {SIGNATURE}
    if request.version <= VERSION_UNSIGNED:
        left_out.add(UNIQUE_KEY_QUERY)
    values = [value for name, value in sorted(request.fields.items()) if name not in left_out]
    return "".join(values).encode("utf-8", "replace") + request.body


def signature_of(request: Command, secret: bytes) -> str:
    """Return the signature of a request by a secret."""
    return base64.b64encode(hmac.digest(secret, content_of(request), sha1)).decode()


def signed_by(request: Command, accounts: Accounts) -> str:
    """Return the account that has signed a request; "" for none.

    Raises:
        BadRequest: it names an account, and is not signed by its secret.
    """
    key = request.fields.get(ACCESS_KEY, "")
    secret = accounts.get(key)
    if secret is None:
        return ""
    given = request.fields.get(SIGNATURE, "")
    if not hmac.compare_digest(signature_of(request, secret).encode(), given.encode("utf-8", "replace")):
        raise BadRequest(f"request {request.code} is not signed by the secret of access key {key}")
    return key
