//! The kubelet's plugin registration: the kubelet finds this socket in its plugin registry and asks for the driver's name
//! and endpoint, again after each of its own restarts. It does not repeat a registration that has failed until the socket is
//! another one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use contract::names::DRIVER;
use futures::{Stream, StreamExt as _};
use service::lenient::Lenient;
use service::registration::registration_server::{Registration, RegistrationServer};
use service::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use service::socket;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Version of the CSI interface, not of the driver.
const CSI_VERSION: &str = "1.0.0";
/// The kubelet rejects every registration while it cannot write the `CSINode`, because the API server is unavailable.
const OFFER_AGAIN_AFTER: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Registrar {
    /// Path of the CSI socket on the node.
    endpoint: String,
    registered: watch::Sender<bool>,
    rejected: Arc<Notify>,
}

impl Registrar {
    pub fn new(endpoint: String, registered: watch::Sender<bool>) -> Self {
        Self { endpoint, registered, rejected: Arc::default() }
    }

    /// Serves this socket until `stop`, and another one in its place after each rejection. Ends with an error if it cannot.
    pub fn serve(
        self,
        socket: PathBuf,
        stop: CancellationToken,
    ) -> io::Result<impl Future<Output = io::Result<()>> + use<>> {
        let mut incoming = listen(&socket)?;
        Ok(async move {
            loop {
                let server = Server::builder()
                    .add_service(RegistrationServer::new(self.clone()))
                    .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
                incoming = tokio::select! {
                    ended = server => return ended.map_err(io::Error::other),
                    () = self.is_to_be_offered_again() => listen(&socket)?,
                };
            }
        })
    }

    async fn is_to_be_offered_again(&self) {
        loop {
            self.rejected.notified().await;
            tokio::time::sleep(OFFER_AGAIN_AFTER).await;
            // The kubelet may have restarted.
            if !*self.registered.borrow() {
                return;
            }
        }
    }
}

fn listen(path: &Path) -> io::Result<impl Stream<Item = io::Result<Lenient>> + use<>> {
    Ok(socket::listen(path)?.map(|accepted| accepted.map(Lenient::new)))
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec![CSI_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("registered with the kubelet");
        } else {
            tracing::error!(error, "the kubelet rejected the registration of the driver");
            self.rejected.notify_one();
        }
        self.registered.send_replace(plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise the kubelet would not find the driver again.
    #[tokio::test]
    async fn a_registration_that_cannot_be_offered_again_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let registry = folder.path().join("registry");
        let registrar = Registrar::new("csi.sock".to_owned(), watch::channel(false).0);
        let served = registrar.clone().serve(registry.join("s3.sock"), CancellationToken::new()).unwrap();
        std::fs::remove_dir_all(&registry).unwrap();
        std::fs::write(&registry, "not a folder").unwrap();
        let rejected = RegistrationStatus { plugin_registered: false, error: "why".to_owned() };
        registrar.notify_registration_status(Request::new(rejected)).await.unwrap();
        assert!(served.await.is_err());
    }

    #[tokio::test]
    async fn a_stop_is_no_error() {
        let (folder, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let registrar = Registrar::new("csi.sock".to_owned(), watch::channel(false).0);
        let served = registrar.serve(folder.path().join("s3.sock"), stop.clone()).unwrap();
        stop.cancel();
        served.await.unwrap();
    }
}
