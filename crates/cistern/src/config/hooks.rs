//! The section `[hooks]` of the settings file: commands around every snapshot that a command makes. Runs none of them.

use serde::Deserialize;

use crate::quantity::Span;

/// What the flags of a command say first.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct HookDefaults {
    pub pre: Option<String>,
    pub post: Option<String>,
    pub timeout: Option<Span>,
}
