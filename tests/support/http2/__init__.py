"""Peers of the gRPC port, each for what the others are not.

frames              no peer: bytes of frames and calls by hand, for all of them
in_memory           the other end of our servers without a socket: any bytes, and what is written back
blocking            clients that wait in their thread, thousands of them: attacks, and what idles
raw_client          a client in the loop that fails where a server breaks a rule: hours of load
scripted_server     a server whose script answers each event, also wrongly: for our client
echoing             a server with handlers, and programs in other languages that call it: for real clients
recordings          what real clients once sent to it
"""
