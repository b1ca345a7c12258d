//! What of `cargo xtask test` is wanted: its arguments.

use clap::{Args, ValueEnum};

use crate::architecture::Architecture;
use crate::programs::Kubernetes;

/// In the names of tests that need another build of the driver. They run only with `--released`.
pub(super) const OF_RELEASED: &str = "the_released_version";

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command")]
pub struct Wanted {
    /// Run only this suite.
    #[arg(long, value_enum)]
    pub(super) only: Option<Suite>,
    /// Keep each suite's cluster (`cargo xtask cluster status --name test-cluster`).
    #[arg(long)]
    pub(super) keep: bool,
    /// Keep every processor busy while the tests run, to find tests that depend on an idle machine.
    #[arg(long)]
    pub(super) busy: bool,
    /// Do not run failed tests once more: one that would pass then has failed, too.
    #[arg(long)]
    pub(super) strict: bool,
    /// Kubernetes release to test on.
    #[arg(long, value_enum, default_value_t)]
    pub(super) kubernetes: Kubernetes,
    /// Run the suites on every supported Kubernetes release, one after the other, and write docs/matrix.md.
    #[arg(long, conflicts_with = "kubernetes")]
    pub(super) matrix: bool,
    /// Run only the upgrade from the last released version, which is compiled first.
    #[arg(long, conflicts_with_all = ["only", "matrix", "filter"])]
    pub(super) released: bool,
    /// Run only the programs of the images for another architecture, which are compiled first, in an emulator.
    #[arg(long = "arch", value_enum, conflicts_with_all = ["only", "matrix", "released", "filter"])]
    pub(super) architecture: Option<Architecture>,
    /// Run only tests whose name contains this text.
    pub(super) filter: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Suite {
    /// Format and lints.
    Lint,
    /// Pure logic, next to the code it tests.
    Unit,
    /// The controller and the node service on a real API server, without other controllers.
    Api,
    /// Provisioning, with controller-manager and the S3 server.
    Claims,
    /// Real mounts in a private namespace.
    Kernel,
    /// Behaviour that needs several nodes.
    Nodes,
    /// User journeys on a real node, and the node itself.
    Cluster,
    /// Roles, associations and the driver's own identities on a real node.
    Identities,
    /// What administrators do with the driver on a real node: other values, upgrades, migration, removal.
    Operations,
}

impl Wanted {
    pub(super) fn includes(&self, suite: Suite) -> bool {
        if self.released {
            return suite == Suite::Operations;
        }
        self.only.is_none_or(|only| only == suite)
    }

    pub(super) fn filter(&self) -> Option<&str> {
        if self.released { Some(OF_RELEASED) } else { self.filter.as_deref() }
    }

    /// With `--busy`, tests that need an idle machine are what is looked for. With `--keep`, the cluster as a failure left it.
    pub(super) fn repeats(&self) -> bool {
        !self.busy && !self.strict && !self.keep
    }

    pub(super) fn needs_real_parts(&self) -> bool {
        !matches!(self.only, Some(Suite::Lint | Suite::Unit))
    }

    /// Newest first.
    pub(super) fn releases(&self) -> Vec<Kubernetes> {
        if self.matrix { Kubernetes::ALL.to_vec() } else { vec![self.kubernetes] }
    }
}
