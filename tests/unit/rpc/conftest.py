"""What the tests of the transports share: a certificate."""

import datetime
from pathlib import Path

import pytest

from whimbrel.rpc.server.selfsigned import make


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a file with a certificate for localhost and 127.0.0.1, and its key."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(make(["localhost", "127.0.0.1"], datetime.datetime.now(datetime.UTC)))
    return path
