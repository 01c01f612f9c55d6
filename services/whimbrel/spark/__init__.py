"""Topics as tables: the PySpark data source `whimbrel`, without a jar.

    options.py     what can be set, checked                    pure
    offsets.py     positions in queues, as checkpoints hold them    pure
    planning.py    from positions to batches, tasks and splits      pure
    brokers.py     who lives, and where queues stand           asks
    tasks.py       what runs in a task: records to Arrow batches
    source.py      the classes that Spark calls
    session.py     a session on this machine

Needs `whimbrel[spark]`: pyspark 4.2 or later, with pyarrow and numpy. Nothing else of whimbrel imports this.
"""

from whimbrel.spark.session import session

__all__ = ["session"]
