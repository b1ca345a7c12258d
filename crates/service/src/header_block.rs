//! The header block of an HTTP/2 frame (HPACK, RFC 7541), as far as its `:authority` goes.

use std::borrow::Cow;

use httlib_huffman::DecoderSpeed;

const AUTHORITY: &[u8] = b":authority";
/// In HPACK's static table.
const AUTHORITY_INDEX: usize = 1;
/// No valid number has more bytes than this.
const LONGEST_NUMBER: u32 = 4;

/// The same block with an `:authority` that is a path made a name of the **same length**: both sides keep a table of
/// fields that later blocks refer to, and the lengths decide what falls out of it. `None` if it cannot be understood.
pub(crate) fn with_valid_authority(block: &[u8]) -> Option<Vec<u8>> {
    let mut rewritten = Vec::with_capacity(block.len() * 2);
    let mut rest = block;
    while let Some(&form) = rest.first() {
        let field = rest;
        // Section 6: the first bits of a field define its kind and which bits belong to its number.
        let (bits, literal) = match form {
            0x80.. => (7, false),
            0x40..=0x7f => (6, true),
            0x20..=0x3f => (5, false),
            _ => (4, true),
        };
        let index = number(&mut rest, bits)?;
        if literal {
            let is_authority = match index {
                0 => *Text::read(&mut rest)?.plain()? == *AUTHORITY,
                index => index == AUTHORITY_INDEX,
            };
            let name = &field[..field.len() - rest.len()];
            let value = Text::read(&mut rest)?;
            if is_authority
                && let value = value.plain()?
                && value.iter().copied().any(is_of_a_path)
            {
                rewritten.extend(name);
                write(&mut rewritten, &value);
                continue;
            }
        }
        rewritten.extend(&field[..field.len() - rest.len()]);
    }
    Some(rewritten)
}

fn is_of_a_path(byte: u8) -> bool {
    matches!(byte, b'/' | b'%')
}

/// Without what only a path has.
fn write(block: &mut Vec<u8>, path: &[u8]) {
    write_length(block, path.len());
    block.extend(path.iter().copied().map(|byte| if is_of_a_path(byte) { b'-' } else { byte }));
}

/// In seven bits; if those do not do, they are full, and the rest is in more bytes of seven.
fn write_length(block: &mut Vec<u8>, length: usize) {
    const FULL: u8 = 0x7f;
    let Some(mut rest) = length.checked_sub(usize::from(FULL)) else {
        block.push(length.to_le_bytes()[0]);
        return;
    };
    block.push(FULL);
    while rest >= 0x80 {
        block.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    block.push(rest.to_le_bytes()[0]);
}

/// A number that begins in the last `bits` of the next byte.
fn number(rest: &mut &[u8], bits: u32) -> Option<usize> {
    let full = (1 << bits) - 1;
    let first = usize::from(*rest.split_off_first()?) & full;
    if first < full {
        return Some(first);
    }
    let mut number = first;
    for shift in (0..LONGEST_NUMBER).map(|byte| byte * 7) {
        let byte = usize::from(*rest.split_off_first()?);
        number += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A string as it was sent.
struct Text<'a> {
    bytes: &'a [u8],
    huffman: bool,
}

impl<'a> Text<'a> {
    fn read(rest: &mut &'a [u8]) -> Option<Self> {
        let huffman = rest.first()? & 0x80 != 0;
        let length = number(rest, 7)?;
        Some(Self { bytes: rest.split_off(..length)?, huffman })
    }

    fn plain(&self) -> Option<Cow<'a, [u8]>> {
        if !self.huffman {
            return Some(self.bytes.into());
        }
        let mut plain = Vec::with_capacity(self.bytes.len() * 2);
        httlib_huffman::decode(self.bytes, &mut plain, DecoderSpeed::FiveBits).ok()?;
        Some(plain.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A field that is to be remembered, with a name from the table.
    fn field(index: u8, value: &[u8], huffman: bool) -> Vec<u8> {
        let mut block = vec![0x40 | index];
        text(&mut block, value, huffman);
        block
    }

    fn text(block: &mut Vec<u8>, value: &[u8], huffman: bool) {
        let mut coded = value.to_vec();
        if huffman {
            coded.clear();
            httlib_huffman::encode(value, &mut coded).unwrap();
        }
        let at = block.len();
        write_length(block, coded.len());
        block[at] |= if huffman { 0x80 } else { 0 };
        block.extend(coded);
    }

    #[test]
    fn an_authority_that_is_a_path_becomes_a_name_of_the_same_length() {
        let long = [b"%2F", &[b'x'; 400][..]].concat();
        for (sent, seen) in [
            (&b"%2Fvar%2Flib%2Fx.sock"[..], &b"-2Fvar-2Flib-2Fx.sock"[..]),
            (b"/var/lib/x.sock", b"-var-lib-x.sock"),
            (&long, &[b"-2F", &[b'x'; 400][..]].concat()),
        ] {
            for huffman in [false, true] {
                let path = field(4, b"/csi.v1.Node/NodePublishVolume", huffman);
                let block = [&path[..], &field(1, sent, huffman), &[0x83, 0x86]].concat();
                let expected = [&path[..], &field(1, seen, false), &[0x83, 0x86]].concat();
                assert_eq!(with_valid_authority(&block).unwrap(), expected);
                let mut spelt_out = vec![0];
                text(&mut spelt_out, AUTHORITY, huffman);
                let mut expected = spelt_out.clone();
                text(&mut spelt_out, sent, huffman);
                text(&mut expected, seen, false);
                assert_eq!(with_valid_authority(&spelt_out).unwrap(), expected);
            }
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for huffman in [false, true] {
            for authority in [&b"localhost"[..], b"example.com:80", b""] {
                let mut block = vec![0x3f, 0xe1, 0x1f, 0x82, 0x84];
                block.extend(field(1, authority, huffman));
                block.extend(field(58, b"grpc/1.0 %/", huffman));
                assert_eq!(with_valid_authority(&block).unwrap(), block);
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes: Vec<u8>) {
            with_valid_authority(&bytes);
        }

        #[test]
        fn what_is_cut_off_is_refused(cut in 1_usize..20, huffman: bool) {
            let block = field(1, b"/var/lib/kubelet/some.sock", huffman);
            prop_assert_eq!(with_valid_authority(&block[..block.len() - cut]), None);
        }
    }
}
