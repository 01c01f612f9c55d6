"""A Spark driver as a program of its own, for tests that kill it: an AvailableNow query into Parquet.

python driver.py ENDPOINT TOPIC FOLDER ROWS_PER_BATCH
"""

import sys

from whimbrel.spark import session

if __name__ == "__main__":
    endpoint, topic, folder, rows = sys.argv[1:]
    spark = session("local[2]", **{"spark.driver.memory": "1g"})
    reader = spark.readStream.format("whimbrel").option("servers", endpoint).option("subscribe", topic)
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    writer.option("path", f"{folder}/out").trigger(availableNow=True).start().awaitTermination()
    spark.stop()
