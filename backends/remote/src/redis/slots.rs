//! Hash slots: which one a name falls into, and which server has it.
//!
//! Source: the Redis cluster specification, "Key distribution model". Our names have no braces, so no part of a name
//! is singled out.

use redis::Value;

use crate::options::Address;

/// Slots of a cluster.
pub(super) const SLOTS: usize = 16384;

/// CRC-16/XMODEM of each byte.
const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

/// The slot that a name falls into.
pub(super) fn slot_of(name: &str) -> usize {
    let step = |crc: u16, byte: u8| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)];
    usize::from(name.bytes().fold(0, step)) % SLOTS
}

/// Slots from, slots to (inclusive), and their master.
pub(super) type Range = (usize, usize, Address);

/// Reads the answer to `CLUSTER SLOTS`; `host` is the asked server's own. `None` where it makes no sense.
pub(super) fn ranges(answer: &Value, host: &str) -> Option<Vec<Range>> {
    let Value::Array(entries) = answer else { return None };
    entries.iter().map(|entry| range(entry, host)).collect()
}

fn range(entry: &Value, host: &str) -> Option<Range> {
    let Value::Array(parts) = entry else { return None };
    let [Value::Int(from), Value::Int(to), Value::Array(master), ..] = &parts[..] else { return None };
    let [name, Value::Int(port), ..] = &master[..] else { return None };
    let name = match name {
        Value::BulkString(name) => std::str::from_utf8(name).ok()?,
        Value::SimpleString(name) => name,
        Value::Nil => "",
        _ => return None,
    };
    // A node that does not know its own address says nothing, or a question mark.
    let name = if name.is_empty() || name == "?" { host } else { name };
    let (from, to) = (usize::try_from(*from).ok()?, usize::try_from(*to).ok()?);
    let port = u16::try_from(*port).ok().filter(|port| *port != 0)?;
    (from <= to && to < SLOTS).then(|| (from, to, Address::Tcp(name.to_owned(), port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_falls_into_the_slot_that_the_specification_says() {
        for (name, slot) in [("123456789", 0x31c3), ("foo", 12182), ("bar", 5061), ("hello", 866), ("", 0)] {
            assert_eq!(slot_of(name), slot, "{name}");
        }
    }

    #[test]
    fn slots_have_their_master() {
        let text = b"*2\r\n*4\r\n:0\r\n:100\r\n*3\r\n$8\r\n10.0.0.1\r\n:7000\r\n$2\r\nid\r\n*2\r\n$1\r\nr\r\n:7001\r\n\
            *3\r\n:101\r\n:16383\r\n*2\r\n$0\r\n\r\n:7002\r\n";
        let answer = redis::parse_redis_value(text).expect("well-formed");
        let at = |host: &str, port| Address::Tcp(host.to_owned(), port);
        let wanted = vec![(0, 100, at("10.0.0.1", 7000)), (101, 16383, at("asked", 7002))];
        assert_eq!(ranges(&answer, "asked"), Some(wanted));
        for wrong in [
            "+OK\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n$1\r\nh\r\n:1\r\n",
            "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\nh\r\n:0\r\n",
        ] {
            let answer = redis::parse_redis_value(wrong.as_bytes()).expect("well-formed");
            assert_eq!(ranges(&answer, "asked"), None, "{wrong:?}");
        }
    }
}
