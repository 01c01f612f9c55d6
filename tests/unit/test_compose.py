"""What every service of our compose files has: limits, an exact image, ports on loopback."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # of a tool that the lock file names

from stack import GROUP_SERVICES

ROOT = Path(__file__).resolve().parents[2]
FILES = ("docker-compose.yml", "docker-compose.group.yml")
SERVICES: dict[str, dict[str, Any]] = {
    name: service
    for file in FILES
    for name, service in yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))["services"].items()
}
EXACT = re.compile(r"[a-z/.-]+:v?\d+\.\d+\.\d+")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_limits_of_memory_and_processes(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r"\d+[mg]\}?$", str(service["mem_limit"]))
    assert 0 < service["pids_limit"] <= 256
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_is_ours_or_of_one_version(name: str) -> None:
    image = SERVICES[name]["image"].removeprefix("${ETCD_IMAGE:-").removesuffix("}")
    assert image.startswith("${WHIMBREL_IMAGE:-") or EXACT.fullmatch(image)


def test_the_image_is_built_on_one_version() -> None:
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert bases
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-bookworm", base) for base in bases)


def test_all_members_of_a_group_are_alike() -> None:
    """But for their numbers and ports."""
    for kind in ("etcd", "broker", "replicator"):
        one, *others = (re.sub("[0-9]+", "", str(SERVICES[f"{kind}-{number}"])) for number in (1, 2, 3))
        assert others == [one, one]
    assert set(GROUP_SERVICES) < set(SERVICES)


def test_nobody_can_log_in_to_grafana_with_a_password_that_everybody_knows() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
