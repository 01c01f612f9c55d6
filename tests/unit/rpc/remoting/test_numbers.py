"""Wrong texts for numbers in requests by the remoting protocol: an error that names the field."""

import ast
from pathlib import Path

import pytest

from whimbrel.errors import BadRequest
from whimbrel.rpc.remoting.command import Command

SERVICES = Path(__file__).resolve().parents[4] / "services" / "whimbrel"
NO_NUMBERS = [
    "",
    " ",
    "1e3",
    "1.5",
    "soon",
    "3600s",
    "+-1",
    "--1",
    "0x10",
    "1 000",
    "٣",
    "９",
    "9" * 20,
    "9" * 5000,
]
# Who makes a number of a text of a request, and not by `Command`: each looks at its digits first.
READERS = {
    "broker/engine/send_checks.py": ["number_of"],
    "broker/remoting/client_calls.py": ["place_in"],
    "broker/remoting/groups.py": ["is_served"],
    "broker/remoting/heartbeats.py": ["version_of"],
    "broker/remoting/runtime.py": ["step", "step"],
    "broker/remoting/send_header.py": ["numbers_of", "read_header"],
}


@pytest.mark.parametrize("text", [*NO_NUMBERS, "2147483648", "-2147483649"])
def test_no_number_of_32_bits(text: str) -> None:
    request = Command(11, 1, {"queueId": text})
    with pytest.raises(BadRequest, match=r"^field queueId of request 11 is no number of 32 bits"):
        request.int32("queueId")
    with pytest.raises(BadRequest, match="is no number"):
        request.int32("queueId", 5)  # a default is for what is not there


@pytest.mark.parametrize("text", [*NO_NUMBERS, "9223372036854775808", "-9223372036854775809"])
def test_no_number_of_64_bits(text: str) -> None:
    with pytest.raises(BadRequest, match=r"^field offset of request 15 is no number of 64 bits"):
        Command(15, 1, {"offset": text}).int64("offset")


@pytest.mark.parametrize("text", ["0", "-1", "+7", "2147483647", "-2147483648", "007"])
def test_numbers_as_java_reads_them(text: str) -> None:
    assert Command(11, 1, {"n": text}).int32("n") == Command(11, 1, {"n": text}).int64("n") == int(text)


def calls_of_int(path: Path) -> list[str]:
    """Return the functions in which `int` is called, once for each call."""
    return sorted(
        function.name
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int"
    )


def test_nobody_else_makes_numbers_of_texts_of_requests() -> None:
    """A new reader goes by `Command.int32` and `int64`, or shows here what it does with wrong texts."""
    numbers_of_ours = {"traffic_samples.py", "message.py", "sampling.py", "splitting.py"}  # none of a text
    paths = [
        *(SERVICES / "broker" / "engine").glob("*.py"),
        *(SERVICES / "broker" / "remoting").glob("*.py"),
        *(SERVICES / "nameserver").glob("*remoting*.py"),
    ]
    found = {}
    for path in paths:
        if path.name not in numbers_of_ours and (calls := calls_of_int(path)):
            found[str(path.relative_to(SERVICES))] = calls
    assert found == READERS
