//! As much of HTTP as the small servers of the tests need.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Serves each connection in a thread of its own, and frees the address when it is dropped.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    ended: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Listening {
    pub(crate) fn start(
        address: impl ToSocketAddrs,
        serve: impl Fn(TcpStream) -> Option<()> + Clone + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let (address, ended) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let has_ended = Arc::clone(&ended);
        let accepting = thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if has_ended.load(Ordering::Relaxed) {
                    return;
                }
                let serve = serve.clone();
                thread::spawn(move || serve(client));
            }
        });
        Self { address, ended, accepting: Some(accepting) }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes it up.
        drop(TcpStream::connect(self.address));
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

/// A whole request with its body.
pub(crate) fn read_request(client: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = client.read(&mut buffer).ok().filter(|read| *read > 0)?;
        request.extend(&buffer[..read]);
        let text = String::from_utf8_lossy(&request);
        let Some((_, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = header(&text, "content-length").and_then(|length| length.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return Some(text.into_owned());
        }
    }
}

pub(crate) fn header(request: &str, name: &str) -> Option<String> {
    let (head, _) = request.split_once("\r\n\r\n")?;
    head.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

/// Answers and closes the connection.
pub(crate) fn answer(client: &mut TcpStream, status: &str, body: &str) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    client.write_all(format!("{head}{body}").as_bytes()).ok()
}
