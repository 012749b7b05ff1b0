//! A throw-away authority with a server and a client certificate, under the names that libnbd
//! and nbdkit look for in a certificates directory.

use std::{fs, path::Path};

use cistern_nbd::TlsConfig;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Writes ca-cert.pem, server-cert.pem, server-key.pem, client-cert.pem and client-key.pem.
pub fn write(dir: &Path) {
    let put = |name: &str, pem: String| fs::write(dir.join(name), pem).expect("writable directory");
    let mut ca = CertificateParams::new(vec![]).expect("no names to reject");
    ca.distinguished_name.push(DnType::CommonName, "test authority");
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca_key = KeyPair::generate().expect("key");
    put("ca-cert.pem", ca.self_signed(&ca_key).expect("certificate").pem());
    let issuer = Issuer::new(ca, ca_key);
    for (role, usage) in
        [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("good names");
        params.distinguished_name.push(DnType::CommonName, role);
        // qemu asks for the second as well.
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().expect("key");
        put(&format!("{role}-cert.pem"), params.signed_by(&key, &issuer).expect("certificate").pem());
        put(&format!("{role}-key.pem"), key.serialize_pem());
    }
}

/// The server's side of a directory that [`write`] has filled.
pub fn server(dir: &Path) -> TlsConfig {
    let file = |name: &str| dir.join(name);
    TlsConfig::from_pem_files(&file("ca-cert.pem"), &file("server-cert.pem"), &file("server-key.pem"))
        .expect("certificates that fit")
}
