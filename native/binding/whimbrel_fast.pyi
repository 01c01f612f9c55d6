"""whimbrel's plain case, compiled. Only `whimbrel.lane` imports this."""

from typing_extensions import Buffer

VERSION: str
SOURCES: str  # CRC-32 of the sources that it was built from, in hexadecimal digits

class Broken(RuntimeError):
    """A panic was caught: nothing was published, and the module should not be used any more."""

class Keys:
    """Hashed keys of records, in the order of the log."""

    @property
    def first_offset(self) -> int:
        """Physical offset of the first key's record; -1 without any."""

    def __len__(self) -> int: ...

def entries(data: bytes, base: int) -> tuple[int, bool, int, list[tuple[bytes, int, int, bytes]]]:
    """Make the queue entries of the plain records at the begin of a piece of the log.

    Args:
        data: of one file of the log.
        base: where it begins.

    Returns:
        How many bytes were plain records; whether what follows is not plain (or else not whole); the store
        time of the last one, ms since the epoch; and for each queue its topic as records hold it, its id, the
        number of the first entry, and the entries, packed.
    """

def keys(data: bytes, base: int) -> tuple[int, bool, Keys]:
    """Hash the keys of the plain records at the begin of a piece of the log; arguments as of `entries`.

    Returns:
        How many bytes were plain records, whether what follows is not plain, and their keys.
    """

def hashed(records: list[tuple[str, tuple[str, ...], int, int]]) -> Keys:
    """Hash the keys of records: topic, keys, physical offset, store time in ms.

    Raises:
        ValueError: a text can't be encoded (`UnicodeEncodeError`).
    """

def put_keys(
    file: Buffer,
    slots: int,
    header: tuple[int, int, int, int, int, int],
    keys: Keys,
    first: int,
    count: int,
) -> tuple[int, int, int, int, int, int]:
    """Add some of the keys to a mapped index file and write its header; return that.

    Args:
        file: writable.
        slots: of the file.
        header: begin and end in ms, begin and end offset, slots used, number of the next entry.
        keys, first, count: which are added.

    Raises:
        BufferError: the file is not writable.
        ValueError: the file has no room for them, or there are not so many; nothing was written.
    """

def panic(text: str) -> None:
    """Panic, so that tests see what becomes of it.

    Raises:
        Broken: always.
    """
