"""The setting `coordinator`, and those that go with it."""

import re
from typing import Any

import pytest

from whimbrel.broker.options import BrokerOptions
from whimbrel.model.coordinators import CoordinatorSetting, parse_coordinator


def options(**settings: Any) -> BrokerOptions:
    fields: dict[str, Any] = {"store": "/s", "role": "elected", "id": 1, "replication": "majority"}
    return BrokerOptions(**(fields | {"voters": ("1", "2", "3"), "coordinator": "etcd:a:1"} | settings))


@pytest.mark.parametrize(
    ("text", "kind", "addresses"),
    [
        ("none", "none", ()),
        ("nameserver", "nameserver", ()),
        ("nameserver:n:81", "nameserver", ("n:81",)),
        ("etcd:a:2379", "etcd", ("a:2379",)),
        ("etcd:a:2379, b:2379,[::1]:2379", "etcd", ("a:2379", "b:2379", "[::1]:2379")),
    ],
)
def test_the_setting_is_taken_apart(text: str, kind: str, addresses: tuple[str, ...]) -> None:
    assert parse_coordinator(text) == CoordinatorSetting(kind, addresses)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "zookeeper:a:1",
            "is none: none, nameserver, nameserver:HOST:PORT, etcd:HOST:PORT,HOST:PORT,... or kub",
        ),
        ("none:a:1", "is none"),
        ("", "is none"),
        ("nameserver:", "is not of the form HOST:PORT"),
        ("kubernetes", "'' is no namespace of Kubernetes: kubernetes:NAMESPACE"),
        ("kubernetes:A_b", "'A_b' is no namespace of Kubernetes"),
        ("etcd", "names no member of etcd: etcd:HOST:PORT"),
        ("etcd:,", "names no member of etcd"),
        ("etcd:a", "'a' is not of the form HOST:PORT"),
        ("etcd:a:99999", "the port must be a number from 1 to 65535"),
        ("etcd:https://a:2379", "is a URL: write HOST:PORT; for TLS set coordinator_ca"),
        ("etcd:a:1,a:1", "named twice"),
        ("etcd:" + ",".join(f"a:{port}" for port in range(1, 9)), "8 members of etcd; 7 are enough"),
    ],
)
def test_what_names_no_coordinator_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="^coordinator: .*" + re.escape(says)):
        parse_coordinator(text)
    with pytest.raises(ValueError, match=r"^coordinator: "):
        options(coordinator=text)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"coordinator_key": "k", "coordinator_ca": "c"}, "belong together: name both files"),
        ({"coordinator_certificate": "c", "coordinator_key": "k"}, "only TLS uses it, name coordinator_ca"),
        ({"coordinator_token_file": "t"}, "coordinator_token_file: coordinator etcd:a:1 does not ask"),
        ({"coordinator": "kubernetes:ns", "coordinator_user": "u"}, "coordinator_user: coordinator kub"),
        ({"coordinator_user": "u"}, "belong together: name both"),
        (
            {"coordinator": "nameserver", "coordinator_ca": "c"},
            "coordinator_ca: coordinator [a-z]+ does not ask for that",
        ),
        (
            {
                "coordinator": "none",
                "role": "slave",
                "replication": "async",
                "voters": (),
                "coordinator_ca": "c",
            },
            "coordinator_ca: coordinator [a-z]+ does not ask for that",
        ),
    ],
)
def test_settings_of_no_use_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        options(**settings)


def test_settings_that_go_together() -> None:
    files = {"coordinator_ca": "a", "coordinator_certificate": "b", "coordinator_key": "c"}
    made = options(**files, coordinator_user="u", coordinator_password_file="p")
    assert made.elects
