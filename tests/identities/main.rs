//! Roles, associations and the driver's own identities instead of keys, on a real node with STS, an agent and a metadata service. Each
//! story changes the driver's values, and has the node to itself.

mod associations;
mod driver_identity;
mod permissions;
mod precedence;
mod roles;

use s3_csi_tests::story;
