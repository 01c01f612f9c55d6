"""What a broker does with messages, in the model's terms; it knows no protocol.

    front: bytes ──► decode ──► one call of a verb ──► a value, or a Deferred of one ──► encode ──► bytes
                                    │
                                    '──► named checks of the rules that the front passes in, in their order

A front (`api/` for gRPC, `remoting/` for RocketMQ 4's clients, one of tests) reads its requests and words its
answers. What is decided stands here, once. Calls take plain values; an answer is a value, or a `Deferred`
where it waits. Errors are those of `errors.py`; each front has its codes for them.

**Rules.** Where RocketMQ's two protocols differ, the difference is a frozen value that the front passes in,
one for each verb: a tuple of named checks in their order, and a few members, each read in one place. Nothing
asks which protocol it is.

**Verbs**, by the files that have them:

    send(Send) -> Sent | Elsewhere                      `send.py`
        Store messages of one topic, in one queue. Elsewhere: another broker owns that queue.
    read(Read, render) -> what is rendered of a Run     `read.py`; frames of readers in bulk: `frames.py`
        Entries of one queue from an offset on, as messages or as pieces of the log, which the front renders;
        or where to go on. Waits for a message, if it is to (`waiting.py`).
    take(Take, render) -> what is rendered              `take.py`
        Messages for a group, leased to a client: read, filtered, written down, and only then handed out.
        Waits for some, if it is to.
    acknowledge, change, forward                        `settle.py`
        End leases: done, given back for a time, or given up as a dead letter. By receipt handles.
    commit, get, first, end, at                         `positions.py`
        Where a group stands on a queue, now and from now on; where queues begin and end.
    reset(asked, render), clone(asked)                  `resets.py`
        An administrator moves a group, further back as well.
    by_id, by_place; recall                             `ends.py`, `recalls.py`
        Decide a transaction; take a message back that waits for its time.
    put_topic, delete_topic, put_group, delete_group(Change) -> Change; drain, forget_broker, set_all
        What administrators change, in `tables.py`. A slave refuses changes, or ignores them.

**Which answers wait for whom** is a property of the verb: a send for the log and, where it may have made a
topic, for a majority that knows of topics; a settle, a commit or a reset of a position, and a take of an
ordered group, for a majority that has the leases; a change of a table for one that knows of topics and
groups, and a deletion for both.

The hardest case of each verb, and how it goes through:

*A batch of RocketMQ 4 to a retry topic whose tries are used up.* `open_topic` finds no tries left: it makes
the group's topic of dead letters, sends the batch there and takes DELAY out of what its messages share. The
queue comes next, then `batch_alone`, which looks at what is shared, now without DELAY, and only then are the
messages read, one by one: a message of the batch that says DELAY itself is refused, with the topic made and
nothing stored.

*A receive of an ordered group with SQL that parks, and is woken by a retry.* `take` looks at the policy of
the group for what may go out: nothing, since what is held goes first. It waits in the line of its group with
three reasons to look again: an arrival in a queue of the topic, the visible time of what is held, and a
change that frees some of it. The retry wakes it; takes of the group look one after the other, in their order;
the filter runs on what the scan returns, and what it leaves out is passed over in the same plan that is
written down.

*A pull that waits at a follower.* `read` finds nothing, or an offset that the follower's log has not come to,
and waits for an arrival, by its queue, with a deadline. The log grows and is dispatched as far as it is
committed; all reads of the queue look again in the loop's next iteration. When the follower begins to lead,
the role's end answers what waits as its kind says, and clients ask again.

*An acknowledgement that the lane has parked when the role ends.* The lane keeps the bytes, `waiting` one
cursor: the number of the last change that parked answers wait for. The role's end hands over what is parked,
in its order, to where Python's answers wait, and all end with the same error: whether a later leader knows of
the change is not known.
"""
