"""Engine and images of the tests of containers; without an engine they are skipped, with the reason.

REQUIRE_DOCKER=1    an engine that does not answer is a failure, not a reason to skip
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from containers.rig import LOGS, Rig, engine_problem, network_image, our_image, sdk_image, sweep
from stack import engine

FAILED = pytest.StashKey[bool]()
TAIL = 6000  # characters of the logs that stand in the failure itself


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Remember that a test has failed, for the rig that it used."""
    outcome = yield
    if outcome.get_result().failed:
        item.stash[FAILED] = True


@pytest.fixture(scope="session")
def client() -> Any:
    """Return a client of the engine."""
    if problem := engine_problem():
        if os.environ.get("REQUIRE_DOCKER"):
            pytest.fail(f"REQUIRE_DOCKER is set, and {problem}")
        pytest.skip(problem)
    client = engine()
    sweep(client)
    return client


@pytest.fixture(scope="session")
def image(client: Any) -> Iterator[str]:
    """Return the tag of the services' image, built from this tree."""
    tag = our_image(client)
    yield tag
    for made in client.images.list(name="whimbrel"):
        for name in made.tags:
            if name.startswith(tag):  # those of an upgrade, too
                client.images.remove(name, force=True)


@pytest.fixture(scope="session")
def sdk(client: Any) -> str:
    """Return the tag of an image with the official SDK."""
    return sdk_image(client)


@pytest.fixture(scope="session")
def iptables(client: Any) -> str:
    """Return the tag of an image with iptables."""
    return network_image(client)


@pytest.fixture(scope="module")
def rigs(client: Any, image: str) -> Iterator[Callable[..., Rig]]:
    """Give a function that starts clusters, or returns the one that runs; all end with the module."""
    running: dict[str, Rig] = {}

    def get(*, small: bool = False, **environment: str) -> Rig:
        key = f"{small} {sorted(environment.items())}"
        if key not in running:
            running[key] = Rig(client, image, small=small, **environment)
            running[key].up()
        return running[key]

    get.running = running  # type: ignore[attr-defined]
    yield get
    for rig in running.values():
        rig.__exit__()


@pytest.fixture(autouse=True)
def saved_logs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Save the logs of all containers when a test has failed, and show their ends."""
    yield
    if not request.node.stash.get(FAILED, False) or "rigs" not in request.fixturenames:
        return
    LOGS.mkdir(parents=True, exist_ok=True)
    for rig in request.getfixturevalue("rigs").running.values():
        text = rig.logs()
        path = LOGS / f"{request.node.name.replace('/', '-')}-{rig.stack.project}.log"
        path.write_text(text, encoding="utf-8")
        print(f"--- {rig.states()}\n--- all logs: {path}\n{text[-TAIL:]}")
