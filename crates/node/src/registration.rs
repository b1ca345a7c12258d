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

    /// Serves this socket until `stop`, and another one in its place after each rejection.
    pub fn serve(
        self,
        socket: PathBuf,
        stop: CancellationToken,
    ) -> io::Result<impl Future<Output = ()> + use<>> {
        let mut incoming = listen(&socket)?;
        Ok(async move {
            loop {
                let server = Server::builder()
                    .add_service(RegistrationServer::new(self.clone()))
                    .serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
                let listening = tokio::select! {
                    ended = server => return log_failure(ended.err()),
                    () = self.is_to_be_offered_again() => listen(&socket),
                };
                incoming = match listening {
                    Ok(incoming) => incoming,
                    Err(error) => return log_failure(Some(error)),
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

fn log_failure(error: Option<impl std::error::Error>) {
    if let Some(error) = error {
        tracing::error!(%error, "the registration socket failed");
    }
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
