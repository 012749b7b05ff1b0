//! Variables of the environment that configure a cloud's client.

use std::{collections::BTreeMap, fmt, str::FromStr};

/// Those that matter, by name.
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Those of this process that concern a cloud, and where its user has profiles.
    pub fn of_process() -> Variables {
        let ours = |name: &str| {
            ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|p| name.starts_with(p)) || name == "SERVICE_ACCOUNT"
        };
        let pairs = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            (ours(&name) && !value.is_empty()).then_some((name, value))
        });
        let mut variables = Variables(pairs.collect());
        if let Some(home) = std::env::home_dir().and_then(|home| home.into_os_string().into_string().ok()) {
            variables.fill_in("AWS_CONFIG_FILE", &format!("{home}/.aws/config"));
            variables.fill_in("AWS_SHARED_CREDENTIALS_FILE", &format!("{home}/.aws/credentials"));
        }
        variables
    }

    /// The same with one more.
    pub fn with(mut self, name: &str, value: &str) -> Variables {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.0.contains_key(*name))
    }

    /// Sets one that is not set.
    pub(super) fn fill_in(&mut self, name: &str, value: &str) {
        self.0.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }

    /// Where S3 is, if not at Amazon.
    pub(super) fn s3_endpoint(&self) -> Option<&str> {
        ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]
            .into_iter()
            .find_map(|name| self.get(name))
    }

    /// Those a builder knows, by its own names.
    pub(super) fn settings<'a, K: FromStr>(&'a self, prefix: &'a str) -> impl Iterator<Item = (K, &'a str)> {
        let ours = self.0.iter().filter(move |(name, _)| name.starts_with(prefix));
        ours.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.as_str())))
    }
}

impl fmt::Debug for Variables {
    /// Shows names only: values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
