//! Profiles of Amazon's tools: what `~/.aws/config` and `~/.aws/credentials` say of how a store is reached.
//!
//! Pure but for reading the two files. Of a profile counts what leads to a store: keys, a role, the region, the endpoint.
//! What would need somebody at a keyboard (SSO, a code) is refused by name.

use std::{collections::BTreeMap, io::ErrorKind, path::Path};

use super::{StoreError, StoreResult, variables::Variables};

/// Bytes of a file that are read: thousands of profiles.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Variables that say what keys to use, so that no profile is asked for some.
pub(super) const KEYS: &[&str] =
    &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"];
/// Variables by which a host says where keys are asked for.
pub(super) const TOLD_BY_THE_HOST: &[&str] = &[
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
];

/// The settings of one profile, by name.
pub(super) type Profile = BTreeMap<String, String>;

/// Keys that a profile leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProfileKeys {
    /// They stand in the profile of this name.
    File(String),
    /// A role, taken with the keys of the profile `source`, or with those that are found without any profile.
    Role { name: String, arn: String, source: Option<String> },
}

/// Variables and what a profile adds to them.
pub(super) struct Profiled {
    pub variables: Variables,
    /// Keys that are no variables.
    pub keys: Option<ProfileKeys>,
}

/// Looks into the profile that the variables name, or the default one.
///
/// # Errors
/// `Refused` if it cannot work, with what is wrong in it.
pub(super) fn completed(variables: &Variables) -> StoreResult<Profiled> {
    let mut variables = variables.clone();
    let profiles = Profiles::read(&variables)?;
    let by = ["AWS_PROFILE", "AWS_DEFAULT_PROFILE"].into_iter().find(|by| variables.get(by).is_some());
    let name = by.and_then(|by| variables.get(by)).unwrap_or("default").to_owned();
    let profile = match by {
        Some(by) => profiles.named(&name, by)?,
        None => match profiles.get(&name) {
            Some(profile) => profile,
            None => return Ok(Profiled { variables, keys: None }),
        },
    };
    if let Some(region) = profile.get("region").filter(|_| variables.get("AWS_DEFAULT_REGION").is_none()) {
        variables.fill_in("AWS_REGION", region);
    }
    if let Some(endpoint) = profile.get("endpoint_url").filter(|_| variables.s3_endpoint().is_none()) {
        variables.fill_in("AWS_ENDPOINT_URL", endpoint);
    }
    if let Some(authorities) = profile.get("ca_bundle") {
        variables.fill_in("AWS_CA_BUNDLE", authorities);
    }
    if variables.has_any(KEYS) {
        return Ok(Profiled { variables, keys: None });
    }
    let keys = match origin(&name, profile)? {
        KeysOrigin::Nowhere => None,
        KeysOrigin::Keys(keys) => Some(keys),
        KeysOrigin::WebIdentity { arn, token_file } => {
            variables.fill_in("AWS_WEB_IDENTITY_TOKEN_FILE", &token_file);
            variables.fill_in("AWS_ROLE_ARN", &arn);
            if let Some(session) = profile.get("role_session_name") {
                variables.fill_in("AWS_ROLE_SESSION_NAME", session);
            }
            None
        }
    };
    Ok(Profiled { variables, keys })
}

/// Where a profile's keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeysOrigin {
    Keys(ProfileKeys),
    /// A token in a file stands for a role.
    WebIdentity {
        arn: String,
        token_file: String,
    },
    /// It has none.
    Nowhere,
}

/// All profiles of a user.
#[derive(Clone, Debug, Default)]
pub(super) struct Profiles(BTreeMap<String, Profile>);

impl Profiles {
    /// Reads both files; one that is not there is empty.
    pub fn read(variables: &Variables) -> StoreResult<Profiles> {
        let text = |name| variables.get(name).map_or(Ok(String::new()), |path| read_file(Path::new(path)));
        Ok(Profiles::parse(&text("AWS_CONFIG_FILE")?, &text("AWS_SHARED_CREDENTIALS_FILE")?))
    }

    /// What stands in the file of credentials counts more.
    fn parse(config: &str, credentials: &str) -> Profiles {
        let mut all = Profiles::default();
        for (header, settings) in sections(config) {
            let words: Vec<&str> = header.split_whitespace().collect();
            if let ["profile", name] | [name @ "default"] = words[..] {
                all.0.entry(name.to_owned()).or_default().extend(settings);
            }
        }
        for (header, settings) in sections(credentials) {
            all.0.entry(header).or_default().extend(settings);
        }
        all
    }

    pub fn get(&self, name: &str) -> Option<&Profile> {
        self.0.get(name)
    }

    /// A profile that something names. `Refused` if it is not there.
    pub fn named(&self, name: &str, by: &str) -> StoreResult<&Profile> {
        let missing = || {
            let known: Vec<&str> = self.0.keys().map(String::as_str).take(20).collect();
            let known = if known.is_empty() { "no profile at all".to_owned() } else { known.join(", ") };
            StoreError::Refused(format!(
                "{by} names the profile {name:?}, which is not in ~/.aws/config or ~/.aws/credentials ({known})"
            ))
        };
        self.get(name).ok_or_else(missing)
    }

    /// The keys of a profile that another one names to take its role with.
    pub fn source(&self, name: &str) -> StoreResult<ProfileKeys> {
        match origin(name, self.named(name, "source_profile")?)? {
            KeysOrigin::Keys(keys) => Ok(keys),
            KeysOrigin::WebIdentity { .. } | KeysOrigin::Nowhere => Err(StoreError::Refused(format!(
                "the profile {name:?} is another one's source_profile, but has no keys itself"
            ))),
        }
    }
}

/// Where the keys of a profile come from. `Refused` if only a person could give them.
fn origin(name: &str, profile: &Profile) -> StoreResult<KeysOrigin> {
    let has = |setting: &str| profile.contains_key(setting);
    let get = |setting: &str| profile.get(setting).cloned();
    let refused = |why: &str| Err(StoreError::Refused(format!("the profile {name:?} {why}")));
    let by_hand = "`aws configure export-credentials --format env` gives keys for the environment";
    if let Some(arn) = get("role_arn") {
        if has("mfa_serial") {
            return refused(&format!("asks for a code, which a daemon cannot type: {by_hand}"));
        }
        if let Some(token_file) = get("web_identity_token_file") {
            return Ok(KeysOrigin::WebIdentity { arn, token_file });
        }
        return match (get("source_profile"), has("credential_source")) {
            (None, false) => refused("has a role_arn, but neither source_profile nor credential_source"),
            (source, _) => Ok(KeysOrigin::Keys(ProfileKeys::Role { name: name.to_owned(), arn, source })),
        };
    }
    match (has("aws_access_key_id"), has("aws_secret_access_key")) {
        (true, true) => return Ok(KeysOrigin::Keys(ProfileKeys::File(name.to_owned()))),
        (false, false) => {}
        _ => return refused("has only one of aws_access_key_id and aws_secret_access_key"),
    }
    if has("credential_process") {
        return refused(&format!(
            "asks a program for its keys (credential_process), which cistern does not: {by_hand}"
        ));
    }
    if has("sso_session") || has("sso_start_url") {
        return refused(&format!("signs in by SSO, which cistern does not: {by_hand}"));
    }
    Ok(KeysOrigin::Nowhere)
}

fn read_file(path: &Path) -> StoreResult<String> {
    use std::io::Read;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => Ok(text),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(String::new()),
        Err(e) => Err(StoreError::Refused(format!("{}: {e}", path.display()))),
    }
}

/// The sections of a file, in order. Indented lines belong to the setting above them, of which no use is made.
fn sections(text: &str) -> Vec<(String, Profile)> {
    let mut out: Vec<(String, Profile)> = Vec::new();
    // A mark of the byte order, as editors of Windows put it before the text.
    for line in text.trim_start_matches('\u{feff}').lines() {
        let line =
            [" #", " ;", "\t#", "\t;"].iter().fold(line, |line, mark| line.split(mark).next().unwrap_or(""));
        if line.trim().is_empty() || line.starts_with(['#', ';', ' ', '\t']) {
            continue;
        }
        if let Some(header) = line.trim_end().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            out.push((header.trim().to_owned(), Profile::new()));
        } else if let (Some((_, settings)), Some((name, value))) = (out.last_mut(), line.split_once('='))
            && !value.trim().is_empty()
        {
            settings.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
# comment
[default]
region = eu-central-1
[profile backup]
role_arn=arn:aws:iam::1:role/backup   # for nights
source_profile = default
s3 =
  max_concurrent_requests = 20
[profile  odd]
aws_access_key_id = A
[services local]
endpoint_url = http://never
[other]
region = never
";
    const CREDENTIALS: &str = "\
[default]
aws_access_key_id = ID
AWS_SECRET_ACCESS_KEY = a/b+c=
[backup]
region = us-west-2
";

    fn all() -> Profiles {
        Profiles::parse(CONFIG, CREDENTIALS)
    }

    /// Both files are one set of profiles, in which the file of credentials counts more; what is nested or not a profile's is
    /// passed over.
    #[test]
    fn profiles_are_read() {
        let all = all();
        assert_eq!(all.0.keys().collect::<Vec<_>>(), ["backup", "default", "odd"]);
        let default = all.get("default").expect("it is there");
        assert_eq!(default["aws_secret_access_key"], "a/b+c=");
        assert_eq!(default["region"], "eu-central-1");
        let backup = all.get("backup").expect("it is there");
        assert_eq!(
            (backup["role_arn"].as_str(), backup["region"].as_str()),
            ("arn:aws:iam::1:role/backup", "us-west-2")
        );
        assert_eq!(backup.len(), 3);
    }

    /// Each profile's keys have one origin, and one that only a person could give is refused with what to do.
    #[test]
    fn every_profile_has_one_origin() {
        let all = all();
        let of = |name: &str| origin(name, all.get(name).expect("it is there"));
        let keys = KeysOrigin::Keys(ProfileKeys::File("default".to_owned()));
        assert_eq!(of("default").expect("keys"), keys);
        let (name, source) = ("backup".to_owned(), Some("default".to_owned()));
        let arn = "arn:aws:iam::1:role/backup".to_owned();
        assert_eq!(of("backup").expect("a role"), KeysOrigin::Keys(ProfileKeys::Role { name, arn, source }));
        assert!(of("odd").expect_err("half").to_string().contains("only one of"));
        let named = all.named("night", "AWS_PROFILE").expect_err("not there").to_string();
        assert!(named.contains("\"night\"") && named.contains("backup, default, odd"), "{named}");
        for (settings, says) in [
            ("sso_session = x", "SSO"),
            ("credential_process = x", "credential_process"),
            ("role_arn = x\nmfa_serial = y\nsource_profile = z", "code"),
            ("role_arn = x", "source_profile"),
        ] {
            let all = Profiles::parse(&format!("[default]\n{settings}\n"), "");
            let error = origin("default", all.get("default").expect("it is there")).expect_err(settings);
            assert!(error.to_string().contains(says), "{error}");
        }
        let none = Profiles::parse("[default]\nregion = x\n", "");
        assert_eq!(
            origin("default", none.get("default").expect("it is there")).expect("none"),
            KeysOrigin::Nowhere
        );
    }

    /// No text makes it panic or read a setting of nothing.
    #[test]
    fn odd_files_are_passed_over() {
        let marked = Profiles::parse("", "\u{feff}[default]\naws_access_key_id = A\n");
        assert_eq!(marked.get("default").expect("it is there")["aws_access_key_id"], "A");
        for text in ["", "=", "[", "[]", "a=b", "[x]\n=\n==\n", "\u{feff}[x]\na=1", "[profile]\na=1\n"] {
            let all = Profiles::parse(text, text);
            assert!(all.0.values().all(|profile| profile.keys().all(|name| name != "b")), "{all:?}");
        }
    }
}
