//! The members' dialect of replication, for groups that commit by majority, in its steady state.
//!
//! All numbers are big-endian (`ha/switching.py`, which has the handshake as well; that is Python's):
//!
//! ```text
//! master to slave, a frame    i32 2 | i32 n | i64 offset | i32 epoch | i64 its start | i64 commit offset | n bytes
//! slave to master, a report   i32 2 | i64 end of the slave's log
//! ```
//!
//! **At the master** a run goes on only while the broker beside beats, and enough voters have reported lately; a frame
//! without a body goes out in a run alone, so never from a leader that hangs or is cut off. A member is told only a
//! commit offset that was published after the broker saw its connection (R11b), and -1 else.
//!
//! **At a slave** a plain frame is of the epoch that the log is in, which is on disk, and ends short of the next one's
//! start: Python puts that epoch on disk before a byte of it is in the log, and before that end is reported (R6).

use crate::replica::Link;

pub const HEAD: usize = 36;
pub const REPORT: usize = 12;
const TRANSFER: i32 = 2;

/// The epoch that a log is in, and where the next one starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Era {
    pub epoch: i32,
    pub start: i64,
    pub end: i64,
}

/// What the broker beside a leader shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lead {
    /// The newest connection that `commit` may follow from; to be read before it.
    pub saw: i64,
    pub commit: i64,
    /// When the broker beat last.
    pub beat_ns: i64,
    /// The cells that the run stands on are as they were.
    pub settled: bool,
}

impl Lead {
    /// Whether nothing has moved but the beat.
    pub fn same(&self, other: &Self) -> bool {
        Self { beat_ns: 0, ..*self } == Self { beat_ns: 0, ..*other }
    }
}

/// What makes a leader feed its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Where the leader's epoch starts.
    pub start: i64,
    /// A broker whose beat is older than that does not beat.
    pub beat_ns: i64,
    /// Who has reported within that time is heard.
    pub heard_ns: i64,
    /// So many members other than the leader must be heard, where leaders are elected.
    pub needed: u32,
    /// Until then they need not.
    pub until_ns: i64,
}

impl Group {
    /// Whether the leader may feed everybody.
    pub fn leads(&self, lead: &Lead, links: &[Link], now_ns: i64) -> bool {
        let observed = links.iter().any(|link| link.member.is_none());
        lead.settled
            && now_ns.saturating_sub(lead.beat_ns) < self.beat_ns
            && (!observed || lead.commit >= self.start)
            && (now_ns < self.until_ns || self.heard(links, now_ns) >= self.needed)
    }

    /// How many members that count have reported lately.
    fn heard(&self, links: &[Link], now_ns: i64) -> u32 {
        let lately = links.iter().filter(|link| now_ns - link.received_ns < self.heard_ns);
        let members = lately.filter_map(|link| link.member.as_ref()).filter(|member| member.counts);
        members.fold(0_u64, |found, member| found | 1 << (member.id % 64)).count_ones()
    }
}

/// A member's connection, at the master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    pub id: u32,
    pub counts: bool,
    /// Of the next byte that it is sent.
    pub era: Era,
    /// When it got its slot, by which the broker says what it has seen.
    pub connected_at: i64,
    /// The commit offset that it was told last.
    pub told: i64,
    /// What the frame says that is being sent.
    pub telling: i64,
    /// How long no frame may be missed.
    pub beat_ns: i64,
    /// How far frames are apart that say only that the commit offset has moved.
    pub apart_ns: i64,
}

impl Member {
    /// The commit offset that it may be told.
    fn commit(&self, lead: &Lead) -> i64 {
        if self.connected_at <= lead.saw { lead.commit } else { -1 }
    }

    /// When a frame without a body is due, after one at `sent_ns`.
    pub fn due(&self, lead: &Lead, sent_ns: i64) -> i64 {
        let moved = self.commit(lead) != self.told;
        sent_ns + if moved { self.apart_ns.min(self.beat_ns) } else { self.beat_ns }
    }

    /// How much of a frame's body is of one epoch, and its head; none where another epoch begins.
    pub fn frame(&mut self, at: i64, size: i64, lead: &Lead) -> Option<(i64, [u8; HEAD])> {
        if !(self.era.start..self.era.end).contains(&at) {
            return None;
        }
        let size = size.min(self.era.end - at);
        self.telling = self.commit(lead);
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&TRANSFER.to_be_bytes());
        head[4..8].copy_from_slice(&(size as i32).to_be_bytes());
        head[8..16].copy_from_slice(&at.to_be_bytes());
        head[16..20].copy_from_slice(&self.era.epoch.to_be_bytes());
        head[20..28].copy_from_slice(&self.era.start.to_be_bytes());
        head[28..].copy_from_slice(&self.telling.to_be_bytes());
        Some((size, head))
    }

    /// Take note that the frame is on its way.
    pub fn told(&mut self) {
        self.told = self.telling;
    }

    /// See `Link::reports`; what a member has acknowledged it can't take back.
    pub fn reports(&self, data: &[u8], acknowledged: i64, most: i64) -> Option<(Option<i64>, Vec<u8>)> {
        let mut newest = None;
        let reports = data.chunks_exact(REPORT);
        let rest = reports.remainder().to_vec();
        for report in reports {
            let offset = number(report, 4);
            if state(report) != TRANSFER || !(newest.unwrap_or(acknowledged).max(0)..=most).contains(&offset)
            {
                return None;
            }
            newest = Some(offset);
        }
        (rest.len() < 4 || state(&rest) == TRANSFER).then_some((newest, rest))
    }
}

/// The leader that a slave follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// That the log is in.
    pub era: Era,
    /// The newest commit offset that it has told.
    pub commit: i64,
    /// What the page shows of it.
    pub shown: i64,
    /// Something has come since it was shown last.
    pub news: bool,
    coming: i64,
}

impl Leader {
    pub fn new(era: Era, commit: i64, shown: i64) -> Self {
        Self { era, commit, shown, news: false, coming: commit }
    }

    /// Where a frame's body stands, and its size; none where it is not plain for a log that ends at `end`.
    pub fn frame(&mut self, data: &[u8], end: i64) -> Option<(i64, i32)> {
        let size = i32::from_be_bytes(data[4..8].try_into().expect("4 bytes"));
        let epoch = i32::from_be_bytes(data[16..20].try_into().expect("4 bytes"));
        self.coming = number(data, 28);
        let known = (epoch, number(data, 20)) == (self.era.epoch, self.era.start);
        let plain = state(data) == TRANSFER && self.coming >= -1 && size >= 0;
        (plain && known && i64::from(size) < self.era.end - end).then(|| (number(data, 8), size))
    }

    /// Take note that the frame is done with.
    pub fn took(&mut self) {
        self.commit = self.commit.max(self.coming);
    }

    /// What the page is to show, if something has come, and whether that is more than it shows.
    pub fn hear(&mut self, end: i64) -> Option<(i64, bool)> {
        if !self.news {
            return None;
        }
        self.news = false;
        let commit = self.commit.min(end);
        let moved = commit > self.shown;
        self.shown = self.shown.max(commit);
        Some((self.shown, moved))
    }
}

/// A member's report.
pub fn report(offset: i64) -> [u8; REPORT] {
    let mut report = [0; REPORT];
    report[..4].copy_from_slice(&TRANSFER.to_be_bytes());
    report[4..].copy_from_slice(&offset.to_be_bytes());
    report
}

fn state(data: &[u8]) -> i32 {
    i32::from_be_bytes(data[..4].try_into().expect("4 bytes"))
}

fn number(data: &[u8], at: usize) -> i64 {
    i64::from_be_bytes(data[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERA: Era = Era { epoch: 4, start: 100, end: 300 };

    fn member() -> Member {
        let beats = (50, 10);
        Member {
            id: 2,
            counts: true,
            era: ERA,
            connected_at: 5,
            beat_ns: beats.0,
            apart_ns: beats.1,
            ..Member::default()
        }
    }

    fn lead(saw: i64, commit: i64) -> Lead {
        Lead { saw, commit, beat_ns: 0, settled: true }
    }

    #[test]
    fn a_frame_says_what_is_committed_and_ends_with_its_epoch() {
        let mut one = member();
        let (size, head) = one.frame(250, 90, &lead(5, 240)).expect("within the epoch");
        assert_eq!(size, 50);
        let mut slave = Leader::new(ERA, -1, 0);
        assert_eq!(slave.frame(&head, 250), None); // its end is the next one's start
        assert_eq!(slave.frame(&head, 240), Some((250, 50)));
        slave.took();
        assert_eq!(slave.commit, 240);
        assert!(one.frame(300, 1, &lead(5, 240)).is_none() && one.frame(99, 1, &lead(5, 240)).is_none());
    }

    #[test]
    fn a_member_hears_of_commits_that_followed_its_connection() {
        let mut one = member();
        one.told = -1;
        assert_eq!(one.due(&lead(4, 240), 7), 57);
        assert_eq!(one.due(&lead(5, 240), 7), 17);
        one.frame(250, 0, &lead(4, 240)).expect("a beat");
        one.told();
        assert_eq!(one.told, -1);
        one.frame(250, 0, &lead(5, 240)).expect("a commit");
        one.told();
        assert_eq!((one.told, one.due(&lead(5, 240), 7)), (240, 57));
    }

    #[test]
    fn reports_are_whole_grow_and_are_of_what_was_sent() {
        let one = member();
        let two = [report(180), report(200)].concat();
        assert_eq!(one.reports(&two, 150, 200), Some((Some(200), vec![])));
        assert_eq!(one.reports(&two[..23], 150, 200), Some((Some(180), two[12..23].to_vec())));
        assert_eq!(one.reports(&two[..3], 150, 200), Some((None, two[..3].to_vec())));
        for (data, acknowledged, most) in [
            (&two[..], 181, 200),
            (&two[..], 150, 199),
            (&[1_u8, 2, 3, 4][..], 0, 9),
            (&report(-1)[..], -1, 9),
        ] {
            assert_eq!(one.reports(data, acknowledged, most), None);
        }
    }

    #[test]
    fn a_leader_needs_its_broker_its_voters_and_for_observers_a_commit() {
        let group = Group { start: 100, beat_ns: 1000, heard_ns: 300, needed: 1, until_ns: 0 };
        let counting = Link { received_ns: 10, member: Some(member()), ..Link::default() };
        let links = [counting.clone(), counting.clone()]; // the same member
        assert_eq!(group.heard(&links, 309), 1);
        assert!(group.leads(&lead(5, 0), &links, 309));
        assert!(!group.leads(&lead(5, 0), &links, 310));
        assert!(!Group { needed: 2, ..group }.leads(&lead(5, 0), &links, 20));
        assert!(Group { needed: 2, until_ns: 21, ..group }.leads(&lead(5, 0), &links, 20));
        assert!(!group.leads(&Lead { settled: false, ..lead(5, 0) }, &links, 20));
        assert!(!Group { needed: 0, ..group }.leads(&lead(5, 0), &links, 1000));
        let observed = [counting, Link::default()];
        assert!(!group.leads(&lead(5, 99), &observed, 20));
        assert!(group.leads(&lead(5, 100), &observed, 20));
        let learner = Link { member: Some(Member { counts: false, ..member() }), ..Link::default() };
        assert!(!group.leads(&lead(5, 0), &[learner], 20));
    }

    #[test]
    fn no_more_is_shown_as_committed_than_the_log_has() {
        let mut slave = Leader::new(ERA, 260, 120);
        assert_eq!(slave.hear(200), None);
        slave.news = true;
        assert_eq!(slave.hear(200), Some((200, true)));
        slave.news = true;
        assert_eq!(slave.hear(200), Some((200, false)));
        slave.news = true;
        assert_eq!(slave.hear(270), Some((260, true)));
        let mut older = Leader::new(ERA, -1, 260);
        older.news = true;
        assert_eq!(older.hear(270), Some((260, false)));
    }

    #[test]
    fn the_beat_alone_wakes_nobody() {
        let shown = lead(5, 100);
        assert!(shown.same(&Lead { beat_ns: 9, ..shown }));
        assert!(!shown.same(&lead(6, 100)) && !shown.same(&lead(5, 101)));
        assert!(!shown.same(&Lead { settled: false, ..shown }));
    }
}
