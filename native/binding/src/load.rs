//! The load of `whimbrel bench send`: `core/load.rs` says what is sent, and here are sockets and clocks.
//!
//! It runs without the interpreter's lock, a slice at a time, so that Python can stop it and look at the tally.

use std::os::fd::RawFd;

use pyo3::exceptions::{PyConnectionError, PyValueError};
use pyo3::prelude::*;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::{ClockId, clock_gettime};
use whimbrel_core::client::{Fault, Header, Value};
use whimbrel_core::load::{self, Failure, Now, Plan};

use crate::guarded;
use crate::views::descriptor;

const READ_BYTES: usize = 256 * 1024;
const OUT_BYTES_KEPT: usize = 1 << 20; // what has been sent is dropped from then on
/// Reads of one connection before the others have their turn.
const READS_MAX: usize = 4;
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// Descriptor, headers (a value of `None`: it differs in each call), and queues of a broker.
type TargetOf = (RawFd, Vec<(Vec<u8>, Option<Vec<u8>>)>, Vec<u32>);
/// Topic, body, born host.
type WordsOf = (Vec<u8>, Vec<u8>, Vec<u8>);
/// Begin of message ids, first sequence, begin of request ids, name of the header with the date.
type IdsOf = (Vec<u8>, u32, Vec<u8>, Vec<u8>);
/// Messages, counters of latencies that are not 0, the greatest in ns, failures (kind, code, messages), the last one's
/// kind, code and text, and for how many ns it ran.
type TallyOf =
    (u64, Vec<(usize, u64)>, u64, Vec<(&'static str, u32, u64)>, Option<(&'static str, u32, String)>, i64);

/// A load, and the sockets of its connections, which the caller keeps open.
#[pyclass(module = "whimbrel_lane")]
pub struct SendLoad {
    core: load::Load,
    sockets: Vec<(RawFd, usize)>, // and how much of what is to be sent was sent
    buffer: Vec<u8>,
    at: usize, // the connection that was used last
}

#[pymethods]
impl SendLoad {
    #[new]
    #[pyo3(signature = (words, ids, targets, concurrency, batch, count))]
    fn new(
        words: WordsOf,
        ids: IdsOf,
        targets: Vec<TargetOf>,
        concurrency: usize,
        batch: u32,
        count: Option<u64>,
    ) -> PyResult<Self> {
        if targets.is_empty() || concurrency == 0 || batch == 0 {
            return Err(PyValueError::new_err("a load needs a connection, and calls with messages"));
        }
        let (topic, body, born_host) = words;
        let (id_begin, sequence, request_id_begin, date_name) = ids;
        let value = |name: &[u8], value| match value {
            Some(value) => Value::Fixed(value),
            None if name == date_name => Value::Date,
            None => Value::RequestId,
        };
        let sockets = targets.iter().map(|(fd, ..)| (*fd, 0)).collect();
        let one = |(_, headers, queues): TargetOf| {
            let headers = headers.into_iter().map(|(name, text)| Header { value: value(&name, text), name });
            (headers.collect(), queues)
        };
        let plan =
            Plan { topic, body, born_host, count, concurrency, batch, id_begin, sequence, request_id_begin };
        let core = guarded(|| load::Load::new(plan, targets.into_iter().map(one).collect()))?;
        Ok(Self { core, sockets, buffer: Vec::with_capacity(READ_BYTES), at: 0 })
    }

    fn run(&mut self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        let until = now().ns.saturating_add((seconds.clamp(0.0, 3600.0) * 1e9) as i64);
        let found = py.detach(|| guarded(|| self.turns(until)))?;
        found.map_err(|Fault(text)| PyConnectionError::new_err(text))
    }

    fn stop(&mut self) {
        self.core.stop();
    }

    #[getter]
    fn ready(&self) -> bool {
        self.core.is_ready()
    }

    /// The number of the connection that was used last: that which broke.
    #[getter]
    fn at(&self) -> usize {
        self.at
    }

    #[getter]
    fn hopeless(&self) -> bool {
        self.core.tally.is_hopeless()
    }

    fn tally(&self) -> TallyOf {
        let tally = &self.core.tally;
        let failures = tally.failures.iter().map(|(failure, messages)| {
            let (kind, code) = named(*failure);
            (kind, code, *messages)
        });
        let last = tally.last.as_ref().map(|(failure, text)| {
            let (kind, code) = named(*failure);
            (kind, code, text.clone())
        });
        let latencies = &tally.latencies;
        (
            tally.messages,
            latencies.counters().collect(),
            latencies.greatest_ns,
            failures.collect(),
            last,
            tally.ended_ns - tally.began_ns,
        )
    }
}

impl SendLoad {
    /// Go on until then; whether there is more to do.
    fn turns(&mut self, until_ns: i64) -> Result<bool, Fault> {
        loop {
            let time = now();
            self.core.fill(time)?;
            for number in 0..self.sockets.len() {
                self.send(number)?;
            }
            if self.core.is_done() {
                return Ok(false);
            }
            self.check(time, until_ns)?;
            if time.ns >= until_ns {
                return Ok(true);
            }
            self.wait(until_ns - time.ns)?;
        }
    }

    /// Look at the time once a slice: it is a walk over all calls.
    fn check(&mut self, time: Now, until_ns: i64) -> Result<(), Fault> {
        if time.ns < until_ns {
            return Ok(());
        }
        match self.core.late(time.ns) {
            None => Ok(()),
            Some((number, fault)) => {
                self.at = number;
                Err(fault)
            }
        }
    }

    /// Wait for a socket, and read from those that have something.
    fn wait(&mut self, most_ns: i64) -> Result<(), Fault> {
        let mut watched = Vec::with_capacity(self.sockets.len());
        for (number, (fd, sent)) in self.sockets.iter().enumerate() {
            let more = self.core.out(number).len() > *sent;
            let flags = if more { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let fd = descriptor(*fd).map_err(|_| Fault("a connection was closed here".into()))?;
            watched.push(PollFd::from_borrowed_fd(fd, flags));
        }
        let most = Timespec { tv_sec: most_ns / 1_000_000_000, tv_nsec: most_ns % 1_000_000_000 };
        match poll(&mut watched, Some(&most)) {
            Ok(0) | Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(broken(error)),
            Ok(_) => {}
        }
        let ready: Vec<bool> = watched
            .iter()
            .map(|one| one.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR))
            .collect();
        drop(watched);
        for (number, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
            self.receive(number)?;
        }
        Ok(())
    }

    fn receive(&mut self, number: usize) -> Result<(), Fault> {
        self.at = number;
        let fd =
            descriptor(self.sockets[number].0).map_err(|_| Fault("a connection was closed here".into()))?;
        for _ in 0..READS_MAX {
            self.buffer.clear();
            let (size, _) = match recv(fd, spare_capacity(&mut self.buffer), RecvFlags::DONTWAIT) {
                Ok(found) => found,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(error) => return Err(broken(error)),
            };
            if size == 0 {
                return Err(Fault("the server has closed the connection".into()));
            }
            self.core.receive(number, &self.buffer, now())?;
            if size < self.buffer.capacity() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn send(&mut self, number: usize) -> Result<(), Fault> {
        self.at = number;
        let (fd, sent) = &mut self.sockets[number];
        let out = self.core.out(number);
        while *sent < out.len() {
            let fd = descriptor(*fd).map_err(|_| Fault("a connection was closed here".into()))?;
            match send(fd, &out[*sent..], FLAGS) {
                Ok(size) => *sent += size,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(broken(error)),
            }
        }
        if *sent == out.len() {
            out.clear();
            *sent = 0;
        } else if *sent >= OUT_BYTES_KEPT {
            out.drain(..*sent);
            *sent = 0;
        }
        Ok(())
    }
}

fn named(failure: Failure) -> (&'static str, u32) {
    match failure {
        Failure::Code(code) => ("code", code),
        Failure::Status(code) => ("status", code),
        Failure::Reset(code) => ("reset", code),
        Failure::Http(code) => ("http", code),
    }
}

fn broken(error: Errno) -> Fault {
    let text = std::io::Error::from(error).to_string();
    Fault(format!("the connection broke: {}", text.split(" (os error").next().unwrap_or(&text)))
}

fn now() -> Now {
    let (steady, wall) = (clock_gettime(ClockId::Monotonic), clock_gettime(ClockId::Realtime));
    Now {
        ns: steady.tv_sec * 1_000_000_000 + steady.tv_nsec,
        wall_ms: (wall.tv_sec * 1000 + wall.tv_nsec / 1_000_000).max(0) as u64,
    }
}
