//! Writes an image as an OCI archive; the same content gives the same bytes.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::contents::{Contents, Entry};
use crate::architecture::Architecture;

/// Media type of a manifest.
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Media type of an index, which names a manifest for each architecture.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

pub(crate) struct Image {
    pub(crate) reference: String,
    pub(crate) architecture: Architecture,
    pub(crate) contents: Contents,
    pub(crate) command: &'static [&'static str],
    pub(crate) user: &'static str,
}

impl Image {
    /// Returns the digest of the manifest: the image's identity.
    pub(crate) fn write(&self, archive: &Path) -> Result<String> {
        write(std::slice::from_ref(self), archive)
    }

    /// Returns the descriptor of the manifest.
    fn add_to(&self, blobs: &mut Vec<Vec<u8>>) -> Result<Value> {
        let layer = layer(&self.contents)?;
        let config = to_bytes(&json!({
            "architecture": self.architecture.name(),
            "os": "linux",
            "config": {"Entrypoint": self.command, "User": self.user, "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        }))?;
        let manifest = to_bytes(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer)],
        }))?;
        let mut entry = descriptor(MANIFEST, &manifest);
        entry["platform"] = json!({"architecture": self.architecture.name(), "os": "linux"});
        blobs.extend([config, layer, manifest]);
        Ok(entry)
    }
}

/// Images of the same name for different architectures. Returns the digest of the manifest, or, of several, that of their index.
pub(crate) fn write(images: &[Image], archive: &Path) -> Result<String> {
    let mut blobs = Vec::new();
    let mut manifests = images.iter().map(|image| image.add_to(&mut blobs)).collect::<Result<Vec<_>>>()?;
    let mut entry = if manifests.len() == 1 {
        manifests.remove(0)
    } else {
        let index = to_bytes(&json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}))?;
        let entry = descriptor(INDEX, &index);
        blobs.push(index);
        entry
    };
    let identity = entry["digest"].as_str().context("a descriptor has a digest")?.to_owned();
    // containerd takes the image's name from here.
    entry["annotations"] = json!({"io.containerd.image.name": images[0].reference});
    let index = to_bytes(&json!({"schemaVersion": 2, "manifests": [entry]}))?;

    let mut tar = Builder::new(Vec::new());
    add_file(&mut tar, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    add_file(&mut tar, "index.json", 0o644, &index)?;
    for blob in &blobs {
        add_file(&mut tar, &digest(blob).replace("sha256:", "blobs/sha256/"), 0o644, blob)?;
    }
    replace(archive, &tar.into_inner()?)?;
    Ok(identity)
}

/// The contents of an archive.
pub(crate) struct Layout {
    pub(crate) digest: String,
    pub(crate) manifest: Vec<u8>,
    /// Digest and content of everything that the manifest references.
    pub(crate) blobs: Vec<(String, Vec<u8>)>,
}

impl Layout {
    pub(crate) fn read(archive: &Path) -> Result<Self> {
        let (mut blobs, mut index) = (Vec::new(), Value::Null);
        for entry in tar::Archive::new(fs::File::open(archive)?).entries()? {
            let mut entry = entry?;
            let path = entry.path()?.to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            if let Some(hash) = path.strip_prefix("blobs/sha256/") {
                blobs.push((format!("sha256:{hash}"), content));
            } else if path == "index.json" {
                index = serde_json::from_slice(&content)?;
            }
        }
        let digest = index["manifests"][0]["digest"].as_str().context("the index names no manifest")?;
        let manifest =
            blobs.iter().position(|(name, _)| name == digest).context("the manifest is missing")?;
        let (digest, manifest) = blobs.swap_remove(manifest);
        Ok(Self { digest, manifest, blobs })
    }
}

fn layer(contents: &Contents) -> Result<Vec<u8>> {
    let mut tar = Builder::new(Vec::new());
    for (path, entry) in &contents.0 {
        match entry {
            Entry::Folder { mode } => {
                let mut header = header(EntryType::Directory, *mode, 0);
                tar.append_data(&mut header, format!("{path}/"), std::io::empty())?;
            }
            Entry::File { mode, content } => add_file(&mut tar, path, *mode, content)?,
            Entry::Link { target } => {
                let mut header = header(EntryType::Symlink, 0o777, 0);
                tar.append_link(&mut header, path, target)?;
            }
        }
    }
    Ok(tar.into_inner()?)
}

fn add_file(tar: &mut Builder<Vec<u8>>, path: &str, mode: u32, content: &[u8]) -> Result<()> {
    let mut header = header(EntryType::Regular, mode, content.len() as u64);
    Ok(tar.append_data(&mut header, path, content)?)
}

/// Owned by root, with time zero, so that an image depends neither on its builder nor on the clock.
fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Atomically, so that a concurrent import reads either the old or the new archive.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().expect("an archive is in a folder");
    fs::create_dir_all(folder)?;
    let partial = tempfile::NamedTempFile::new_in(folder)?;
    fs::write(partial.path(), content)?;
    partial.persist(path)?;
    Ok(())
}

fn descriptor(kind: &str, content: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": digest(content), "size": content.len()})
}

pub(crate) fn digest(content: &[u8]) -> String {
    format!("sha256:{}", base16ct::lower::encode_string(&Sha256::digest(content)))
}

fn to_bytes(value: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(content: &[u8]) -> Image {
        let mut contents = Contents::default();
        contents.0.insert("bin".into(), Entry::Folder { mode: 0o755 });
        contents.0.insert("bin/a".into(), Entry::File { mode: 0o755, content: content.to_vec() });
        let (reference, architecture) = ("test/a:dev".to_owned(), Architecture::Amd64);
        Image { reference, architecture, contents, command: &["/bin/a"], user: "0:0" }
    }

    #[test]
    fn the_same_content_gives_the_same_bytes_and_other_content_another_digest() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second, other] = ["1", "2", "3"].map(|name| folder.path().join(name));
        let one = image(b"x").write(&first).unwrap();
        assert_eq!(one, image(b"x").write(&second).unwrap());
        assert_eq!(fs::read(first).unwrap(), fs::read(second).unwrap());
        assert_ne!(one, image(b"y").write(&other).unwrap());
    }

    #[test]
    fn an_archive_can_be_taken_apart() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("a.tar");
        let identity = image(b"x").write(&archive).unwrap();
        let layout = Layout::read(&archive).unwrap();
        assert_eq!((&layout.digest, digest(&layout.manifest)), (&identity, identity.clone()));
        assert_eq!(layout.blobs.len(), 2, "a configuration and a layer");
        assert!(layout.blobs.iter().all(|(name, content)| digest(content) == *name));
    }

    #[test]
    fn an_index_names_an_image_for_each_architecture() {
        let folder = tempfile::tempdir().unwrap();
        let [both, alone] = ["both", "alone"].map(|name| folder.path().join(name));
        let other = Image { architecture: Architecture::Arm64, ..image(b"y") };
        let identity = write(&[image(b"x"), other], &both).unwrap();
        let layout = Layout::read(&both).unwrap();
        assert_eq!(layout.digest, identity);
        let index: Value = serde_json::from_slice(&layout.manifest).unwrap();
        assert_eq!(index["mediaType"], INDEX);
        let manifests = index["manifests"].as_array().unwrap();
        let platforms: Vec<_> = manifests.iter().map(|one| &one["platform"]["architecture"]).collect();
        assert_eq!(platforms, ["amd64", "arm64"]);
        assert_eq!(manifests[0]["digest"], image(b"x").write(&alone).unwrap(), "the same as alone");
        assert_eq!(layout.blobs.len(), 6, "a manifest, a configuration and a layer each");
    }
}
