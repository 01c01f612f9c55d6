"""Bodies as 4.x and 5.x clients compress them."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd_compressed"]


def zstd_compressed(body: bytes) -> bytes:
    return zstd.compress(body)
