"""Which broker messages of a message group are sent to: the choice of RocketMQ's SDKs for Java, Go and
Node.js.

    place = SipHash-2-4(UTF-8 of the message group), signed, modulo the route's writable queues of masters

and the broker of the queue at that place is asked (RocketMQ:
PublishingLoadBalancer.takeMessageQueueByMessageGroup). The queue itself is the broker's choice, and a broker
that does not own the group hands the message on, so that all SDKs together keep to one queue; choosing as
they do spares that hop.

SipHash-2-4 (Aumasson and Bernstein) has a state of four 64-bit words; its key is Guava's, the bytes 0 to 15:

    v0 v1 v2 v3 = key halves, mixed with "somepseudorandomlygeneratedbytes"
    each 8 bytes m, little-endian; the last one with the length in its top byte:
        v3 ^= m, 2 rounds, v0 ^= m
    v2 ^= 255, 4 rounds, the hash is v0 ^ v1 ^ v2 ^ v3
"""

from functools import lru_cache

__all__ = ["place_of", "siphash24"]

MASK = (1 << 64) - 1
SIGN = 1 << 63
KEY = int.from_bytes(bytes(range(8)), "little"), int.from_bytes(bytes(range(8, 16)), "little")
INITIAL = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
GROUPS_MAX = 4096  # whose hashes are kept


def siphash24(data: bytes) -> int:
    """Return the hash, from 0 to 2^64 - 1."""
    v0, v1 = INITIAL[0] ^ KEY[0], INITIAL[1] ^ KEY[1]
    v2, v3 = INITIAL[2] ^ KEY[0], INITIAL[3] ^ KEY[1]
    state = v0, v1, v2, v3
    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v0, v1, v2, v3 = rounds(2, (state[0], state[1], state[2], state[3] ^ word))
        state = v0 ^ word, v1, v2, v3
    v0, v1, v2, v3 = rounds(4, (state[0], state[1], state[2] ^ 0xFF, state[3]))
    return v0 ^ v1 ^ v2 ^ v3


def rounds(count: int, state: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = (v0 + v1) & MASK
        v1 = rotated(v1, 13) ^ v0
        v0 = rotated(v0, 32)
        v2 = (v2 + v3) & MASK
        v3 = rotated(v3, 16) ^ v2
        v0 = (v0 + v3) & MASK
        v3 = rotated(v3, 21) ^ v0
        v2 = (v2 + v1) & MASK
        v1 = rotated(v1, 17) ^ v2
        v2 = rotated(v2, 32)
    return v0, v1, v2, v3


def rotated(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & MASK


@lru_cache(maxsize=GROUPS_MAX)
def signed_hash(message_group: str) -> int:
    value = siphash24(message_group.encode())
    return value - (1 << 64) if value & SIGN else value


def place_of(message_group: str, count: int) -> int:
    """Return the place of a message group among so many queues."""
    return signed_hash(message_group) % count
