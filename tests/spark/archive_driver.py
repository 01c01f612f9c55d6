"""An archive job as a program of its own, for tests that kill it.

python archive_driver.py ENDPOINT TOPIC FOLDER ROWS_PER_BATCH
"""

import sys
from pathlib import Path

from whimbrel.spark import session
from whimbrel.spark.jobs.archive import ArchiveOptions, archive

if __name__ == "__main__":
    endpoint, topic, folder, rows = sys.argv[1:]
    spark = session("local[2]", **{"spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("ERROR")
    source = {"servers": endpoint, "subscribe": topic, "maxOffsetsPerTrigger": rows}
    archive(spark, ArchiveOptions(root=Path(folder), source=source))
    spark.stop()
