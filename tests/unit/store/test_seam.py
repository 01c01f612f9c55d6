"""The store takes files, clocks, threads and locks from the machine that it is given, and from nowhere else.

Found in the syntax trees, so that a test with a machine of its own misses nothing.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import whimbrel.store
from sim.files import SimFiles
from sim.machine import SimMachine
from whimbrel import machine

STORE = Path(whimbrel.store.__file__).parent
SYSTEM = {"os", "time", "threading", "fcntl", "mmap", "resource", "random", "signal", "select"}
NEVER = {"shutil", "tempfile", "subprocess", "socket", "asyncio", "multiprocessing", "glob", "io", "secrets"}
# What does nothing: constants, types, arithmetic on times that were given.
HARMLESS = {"os.O_*", "os.SEEK_*", "fcntl.LOCK_*", "fcntl.F_*", "mmap.MADV_*", "mmap.PAGESIZE"}
HARMLESS |= {"time.strftime", "time.localtime"}
PATH_CALLS = {
    *("absolute", "chmod", "exists", "expanduser", "glob", "hardlink_to", "is_dir", "is_file", "is_symlink"),
    *(
        "iterdir",
        "lstat",
        "mkdir",
        "open",
        "read_bytes",
        "read_text",
        "rename",
        "replace",
        "resolve",
        "rglob",
    ),
    *("rmdir", "samefile", "stat", "symlink_to", "touch", "unlink", "write_bytes", "write_text"),
}
SEAM = {"files", "disk", "machine", "FILES", "MACHINE"}  # names of what comes from the machine
# Tools that only read, on real files.
READERS = {"view.py", "verify.py", "inspect.py"}
# The mode of a process's files, which it sets for itself before it opens a store.
READERS |= {"modes.py"}
ALLOWED = {
    ("commitlog.py", "os.getpid"): "a process has one, on every machine",
    ("page_cells.py", "threading.Lock"): "a memory barrier: it is never contended",
    ("page_cells.py", "page.read_text"): "a cell of the page",
    ("page_cells.py", "page.write_text"): "the same",
    ("page_slots.py", "self.read_text"): "the same",
    ("page_slots.py", "self.write_text"): "the same",
}


def is_harmless(what: str) -> bool:
    return any(what == one or (one.endswith("*") and what.startswith(one[:-1])) for one in HARMLESS)


def uses(tree: ast.AST) -> Iterator[str]:
    """Yield what a module takes from the system by itself."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {name.name}" for name in node.names if name.name.split(".")[0] in NEVER)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in SYSTEM | NEVER:
                yield f"from {node.module}"
        elif isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            owner = text.rpartition(".")[0]
            if owner in SYSTEM:
                if not is_harmless(text) and (text != "mmap.mmap" or id(node) in called):
                    yield text
            elif node.attr in PATH_CALLS and id(node) in called:
                last = owner.rpartition(".")[2]
                if last not in SEAM and not last[:1].isupper():
                    yield text
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            yield "open()"


def test_the_store_calls_the_system_only_through_its_machine() -> None:
    found = set()
    for path in sorted(STORE.rglob("*.py")):
        name = path.relative_to(STORE).as_posix()
        if name not in READERS:
            found |= {(name, what) for what in uses(ast.parse(path.read_text()))}
    assert found - ALLOWED.keys() == set()
    assert ALLOWED.keys() - found == set(), "these are not there any more"


def test_uses_are_found() -> None:
    bad = """
import shutil
from time import sleep
def f(path, clock=time.monotonic):
    open(path)
    os.fsync(3); threading.Thread(); mmap.mmap(3, 4)
    path.read_bytes(); self.root.exists(); files.open(path); self.files.stat(path)
    x: mmap.mmap = os.O_RDWR
"""
    assert set(uses(ast.parse(bad))) == {
        *("import shutil", "from time", "time.monotonic", "open()", "os.fsync", "threading.Thread"),
        *("mmap.mmap", "path.read_bytes", "self.root.exists"),
    }


def test_the_simulated_machine_replaces_every_call_of_the_real_one() -> None:
    tree = ast.parse(Path(machine.__file__).read_text())
    for name, replacement in (("Files", SimFiles), ("Machine", SimMachine)):
        (real,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        for node in real.body:
            if isinstance(node, ast.FunctionDef):
                text = ast.unparse(node)
                system = any(
                    f"{one}." in text.replace("os.O_", "") for one in ("os", "fcntl", "mmap", "libc")
                )
                threads = "threading." in text or "ThreadWorker(" in text or "BOOT_ID." in text
                made = [node.name] if system or threads else []
            elif isinstance(node, ast.Assign):
                made = [target.id for target in node.targets if isinstance(target, ast.Name)]
            else:
                made = []
            assert set(made) <= vars(replacement).keys(), f"{name}.{made[0]} would reach the real machine"
