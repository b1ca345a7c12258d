//! The way through an HTTP proxy to an `https` endpoint. Its variables have names of their own: under their usual ones, they
//! would also apply to the API server.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

/// Of an installation; empty texts are none.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ProxyFlags {
    /// URL of the proxy to an `https` S3 endpoint; none if empty.
    #[arg(long = "s3-https-proxy", env = "S3_HTTPS_PROXY", default_value = "")]
    pub https_proxy: String,

    /// Host names and domains of S3 endpoints that are reached without that proxy, separated by commas.
    #[arg(long = "s3-no-proxy", env = "S3_NO_PROXY", default_value = "")]
    pub no_proxy: String,
}

/// Connects directly, or through the proxy.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    direct: HttpConnector,
    proxies: Arc<Matcher>,
}

impl Connector {
    pub(super) fn new(direct: HttpConnector, flags: &ProxyFlags) -> Self {
        let proxies = Matcher::builder().https(flags.https_proxy.as_str()).no(flags.no_proxy.as_str());
        Self { direct, proxies: Arc::new(proxies.build()) }
    }
}

type BoxError = Box<dyn Error + Send + Sync>;

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, destination: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.intercept(&destination) else {
            let connecting = self.direct.call(destination);
            return Box::pin(async { Ok(connecting.await?) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.direct.clone());
        if let Some(login) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(login.clone());
        }
        let connecting = tunnel.call(destination);
        Box::pin(async { Ok(connecting.await?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn only_https_that_is_not_excepted_goes_through_the_proxy() {
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let connector = |no_proxy: &str| {
            let https_proxy = format!("http://me:word@{}", proxy.local_addr().unwrap());
            let mut direct = HttpConnector::new();
            direct.enforce_http(false);
            Connector::new(direct, &ProxyFlags { https_proxy, no_proxy: no_proxy.to_owned() })
        };
        let asked = async {
            let (mut client, _) = proxy.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            String::from_utf8(head).unwrap()
        };
        let connecting = connector("other.test").call("https://s3.test".parse().unwrap());
        let (connected, asked) = tokio::join!(connecting, asked);
        connected.unwrap();
        assert!(asked.starts_with("CONNECT s3.test:443 HTTP/1.1\r\n"), "{asked}");
        assert!(asked.to_lowercase().contains("proxy-authorization: basic bwu6d29yza=="), "{asked}");

        for (no_proxy, url) in
            [("127.0.0.1", format!("https://{address}")), ("", format!("http://{address}"))]
        {
            let connecting = connector(no_proxy).call(url.parse().unwrap());
            let (connected, accepted) = tokio::join!(connecting, server.accept());
            connected.unwrap();
            accepted.unwrap();
        }
    }
}
