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

pub const FRAME_HEAD: usize = 12; // where its body stands, and the body's size
pub const REPORT: usize = 8;
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
    /// Send a frame to a slave, with `size` bytes of the log.
    Send {
        link: usize,
        at: i64,
        size: i64,
    },
    /// Wait for reports, the bell, and whatever else; not at all if that time has come.
    Wait {
        until_ns: i64,
    },
    Leave,
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
            marks,
            frame_max,
            file,
            limits,
            notes_max: if notes { NOTES_MAX } else { 0 },
            cursor: 0,
            left: false,
        }
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

    /// Say what to do with the log as it is now.
    pub fn next(&mut self, marks: Marks, now_ns: i64) -> Feed {
        let same = marks.epoch == self.marks.epoch && marks.replaced == self.marks.replaced;
        if self.left || !same {
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
            if link.next < marks.begin || link.next > marks.written {
                return self.leave();
            }
            if link.next < marks.written && link.turn < TURN_BYTES {
                let at = link.next;
                if !self.file.contains(&at) {
                    return self.leave();
                }
                let longest = self.frame_max - at % self.frame_max;
                let size = (marks.written - at).min(self.file.end - at).min(longest);
                return Feed::Send { link: number, at, size };
            }
            busy |= link.next < marks.written;
            self.cursor += 1;
        }
        let due = self.links.iter().map(|link| {
            (link.received_ns + self.limits.silence_ns).min(link.sent_ns + self.limits.heartbeat_ns)
        });
        let due = due.min().unwrap_or(0);
        if now_ns >= due {
            return self.leave();
        }
        if now_ns >= self.limits.until_ns {
            self.timed_out = true;
            return self.leave();
        }
        Feed::Wait { until_ns: if busy { now_ns } else { due.min(self.limits.until_ns) } }
    }

    /// Take note that a frame was sent, or how many of its bytes were.
    pub fn sent(&mut self, number: usize, size: i64, count: i64, now_ns: i64) {
        let link = &mut self.links[number];
        let whole = FRAME_HEAD as i64 + size;
        if count > 0 {
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
        let joined = [&link.partial[..], data].concat();
        let reports = joined.chunks_exact(REPORT);
        let partial = reports.remainder().to_vec();
        let mut offsets = reports.map(|report| i64::from_be_bytes(report.try_into().expect("8 bytes")));
        let most = written.min(link.next);
        if data.is_empty() || offsets.clone().any(|offset| !(0..=most).contains(&offset)) {
            link.unread = data.to_vec();
            self.left = true;
            return false;
        }
        link.received_ns = now_ns;
        link.partial = partial;
        match offsets.next_back() {
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
    published: i64,
    left: bool,
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
            published: end,
            left: false,
        }
    }

    /// Say what to do with what is in the buffer.
    pub fn next(&mut self, buffer: &[u8], now_ns: i64) -> Follow {
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
        if self.reported < self.published && self.unsent.is_empty() {
            return Follow::Report { offset: self.published };
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

    /// The body of the next frame in the buffer, if it is all there and plain.
    fn frame(&mut self, buffer: &[u8]) -> Option<(usize, usize)> {
        let data = &buffer[self.parsed..self.filled];
        let (head, body) = data.split_first_chunk::<FRAME_HEAD>()?;
        let (offset, size) = head.split_at(8);
        let offset = i64::from_be_bytes(offset.try_into().expect("8 bytes"));
        let size = i32::from_be_bytes(size.try_into().expect("4 bytes"));
        let fits = usize::try_from(size).is_ok_and(|size| size > 0 && size + FRAME_HEAD <= buffer.len());
        if offset != self.end || !fits || i64::from(size) > self.room.limit - self.end {
            self.left = true;
            return None;
        }
        (body.len() >= size as usize).then_some((self.parsed + FRAME_HEAD, size as usize))
    }

    /// Take note that the log has a frame's body, or could not take it.
    pub fn appended(&mut self, size: usize, done: bool) {
        if !done {
            self.left = true;
            return;
        }
        self.end += size as i64;
        self.parsed += FRAME_HEAD + size;
        self.left |= self.end >= self.room.wake_at || self.end == self.room.limit;
    }

    /// Take note of how much of a report was sent.
    pub fn reported(&mut self, count: usize, now_ns: i64) {
        let report = self.published.to_be_bytes();
        (self.reported, self.reported_ns) = (self.published, now_ns);
        self.unsent = report[count.min(REPORT)..].to_vec();
        self.left |= count < REPORT;
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
        }
    }
}
