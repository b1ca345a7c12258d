//! The cluster's certificates and kubeconfigs. Each `up` creates new ones, so none has to be renewed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use super::{Cluster, NODE_ADDRESS};
use crate::s3::HOST;

/// (file, common name, organisation): the authorizers identify each component by its certificate's subject.
const CLIENTS: &[(&str, &str, &str)] = &[
    ("admin", "admin", "system:masters"),
    ("apiserver-kubelet-client", "apiserver-kubelet-client", "system:masters"),
    ("controller-manager", "system:kube-controller-manager", ""),
    ("scheduler", "system:kube-scheduler", ""),
    ("kube-proxy", "system:kube-proxy", ""),
];

/// (file, names and addresses)
const SERVERS: &[(&str, &[&str])] = &[
    (
        "apiserver",
        // 10.96.0.1 is the first address of the service range: pods reach the API server there.
        &[
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "localhost",
            "10.96.0.1",
            NODE_ADDRESS,
            "127.0.0.1",
        ],
    ),
    // The wildcard serves virtual-hosted buckets.
    ("s3", &[HOST, "*.s3.test", NODE_ADDRESS]),
];

pub(crate) fn write(cluster: &Cluster) -> Result<()> {
    fs::create_dir_all(cluster.pki(""))?;
    // Secret keys for the whole cluster are in here.
    fs::set_permissions(cluster.pki(""), fs::Permissions::from_mode(0o700))?;
    let authority = authority()?;
    fs::write(cluster.authority(), authority.pem())?;
    fs::write(cluster.pki("ca.key"), authority.key().serialize_pem())?;

    let service_accounts = KeyPair::generate()?;
    fs::write(cluster.pki("sa.key"), service_accounts.serialize_pem())?;
    fs::write(cluster.pki("sa.pub"), service_accounts.public_key_pem())?;

    for (file, name, organisation) in CLIENTS {
        client(cluster, &authority, file, name, organisation)?;
    }
    for (file, names) in SERVERS {
        server(cluster, &authority, file, names)?;
    }
    for node in cluster.nodes()? {
        // The Node authorizer identifies a kubelet by exactly this name and group.
        let user = format!("system:node:{}", node.name());
        client(cluster, &authority, &node.kubelet_files(), &user, "system:nodes")?;
        let names = [&*node.name(), &*node.address(), "127.0.0.1"];
        server(cluster, &authority, &node.serving_files(), &names)?;
    }
    Ok(())
}

fn client(
    cluster: &Cluster,
    authority: &CertifiedIssuer<'_, KeyPair>,
    file: &str,
    name: &str,
    organisation: &str,
) -> Result<()> {
    let mut params = CertificateParams::new(vec![])?;
    params.distinguished_name.push(DnType::CommonName, name);
    if !organisation.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, organisation);
    }
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    issue(cluster, authority, params, file)?;
    Ok(fs::write(cluster.pki(&format!("{file}.kubeconfig")), kubeconfig(cluster, file))?)
}

fn server(
    cluster: &Cluster,
    authority: &CertifiedIssuer<'_, KeyPair>,
    file: &str,
    names: &[&str],
) -> Result<()> {
    let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    params.distinguished_name.push(DnType::CommonName, file);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    issue(cluster, authority, params, file)
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::new(vec![])?;
    params.distinguished_name.push(DnType::CommonName, "s3-csi-test-authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn issue(
    cluster: &Cluster,
    authority: &CertifiedIssuer<'_, KeyPair>,
    mut params: CertificateParams,
    file: &str,
) -> Result<()> {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    let key = KeyPair::generate()?;
    fs::write(cluster.pki(&format!("{file}.crt")), params.signed_by(&key, authority)?.pem())?;
    fs::write(cluster.pki(&format!("{file}.key")), key.serialize_pem())?;
    Ok(())
}

fn kubeconfig(cluster: &Cluster, user: &str) -> String {
    include_str!("templates/kubeconfig.yaml")
        .replace("{server}", &super::api::server())
        .replace("{pki}", &cluster.pki("").display().to_string())
        .replace("{user}", user)
}
