"""A Spark program as a user writes one, for tests of where it runs: a batch, a store, a stream, two jobs.

python program.py MASTER ENDPOINT TOPIC STORE SLAVE_STORE FOLDER

Prints one line of JSON: how many messages each of them saw and a fingerprint of the rows; what an audit of
the two stores found.
"""

import json
import sys
from pathlib import Path
from typing import Any

from whimbrel.spark import session
from whimbrel.spark.jobs.archive import ArchiveOptions, archive
from whimbrel.spark.jobs.audit import AuditOptions, audit

FINGERPRINT = "count(*)", "bit_xor(xxhash64(* EXCEPT (properties, brokerName)))"


def read(spark: Any, kind: str, where: str, topic: str) -> Any:
    """Return a topic as a batch."""
    return spark.read.format("whimbrel").option(kind, where).option("subscribe", topic).load()


def main(master: str, endpoint: str, topic: str, store: str, slave: str, folder: str) -> None:
    """Read a topic in three ways, archive it, and compare the stores."""
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
        source = {"servers": endpoint, "subscribe": topic}
        archive(spark, ArchiveOptions(root=Path(folder, "kept"), source=source))
        archived = read(spark, "archive", f"{folder}/kept", topic).selectExpr(*FINGERPRINT).collect()[0]
        audited = audit(spark, AuditOptions(master=store, slaves=(slave,))).collect()
    finally:
        spark.stop()
    rows = {"batch": batch, "store": files, "stream": streamed, "archive": archived}
    seen = {name: list(row) for name, row in rows.items()}
    findings = [row["finding"] for row in audited if row["finding"]]
    seen["audit"] = [findings, sum(row["equal"] or 0 for row in audited)]
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
