"""What serves in these tests: both transports, one after the other."""

import pytest

from whimbrel.rpc.serving import serve


@pytest.fixture(params=["grpcio", "native"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let `serve` serve by one of them where a test says nothing else."""
    assert serve.__kwdefaults__ is not None
    monkeypatch.setitem(serve.__kwdefaults__, "transport", request.param)
    return str(request.param)
