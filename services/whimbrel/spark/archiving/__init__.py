"""Archives: topics as Parquet files by topic and day, with manifests that list what the files hold.

    layout.py      names of folders and files                                   pure
    manifests.py   the files of a batch, as JSON; which files count             pure
    ranges.py      ranges of queues: gaps, overlaps, what is not there yet      pure
    properties.py  the property text, left out where the map renders to it
    folder.py      the folder: durable writes, locks, manifests, leftovers
    files.py       what a task does: batches to files
    batches.py     a micro-batch from its first mark to its manifest; what a crash leaves, and who clears it
    tables.py      the same files as a Delta or an Iceberg table
    checking.py    gaps, overlaps, lost and damaged files
    compacting.py  small files into large ones

Reading them back is `whimbrel.spark.archive_backend`; the jobs are in `whimbrel.spark.jobs.archive`.
"""
