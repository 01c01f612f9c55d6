"""HPACK's Huffman code (RFC 7541, section 5.2 and appendix B). Pure.

The code is canonical: the lengths of the symbols' codes define it. Codes of equal length count up in the
order of their symbols; the next length goes on with the last code + 1, shifted.

Decoding runs a state machine byte by byte: (state, byte) gives the symbols that end within the byte, and the
next state. A state is an inner node of the code's tree; there are 256. A transition is worked out at its
first use, so that a start does not pay for 65,536 of them.
"""

__all__ = ["SYMBOLS", "HuffmanError", "decode"]

EOS = 256

# Symbols by the length of their codes, in bits.
SYMBOLS: dict[int, list[int]] = {
    5: list(b"012aceiost"),
    6: list(b" %-./3456789=A_bdfghlmnpru"),
    7: list(b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    8: list(b"&*,;XZ"),
    10: list(b'!"()?'),
    11: list(b"'+|"),
    12: list(b"#>"),
    13: list(b"\x00$@[]~"),
    14: list(b"^}"),
    15: list(b"<`{"),
    19: [0x5C, 0xC3, 0xD0],
    20: [0x80, 0x82, 0x83, 0xA2, 0xB8, 0xC2, 0xE0, 0xE2],
    21: [0x99, 0xA1, 0xA7, 0xAC, 0xB0, 0xB1, 0xB3, 0xD1, 0xD8, 0xD9, 0xE3, 0xE5, 0xE6],
    22: [
        0x81, 0x84, 0x85, 0x86, 0x88, 0x92, 0x9A, 0x9C, 0xA0, 0xA3, 0xA4, 0xA9, 0xAA, 0xAD, 0xB2, 0xB5, 0xB9,
        0xBA, 0xBB, 0xBD, 0xBE, 0xC4, 0xC6, 0xE4, 0xE8, 0xE9,
    ],
    23: [
        0x01, 0x87, 0x89, 0x8A, 0x8B, 0x8C, 0x8D, 0x8F, 0x93, 0x95, 0x96, 0x97, 0x98, 0x9B, 0x9D, 0x9E, 0xA5,
        0xA6, 0xA8, 0xAE, 0xAF, 0xB4, 0xB6, 0xB7, 0xBC, 0xBF, 0xC5, 0xE7, 0xEF,
    ],
    24: [0x09, 0x8E, 0x90, 0x91, 0x94, 0x9F, 0xAB, 0xCE, 0xD7, 0xE1, 0xEC, 0xED],
    25: [0xC7, 0xCF, 0xEA, 0xEB],
    26: [0xC0, 0xC1, 0xC8, 0xC9, 0xCA, 0xCD, 0xD2, 0xD5, 0xDA, 0xDB, 0xEE, 0xF0, 0xF2, 0xF3, 0xFF],
    27: [
        0xCB, 0xCC, 0xD3, 0xD4, 0xD6, 0xDD, 0xDE, 0xDF, 0xF1, 0xF4, 0xF5, 0xF6, 0xF7, 0xF8, 0xFA, 0xFB, 0xFC,
        0xFD, 0xFE,
    ],
    28: [*range(0x02, 0x09), 0x0B, 0x0C, *range(0x0E, 0x16), *range(0x17, 0x20), 0x7F, 0xDC, 0xF9],
    30: [0x0A, 0x0D, 0x16, EOS],
}  # fmt: skip

PADDING_BITS_MAX = 7


class HuffmanError(ValueError):
    """Bytes that no encoder writes."""


def tree() -> tuple[list[list[int]], frozenset[int]]:
    """Return the inner nodes of the code's tree, and those at which a string may end.

    A node has what follows a 0 and a 1: another node, or -1 - symbol. A string ends with fewer than 8 ones,
    the begin of the code of EOS.
    """
    places = [[0, 0]]
    code = length = 0
    for bits, symbols in SYMBOLS.items():
        code <<= bits - length
        length = bits
        for symbol in symbols:
            at = 0
            for shift in range(bits - 1, 0, -1):
                bit = code >> shift & 1
                if not places[at][bit]:
                    places.append([0, 0])
                    places[at][bit] = len(places) - 1
                at = places[at][bit]
            places[at][code & 1] = -1 - symbol
            code += 1
    ends, at = {0}, 0
    for _ in range(PADDING_BITS_MAX):
        at = places[at][1]
        ends.add(at)
    return places, frozenset(ends)


PLACES, ENDS = tree()
Step = tuple[bytes, int]  # the symbols that end within a byte, and the next state
STEPS: list[list[Step | None]] = [[None] * 256 for _ in PLACES]


def compute_step(state: int, byte: int) -> Step:
    """Work out and note the transition of a state for a byte.

    Raises:
        HuffmanError: the byte ends the code of EOS, which no string holds.
    """
    symbols = bytearray()
    at = state
    for shift in range(7, -1, -1):
        at = PLACES[at][byte >> shift & 1]
        if at < 0:
            if at == -1 - EOS:
                raise HuffmanError("a string holds the symbol that means its end")
            symbols.append(-1 - at)
            at = 0
    step = STEPS[state][byte] = bytes(symbols), at
    return step


def decode(data: bytes) -> bytes:
    """Return the symbols of a string.

    Raises:
        HuffmanError: it holds EOS, or is not padded as it should be.
    """
    state = 0
    found = []
    for byte in data:
        step = STEPS[state][byte] or compute_step(state, byte)
        symbols, state = step
        found.append(symbols)
    if state not in ENDS:
        raise HuffmanError("a string is not padded with the begin of the symbol that means its end")
    return b"".join(found)
