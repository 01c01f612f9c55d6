"""HTTP/2 as gRPC's clients speak it (RFC 9113, RFC 7541): bytes in, events out, bytes out. Pure.

huffman.py     the code of strings
hpack.py       header blocks
"""
