//! Authorities and the TLS files of a process, made for one test.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use watchdog_certificates::certified_key;
use watchdog_runtime::tls::{CertificateSource, PemFiles, Tls, TlsCredentials};

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate with its key, PEM.
pub struct CertifiedKey {
    pub cert: String,
    pub key: String,
}

/// The three TLS files in a folder of their own.
pub struct Files {
    dir: TempDir,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        Self::with(name, |_| {})
    }

    /// With an extension that stands in it twice.
    pub fn malformed(name: &str) -> Self {
        let extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        Self::with(name, |params| {
            params.custom_extensions = vec![extension.clone(), extension]
        })
    }

    pub fn expired(name: &str) -> Self {
        Self::with(name, |params| params.not_after = date_time_ymd(2020, 1, 1))
    }

    fn with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for both sides of a connection.
    pub fn issue(&self, name: &str) -> CertifiedKey {
        self.issue_until(name, 4096)
    }

    /// The same, but it has expired.
    pub fn issue_expired(&self, name: &str) -> CertifiedKey {
        self.issue_until(name, 2020)
    }

    fn issue_until(&self, name: &str, year: i32) -> CertifiedKey {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().unwrap();
        CertifiedKey {
            cert: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.pem().as_bytes()).unwrap()
    }

    /// The credentials of a process with this name, which trusts this authority.
    pub fn credentials(&self, name: &str, source: CertificateSource) -> TlsCredentials {
        let pair = self.issue(name);
        TlsCredentials {
            own: certified_key(
                vec![CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap(),
                ["tls.crt", "tls.key"],
            )
            .unwrap(),
            authorities: vec![self.der()],
            source,
        }
    }

    /// The TLS of a process with this name, which trusts this authority.
    pub fn tls(&self, name: &str) -> Tls {
        Tls::load(&Files::new(&self.issue(name), &self.pem()).paths()).unwrap()
    }
}

impl Files {
    pub fn new(pair: &CertifiedKey, authorities: &str) -> Self {
        let files = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        files.write(&pair.cert, &pair.key, authorities);
        files
    }

    pub fn paths(&self) -> PemFiles {
        let path = |name: &str| self.dir.path().join(name);
        PemFiles {
            cert: path("tls.crt"),
            key: path("tls.key"),
            ca: path("ca.crt"),
        }
    }

    pub fn write(&self, cert: &str, key: &str, authorities: &str) {
        let paths = self.paths();
        for (path, content) in [(paths.cert, cert), (paths.key, key), (paths.ca, authorities)] {
            std::fs::write(path, content).unwrap();
        }
    }
}
