//! The requests of the volumes published on this node, for healing. Lost with the process: then the kubelet's periodic
//! republish heals.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::request::PublishRequest;

/// By target path.
#[derive(Default)]
pub struct PublishedRequests(Mutex<HashMap<PathBuf, Arc<PublishRequest>>>);

impl PublishedRequests {
    pub fn insert(&self, request: Arc<PublishRequest>) {
        self.0.lock().insert(request.target.clone(), request);
    }

    /// Replaces the request of a target that is published, so that healing uses the newest Secret.
    pub fn refresh(&self, request: &Arc<PublishRequest>) {
        if let Some(published) = self.0.lock().get_mut(&request.target) {
            published.clone_from(request);
        }
    }

    pub fn remove(&self, target: &Path) {
        self.0.lock().remove(target);
    }

    pub fn get(&self, target: &Path) -> Option<Arc<PublishRequest>> {
        self.0.lock().get(target).cloned()
    }

    pub fn targets(&self) -> Vec<PathBuf> {
        self.0.lock().keys().cloned().collect()
    }
}
