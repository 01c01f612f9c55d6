//! Pulls of `RocketMQ`'s remoting protocol (11, 361): what a request asks for, as `broker/remoting/pulls.py` reads it.
//!
//! A pull is plain if its numbers are in digits. Fields that it does not read may say anything.

use crate::command::{Header, Text};

const PULL: i32 = 11;
const LITE_PULL: i32 = 361;
const NAMES_SUBSCRIPTION: i32 = 4; // of the system flag
const DIGITS_MAX: usize = 19;
const REQUIRED: [&str; 6] = ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag"];

/// What bounds requests.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes that one pull gets at most.
    pub bytes_max: i32,
    pub suspend_max_ms: i64,
    /// Of a subscription, in bytes.
    pub text_max: usize,
}

/// What a pull asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pull<'a> {
    pub group: Text<'a>,
    pub topic: Text<'a>,
    pub queue_id: i32,
    pub offset: i64,
    pub messages: i32,
    pub bytes: i32,
    pub flags: i32,
    pub version: i64,
    /// The subscription that it names; empty without one.
    pub text: Text<'a>,
    pub sql: bool,
    pub suspend_ms: i64,
    pub commit_offset: i64,
}

/// A number of 64 bits in digits.
fn int64(text: &Text<'_>) -> Option<i64> {
    let digits = text.plain()?;
    let fine = (1..=DIGITS_MAX).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| fine)
}
fn int32(text: &Text<'_>) -> Option<i32> {
    i32::try_from(int64(text)?).ok()
}

/// Read a pull; `None` where it is not plain.
pub fn read<'a>(header: &Header<'a>, bounds: Bounds) -> Option<Pull<'a>> {
    if header.code != PULL && header.code != LITE_PULL {
        return None;
    }
    let mut found = Pull { bytes: bounds.bytes_max, ..Pull::default() };
    let (mut seen, mut text) = (0, Text::default());
    for (name, value) in &header.fields {
        seen += usize::from(REQUIRED.contains(name));
        match *name {
            "consumerGroup" => found.group = *value,
            "topic" => found.topic = *value,
            "queueId" => found.queue_id = int32(value)?,
            "queueOffset" => found.offset = int64(value)?,
            "maxMsgNums" => found.messages = int32(value)?.max(1),
            "maxMsgBytes" => found.bytes = int32(value)?.clamp(1, bounds.bytes_max),
            "sysFlag" => found.flags = int32(value)?,
            "subVersion" => found.version = int64(value)?,
            "suspendTimeoutMillis" => found.suspend_ms = int64(value)?.min(bounds.suspend_max_ms),
            "commitOffset" => found.commit_offset = int64(value)?,
            "subscription" => text = *value,
            "expressionType" => found.sql = !matches!(value.plain()?, "TAG" | ""),
            _ => {}
        }
    }
    if found.flags & NAMES_SUBSCRIPTION != 0 {
        found.text = text;
        if !text.is_shorter(bounds.text_max) {
            return None;
        }
    }
    (seen == REQUIRED.len()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command;

    const BOUNDS: Bounds = Bounds { bytes_max: 262_144, suspend_max_ms: 60_000, text_max: 10 };

    fn pull(fields: &str) -> Option<(i32, i64, i32, i32, i64, String)> {
        let text = format!("{{\"code\":11,\"opaque\":7,\"extFields\":{{{fields}}}}}");
        let mut header = Header::default();
        command::read(&text, &mut header).unwrap();
        let found = read(&header, BOUNDS)?;
        let mut subscription = String::new();
        found.text.put(&mut subscription);
        Some((found.queue_id, found.offset, found.messages, found.bytes, found.suspend_ms, subscription))
    }

    #[test]
    fn a_pull_is_read_within_its_bounds() {
        let six = r#""consumerGroup":"g","topic":"t","queueId":"3","queueOffset":"5","maxMsgNums":"0","sysFlag":"4""#;
        assert_eq!(pull(six), Some((3, 5, 1, 262_144, 0, String::new())));
        let more =
            r#","subscription":"a\u003eb","maxMsgBytes":"9","suspendTimeoutMillis":"99999","other":"x""#;
        assert_eq!(pull(&format!("{six}{more}")), Some((3, 5, 1, 9, 60_000, "a>b".to_owned())));
        assert_eq!(pull(&six.replace("\"g\"", "\"\"").replace("\"5\"", "5")).unwrap().1, 5);
        for odd in [
            six.replace("\"3\"", "\"-3\""),
            six.replace("\"3\"", "\"2147483648\""),
            six.replace("\"5\"", "\"9223372036854775808\""),
            six.replace("\"topic\"", "\"subject\""),
            format!("{six},\"subVersion\":\"\""),
            format!("{six},\"subscription\":\"12345678901\""),
        ] {
            assert_eq!(pull(&odd), None, "{odd}");
        }
    }
}
