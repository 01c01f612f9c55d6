//! Java's `String.hashCode`, over UTF-16 units, and what the index makes of it.

/// Go on with the hash of a text; `None` where its bytes are no UTF-8, which Python replaces.
pub fn java_hash_on(start: u32, text: &[u8]) -> Option<u32> {
    let step = |hash: u32, unit: u32| hash.wrapping_mul(31).wrapping_add(unit);
    if text.is_ascii() {
        return Some(text.iter().fold(start, |hash, byte| step(hash, u32::from(*byte))));
    }
    let text = std::str::from_utf8(text).ok()?;
    Some(text.encode_utf16().fold(start, |hash, unit| step(hash, u32::from(unit))))
}

/// The tags code of a TAGS property: its hash, sign-extended; 0 for none.
pub fn tags_code(tags: &[u8]) -> Option<i64> {
    Some(i64::from(java_hash_on(0, tags)?.cast_signed()))
}

/// The part of an index hash that stands before the key of the message.
pub fn topic_hash(topic: &[u8]) -> Option<u32> {
    java_hash_on(java_hash_on(0, topic)?, b"#")
}

/// The hash under which the index files a key: the absolute value, 0 where Java's overflows.
pub fn key_hash(topic_hash: u32, key: &[u8]) -> Option<u32> {
    let hash = java_hash_on(topic_hash, key)?;
    Some(if hash < 0x8000_0000 { hash } else { hash.wrapping_neg() & 0x7fff_ffff })
}

/// The hash of the key that `RocketMQ`'s index has of a tag since 5.4: `topic#T#tag`.
pub fn tag_key_hash(topic_hash: u32, tag: &[u8]) -> Option<u32> {
    key_hash(java_hash_on(topic_hash, b"T#")?, tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_hash_as_in_java() {
        // Values of a JVM.
        assert_eq!(java_hash_on(0, b""), Some(0));
        assert_eq!(java_hash_on(0, b"TagA"), Some(2_598_919));
        assert_eq!(java_hash_on(0, "\u{fc}".as_bytes()), Some(252));
        assert_eq!(java_hash_on(0, "\u{1f600}".as_bytes()), Some(55357 * 31 + 56832));
        assert_eq!(java_hash_on(0, b"\xff"), None);
    }

    #[test]
    fn a_tags_code_keeps_its_sign() {
        assert_eq!(tags_code(b"polygenelubricants"), Some(-0x8000_0000));
    }

    #[test]
    fn the_hash_without_an_absolute_value_counts_as_0() {
        let before = topic_hash(b"").unwrap();
        assert_eq!(before, 35);
        assert_eq!(key_hash(0, b"polygenelubricants"), Some(0));
        assert_eq!(key_hash(0, b"TagA"), Some(2_598_919));
        assert_eq!(tag_key_hash(7, b"a"), key_hash(7, b"T#a"));
    }
}
