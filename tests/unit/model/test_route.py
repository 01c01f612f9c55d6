"""Endpoints as people write them."""

import pytest

from whimbrel.model.route import Endpoint, parse_endpoints


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:8081", Endpoint("127.0.0.1", 8081)),
        (" localhost:1 ", Endpoint("localhost", 1)),
        ("[::1]:65535", Endpoint("::1", 65535)),
    ],
)
def test_an_endpoint_is_host_and_port(text: str, endpoint: Endpoint) -> None:
    assert Endpoint.parse(text) == endpoint
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":80", "host:0", "host:65536", "host:x", "::1:80", "http://host:80", "a b:1"],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port|brackets"):
        Endpoint.parse(text)


def test_a_list_may_be_separated_by_semicolons_or_commas() -> None:
    assert parse_endpoints("a:1;b:2,a:1;") == (Endpoint("a", 1), Endpoint("b", 2))


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        parse_endpoints(" ; ")
