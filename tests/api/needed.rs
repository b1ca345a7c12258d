//! No rule of the controller too many: without any one right that Helm gives it, a story fails that works with all.

mod node;
mod scene;
mod story;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use s3_csi_tests::account::{CONTROLLER, MOUNTPOINT_NAMESPACE, RELEASE_NAMESPACE};
use s3_csi_tests::chart::Granted;
use s3_csi_tests::controller;
use s3_csi_tests::program::Program;
use s3_csi_tests::right::Right;
use s3_csi_tests::{Seen, Stage, eventually};
use serde_json::Value;

use scene::Scene;

const LIMIT: Duration = Duration::from_secs(30);
/// From its beginning to where it fails, beside all the others.
const STORY_WITHIN: Duration = Duration::from_mins(4);
/// So many times as long as with all rights, a story may take to its end without one of them.
const LONGER: u32 = 3;
/// Everything that the controller can be given.
const VALUES: &[&str] = &["podIdentity.enabled=true"];
const EVERYWHERE: &str = "";

/// What a right is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Story {
    Starts,
    UpdatesItsDefinition,
    Leads,
    Attaches,
    Joins,
    Detaches,
    Unmounts,
    Buries,
    FindsAnOrphan,
    FindsAForeignAttachment,
    LosesANode,
    Identifies,
    Explains,
    Tells,
    Provisions,
    ProvisionsWithASecret,
    ReleasesAContendedClaim,
    Reclaims,
}

/// Where, on what, and for each verb the story that fails without it.
type Table<Story> = &'static [(&'static str, &'static str, &'static [(&'static str, Story)])];

const STORIES: Table<Story> = {
    use Story::*;
    &[
        (EVERYWHERE, "pods", &[("get", Detaches), ("list", Starts), ("watch", Attaches)]),
        (EVERYWHERE, "persistentvolumes", &[("get", Reclaims), ("list", Starts), ("watch", Attaches)]),
        (
            EVERYWHERE,
            "persistentvolumes",
            &[("create", Provisions), ("patch", Reclaims), ("delete", Reclaims)],
        ),
        (EVERYWHERE, "nodes", &[("get", LosesANode), ("list", Starts), ("watch", LosesANode)]),
        (EVERYWHERE, "events", &[("create", Tells)]),
        (
            EVERYWHERE,
            "mountpoints3podattachments",
            &[
                ("get", FindsAnOrphan),
                ("list", Starts),
                ("watch", FindsAForeignAttachment),
                ("create", Attaches),
                ("patch", Joins),
                ("delete", Detaches),
            ],
        ),
        (EVERYWHERE, "mountpoints3podattachments/status", &[("patch", Explains)]),
        (EVERYWHERE, "customresourcedefinitions", &[("patch", UpdatesItsDefinition)]),
        (EVERYWHERE, "serviceaccounts", &[("get", Identifies)]),
        (
            EVERYWHERE,
            "persistentvolumeclaims",
            &[
                ("get", ReleasesAContendedClaim),
                ("list", Starts),
                ("watch", Provisions),
                ("patch", Provisions),
            ],
        ),
        (EVERYWHERE, "storageclasses", &[("get", Provisions)]),
        (EVERYWHERE, "secrets", &[("get", ProvisionsWithASecret)]),
        (MOUNTPOINT_NAMESPACE, "pods", &[("create", Attaches), ("patch", Unmounts), ("delete", Buries)]),
        (RELEASE_NAMESPACE, "leases", &[("create", Leads), ("get", Leads), ("patch", Leads)]),
    ]
};

fn story_of<Story: Copy>(table: Table<Story>, role: &Granted, right: &Right) -> Story {
    let place = role.namespace.as_deref().unwrap_or(EVERYWHERE);
    let rows = table.iter().filter(|(at, resource, _)| *at == place && *resource == right.resource);
    let found = rows.flat_map(|(.., verbs)| *verbs).find(|(verb, _)| *verb == right.verb);
    found.unwrap_or_else(|| panic!("no story needs {right:?} in `{place}`: take it away")).1
}

/// Each right has a story, see above; and each story's right is in the chart.
fn check_table<Story>(table: Table<Story>, roles: &[Granted]) {
    let granted: usize = roles.iter().map(|role| role.rights.len()).sum();
    let listed: usize = table.iter().map(|(.., verbs)| verbs.len()).sum();
    assert_eq!(listed, granted, "{roles:?}");
}

/// Where the program says it in words of its own, which name the remedy.
fn refusal(right: &Right) -> String {
    match right.resource.as_str() {
        "secrets" => "provisioning.secretNamespaces".to_owned(),
        "serviceaccounts" => "podIdentity.enabled".to_owned(),
        _ => right.refusal(),
    }
}

#[tokio::test]
async fn without_any_rule_of_the_controller_a_story_fails() {
    let _none = controller::none().await;
    let first = Stage::set("needed").await;
    let roles = CONTROLLER.roles(VALUES);
    check_table(STORIES, &roles);

    let whole = CONTROLLER.variant(&first.here.client, "whole", &roles).await;
    let stories = STORIES.iter().flat_map(|(.., verbs)| *verbs).map(|(_, story)| (*story, Duration::ZERO));
    let mut stories: BTreeMap<Story, Duration> = stories.collect();
    for (story, takes) in &mut stories {
        let scene = Scene::set(&format!("whole-{story:?}")).await;
        let controller = scene.start(&whole, *story == Story::Leads).await;
        *takes = duration(Box::pin(story.unfold(&scene, &controller))).await;
        scene.clear(controller).await;
    }
    for (number, role) in roles.iter().enumerate() {
        for right in &role.rights {
            let story = story_of(STORIES, role, right);
            let name = format!("no-{}-{}-{number}", right.verb, right.resource.replace('/', "-"));
            let mut others = roles.clone();
            others[number].rights.remove(right);
            let account = CONTROLLER.variant(&first.here.client, &name, &others).await;
            let scene = Scene::set(&name).await;
            let controller = scene.start(&account, story == Story::Leads).await;
            let unfolds = Box::pin(story.unfold(&scene, &controller));
            fails(unfolds, &controller, &refusal(right), stories[&story]).await;
            println!("{story:?} fails without {right:?}");
            scene.clear(controller).await;
        }
    }
}

async fn duration(story: impl Future<Output = ()>) -> Duration {
    let began = Instant::now();
    story.await;
    began.elapsed()
}

/// That the program is refused shows only that it asks: perhaps as soon as it starts, or for something that it can do without. So
/// the story goes on, and must not come to its end either.
async fn fails(story: impl Future<Output = ()>, program: &Program, words: &str, takes: Duration) {
    let goes_on = async {
        is_refused(program, words).await;
        tokio::time::sleep(takes * LONGER).await;
    };
    tokio::select! {
        // Its own deadline is a failure, too.
        end = AssertUnwindSafe(story).catch_unwind() => {
            assert!(end.is_err(), "a story comes to its end where the program may hear `{words}`");
            is_refused(program, words).await;
        }
        () = goes_on => {}
    }
}

async fn is_refused(program: &Program, words: &str) {
    eventually(&format!("it says `{words}`"), STORY_WITHIN, || async {
        let log = program.log().replace('\\', "");
        Seen::some(log.contains(words).then_some(()), xtask::command::tail(&log))
    })
    .await;
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
