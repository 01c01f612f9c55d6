"""What a replicator may not load: it would cost more memory than all the rest of it."""

import subprocess
import sys


def test_a_replicator_loads_neither_asyncio_nor_grpc() -> None:
    code = (
        "import sys, whimbrel.replicator.program\n"
        "print(*sorted({'asyncio', 'grpc', 'google.protobuf', 'typer', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.stdout.strip() == ""
