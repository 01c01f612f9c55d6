"""What a newcomer tries in a Spark shell, with a session that is not ours: a look at a topic, and mistakes.

python first_look.py ENDPOINT TOPIC BROKER_ADDRESS

Prints a line of JSON: the rows that were seen, and the texts of the errors.
"""

import json
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


def main(endpoint: str, topic: str, broker: str) -> None:
    """Look at a topic, then make mistakes."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()

    def read(**options: str) -> Any:
        reader = spark.read.format("whimbrel").options(**{"servers": endpoint, "subscribe": topic, **options})
        return reader.load()

    def error(**options: str) -> str:
        try:
            read(**options).count()
        except PySparkException as failure:
            return str(failure)
        return ""

    seen = [row["queueOffset"] for row in read().select("queueOffset", "body").limit(3).collect()]
    errors = {
        "port": error(servers="127.0.0.1"),
        "broker": error(servers=broker),
        "option": error(subscribee="x"),
        "topic": error(subscribe="nowhere"),
    }
    spark.stop()
    print(json.dumps({"seen": seen, "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
