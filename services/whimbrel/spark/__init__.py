"""Topics as tables: the PySpark data source `whimbrel`, without a jar.

    options.py     what can be set, checked                    pure
    offsets.py     positions in queues, as checkpoints hold them    pure
    planning.py    from positions to batches, tasks and splits      pure
    narrowing.py   what filters leave of them                       pure
    brokers.py     who lives, and where queues stand           asks
    stores.py      the same of a store directory, and what its tasks run
    tasks.py       what runs in a task: records to Arrow batches
    progress.py    a query's progress as a consumer group's
    source.py      the classes that Spark calls
    session.py     a session on this machine
    jobs/          what is done with it

Needs `whimbrel[spark]`: pyspark 4.2 or later, with pyarrow and numpy. Nothing else of whimbrel imports this.
"""

from whimbrel.spark.session import attach, session

__all__ = ["attach", "session"]
