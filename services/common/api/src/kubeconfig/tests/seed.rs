//! Kubeconfigs of the seed: several files, and files that they name.

use super::*;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Files by their paths.
struct Files(BTreeMap<&'static str, Vec<u8>>);

impl Files {
    fn new() -> Self {
        let kubeconfig = r"
current-context: b
contexts: [{name: b, context: {cluster: c, user: u}}, {name: plain, context: {cluster: plain}}]
clusters:
- {name: c, cluster: {server: 'https://api.test:6443', certificate-authority: pki/ca.crt}}
- {name: plain, cluster: {server: 'http://127.0.0.1:8001'}}
users: [{name: u, user: {client-certificate: /pki/tls.crt, client-key: ../tls.key, tokenFile: token}}]
";
        Self(BTreeMap::from([
            ("/home/me/config", kubeconfig.into()),
            ("/home/me/pki/ca.crt", PKI.cert.clone().into()),
            ("/pki/tls.crt", PKI.cert.clone().into()),
            ("/home/me/../tls.key", PKI.key.clone().into()),
            ("/home/me/token", TOKEN.into()),
        ]))
    }

    fn with(mut self, path: &'static str, content: impl Into<Vec<u8>>) -> Self {
        self.0.insert(path, content.into());
        self
    }

    fn read(&self, files: &[&str], context: Option<&str>) -> Result<SeedAccess, String> {
        let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        let open = |path: &Path| {
            let content = path.to_str().and_then(|path| self.0.get(path));
            content.cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        of_seed(&files, context, &open).map_err(|error| {
            let shown = format!("{error:?} {error}");
            assert!(!shown.contains("hunter2"), "{shown}");
            format!("{}: {}", error.field, error.reason)
        })
    }

    fn user(&self) -> Result<SeedUser, String> {
        Ok(self.read(&["/home/me/config"], None)?.user)
    }
}

#[test]
fn files_beside_it_are_read() {
    let read = Files::new().read(&["/home/me/config"], None).unwrap();
    assert_eq!(read.authorities, Some(vec![PKI.der.clone()]));
    assert_eq!(
        read.cluster.certificate_authority_data.unwrap(),
        encoded(&PKI.cert),
        "for exec plugins"
    );
    let certificate = read.client_certificate.unwrap();
    assert_eq!(certificate.chain, std::slice::from_ref(&PKI.der));
    assert_eq!(
        certificate.key,
        PrivateKeyDer::from_pem_slice(PKI.key.as_bytes()).unwrap()
    );
    let user = format!("{:?}", read.user);
    assert_eq!(user, "TokenFile(\"/home/me/token\", None)", "it is read again");
    let plain = Files::new().read(&["/home/me/config"], Some("plain")).unwrap();
    assert_eq!(plain.server, "http://127.0.0.1:8001/");
    assert!(plain.authorities.is_none() && plain.client_certificate.is_none());
}

#[test]
fn white_space_around_a_token_is_no_part_of_it() {
    let content = format!("\n{TOKEN}\r\n");
    let token = token_of_file(content.as_bytes(), "tokenFile").unwrap();
    assert_eq!(token.expose_secret(), TOKEN);
    let empty = token_of_file(b" \n", "tokenFile").unwrap_err();
    assert_eq!(
        (empty.field.as_str(), empty.reason.as_str()),
        ("tokenFile", "is empty")
    );
    let inline = "
contexts: [{name: b, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://api.test'}}]
users: [{name: u, user: {token: \"hunter2-hunter2\\n\"}}]
";
    let user = Files::new().with("/home/me/config", inline).user().unwrap();
    assert_eq!(authorization(user), format!("Bearer {TOKEN}"));
}

/// A kubeconfig with this user.
fn of_user(user: &str) -> String {
    format!(
        "
contexts: [{{name: b, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: 'https://api.test'}}}}]
users: [{{name: u, user: {{{user}}}}}]
"
    )
}

/// In client-go's order; in files as people write them there are several.
#[test]
fn the_first_of_several_ways_counts() {
    let exec = "exec: {apiVersion: client.authentication.k8s.io/v1, command: login}";
    let provider = "auth-provider: {name: oidc, config: {}}";
    for (user, expected) in [
        ("x: 1".to_owned(), "Fixed(None)"),
        (exec.replace("v1,", "v1beta1,"), "Exec("),
        (provider.to_owned(), "Provider("),
        (format!("username: me, {exec}"), "Basic bWU6"),
        (format!("token: t, {exec}"), "Bearer t"),
        (format!("tokenFile: token, {exec}"), "TokenFile("),
        (
            "username: me, password: p, tokenFile: token".to_owned(),
            "Basic bWU6cA==",
        ),
    ] {
        let way = Files::new()
            .with("/home/me/config", of_user(&user))
            .user()
            .unwrap();
        let shown = format!("{way:?}");
        match way {
            SeedUser::Fixed(Some(_)) | SeedUser::NameOnly(_) => assert_eq!(authorization(way), expected),
            _ => assert!(shown.starts_with(expected), "{shown}"),
        }
    }
}

/// kubectl refuses each of these: "more than one authentication method", "authProvider cannot be provided in
/// combination with an exec plugin" and "invalid apiVersion".
#[test]
fn a_user_that_kubectl_refuses_is_refused_with_what_to_do() {
    const TWO: &str =
        ": has a token beside a username or password, which kubectl refuses; remove one of them";
    const VERSION: &str = ".exec.apiVersion: must be client.authentication.k8s.io/v1 or \
        client.authentication.k8s.io/v1beta1; write the one that the plugin supports, or update the plugin";
    for (user, expected) in [
        ("token: hunter2, username: me, password: hunter2", TWO),
        ("token: hunter2, username: me", TWO),
        ("token: hunter2, password: hunter2", TWO),
        ("exec: {command: login}", VERSION),
        ("exec: {apiVersion: v1, command: login}", VERSION),
        (
            "exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: login}",
            VERSION,
        ),
        (
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: login}, auth-provider: {name: oidc}",
            ".exec: stands beside an auth-provider, which kubectl refuses; remove one of them",
        ),
    ] {
        let refused = Files::new()
            .with("/home/me/config", of_user(user))
            .user()
            .unwrap_err();
        assert_eq!(refused, format!("/home/me/config: users[0].user{expected}"));
    }
}

fn authorization(user: SeedUser) -> String {
    match user {
        SeedUser::Fixed(Some(authorization)) | SeedUser::NameOnly(authorization) => {
            authorization.expose_secret().to_owned()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_cannot_be_used_is_named_with_its_file_and_field() {
    let config = "/home/me/config";
    let long = b"hunter2".repeat(500_000);
    for (file, content, expected) in [
        (
            "/home/me/token",
            &*long,
            "users[0].user.tokenFile: has 3500000 bytes, and API servers take a token of at most 1048576; keep the \
             token alone there",
        ),
        (
            "/home/me/token",
            b"hunter2 hunter2",
            "users[0].user.tokenFile: has characters that no HTTP header can carry",
        ),
        (
            "/home/me/token",
            b"hunter2\xff",
            "users[0].user.tokenFile: is not UTF-8",
        ),
        (
            "/home/me/pki/ca.crt",
            b"hunter2",
            "clusters[0].cluster.certificate-authority: holds no certificate in PEM",
        ),
        (
            "/pki/tls.crt",
            b"hunter2",
            "users[0].user.client-certificate: holds no certificate in PEM",
        ),
        (
            "/home/me/../tls.key",
            b"hunter2",
            "users[0].user.client-key: holds no private key in PEM",
        ),
        (
            config,
            b"token: hunter2: x",
            "kubeconfig: is not valid YAML at line 1, column 15",
        ),
    ] {
        let error = Files::new().with(file, content).user().unwrap_err();
        assert_eq!(error, format!("{config}: {expected}"));
    }
    let mut missing = Files::new();
    missing.0.remove("/pki/tls.crt");
    let expected = "users[0].user.client-certificate: names a file that cannot be read: entity not found";
    assert_eq!(missing.user().unwrap_err(), format!("{config}: {expected}"));
    let unknown = "contexts: no entry has the name that --context refers to";
    let none = "kubeconfig: none of its files exists";
    for (files, context, expected) in [
        (&["/none"][..], None, "/none: cannot be read: entity not found"),
        (&[config], Some("x"), unknown),
        (&[], None, "kubeconfig: is empty"),
        (&["/none", "/nowhere"], None, none),
    ] {
        assert_eq!(Files::new().read(files, context).unwrap_err(), expected);
    }
}

#[test]
fn several_files_are_merged_and_the_first_counts() {
    let first = "current-context: b\nusers: [{name: u, user: {token: hunter2-hunter2}}]\n";
    let files = Files::new().with("/first", first);
    let user = files
        .read(&["/first", "/none", "/home/me/config"], None)
        .unwrap()
        .user;
    assert_eq!(authorization(user), format!("Bearer {TOKEN}"));
}
