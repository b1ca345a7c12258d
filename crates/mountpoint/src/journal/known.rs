//! What the kernel knows of a mount, as the journal says.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::record::{Access, Begin, Completion, Node, Open, PublishedObject, Record, Version};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) begin: Begin,
    pub(crate) nodes: Nodes,
    pub(crate) handles: BTreeMap<u64, Handle>,
    /// How often a request that the kernel sent again was begun, by its number.
    pub(crate) retries: HashMap<u64, u32>,
    /// Multipart uploads that have begun on the server and not ended.
    pub(crate) uploads: BTreeSet<String>,
    pub(crate) highest_inode: u64,
    pub(crate) highest_handle: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handle {
    pub(crate) open: Open,
    pub(crate) published: Option<PublishedObject>,
    pub(crate) unspooled: bool,
    pub(crate) completing: Option<Box<Completion>>,
    pub(crate) is_idle: bool,
    /// Of a directory: the entries that the kernel was given.
    pub(crate) names: Vec<String>,
}

/// By number and by name. The root is not among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    by_number: HashMap<u64, Node>,
    by_name: HashMap<u64, HashMap<String, u64>>,
}

impl Known {
    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Begin(begin) => self.begin = begin,
            Record::Highest { inode, handle } => {
                self.highest_inode = self.highest_inode.max(inode);
                self.highest_handle = self.highest_handle.max(handle);
            }
            Record::Inode(ino, node) => {
                self.highest_inode = self.highest_inode.max(ino);
                self.nodes.insert(ino, node);
            }
            Record::LookedUp(ino) => self.nodes.look_up(ino),
            Record::Forgotten(ino, lookups) => {
                self.nodes.forget(ino, lookups);
            }
            Record::Uploaded(ino, version) => {
                self.nodes.upload(ino, version);
            }
            Record::Stale(ino) => self.nodes.mark_stale(ino),
            Record::Removed(parent, name) => self.nodes.remove_name(parent, &name),
            Record::Renamed(parent, name, new_parent, new_name) => {
                self.nodes.rename(parent, &name, new_parent, &new_name);
            }
            Record::Opened(handle, open) => {
                self.highest_handle = self.highest_handle.max(handle);
                self.handles.insert(handle, Handle::new(open));
            }
            Record::Idle(handle) => self.change(handle, |handle| handle.is_idle = true),
            Record::Busy(handle) => self.change(handle, |handle| handle.is_idle = false),
            // It is recorded again when a program gets an error: what failed must not be completed later.
            Record::Unspooled(handle) => self.change(handle, |handle| {
                (handle.unspooled, handle.completing) = (true, None);
            }),
            Record::Completing(handle, completion) => {
                self.change(handle, |handle| handle.completing = Some(completion));
            }
            Record::Published(handle, object) => self.change(handle, |handle| {
                (handle.published, handle.unspooled, handle.completing) = (Some(object), false, None);
            }),
            Record::Listed(handle, offset, names) => self.change(handle, |handle| {
                handle.names.truncate(usize::try_from(offset).unwrap_or(usize::MAX));
                handle.names.extend(names);
            }),
            Record::Closed(handle) => {
                self.handles.remove(&handle);
            }
            Record::Retried(unique) => *self.retries.entry(unique).or_default() += 1,
            Record::UploadBegun(upload) => _ = self.uploads.insert(upload),
            Record::UploadEnded(upload) => _ = self.uploads.remove(&upload),
            Record::Left => self.retries.clear(),
        }
    }

    /// Uploads that a successor does not need.
    pub(crate) fn abandoned_uploads(&self) -> BTreeSet<String> {
        let needed = |upload: &str| {
            self.handles.values().filter_map(Handle::to_complete).any(|needed| needed.upload == upload)
        };
        self.uploads.iter().filter(|upload| !needed(upload)).cloned().collect()
    }

    fn change(&mut self, handle: u64, change: impl FnOnce(&mut Handle)) {
        if let Some(handle) = self.handles.get_mut(&handle) {
            change(handle);
        }
    }

    /// The shortest list of records that leads to the same. They are copied one by one, because a copy of everything might
    /// not fit into the memory.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> {
        let Self { begin, nodes, handles, retries, uploads, highest_inode, highest_handle } = self;
        let highest = Record::Highest { inode: *highest_inode, handle: *highest_handle };
        let first = [Record::Begin(begin.clone()), highest];
        // If several nodes have the same name, it belongs to the last one.
        let by_number = nodes.by_number.iter().collect::<BTreeMap<_, _>>().into_iter();
        let nodes = by_number.map(|(ino, node)| Record::Inode(*ino, node.clone()));
        let handles = handles.iter().flat_map(|(number, handle)| {
            let published = handle.published.clone().map(|object| Record::Published(*number, object));
            let unspooled = handle.unspooled.then_some(Record::Unspooled(*number));
            let completing = handle.completing.clone().map(|it| Record::Completing(*number, it));
            let idle = handle.is_idle.then_some(Record::Idle(*number));
            let has_listed = !handle.names.is_empty();
            let listed = has_listed.then(|| Record::Listed(*number, 0, handle.names.clone()));
            let opened = Some(Record::Opened(*number, handle.open.clone()));
            [opened, published, unspooled, completing, idle, listed].into_iter().flatten()
        });
        let retries = retries
            .iter()
            .flat_map(|(unique, times)| std::iter::repeat_n(Record::Retried(*unique), *times as usize));
        let uploads = uploads.iter().cloned().map(Record::UploadBegun);
        first.into_iter().chain(nodes).chain(handles).chain(retries).chain(uploads)
    }
}

impl Handle {
    /// Whether bytes of it are nowhere but in the process.
    pub(crate) fn is_lost(&self) -> bool {
        self.unspooled || self.open.access == Access::Append
    }

    /// What a successor has to complete, because it has nothing that it could upload again.
    pub(crate) fn to_complete(&self) -> Option<&Completion> {
        self.completing.as_deref().filter(|_| self.unspooled)
    }

    fn new(open: Open) -> Self {
        Self { open, published: None, unspooled: false, completing: None, is_idle: false, names: Vec::new() }
    }
}

impl Nodes {
    pub(crate) fn get(&self, ino: u64) -> Option<&Node> {
        self.by_number.get(&ino)
    }

    pub(crate) fn named(&self, parent: u64, name: &str) -> Option<u64> {
        self.by_name.get(&parent)?.get(name).copied()
    }

    /// What the kernel knows of a directory's entries.
    pub(crate) fn children(&self, parent: u64) -> impl Iterator<Item = (u64, &Node)> {
        let numbers = self.by_name.get(&parent).into_iter().flat_map(HashMap::values);
        numbers.filter_map(|ino| Some((*ino, self.by_number.get(ino)?)))
    }

    pub(crate) fn insert(&mut self, ino: u64, node: Node) {
        if !node.is_stale {
            let names = self.by_name.entry(node.parent).or_default();
            let before = names.insert(node.name.clone(), ino).filter(|before| *before != ino);
            // A folder of the same name has the same content.
            let before = before.and_then(|before| self.by_number.get_mut(&before));
            if let Some(before) = before.filter(|before| !before.is_directory || !node.is_directory) {
                before.is_stale = true;
            }
        }
        self.by_number.insert(ino, node);
    }

    pub(crate) fn look_up(&mut self, ino: u64) {
        if let Some(node) = self.by_number.get_mut(&ino) {
            node.lookups += 1;
        }
    }

    /// Whether the kernel no longer knows it.
    pub(crate) fn forget(&mut self, ino: u64, lookups: u64) -> bool {
        let Some(node) = self.by_number.get_mut(&ino) else { return false };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 {
            return false;
        }
        self.unname(ino);
        self.by_number.remove(&ino);
        true
    }

    pub(crate) fn mark_stale(&mut self, ino: u64) {
        self.unname(ino);
        if let Some(node) = self.by_number.get_mut(&ino) {
            node.is_stale = true;
        }
    }

    pub(crate) fn remove_name(&mut self, parent: u64, name: &str) {
        if let Some(ino) = self.named(parent, name) {
            self.mark_stale(ino);
        }
    }

    pub(crate) fn rename(&mut self, parent: u64, name: &str, new_parent: u64, new_name: &str) {
        self.remove_name(new_parent, new_name);
        let Some(ino) = self.named(parent, name) else { return };
        self.unname(ino);
        if let Some(mut node) = self.by_number.remove(&ino) {
            (node.parent, node.name) = (new_parent, new_name.to_owned());
            self.insert(ino, node);
        }
    }

    pub(crate) fn update(&mut self, ino: u64, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.by_number.get_mut(&ino) {
            change(node);
        }
    }

    /// The file is this version of its object now, with which the folders above it are in the bucket, too.
    pub(crate) fn upload(&mut self, ino: u64, version: Version) {
        self.update(ino, |node| (node.version, node.is_local) = (version, false));
        let mut folder = self.get(ino).map(|node| node.parent);
        while let Some(node) =
            folder.and_then(|ino| self.by_number.get_mut(&ino)).filter(|node| node.is_local)
        {
            node.is_local = false;
            folder = Some(node.parent);
        }
    }

    fn unname(&mut self, ino: u64) {
        let Some(node) = self.by_number.get(&ino) else { return };
        let Some(names) = self.by_name.get_mut(&node.parent) else { return };
        if names.get(&node.name) == Some(&ino) {
            names.remove(&node.name);
        }
        if names.is_empty() {
            self.by_name.remove(&node.parent);
        }
    }
}
