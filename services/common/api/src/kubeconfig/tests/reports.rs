//! Shapes that people have reported, for a shoot and for the seed.

use super::*;

const LEFTOVER_CONTEXT: &str = include_str!("../../../tests/fixtures/kubeconfigs/leftover-context.yaml");
const NULL_LISTS: &str = include_str!("../../../tests/fixtures/kubeconfigs/null-lists.yaml");
const NULL_USER: &str = include_str!("../../../tests/fixtures/kubeconfigs/null-user.yaml");
const UNLISTED_USER: &str = include_str!("../../../tests/fixtures/kubeconfigs/unlisted-user.yaml");
const EMPTY_TOKEN: &str = include_str!("../../../tests/fixtures/kubeconfigs/empty-token.yaml");
const PROXY: &str = include_str!("../../../tests/fixtures/kubeconfigs/proxy.yaml");
const BASIC: &str = include_str!("../../../tests/fixtures/kubeconfigs/basic.yaml");
const EXEC_PLUGIN: &str = include_str!("../../../tests/fixtures/kubeconfigs/exec-plugin.yaml");
const OIDC: &str = include_str!("../../../tests/fixtures/kubeconfigs/oidc.yaml");

fn filled(text: &str) -> String {
    text.replace("CA-DATA", &encoded(&PKI.cert))
}

/// The cluster and the user that kube gets for the seed.
fn seed(text: &str) -> Result<(kube::config::Cluster, SeedUser), KubeconfigError> {
    let file = filled(text).into_bytes();
    let read = of_seed(&["/home/me/seed.yaml".into()], None, &|_| Ok(file.clone()))?;
    Ok((read.cluster, read.user))
}

fn shoot(text: &str) -> Result<ShootAccess, KubeconfigError> {
    parse(filled(text).as_bytes())
}

#[test]
fn only_the_current_context_counts() {
    for text in [LEFTOVER_CONTEXT, NULL_LISTS] {
        let access = shoot(text).unwrap();
        assert_eq!(access.server, "https://api.test");
        assert_eq!(access.authorities, Some(vec![PKI.der.clone()]));
        assert_eq!(access.token.unwrap().expose_secret(), TOKEN);
        let (cluster, user) = seed(text).unwrap();
        assert_eq!(cluster.server.unwrap(), "https://api.test");
        assert!(matches!(user, SeedUser::Fixed(Some(_))));
    }
    let broken = r#"
contexts: [null, 7, {name: b, context: null}, {name: [x]}, {context: {}}, {name: a, context: {cluster: c, user: u}}]
clusters: [{name: null}, {}, {name: other, cluster: {server: 7}}, {name: c, cluster: {server: "https://api.test"}}]
users: [{name: v, user: {token: [hunter2]}}, {name: v, user: x}, {name: u, user: {token: hunter2-hunter2}}]
current-context: a
"#;
    assert_eq!(shoot(broken).unwrap().token.unwrap().expose_secret(), TOKEN);
    assert!(seed(broken).is_ok());
}

#[test]
fn a_user_that_is_null_empty_or_not_listed_is_anonymous() {
    for text in [NULL_USER, UNLISTED_USER, EMPTY_TOKEN] {
        let credentials = shoot(text).unwrap();
        assert!(credentials.token.is_none() && credentials.client_certificate.is_none());
        let (_, user) = seed(text).unwrap();
        assert!(matches!(user, SeedUser::Fixed(None)));
    }
}

#[test]
fn an_empty_document_does_not_count_and_of_others_the_first_counts() {
    for text in [
        format!("---\n{LEFTOVER_CONTEXT}"),
        format!("{LEFTOVER_CONTEXT}---\n"),
        format!("# nothing\n---\n{{}}\n---\n{LEFTOVER_CONTEXT}---\n# nothing\n"),
        format!("{LEFTOVER_CONTEXT}---\ncurrent-context: x\nusers: [{{name: prober, user: {{token: y}}}}]\n"),
    ] {
        assert_eq!(shoot(&text).unwrap().token.unwrap().expose_secret(), TOKEN);
        assert!(seed(&text).is_ok());
    }
}

/// Each of these was tried with kubectl 1.32.
#[test]
fn what_kubectl_takes_is_taken() {
    let base = LEFTOVER_CONTEXT;
    let pem = |change: &dyn Fn(&str) -> String| base.replace("CA-DATA", &encoded(&change(&PKI.cert)));
    let bad = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    let data = encoded(&PKI.cert);
    let folded: Vec<_> = data.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    for text in [
        base.replace('\n', "\r\n"),
        base.replace("kind: Config", "kind:\tConfig"),
        base.replace("kind: Config\n", ""),
        format!("{base}kind: Config\n"),
        base.replace(
            "server: \"https://api.test\"",
            "server: \"https://old.test\", server: \"HTTPS://api.test\"",
        ),
        base.replace(
            "clusters:\n",
            "clusters:\n- {name: z, cluster: {server: a, server: b}}\n- null\n",
        ),
        base.replace("CA-DATA", &format!("\"{}\"", folded.join("\\n"))),
        base.replace("CA-DATA", &format!("\"{}\"", folded.join(" "))),
        pem(&|pem| format!("a comment\n{pem}an end\n")),
        pem(&|pem| pem.replace('\n', "\r\n")),
        pem(&|pem| format!("{bad}{pem}")),
        format!("---\n{base}...\n"),
        // Text of digits is text.
        base.replace("in-use", "1234").replace("prober", "5"),
    ] {
        let access = shoot(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(access.server, "https://api.test");
        let authorities = access.authorities.unwrap();
        assert!(authorities.contains(&PKI.der), "{text}");
        assert!(seed(&text).is_ok(), "{text}");
    }
}

/// As Go, it does not look at the bits behind the last byte.
#[test]
fn base64_may_have_stray_bits_at_its_end() {
    let padded = |text: &str| encoded(text).ends_with("==");
    let mut pem = PKI.cert.clone();
    while !padded(&pem) {
        pem.push('\n');
    }
    // A line feed ends in "Cg==", of which the last four bits mean nothing.
    let data = encoded(&pem);
    let changed = data.strip_suffix("g==").unwrap().to_owned() + "h==";
    let text = LEFTOVER_CONTEXT.replace("CA-DATA", &changed);
    assert_eq!(shoot(&text).unwrap().authorities, Some(vec![PKI.der.clone()]));
}

#[test]
fn other_encodings_of_text_are_read() {
    let units = || filled(LEFTOVER_CONTEXT).encode_utf16().collect::<Vec<_>>();
    let little = units().into_iter().flat_map(u16::to_le_bytes);
    let big = units().into_iter().flat_map(u16::to_be_bytes);
    for bytes in [
        [0xff, 0xfe].into_iter().chain(little).collect::<Vec<_>>(),
        [0xfe, 0xff].into_iter().chain(big).collect(),
        [&[0xef, 0xbb, 0xbf], filled(LEFTOVER_CONTEXT).as_bytes()].concat(),
    ] {
        assert_eq!(parse(&bytes).unwrap().server, "https://api.test");
    }
}

#[test]
fn the_seed_may_do_all_that_kube_can() {
    let (cluster, _) = seed(PROXY).unwrap();
    assert_eq!(cluster.proxy_url.unwrap(), "http://hunter2@proxy.test:3128");
    let (cluster, user) = seed(BASIC).unwrap();
    assert_eq!(cluster.insecure_skip_tls_verify, Some(true));
    assert!(matches!(user, SeedUser::Fixed(Some(_))));
    let (cluster, user) = seed(EXEC_PLUGIN).unwrap();
    let SeedUser::Exec(exec) = user else {
        panic!("{user:?}")
    };
    assert_eq!(
        exec.command.unwrap(),
        "/home/me/bin/login",
        "relative to its file"
    );
    assert_eq!(exec.args.unwrap(), ["certificate", "15"]);
    assert!(exec.provide_cluster_info);
    let extensions = cluster.extensions.unwrap();
    assert_eq!(
        extensions[0].extension,
        json!({"shoot": {"name": "one", "number": 7}})
    );
    let (_, user) = seed(OIDC).unwrap();
    let SeedUser::Provider(provider) = user else {
        panic!("{user:?}")
    };
    assert_eq!(provider.config["id-token"].trim(), TOKEN);
}
