//! What a check finds.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Check {
    Definition,
    CsiDriver,
    Controller,
    NodeService,
    Versions,
    Permissions,
    DriverKeys,
    Classes,
    Volumes,
    Claims,
    Attachments,
    Leftovers,
    Kernel,
    Endpoint,
    Clock,
}

impl Check {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Definition => "definition",
            Self::CsiDriver => "CSIDriver",
            Self::Controller => "controller",
            Self::NodeService => "node service",
            Self::Versions => "versions",
            Self::Permissions => "permissions",
            Self::DriverKeys => "driver's keys",
            Self::Classes => "classes",
            Self::Volumes => "volumes",
            Self::Claims => "claims",
            Self::Attachments => "attachments",
            Self::Leftovers => "leftovers",
            Self::Kernel => "kernel",
            Self::Endpoint => "endpoint",
            Self::Clock => "clocks",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Level {
    Ok,
    /// Worth knowing; nothing has to be done.
    Info,
    /// It could not be checked.
    Skipped,
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
