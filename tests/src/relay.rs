//! A proxy between a client and the S3 server that counts and records, and on command drops connections, stalls, slows
//! down, or is far away.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How much of the clients' data is kept.
const KEPT: usize = 1 << 20;
/// Chunks of 64 KiB on their way: as many as a fast connection has within 20 ms.
const TRAVELLING: usize = 1024;

#[derive(Clone)]
pub struct Relay(Arc<State>);

struct State {
    address: SocketAddr,
    cut: AtomicBool,
    broken: AtomicBool,
    refused: AtomicUsize,
    silent: Mutex<bool>,
    speaks: Condvar,
    /// Bytes per second for each connection and direction; 0 means no limit.
    pace: AtomicU64,
    /// What each direction of a connection takes longer, in microseconds.
    distance: AtomicU64,
    requests: AtomicUsize,
    heard: Mutex<Vec<u8>>,
    lines: Mutex<Vec<TcpStream>>,
}

impl Relay {
    /// Forwards to this server or, as an HTTP proxy, to the host that the client requests.
    pub fn to(server: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = State {
            address: listener.local_addr().unwrap(),
            cut: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            silent: Mutex::default(),
            speaks: Condvar::new(),
            pace: AtomicU64::new(0),
            distance: AtomicU64::new(0),
            requests: AtomicUsize::new(0),
            heard: Mutex::default(),
            lines: Mutex::default(),
        };
        let relay = Self(Arc::new(state));
        let accepting = relay.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let relay = accepting.clone();
                if accepting.0.broken.load(Ordering::Relaxed) {
                    thread::spawn(move || relay.refuse(client));
                } else if !accepting.0.cut.load(Ordering::Relaxed) {
                    thread::spawn(move || relay.connect(client, server));
                }
            }
        });
        relay
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.0.address)
    }

    /// Drops every connection, including new ones.
    pub fn cut(&self) {
        self.0.cut.store(true, Ordering::Relaxed);
        for line in self.0.lines.lock().unwrap().drain(..) {
            let _ = line.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.0.cut.store(false, Ordering::Relaxed);
    }

    /// From now on it accepts connections and forwards nothing.
    pub fn fall_silent(&self) {
        *self.0.silent.lock().unwrap() = true;
    }

    /// Resumes all connections.
    pub fn speak(&self) {
        *self.0.silent.lock().unwrap() = false;
        self.0.speaks.notify_all();
    }

    pub fn slow_down(&self, bytes_per_second: u64) {
        self.0.pace.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Each round trip of a new connection takes that much longer; the throughput stays the same.
    #[must_use]
    pub fn far_away(self, round_trip: Duration) -> Self {
        let one_way = u64::try_from(round_trip.as_micros() / 2).unwrap();
        self.0.distance.store(one_way, Ordering::Relaxed);
        self
    }

    /// The number of requests of all clients.
    pub fn request_count(&self) -> usize {
        self.0.requests.load(Ordering::Relaxed)
    }

    /// The requests of all clients, as far as they are kept: `GET /bucket/key`.
    pub fn requests(&self) -> Vec<String> {
        const METHODS: [&str; 5] = ["GET /", "HEAD /", "PUT /", "POST /", "DELETE /"];
        let heard = self.heard();
        let lines = heard.split("\r\n").filter_map(|line| line.strip_suffix(" HTTP/1.1"));
        // The body of the request before may end in front of it.
        let begin = |line: &str| METHODS.iter().filter_map(|method| line.find(method)).min();
        lines.filter_map(|line| Some(line[begin(line)?..].to_owned())).collect()
    }

    /// From now on it answers every request with an internal error.
    pub fn break_server(&self) {
        self.cut();
        self.0.broken.store(true, Ordering::Relaxed);
    }

    /// The number of requests answered with an error.
    pub fn refused(&self) -> usize {
        self.0.refused.load(Ordering::Relaxed)
    }

    /// The beginning of the clients' data, in no particular order.
    pub fn heard(&self) -> String {
        String::from_utf8_lossy(&self.0.heard.lock().unwrap()).into_owned()
    }

    fn connect(&self, mut client: TcpStream, server: Option<&str>) {
        let Some(server) = server.map(str::to_owned).or_else(|| self.asked(&mut client)) else { return };
        let Ok(server) = TcpStream::connect(server) else { return };
        // What arrives in two pieces must leave in two: else the second waits for the receiver to acknowledge the first, which
        // takes 40 ms, eight times what the nearest distance is to be.
        for line in [&client, &server] {
            line.set_nodelay(true).unwrap();
        }
        {
            let mut lines = self.0.lines.lock().unwrap();
            if self.0.cut.load(Ordering::Relaxed) {
                return;
            }
            lines.extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
        }
        let (mut up, mut down) =
            ((client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client));
        let relay = self.clone();
        thread::spawn(move || relay.copy(&mut up.0, &mut up.1, true));
        self.copy(&mut down.0, &mut down.1, false);
    }

    fn refuse(&self, mut client: TcpStream) {
        while head(&mut client).is_some() {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            let _ = client.write_all(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n");
        }
    }

    /// `CONNECT host:port HTTP/1.1`
    fn asked(&self, client: &mut TcpStream) -> Option<String> {
        let head = head(client)?;
        self.0.heard.lock().unwrap().extend(head.as_bytes());
        let place = head.strip_prefix("CONNECT ")?.split(' ').next()?.to_owned();
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
        Some(place)
    }

    fn copy(&self, from: &mut TcpStream, to: &mut TcpStream, keep: bool) {
        let distance = Duration::from_micros(self.0.distance.load(Ordering::Relaxed));
        let (sender, travelling) = mpsc::sync_channel::<(Instant, Vec<u8>)>(TRAVELLING);
        let arrival = to.try_clone().unwrap();
        let arrive = move |mut to: TcpStream| {
            for (at, bytes) in travelling {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                if to.write_all(&bytes).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        };
        if !distance.is_zero() {
            thread::spawn(move || arrive(arrival));
        }
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read) = from.read(&mut buffer) {
            drop(self.0.speaks.wait_while(self.0.silent.lock().unwrap(), |silent| *silent));
            let pace = self.0.pace.load(Ordering::Relaxed);
            if pace > 0 {
                thread::sleep(Duration::from_secs(read as u64) / u32::try_from(pace).unwrap());
            }
            // Before the server answers: who has the answer finds the request counted.
            if keep {
                self.listen(&buffer[..read]);
            }
            let sent = if read == 0 {
                false
            } else if distance.is_zero() {
                to.write_all(&buffer[..read]).is_ok()
            } else {
                sender.send((Instant::now() + distance, buffer[..read].to_vec())).is_ok()
            };
            if !sent {
                break;
            }
        }
        if distance.is_zero() {
            let _ = to.shutdown(Shutdown::Both);
        }
    }

    fn listen(&self, bytes: &[u8]) {
        const END_OF_REQUEST_LINE: &[u8] = b" HTTP/1.1\r\n";
        let lines = bytes.windows(END_OF_REQUEST_LINE.len()).filter(|bytes| *bytes == END_OF_REQUEST_LINE);
        self.0.requests.fetch_add(lines.count(), Ordering::Relaxed);
        let mut heard = self.0.heard.lock().unwrap();
        if heard.len() < KEPT {
            heard.extend(bytes);
        }
    }
}

/// The end of a request without a body.
fn head(client: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}
