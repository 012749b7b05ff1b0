//! TLS for servers: certificates from PEM files, and clients that must show one of their own.

use std::{path::Path, sync::Arc};

use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio_rustls::TlsAcceptor;

/// Why a TLS configuration could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{path}: {cause}")]
    File { path: String, cause: rustls_pki_types::pem::Error },
    #[error("{path} holds no certificate")]
    Empty { path: String },
    #[error("{path}: {cause}")]
    Authority { path: String, cause: rustls::Error },
    #[error("cannot verify clients: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("certificate and key do not serve: {0}")]
    Rustls(#[from] rustls::Error),
}

/// Server certificate, its key, and the authority that must have signed a client's certificate.
/// Cloning is cheap.
#[derive(Clone)]
pub struct TlsConfig {
    acceptor: TlsAcceptor,
}

impl TlsConfig {
    /// Loads PEM files: the authority (one or more certificates) that clients are checked
    /// against, the server's certificate chain, and its private key. TLS 1.2 and 1.3.
    pub fn from_pem_files(authority: &Path, certificate: &Path, key: &Path) -> Result<TlsConfig, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        for root in certificates(authority)? {
            roots
                .add(root)
                .map_err(|cause| TlsError::Authority { path: authority.display().to_string(), cause })?;
        }
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key).map_err(|cause| file_error(key, cause))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)?;
        Ok(TlsConfig { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|cause| file_error(path, cause))?;
    if certificates.is_empty() {
        return Err(TlsError::Empty { path: path.display().to_string() });
    }
    Ok(certificates)
}

fn file_error(path: &Path, cause: rustls_pki_types::pem::Error) -> TlsError {
    TlsError::File { path: path.display().to_string(), cause }
}
