"""Texts that UTF-8 can't hold: whatever makes a call refuses them in a sentence."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

import whimbrel.rpc.api
from whimbrel.errors import BadRequest
from whimbrel.rpc.api import admin_calls, calls
from whimbrel.rpc.api.calls import Outbound, of_text

BYTES = b"\xff".decode(errors="surrogateescape")


def makers() -> dict[str, Callable[..., Any]]:
    """Return all functions that make a call, by name."""
    modules = [
        import_module(f"{whimbrel.rpc.api.__name__}.{found.name}")
        for found in iter_modules(whimbrel.rpc.api.__path__)
    ]
    return {
        f"{module.__name__}.{name}": function
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and str(function.__annotations__.get("return")).startswith("whimbrel.rpc.api.calls.Outbound[")
    }


def test_every_function_that_makes_a_call_refuses_what_is_no_text() -> None:
    wrapped = of_text(lambda: Outbound("", b"", lambda *_: None)).__code__
    found = makers()
    assert len(found) > 40
    assert [name for name, function in found.items() if function.__code__ is not wrapped] == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: admin_calls.delete_group(BYTES),
        lambda: admin_calls.describe_topic(BYTES, "broker-a"),
        lambda: calls.query_route(BYTES, (), ""),
        lambda: calls.recall_message("orders", BYTES, ""),
    ],
)
def test_the_refusal_names_the_text(make: Callable[[], object]) -> None:
    with pytest.raises(
        BadRequest, match=r"'\\udcff' is not UTF-8: names, keys, tags and properties are text"
    ):
        make()
