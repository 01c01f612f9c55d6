//! Any bytes on a connection of the remoting protocol, in reads of any size: passes take sends, or leave them.
//!
//! Of what a pass takes, the records are read again: they are records of the log, and give the queue entries and the
//! keys that the pass has made. A header that is read says the same when its texts are put together again.
#![no_main]

mod broker;

use libfuzzer_sys::fuzz_target;
use whimbrel_core::command::{Header, Limits, Next, next, read};
use whimbrel_core::dispatch;
use whimbrel_core::pass::Plan;
use whimbrel_core::remote::{Pass, Policy, Read, Stop, Taken};
use whimbrel_core::remote_pull::{self, Bounds};

const LIMITS: Limits = Limits { frame_max: 16 << 20, header_max: 256 << 10 };

fn policy(traced: bool) -> Policy {
    Policy {
        limits: LIMITS,
        cluster: "c".to_owned(),
        store_host: broker::STORE_HOST.to_vec(),
        special: ["DELAY", "TRAN_MSG"].map(str::to_owned).to_vec(),
        traced: if traced { vec![b"TRACE_CONTEXT".to_vec()] } else { vec![] },
        body_max: 4 << 20,
        text_max: 32_767,
        time_max_ms: 253_402_300_799_999,
        messages_max: 65_536,
        answer: [b"{".to_vec(), b"q".to_vec(), b"p".to_vec(), b"o".to_vec(), b"}".to_vec()],
        indexed: true,
        index_tags: true,
        size_bounds: vec![100, 1000, 10_000],
    }
}

fn check(plan: &Plan<()>, taken: &Taken, begin: i64) {
    let found = dispatch::entries(&plan.records, begin);
    assert!(found.bytes == plan.records.len() && !found.foreign, "records that can't be read");
    for run in &found.runs {
        let same = |one: &&whimbrel_core::pass::Run<()>| {
            plan.topics[one.topic].name.as_bytes() == run.topic && one.queue_id as i32 == run.queue_id
        };
        let made = plan.runs.iter().find(same).expect("a run");
        assert_eq!((made.first, &made.entries), (run.first, &run.entries));
    }
    let keys = dispatch::keys(&plan.records, begin, true);
    assert!(!keys.foreign && keys.keys == plan.keys, "other keys");
    let mut at = 0;
    for answer in taken.answers.iter().filter(|answer| answer.message_size > 0) {
        assert!(at == answer.begin, "answers one behind the other");
        at += answer.message_size;
        assert!(matches!(next(&taken.frames, answer.begin, LIMITS), Next::Frame(_, b"", end) if end == at));
    }
    assert_eq!(at, taken.frames.len());
}

fuzz_target!(|data: &[u8]| {
    let Some(([flags, step], mut rest)) = data.split_first_chunk::<2>() else { return };
    if let Next::Frame(header, _, _) = next(rest, 0, LIMITS) {
        let mut found = Header::default();
        if read(header, &mut found).is_some() {
            found.fields.iter().for_each(|(_, value)| value.put(&mut String::new()));
            let bounds = Bounds { bytes_max: 262_144, suspend_max_ms: 60_000, text_max: 4096 };
            if let Some(pull) = remote_pull::read(&found, bounds) {
                assert!((1..=262_144).contains(&pull.bytes) && pull.messages > 0 && pull.offset >= 0);
            }
        }
    }
    let (policy, parks) = (policy(flags & 2 != 0), flags & 1 != 0);
    let mut topics = broker::Broker { ends: [0, 7, 1 << 40, i64::MAX - 3] };
    let (mut end, mut kept) = (1000_i64, Vec::new());
    let step = if flags & 8 != 0 { usize::MAX } else { usize::from(*step) + 1 };
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(step.min(rest.len()));
        rest = more;
        kept.extend_from_slice(piece);
        loop {
            let mut pass = Pass::new(&policy, broker::log(end, parks), &mut topics);
            let taken = pass.take(Read { data: &kept, born_host: &[127, 0, 0, 1, 0, 0, 0, 1] });
            let plan = pass.plan();
            check(&plan, &taken, end);
            end += plan.records.len() as i64;
            let (done, again) = match taken.stop {
                Stop::Partial(needed) => {
                    assert!(needed > kept.len() - taken.at, "nothing is missing");
                    (taken.at, false)
                }
                Stop::Foreign(until) => {
                    assert!(until > taken.at && until <= kept.len(), "Python has something to do");
                    (until, true)
                }
                Stop::Other => {
                    assert!(taken.at > 0, "another pass has to begin elsewhere");
                    (taken.at, true)
                }
            };
            kept.drain(..done);
            if !again || kept.is_empty() {
                break;
            }
        }
    }
});
