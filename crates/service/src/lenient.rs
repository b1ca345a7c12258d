//! Connections of the kubelet's plugin registry. It calls a Unix socket by its path, so that its `:authority` is
//! `%2Fvar%2Flib…`, which the HTTP/2 library takes for a violation of the protocol. Such a header is changed before the
//! library sees it; everything else passes as it is. CSI sockets do not need this: the kubelet's CSI client (since Kubernetes
//! 1.26), the sidecars and csi-sanity send `localhost`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

use crate::header_block;

const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// Length, type, flags and stream of a frame.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Headers of a call are a few hundred bytes; no client of ours sends more.
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
            let headers = head[3] == HEADERS;
            if headers && (length > LONGEST_HEADERS || head[4] & END_HEADERS == 0) {
                return Err(invalid("headers that are too long"));
            }
            if self.held.len() < HEAD + length {
                return Ok(());
            }
            let frame: Vec<u8> = self.held.drain(..HEAD + length).collect();
            if headers {
                self.rewrite(head, &frame[HEAD..])?;
            } else {
                self.ready.extend(frame);
            }
        }
        Ok(())
    }

    fn rewrite(&mut self, head: [u8; HEAD], mut payload: &[u8]) -> io::Result<()> {
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
        let block = header_block::with_valid_authority(payload)
            .ok_or_else(|| invalid("headers that cannot be parsed"))?;
        let length = u32::try_from(block.len()).map_err(|_| invalid("headers that are too long"))?;
        self.ready.extend(&length.to_be_bytes()[1..]);
        self.ready.extend([HEADERS, flags]);
        self.ready.extend(&head[5..]);
        self.ready.extend(block);
        Ok(())
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `:authority: /x` and what it becomes.
    const PATH: &[u8] = &[0x41, 2, b'/', b'x'];
    const NAME: &[u8] = &[0x41, 2, b'-', b'x'];

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn pieces_padding_and_priority_make_no_difference() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let padded = [&[3, 0, 0, 0, 0, 16], PATH, &[0; 3]].concat();
        let sent = [
            &preface[..],
            &frame(4, 0, &[]),
            &frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded),
            &frame(0, 1, b"data"),
        ];
        let mut rewriter = Rewriter::default();
        for byte in sent.concat() {
            rewriter.take(&[byte]).unwrap();
        }
        let seen =
            [&preface[..], &frame(4, 0, &[]), &frame(HEADERS, END_HEADERS, NAME), &frame(0, 1, b"data")];
        assert_eq!(rewriter.ready, seen.concat());
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let mut rewriter = Rewriter { begun: true, ..Rewriter::default() };
        assert!(rewriter.take(&frame(HEADERS, END_HEADERS, &[0xff; 40])).is_err());
        let mut rewriter = Rewriter { begun: true, ..Rewriter::default() };
        assert!(rewriter.take(&frame(HEADERS, 0, PATH)).is_err());
    }
}
