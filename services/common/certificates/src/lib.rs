//! Certificates that the programs issue for themselves, from a certificate authority that the replicas share, and the
//! rules by which they judge the certificates of API servers. No I/O: the Secret is read and written by
//! `watchdog_kube::authority`.

mod authority;
mod chain;
mod validity;
mod verifiers;
mod words;

pub use authority::{Authorities, ClientPem, Issued};
pub use chain::{Refusal, TrustStore, dns_names};
pub use validity::ValidityPeriod;
pub use verifiers::{CallerVerifier, KeyPairError, ServerTrust, certified_key, client_config, provider};
pub use words::tls_error_in_words;
