//! Every manifest in `examples/` works unchanged.

use std::fs;

use s3_csi_tests::examples::{BUCKET, folder, works};

use crate::story::Story;

#[tokio::test]
async fn every_example_works() {
    let story = Story::begin("examples").await;
    story.server.create_bucket(BUCKET).unwrap();
    let names =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = names.collect();
    // The claims suite covers the examples of claims without pods; the stories of identities cover theirs.
    files.retain(|name| !name.starts_with("dynamic-") && !name.starts_with("identity-"));
    files.sort();
    for file in &files {
        works(&story, file).await;
    }
    for key in story.server.objects(BUCKET, "").unwrap() {
        story.server.delete(BUCKET, &key).unwrap();
    }
    story.server.delete_bucket(BUCKET).unwrap();
    story.leaves_nothing().await;
}
