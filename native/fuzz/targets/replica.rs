//! Any events for the loops of both replicators: each byte of the input is one, or a part of one.
//!
//! A slave's log grows by what its frames hold and by nothing else, no step reaches beyond its file, and a run ends
//! once the time has come.
#![no_main]

use libfuzzer_sys::fuzz_target;
use whimbrel_core::members::{Era, Group, Lead, Leader, Member};
use whimbrel_core::replica::{Feed, Feeding, Follow, Following, Limits, Link, Marks, Room, Shown};

const STEPS_MAX: usize = 10_000;
const FILE: i64 = 4096;
const LIMITS: Limits = Limits { heartbeat_ns: 50, silence_ns: 200, until_ns: 100_000 };

struct Events<'a>(&'a [u8]);

impl Events<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
}

fn feed(mut events: Events<'_>) {
    let mut marks = Marks { epoch: 1, begin: 0, written: 100, replaced: 0 };
    let mut core = Feeding::new(marks, 1000, 0..FILE, LIMITS, true);
    let majority = events.byte() % 2 == 1;
    let mut lead = Lead { saw: 0, commit: 60, beat_ns: 0, settled: true };
    if majority {
        core.by_majority(Group { start: 40, beat_ns: 500, heard_ns: 150, needed: 1, until_ns: 300 });
    }
    for slot in 0..usize::from(events.byte() % 4) {
        let member = (majority && events.byte() % 4 != 0).then(|| Member {
            id: slot as u32,
            counts: slot != 1,
            era: Era { epoch: 3, start: 40, end: 400 },
            connected_at: slot as i64,
            told: -1,
            telling: -1,
            beat_ns: 20,
            apart_ns: 2,
        });
        core.links.push(Link { slot, next: 50, acknowledged: 50, member, ..Link::default() });
    }
    let mut now = 0;
    for _ in 0..STEPS_MAX {
        match core.next(marks, lead, now) {
            Feed::Leave => return,
            Feed::Send { link, at, size, head } => {
                let member = core.links[link].member.as_ref();
                let end = if majority && member.is_none() { lead.commit } else { FILE };
                assert!(at >= 0 && at + size <= marks.written.min(end), "beyond the log");
                assert!(size > 0 || member.is_some(), "a heartbeat is Python's");
                if let Some(member) = member {
                    assert!(at + size <= 400 && member.telling <= lead.commit, "another epoch, or commit");
                }
                let whole = head.bytes().len() as i64 + size;
                let count = if events.byte() % 8 == 0 { i64::from(events.byte()).min(whole) } else { whole };
                core.sent(link, size, count, now);
            }
            Feed::Wait { until_ns } => {
                if events.0.is_empty() {
                    now = until_ns.max(now + 1);
                }
                core.waited(events.byte() % 32 != 31);
                for number in 0..core.links.len() {
                    let count = usize::from(events.byte() % 20).min(events.0.len());
                    let (data, rest) = events.0.split_at(count);
                    events.0 = rest;
                    core.received(number, data, marks.written, now);
                }
                if core.moved {
                    core.rang(events.byte() % 16 != 15);
                }
                now += i64::from(events.byte() % 16);
                match events.byte() {
                    255 => marks.epoch += 1,
                    254 => marks.replaced += 1,
                    253 => marks.begin += 10,
                    252 => lead.settled = false,
                    251 => lead.beat_ns = now,
                    200..=250 => {
                        (lead.saw, lead.commit) = (lead.saw + 1, marks.written.min(lead.commit + 40));
                    }
                    grown => marks.written += i64::from(grown),
                }
            }
        }
    }
    panic!("a run that does not end");
}

fn follow(mut events: Events<'_>) {
    let mut core = Following::new(100, 100, Room { limit: FILE, wake_at: 3000 }, LIMITS, 10);
    let mode = events.byte();
    let era = Era { epoch: 3, start: 40, end: 2000 };
    core.leader = (mode % 2 == 1).then(|| Leader::new(era, -1, 0));
    let sync = mode & 2 != 0;
    if sync {
        core.flush_first();
    }
    let mut shown = Shown { settled: true, flushed: 100 };
    let mut buffer = vec![0; 300];
    let (mut now, mut end, mut heard) = (0, 100, 0);
    for _ in 0..STEPS_MAX {
        match core.next(&buffer, shown, now) {
            Follow::Leave => return,
            Follow::Flush { end: asked } => {
                assert_eq!(asked, end);
                core.asked(events.byte() % 32 != 31);
            }
            Follow::Hear { commit } => {
                assert!(heard <= commit && commit <= end.max(heard), "committed beyond the log");
                heard = commit;
            }
            Follow::Append { from, size, at } => {
                assert!(
                    at == end && at + size as i64 <= FILE && from + size <= buffer.len() && size > 0,
                    "beyond the log"
                );
                let done = events.byte() % 32 != 31;
                core.appended(size, done);
                end += if done { size as i64 } else { 0 };
            }
            Follow::Publish { end: shown } => assert_eq!(shown, end),
            Follow::Report { offset } => {
                assert!(offset <= end && (!sync || offset <= shown.flushed));
                assert!(core.leader.is_none() || offset < era.end, "an epoch that is not on disk");
                let whole = core.report().len();
                let count = if events.byte() % 16 == 15 { usize::from(events.byte() % 9) } else { whole };
                core.reported(count, now);
            }
            Follow::Ring => core.rang(events.byte() % 16 != 15, now),
            Follow::Wait { until_ns } => {
                if events.0.is_empty() {
                    now = until_ns.max(now + 1);
                }
                core.waited(events.byte() % 32 != 31);
                match events.byte() {
                    255 => shown.settled = false,
                    128..=254 => shown.flushed = end,
                    _ => {}
                }
                let at = core.make_room(&mut buffer);
                let room = buffer.len() - at;
                match events.byte() {
                    0 => core.received(0, now),
                    kind => {
                        // The head of a frame that fits, else whatever comes.
                        let mut data = vec![];
                        if kind % 4 != 0 {
                            let size = i32::from(events.byte());
                            if let Some(leader) = &core.leader {
                                data.extend_from_slice(&2_i32.to_be_bytes());
                                data.extend_from_slice(&size.to_be_bytes());
                                data.extend_from_slice(&end.to_be_bytes());
                                data.extend_from_slice(&leader.era.epoch.to_be_bytes());
                                data.extend_from_slice(&leader.era.start.to_be_bytes());
                                data.extend_from_slice(&(end + i64::from(size)).to_be_bytes());
                            } else {
                                data.extend_from_slice(&end.to_be_bytes());
                                data.extend_from_slice(&size.to_be_bytes());
                            }
                        }
                        let count = usize::from(kind).min(events.0.len());
                        let (more, rest) = events.0.split_at(count);
                        events.0 = rest;
                        data.extend_from_slice(more);
                        data.truncate(room);
                        if !data.is_empty() {
                            buffer[at..at + data.len()].copy_from_slice(&data);
                            core.received(data.len(), now);
                        }
                    }
                }
                now += i64::from(events.byte() % 16);
            }
        }
        assert_eq!(core.end, end);
    }
    panic!("a run that does not end");
}

fuzz_target!(|data: &[u8]| {
    if let Some((kind, rest)) = data.split_first() {
        if kind % 2 == 0 { feed(Events(rest)) } else { follow(Events(rest)) }
    }
});
