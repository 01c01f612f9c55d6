"""Certificates, passwords, tokens and accounts: files, read when they are needed."""

from pathlib import Path
from typing import Final

from whimbrel.errors import NotReady
from whimbrel.rpc.remoting.signatures import NO_ACCOUNTS, Accounts, parse_accounts

__all__ = ["FILE_BYTES_MAX", "read_accounts", "read_secret"]

FILE_BYTES_MAX: Final = 64 << 10


def read_secret(path: str, setting: str) -> bytes:
    """Return a file's content.

    Args:
        path: as it was given.
        setting: which setting named it, for people.

    Raises:
        NotReady: it can't be read, or is too large.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise NotReady(f"{setting}: {path} can't be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise NotReady(f"{setting}: {path} has more than {FILE_BYTES_MAX} bytes")
    return data


def read_accounts(path: str, setting: str) -> Accounts:
    """Return the accounts of a file (`rpc/remoting/signatures.py`); none where no file is named.

    Raises:
        NotReady: it can't be read, or holds something else.
    """
    if not path:
        return NO_ACCOUNTS
    try:
        return parse_accounts(read_secret(path, setting).decode())
    except ValueError as error:  # also what is no UTF-8
        raise NotReady(f"{setting}: {path}: {error}") from error
