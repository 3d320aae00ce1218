//! The kubeconfig of the seed, which an operator wrote: all that kube can do, exec plugins and files too.

use super::document::{Document, Policy, Section, Selected, decode, join, select};
use super::{KubeconfigError, Result, field, refuse};
use kube::client::AuthError;
use kube::config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use secrecy::{ExposeSecret, SecretString};
use std::error::Error;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// Enough for thousands of clusters.
const MAX_BYTES: usize = 16 << 20;

/// The name of everything in the kubeconfig that is returned.
const NAME: &str = "seed";

/// Reads a file; a parameter, because this crate does no I/O.
pub type ReadFile<'r> = &'r dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// The files to read where none is named: those of the variable KUBECONFIG, else the one in the home directory.
#[must_use]
pub fn default_files(kubeconfig: Option<&OsStr>, home: Option<&OsStr>) -> Vec<PathBuf> {
    let named = kubeconfig.map(std::env::split_paths).into_iter().flatten();
    let named: Vec<_> = named.filter(|path| !path.as_os_str().is_empty()).collect();
    if !named.is_empty() {
        return named;
    }
    let home = home.filter(|home| !home.is_empty());
    home.map(|home| Path::new(home).join(".kube/config"))
        .into_iter()
        .collect()
}

/// Merges the files as kubectl does, picks a context, and returns a kubeconfig of that one alone, which kube can use
/// without an error that shows what is in a file. Certificates and keys in other files are read into it.
///
/// # Errors
/// The first thing that is wrong, by file and field; never a value of a file.
pub fn of_seed(files: &[PathBuf], context: Option<&str>, read: ReadFile<'_>) -> Result<Kubeconfig> {
    let mut documents: Vec<Document> = Vec::new();
    for file in files {
        match read(file) {
            Ok(bytes) => documents.extend(decode(&bytes, MAX_BYTES, file)?),
            // kubectl takes the others of a list.
            Err(error) if error.kind() == io::ErrorKind::NotFound && files.len() > 1 => {}
            Err(error) => return refuse(file.display().to_string(), format!("cannot be read: {error}")),
        }
    }
    let Selected { cluster, user } = select(&documents, context, Policy::default())?;
    Ok(Kubeconfig {
        clusters: vec![NamedCluster {
            name: NAME.to_owned(),
            cluster: Some(checked_cluster(cluster, read)?),
            ..NamedCluster::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: NAME.to_owned(),
            auth_info: Some(checked_user(user, read)?),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: NAME.to_owned(),
            context: Some(Context {
                cluster: NAME.to_owned(),
                user: Some(NAME.to_owned()),
                ..Context::default()
            }),
            ..NamedContext::default()
        }],
        current_context: Some(NAME.to_owned()),
        ..Kubeconfig::default()
    })
}

fn checked_cluster(mut section: Section<Cluster>, read: ReadFile<'_>) -> Result<Cluster> {
    // kube ends the process on an address without a scheme.
    section.value.server = Some(field::server(&section, true)?.to_string());
    field::server_name(&section)?;
    if let Some(proxy) = &section.value.proxy_url
        && proxy.parse::<http::Uri>().is_err()
    {
        return refuse(
            join(&section.path, "proxy-url"),
            "is not an address such as http://host:3128",
        );
    }
    let cluster = &section.value;
    let (data, file) = (
        &cluster.certificate_authority_data,
        &cluster.certificate_authority,
    );
    let names = ["certificate-authority-data", "certificate-authority"];
    if let Some((pem, name)) = section.pem(data.as_deref(), file.as_deref(), names, read)? {
        field::certificates_of_pem(&pem, &name)?;
        section.value.certificate_authority_data = Some(field::encoded(&pem));
        section.value.certificate_authority = None;
    }
    Ok(section.value)
}

fn checked_user(mut section: Section<AuthInfo>, read: ReadFile<'_>) -> Result<AuthInfo> {
    let user = &section.value;
    let (data, file) = (&user.client_certificate_data, &user.client_certificate);
    let names = ["client-certificate-data", "client-certificate"];
    let chain = section.pem(data.as_deref(), file.as_deref(), names, read)?;
    let data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
    let key = section.pem(
        data,
        user.client_key.as_deref(),
        ["client-key-data", "client-key"],
        read,
    )?;
    if let Some(((chain, chain_name), (key, key_name))) = field::pair(chain, key, &section.path)? {
        field::certificates_of_pem(&chain, &chain_name)?;
        field::private_key_of_pem(&key, &key_name)?;
        let user = &mut section.value;
        user.client_certificate_data = Some(field::encoded(&chain));
        user.client_key_data = Some(SecretString::from(field::encoded(&key)));
        (user.client_certificate, user.client_key) = (None, None);
    }
    // kube ends the process on a token that no header can carry.
    section.value.token = field::token(&section)?;
    if let Some(file) = section.value.token_file.take() {
        let name = join(&section.path, "tokenFile");
        let path = section.folder.join(file);
        let content = section.read(&path, &name, read)?;
        let Ok(content) = String::from_utf8(content) else {
            return refuse(name, "names a file that is not UTF-8");
        };
        let token = field::header_text(&content, name.clone())?;
        match path.to_str() {
            // kube reads it again every minute, but sends it as it is.
            Some(path) if token.expose_secret() == content => {
                section.value.token_file = Some(path.to_owned())
            }
            _ if section.value.token.is_none() => section.value.token = Some(token),
            _ => {}
        }
    }
    if let Some(exec) = &mut section.value.exec
        && let Some(command) = &mut exec.command
        && command.contains('/')
        && let Some(path) = section.folder.join(&*command).to_str()
    {
        *command = path.to_owned();
    }
    if let Some(provider) = &mut section.value.auth_provider {
        for key in ["id-token", "access-token"] {
            let name = join(&section.path, &format!("auth-provider.config.{key}"));
            if let Some(token) = provider.config.get_mut(key) {
                *token = field::header_text(token, name)?.expose_secret().to_owned();
            }
        }
    }
    Ok(section.value)
}

/// What went wrong with a plugin, a token file or a proxy, if that is it. What kube says of these shows the answer of
/// the plugin, or text of the kubeconfig.
#[must_use]
pub fn failure_of_credentials(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<AuthError>() {
            return Some(match error {
                AuthError::AuthExecStart(error) => format!("the exec plugin cannot be started: {error}"),
                AuthError::AuthExecRun { out, .. } => format!("the exec plugin failed: {}", out.status),
                AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
                    "the exec plugin did not answer with an ExecCredential".to_owned()
                }
                AuthError::MissingCommand => "the exec plugin has no command".to_owned(),
                AuthError::ReadTokenFile(error, _) => format!("tokenFile cannot be read: {error}"),
                AuthError::InvalidBearerToken(_) => {
                    "the token has characters that no HTTP header can carry".to_owned()
                }
                AuthError::MalformedTokenExpirationDate(_) => "the token ends at no valid time".to_owned(),
                _ => "the credentials of the kubeconfig cannot be used; try them with kubectl".to_owned(),
            });
        }
        if let Some(
            kube::Error::ProxyProtocolUnsupported { .. } | kube::Error::ProxyProtocolDisabled { .. },
        ) = error.downcast_ref()
        {
            return Some("the proxy of proxy-url or HTTPS_PROXY cannot be used".to_owned());
        }
        next = error.source();
    }
    None
}

// === impl Section ===

impl<T> Section<T> {
    /// The PEM behind a field with data, or else behind one that names a file, and how errors name it.
    fn pem(
        &self,
        data: Option<&str>,
        file: Option<&str>,
        [data_field, file_field]: [&str; 2],
        read: ReadFile<'_>,
    ) -> Result<Option<(Vec<u8>, String)>> {
        if let Some(data) = data {
            let name = join(&self.path, data_field);
            return Ok(Some((field::decoded(data, &name)?, name)));
        }
        let Some(file) = file else {
            return Ok(None);
        };
        let name = join(&self.path, file_field);
        Ok(Some((self.read(&self.folder.join(file), &name, read)?, name)))
    }

    fn read(&self, path: &Path, name: &str, read: ReadFile<'_>) -> Result<Vec<u8>> {
        read(path).map_err(|error| KubeconfigError {
            field: name.to_owned(),
            reason: format!("names a file that cannot be read: {error}"),
        })
    }
}
