"""Checksums that earlier audits have kept: of files that are full and will not be written again.

One JSON file for each member, named by its identity (the resolved path, or a broker's name, number and
address):

    {"version": 1, "identity": "...", "fileSize": n, "chunkBytes": n,
     "files": {"BEGIN": {"state": [size, modified, changed, inode] or null,
                         "tail": crc or null, "chunks": [crc, ...]}}}

A checksum is used only while the file has not changed (`checksums.py` says how that is recognized). A bit
that flips on the disk is not recognized in that way: now and then, an audit has to read everything again.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from whimbrel.spark.auditing.members import FileState
from whimbrel.spark.reporting import JobError

__all__ = ["KnownChecksums", "KnownFile"]

VERSION = 1


@dataclass(frozen=True, slots=True)
class KnownFile:
    """The checksums of one file.

    Attributes:
        state: of a file in a directory; None of a broker's.
        tail: CRC of the end of a broker's file; None of a file in a directory.
        chunks: CRCs of the chunks.
    """

    state: FileState | None
    tail: int | None
    chunks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KnownChecksums:
    """The checksums of one member's files, by the offset at which they begin."""

    identity: str
    file_size: int
    chunk_bytes: int
    files: Mapping[int, KnownFile]

    @staticmethod
    def path(folder: Path, identity: str) -> Path:
        """Return the path of a member's file."""
        return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"

    @classmethod
    def load(cls, folder: Path, identity: str, file_size: int, chunk_bytes: int) -> "KnownChecksums":
        """Read the checksums of a member; none if they are of chunks of another size.

        Raises:
            JobError: the file is damaged, or of another version.
        """
        nothing = cls(identity, file_size, chunk_bytes, {})
        path = cls.path(folder, identity)
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']}")
            if (content["identity"], content["fileSize"], content["chunkBytes"]) != (
                identity,
                file_size,
                chunk_bytes,
            ):
                return nothing
            files = {
                int(begin): KnownFile(
                    FileState(*found["state"]) if found["state"] else None,
                    found["tail"],
                    tuple(found["chunks"]),
                )
                for begin, found in content["files"].items()
            }
        except FileNotFoundError:
            return nothing
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JobError(
                f"--known: {path} can't be read ({error}); remove it, and this audit reads everything"
            ) from error
        return cls(identity, file_size, chunk_bytes, files)

    def save(self, folder: Path) -> None:
        """Replace the member's file; readers see the old or the new one.

        Raises:
            JobError: the folder can't be written.
        """
        content = {
            "version": VERSION,
            "identity": self.identity,
            "fileSize": self.file_size,
            "chunkBytes": self.chunk_bytes,
            "files": {
                str(begin): {
                    "state": [state.size, state.modified_ns, state.changed_ns, state.inode]
                    if (state := found.state)
                    else None,
                    "tail": found.tail,
                    "chunks": list(found.chunks),
                }
                for begin, found in sorted(self.files.items())
            },
        }
        path = self.path(folder, self.identity)
        draft = path.with_suffix(".draft")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with draft.open("w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            raise JobError(f"--known: {folder} can't be written: {error}") from error
