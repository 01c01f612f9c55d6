"""A Spark driver as a program of its own, for tests that kill it: an AvailableNow query into Parquet.

python driver.py ENDPOINT TOPIC FOLDER ROWS_PER_BATCH
"""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    endpoint, topic, folder, rows = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.config("spark.driver.memory", "1g").getOrCreate()
    reader = session.readStream.format("whimbrel").option("servers", endpoint).option("subscribe", topic)
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    writer.option("path", f"{folder}/out").trigger(availableNow=True).start().awaitTermination()
    session.stop()
