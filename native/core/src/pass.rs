//! One pass: from the bytes of reads to all that follows from their plain calls, with nothing written yet.
//!
//! ```text
//! bytes -> groups of calls (`calls`) -> messages (`send`)      -> records, queue entries, keys    } and frames of
//!                                    -> deliveries (`ack`)     -> what is done of which queue     } the answers
//! ```
//!
//! A pass has a read of each of several connections, one after the other. It takes sends or acknowledgements, whatever
//! comes first, and of each read up to the first call of the other kind. It knows where the log and the queues end and
//! what is held, and writes into buffers of its own. Whoever has room for all of it writes it down; else the pass is
//! dropped, the decoders put back, and Python has the same bytes.
//!
//! **Answers** that wait, for durability or for others to store an acknowledgement, are kept by the caller. The others
//! fit into the windows, or are *beyond* them: the first one that does not fit, and all of its read behind it, are for
//! Python to send. A window of the connection that grows behind such an answer is Python's, too.

use std::collections::HashMap;

use crate::ack::{self, AckPolicy, Leases};
use crate::calls::{Approved, Call, Scan, Shape, State, Stop, framed, put_answer_head, put_answer_tail};
use crate::hpack::{Decoder, Fields};
use crate::index::Keyed;
use crate::send::{Message, Place, Policy, Topic, answer_size, put_answer, read};

const TOPICS_MAX: usize = 64; // of one pass, and queues: they are searched one by one
const RUNS_MAX: usize = 256;
/// The methods by their numbers, as in `Shape::paths`.
pub const SEND: usize = 0;
pub const ACK: usize = 1;

/// The queues of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// That a request may name.
    pub queues: u32,
    /// That requests which name none take in turn.
    pub turns: u32,
    /// Whose turn was the last one.
    pub turn: u64,
}

/// What topics there are.
pub trait Topics {
    /// A queue, for the caller: its runs come back with it.
    type Queue;

    /// What a pass has to know of a topic; `None` where sends are not plain.
    fn find(&mut self, topic: &str) -> Option<Found>;
    /// A queue of a topic that was found in this pass, and the number of its next entry.
    fn queue(&mut self, topic: &str, queue_id: u32) -> Option<(Self::Queue, i64)>;
}

/// Where records go, and what they may take.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    pub end: i64,
    /// Bytes that there are for records.
    pub room: usize,
    /// The store time of records, and the born time of messages without one.
    pub now_ms: i64,
    pub born_default_ms: i64,
    /// Calls that may be parked; `None` where they are answered at once.
    pub parks_left: Option<usize>,
    /// Messages until the next one that is sampled for traces.
    pub unsampled: u64,
}

/// Entries of one queue.
#[derive(Debug, PartialEq, Eq)]
pub struct Run<Q> {
    pub queue: Q,
    pub topic: usize,
    pub queue_id: u32,
    pub first: i64,
    pub entries: Vec<u8>,
    /// Of the last one.
    pub tags: i64,
    next: i64,
}

impl<Q> Run<Q> {
    /// Take note of the tags of the last entry.
    pub(crate) fn note_tags(&mut self) {
        let tags = self.entries.last_chunk::<8>().expect("an entry has 20 bytes");
        self.tags = i64::from_be_bytes(*tags);
    }
}

/// A topic that messages were sent to.
#[derive(Debug, PartialEq, Eq)]
pub struct Sent {
    pub name: String,
    pub turn: u64,
    /// How many of its records have a size up to each of the bounds, and more; and all of their bytes.
    pub counts: Vec<u64>,
    pub bytes: u64,
    queues: u32,
    turns: u32,
    pub(crate) topic: Topic,
}

/// An answer among the frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    pub id: u32,
    /// Where its frames begin, and where its message does.
    pub begin: usize,
    pub message: usize,
    pub message_size: usize,
    /// Where the log ends with its records; what an acknowledgement waits for is the caller's to say.
    pub end: i64,
    pub window: i64,
    pub timeout_s: Option<f64>,
}

/// Offsets of a queue that are done.
#[derive(Debug, PartialEq, Eq)]
pub struct Settled {
    /// As `Leases` numbers it.
    pub state: usize,
    pub offsets: Vec<i64>,
}

impl Settled {
    /// What is done as ranges, the lowest first.
    pub fn ranges(&mut self) -> Vec<(i64, i64)> {
        self.offsets.sort_unstable();
        self.offsets.dedup();
        let together = self.offsets.chunk_by(|one, next| *one + 1 == *next);
        together.map(|some| (some[0], some[some.len() - 1] + 1)).collect()
    }
}

/// All that follows from the plain calls of a pass, but their answers: from sends, or from acknowledgements.
pub struct Plan<Q> {
    pub settled: Vec<Settled>,
    pub records: Vec<u8>,
    pub runs: Vec<Run<Q>>,
    pub keys: Vec<Keyed>,
    pub topics: Vec<Sent>,
    pub messages: u64,
}

impl<Q> Default for Plan<Q> {
    fn default() -> Self {
        let (settled, records, runs, keys, topics) = (vec![], vec![], vec![], vec![], vec![]);
        Self { settled, records, runs, keys, topics, messages: 0 }
    }
}

/// Whether a plan has as many topics or queues as it may have.
pub(crate) type Full = bool;

impl<Q> Plan<Q> {
    /// Find a topic; its position in the plan.
    pub(crate) fn topic<T: Topics<Queue = Q>>(
        &mut self,
        topics: &mut T,
        name: &str,
        bounds: &[usize],
        full: &mut Full,
    ) -> Option<usize> {
        if let Some(number) = self.topics.iter().position(|topic| topic.name == name) {
            return Some(number);
        }
        if self.topics.len() >= TOPICS_MAX {
            *full = true;
            return None;
        }
        let Found { queues, turns, turn } = topics.find(name)?;
        let (name, topic, counts) = (name.to_owned(), Topic::named(name)?, vec![0; bounds.len() + 1]);
        self.topics.push(Sent { name, turn, counts, bytes: 0, queues, turns, topic });
        Some(self.topics.len() - 1)
    }

    /// The queue of a request: the one that is wanted, else the next one.
    pub(crate) fn queue_of(&mut self, topic: usize, wanted: Option<u32>) -> Option<u32> {
        let sent = &mut self.topics[topic];
        if let Some(queue_id) = wanted {
            return (queue_id < sent.queues).then_some(queue_id);
        }
        sent.turn = sent.turn.checked_add(1)?;
        u32::try_from(sent.turn.checked_rem(u64::from(sent.turns))?).ok()
    }

    /// The run of a queue's entries; its position in the plan.
    pub(crate) fn run<T: Topics<Queue = Q>>(
        &mut self,
        topics: &mut T,
        topic: usize,
        queue_id: u32,
        full: &mut Full,
    ) -> Option<usize> {
        if let Some(number) = self.runs.iter().position(|run| (run.topic, run.queue_id) == (topic, queue_id))
        {
            return Some(number);
        }
        if self.runs.len() >= RUNS_MAX {
            *full = true;
            return None;
        }
        let (queue, first) = topics.queue(&self.topics[topic].name, queue_id)?;
        self.runs.push(Run { queue, topic, queue_id, first, entries: vec![], tags: 0, next: first });
        Some(self.runs.len() - 1)
    }

    /// Have a request's entries follow those before in its queue: their run, and the number of the first one.
    ///
    /// Without room for it nothing has changed.
    pub(crate) fn place<T: Topics<Queue = Q>>(
        &mut self,
        topics: &mut T,
        (name, queue, count): (&str, Option<u32>, usize),
        bounds: &[usize],
        full: &mut Full,
    ) -> Option<(usize, i64)> {
        let (known, runs) = (self.topics.len(), self.runs.len());
        let topic = self.topic(topics, name, bounds, full)?;
        let before = self.topics[topic].turn;
        let queue_id = self.queue_of(topic, queue);
        let placed = queue_id.and_then(|queue_id| self.run(topics, topic, queue_id, full)).and_then(|run| {
            let first = self.runs[run].next;
            self.runs[run].next = first.checked_add(count as i64)?;
            Some((run, first))
        });
        if placed.is_none() {
            self.topics[topic].turn = before;
            self.topics.truncate(known);
            self.runs.truncate(runs);
        }
        placed
    }
}

/// Answers to the calls of a read.
#[derive(Default)]
pub struct Reply {
    pub frames: Vec<u8>,
    pub answers: Vec<Answer>,
    /// So many of them, the first ones, wait or fit into the windows.
    pub fitting: usize,
}

impl Reply {
    /// Add an answer whose message `put` writes, of `size` bytes.
    fn add(&mut self, shape: &Shape, call: &Call<'_>, size: usize, end: i64, put: impl FnOnce(&mut Vec<u8>)) {
        let (id, begin) = (call.id, self.frames.len());
        put_answer_head(shape, id, size, &mut self.frames);
        let message = self.frames.len();
        put(&mut self.frames);
        put_answer_tail(shape, id, &mut self.frames);
        let (window, timeout_s) = (call.window, call.timeout_s);
        self.answers.push(Answer { id, begin, message, message_size: size, end, window, timeout_s });
    }
}

/// Which answers fit into the windows of a connection.
struct Windows {
    left: i64,
    beyond: bool,
    fitting: usize,
}

impl Windows {
    /// Take an answer of so many bytes of data.
    fn put(&mut self, size: usize, call: &Call<'_>, state: &State) {
        let most = self.left.min(state.peer_window + call.window);
        self.beyond |= size > state.peer_frame || size as i64 > most;
        if !self.beyond {
            self.left -= size as i64;
            self.fitting += 1;
        }
    }
}

/// What a connection has brought.
#[derive(Clone, Copy)]
pub struct Read<'a> {
    pub data: &'a [u8],
    pub state: State,
    /// The client whose calls are taken.
    pub client: &'a [u8],
    pub approved: Option<&'a Approved>,
    /// The peer's address as records hold it.
    pub born_host: &'a [u8],
}

/// What is the same for all passes.
pub struct Methods {
    pub shape: Shape,
    pub policy: Policy,
    pub indexed: bool,
    /// Bounds of a histogram of record sizes, rising.
    pub size_bounds: Vec<usize>,
    pub acks: AckPolicy,
}

/// A request whose records have room.
struct Request<'a> {
    messages: std::ops::Range<usize>,
    topic: usize,
    run: usize,
    first: i64,
    sizes_at: usize,
    call: &'a Call<'a>,
}

/// A pass over reads of several connections; without a `log` no sends are taken.
pub struct Pass<'a, T: Topics, L: Leases> {
    methods: &'a Methods,
    topics: &'a mut T,
    leases: &'a mut L,
    log: Option<Log>,
    acks_left: Option<usize>, // acknowledgements that may be parked; `None`: they are answered at once
    begun: Option<usize>,     // the method whose calls it takes
    full: bool,               // of topics or queues
    settled: HashMap<usize, usize>, // where in the plan a state's offsets are
    plan: Plan<T::Queue>,
}

/// What became of a read: its answers, how far it was taken, and why the scan stopped there.
pub struct Taken<'a> {
    pub reply: Reply,
    pub scan: Scan<'a>,
    pub stop: Stop,
}

impl<'a, T: Topics, L: Leases> Pass<'a, T, L> {
    pub fn new(
        methods: &'a Methods,
        log: Option<Log>,
        acks_left: Option<usize>,
        topics: &'a mut T,
        leases: &'a mut L,
    ) -> Self {
        let (settled, plan) = (HashMap::new(), Plan::default());
        Self { methods, topics, leases, log, acks_left, begun: None, full: false, settled, plan }
    }

    /// Whether the answers to the calls that it takes wait.
    pub fn parks(&self) -> bool {
        if self.begun == Some(ACK) {
            self.acks_left.is_some()
        } else {
            self.log.is_some_and(|log| log.parks_left.is_some())
        }
    }

    /// All that follows from the reads so far, but their answers.
    pub fn plan(self) -> Plan<T::Queue> {
        self.plan
    }

    /// Take the plain calls at the begin of a connection's read.
    pub fn take<'r>(&mut self, read: Read<'r>, decoder: &mut Decoder) -> Taken<'r> {
        let mut scan = Scan::new(read.data, read.state, read.client, read.approved);
        let (mut calls, mut fields, mut reply) = (vec![], Fields::default(), Reply::default());
        let shape = &self.methods.shape;
        loop {
            let mark = decoder.mark();
            if let Err(stop) = scan.group(shape, decoder, &mut fields, &mut calls) {
                return Taken { reply, scan, stop };
            }
            let method = calls[0].method;
            let alike = calls.iter().all(|call| call.method == method);
            let stop = if alike && self.begun.is_some_and(|before| before != method) {
                scan.other()
            } else if alike && self.add(method, &calls, &read, &mut scan.state, &mut reply).is_some() {
                self.begun = Some(method);
                scan.taken();
                continue;
            } else if self.full && self.begun.is_some() {
                scan.other()
            } else {
                scan.refused()
            };
            decoder.undo(mark);
            return Taken { reply, scan, stop };
        }
    }

    /// Add a group of calls of a method to the plan; `None`, and nothing added, where one of them is not plain.
    fn add(
        &mut self,
        method: usize,
        calls: &[Call<'_>],
        read: &Read<'_>,
        state: &mut State,
        reply: &mut Reply,
    ) -> Option<()> {
        let mut windows = Windows { left: state.send_window, beyond: state.blocked, fitting: 0 };
        if method == ACK {
            self.settle(calls, state, &mut windows, reply)?;
        } else {
            let mut log = self.log?;
            self.store(calls, read, state, &mut log, &mut windows, reply)?;
            self.log = Some(log);
        }
        reply.fitting += windows.fitting;
        (state.send_window, state.blocked) = (windows.left, windows.beyond);
        // As in Python, where all streams of a read are open until its end.
        state.streams_left = state.streams_left.saturating_sub(calls.len());
        Some(())
    }

    /// Add a group of acknowledgements to the plan.
    fn settle(
        &mut self,
        calls: &[Call<'_>],
        state: &State,
        windows: &mut Windows,
        reply: &mut Reply,
    ) -> Option<()> {
        let Methods { acks: policy, shape, .. } = self.methods;
        if self.acks_left.is_some_and(|left| left < calls.len()) {
            return None;
        }
        let mut deliveries = vec![];
        let mut requests = Vec::with_capacity(calls.len());
        for call in calls {
            let request = ack::read(call.message()?, policy)?;
            for one in &request.deliveries {
                deliveries.push((self.leases.holds(request.group, request.topic, one)?, one.offset));
            }
            let size = request.answer_size(policy);
            if self.acks_left.is_some() {
                windows.fitting += 1;
            } else {
                windows.put(framed(size), call, state);
            }
            requests.push((call, request, size));
        }
        if let Some(left) = &mut self.acks_left {
            *left -= calls.len();
        }
        for (state, offset) in deliveries {
            let number = *self.settled.entry(state).or_insert_with(|| {
                self.plan.settled.push(Settled { state, offsets: vec![] });
                self.plan.settled.len() - 1
            });
            self.plan.settled[number].offsets.push(offset);
        }
        for (call, request, size) in requests {
            reply.add(shape, call, size, 0, |frames| request.put_answer(policy, frames));
        }
        Some(())
    }

    /// Add a group of sends to the plan.
    fn store(
        &mut self,
        calls: &[Call<'_>],
        connection: &Read<'_>,
        state: &State,
        log: &mut Log,
        windows: &mut Windows,
        reply: &mut Reply,
    ) -> Option<()> {
        let policy = &self.methods.policy;
        let (mut messages, mut sizes, mut requests) = (vec![], vec![], Vec::with_capacity(calls.len()));
        let waits = log.parks_left.is_some();
        if log.parks_left.is_some_and(|left| left < calls.len()) {
            return None;
        }
        let turns: Vec<u64> = self.plan.topics.iter().map(|topic| topic.turn).collect();
        let (known, runs) = (self.plan.topics.len(), self.plan.runs.len());
        let done = (|| {
            let mut room = log.room - self.plan.records.len();
            for call in calls {
                let begin = messages.len();
                read(call.message()?, policy, &mut messages)?;
                let some: &[Message<'_>] = &messages[begin..];
                let bounds = &self.methods.size_bounds;
                let topic = self.plan.topic(self.topics, some.first()?.topic, bounds, &mut self.full)?;
                let sizes_at = sizes.len();
                for message in some {
                    let topic = &self.plan.topics[topic].topic;
                    let size =
                        message.record_size(policy, topic, connection.born_host, log.born_default_ms)?;
                    room = room.checked_sub(size)?;
                    sizes.push(size);
                }
                let queue_id = self.plan.queue_of(topic, call.queue)?;
                let run = self.plan.run(self.topics, topic, queue_id, &mut self.full)?;
                let first = self.plan.runs[run].next;
                self.plan.runs[run].next = first.checked_add(some.len() as i64)?;
                if waits {
                    windows.fitting += 1;
                } else {
                    windows.put(framed(answer_size(policy, some, first)), call, state);
                }
                let messages = begin..begin + some.len();
                requests.push(Request { messages, topic, run, first, sizes_at, call });
            }
            (messages.len() as u64 <= log.unsampled).then_some(())
        })();
        if done.is_none() {
            self.plan.topics.truncate(known);
            self.plan.runs.truncate(runs);
            for (topic, turn) in self.plan.topics.iter_mut().zip(turns) {
                topic.turn = turn;
            }
            for run in &mut self.plan.runs {
                run.next = run.first + (run.entries.len() / crate::dispatch::UNIT_SIZE) as i64;
            }
            return None;
        }
        log.unsampled -= messages.len() as u64;
        if let Some(left) = &mut log.parks_left {
            *left -= calls.len();
        }
        for request in requests {
            self.write(
                &request,
                &messages[request.messages.clone()],
                &sizes,
                connection.born_host,
                log,
                reply,
            );
        }
        Some(())
    }

    /// Write a request's records, entries and keys, and the frames of its answer.
    fn write(
        &mut self,
        request: &Request<'_>,
        messages: &[Message<'_>],
        sizes: &[usize],
        born_host: &[u8],
        log: &mut Log,
        reply: &mut Reply,
    ) {
        let Methods { policy, shape, indexed, size_bounds, .. } = self.methods;
        let plan = &mut self.plan;
        let run = &mut plan.runs[request.run];
        let sent = &mut plan.topics[request.topic];
        for ((message, size), queue_offset) in
            messages.iter().zip(&sizes[request.sizes_at..]).zip(request.first..)
        {
            let place = Place {
                physical_offset: log.end,
                size: *size,
                queue_id: run.queue_id as i32,
                queue_offset,
                now_ms: log.now_ms,
                born_default_ms: log.born_default_ms,
            };
            let put = message
                .put_record(policy, &sent.topic, born_host, place, &mut plan.records)
                .and_then(|()| message.put_entry(place, &mut run.entries));
            put.expect("the message was read before");
            if *indexed {
                message.put_keys(policy, &sent.topic, place, &mut plan.keys).expect("keys are text");
            }
            sent.counts[size_bounds.partition_point(|bound| *bound < *size)] += 1;
            sent.bytes += *size as u64;
            log.end += *size as i64;
        }
        run.note_tags();
        plan.messages += messages.len() as u64;
        let size = answer_size(policy, messages, request.first);
        reply.add(shape, request.call, size, log.end, |frames| {
            put_answer(policy, messages, request.first, frames);
        });
    }
}
