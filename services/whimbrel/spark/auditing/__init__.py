"""Comparing stores: what `audit`, `verify-index` and `rebuild-index` are made of.

parallel.py         work on a list, an item to a Spark task

members.py          masters and slaves, directories or brokers; how far each holds the log    reads
ranges.py           which range of which log is compared, in chunks                           pure
checksums.py        the CRC32 of chunks, computed where the log is                            reads
known_checksums.py  checksums that earlier audits have kept                                   reads, writes
differences.py      bytes that differ, as records: topic, queue, offset                       pure
findings.py         from compared chunks to the rows of the report                            pure

entries.py          the entries that records of a log should have in queues and index         pure
bucket_sums.py      sums over many entries, so that equal ranges need not be compared         pure
derived_files.py    queues and index as they are on disk                                      reads
comparison.py       shared by the next two
queues.py           queues against the log, by sums, then by entry                            reads
index.py            index files likewise                                                      reads
rebuilt_files.py    queue and index files, written anew                                       writes
"""
