"""A Spark program as a user writes one, for tests of where it runs: a batch, a store, a stream.

python program.py MASTER ENDPOINT TOPIC STORE FOLDER

Prints one line of JSON: how many messages each of them saw, and a fingerprint of the batch's rows.
"""

import json
import sys
from typing import Any

from whimbrel.spark import session

FINGERPRINT = "count(*)", "bit_xor(xxhash64(* EXCEPT (properties, brokerName)))"


def read(spark: Any, kind: str, where: str, topic: str) -> Any:
    """Return a topic as a batch."""
    return spark.read.format("whimbrel").option(kind, where).option("subscribe", topic).load()


def main(master: str, endpoint: str, topic: str, store: str, folder: str) -> None:
    """Read a topic in three ways."""
    spark = session(master, **{"spark.sql.shuffle.partitions": "2"})
    try:
        batch = read(spark, "servers", endpoint, topic).selectExpr(*FINGERPRINT).collect()[0]
        files = read(spark, "store", store, topic).selectExpr(*FINGERPRINT).collect()[0]
        reader = spark.readStream.format("whimbrel").option("servers", endpoint).option("subscribe", topic)
        stream = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
        query = writer.option("path", f"{folder}/out").trigger(availableNow=True).start()
        query.awaitTermination(120)
        streamed = spark.read.parquet(f"{folder}/out").selectExpr(*FINGERPRINT).collect()[0]
    finally:
        spark.stop()
    print(json.dumps({"batch": list(batch), "store": list(files), "stream": list(streamed)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
