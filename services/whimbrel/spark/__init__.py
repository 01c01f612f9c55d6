"""Topics as tables: the PySpark data source `whimbrel`, without a jar.

    session.py         a session on this machine
    source.py          the classes that Spark calls to read; sink.py: to write
    options.py         options of a read, sink_options.py: of a write, checked     pure
    offsets.py         positions in queues, as checkpoints hold them               pure
    named_queues.py    whether queues and positions that a person names are there  pure
    planning.py        from positions to batches, tasks and splits                 pure
    push_down.py       filters that restrict what is read                          pure
    local_paths.py     folders of this machine, and what looks like one            pure
    backend.py         the interface of what records are read from, implemented by
    broker_backend.py  running brokers, which brokers.py asks,
    store_backend.py   store directories, with queue_files.py,
    archive_backend.py and archives
    before.py          reasons why a job can't run, found before Spark starts
    workers.py         errors of one sentence, and no noise, from Spark's workers
    replay_writer.py   whole messages into topics, each once; masters.py: into which queues
    progress.py        a query's progress as a consumer group's
    jobs/              the jobs; archiving/ and auditing/ are what they are made of, and
    reporting.py       progress and errors of jobs
    snapshots.py, spans.py, plots.py    lag of groups as files; spans as a table; charts

Needs the extra `spark`: pyspark 4.2 or later, with pyarrow and numpy. Nothing else of whimbrel imports this.
"""

from whimbrel.spark.session import attach, session

__all__ = ["attach", "session"]
