"""Break the rules of the compiled lane one by one, and see whether the tests find each of them.

    python tests/lane_rules.py            all rules; exit code 1 when one is not found
    python tests/lane_rules.py NAME ...   some

A rule is broken in a copy of `native/`, by replacing one piece of a source file; the module built from it
takes the place of the installed one, and `tests/property/test_lane_store.py` must fail. The unchanged copy
must pass.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
TESTS = ("tests/property/test_lane_store.py",)


@dataclass(frozen=True)
class Rule:
    """A rule of the lane, and how it is broken: `old` becomes `new` in a file below `native/core/src`."""

    name: str
    file: str
    old: str
    new: str


RULES = (
    Rule("a record stands where it says", "dispatch.rs", "if record.physical_offset != place", "if false"),
    Rule("the delay topic is Python's", "dispatch.rs", "if record.topic == SCHEDULE_TOPIC", "if false"),
    Rule("prepared records have no entry", "record.rs", "kind != TRANSACTION_PREPARED && ", ""),
    Rule("rolled-back records have no entry", "record.rs", " && kind != TRANSACTION_ROLLBACK", ""),
    Rule(
        "rolled-back records have no keys",
        "record.rs",
        "!= TRANSACTION_ROLLBACK\n    }\n}",
        "!= 99\n    }\n}",
    ),
    Rule(
        "entries of a run follow each other",
        "dispatch.rs",
        "!= Some(record.queue_offset) {",
        "== Some(i64::MIN) {",
    ),
    Rule(
        "hosts may be of IPv6",
        "record.rs",
        "sys_flag & BORN_V6 == 0 { 8 } else { 20 }",
        "true { 8 } else { 20 }",
    ),
    Rule("topics of V2 are longer", "record.rs", "if magic == MAGIC_V1 {", "if magic != 0 {"),
    Rule("the last of equal properties counts", "record.rs", ".rfind(", ".find("),
    Rule("empty properties do not count", "record.rs", "|value| !value.is_empty()", "|_| true"),
    Rule("a property's name is its whole name", "record.rs", 'strip_prefix(b"\\x01")', 'strip_prefix(b"")'),
    Rule("hashes are of UTF-16 units", "hash.rs", "text.encode_utf16()", "text.bytes().map(u16::from)"),
    Rule(
        "text that is no UTF-8 is Python's",
        "hash.rs",
        "std::str::from_utf8(text).ok()?",
        'std::str::from_utf8(text).unwrap_or("")',
    ),
    Rule("index hashes are absolute values", "hash.rs", "if hash < 0x8000_0000 { hash }", "if true { hash }"),
    Rule("the id is a key as well", "dispatch.rs", "std::iter::once(unique)", "std::iter::once(&b\"\"[..])"),
    Rule(
        "keys are words",
        "dispatch.rs",
        "words.split(|byte| *byte == b' ')",
        "words.split(|byte| *byte == b'-')",
    ),
    Rule("a slot leads to entries before", "index.rs", "0 < before && before < header.count", "0 < before"),
    Rule("seconds count from the file's begin", "index.rs", "if header.count == 1 {", "if false {"),
    Rule("seconds are not negative", "index.rs", ".clamp(0, ", ".clamp(i64::from(i32::MIN), "),
    Rule("used slots are counted", "index.rs", "header.slots_used.saturating_add(1)", "header.slots_used"),
    Rule(
        "the last record ends the file's header",
        "index.rs",
        "(last.store_time_ms, last.physical_offset)",
        "(0, 0)",
    ),
)  # fmt: skip


def build(native: Path, into: Path) -> None:
    """Build the module of a copy of `native/`, and put it where Python finds it.

    Raises:
        CalledProcessError: it does not compile.
    """
    command = ["cargo", "build", "--locked", "-q", "-p", "whimbrel-fast"]
    quiet = os.environ | {"RUSTFLAGS": "-Awarnings"}  # a broken rule leaves unused names
    subprocess.run(command, cwd=native, env=quiet, check=True)
    shutil.copy(native / "target/debug/libwhimbrel_fast.so", into / "whimbrel_fast.so")


def passes(module: Path) -> bool:
    """Run the tests with the module in a directory; return whether they pass."""
    environment = os.environ | {
        "PYTHONPATH": f"{module}:{REPO / 'services'}:{REPO / 'tests'}",
        "REQUIRE_LANE": "1",
        "WHIMBREL_LANE_RULES": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(
        command,
        cwd=REPO,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode > 1:
        sys.exit(done.stdout[-3000:])
    return done.returncode == 0


def main() -> None:
    """Break the rules."""
    named = sys.argv[1:]
    rules = [rule for rule in RULES if not named or rule.name in named]
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h"], cwd=REPO, stdout=subprocess.PIPE, text=True, check=True
    )
    print(f"commit {commit.stdout.strip()}, {len(rules)} rules", flush=True)
    missed = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        native, module = root / "native", root / "module"
        module.mkdir()
        shutil.copytree(REPO / "native", native, ignore=shutil.ignore_patterns("target"))
        build(native, module)
        if not passes(module):
            sys.exit("the tests fail with the unchanged lane")
        for rule in rules:
            path = native / "core/src" / rule.file
            text = path.read_text()
            if text.count(rule.old) != 1:
                sys.exit(f"{rule.name}: {rule.old!r} stands {text.count(rule.old)} times in {rule.file}")
            path.write_text(text.replace(rule.old, rule.new))
            began = time.monotonic()
            try:
                build(native, module)
                found = not passes(module)
            finally:
                path.write_text(text)
            if not found:
                missed.append(rule.name)
            print(
                f"{'found' if found else 'MISSED'} in {time.monotonic() - began:4.1f} s: {rule.name}",
                flush=True,
            )
    if missed:
        sys.exit(f"{len(missed)} of {len(rules)} broken rules are not found: {', '.join(missed)}")
    print(f"all {len(rules)} broken rules are found")


if __name__ == "__main__":
    main()
