//! A broker for the targets that need one; each takes a part of it.
#![allow(dead_code)]

use whimbrel_core::ack::{AckPolicy, Delivery, Leases};
use whimbrel_core::calls::Shape;
use whimbrel_core::pass::{Found, Log, Methods, Topics};
use whimbrel_core::send::Policy;

pub const STORE_HOST: [u8; 8] = [127, 0, 0, 1, 0, 0, 0x2a, 0x9f];

pub struct Broker {
    pub ends: [i64; 4],
}

impl Topics for Broker {
    type Queue = ();
    fn find(&mut self, topic: &str) -> Option<Found> {
        (topic.len() < 19).then_some(Found { queues: 4, turns: 4, turn: 0 })
    }
    fn queue(&mut self, _: &str, queue_id: u32) -> Option<((), i64)> {
        self.ends.get(queue_id as usize).map(|end| ((), *end))
    }
}

pub struct Held;

impl Leases for Held {
    fn holds(&mut self, group: &str, topic: &str, delivery: &Delivery) -> Option<usize> {
        (group != topic && delivery.offset < 100).then_some(delivery.queue_id as usize % 3)
    }
}

pub fn policy() -> Policy {
    Policy {
        after_id: b"\x02CLUSTER\x01c\x02BORN_TIMESTAMP\x01".to_vec(),
        store_host: STORE_HOST.to_vec(),
        reserved: [b"KEYS".to_vec(), b"TAGS".to_vec(), b"UNIQ_KEY".to_vec()].into(),
        fallback: b"traceparent".to_vec(),
        tracing: false,
        ok: b"\x0a\x07\x08\xa0\x9c\x01\x12\x01O".to_vec(),
        body_max: 4 << 20,
        properties_max: 128,
        weight_max: 16 << 10,
        text_max: 32_767,
        time_max_ms: 253_402_300_799_999,
        messages_max: 128,
        entries_max: 1024,
        index_tags: true,
    }
}

pub fn ack_policy() -> AckPolicy {
    AckPolicy {
        handle_begin: b"W1:b:".to_vec(),
        ok: b"\x0a\x01o".to_vec(),
        ok_3: b"\x1a\x01o".to_vec(),
        entries_max: 128,
        handle_max: 512,
        offset_max: 1 << 56,
        queue_id_max: 0xffff,
        attempt_max: 1 << 30,
    }
}

pub fn methods() -> Methods {
    Methods {
        shape: Shape {
            paths: ["SendMessage", "AckMessage"]
                .map(|name| format!("/apache.rocketmq.v2.MessagingService/{name}").into_bytes())
                .to_vec(),
            queue_header: b"whimbrel-queue-id".to_vec(),
            client_header: b"x-mq-client-id".to_vec(),
            answer_head: b"\x88".to_vec(),
            answer_tail: b"\x00\x01s\x010".to_vec(),
        },
        policy: policy(),
        indexed: true,
        size_bounds: vec![100, 1000, 10_000],
        acks: ack_policy(),
    }
}

pub fn log(end: i64, parks: bool) -> Log {
    Log {
        end,
        room: 1 << 20,
        now_ms: 1_800_000_000_000,
        born_default_ms: 1_800_000_000_000,
        parks_left: parks.then_some(100),
        unsampled: 1 << 40,
    }
}
