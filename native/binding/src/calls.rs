//! Header decoders, passes over what connections bring, and answers that wait, for Python.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use whimbrel_core::ack::{AckPolicy, Delivery, Leases};
use whimbrel_core::calls::{Approved, Shape, State, Stop, are_valid, framed};
use whimbrel_core::hpack::{Decoder, Fields};
use whimbrel_core::pass::{ACK, Answer, Found, Methods, Pass, Plan, Read, Reply, SEND, Taken, Topics};
use whimbrel_core::send::Policy;

use crate::remote::{codes, log_of};
use crate::{Keys, guarded};

/// The table of header fields of one connection.
#[pyclass(module = "whimbrel_lane")]
pub struct HeaderDecoder {
    decoder: Decoder,
    fields: Fields,
    varying: Vec<Vec<u8>>,
}

type Decoded<'py> = (Bound<'py, PyList>, Bound<'py, PyBytes>, bool);

#[pymethods]
impl HeaderDecoder {
    #[new]
    fn new(list_bytes_max: usize, varying: Vec<Vec<u8>>) -> Self {
        Self { decoder: Decoder::new(list_bytes_max), fields: Fields::default(), varying }
    }

    fn decode<'py>(&mut self, py: Python<'py>, block: &[u8]) -> PyResult<Option<Decoded<'py>>> {
        let Self { decoder, fields, varying } = self;
        if guarded(|| decoder.decode(block, fields))?.is_err() {
            return Ok(None);
        }
        decoder.keep();
        let (found, mut key) = (PyList::empty(py), vec![]);
        for (name, value) in fields.iter() {
            found.append((PyBytes::new(py, name), PyBytes::new(py, value), false))?;
            key.extend_from_slice(name);
            if !varying.iter().any(|one| one == name) {
                key.push(0);
                key.extend_from_slice(value);
            }
            key.push(1);
        }
        Ok(Some((found, PyBytes::new(py, &key), are_valid(fields))))
    }

    /// Go on from another decoder's table, its oldest entry first.
    fn restore(&mut self, capacity: usize, entries: Vec<(Vec<u8>, Vec<u8>)>) {
        self.decoder.restore(capacity, entries);
    }

    fn table<'py>(&self, py: Python<'py>) -> PyResult<(usize, Bound<'py, PyList>)> {
        let (capacity, entries) = self.decoder.table();
        let found = PyList::empty(py);
        for (name, value) in entries {
            found.append((PyBytes::new(py, name), PyBytes::new(py, value), false))?;
        }
        Ok((capacity, found))
    }

    /// Forget what the last pass has decoded.
    fn undo(&mut self) {
        self.decoder.undo(0);
    }
}

/// What topics there are, as a Python object knows them. An error of it makes a send not plain.
pub struct Known<'a, 'py> {
    pub topics: &'a Bound<'py, PyAny>,
    pub queues: Vec<(String, Bound<'py, PyDict>)>, // of topics that were found
}
impl<'py> Topics for Known<'_, 'py> {
    type Queue = Bound<'py, PyAny>;

    fn find(&mut self, topic: &str) -> Option<Found> {
        let found = self.topics.call_method1(intern!(self.topics.py(), "find"), (topic,)).ok()?;
        let (queues, turns, turn, by_id): (u32, u32, u64, Bound<'py, PyDict>) = found.extract().ok()?;
        self.queues.push((topic.to_owned(), by_id));
        Some(Found { queues, turns, turn })
    }
    fn queue(&mut self, topic: &str, queue_id: u32) -> Option<(Self::Queue, i64)> {
        let py = self.topics.py();
        let (_, by_id) = self.queues.iter().find(|(name, _)| name == topic)?;
        let queue = match by_id.get_item(queue_id).ok()? {
            Some(queue) => queue,
            None => self.topics.call_method1(intern!(py, "queue"), (topic, queue_id)).ok()?,
        };
        let max: i64 = queue.getattr(intern!(py, "max")).ok()?.extract().ok()?;
        let uncommitted: i64 = queue.getattr(intern!(py, "uncommitted")).ok()?.extract().ok()?;
        Some((queue, max + uncommitted))
    }
}

/// What groups hold, as a Python object knows it. An error of it makes an acknowledgement not plain.
struct Held<'a, 'py> {
    leases: &'a Bound<'py, PyAny>,
}
impl Leases for Held<'_, '_> {
    fn holds(&mut self, group: &str, topic: &str, delivery: &Delivery) -> Option<usize> {
        let Delivery { queue_id, epoch, offset, serial } = *delivery;
        let arguments = (group, topic, queue_id, epoch, offset, serial);
        let found = self.leases.call_method1(intern!(self.leases.py(), "holds"), arguments).ok()?;
        found.extract().ok()
    }
}

/// Answers to calls of one connection, in the order of the log.
#[pyclass(module = "whimbrel_lane")]
pub struct Answers {
    pub frames: Vec<u8>,
    pub answers: Vec<Answer>,
}

impl Answers {
    /// Cut off all but the first `count`.
    fn split_off(&mut self, count: usize) -> Answers {
        let mut answers = self.answers.split_off(count);
        let cut = answers.first().map_or(self.frames.len(), |answer| answer.begin);
        for answer in &mut answers {
            answer.begin -= cut;
            answer.message -= cut;
        }
        Answers { frames: self.frames.split_off(cut), answers }
    }
    fn end(&self) -> i64 {
        self.answers.last().map_or(-1, |answer| answer.end)
    }
}

type Call<'py> = (u32, Bound<'py, PyBytes>, i64, i64, Option<f64>);

#[pymethods]
impl Answers {
    fn __len__(&self) -> usize {
        self.answers.len()
    }
    #[getter]
    fn frames<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.frames)
    }
    #[getter]
    fn ids(&self) -> Vec<u32> {
        self.answers.iter().map(|answer| answer.id).collect()
    }
    /// Of answers to requests of the remoting protocol: their codes, and how many have each.
    #[getter]
    fn codes(&self) -> Vec<(i64, usize)> {
        codes(&self.answers)
    }
    #[getter]
    fn data_bytes(&self) -> usize {
        self.answers.iter().map(|answer| framed(answer.message_size)).sum()
    }
    #[getter]
    fn largest(&self) -> usize {
        self.answers.iter().map(|answer| framed(answer.message_size)).max().unwrap_or(0)
    }
    #[getter]
    fn shortest_timeout(&self) -> Option<f64> {
        self.answers.iter().filter_map(|answer| answer.timeout_s).reduce(f64::min)
    }
    /// Each call: its stream, the answer's message, the log's end, its own window, its timeout.
    fn calls<'py>(&self, py: Python<'py>) -> Vec<Call<'py>> {
        let one = |answer: &Answer| {
            let message = self.frames.get(answer.message..)?.get(..answer.message_size)?;
            Some((answer.id, PyBytes::new(py, message), answer.end, answer.window, answer.timeout_s))
        };
        self.answers.iter().filter_map(one).collect()
    }
}

struct Chunk {
    connection: Py<PyAny>,
    parked_at: f64,
    deadline: f64,
    answers: Answers,
}

/// Answers of all connections that wait until the log is durable, in its order; or for numbers that rise likewise.
///
/// To take a connection's costs what it has, whatever others have.
#[pyclass(module = "whimbrel_lane")]
pub struct ParkedAnswers {
    chunks: BTreeMap<u64, Chunk>,      // by a number that rises
    of: HashMap<usize, VecDeque<u64>>, // the numbers of each connection's, by its address
    next: u64,
    count: usize,
}

type TakenChunk<'py> = (Py<PyAny>, f64, Bound<'py, Answers>);

#[pymethods]
impl ParkedAnswers {
    #[new]
    fn new() -> Self {
        Self { chunks: BTreeMap::new(), of: HashMap::new(), next: 0, count: 0 }
    }
    fn __len__(&self) -> usize {
        self.count
    }
    /// What the oldest and the newest wait for; -1 without any.
    #[getter]
    fn oldest_end(&self) -> i64 {
        self.first().and_then(|chunk| chunk.answers.answers.first()).map_or(-1, |answer| answer.end)
    }
    #[getter]
    fn newest_end(&self) -> i64 {
        self.chunks.last_key_value().map_or(-1, |(_, chunk)| chunk.answers.end())
    }
    #[getter]
    fn oldest_at(&self) -> f64 {
        self.first().map_or(f64::INFINITY, |chunk| chunk.parked_at)
    }

    /// Add answers of a connection, behind all others.
    ///
    /// All wait for `end` where one is given.
    #[pyo3(signature = (connection, parked_at, deadline, answers, end=None))]
    fn add(
        &mut self,
        connection: Py<PyAny>,
        parked_at: f64,
        deadline: f64,
        answers: &mut Answers,
        end: Option<i64>,
    ) {
        let mut answers = Answers {
            frames: std::mem::take(&mut answers.frames),
            answers: std::mem::take(&mut answers.answers),
        };
        if let Some(end) = end {
            for answer in &mut answers.answers {
                answer.end = end;
            }
        }
        self.count += answers.answers.len();
        self.of.entry(connection.as_ptr() as usize).or_default().push_back(self.next);
        self.chunks.insert(self.next, Chunk { connection, parked_at, deadline, answers });
        self.next += 1;
    }

    /// Take the answers that wait for no more than an offset, or a number.
    fn settle<'py>(&mut self, py: Python<'py>, durable: i64) -> PyResult<Vec<TakenChunk<'py>>> {
        let mut found = vec![];
        while let Some(mut first) = self.chunks.first_entry() {
            let chunk = first.get_mut();
            let count = chunk.answers.answers.partition_point(|answer| answer.end <= durable);
            if count == chunk.answers.answers.len() {
                let number = *first.key();
                found.push(self.take(py, number)?);
                continue;
            }
            if count > 0 {
                let (connection, parked_at) = (chunk.connection.clone_ref(py), chunk.parked_at);
                let rest = chunk.answers.split_off(count);
                let answers = std::mem::replace(&mut chunk.answers, rest);
                self.count -= count;
                found.push((connection, parked_at, Bound::new(py, answers)?));
            }
            break;
        }
        Ok(found)
    }

    /// Take all answers of a connection.
    fn take_of<'py>(
        &mut self,
        py: Python<'py>,
        connection: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<TakenChunk<'py>>> {
        let numbers = self.of.get(&(connection.as_ptr() as usize)).cloned().unwrap_or_default();
        numbers.into_iter().map(|number| self.take(py, number)).collect()
    }
    /// Take those with a deadline up to `now`, by the chunk. It looks at all chunks.
    fn take_expired<'py>(&mut self, py: Python<'py>, now: f64) -> PyResult<Vec<TakenChunk<'py>>> {
        let expired = |(number, chunk): (&u64, &Chunk)| (chunk.deadline <= now).then_some(*number);
        let numbers: Vec<u64> = self.chunks.iter().filter_map(expired).collect();
        numbers.into_iter().map(|number| self.take(py, number)).collect()
    }
    /// Take those that were parked before, by the chunk.
    fn take_parked_before<'py>(&mut self, py: Python<'py>, at: f64) -> PyResult<Vec<TakenChunk<'py>>> {
        let mut found = vec![];
        while let Some((number, _)) = self.chunks.first_key_value().filter(|(_, chunk)| chunk.parked_at < at)
        {
            found.push(self.take(py, *number)?);
        }
        Ok(found)
    }
    /// The first deadline; infinity without any. It looks at all chunks.
    #[getter]
    fn next_deadline(&self) -> f64 {
        self.chunks.values().map(|chunk| chunk.deadline).fold(f64::INFINITY, f64::min)
    }
}

impl ParkedAnswers {
    fn first(&self) -> Option<&Chunk> {
        self.chunks.first_key_value().map(|(_, chunk)| chunk)
    }

    /// Take a chunk that is there.
    fn take<'py>(&mut self, py: Python<'py>, number: u64) -> PyResult<TakenChunk<'py>> {
        let gone = || pyo3::exceptions::PyKeyError::new_err(number);
        let chunk = self.chunks.remove(&number).ok_or_else(gone)?;
        self.count -= chunk.answers.answers.len();
        if let Entry::Occupied(mut of) = self.of.entry(chunk.connection.as_ptr() as usize) {
            if of.get().front() == Some(&number) {
                of.get_mut().pop_front();
            } else {
                of.get_mut().retain(|one| *one != number);
            }
            if of.get().is_empty() {
                of.remove();
            }
        }
        Ok((chunk.connection, chunk.parked_at, Bound::new(py, chunk.answers)?))
    }
}

/// The plain calls of a broker.
#[pyclass(frozen, module = "whimbrel_lane")]
pub struct PlainCalls {
    methods: Methods,
}

type Connection = (u32, usize, i64, i64, i64, i64, usize, usize, usize, bool);
pub type LogEnd = (i64, usize, i64, i64, Option<usize>, u64);
type ApprovedOf = (Vec<Vec<u8>>, Vec<Option<Vec<Option<Vec<u8>>>>>);
/// The connection's decoder, what was read, the connection's state, the client, the peer's address, what a guard let in.
type ReadOf<'py> = (
    Bound<'py, HeaderDecoder>,
    Bound<'py, PyBytes>,
    Connection,
    PyBackedBytes,
    PyBackedBytes,
    Option<ApprovedOf>,
);

pub fn wanted<'py, T: for<'a> FromPyObject<'a, 'py>>(values: &Bound<'py, PyDict>, name: &str) -> PyResult<T> {
    let found = values.get_item(name)?;
    let found = found.ok_or_else(|| pyo3::exceptions::PyKeyError::new_err(name.to_owned()))?;
    found.extract().map_err(Into::into)
}

#[pymethods]
impl PlainCalls {
    #[new]
    #[pyo3(signature = (**values))]
    fn new(values: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let none = || pyo3::exceptions::PyTypeError::new_err("PlainCalls needs its values");
        let values = values.ok_or_else(none)?;
        let reserved: Vec<Vec<u8>> = wanted(values, "reserved")?;
        let ok: Vec<u8> = wanted(values, "ok")?;
        let policy = Policy {
            after_id: wanted(values, "after_id")?,
            store_host: wanted(values, "store_host")?,
            reserved: reserved.into_iter().collect(),
            fallback: wanted(values, "fallback")?,
            tracing: wanted(values, "tracing")?,
            ok: ok.clone(),
            body_max: wanted(values, "body_max")?,
            properties_max: wanted(values, "properties_max")?,
            weight_max: wanted(values, "weight_max")?,
            text_max: wanted(values, "text_max")?,
            time_max_ms: wanted(values, "time_max_ms")?,
            messages_max: wanted(values, "messages_max")?,
            entries_max: wanted(values, "entries_max")?,
            index_tags: wanted(values, "index_tags")?,
        };
        let acks = AckPolicy {
            handle_begin: wanted(values, "handle_begin")?,
            ok,
            ok_3: wanted(values, "ok_3")?,
            entries_max: wanted(values, "acks_max")?,
            handle_max: wanted(values, "handle_max")?,
            offset_max: wanted(values, "offset_max")?,
            queue_id_max: wanted(values, "queue_id_max")?,
            attempt_max: wanted(values, "attempt_max")?,
        };
        let mut paths = vec![vec![]; 2];
        (paths[SEND], paths[ACK]) = (wanted(values, "send_path")?, wanted(values, "ack_path")?);
        let shape = Shape {
            paths,
            queue_header: wanted(values, "queue_header")?,
            client_header: wanted(values, "client_header")?,
            answer_head: wanted(values, "answer_head")?,
            answer_tail: wanted(values, "answer_tail")?,
        };
        let (indexed, size_bounds) = (wanted(values, "indexed")?, wanted(values, "size_bounds")?);
        Ok(Self { methods: Methods { shape, policy, indexed, size_bounds, acks } })
    }

    #[allow(clippy::needless_pass_by_value)] // as Python calls it
    fn take<'py>(
        &self,
        py: Python<'py>,
        reads: &Bound<'py, PyList>,
        log: Option<LogEnd>,
        topics: &Bound<'py, PyAny>,
        leases: (Bound<'py, PyAny>, Option<usize>),
        found: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let log = log.map(log_of);
        let (mut known, mut held) = (Known { topics, queues: vec![] }, Held { leases: &leases.0 });
        let mut pass = Pass::new(&self.methods, log, leases.1, &mut known, &mut held);
        for read in reads.iter() {
            let (decoder, data, connection, client, born_host, approved): ReadOf<'py> = read.extract()?;
            let state = state_of(connection);
            let approved = approved.map(|(headers, values)| Approved { headers, values });
            let (data, decoder) = (data.as_bytes(), &mut decoder.try_borrow_mut()?.decoder);
            decoder.keep();
            let approved = approved.as_ref();
            let read = Read { data, state, client: &client, approved, born_host: &born_host };
            let taken = guarded(|| pass.take(read, decoder))?;
            found.append(taken_object(py, taken, &state, pass.parks())?)?;
        }
        let plan = pass.plan();
        if plan.messages > 0 {
            (plan_object(py, plan)?, py.None()).into_pyobject(py)
        } else if plan.settled.is_empty() {
            (py.None(), py.None()).into_pyobject(py)
        } else {
            (py.None(), settled_object(py, plan)?).into_pyobject(py)
        }
    }
}

fn state_of(connection: Connection) -> State {
    State {
        last_id: connection.0,
        streams_left: connection.1,
        send_window: connection.2,
        receive_window: connection.3,
        peer_window: connection.4,
        stream_window: connection.5,
        peer_frame: connection.6,
        frame_max: connection.7,
        block_max: connection.8,
        blocked: connection.9,
    }
}

/// What became of a read, as a tuple: see `whimbrel_lane.pyi`.
fn taken_object<'py>(
    py: Python<'py>,
    taken: Taken<'_>,
    before: &State,
    parks: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let Taken { reply, scan, stop } = taken;
    let (partial, stop, older) = match stop {
        Stop::Partial(needed) => (true, needed, false),
        Stop::Foreign(end, older) => (false, end, older),
        Stop::Other => (false, scan.at, false),
    };
    let received = before.receive_window - scan.state.receive_window;
    let stranger = scan.stranger.as_ref().map(|client| PyBytes::new(py, client));
    let Reply { frames, answers, fitting } = reply;
    let mut first = Answers { frames, answers };
    let answers = if first.answers.is_empty() {
        (py.None(), py.None(), py.None())
    } else if parks {
        (py.None(), py.None(), Bound::new(py, first)?.into_any().unbind())
    } else {
        let beyond = if fitting < first.answers.len() { first.split_off(fitting).calls(py) } else { vec![] };
        let frames = PyBytes::new(py, &first.frames).into_any().unbind();
        let ids = PyList::new(py, first.answers.iter().map(|answer| answer.id))?;
        (frames, ids.into_any().unbind(), beyond.into_pyobject(py)?.into_any().unbind())
    };
    let state = scan.state;
    (scan.at, partial, stop, older, state.last_id, state.send_window, received, stranger, answers)
        .into_pyobject(py)
}

/// What follows from the sends of a pass, as a tuple: see `whimbrel_lane.pyi`.
pub fn plan_object<'py>(py: Python<'py>, plan: Plan<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyTuple>> {
    let (runs, topics) = (PyList::empty(py), PyList::empty(py));
    for run in plan.runs {
        runs.append((run.queue, PyBytes::new(py, &run.entries), run.tags))?;
    }
    for topic in &plan.topics {
        topics.append((&topic.name, topic.turn, &topic.counts, topic.bytes))?;
    }
    let records = PyBytes::new(py, &plan.records);
    (records, runs, Keys { keys: plan.keys }, topics, plan.messages).into_pyobject(py)
}

/// What follows from the acknowledgements of a pass: of each state, the ranges that are done.
fn settled_object<'py>(py: Python<'py>, mut plan: Plan<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, plan.settled.iter_mut().map(|one| (one.state, one.ranges())))
}
