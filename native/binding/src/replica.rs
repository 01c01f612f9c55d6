//! The loops of the replicators: `core/replica.rs` says what to do, and here are the system calls.
//!
//! They run without the interpreter's lock, until Python wants to be back or something is not plain.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::sync::atomic::{AtomicI64, fence};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::sendfile;
use rustix::io::{Errno, pread, pwrite};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::time::{ClockId, clock_gettime};
use whimbrel_core::members::{Era, Group, Lead, Leader, Member};
use whimbrel_core::replica::{self, Feed, Follow, HEAD_MAX, Head, Limits, Link, Marks, Room, Shown};

use crate::guarded;
use crate::views::{Held, Memory, descriptor};

const SENDFILE_BYTES_MIN: i64 = 64 * 1024; // as in `slave_connection.py`
const PWRITE_BYTES_MIN: usize = 8 * 1024; // as in `store/commitlog.py`
const REPORTS_BYTES_MAX: usize = 4096;
const EVENTS_MAX: usize = 64;
const FLUSHED: u8 = b'.'; // as in `loop.py`: the flush thread has come further
const FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

type MarksOf = (i64, i64, i64, i64);
type LimitsOf = (i64, i64, i64);
type LinkOf<'py> =
    (i64, i64, i64, i64, i64, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Option<(i64, i64, i64)>, i64);
/// Id, whether it counts, epoch, its start, where the next one starts, when it connected, the commit offset that it
/// was told.
type MemberOf = (u32, bool, i32, i64, i64, i64, i64);
/// Where the leader's epoch starts, how old a beat may be, and a report; how many must be heard, and from when on; how
/// long a member may go without a frame, and how far apart are those that say only that the commit offset has moved.
type GroupOf = (i64, i64, i64, u32, i64, i64, i64);
/// The newest connection seen, the commit offset, the broker's beat, whether other cells are as they were.
type LeadOf = (i64, i64, i64, bool);

fn marks_of((epoch, begin, written, replaced): MarksOf) -> Marks {
    Marks { epoch, begin, written, replaced }
}
fn limits_of((heartbeat_ns, silence_ns, until_ns): LimitsOf) -> Limits {
    Limits { heartbeat_ns, silence_ns, until_ns }
}

fn lead_of((saw, commit, beat_ns, settled): LeadOf) -> Lead {
    Lead { saw, commit, beat_ns, settled }
}

/// The master's end.
#[pyclass(module = "whimbrel_lane")]
pub struct Feeding {
    core: replica::Feeding,
    /// Of members: how long without a frame, and how far apart.
    beats_ns: Option<(i64, i64)>,
}

#[pymethods]
impl Feeding {
    #[new]
    #[pyo3(signature = (marks, frame_max, file, limits, notes, group=None))]
    fn new(
        marks: MarksOf,
        frame_max: i64,
        file: (i64, i64),
        limits: LimitsOf,
        notes: bool,
        group: Option<GroupOf>,
    ) -> Self {
        let file = Range { start: file.0, end: file.1 };
        let mut core = replica::Feeding::new(marks_of(marks), frame_max, file, limits_of(limits), notes);
        let beats_ns = group.map(|(start, beat_ns, heard_ns, needed, until_ns, idle_ns, apart_ns)| {
            core.by_majority(Group { start, beat_ns, heard_ns, needed, until_ns });
            (idle_ns, apart_ns)
        });
        Self { core, beats_ns }
    }
    #[pyo3(signature = (slot, next, acknowledged, sent_bytes, sent_ns, received_ns, partial, member=None))]
    #[allow(clippy::too_many_arguments)] // as Python calls it
    fn add(
        &mut self,
        slot: usize,
        next: i64,
        acknowledged: i64,
        sent_bytes: i64,
        sent_ns: i64,
        received_ns: i64,
        partial: Vec<u8>,
        member: Option<MemberOf>,
    ) {
        let (beat_ns, apart_ns) = self.beats_ns.unwrap_or_default();
        let member = member.map(|(id, counts, epoch, start, end, connected_at, told)| {
            let era = Era { epoch, start, end };
            Member { id, counts, era, connected_at, told, telling: told, beat_ns, apart_ns }
        });
        let mut link = Link { slot, next, acknowledged, sent_bytes, sent_ns, received_ns, ..Link::default() };
        (link.partial, link.member) = (partial, member);
        self.core.links.push(link);
    }
    #[getter]
    fn moved(&self) -> bool {
        self.core.moved
    }
    #[getter]
    fn timed_out(&self) -> bool {
        self.core.timed_out
    }
    #[getter]
    fn written(&self) -> i64 {
        self.core.written()
    }
    fn notes(&self) -> Vec<(bool, i64, i64)> {
        self.core.notes.iter().map(|note| (note.acknowledged, note.offset, note.at_ns)).collect()
    }
    fn links<'py>(&self, py: Python<'py>) -> Vec<LinkOf<'py>> {
        let one = |link: &Link| {
            let bytes = |data: &[u8]| PyBytes::new(py, data);
            (
                link.next,
                link.acknowledged,
                link.sent_bytes,
                link.sent_ns,
                link.received_ns,
                bytes(&link.partial),
                bytes(&link.unread),
                link.rest,
                link.member.as_ref().map_or(0, |member| member.told),
            )
        };
        self.core.links.iter().map(one).collect()
    }

    // For a caller with other system calls

    #[pyo3(signature = (marks, now_ns, lead=(0, 0, 0, true)))]
    fn next<'py>(
        &mut self,
        py: Python<'py>,
        marks: MarksOf,
        now_ns: i64,
        lead: LeadOf,
    ) -> PyResult<Bound<'py, PyTuple>> {
        match guarded(|| self.core.next(marks_of(marks), lead_of(lead), now_ns))? {
            Feed::Send { link, at, size, head } => {
                ("send", link, at, size, PyBytes::new(py, head.bytes())).into_pyobject(py)
            }
            Feed::Wait { until_ns } => ("wait", until_ns).into_pyobject(py),
            Feed::Leave => ("leave",).into_pyobject(py),
        }
    }
    fn sent(&mut self, link: usize, size: i64, count: i64, now_ns: i64) -> PyResult<()> {
        guarded(|| self.core.sent(link, size, count, now_ns))
    }
    fn waited(&mut self, plain: bool) {
        self.core.waited(plain);
    }
    fn received(&mut self, link: usize, data: &[u8], written: i64, now_ns: i64) -> PyResult<bool> {
        guarded(|| self.core.received(link, data, written, now_ns))
    }
    fn rang(&mut self, done: bool) {
        self.core.rang(done);
    }
}

/// The slave's end.
#[pyclass(module = "whimbrel_lane")]
pub struct Following {
    core: replica::Following,
}

#[pymethods]
impl Following {
    /// `log`: its end, where its file ends, and where Python wants to be back; `reported`: the offset and when;
    /// `rung`: whether the broker is to be rung, when it was, and how far apart; `buffer`: filled and parsed; `sync`:
    /// only what is on disk is reported; `leader`: epoch, its start, where the next one starts, the commit offset
    /// that was heard, and the one that is shown.
    #[new]
    #[pyo3(signature = (log, reported, received_ns, rung, buffer, limits, sync=false, leader=None))]
    #[allow(clippy::too_many_arguments)] // as Python calls it
    fn new(
        log: (i64, i64, i64),
        reported: (i64, i64),
        received_ns: i64,
        rung: (bool, i64, i64),
        buffer: (usize, usize),
        limits: LimitsOf,
        sync: bool,
        leader: Option<(i32, i64, i64, i64, i64)>,
    ) -> Self {
        let room = Room { limit: log.1, wake_at: log.2 };
        let mut core = replica::Following::new(log.0, reported.0, room, limits_of(limits), rung.2);
        (core.reported_ns, core.received_ns) = (reported.1, received_ns);
        (core.ring_due, core.rung_ns) = (rung.0, rung.1);
        (core.filled, core.parsed) = buffer;
        if sync {
            core.flush_first();
        }
        core.leader = leader
            .map(|(epoch, start, end, commit, shown)| Leader::new(Era { epoch, start, end }, commit, shown));
        Self { core }
    }
    #[getter]
    fn end(&self) -> i64 {
        self.core.end
    }
    #[getter]
    fn reported(&self) -> (i64, i64) {
        (self.core.reported, self.core.reported_ns)
    }
    #[getter]
    fn received_ns(&self) -> i64 {
        self.core.received_ns
    }
    #[getter]
    fn rung(&self) -> (bool, i64) {
        (self.core.ring_due, self.core.rung_ns)
    }
    #[getter]
    fn commit(&self) -> i64 {
        self.core.leader.as_ref().map_or(-1, |leader| leader.commit)
    }
    #[getter]
    fn buffer(&self) -> (usize, usize) {
        (self.core.filled, self.core.parsed)
    }
    #[getter]
    fn unsent<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.core.unsent)
    }
    #[getter]
    fn timed_out(&self) -> bool {
        self.core.timed_out
    }

    // For a caller with other system calls

    #[pyo3(signature = (buffer, now_ns, settled=true, flushed=0))]
    fn next<'py>(
        &mut self,
        buffer: &Bound<'py, PyAny>,
        now_ns: i64,
        settled: bool,
        flushed: i64,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (py, shown) = (buffer.py(), Shown { settled, flushed });
        let next =
            crate::views::with_bytes(buffer, |bytes| guarded(|| self.core.next(bytes, shown, now_ns)))?;
        match next? {
            Follow::Append { from, size, at } => ("append", from, size, at).into_pyobject(py),
            Follow::Publish { end } => ("publish", end).into_pyobject(py),
            Follow::Flush { end } => ("flush", end).into_pyobject(py),
            Follow::Hear { commit } => ("hear", commit).into_pyobject(py),
            Follow::Report { offset } => {
                ("report", offset, PyBytes::new(py, &self.core.report())).into_pyobject(py)
            }
            Follow::Ring => ("ring",).into_pyobject(py),
            Follow::Wait { until_ns } => ("wait", until_ns).into_pyobject(py),
            Follow::Leave => ("leave",).into_pyobject(py),
        }
    }
    fn appended(&mut self, size: usize, done: bool) -> PyResult<()> {
        guarded(|| self.core.appended(size, done))
    }
    fn sent_report(&mut self, count: usize, now_ns: i64) -> PyResult<()> {
        guarded(|| self.core.reported(count, now_ns))
    }
    fn rang(&mut self, done: bool, now_ns: i64) {
        self.core.rang(done, now_ns);
    }
    fn waited(&mut self, plain: bool) {
        self.core.waited(plain);
    }
    fn make_room(&mut self, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        crate::views::with_bytes(buffer, |bytes| guarded(|| self.core.make_room(bytes)))?
    }
    fn received(&mut self, count: usize, now_ns: i64) {
        self.core.received(count, now_ns);
    }
}

/// Where the cells of the page of marks are.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Places {
    epoch: usize,
    begin: usize,
    written: usize,
    replaced: usize,
    log_beat: usize,
    replica_beat: usize,
    replica_sleeping: usize,
    replica_pass: usize,
    broker_sleeping: usize,
    broker_beat: usize,
    commit: usize,
    commit_saw: usize,
    flushed: usize,
    heard: usize,
    heard_commit: usize,
    acks: usize,
    sent: usize,
    sent_bytes: usize,
}

/// Descriptors that both ends have; -1 for a bell that was not rung yet.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Descriptors {
    epoll: RawFd,
    bell: RawFd,
    broker_bell: RawFd,
    wakeup: RawFd,
    log: RawFd,
}

/// Cells of the page that a run stands on, with what they held when it began: their places and values.
type Watched = Vec<(usize, i64)>;

/// What both loops share: the page, the bells, the wait.
struct Shell<'a> {
    page: &'a Memory<'a>,
    marks: [&'a AtomicI64; 4],
    written: &'a AtomicI64,
    log_beat: &'a AtomicI64,
    beat: &'a AtomicI64,
    sleeping: &'a AtomicI64,
    pass: &'a AtomicI64,
    broker_sleeping: &'a AtomicI64,
    epoll: BorrowedFd<'a>,
    bell: BorrowedFd<'a>,
    broker_bell: Option<BorrowedFd<'a>>,
    wakeup: BorrowedFd<'a>,
    log: BorrowedFd<'a>,
    watched: Vec<(&'a AtomicI64, i64)>,
}

/// How a wait ended.
struct Woken {
    /// By nothing but the bell and sockets that may be read.
    plain: bool,
    /// Of these sockets, by their position.
    ready: u32,
}

fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

impl<'a> Shell<'a> {
    fn new(
        page: &'a Memory<'a>,
        places: &Places,
        descriptors: &Descriptors,
        watched: &Watched,
    ) -> PyResult<Self> {
        let Descriptors { epoll, bell, broker_bell, wakeup, log } = *descriptors;
        let watched = watched.iter().map(|(place, value)| Ok((page.cell(*place)?, *value)));
        Ok(Self {
            watched: watched.collect::<PyResult<_>>()?,
            page,
            marks: [
                page.cell(places.begin)?,
                page.cell(places.written)?,
                page.cell(places.replaced)?,
                page.cell(places.epoch)?,
            ],
            written: page.cell(places.written)?,
            log_beat: page.cell(places.log_beat)?,
            beat: page.cell(places.replica_beat)?,
            sleeping: page.cell(places.replica_sleeping)?,
            pass: page.cell(places.replica_pass)?,
            broker_sleeping: page.cell(places.broker_sleeping)?,
            epoll: descriptor(epoll)?,
            bell: descriptor(bell)?,
            broker_bell: (broker_bell >= 0).then(|| descriptor(broker_bell)).transpose()?,
            wakeup: descriptor(wakeup)?,
            log: descriptor(log)?,
        })
    }

    /// Whether the cells that the run stands on are as they were.
    fn settled(&self) -> bool {
        self.watched.iter().all(|(cell, value)| cell.load(Acquire) == *value)
    }

    fn marks(&self) -> Marks {
        // The epoch last: it is 0 before any of the others says anything of another log.
        let [begin, written, replaced, epoch] = self.marks.map(|cell| cell.load(Acquire));
        Marks { epoch, begin, written, replaced }
    }

    /// Decide, with the cell of the page set: no system call, and nothing is written.
    fn decide<T>(&self, work: impl FnOnce() -> T) -> T {
        self.pass.store(1, Release);
        let decided = work();
        self.pass.store(0, Release);
        decided
    }

    /// Wake the broker if it sleeps; whether there was a way to.
    fn ring(&self) -> bool {
        fence(SeqCst);
        if self.broker_sleeping.load(Acquire) == 0 {
            return true;
        }
        let Some(bell) = self.broker_bell else { return false };
        matches!(send(bell, b"!", FLAGS), Ok(_) | Err(Errno::AGAIN)) // a full queue wakes it anyway
    }

    /// Wait for sockets and the bell, as `replicator/loop.py` does.
    fn wait(&self, until_ns: i64, sockets: &[RawFd], idle: impl FnOnce() -> bool) -> Woken {
        let now = now_ns();
        self.beat.store(now, Release);
        let mut left_ns = (until_ns - now).max(0);
        if left_ns > 0 {
            self.sleeping.store(1, Release);
            fence(SeqCst);
            if !idle() {
                left_ns = 0;
            }
        }
        let timeout = Timespec { tv_sec: left_ns / 1_000_000_000, tv_nsec: left_ns % 1_000_000_000 };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        let done = epoll::wait(self.epoll, spare_capacity(&mut events), Some(&timeout));
        self.sleeping.store(0, Release);
        fence(SeqCst);
        let mut woken = Woken { plain: done.is_ok(), ready: 0 };
        for event in &events {
            let fd = event.data.u64() as u32 as RawFd; // Python sets 32 of the 64 bits
            let flags = event.flags;
            let readable = flags == epoll::EventFlags::IN;
            if fd == self.bell.as_raw() && readable {
                let mut ring = [0_u8];
                // Whether there was one makes no difference: the marks are read anew.
                let _ = recv(self.bell, &mut ring[..], RecvFlags::DONTWAIT);
            } else if fd == self.wakeup.as_raw() && readable {
                let mut words = [0_u8; 64];
                let words = received(self.wakeup, &mut words);
                woken.plain &= words.iter().all(|word| *word == FLUSHED);
            } else if let Some(number) = sockets.iter().position(|one| *one == fd).filter(|_| readable) {
                woken.ready |= 1 << number;
            } else {
                woken.plain = false;
            }
        }
        woken
    }
}

trait Raw {
    fn as_raw(&self) -> RawFd;
}
impl Raw for BorrowedFd<'_> {
    fn as_raw(&self) -> RawFd {
        std::os::fd::AsRawFd::as_raw_fd(self)
    }
}

/// Receive what has come; nothing where the connection is Python's to look at.
fn received(sock: impl AsFd, room: &mut [u8]) -> &[u8] {
    match recv(sock, &mut *room, RecvFlags::DONTWAIT) {
        Ok((count, _)) => &room[..count],
        Err(_) => &[],
    }
}

/// Feed slaves until the run ends. `file_start`: of the log's file; `sockets`: of the links, in their order; `watched`:
/// for a group that commits by majority.
#[pyfunction]
#[pyo3(signature = (feeding, page, places, descriptors, file_start, sockets, watched))]
#[allow(clippy::needless_pass_by_value, clippy::too_many_arguments)] // as Python calls it
pub fn feed(
    py: Python<'_>,
    feeding: &mut Feeding,
    page: &Bound<'_, PyAny>,
    places: Places,
    descriptors: Descriptors,
    file_start: i64,
    sockets: Vec<RawFd>,
    watched: Watched,
) -> PyResult<()> {
    let held = Held::of(page)?;
    let memory = held.memory();
    let by_majority = feeding.beats_ns.is_some();
    let core = &mut feeding.core;
    py.detach(|| {
        let memory = memory; // all of it, for this thread
        let shell = Shell::new(&memory, &places, &descriptors, &watched)?;
        let socks = sockets.iter().map(|fd| descriptor(*fd)).collect::<PyResult<Vec<_>>>()?;
        let column = |at: usize| {
            core.links.iter().map(|link| shell.page.cell(at + 8 * link.slot)).collect::<PyResult<Vec<_>>>()
        };
        let (acks, sent, sent_bytes) =
            (column(places.acks)?, column(places.sent)?, column(places.sent_bytes)?);
        if socks.len() != core.links.len() {
            return Err(pyo3::exceptions::PyValueError::new_err("each link has a socket"));
        }
        let (saw, commit, beat) = (
            shell.page.cell(places.commit_saw)?,
            shell.page.cell(places.commit)?,
            shell.page.cell(places.broker_beat)?,
        );
        let lead = || {
            if !by_majority {
                return Lead::default();
            }
            let saw = saw.load(Acquire); // before the commit offset, which may be later than that, never earlier
            let (commit, beat_ns) = (commit.load(Acquire), beat.load(Acquire));
            Lead { saw, commit, beat_ns, settled: shell.settled() }
        };
        let mut frame = vec![0; HEAD_MAX + SENDFILE_BYTES_MIN as usize];
        let mut reports = [0; REPORTS_BYTES_MAX];
        guarded(|| {
            loop {
                let (marks, shown) = (shell.marks(), lead());
                match shell.decide(|| core.next(marks, shown, now_ns())) {
                    Feed::Leave => return,
                    Feed::Send { link, at, size, head } => {
                        let count =
                            send_frame(socks[link], shell.log, at - file_start, &head, size, &mut frame);
                        core.sent(link, size, count, now_ns());
                        sent[link].store(core.links[link].next, Release);
                        sent_bytes[link].store(core.links[link].sent_bytes, Release);
                    }
                    Feed::Wait { until_ns } => {
                        let idle = || shell.marks() == marks && lead().same(&shown);
                        let woken = shell.wait(until_ns, &sockets, idle);
                        core.waited(woken.plain);
                        for number in (0..socks.len()).filter(|number| woken.ready & 1 << number != 0) {
                            let data = received(socks[number], &mut reports);
                            let written = shell.marks().written;
                            if shell.decide(|| core.received(number, data, written, now_ns())) {
                                acks[number].store(core.links[number].acknowledged, Release);
                            }
                        }
                        if core.moved {
                            core.rang(shell.ring());
                        }
                    }
                }
            }
        })
    })
}

/// Send a frame with `size` bytes of a file from `position` on; how many of its bytes were taken.
fn send_frame(
    sock: BorrowedFd<'_>,
    log: BorrowedFd<'_>,
    position: i64,
    head: &Head,
    size: i64,
    room: &mut [u8],
) -> i64 {
    let head = head.bytes();
    if size < SENDFILE_BYTES_MIN {
        let frame = &mut room[..head.len() + size as usize];
        let (begin, body) = frame.split_at_mut(head.len());
        begin.copy_from_slice(head);
        if !body.is_empty() && !pread(log, &mut *body, position as u64).is_ok_and(|count| count == body.len())
        {
            return 0; // Python says what is wrong
        }
        return send(sock, frame, FLAGS).map_or(0, |count| count as i64);
    }
    let begun = send(sock, head, FLAGS | SendFlags::MORE).unwrap_or(0);
    let (mut count, mut from) = (0, position as u64);
    while begun == head.len() && count < size {
        match sendfile(sock, log, Some(&mut from), (size - count) as usize) {
            Ok(some) if some > 0 => count += some as i64,
            _ => break,
        }
    }
    begun as i64 + count
}

/// Follow a master until the run ends. `buffer` holds what was received, `mapped` the log's file from `base` on;
/// `watched`: see there; `flush` asks for the log to be put on disk, up to an end.
#[pyfunction]
#[allow(clippy::needless_pass_by_value, clippy::too_many_arguments)] // as Python calls it
pub fn follow(
    py: Python<'_>,
    following: &mut Following,
    page: &Bound<'_, PyAny>,
    places: Places,
    descriptors: Descriptors,
    socket: RawFd,
    buffer: &Bound<'_, PyAny>,
    mapped: &Bound<'_, PyAny>,
    base: i64,
    watched: Watched,
    flush: Py<PyAny>,
) -> PyResult<()> {
    let (page, mapped) = (Held::of(page)?, Held::of(mapped)?);
    let (page, mapped) = (page.memory(), mapped.memory());
    let core = &mut following.core;
    crate::views::with_bytes(buffer, |buffer| {
        py.detach(|| {
            let (page, mapped) = (page, mapped); // all of them, for this thread
            let shell = Shell::new(&page, &places, &descriptors, &watched)?;
            let sock = descriptor(socket)?;
            let flushed = shell.page.cell(places.flushed)?;
            let (heard, heard_commit) =
                (shell.page.cell(places.heard)?, shell.page.cell(places.heard_commit)?);
            let shown = || Shown { settled: shell.settled(), flushed: flushed.load(Acquire) };
            guarded(|| {
                loop {
                    let seen = shown();
                    match shell.decide(|| core.next(buffer, seen, now_ns())) {
                        Follow::Leave => return,
                        Follow::Append { from, size, at } => {
                            let (body, position) = (&buffer[from..from + size], (at - base) as usize);
                            let done = if size < PWRITE_BYTES_MIN {
                                mapped.put(position, body)
                            } else {
                                write_all(shell.log, body, position as u64)
                            };
                            core.appended(size, done);
                        }
                        Follow::Publish { end } => {
                            shell.written.store(end, Release);
                            shell.log_beat.store(now_ns(), Release);
                        }
                        Follow::Flush { end } => {
                            core.asked(Python::attach(|py| flush.call1(py, (end,)).is_ok()));
                        }
                        Follow::Hear { commit } => {
                            heard.store(now_ns(), Release);
                            heard_commit.store(commit, Release);
                        }
                        Follow::Report { .. } => {
                            let report = core.report();
                            core.reported(send(sock, &report, FLAGS).unwrap_or(0), now_ns());
                        }
                        Follow::Ring => core.rang(shell.ring(), now_ns()),
                        Follow::Wait { until_ns } => {
                            shell.log_beat.store(now_ns(), Release);
                            let woken = shell.wait(until_ns, &[socket], || shown() == seen);
                            core.waited(woken.plain);
                            if woken.ready != 0 {
                                let filled = core.make_room(buffer);
                                core.received(received(sock, &mut buffer[filled..]).len(), now_ns());
                            }
                        }
                    }
                }
            })
        })
    })?
}

/// Write all of a piece, or nothing that counts.
fn write_all(file: BorrowedFd<'_>, mut data: &[u8], mut position: u64) -> bool {
    while !data.is_empty() {
        match pwrite(file, data, position) {
            Ok(count) if count > 0 => {
                data = &data[count..];
                position += count as u64;
            }
            _ => return false,
        }
    }
    true
}
