"""Signatures of requests. The examples are recordings of real clients (the gateway's section 5.3)."""

from dataclasses import replace
from typing import Any

import pytest

from support.remoting.handlers import FakePeer
from whimbrel.errors import BadRequest, Forbidden
from whimbrel.rpc.remoting.admin_access import guarded
from whimbrel.rpc.remoting.command import Command
from whimbrel.rpc.remoting.handlers import Reply
from whimbrel.rpc.remoting.signatures import (
    content_of,
    parse_accounts,
    signature_of,
    signed_by,
)

ACCOUNTS = parse_accounts("RocketMQ 12345678\n\n# a remark\nother secret7 # another\n")
ROUTE = Command(105, 1, {"topic": "T_p_acly", "AccessKey": "RocketMQ"})
SIGNATURE = "v63LR07O07L9ekWbkDMj/i3vld8="


def signed(request: Command, signature: str = SIGNATURE) -> Command:
    return replace(request, fields={**request.fields, "Signature": signature})


def test_6_1_56_a_recorded_signature_passes_and_one_byte_off_does_not() -> None:
    assert content_of(ROUTE) == b"RocketMQT_p_acly"
    assert signature_of(ROUTE, b"12345678") == SIGNATURE
    assert signed_by(signed(ROUTE), ACCOUNTS) == "RocketMQ"
    for wrong in (SIGNATURE[:-2] + "9=", "", "ü"):
        with pytest.raises(BadRequest, match="RocketMQ"):
            signed_by(signed(ROUTE, wrong), ACCOUNTS)
    with pytest.raises(BadRequest):
        signed_by(signed(replace(ROUTE, body=b"x")), ACCOUNTS)


def test_6_1_56_fields_are_ordered_with_capitals_first_and_the_body_comes_last() -> None:
    fields = {"b": "2", "a": "1", "AccessKey": "K", "SecurityToken": "S", "Signature": "-", "OnsChannel": "O"}
    request = Command(310, 1, fields, b"body", version=479)
    assert content_of(request) == b"KOS12body"


def test_6_1_56_old_clients_do_not_sign_the_field_of_unique_keys() -> None:
    fields = {"_UNIQUE_KEY_QUERY": "true", "key": "k"}
    assert content_of(Command(12, 1, fields, version=399)) == b"k"
    assert content_of(Command(12, 1, fields, version=479)) == b"truek"


@pytest.mark.parametrize("fields", [{}, {"AccessKey": "", "Signature": "x"}, {"AccessKey": "unknown"}])
def test_6_1_56_keys_of_nobody_say_nothing(fields: dict[str, str]) -> None:
    assert signed_by(Command(34, 1, fields), ACCOUNTS) == ""
    assert signed_by(signed(ROUTE, "wrong"), {}) == ""


def test_who_has_signed_may_change_something_from_anywhere() -> None:
    done: list[int] = []

    def handle(peer: Any, request: Command) -> Reply:
        done.append(request.code)
        return Reply()

    far, handles = FakePeer("10.0.0.9:5000"), {105: handle, 17: handle}
    change = replace(ROUTE, code=17)
    good = signed(change, signature_of(change, b"12345678"))
    for access in ("loopback", "any", "none"):
        guards = guarded(handles, {17}, access, ACCOUNTS)
        guards[105](far, signed(ROUTE))
        if access == "none":
            with pytest.raises(Forbidden):
                guards[17](far, good)
        else:
            guards[17](far, good)
        for code in (105, 17):
            with pytest.raises(BadRequest):
                guards[code](far, signed(replace(ROUTE, code=code), "wrong"))
    with pytest.raises(Forbidden, match="remoting_accounts"):
        guarded(handles, {17}, "loopback", ACCOUNTS)[17](far, Command(17, 1))
    assert done == [105, 17, 105, 17, 105]


@pytest.mark.parametrize("text", ["alone", "a b c", "key short", "a secret7\na secret8"])
def test_lines_that_are_no_accounts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line "):
        parse_accounts(text)
