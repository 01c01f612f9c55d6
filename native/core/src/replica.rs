//! Replication in its steady state: what the loops of both ends decide, without input or output.
//!
//! Each end is a state machine that says what to do next; its caller does that, and says how it went. The binding
//! does it with system calls, the simulation with its own network and clock.
//!
//! ```text
//! Feeding    Send ──► `sent`      a frame to a slave: header, body from the log
//! (master)   Wait ──► `waited`, `received` for each slave that has reported; then marks, the bell, and on
//!            Leave                Python goes on: time is up, or something is not plain
//!
//! Following  Append ──► `appended`     a body goes into the log
//! (slave)    Publish                   the written mark, before the report
//!            Flush ──► `asked`         have the log on disk up to there, where that is what is reported
//!            Hear                      what the leader of a group that commits by majority has said
//!            Report ──► `reported`     the new end, to the master
//!            Ring ──► `rang`           the broker beside, not more often than every so often
//!            Wait ──► `waited`, `received` where bytes have come
//!            Leave                     as above
//! ```
//!
//! Plain are: a log that goes on in the file that it is in, whole frames that fit into the buffer, reports of what was
//! sent. All else ends the run: connections that come and go, heartbeats, wrong offsets, the end of a file, a socket
//! that takes no more. What had been begun then is in the state, and Python has the same rules
//! (`ha/protocol.py`, `replicator/`).
//!
//! **In a group that commits by majority** (`members.rs`) members and observers are fed side by side. Plain are, besides:
//! frames of the epoch in which the log goes on, short of the next one's start; frames without a body; observers for
//! whom something is committed. The run ends as soon as one of the page's cells that it stands on is another
//! (`settled`): the leader's epoch, its log, the voters, the role, a promise that is asked for, the leader that is
//! named; or as the broker beside does not beat any more, or too few voters have reported lately.
//!
//! **A slave that flushes synchronously** reports what is on disk: the flush thread is Python's, is asked to go on
//! after each `Publish`, and shows in the page how far it has come.

use crate::members::{self, Group, Lead, Leader, Member};

pub const FRAME_HEAD: usize = 12; // where its body stands, and the body's size
pub const REPORT: usize = 8;
/// The longest head of a frame.
pub const HEAD_MAX: usize = members::HEAD;
/// Bytes to one slave before the others have their turn.
const TURN_BYTES: i64 = 8 << 20;
/// Notes of one run: of the log's ends and of acknowledgements.
const NOTES_MAX: usize = 1024;

/// What another process shows of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    pub epoch: i64,
    pub begin: i64,
    pub written: i64,
    pub replaced: i64,
}

/// A connection to a slave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    pub slot: usize,
    pub next: i64,
    pub acknowledged: i64,
    pub sent_bytes: i64,
    pub sent_ns: i64,
    pub received_ns: i64,
    /// Less than a report.
    pub partial: Vec<u8>,
    /// Reports that are not plain; Python takes them.
    pub unread: Vec<u8>,
    /// A frame of which the socket took a part: where its body stands, its size, and how much was taken.
    pub rest: Option<(i64, i64, i64)>,
    /// Bytes that were sent since the last wait.
    pub turn: i64,
    /// Where it speaks the members' dialect.
    pub member: Option<Member>,
}

impl Link {
    /// Up to where it may be sent the log: an observer gets what is committed (R12).
    fn end(&self, marks: &Marks, group: Option<&(Group, Lead)>) -> i64 {
        match group {
            Some((_, lead)) if self.member.is_none() => marks.written.min(lead.commit),
            _ => marks.written,
        }
    }

    /// The reports that `data` completes, and what is left over; none where one is not plain. `most`: no slave can hold
    /// more.
    fn reports(&self, data: &[u8], most: i64) -> Option<(Option<i64>, Vec<u8>)> {
        let joined = [&self.partial[..], data].concat();
        if let Some(member) = &self.member {
            return member.reports(&joined, self.acknowledged, most);
        }
        let reports = joined.chunks_exact(REPORT);
        let partial = reports.remainder().to_vec();
        let mut offsets = reports.map(|report| i64::from_be_bytes(report.try_into().expect("8 bytes")));
        if offsets.clone().any(|offset| !(0..=most).contains(&offset)) {
            return None;
        }
        Some((offsets.next_back(), partial))
    }
}

/// What bounds a run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub heartbeat_ns: i64,
    pub silence_ns: i64,
    /// When Python wants to be back.
    pub until_ns: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feed {
    /// Send a frame to a slave: a head, and `size` bytes of the log.
    Send {
        link: usize,
        at: i64,
        size: i64,
        head: Head,
    },
    /// Wait for reports, the bell, and whatever else; not at all if that time has come.
    Wait {
        until_ns: i64,
    },
    Leave,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; HEAD_MAX],
    size: usize,
}

impl Head {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

impl From<[u8; members::HEAD]> for Head {
    fn from(bytes: [u8; members::HEAD]) -> Self {
        Self { bytes, size: members::HEAD }
    }
}

/// The head of a frame of the classic protocol.
fn classic_head(at: i64, size: i64) -> Head {
    let mut bytes = [0; HEAD_MAX];
    bytes[..8].copy_from_slice(&at.to_be_bytes());
    bytes[8..FRAME_HEAD].copy_from_slice(&(size as i32).to_be_bytes());
    Head { bytes, size: FRAME_HEAD }
}

/// A moment of the log, for metrics: it was written up to there, or a slave has acknowledged so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    pub acknowledged: bool,
    pub offset: i64,
    pub at_ns: i64,
}

/// The master's end, with all its connections.
pub struct Feeding {
    pub links: Vec<Link>,
    /// Acknowledgements have moved: the broker is to be rung.
    pub moved: bool,
    /// Whether the run has ended because its time was up.
    pub timed_out: bool,
    left: bool,
    pub notes: Vec<Note>,
    /// Of a group that commits by majority, with what its leader's broker showed last.
    group: Option<(Group, Lead)>,
    marks: Marks,
    frame_max: i64,
    file: std::ops::Range<i64>,
    limits: Limits,
    notes_max: usize,
    cursor: usize,
}

impl Feeding {
    /// Feed from a log as it is now, whose file ends at `file.end`; with notes where they are wanted.
    pub fn new(
        marks: Marks,
        frame_max: i64,
        file: std::ops::Range<i64>,
        limits: Limits,
        notes: bool,
    ) -> Self {
        Self {
            links: vec![],
            moved: false,
            timed_out: false,
            notes: vec![],
            group: None,
            marks,
            frame_max,
            file,
            limits,
            notes_max: if notes { NOTES_MAX } else { 0 },
            cursor: 0,
            left: false,
        }
    }

    /// The group commits by majority.
    pub fn by_majority(&mut self, group: Group) {
        self.group = Some((group, Lead::default()));
    }

    /// Where the log ended when it was last looked at.
    pub fn written(&self) -> i64 {
        self.marks.written
    }

    fn note(&mut self, acknowledged: bool, offset: i64, at_ns: i64) {
        if self.notes_max > 0 {
            self.notes.push(Note { acknowledged, offset, at_ns });
        }
    }

    fn leave(&mut self) -> Feed {
        self.left = true;
        Feed::Leave
    }

    /// Whether the leader may go on to feed members; always, where the group does not commit by majority.
    fn leads(&mut self, lead: Lead, now_ns: i64) -> bool {
        let Some((group, shown)) = &mut self.group else { return true };
        *shown = lead;
        group.leads(&lead, &self.links, now_ns)
    }

    /// Say what to do with the log as it is now, and with what the broker beside shows of its group.
    pub fn next(&mut self, marks: Marks, lead: Lead, now_ns: i64) -> Feed {
        let same = marks.epoch == self.marks.epoch && marks.replaced == self.marks.replaced;
        if self.left || !same || !self.leads(lead, now_ns) {
            return self.leave();
        }
        if self.notes.len() + self.links.len() > self.notes_max.max(SLAVES_MAX) {
            self.timed_out = true;
            return self.leave();
        }
        if marks.written != self.marks.written {
            self.note(false, marks.written, now_ns);
        }
        self.marks = marks;
        let mut busy = false;
        for _ in 0..self.links.len() {
            let number = self.cursor % self.links.len();
            let link = &self.links[number];
            let (at, end) = (link.next, link.end(&marks, self.group.as_ref()));
            if at < marks.begin || at > end {
                return self.leave();
            }
            if at < end && link.turn < TURN_BYTES {
                if !self.file.contains(&at) {
                    return self.leave();
                }
                let longest = self.frame_max - at % self.frame_max;
                let size = (end - at).min(self.file.end - at).min(longest);
                return self.frame(number, at, size);
            }
            if at == end
                && link.member.as_ref().is_some_and(|member| member.due(&lead, link.sent_ns) <= now_ns)
            {
                return self.frame(number, at, 0);
            }
            busy |= at < end;
            self.cursor += 1;
        }
        let silent = self.links.iter().map(|link| link.received_ns + self.limits.silence_ns);
        let idle = self.links.iter().filter(|link| link.member.is_none());
        let idle = idle.map(|link| link.sent_ns + self.limits.heartbeat_ns);
        let due = silent.chain(idle).min().unwrap_or(0);
        if now_ns >= due {
            return self.leave();
        }
        if now_ns >= self.limits.until_ns {
            self.timed_out = true;
            return self.leave();
        }
        if busy {
            return Feed::Wait { until_ns: now_ns };
        }
        let told = self.links.iter().filter_map(|link| Some(link.member.as_ref()?.due(&lead, link.sent_ns)));
        Feed::Wait { until_ns: told.fold(due.min(self.limits.until_ns), i64::min) }
    }

    /// A frame to a slave, which ends with the epoch that its first byte is in.
    fn frame(&mut self, number: usize, at: i64, size: i64) -> Feed {
        let lead = self.group.as_ref().map(|(_, lead)| *lead).unwrap_or_default();
        let Some(member) = &mut self.links[number].member else {
            return Feed::Send { link: number, at, size, head: classic_head(at, size) };
        };
        let Some((size, head)) = member.frame(at, size, &lead) else { return self.leave() };
        Feed::Send { link: number, at, size, head: head.into() }
    }

    /// Take note that a frame was sent, or how many of its bytes were.
    pub fn sent(&mut self, number: usize, size: i64, count: i64, now_ns: i64) {
        let link = &mut self.links[number];
        let whole = if link.member.is_some() { members::HEAD } else { FRAME_HEAD } as i64 + size;
        if count > 0 {
            if let Some(member) = &mut link.member {
                member.told();
            }
            if count < whole {
                link.rest = Some((link.next, size, count));
            }
            link.next += size;
            link.sent_bytes += count;
            link.turn += count;
            link.sent_ns = now_ns;
        }
        self.left |= count < whole;
    }

    /// Take note that a wait is over; `plain`: nothing but the bell and slaves' bytes were the cause.
    pub fn waited(&mut self, plain: bool) {
        for link in &mut self.links {
            link.turn = 0;
        }
        self.left |= !plain;
    }

    /// Take a slave's bytes while the log ends at `written`; whether they acknowledge something new.
    pub fn received(&mut self, number: usize, data: &[u8], written: i64, now_ns: i64) -> bool {
        let link = &mut self.links[number];
        let most = written.min(link.next);
        let found = if data.is_empty() { None } else { link.reports(data, most) };
        let Some((newest, partial)) = found else {
            link.unread = data.to_vec();
            self.left = true;
            return false;
        };
        link.received_ns = now_ns;
        link.partial = partial;
        match newest {
            Some(offset) if offset != link.acknowledged => {
                link.acknowledged = offset;
                self.moved = true;
                self.note(true, offset, now_ns);
                true
            }
            _ => false,
        }
    }

    /// Take note that the broker was rung, or could not be.
    pub fn rang(&mut self, done: bool) {
        self.moved = !done;
        self.left |= !done;
    }
}

/// Connections of one master.
pub const SLAVES_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Put `size` bytes from a place in the buffer into the log.
    Append {
        from: usize,
        size: usize,
        at: i64,
    },
    /// Show where the log ends now.
    Publish {
        end: i64,
    },
    /// Have the log on disk up to there.
    Flush {
        end: i64,
    },
    /// Show that the leader has said something, and how far the log is committed, as far as it goes here.
    Hear {
        commit: i64,
    },
    Report {
        offset: i64,
    },
    Ring,
    /// Wait for bytes, and whatever else.
    Wait {
        until_ns: i64,
    },
    Leave,
}

/// The slave's end.
#[derive(Clone, Debug)]
pub struct Following {
    /// Where the log ends.
    pub end: i64,
    pub reported: i64,
    pub reported_ns: i64,
    pub received_ns: i64,
    pub ring_due: bool,
    pub rung_ns: i64,
    /// The buffer holds bytes up to here, of which those before `parsed` are done with.
    pub filled: usize,
    pub parsed: usize,
    /// What the socket did not take of a report.
    pub unsent: Vec<u8>,
    /// Whether the run has ended because its time was up.
    pub timed_out: bool,
    pub room: Room,
    pub limits: Limits,
    pub ring_apart_ns: i64,
    /// The leader, where it speaks the members' dialect.
    pub leader: Option<Leader>,
    /// Up to where a flush was asked for, where only what is on disk is reported.
    flushing: Option<i64>,
    published: i64,
    reporting: i64,
    left: bool,
}

/// What the page shows besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The cells that the run stands on are as they were.
    pub settled: bool,
    /// The log is on disk up to there.
    pub flushed: i64,
}

/// How far the log may grow here.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Where the file ends.
    pub limit: i64,
    /// From there on Python has something to do.
    pub wake_at: i64,
}

impl Following {
    /// Go on where a log ends that was reported up to `reported`.
    pub fn new(end: i64, reported: i64, room: Room, limits: Limits, ring_apart_ns: i64) -> Self {
        Self {
            end,
            reported,
            reported_ns: 0,
            received_ns: 0,
            ring_due: false,
            rung_ns: 0,
            filled: 0,
            parsed: 0,
            unsent: vec![],
            timed_out: false,
            room,
            limits,
            ring_apart_ns,
            leader: None,
            flushing: None,
            published: end,
            reporting: reported,
            left: false,
        }
    }

    /// Report only what is on disk; whoever has appended what is there has asked for a flush.
    pub fn flush_first(&mut self) {
        self.flushing = Some(self.end);
    }

    /// Say what to do with what is in the buffer.
    pub fn next(&mut self, buffer: &[u8], shown: Shown, now_ns: i64) -> Follow {
        self.left |= !shown.settled;
        if !self.left {
            if let Some((from, size)) = self.frame(buffer) {
                return Follow::Append { from, size, at: self.end };
            }
        }
        if self.end != self.published {
            self.published = self.end;
            self.ring_due = true;
            return Follow::Publish { end: self.end };
        }
        if self.flushing.is_some_and(|end| end < self.published) {
            self.flushing = Some(self.published);
            return Follow::Flush { end: self.published };
        }
        if let Some((commit, moved)) = self.leader.as_mut().and_then(|leader| leader.hear(self.published)) {
            self.ring_due |= moved;
            return Follow::Hear { commit };
        }
        let held = self.flushing.map_or(self.published, |_| self.published.min(shown.flushed));
        if self.reported < held && self.unsent.is_empty() {
            self.reporting = held;
            return Follow::Report { offset: held };
        }
        if self.ring_due && now_ns - self.rung_ns >= self.ring_apart_ns {
            return Follow::Ring;
        }
        let due =
            (self.received_ns + self.limits.silence_ns).min(self.reported_ns + self.limits.heartbeat_ns);
        if self.left || now_ns >= due {
            self.left = true;
            return Follow::Leave;
        }
        if now_ns >= self.limits.until_ns {
            self.timed_out = true;
            self.left = true;
            return Follow::Leave;
        }
        let mut until_ns = due.min(self.limits.until_ns);
        if self.ring_due {
            until_ns = until_ns.min(self.rung_ns + self.ring_apart_ns);
        }
        Follow::Wait { until_ns }
    }

    fn head_bytes(&self) -> usize {
        if self.leader.is_some() { members::HEAD } else { FRAME_HEAD }
    }

    /// The body of the next frame in the buffer, if it is all there and plain. Of a leader, frames without a body
    /// before it are taken.
    fn frame(&mut self, buffer: &[u8]) -> Option<(usize, usize)> {
        let head = self.head_bytes();
        loop {
            let data = &buffer[self.parsed..self.filled];
            if data.len() < head {
                return None;
            }
            let found = match &mut self.leader {
                None => classic_frame(data),
                Some(leader) => leader.frame(data, self.end),
            };
            let fits = found.filter(|(offset, size)| {
                let size = *size as usize;
                let room = self.room.limit - self.end;
                *offset == self.end && size + head <= buffer.len() && size as i64 <= room
            });
            let Some((_, size)) = fits else {
                self.left = true;
                return None;
            };
            if size == 0 {
                self.parsed += head;
                self.took_frame();
                continue;
            }
            return (data.len() - head >= size as usize).then_some((self.parsed + head, size as usize));
        }
    }

    /// Take note of what the frame that was found last says.
    fn took_frame(&mut self) {
        if let Some(leader) = &mut self.leader {
            leader.took();
        }
    }

    /// Take note that the log has a frame's body, or could not take it.
    pub fn appended(&mut self, size: usize, done: bool) {
        if !done {
            self.left = true;
            return;
        }
        self.end += size as i64;
        self.parsed += self.head_bytes() + size;
        self.took_frame();
        self.left |= self.end >= self.room.wake_at || self.end == self.room.limit;
    }

    /// Take note that a flush was asked for, or could not be.
    pub fn asked(&mut self, done: bool) {
        self.left |= !done;
    }

    /// The bytes of the report that is due.
    pub fn report(&self) -> Vec<u8> {
        match &self.leader {
            None => self.reporting.to_be_bytes().to_vec(),
            Some(_) => members::report(self.reporting).to_vec(),
        }
    }

    /// Take note of how much of a report was sent.
    pub fn reported(&mut self, count: usize, now_ns: i64) {
        let report = self.report();
        (self.reported, self.reported_ns) = (self.reporting, now_ns);
        self.unsent = report[count.min(report.len())..].to_vec();
        self.left |= !self.unsent.is_empty();
    }

    /// Take note that the broker was rung, or could not be.
    pub fn rang(&mut self, done: bool, now_ns: i64) {
        if done {
            (self.ring_due, self.rung_ns) = (false, now_ns);
        } else {
            self.left = true;
            self.rung_ns = now_ns;
        }
    }

    /// Take note that a wait is over; `plain`: nothing but the bell and bytes were the cause.
    pub fn waited(&mut self, plain: bool) {
        self.left |= !plain;
    }

    /// Make room in the buffer behind what is not parsed; where the next bytes go.
    pub fn make_room(&mut self, buffer: &mut [u8]) -> usize {
        if self.parsed > 0 {
            buffer.copy_within(self.parsed..self.filled, 0);
            self.filled -= self.parsed;
            self.parsed = 0;
        }
        self.filled
    }

    /// Take note of bytes that came; with none, the connection is Python's.
    pub fn received(&mut self, count: usize, now_ns: i64) {
        if count == 0 {
            self.left = true;
        } else {
            self.filled += count;
            self.received_ns = now_ns;
            if let Some(leader) = &mut self.leader {
                leader.news = true;
            }
        }
    }
}

/// Where a frame's body stands, and its size, if it has one.
fn classic_frame(data: &[u8]) -> Option<(i64, i32)> {
    let offset = i64::from_be_bytes(data[..8].try_into().expect("8 bytes"));
    let size = i32::from_be_bytes(data[8..FRAME_HEAD].try_into().expect("4 bytes"));
    (size > 0).then_some((offset, size))
}
