"""Header blocks of requests, with another implementation's decoder as the oracle, and ours."""

from typing import Any

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whimbrel.rpc.http2.encoder import VALUES_KEPT, HeaderEncoder
from whimbrel.rpc.http2.hpack import HeaderDecoder, value_of

HEAD = ((":authority", "127.0.0.1:8081"), ("te", "trailers"), ("content-type", "application/grpc"))


class Peer:
    """Decodes with both."""

    def __init__(self) -> None:
        self.theirs, self.ours = hpack.Decoder(), HeaderDecoder(list_bytes_max=1 << 16)

    def fields(self, block: bytes) -> list[tuple[str, str]]:
        found = [(str(name), str(value)) for name, value in self.theirs.decode(block)]
        ours = [(field[0].decode(), value_of(field).decode()) for field in self.ours.decode(block)]
        assert found == ours
        return found


def expected(path: str, more: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(":method", "POST"), (":scheme", "http"), (":path", path), *HEAD, *more]


NAMES = st.sampled_from(["x-id", "x-date", "authorization", "grpc-timeout", "a", "long" * 30])
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200)
REQUEST = st.tuples(
    st.integers(0, 40), st.lists(st.tuples(NAMES, VALUES | st.sampled_from(["1", "2"])), max_size=6)
)


@given(st.lists(REQUEST | st.sampled_from([0, 100, 4096]), max_size=40))
def test_what_is_encoded_is_decoded_whatever_came_before(steps: list[Any]) -> None:
    encoder, peer = HeaderEncoder(), Peer()
    for step in steps:
        if isinstance(step, int):
            encoder.restart(step)
        else:
            number, more = step
            path = f"/package.Service/Method{number}"
            assert peer.fields(encoder.request(path, HEAD, more)) == expected(path, more)


def test_what_repeats_is_a_byte_and_what_differs_is_named_by_its_number() -> None:
    encoder, peer = HeaderEncoder(), Peer()
    sizes = []
    for number in range(100):
        more = [("x-client", "the same all the time"), ("x-request-id", f"{number:036}")]
        block = encoder.request("/a.B/C", HEAD, more)
        assert peer.fields(block) == expected("/a.B/C", more)
        sizes.append(len(block))
    assert sizes[0] > 100
    assert set(sizes[VALUES_KEPT:]) == {2 + len(HEAD) + 1 + 1 + 2 + 1 + 36}
    assert peer.ours.size == 4096 - encoder.room


@pytest.mark.parametrize("bad", [("Name", "x"), ("na me", "x"), ("", "x"), ("name", "\n"), ("name", "ü")])
def test_a_field_that_cant_be_sent_leaves_the_peers_table_as_it_was(bad: tuple[str, str]) -> None:
    encoder, peer = HeaderEncoder(), Peer()
    for _ in range(3):
        with pytest.raises(ValueError, match=r"name|ASCII"):
            encoder.request("/a.B/C", HEAD, [("fresh", "1"), bad])
        more = [("fresh", "1"), ("other", "2")]
        assert peer.fields(encoder.request("/a.B/C", HEAD, more)) == expected("/a.B/C", more)


def test_bytes_are_sent_as_base64_in_names_for_it() -> None:
    assert Peer().fields(HeaderEncoder().request("/a.B/C", (), [("x-bin", b"\x00\x01"), ("y", b"plain")]))[
        3:
    ] == [
        ("x-bin", "AAE"),
        ("y", "plain"),
    ]
