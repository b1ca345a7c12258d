//! A Prometheus of Debian's package, which scrapes the driver's programs.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Killed when dropped.
pub struct Prometheus {
    process: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Prometheus {
    /// Starts it without waiting.
    pub fn scraping(targets: &[SocketAddr]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
        // As the chart's monitors do it, but oftener.
        let config = json!({
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": "s3-csi", "honor_labels": true, "static_configs": [{"targets": targets}]}],
        });
        fs::write(folder.path().join("config.yaml"), config.to_string()).unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("config.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { process, address, folder }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The samples that a query finds now, or why there are none.
    pub fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let encoded = query.bytes().fold(String::new(), |encoded, byte| format!("{encoded}%{byte:02X}"));
        let mut stream = TcpStream::connect(self.address).map_err(|error| error.to_string())?;
        let asked = write!(stream, "GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n");
        let mut answer = String::new();
        asked.and_then(|()| stream.read_to_string(&mut answer)).map_err(|error| error.to_string())?;
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
        let found: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {answer}"))?;
        match found["data"]["result"].as_array() {
            Some(samples) if found["status"] == "success" => Ok(samples.clone()),
            _ => Err(found.to_string()),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
