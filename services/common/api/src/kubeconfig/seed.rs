//! The kubeconfig of the seed, which an operator wrote: exec plugins and files too.

use super::document::{Document, FilePart, RefusedFields, Selected, context_names, decode, join, select};
use super::field::{basic, bearer};
use super::{ClientCertificate, KubeconfigError, Result, field, refuse};
use http::Uri;
use kube::config::{AuthInfo, AuthProviderConfig, Cluster, ExecConfig};
use rustls_pki_types::CertificateDer;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretString};
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a file at most: enough for thousands of clusters.
pub const MAX_BYTES: usize = 16 << 20;

/// How to reach the seed and authenticate there.
#[derive(Debug)]
pub struct SeedAccess {
    /// Its address; a path is the prefix of every request.
    pub server: Uri,
    /// Certificates that the server's must descend from; `None` means those that the host trusts.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
    /// The certificate of the TLS handshake.
    pub client_certificate: Option<ClientCertificate>,
    /// The cluster, with the data of files that it names.
    pub cluster: Cluster,
    /// How the user authenticates beside that.
    pub user: SeedUser,
}

/// How a user authenticates beside a certificate: the one of its ways that comes first for client-go. Names of files
/// are absolute, or as relative as that of their kubeconfig.
#[derive(Debug)]
pub enum SeedUser {
    /// By this `Authorization`, if any.
    Fixed(Option<SecretString>),
    /// By a name without a password, as this `Authorization`. No API server accepts it.
    NameOnly(SecretString),
    /// By the token in a file, and by the other one while there is none in it.
    TokenFile(PathBuf, Option<SecretString>),
    /// By what a program says.
    Exec(Box<ExecConfig>),
    /// By what a provider says.
    Provider(AuthProviderConfig),
}

/// Reads a file; a parameter, because this crate does no I/O.
pub type ReadFile<'r> = &'r dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// Merges the files as kubectl does and picks a context. Certificates and keys in other files are read.
///
/// # Errors
/// The first thing that is wrong, by file and field; never a value of a file.
pub fn of_seed(files: &[PathBuf], context: Option<&str>, read: ReadFile<'_>) -> Result<SeedAccess> {
    let documents = documents(files, read)?;
    let selected = select(&documents, context, RefusedFields::default())?;
    checked(selected, true, read)
}

/// Checks the cluster and the user of a context, and reads the files that they name.
pub(super) fn checked(selected: Selected, allow_http: bool, read: ReadFile<'_>) -> Result<SeedAccess> {
    let Selected { cluster, user } = selected;
    let server = field::server(&cluster, allow_http)?;
    field::server_name(&cluster)?;
    let (cluster, authorities) = checked_cluster(cluster, read)?;
    let (user, client_certificate) = checked_user(user, read)?;
    Ok(SeedAccess {
        server,
        authorities,
        client_certificate,
        cluster,
        user,
    })
}

/// The names of the contexts in the files, each once.
///
/// # Errors
/// As [`of_seed`].
pub fn contexts(files: &[PathBuf], read: ReadFile<'_>) -> Result<Vec<String>> {
    context_names(&documents(files, read)?)
}

fn documents(files: &[PathBuf], read: ReadFile<'_>) -> Result<Vec<Document>> {
    let mut documents: Vec<Document> = Vec::new();
    let mut absent = 0;
    for file in files {
        match read(file) {
            Ok(bytes) => documents.extend(decode(&bytes, MAX_BYTES, file)?),
            // kubectl takes the others of a list.
            Err(error) if error.kind() == io::ErrorKind::NotFound && files.len() > 1 => absent += 1,
            Err(error) => return refuse(file.display().to_string(), format!("cannot be read: {error}")),
        }
    }
    if absent > 0 && absent == files.len() {
        return refuse("kubeconfig", "none of its files exists");
    }
    Ok(documents)
}

fn checked_cluster(
    mut section: FilePart<Cluster>,
    read: ReadFile<'_>,
) -> Result<(Cluster, Option<Vec<CertificateDer<'static>>>)> {
    let cluster = &section.value;
    let data = cluster.certificate_authority_data.as_deref();
    let file = cluster.certificate_authority.as_deref();
    let (pem, name) = section.pem("certificate-authority", data, file, read)?;
    let Some(pem) = pem else {
        return Ok((section.value, None));
    };
    if section.value.insecure_skip_tls_verify == Some(true) {
        return refuse(
            join(&section.path, "insecure-skip-tls-verify"),
            "contradicts the authority beside it; remove one of them",
        );
    }
    let authorities = field::certificates_of_pem(&pem, &name)?;
    section.value.certificate_authority_data = Some(field::encoded(&pem));
    section.value.certificate_authority = None;
    Ok((section.value, Some(authorities)))
}

fn checked_user(
    section: FilePart<AuthInfo>,
    read: ReadFile<'_>,
) -> Result<(SeedUser, Option<ClientCertificate>)> {
    let user = &section.value;
    let (data, file) = (&user.client_certificate_data, &user.client_certificate);
    let (chain, chain_name) = section.pem("client-certificate", data.as_deref(), file.as_deref(), read)?;
    let data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    let (key, key_name) = section.pem("client-key", data, user.client_key.as_deref(), read)?;
    let key = key.map(Zeroizing::new);
    let key = key.as_ref().map(|pem| pem.as_slice());
    let certificate = field::client_certificate(chain.as_deref(), key, [&chain_name, &key_name])?;
    Ok((way_of(section, read)?, certificate))
}

fn way_of(section: FilePart<AuthInfo>, read: ReadFile<'_>) -> Result<SeedUser> {
    let token = field::token(&section)?;
    let user = &section.value;
    if token.is_some() && (user.username.is_some() || user.password.is_some()) {
        return refuse(
            section.path,
            "has a token beside a username or password, which kubectl refuses; remove one of them",
        );
    }
    if let Some(exec) = &user.exec {
        check_exec(exec, user.auth_provider.is_some(), join(&section.path, "exec"))?;
    }
    let file = user.token_file.as_ref().map(|file| section.folder.join(file));
    if let Some(file) = &file {
        let name = join(&section.path, "tokenFile");
        match section.read(file, &name, read) {
            Ok(content) => drop(token_of_file(&content, &name)?),
            // As client-go has it, the token is for the time without the file.
            Err(_) if token.is_some() => {}
            Err(error) => return Err(error),
        }
    }
    let FilePart {
        value: user, folder, ..
    } = section;
    let fixed = |authorization| SeedUser::Fixed(Some(authorization));
    Ok(match (user.username, user.password, file, token) {
        (Some(name), Some(password), ..) => fixed(basic(&name, &password)),
        (.., Some(file), token) => SeedUser::TokenFile(file, token),
        (.., Some(token)) => fixed(bearer(&token)),
        (Some(name), ..) => SeedUser::NameOnly(basic(&name, &SecretString::default())),
        (None, ..) => match (user.exec, user.auth_provider) {
            (Some(exec), _) => SeedUser::Exec(Box::new(exec_in(&folder, exec))),
            (None, Some(provider)) => SeedUser::Provider(provider),
            (None, None) => SeedUser::Fixed(None),
        },
    })
}

/// As client-go has it.
fn check_exec(exec: &ExecConfig, has_provider: bool, path: String) -> Result<()> {
    if has_provider {
        return refuse(
            path,
            "stands beside an auth-provider, which kubectl refuses; remove one of them",
        );
    }
    match exec.api_version.as_deref() {
        Some("client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1") => Ok(()),
        _ => refuse(
            join(&path, "apiVersion"),
            "must be client.authentication.k8s.io/v1 or client.authentication.k8s.io/v1beta1; write the one that the \
             plugin supports, or update the plugin",
        ),
    }
}

fn exec_in(folder: &Path, mut exec: ExecConfig) -> ExecConfig {
    if let Some(command) = &mut exec.command
        && command.contains('/')
        && let Some(path) = folder.join(&*command).to_str()
    {
        *command = path.to_owned();
    }
    exec
}

/// The token in a file, without white space around it, as client-go has it.
///
/// # Errors
/// When it is empty, or no HTTP header can carry it.
pub fn token_of_file(content: &[u8], field: &str) -> Result<SecretString> {
    let Ok(text) = std::str::from_utf8(content) else {
        return refuse(field, "is not UTF-8");
    };
    let token = field::header_text(text, field.to_owned())?;
    match token.expose_secret() {
        // The seed would take a request without a token for one of nobody.
        "" => refuse(field, "is empty"),
        _ => Ok(token),
    }
}

// === impl FilePart ===

impl<T> FilePart<T> {
    /// The PEM behind `field-data`, or else behind `field`, which names a file; and how errors name it.
    fn pem(
        &self,
        field: &str,
        data: Option<&str>,
        file: Option<&str>,
        read: ReadFile<'_>,
    ) -> Result<(Option<Vec<u8>>, String)> {
        let name = join(&self.path, field);
        let name_of_data = format!("{name}-data");
        Ok(match (data, file) {
            (Some(data), _) => (Some(field::decoded(data, &name_of_data)?), name_of_data),
            (None, Some(file)) => (Some(self.read(&self.folder.join(file), &name, read)?), name),
            (None, None) => (None, name_of_data),
        })
    }

    fn read(&self, path: &Path, name: &str, read: ReadFile<'_>) -> Result<Vec<u8>> {
        read(path).map_err(|error| KubeconfigError {
            field: name.to_owned(),
            reason: format!("names a file that cannot be read: {error}"),
        })
    }
}
