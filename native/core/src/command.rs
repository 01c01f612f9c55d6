//! Frames of `RocketMQ`'s remoting protocol, and their headers as JSON, as far as these are plain.
//!
//! ```text
//! length 4 | kind of the header 1 | length of the header 3 | header | body           (`rpc/remoting/frames.py`)
//!
//! {"code":310,"extFields":{"a":"pg","b":"T"},"flag":0,"language":"JAVA","opaque":12,"remark":"...",
//!  "serializeTypeCurrentRPC":"JSON","version":399}                              (`rpc/remoting/json_header.py`)
//! ```
//!
//! A header is plain if it has these members and no others, each once, in any order; code, flag, opaque number and
//! version are whole numbers of 32 bits, and fields are texts or whole numbers with names of their own. What is wrong
//! with another one is for Python to say.

const LENGTH_BYTES: usize = 4;
pub const HEAD_BYTES: usize = 8;
const FIELDS_MAX: usize = 64;
const NUMBER_DIGITS_MAX: usize = 18; // of a field that is a number

/// How long frames and headers may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// With the length itself.
    pub frame_max: usize,
    pub header_max: usize,
}

/// What stands at a place of what a peer has sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// The header of kind JSON, the body, and where the frame ends.
    Frame(&'a str, &'a [u8], usize),
    /// So many bytes from there are needed.
    Partial(usize),
    /// A frame that ends there and is not plain.
    Foreign(usize),
    /// No frame: nothing behind it can be read.
    Broken,
}

fn word(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..)?.first_chunk::<4>()?;
    usize::try_from(u32::from_be_bytes(*bytes)).ok()
}

/// Read what stands at `at`.
pub fn next(data: &[u8], at: usize, limits: Limits) -> Next<'_> {
    let Some(length) = word(data, at) else { return Next::Partial(LENGTH_BYTES) };
    if length < LENGTH_BYTES || length > limits.frame_max - LENGTH_BYTES {
        return Next::Broken;
    }
    let Some(frame) = data[at..].get(..LENGTH_BYTES + length) else {
        return Next::Partial(LENGTH_BYTES + length);
    };
    let end = at + frame.len();
    match parts(frame, limits) {
        Some((header, body)) => Next::Frame(header, body, end),
        None => Next::Foreign(end),
    }
}

/// Header and body of a whole frame; `None` where the header is no JSON, or its length is wrong.
pub fn parts(frame: &[u8], limits: Limits) -> Option<(&str, &[u8])> {
    let size = word(frame, LENGTH_BYTES)?; // with the kind in its highest byte, which is 0 for JSON
    if size > limits.header_max.min(0x00ff_ffff) {
        return None;
    }
    let (header, body) = frame.get(HEAD_BYTES..)?.split_at_checked(size)?;
    Some((std::str::from_utf8(header).ok()?, body))
}

/// A text between quotes, whose escapes are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Text<'a> {
    raw: &'a str,
    escaped: bool,
}

impl<'a> Text<'a> {
    /// A text in which nothing is escaped.
    pub(crate) fn of(raw: &'a str) -> Self {
        Self { raw, escaped: false }
    }
    /// The text, where nothing in it is escaped.
    pub fn plain(&self) -> Option<&'a str> {
        (!self.escaped).then_some(self.raw)
    }
    /// Whether it has at most so many bytes as it stands there.
    pub fn is_shorter(&self, size: usize) -> bool {
        self.raw.len() <= size
    }
    /// Append the text to `out`.
    pub fn put(&self, out: &mut String) {
        let mut rest = self.raw;
        while let Some((before, behind)) = rest.split_once('\\') {
            out.push_str(before);
            let (one, size) = unescaped(behind).expect("it was read before");
            out.push(one);
            rest = &behind[size..];
        }
        out.push_str(rest);
    }
}

/// The character that an escape stands for, and its bytes behind the backslash; `None` for half a pair, and for
/// U+0000.
fn unescaped(behind: &str) -> Option<(char, usize)> {
    let found = match behind.as_bytes().first()? {
        byte @ (b'"' | b'\\' | b'/') => char::from(*byte),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let first = unit(behind.get(1..5)?)?;
            if !(0xd800..0xdc00).contains(&first) {
                return Some((char::from_u32(first).filter(|one| *one != '\0')?, 5));
            }
            let second = unit(behind.get(5..11)?.strip_prefix("\\u")?)?;
            let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
            return Some((char::from_u32(0x1_0000 + ((first - 0xd800) << 10) + low)?, 11));
        }
        _ => return None,
    };
    Some((found, 1))
}

/// A UTF-16 unit of four hexadecimal digits.
fn unit(digits: &str) -> Option<u32> {
    let fine = digits.bytes().all(|one| one.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| fine)
}

/// What a plain header says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Header<'a> {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
    pub version: i32,
    pub language: &'a str,
    pub remark: Option<Text<'a>>,
    /// Whether there are any, of none as well.
    pub has_fields: bool,
    /// By name, in the order in which they stand there.
    pub fields: Vec<(&'a str, Text<'a>)>,
}

/// Read a header into `found`; `None` where it is not plain.
pub fn read<'a>(header: &'a str, found: &mut Header<'a>) -> Option<()> {
    let fields = std::mem::take(&mut found.fields);
    *found = Header { fields, ..Header::default() };
    found.fields.clear();
    let mut json = Json { text: header, at: 0 };
    if header.as_bytes().first() != Some(&b'{') {
        return None;
    }
    let mut seen = 0_u32;
    json.object(|json, name| {
        let number = match name.plain()? {
            "code" => 0,
            "opaque" => 1,
            "flag" => 2,
            "version" => 3,
            "language" => 4,
            "remark" => 5,
            "extFields" => 6,
            "serializeTypeCurrentRPC" => 7,
            _ => return None,
        };
        if seen & 1 << number != 0 {
            return None;
        }
        seen |= 1 << number;
        match number {
            0 => found.code = json.int32()?,
            1 => found.opaque = json.int32()?,
            2 => found.flag = json.int32()?,
            3 => found.version = json.int32()?,
            4 => found.language = json.string()?.plain()?,
            5 => found.remark = Some(json.string()?),
            6 => {
                found.has_fields = true;
                let fields = &mut found.fields;
                json.object(|json, name| {
                    let name = name.plain()?;
                    if fields.len() >= FIELDS_MAX || fields.iter().any(|(before, _)| *before == name) {
                        return None;
                    }
                    fields.push((name, json.text_or_number()?));
                    Some(())
                })?;
            }
            _ => {
                json.string()?;
            }
        }
        Some(())
    })?;
    json.space();
    (json.at == header.len() && seen & 0b11 == 0b11).then_some(())
}

/// Reads strict JSON, of what headers have.
struct Json<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Json<'a> {
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
    fn space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }
    /// Pass white space, and this byte.
    fn pass(&mut self, wanted: u8) -> Option<()> {
        self.space();
        (self.byte()? == wanted).then(|| self.at += 1)
    }

    /// Read an object; `member` gets each name, and reads its value.
    fn object(&mut self, mut member: impl FnMut(&mut Self, Text<'a>) -> Option<()>) -> Option<()> {
        self.pass(b'{')?;
        if self.pass(b'}').is_some() {
            return Some(());
        }
        loop {
            let name = self.string()?;
            self.pass(b':')?;
            member(self, name)?;
            if self.pass(b',').is_none() {
                return self.pass(b'}');
            }
        }
    }

    fn string(&mut self) -> Option<Text<'a>> {
        self.pass(b'"')?;
        let (bytes, begin) = (self.text.as_bytes(), self.at);
        let mut escaped = false;
        loop {
            let size = bytes[self.at..].iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
            self.at += size + 1;
            match bytes[self.at - 1] {
                b'"' => return Some(Text { raw: &self.text[begin..self.at - 1], escaped }),
                b'\\' => {
                    escaped = true;
                    self.at += unescaped(&self.text[self.at..])?.1;
                }
                _ => return None, // a control character
            }
        }
    }

    /// Read a whole number as it is written; not -0, which is 0.
    fn digits(&mut self) -> Option<&'a str> {
        self.space();
        let begin = self.at;
        let minus = usize::from(self.byte() == Some(b'-'));
        self.at += minus;
        let first = self.at;
        while self.byte().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        let size = self.at - first;
        let zero = self.text.as_bytes().get(first) == Some(&b'0');
        let strange = size == 0 || size > NUMBER_DIGITS_MAX || (zero && size + minus > 1);
        if strange || matches!(self.byte(), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        self.text.get(begin..self.at)
    }
    fn int32(&mut self) -> Option<i32> {
        self.digits()?.parse().ok()
    }
    fn text_or_number(&mut self) -> Option<Text<'a>> {
        self.space();
        if self.byte() == Some(b'"') {
            return self.string();
        }
        self.digits().map(Text::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { frame_max: 1000, header_max: 500 };
    const SEND: &str = r#"{"code":310,"extFields":{"a":"pg","i":"A\u0001b\u0002","n":7},"flag":0,"language":"JAVA","opaque":12,"serializeTypeCurrentRPC":"JSON","version":399}"#;

    fn plain(header: &str) -> bool {
        read(header, &mut Header::default()).is_some()
    }
    fn frame(kind: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
        let length = (4 + header.len() + body.len()) as u32;
        let word = u32::from(kind) << 24 | header.len() as u32;
        [&length.to_be_bytes()[..], &word.to_be_bytes(), header, body].concat()
    }

    #[test]
    fn a_header_is_read_and_each_of_its_begins_is_not() {
        let mut found = Header::default();
        read(SEND, &mut found).unwrap();
        assert_eq!((found.code, found.opaque, found.flag, found.version), (310, 12, 0, 399));
        assert_eq!((found.language, found.remark, found.fields.len()), ("JAVA", None, 3));
        let mut text = String::new();
        found.fields[1].1.put(&mut text);
        assert_eq!(text, "A\u{1}b\u{2}");
        assert_eq!(found.fields[2].1.plain(), Some("7"));
        for end in 0..SEND.len() {
            assert!(!plain(&SEND[..end]), "{end}");
        }
        assert!(plain(&format!("{SEND}\n")) && !plain(&format!("{SEND}x")) && !plain(&format!(" {SEND}")));
    }

    #[test]
    fn escapes_are_those_of_json() {
        let mut found = String::new();
        let header = r#"{"code":1,"opaque":1,"remark":"\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00"}"#;
        let mut read_header = Header::default();
        read(header, &mut read_header).unwrap();
        read_header.remark.unwrap().put(&mut found);
        assert_eq!(found, "\"\\/\u{8}\u{c}\n\r\tä\u{1f600}");
    }

    #[test]
    fn what_is_unusual_is_not_plain() {
        assert!(
            plain(r#"{"code":1,"opaque":-1}"#) && plain(r#"{ "opaque" : 0 , "code" : 1 , "remark":"x" }"#)
        );
        for odd in [
            r#"{"code":1}"#,
            r#"{"opaque":1}"#,
            r#"{"code":1,"code":1,"opaque":1}"#,
            r#"{"code":1,"opaque":1,}"#,
            r#"{"code":1,"opaque":1,"other":1}"#,
            r#"{"code":"1","opaque":1}"#,
            r#"{"code":1.0,"opaque":1}"#,
            r#"{"code":1e0,"opaque":1}"#,
            r#"{"code":01,"opaque":1}"#,
            r#"{"code":-0,"opaque":1}"#,
            r#"{"code":2147483648,"opaque":1}"#,
            r#"{"code":1,"opaque":null}"#,
            r#"{"code":1,"opaque":1,"remark":null}"#,
            r#"{"code":1,"opaque":1,"extFields":null}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":"1","a":"2"}}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":"1","\u0061":"2"}}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":true}}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":"\ud83d"}}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":"\ud83d\u0041"}}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":"\ude00"}}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":"\u0000"}}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":"\u00g1"}}"#,
            r#"{"code":1,"opaque":1,"extFields":{"a":"\x"}}"#,
            "{\"code\":1,\"opaque\":1,\"extFields\":{\"a\":\"\u{1}\"}}",
        ] {
            assert!(!plain(odd), "{odd}");
        }
        let many = |count: usize| {
            let fields: Vec<_> = (0..count).map(|number| format!("\"f{number}\":\"\"")).collect();
            format!("{{\"code\":1,\"opaque\":1,\"extFields\":{{{}}}}}", fields.join(","))
        };
        assert!(plain(&many(FIELDS_MAX)) && !plain(&many(FIELDS_MAX + 1)));
    }

    #[test]
    fn frames_are_cut_and_what_is_missing_is_told() {
        let bytes = [frame(0, b"{}", b"body"), frame(1, b"xx", b"")].concat();
        assert_eq!(next(&bytes, 0, LIMITS), Next::Frame("{}", b"body", 14));
        assert_eq!(next(&bytes, 14, LIMITS), Next::Foreign(24));
        assert_eq!(next(&bytes, 24, LIMITS), Next::Partial(4));
        for end in 0..14 {
            assert_eq!(next(&bytes[..end], 0, LIMITS), Next::Partial(if end < 4 { 4 } else { 14 }));
        }
        assert_eq!(next(&frame(0, b"\xff", b""), 0, LIMITS), Next::Foreign(9));
        assert_eq!(next(&frame(0, &[b' '; 501], b""), 0, LIMITS), Next::Foreign(509));
        assert_eq!(next(&[0, 0, 0, 4, 0, 0, 0, 1], 0, LIMITS), Next::Foreign(8));
        for length in [0_u32, 3, 997, u32::MAX] {
            assert_eq!(next(&length.to_be_bytes(), 0, LIMITS), Next::Broken);
        }
    }

    #[test]
    fn no_single_wrong_byte_makes_it_panic() {
        let bytes = frame(0, SEND.as_bytes(), b"body");
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut wrong = bytes.clone();
                wrong[at] = value;
                if let Next::Frame(header, _, _) = next(&wrong, 0, LIMITS) {
                    let mut found = Header::default();
                    if read(header, &mut found).is_some() {
                        found.fields.iter().for_each(|(_, value)| value.put(&mut String::new()));
                    }
                }
            }
        }
    }
}
