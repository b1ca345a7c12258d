//! EKS Pod Identity: an agent at its link-local address on the node, which has the API server check each token.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use contract::names::DRIVER;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use s3_csi_tests::agent::{Agent, LINK_LOCAL, Refusal, add_address, review};
use s3_csi_tests::csi::Csi;
use s3_csi_tests::secrecy::no_secret_is_seen;
use s3_csi_tests::{Seen, changed, cluster, eventually};
use serde_json::json;
use xtask::command::run;
use xtask::s3::{ALICE, Account, accounts};

use crate::driver_identity::provisions_and_mounts;
use crate::roles::{READ, account, expire_token, volume, workload};
use crate::story::{LIMIT, Story};
use s3_csi_tests::examples::{self, BUCKET};

const EXPIRED: &str = "the temporary keys of the role of the Pod Identity association have expired";
/// Of the keys that the agent gives.
const LAST: SignedDuration = SignedDuration::from_secs(10);

/// Namespace and name of service accounts, with a colon between, and what they may use.
pub(crate) type Associations = Arc<Mutex<BTreeMap<String, Account>>>;

/// At one of Amazon's addresses of it.
pub(crate) fn agent(address: IpAddr, associations: &Associations) -> Agent {
    add_address(address);
    let (associations, cluster) = (Arc::clone(associations), cluster());
    let accept = move |token: &str| {
        let account = review(&cluster, token)?;
        associations.lock().unwrap().get(&account).copied().ok_or(Refusal::NoAssociation)
    };
    Agent::start((address, 80), LAST, Arc::new(accept))
}

/// As before Kubernetes 1.36, until the driver is installed again.
fn tokens_in_the_volume_context(story: &Story) {
    let mut kubectl = story.here.cluster.kubectl().unwrap();
    let patch = json!({"spec": {"serviceAccountTokenInSecrets": null}}).to_string();
    run(kubectl.args(["patch", "csidriver", DRIVER, "--type=merge", "--patch", &patch])).unwrap();
}

#[tokio::test]
async fn an_association_opens_its_bucket_until_its_keys_expire() {
    const OLD: Account =
        Account { name: "old", access_key: "AKIAOLDROLE", secret_key: "old-secret-of-the-association" };
    const NEW: Account =
        Account { name: "new", access_key: "AKIANEWROLE", secret_key: "new-secret-of-the-association" };
    const CLAIM: &str = "associations-claim";
    let story = Story::alone("associations").await;
    let programs = story.here.cluster.programs().unwrap();
    for account in [OLD, NEW] {
        accounts::create(&programs, account.access_key, account.secret_key).unwrap();
    }
    story.server.put(story.name, "hello", b"hello").unwrap();
    accounts::give_bucket(&programs, story.name, OLD.access_key).unwrap();
    let associations = Associations::default();
    let agent = agent(LINK_LOCAL, &associations);
    let changed = changed::values(&story.here.cluster, &["podIdentity.eks.enabled=true"]);
    let namespace = story.here.namespace.clone();
    let associate = |name: &str, keys: Account| {
        associations.lock().unwrap().insert(format!("{namespace}:{name}"), keys);
    };
    for name in ["associated", "third", "stranger", "poor", "early"] {
        account(&story, name, None).await;
    }
    for name in ["associated", "third", "early"] {
        associate(name, OLD);
    }
    associate("poor", ALICE);
    associations.lock().unwrap().insert("default:my-bucket-association".to_owned(), ALICE);
    story.server.create_bucket(BUCKET).unwrap();
    examples::works(&story, "identity-association.yaml").await;
    story.server.delete_bucket(BUCKET).unwrap();
    let parameters = json!({"authenticationSource": "pod", "stsRegion": "eu-west-1"});
    provisions_and_mounts(&story, &story.server, "by-workload", parameters, "poor").await;
    volume(&story, CLAIM, story.name).await;

    let first = story.here.run("first", workload(CLAIM, "associated", READ)).await;
    story.says("first", "good").await;
    let served_by = story.mountpoint_pods().await;
    story.here.run("second", workload(CLAIM, "associated", READ)).await;
    story.says("second", "good").await;
    assert_eq!(story.mountpoint_pods().await, served_by, "pods of one account share");

    tokens_in_the_volume_context(&story);
    story.here.run("third", workload(CLAIM, "third", READ)).await;
    story.says("third", "good").await;
    assert_eq!(story.mountpoint_pods().await.len(), served_by.len() + 1, "each account has its own");

    let given = agent.given();
    eventually("the keys are renewed three times", LIMIT, || async {
        let renewed = agent.given() - given;
        Seen::some((renewed >= 3).then_some(()), format!("{renewed} times"))
    })
    .await;
    strangers_are_refused(&story, CLAIM).await;
    assert!(!story.log("first").await.contains("bad"));

    // The agent is away until after the keys have become invalid.
    agent.stay_away(true);
    accounts::give_bucket(&programs, story.name, NEW.access_key).unwrap();
    story.says("first", "bad").await;
    let address = agent.url().replace(":80", "");
    story.has_event(&format!("{EXPIRED}: {address} cannot be reached")).await;
    let kubelet = Path::new("/var/lib/kubelet");
    let csi = Csi::connect(&kubelet.join("plugins").join(DRIVER).join("csi.sock")).await.unwrap();
    let uid = first.uid().unwrap();
    let target = kubelet.join(format!("pods/{uid}/volumes/kubernetes.io~csi/{CLAIM}/mount"));
    let condition = async || csi.stats(CLAIM, &target).await.unwrap().volume_condition.unwrap();
    let expired = condition().await;
    assert!(expired.abnormal && expired.message.contains("have expired"), "{expired:?}");
    assert!(expired.message.contains(&address), "{expired:?}");
    story.here.run("early", workload(CLAIM, "early", READ)).await;
    story.has_event_after(Timestamp::UNIX_EPOCH, "early", "cannot be reached to get temporary keys").await;

    for name in ["associated", "third", "early"] {
        associate(name, NEW);
    }
    let back = Timestamp::now();
    agent.stay_away(false);
    for pod in ["first", "second", "third", "early"] {
        story.says_again(pod, "good").await;
        assert_eq!(story.container(pod).await.restart_count, 0);
    }
    // Until the node service has noticed, it would not report that they expire again.
    story.has_event_after(back, "first", "has valid credentials again").await;
    assert!(!condition().await.abnormal);

    let refused = format!(
        "{EXPIRED}: {address} refuses the role of the Pod Identity association to this service account"
    );
    expire_token(&story, &served_by[0], &format!("{refused} (ExpiredTokenException")).await;
    eventually("the keys are valid again", LIMIT, || async {
        let condition = condition().await;
        Seen::some((!condition.abnormal).then_some(()), condition.message)
    })
    .await;
    story.says_again("first", "good").await;
    let own = [OLD.secret_key, NEW.secret_key].map(str::to_owned).to_vec();
    no_secret_is_seen(&story.here.cluster, &[agent.tokens(), own].concat());

    for pod in ["first", "second", "third", "early"] {
        story.here.delete(pod).await;
    }
    accounts::give_bucket(&programs, story.name, ALICE.access_key).unwrap();
    changed.undo();
    story.leaves_nothing().await;
}

/// An account without an association, and one whose role cannot use the bucket.
async fn strangers_are_refused(story: &Story, claim: &str) {
    let no_association = [
        "ResourceNotFoundException: no association for this service account",
        "check that the account has a Pod Identity association",
    ];
    let no_right = ["allow the role of the Pod Identity association to list it"];
    for (name, words) in [("stranger", &no_association[..]), ("poor", &no_right)] {
        story.here.run(name, workload(claim, name, READ)).await;
        for words in words {
            story.has_event_after(Timestamp::UNIX_EPOCH, name, words).await;
        }
        assert!(story.container(name).await.container_id.is_none(), "{name} has started");
        story.mountpoint_pods().await;
        // The kubelet's backoff is one for all pods of a volume: this one would delay the next.
        story.here.delete(name).await;
    }
}
