//! The stores, and where their credentials come from: one table for the help and the reference.

use std::fmt::Write;

/// URL, and for each: variables, and what they say.
pub const STORES: [(&str, &[(&str, &str)]); 4] = [
    (
        "s3://bucket/name",
        &[
            (
                "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN",
                "keys; the token only with keys that end",
            ),
            (
                "AWS_PROFILE",
                "a profile of ~/.aws (default if there is one): its keys or role, region, endpoint_url, ca_bundle",
            ),
            ("AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN", "a token that stands for a role, as pods have it"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "set where a container has a role"),
            ("nothing of these", "the role of the machine, from its metadata service"),
            ("AWS_REGION", "where the bucket is; us-east-1 if nobody says"),
            ("AWS_ENDPOINT_URL", "another server than Amazon's: https://host, or http://host:port"),
            ("AWS_CA_BUNDLE", "a file of certificates to trust, instead of the system's"),
        ],
    ),
    (
        "gs://bucket/name",
        &[
            ("GOOGLE_APPLICATION_CREDENTIALS", "the file of a service account, or of a user"),
            (
                "nothing",
                "what gcloud auth application-default login left, else the machine's service account",
            ),
        ],
    ),
    (
        "az://container/name",
        &[
            ("AZURE_STORAGE_ACCOUNT_NAME", "always"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "the account's key"),
            ("AZURE_STORAGE_SAS_TOKEN", "or a shared access signature"),
            ("AZURE_CLIENT_ID, AZURE_TENANT_ID, AZURE_CLIENT_SECRET", "or an application"),
            (
                "AZURE_CLIENT_ID, AZURE_TENANT_ID, AZURE_FEDERATED_TOKEN_FILE",
                "or a token that stands for it, as pods have it",
            ),
            ("nothing of these", "the managed identity of the machine; AZURE_CLIENT_ID says which"),
        ],
    ),
    ("/directory/name, ./name", &[]),
];

/// The table as a help shows it.
pub fn help() -> String {
    let mut out = String::from("Stores, and where their credentials come from (the environment):\n");
    for (url, variables) in STORES {
        let _ = writeln!(out, "\n  {url}"); // a string takes everything
        for (names, meaning) in variables {
            let _ = writeln!(out, "    {names}\n        {meaning}");
        }
    }
    out.truncate(out.trim_end().len());
    out
}

/// The table as a page shows it.
pub fn page() -> String {
    let mut out = String::from(
        "\n## Stores\n\nCredentials are never part of a URL or of the settings: they come from the environment of the command or daemon. \
         [S3](../start/s3.md) and [other stores](../start/other-stores.md) say more.\n",
    );
    for (url, variables) in STORES.iter().filter(|(_, variables)| !variables.is_empty()) {
        let _ = writeln!(out, "\n`{url}`:\n\n| variables | meaning |\n|---|---|");
        for (names, meaning) in *variables {
            let names: Vec<String> = names.split(", ").map(|name| format!("`{name}`")).collect();
            let names = names
                .join(", ")
                .replace("`nothing`", "nothing")
                .replace("`nothing of these`", "nothing of these");
            let _ = writeln!(out, "| {names} | {meaning} |");
        }
    }
    out
}
