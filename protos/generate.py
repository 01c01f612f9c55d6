"""Generate `services/whimbrel/pb` from the protos: protoc, then two rewrites.

1. Imports of generated modules get the prefix `whimbrel.pb.`, because the package root is not the proto root.
2. `DescriptorPool.Default()` becomes `whimbrel.pb.POOL` (its docstring says why).

Run `python protos/generate.py` after a change, or with `--check` to fail when the committed code differs.
"""

import argparse
import filecmp
import re
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
TARGET = PROTOS.parent / "services" / "whimbrel" / "pb"
ROOTS = ("apache", "etcd", "whimbrel")


def generate(out: Path) -> None:
    """Write the generated tree below `out`."""
    files = sorted(str(path.relative_to(PROTOS)) for path in PROTOS.rglob("*.proto"))
    include = Path(protoc.__file__).resolve().parent / "_proto"
    status = protoc.main(
        ["protoc", f"-I{PROTOS}", f"-I{include}", f"--python_out={out}", f"--pyi_out={out}", *files]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    for path in [*out.rglob("*_pb2.py"), *out.rglob("*_pb2.pyi")]:
        text = path.read_text()
        text = re.sub(r"^from (apache|etcd|whimbrel)\.", r"from whimbrel.pb.\1.", text, flags=re.M)
        text = text.replace("_descriptor_pool.Default()", "_POOL")
        text = text.replace(
            "from google.protobuf import descriptor_pool as _descriptor_pool\n",
            "from whimbrel.pb import POOL as _POOL\n",
        )
        path.write_text(text)
    for folder in {path.parent for path in out.rglob("*_pb2.py")}:
        while folder != out:
            (folder / "__init__.py").touch()
            folder = folder.parent


def listing(root: Path) -> set[Path]:
    """Return the generated files below `root`, relative to it."""
    return {
        path.relative_to(root)
        for name in ROOTS
        for path in (root / name).rglob("*")
        if path.suffix in {".py", ".pyi"}
    }


def main() -> int:
    """Generate, or compare with what is committed; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 when the committed code differs"
    )
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        generate(out)
        if check:
            fresh, held = listing(out), listing(TARGET)
            stale = sorted(fresh ^ held) + sorted(
                path for path in fresh & held if not filecmp.cmp(out / path, TARGET / path, shallow=False)
            )
            for path in stale:
                sys.stderr.write(f"{path}: differs; run `python protos/generate.py`\n")
            return 1 if stale else 0
        for name in ROOTS:
            shutil.rmtree(TARGET / name, ignore_errors=True)
            shutil.copytree(out / name, TARGET / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
