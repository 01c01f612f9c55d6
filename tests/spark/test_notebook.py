"""docs/notebook.py does what docs/notebook.md shows: each cell is run, and its output compared with the page.

WHIMBREL_WRITE_NOTEBOOK=1    write the page and its picture instead of comparing
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.cluster.processes import Cluster, environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DOCS = Path(__file__).parents[2] / "docs"
PNG = b"\x89PNG\r\n\x1a\n"

# Runs the cells of a script one after the other, and prints what each of them printed.
RUNNER = """
import contextlib, io, json, sys
space, outputs = {"__name__": "__main__"}, []
for cell in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(cell, space)
    outputs.append(out.getvalue())
print(json.dumps({"outputs": outputs, "folder": str(space["folder"])}))
"""


def cells(script: str) -> list[tuple[bool, str]]:
    """Return the cells of a script: whether it is text, and what is in it."""
    found = []
    for part in re.split(r"^# %%", script, flags=re.MULTILINE)[1:]:
        head, _, rest = part.partition("\n")
        if "[markdown]" in head:
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in rest.strip().splitlines())
            found.append((True, text))
        else:
            found.append((False, rest.strip()))
    return found


def page(parts: list[tuple[bool, str]], outputs: list[str]) -> str:
    """Return the page: text, code, and what it printed."""
    lines, left = [], iter(outputs)
    for is_text, content in parts:
        if is_text:
            lines.append(content)
            continue
        lines.append(f"```python\n{content}\n```")
        printed = "\n".join(line.rstrip() for line in next(left).strip("\n").splitlines())
        if printed:
            lines.append(f"```text\n{printed}\n```")
        if "savefig" in content:
            lines.append("![Paid orders by the hour](notebook.png)")
    return "\n\n".join(lines) + "\n"


def test_the_notebook_prints_what_its_page_shows(cluster: Cluster, tmp_path: Path) -> None:
    parts = cells((DOCS / "notebook.py").read_text())
    code = json.dumps([content for is_text, content in parts if not is_text])
    settings = {"WHIMBREL_ENDPOINT": cluster.endpoint, "TMPDIR": str(tmp_path), "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, code],
        env=environment() | settings,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    made, picture = page(parts, said["outputs"]), (Path(said["folder"]) / "notebook.png").read_bytes()
    assert picture.startswith(PNG)
    assert len(picture) > 5_000
    if os.environ.get("WHIMBREL_WRITE_NOTEBOOK"):
        (DOCS / "notebook.md").write_text(made)
        (DOCS / "notebook.png").write_bytes(picture)
    assert made == (DOCS / "notebook.md").read_text()
    assert (DOCS / "notebook.png").read_bytes().startswith(PNG)
