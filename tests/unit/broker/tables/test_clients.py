"""Which clients count as alive."""

import pytest

from whimbrel.broker.tables.clients import CLIENTS_MAX, LOST_S, SILENT_S, Clients

HEADERS = {"x-mq-language": "PYTHON", "x-mq-client-version": "5.1.2"}


def test_any_call_makes_a_client_known() -> None:
    clients = Clients()
    client = clients.seen("c", HEADERS, 1.0)
    assert (client.language, client.version, clients.alive("c")) == ("PYTHON", "5.1.2", True)
    assert clients.seen("c", {}, 2.0, client_type=2, group="g") is client
    assert clients.seen("c", {}, 3.0).group == "g"
    assert clients.of_group("g") == [client] and clients.of_group("") == []


def test_silent_client_is_gone() -> None:
    clients = Clients()
    clients.seen("c", {}, 0.0)
    assert clients.expire(SILENT_S) == []
    assert [client.client_id for client in clients.expire(SILENT_S + 1)] == ["c"]
    assert not clients.alive("c")


def test_client_with_an_open_stream_stays() -> None:
    clients = Clients()
    clients.stream_opened(clients.seen("c", {}, 0.0))
    assert clients.expire(10_000.0) == []


def test_client_that_lost_its_stream_goes_sooner_but_a_call_keeps_it() -> None:
    clients = Clients()
    client = clients.seen("c", {}, 0.0)
    clients.stream_opened(client)
    clients.stream_closed(client, 100.0)
    clients.seen("c", {}, 120.0)
    assert clients.expire(100.0 + LOST_S + 1) == []
    assert clients.expire(120.0 + LOST_S + 1) == [client]


def test_second_stream_keeps_the_client() -> None:
    clients = Clients()
    client = clients.seen("c", {}, 0.0)
    clients.stream_opened(client)
    clients.stream_opened(client)
    clients.stream_closed(client, 1.0)
    assert clients.expire(10_000.0) == []


def test_number_of_clients_is_bounded() -> None:
    clients = Clients()
    for number in range(CLIENTS_MAX + 1):
        clients.seen(str(number), {}, 0.0)
    assert len(clients) == CLIENTS_MAX and not clients.alive("0")


def test_clients_with_a_stream_stay_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 100
    monkeypatch.setattr("whimbrel.broker.tables.clients.CLIENTS_MAX", most)
    clients = Clients()
    streaming = clients.seen("streaming", {}, 0.0)
    clients.stream_opened(streaming)
    for number in range(most):
        clients.seen(str(number), {}, 1.0)
    assert (len(clients), clients.alive("streaming"), clients.alive("0")) == (most, True, False)
    clients.stream_closed(streaming, 2.0)
    for number in range(most):
        clients.seen(f"n{number}", {}, 3.0)
    assert not clients.alive("streaming")
    assert len(clients.streamless) == len(clients) == most


def test_where_all_have_a_stream_a_new_client_is_served_and_not_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("whimbrel.broker.tables.clients.CLIENTS_MAX", 1)
    clients = Clients()
    clients.stream_opened(clients.seen("one", {}, 0.0))
    two = clients.seen("two", {}, 1.0)
    clients.stream_opened(two)
    clients.stream_closed(two, 2.0)
    assert (two.client_id, clients.alive("two"), clients.streamless) == ("two", False, {})


def test_what_a_client_says_of_itself_is_short_and_printable() -> None:
    client = Clients().seen("c", {"x-mq-language": "a\x1b[2J", "x-mq-client-version": "9" * 5000}, 0.0)
    assert (client.language, len(client.version)) == ("", 64)
