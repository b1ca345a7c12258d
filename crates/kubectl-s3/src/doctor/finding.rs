//! What a check finds.

use serde::Serialize;
use strum::IntoStaticStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[serde(rename_all = "camelCase")]
#[strum(const_into_str, serialize_all = "lowercase")]
pub enum Check {
    Definition,
    #[strum(serialize = "CSIDriver")]
    CsiDriver,
    Controller,
    #[strum(serialize = "node service")]
    NodeService,
    Versions,
    Permissions,
    #[strum(serialize = "driver's keys")]
    DriverKeys,
    Classes,
    Volumes,
    Claims,
    Attachments,
    Leftovers,
    Kernel,
    Endpoint,
    #[strum(serialize = "clocks")]
    Clock,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    Ok,
    /// Worth knowing; nothing has to be done.
    Info,
    /// Not checked, because it was not asked for, or because there is nothing to check.
    Skipped,
    /// It could not be found out.
    Unknown,
    Warning,
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub check: Check,
    pub level: Level,
    pub object: String,
    pub message: String,
    pub remedy: String,
}

impl Finding {
    pub(crate) fn new(
        check: Check,
        level: Level,
        object: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { check, level, object: object.into(), message: message.into(), remedy: String::new() }
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }
}
