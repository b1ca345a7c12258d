//! Stands between a client and the S3 server and does to each request what a network or a server can do.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What is done to a request.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    None,
    /// The answer comes this much later.
    Delay(Duration),
    /// The connection ends before the server sees anything.
    Cut,
    /// The server processes the request, and its answer is lost.
    DropAnswer,
    /// Another answer: before the server sees anything.
    Refuse(u16, &'static str),
    /// Another answer, after the server did what it was asked.
    Lie(u16, &'static str),
    /// Success with this page, made from the request's first line; the server sees nothing.
    Invent(fn(&str) -> String),
}

/// What to do to the request with this number and this first line.
type Plan = Arc<dyn Fn(usize, &str) -> Fault + Send + Sync>;

#[derive(Clone)]
pub struct Faulty {
    address: SocketAddr,
    plan: Arc<Mutex<Plan>>,
    /// `PUT /bucket`, of every request.
    seen: Arc<Mutex<Vec<String>>>,
    /// First lines of requests that the server has answered, whether the client has got the answer or not.
    answered: Arc<Mutex<Vec<String>>>,
}

impl Faulty {
    pub fn before(server: &'static str, plan: impl Fn(usize, &str) -> Fault + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let plan: Plan = Arc::new(plan);
        let plan = Arc::new(Mutex::new(plan));
        let faulty = Self { address, plan, seen: Arc::default(), answered: Arc::default() };
        let serving = faulty.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let serving = serving.clone();
                thread::spawn(move || serving.serve(client, server));
            }
        });
        faulty
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on.
    pub fn plan(&self, plan: impl Fn(usize, &str) -> Fault + Send + Sync + 'static) {
        *self.plan.lock().unwrap() = Arc::new(plan);
    }

    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub fn answered(&self) -> Vec<String> {
        self.answered.lock().unwrap().clone()
    }

    /// One request, one connection: nothing has to be known about where answers end.
    fn serve(&self, mut client: TcpStream, server: &str) -> Option<()> {
        let request = request(&mut client)?;
        let text = String::from_utf8_lossy(&request);
        let line = text.lines().next()?;
        let words: Vec<&str> = line.split([' ', '?']).take(2).collect();
        let number = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(words.join(" "));
            seen.len() - 1
        };
        let plan = Arc::clone(&*self.plan.lock().unwrap());
        let fault = plan(number, line);
        match fault {
            Fault::Cut => return None,
            Fault::Refuse(status, code) => return client.write_all(error(status, code).as_bytes()).ok(),
            Fault::Invent(page) => return client.write_all(answer(200, &page(line)).as_bytes()).ok(),
            Fault::None | Fault::Delay(_) | Fault::DropAnswer | Fault::Lie(..) => {}
        }
        let mut server = TcpStream::connect(server).ok()?;
        let mut answer = Vec::new();
        server.write_all(&request).ok()?;
        server.read_to_end(&mut answer).ok()?;
        self.answered.lock().unwrap().push(line.to_owned());
        match fault {
            Fault::DropAnswer => None,
            Fault::Lie(status, code) => client.write_all(error(status, code).as_bytes()).ok(),
            Fault::Delay(time) => {
                thread::sleep(time);
                client.write_all(&answer).ok()
            }
            Fault::None | Fault::Cut | Fault::Refuse(..) | Fault::Invent(_) => client.write_all(&answer).ok(),
        }
    }
}

fn error(status: u16, code: &str) -> String {
    answer(status, &format!("<Error><Code>{code}</Code><Message>injected</Message></Error>"))
}

fn answer(status: u16, page: &str) -> String {
    format!("HTTP/1.1 {status} Injected\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}", page.len())
}

/// A whole request that asks for the connection to be closed after the answer.
fn request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let text = String::from_utf8(head).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    client.read_exact(&mut body).ok()?;
    let text = text.replacen("\r\n\r\n", "\r\nconnection: close\r\n\r\n", 1);
    Some([text.into_bytes(), body].concat())
}
