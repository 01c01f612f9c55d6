"""Comparing stores: what `audit`, `verify-index` and `rebuild-index` are made of.

spread.py      work on a list of things, a Spark task each

members.py     masters and slaves: a directory or a broker; how far each holds the log     reads
ranges.py      which part of which log is compared, in chunks                              pure
checksums.py   the CRC32 of chunks, where the log is                                       reads
known.py       checksums that an earlier audit has found
differences.py bytes that differ, as records: topic, queue, offset                         pure
findings.py    from compared chunks to what a person reads                                 pure

entries.py     records of a log as the entries they should have in queues and index        pure
sums.py        many entries as a few numbers, so that equal parts need no further look     pure
derived.py     queues and index as they are on disk                                        reads
compared.py    what the next two share
queues.py      queues against the log, by sums, then by entry                              reads
index.py       index files likewise                                                        reads
written.py     queue and index files, written anew                                         writes
"""
