"""Machines and a cluster for tests: virtual time, disks and networks that fail, processes that are killed.

One seed is one run; docs/testing.md ("The simulation") says how to repeat one.

scheduler.py   virtual time, events, and the threads that take turns
disk.py        files and names, with what is durable apart from what is in the page cache
files.py       one process's view of a disk, in the place of `whimbrel.machine.Files`
machine.py     hosts and their processes, in the place of `whimbrel.machine.Machine`

process.py     a process that lives, pauses and dies, and the clocks that its code sees
network.py     streams between processes, with delay, loss and cuts
transport.py   their ends for asyncio
sockets.py     their ends for the replicator, and the bell between processes
loop.py        asyncio over virtual time and that network
nodes.py       nameserver, broker and replicator: the production code on all of these
clients.py     producers, a consumer and a reader, and what they note in a history (`histories.py`)
plan.py        layout, modes and faults, drawn from a seed
cluster.py     the run of a cluster by a plan, with its faults
kinds.py       clients of delayed, transactional, ordered and failing messages, and what must hold of them
elections.py   plans of groups that elect their masters; operations.py has those with an operator
elected.py     such a group: who leads, and where its faults strike
operators.py   who gives commands to it, by the client library
committed.py   what must hold in it, of the log; state.py, of what stands beside the log
takeover.py    what a person does when a master is lost, and what may be lost with it
confirmation.py  what a confirmed mark promises
invariants.py  what must hold meanwhile, and in the end
rules.py       rules of the production code to switch off: each must be missed
election_rules.py  rules of elections, likewise
run.py         the command: runs seeds, shrinks what fails
"""
