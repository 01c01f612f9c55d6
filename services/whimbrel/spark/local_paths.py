"""Folders of this machine, and what looks like one: `s3://bucket/x` would be a folder named `s3:`. Pure.

/data/archive, archive     as it is
file:///data/archive       /data/archive
s3://, hdfs://, x://       refused: what jobs write and sync needs a file system's rename
"""

import re
from pathlib import Path

__all__ = ["RemotePath", "local_path"]

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)  # `Path` makes one slash of several


class RemotePath(ValueError):
    """A path is none of this machine; the text says what can be done."""


def local_path(given: str | Path) -> Path:
    """Return a folder of this machine.

    Raises:
        RemotePath: it has a scheme other than `file:`.
    """
    found = SCHEME.fullmatch(str(given))
    if found is None:
        return Path(given)
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return Path("/", rest)
    raise RemotePath(
        f"{scheme}://{rest} is no folder of this machine, and object stores are not supported: name one that"
        " the driver and all executors mount, and copy it from there"
    )
