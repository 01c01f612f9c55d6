"""Whether all that native/ depends on comes from crates.io, and is licensed as it may be.

`cargo metadata` says both. Another licence, or a dependency from a repository or a directory, is an error.
"""

import json
import subprocess
import sys
from pathlib import Path

OURS = ("whimbrel-core", "whimbrel-lane")
SOURCE = "registry+https://github.com/rust-lang/crates.io-index"
# Each of them alone is enough, as all names in `A OR B`; of `A AND B` both must be here.
LICENCES = {"Apache-2.0", "MIT", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0", "BSD-3-Clause"}


def allowed(text: str) -> bool:
    """Tell whether an SPDX expression leaves a choice that is allowed."""
    choices = text.replace("/", " OR ").replace("(", "").replace(")", "")
    return all(
        any(choice.strip() in LICENCES for choice in part.split(" OR ")) for part in choices.split(" AND ")
    )


def main() -> None:
    """Look at all packages of the lock file.

    Raises:
        SystemExit: one of them may not be used.
    """
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    done = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True)
    packages = [each for each in json.loads(done.stdout)["packages"] if each["name"] not in OURS]
    wrong = [
        f"{each['name']} {each['version']}: licence {each['license']}, source {each['source']}"
        for each in packages
        if each["source"] != SOURCE or not allowed(each["license"] or "")
    ]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(packages)} dependencies, all of crates.io, with licences that may be used")


if __name__ == "__main__":
    main()
