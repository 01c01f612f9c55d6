"""HTTP/2 as gRPC's clients speak it (RFC 9113, RFC 7541): bytes in, events out, bytes out. Pure.

huffman.py      the code of strings
hpack.py        header blocks: the decoder, and an encoder without state
encoder.py      header blocks of a client's requests
errors.py       error codes and exceptions
frames.py       numbers and layouts of frames
stream.py       streams, events, limits
fields.py       rules of header fields
sending.py      the sending half of a connection
connection.py   frames, windows, floods: the state machine
client.py       a client's connection, which recognises the usual responses
grpc_format.py  what gRPC adds: messages, timeouts, statuses, metadata
"""
