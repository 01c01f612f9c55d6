"""HTTP/2 as gRPC's clients speak it (RFC 9113, RFC 7541): bytes in, events out, bytes out. Pure.

huffman.py     the code of strings
hpack.py       header blocks
errors.py      what a peer can do wrong
stream.py      streams, events, limits
fields.py      what makes header fields malformed
connection.py  frames, windows, floods: the state machine
grpc_format.py what gRPC puts into it: messages, timeouts, statuses
"""
