//! Follows the objects of one kind, as kube's own watcher does, but in memory that does not depend on what their authors
//! write into them: a list is read object by object, and of each only what `K` has fields for is kept.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream};
use futures::{AsyncBufRead, AsyncBufReadExt as _, Stream, StreamExt as _, TryFutureExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::core::{ListMeta, Request};
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Error, Resource, ResourceExt as _};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cut::Cutter;

/// Objects in one response. The API server builds a whole page in its memory.
const PAGE: u32 = 100;
/// The API server builds a page within seconds; a connection that was cut without notice never continues.
const CONTINUES_WITHIN: Duration = Duration::from_mins(1);
/// The API server ends a watch after this long, so that a dead connection is noticed then.
const WATCH_SECONDS: u32 = 290;
const WATCH_ENDS_WITHIN: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// A watch that ends sooner, and says nothing, was closed by something that would close the next one, too.
const WATCH_LASTS: Duration = Duration::from_secs(1);
/// Status for a version that the API server no longer remembers.
const GONE: u16 = 410;

/// Which objects are followed: those that match both selectors.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub fields: Option<String>,
    pub labels: Option<String>,
}

impl Selection {
    pub fn of_fields(fields: String) -> Self {
        Self { fields: Some(fields), labels: None }
    }
}

/// Begins with all there is, and continues with what changes, also after an error: add a backoff.
pub fn follow<K>(api: Api<K>, selection: Selection) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    stream::unfold(Follower { api, selection, state: State::Begin }, |mut follower| async {
        let event = follower.next().await;
        Some((event, follower))
    })
}

struct Follower<K> {
    api: Api<K>,
    selection: Selection,
    state: State<K>,
}

enum State<K> {
    Begin,
    Listing(Box<Objects<K>>),
    /// Up to this version everything is known.
    Known(String),
    Watching {
        version: String,
        events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
        /// `None` once there was an event.
        silent_since: Option<Instant>,
    },
}

impl<K> Follower<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn next(&mut self) -> watcher::Result<Event<K>> {
        loop {
            match &mut self.state {
                State::Begin => {
                    self.state = State::Listing(Box::new(Objects::of(&self.api, &self.selection)));
                    return Ok(Event::Init);
                }
                State::Listing(objects) => match objects.next().await {
                    Ok(Some(object)) => return Ok(Event::InitApply(object)),
                    Ok(None) => {
                        let version = std::mem::take(&mut objects.version);
                        return if version.is_empty() {
                            self.begin_again(watcher::Error::NoResourceVersion)
                        } else {
                            self.state = State::Known(version);
                            Ok(Event::InitDone)
                        };
                    }
                    Err(error) => return self.begin_again(watcher::Error::InitialListFailed(error)),
                },
                State::Known(version) => {
                    let Selection { fields, labels } = self.selection.clone();
                    let params = WatchParams {
                        field_selector: fields,
                        label_selector: labels,
                        ..WatchParams::default()
                    }
                    .timeout(WATCH_SECONDS);
                    match in_time(self.api.watch(&params, version)).await {
                        Ok(events) => {
                            let (version, events) = (std::mem::take(version), events.boxed());
                            self.state =
                                State::Watching { version, events, silent_since: Some(Instant::now()) };
                        }
                        Err(Error::Api(status)) if status.code == GONE => {
                            return self.begin_again(watcher::Error::WatchError(status));
                        }
                        Err(error) => return Err(watcher::Error::WatchStartFailed(error)),
                    }
                }
                State::Watching { version, events, silent_since } => {
                    match tokio::time::timeout(WATCH_ENDS_WITHIN, events.next()).await {
                        Ok(Some(Ok(event))) => {
                            if let Some(event) = self.heard(event) {
                                return event;
                            }
                        }
                        Ok(Some(Err(error))) => return Err(watcher::Error::WatchFailed(error)),
                        // It ended, or the connection was lost.
                        Ok(None) | Err(_) => {
                            let is_at_once = silent_since.is_some_and(|begin| begin.elapsed() < WATCH_LASTS);
                            self.state = State::Known(std::mem::take(version));
                            if is_at_once {
                                let ended = std::io::Error::other("the watch ended as soon as it began");
                                return Err(watcher::Error::WatchFailed(Error::ReadEvents(ended)));
                            }
                        }
                    }
                }
            }
        }
    }

    /// `None` if it says only how far the API server is.
    fn heard(&mut self, event: WatchEvent<K>) -> Option<watcher::Result<Event<K>>> {
        let (version, event) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                (object.resource_version(), Some(Event::Apply(object)))
            }
            WatchEvent::Deleted(object) => (object.resource_version(), Some(Event::Delete(object))),
            WatchEvent::Bookmark(mark) => (Some(mark.metadata.resource_version), None),
            WatchEvent::Error(status) if status.code == GONE => {
                return Some(self.begin_again(watcher::Error::WatchError(status)));
            }
            WatchEvent::Error(status) => return Some(Err(watcher::Error::WatchError(status))),
        };
        let Some(version) = version.filter(|version| !version.is_empty()) else {
            return Some(self.begin_again(watcher::Error::NoResourceVersion));
        };
        if let State::Watching { version: seen, silent_since, .. } = &mut self.state {
            (*seen, *silent_since) = (version, None);
        }
        event.map(Ok)
    }

    fn begin_again(&mut self, error: watcher::Error) -> watcher::Result<Event<K>> {
        self.state = State::Begin;
        Err(error)
    }
}

/// All objects of a kind, one after another.
pub struct Objects<K> {
    client: Client,
    request: Request,
    params: ListParams,
    page: Option<Page>,
    /// Version of the list, when all of it was read.
    version: String,
    read_to_the_end: bool,
    kind: std::marker::PhantomData<fn() -> K>,
}

struct Page {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    cutter: Cutter,
}

#[derive(Deserialize)]
struct Rest {
    metadata: ListMeta,
}

impl<K: Resource + DeserializeOwned> Objects<K> {
    pub fn of(api: &Api<K>, selection: &Selection) -> Self
    where
        K: Clone,
    {
        let Selection { fields, labels } = selection.clone();
        Self {
            client: api.clone().into_client(),
            request: Request::new(api.resource_url()),
            params: ListParams { field_selector: fields, label_selector: labels, ..ListParams::default() }
                .limit(PAGE),
            page: None,
            version: String::new(),
            read_to_the_end: false,
            kind: std::marker::PhantomData,
        }
    }

    /// `None` after the last one.
    pub async fn next(&mut self) -> kube::Result<Option<K>> {
        while !self.read_to_the_end {
            let Some(page) = &mut self.page else {
                self.page = Some(in_time(self.open()).await?);
                continue;
            };
            let Page { body, cutter } = page;
            let bytes = in_time(body.fill_buf().map_err(Error::ReadEvents)).await?;
            if bytes.is_empty() {
                let Rest { metadata } = serde_json::from_slice(cutter.rest()).map_err(Error::SerdeError)?;
                self.params.continue_token = metadata.continue_.filter(|token| !token.is_empty());
                self.version = metadata.resource_version.unwrap_or_default();
                self.read_to_the_end = self.params.continue_token.is_none();
                self.page = None;
                continue;
            }
            let (taken, whole) = cutter.take(bytes);
            body.consume_unpin(taken);
            if whole {
                return cutter
                    .item(|bytes| serde_json::from_slice(bytes))
                    .map(Some)
                    .map_err(Error::SerdeError);
            }
        }
        Ok(None)
    }

    async fn open(&mut self) -> kube::Result<Page> {
        let request = if K::metadata_api() {
            self.request.list_metadata(&self.params)
        } else {
            self.request.list(&self.params)
        };
        let body = self.client.request_stream(request.map_err(Error::BuildRequest)?).await?;
        Ok(Page { body: Box::pin(body), cutter: Cutter::default() })
    }
}

async fn in_time<T>(answer: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let late = || std::io::Error::new(std::io::ErrorKind::TimedOut, "the API server stopped sending");
    tokio::time::timeout(CONTINUES_WITHIN, answer).await.unwrap_or_else(|_| Err(Error::ReadEvents(late())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::Config;

    /// What the follower says of a watch that began then and has ended; there is no API server for the next one.
    async fn after_the_end(began: Option<Instant>) -> watcher::Error {
        let api: Api<ConfigMap> =
            Api::all(Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap());
        let state =
            State::Watching { version: "1".to_owned(), events: stream::empty().boxed(), silent_since: began };
        Follower { api, selection: Selection::default(), state }.next().await.unwrap_err()
    }

    #[tokio::test]
    async fn a_watch_that_ends_at_once_is_an_error() {
        let error = after_the_end(Some(Instant::now())).await;
        assert!(matches!(error, watcher::Error::WatchFailed(_)), "{error}");
        for began in [Instant::now().checked_sub(WATCH_LASTS), None] {
            let error = after_the_end(began).await;
            assert!(matches!(error, watcher::Error::WatchStartFailed(_)), "another one begins: {error}");
        }
    }
}
