"""A machine for tests: virtual time, a disk that fails, processes that are killed; all by one seed.

scheduler.py   virtual time, events, and the threads that take turns
disk.py        files and names, with what is durable apart from what is in the page cache
files.py       one process's view of a disk, in the place of `whimbrel.machine.Files`
machine.py     hosts and their processes, in the place of `whimbrel.machine.Machine`
"""
