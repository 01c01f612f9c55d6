"""What serves in these tests: both transports, one after the other; and a certificate."""

import datetime
from pathlib import Path

import pytest

from whimbrel.rpc.selfsigned import make
from whimbrel.rpc.serving import serve


@pytest.fixture(params=["grpcio", "native"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let `serve` serve by one of them where a test says nothing else."""
    assert serve.__kwdefaults__ is not None
    monkeypatch.setitem(serve.__kwdefaults__, "transport", request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a file with a certificate for localhost and 127.0.0.1, and its key."""
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(make(["localhost", "127.0.0.1"], datetime.datetime.now(datetime.UTC)))
    return path
