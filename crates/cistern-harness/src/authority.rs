//! A throw-away certificate authority, made with openssl.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::tool;

/// An authority, whose files and those of all that it signs lie in one directory.
pub struct Authority {
    dir: PathBuf,
}

impl Authority {
    /// Makes one in a directory that is there; `ca-cert.pem` is what those need who trust it.
    pub fn make(dir: &Path) -> Result<Authority> {
        let authority = Authority { dir: dir.to_owned() };
        let (key, certificate) = (authority.file("ca-key.pem"), authority.file("ca-cert.pem"));
        let made = ["-subj", "/CN=test authority", "-keyout", &key, "-out", &certificate];
        openssl(&["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"], &made)?;
        Ok(authority)
    }

    /// Signs a certificate for these names, as `DNS:localhost,IP:127.0.0.1`, and a use, as `serverAuth`: it is WHO-cert.pem, its key
    /// WHO-key.pem.
    pub fn sign(&self, who: &str, names: &str, usage: &str) -> Result<()> {
        let (key, certificate) =
            (self.file(&format!("{who}-key.pem")), self.file(&format!("{who}-cert.pem")));
        let (request, extensions) = (self.file("req.pem"), self.file("ext"));
        let asked = ["-subj", "/CN=localhost", "-keyout", &key, "-out", &request];
        openssl(&["req", "-newkey", "rsa:2048", "-nodes"], &asked)?;
        let text = format!("subjectAltName={names}\nextendedKeyUsage={usage}\nbasicConstraints=CA:FALSE\n");
        std::fs::write(&extensions, text)?;
        let (ca, ca_key) = (self.file("ca-cert.pem"), self.file("ca-key.pem"));
        let by = ["-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial", "-extfile", &extensions];
        let made = ["-in", &request, "-out", &certificate];
        openssl(&["x509", "-req", "-days", "2"], &[&by[..], &made].concat())
    }

    /// The path of a file of the directory.
    pub fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }
}

fn openssl(what: &[&str], with: &[&str]) -> Result<()> {
    tool::run("openssl", [what, with].concat()).map(drop)
}
