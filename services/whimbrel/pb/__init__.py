"""Generated message classes, in a descriptor pool of their own.

The official Python SDK registers the same full names (`apache.rocketmq.v2.*`) in protobuf's default pool
under other file names, and that pool refuses the second one. `protos/generate.py` therefore makes every
generated file register in `POOL`, so that our client can be imported beside the SDK in one process. Nothing
else may import from here but `rpc` and the `*service.py` files (import-linter holds that up).
"""

from google.protobuf import descriptor_pool, duration_pb2, message_factory, timestamp_pb2

__all__ = ["POOL", "Duration", "Timestamp"]

POOL = descriptor_pool.DescriptorPool()
for _file in (duration_pb2, timestamp_pb2):
    POOL.AddSerializedFile(_file.DESCRIPTOR.serialized_pb)

# The pool's own classes: a field of a generated message takes these, not those of google.protobuf.
Duration = message_factory.GetMessageClass(POOL.FindMessageTypeByName("google.protobuf.Duration"))
Timestamp = message_factory.GetMessageClass(POOL.FindMessageTypeByName("google.protobuf.Timestamp"))
