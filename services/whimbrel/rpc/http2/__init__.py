"""HTTP/2 as gRPC's clients speak it (RFC 9113, RFC 7541): bytes in, events out, bytes out. Pure.

huffman.py     the code of strings
hpack.py       header blocks
connection.py  frames, streams, windows, limits
wire.py        what gRPC puts into it: messages, timeouts, statuses
"""
