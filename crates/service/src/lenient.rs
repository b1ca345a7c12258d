//! Connections of gRPC clients that call a Unix socket by its path. kubelet's registry does: its `:authority` is then
//! `%2Fvar%2Flib…`, which the HTTP/2 library takes for a violation of the protocol. Such a header is replaced by
//! `localhost` before the library sees it; everything else passes as it is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use fluke_hpack::Decoder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// Length, type, flags and stream of a frame.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Headers of a call are a few hundred bytes; a client that sends more of them is none of ours.
const LONGEST_HEADERS: usize = 16 * 1024;

pub struct Lenient {
    stream: UnixStream,
    rewriter: Rewriter,
}

impl Lenient {
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, rewriter: Rewriter::default() }
    }
}

impl Connected for Lenient {
    type ConnectInfo = <UnixStream as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Lenient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rewriter.ready.is_empty() {
            let mut space = [0; 4096];
            let mut read = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.rewriter.take(read.filled())?;
        }
        let length = self.rewriter.ready.len().min(buffer.remaining());
        buffer.put_slice(&self.rewriter.ready[..length]);
        self.rewriter.ready.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Lenient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What has come, and what of it may go on.
#[derive(Default)]
struct Rewriter {
    begun: bool,
    held: Vec<u8>,
    ready: Vec<u8>,
    /// Headers refer to earlier ones: every block has to be read by the same eyes.
    decoder: Decoder<'static>,
}

impl Rewriter {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.held.extend(bytes);
        if !self.begun {
            if self.held.len() < PREFACE {
                return Ok(());
            }
            self.begun = true;
            self.ready.extend(self.held.drain(..PREFACE));
        }
        while let Some(head) = self.held.first_chunk::<HEAD>().copied() {
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            if head[3] != HEADERS {
                // Data may be long: what is there goes on, and the rest follows as it comes.
                if self.held.len() < HEAD + length {
                    return Ok(());
                }
                self.ready.extend(self.held.drain(..HEAD + length));
                continue;
            }
            if length > LONGEST_HEADERS || head[4] & END_HEADERS == 0 {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "headers that are too long"));
            }
            if self.held.len() < HEAD + length {
                return Ok(());
            }
            let frame: Vec<u8> = self.held.drain(..HEAD + length).collect();
            self.rewrite(head, &frame[HEAD..])?;
        }
        Ok(())
    }

    fn rewrite(&mut self, head: [u8; HEAD], mut payload: &[u8]) -> io::Result<()> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut flags = head[4];
        if flags & PADDED != 0 {
            let (padding, rest) =
                payload.split_first().ok_or_else(|| invalid("a frame without its padding"))?;
            let end =
                rest.len().checked_sub(usize::from(*padding)).ok_or_else(|| invalid("too much padding"))?;
            payload = &rest[..end];
        }
        if flags & PRIORITY != 0 {
            payload = payload.get(5..).ok_or_else(|| invalid("a frame without its priority"))?;
        }
        flags &= !(PADDED | PRIORITY);
        let fields = self.decoder.decode(payload).map_err(|error| invalid(&format!("headers: {error:?}")))?;
        let mut block = Vec::with_capacity(payload.len() * 2);
        for (name, value) in fields {
            let is_path = name == b":authority" && value.iter().any(|byte| matches!(byte, b'/' | b'%'));
            literal(&mut block, &name);
            string(&mut block, if is_path { b"localhost" } else { &value });
        }
        let length = u32::try_from(block.len()).map_err(|_| invalid("headers that are too long"))?;
        self.ready.extend(&length.to_be_bytes()[1..]);
        self.ready.extend([HEADERS, flags]);
        self.ready.extend(&head[5..]);
        self.ready.extend(block);
        Ok(())
    }
}

/// A field that neither side remembers, with its name in full.
fn literal(block: &mut Vec<u8>, name: &[u8]) {
    block.push(0);
    string(block, name);
}

/// Its length in seven bits and, if those do not do, in more bytes of seven; then the bytes as they are.
fn string(block: &mut Vec<u8>, text: &[u8]) {
    const FULL: usize = 0x7f;
    let mut rest = text.len();
    if rest < FULL {
        block.push(u8::try_from(rest).unwrap_or_default());
    } else {
        block.push(0x7f);
        rest -= FULL;
        while rest >= 0x80 {
            block.push(u8::try_from(rest & 0x7f).unwrap_or_default() | 0x80);
            rest >>= 7;
        }
        block.push(u8::try_from(rest).unwrap_or_default());
    }
    block.extend(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn fields(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        Decoder::new().decode(&bytes[HEAD..]).unwrap()
    }

    fn block(authority: &[u8]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in
            [(&b":path"[..], &b"/a.B/C"[..]), (b":authority", authority), (b"long", &[b'x'; 300])]
        {
            literal(&mut block, name);
            string(&mut block, value);
        }
        block
    }

    #[test]
    fn only_an_authority_that_is_a_path_is_replaced() {
        for (sent, seen) in [
            (&b"%2Fvar%2Flib%2Fx.sock"[..], &b"localhost"[..]),
            (b"/var/lib/x.sock", b"localhost"),
            (b"localhost", b"localhost"),
            (b"example.com:80", b"example.com:80"),
        ] {
            let mut rewriter = Rewriter::default();
            rewriter.take(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
            let settings = frame(4, 0, &[]);
            rewriter.take(&settings).unwrap();
            rewriter.take(&frame(HEADERS, END_HEADERS, &block(sent))).unwrap();
            let rest = &rewriter.ready[PREFACE + settings.len()..];
            let fields = fields(rest);
            assert_eq!(fields[0], (b":path".to_vec(), b"/a.B/C".to_vec()));
            assert_eq!(fields[1].1, seen);
            assert_eq!(fields[2].1.len(), 300);
        }
    }

    #[test]
    fn pieces_padding_and_priority_make_no_difference() {
        let mut padded = vec![3, 0, 0, 0, 0, 16];
        padded.extend(block(b"/x"));
        padded.extend([0; 3]);
        let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        all.extend(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded));
        all.extend(frame(0, 1, b"data"));
        let mut rewriter = Rewriter::default();
        for byte in &all {
            rewriter.take(&[*byte]).unwrap();
        }
        let rest = &rewriter.ready[PREFACE..];
        let data = frame(0, 1, b"data");
        let headers = &rest[..rest.len() - data.len()];
        assert_eq!(fields(headers)[1].1, b"localhost");
        assert!(rest.ends_with(&data));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let mut rewriter = Rewriter { begun: true, ..Rewriter::default() };
        assert!(rewriter.take(&frame(HEADERS, END_HEADERS, &[0xff; 40])).is_err());
        let mut rewriter = Rewriter { begun: true, ..Rewriter::default() };
        assert!(rewriter.take(&frame(HEADERS, 0, &block(b"x"))).is_err());
    }
}
