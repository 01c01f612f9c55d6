"""What processes may not load: it would cost more memory than all the rest of a replicator."""

import subprocess
import sys

import pytest

PROGRAMS = ("broker.program", "nameserver.program", "replicator.program")


@pytest.mark.parametrize("program", PROGRAMS)
def test_process_loads_nothing_of_metrics_that_are_off(program: str) -> None:
    assert loaded(program, {"opentelemetry", "prometheus_client", "whimbrel.exposition"}) == ""


@pytest.mark.parametrize("program", PROGRAMS)
def test_process_loads_no_http_while_nobody_may_ask(program: str) -> None:
    assert loaded(program, {"whimbrel.http_port", "wsgiref", "http.server"}) == ""


def test_the_health_port_loads_neither_opentelemetry_nor_a_web_server() -> None:
    unwanted = {"opentelemetry", "prometheus_client", "wsgiref", "http.server", "asyncio"}
    assert loaded("http_port, whimbrel.probes", unwanted) == ""


def test_a_replicator_loads_neither_asyncio_nor_grpc() -> None:
    unwanted = {"asyncio", "grpc", "google.protobuf", "typer", "rich", "numpy"}
    assert loaded("replicator.program", unwanted) == ""


def test_a_broker_loads_nothing_of_coordinators_that_it_does_not_have() -> None:
    unwanted = {
        "whimbrel.pb.etcd.v3.etcd_pb2", "whimbrel.rpc.api.etcd_client",
        "whimbrel.broker.elections.etcd_coordinator", "whimbrel.broker.elections.kubernetes_api",
        "whimbrel.broker.elections.known_record", "http.client",
    }  # fmt: skip
    assert loaded("broker.program, whimbrel.broker.broker", unwanted) == ""


def loaded(program: str, unwanted: set[str]) -> str:
    """Return which of these modules a program has loaded once it is imported."""
    code = f"import sys, whimbrel.{program}\nprint(*sorted({unwanted} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    return done.stdout.strip()
