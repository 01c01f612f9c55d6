"""Endpoints as people write them."""

import pytest

from whimbrel.model.route import Endpoint, check_host, parse_endpoints


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
    [
        "",
        "host",
        "host:",
        ":80",
        "host:0",
        "host:65536",
        "host:x",
        "host:-1",
        "::1:80",
        "http://host:80",
        "a b:1",
        "0.0.0.0:²",
        "host:٣",
        "host:+1",
        "host:1_0",
        "a\x1b[2J:1",
        "a\nb:1",
        "a\u2028b:1",
        "a\u00a0b:1",
        "host:" + "0" * 5000 + "1",
        "h" * 300 + ":1",
    ],
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port|brackets") as refused:
        Endpoint.parse(text)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("host", ["", "broker-a", "10.0.0.1", "::1", "[::1]", "a_b.example"])
def test_a_host_is_a_name_or_an_address(host: str) -> None:
    check_host("host", host)


@pytest.mark.parametrize("host", ["a:1", "http://a", "a b", "a\nb", "a\x1b", "a\x9b", "h" * 256])
def test_what_is_no_host_is_refused_with_the_name_of_its_field(host: str) -> None:
    with pytest.raises(ValueError, match=r"^host_name: ") as refused:
        check_host("host_name", host)
    assert str(refused.value).isprintable()


def test_a_list_may_be_separated_by_semicolons_or_commas() -> None:
    assert parse_endpoints("a:1;b:2,a:1;") == (Endpoint("a", 1), Endpoint("b", 2))


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        parse_endpoints(" ; ")
