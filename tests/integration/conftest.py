"""Fixtures for the tests with the official SDKs."""

import pytest

from support.systems.sdk_programs import Missing, prepare

QUICK_INSTALL_S = 60.0  # what a step of an installation may take in tests that are not marked slow


@pytest.fixture
def language(request: pytest.FixtureRequest) -> str:
    """Install the SDK that the case is about, or skip."""
    name = str(request.param)
    try:
        quick = request.node.get_closest_marker("slow") is None
        prepare(name, *((QUICK_INSTALL_S,) if quick else ()))
    except Missing as error:
        pytest.skip(f"no {name} SDK here: {error}")
    return name
