use super::*;

const GARDENER: &str = include_str!("../../tests/fixtures/prober-gardener.yaml");
const OLDER: &str = include_str!("../../tests/fixtures/prober-older-names.yaml");
const BAD: &str = include_str!("../../tests/fixtures/prober-bad.yaml");

fn parse(bytes: &[u8]) -> Result<ProberConfig, ConfigErrors> {
    super::parse(bytes, UnknownFields::Refused).map(|parsed| parsed.config)
}

fn config(text: &str) -> ProberConfig {
    parse(text.as_bytes()).unwrap()
}

fn errors(text: &str) -> Vec<String> {
    parse(text.as_bytes()).unwrap_err().lines().to_vec()
}

fn deployment(name: &str) -> ResourceRef {
    ResourceRef {
        api_version: "apps/v1".into(),
        kind: "Deployment".into(),
        name: name.into(),
    }
}

#[test]
fn the_file_that_gardener_deploys_loads_unchanged() {
    let scale = |level, delay| ScaleInfo {
        level,
        initial_delay: secs(delay),
        timeout: secs(30),
        replicas: None,
    };
    let dependent = |name, optional, up, delay, down| DependentResource {
        reference: deployment(name),
        optional,
        scale_up: scale(up, delay),
        scale_down: scale(down, 0),
    };
    let expected = ProberConfig {
        kube_config_secret_name: "shoot-access-dependency-watchdog-probe".to_owned(),
        external_kube_config_secret_name: None,
        probe_interval: secs(30),
        initial_delay: secs(30),
        probe_timeout: secs(30),
        backoff_jitter_factor: 0.2,
        kcm_node_monitor_grace_duration: secs(40),
        node_lease_failure_fraction: 0.6,
        success_threshold: 1,
        failure_threshold: 1,
        internal_probe_failure_back_off_duration: secs(30),
        dependent_resource_infos: vec![
            dependent("kube-controller-manager", false, 0, 0, 1),
            dependent("machine-controller-manager", false, 1, 30, 0),
            dependent("cluster-autoscaler", true, 2, 0, 0),
        ],
    };
    assert_eq!(config(GARDENER), expected);
}

#[test]
fn the_names_of_older_releases_load() {
    let config = config(OLDER);
    assert_eq!(
        config.kube_config_secret_name,
        "shoot-access-dependency-watchdog-internal-probe"
    );
    assert_eq!(
        config.external_kube_config_secret_name.as_deref(),
        Some("shoot-access-dependency-watchdog-external-probe")
    );
    assert_eq!(
        (config.probe_interval, config.initial_delay, config.probe_timeout),
        (secs(20), secs(5), secs(10))
    );
    assert_eq!((config.success_threshold, config.failure_threshold), (2, 3));
    assert_eq!(config.internal_probe_failure_back_off_duration, secs(15));
    assert_eq!(
        (config.backoff_jitter_factor, config.node_lease_failure_fraction),
        (0.5, 0.75)
    );
    assert_eq!(config.kcm_node_monitor_grace_duration, secs(120));
    let [kcm, ca] = config.dependent_resource_infos.as_slice() else {
        panic!("two")
    };
    assert_eq!((kcm.optional, ca.optional), (false, true));
    assert_eq!(
        (kcm.scale_up.replicas, ca.scale_down.replicas),
        (Some(1), Some(0))
    );
    assert_eq!(
        (kcm.scale_down.initial_delay, kcm.scale_down.timeout),
        (Duration::from_millis(500), secs(90))
    );
    assert_eq!(ca.scale_down.level, 0, "an absent level is 0");
    assert_eq!((ca.reference.group(), ca.reference.version()), ("apps", "v1"));
    assert_eq!(ca.reference.to_string(), "apps/v1 StatefulSet cluster-autoscaler");
}

#[test]
fn the_same_file_as_json_is_the_same_configuration() {
    let json = r#"{"dependentResourceInfos":[{"ref":{"kind":"Deployment","name":"a","apiVersion":"v1"},
        "scaleUp":{"level":1},"scaleDown":{"level":0,"initialDelay":"0s"}}],"kubeConfigSecretName":"s",
        "probeInterval":"1m0s","externalKubeConfigSecretName":"","initialDelay":null}"#;
    let config = config(json);
    assert_eq!(
        (config.probe_interval, config.initial_delay),
        (secs(60), secs(30))
    );
    assert_eq!(config.external_kube_config_secret_name, None);
    let reference = &config.dependent_resource_infos[0].reference;
    assert_eq!((reference.group(), reference.version()), ("", "v1"));
}

#[test]
fn all_faults_of_content_are_reported_at_once() {
    let expected = [
        "kubeConfigSecretName: must be the name of an object: lower-case letters, digits, - and ., at most 253 \
         characters",
        "dependentResourceInfos[0].ref.apiVersion: must be like apps/v1, not \"apps\"",
        "dependentResourceInfos[0].ref.kind: must be like Deployment, not \"deployment\"",
        "dependentResourceInfos[0].ref.name: must not be empty",
        "dependentResourceInfos[0].scaleUp.level: must be from 0 to 1000, not -1",
        "dependentResourceInfos[0].scaleUp.timeout: must be from 1ms to 24h0m0s, not 0s",
        "dependentResourceInfos[0].scaleDown: is required",
        "dependentResourceInfos[1].scaleUp.replicas: must be from 1 to 10000, not 0",
        "dependentResourceInfos[1].scaleUp.level: must be from 0 to 1000, not -7",
        "dependentResourceInfos[2].scaleDown.initialDelay: \"1d\" has the unknown unit \"d\"; the units are ns, us, \
         ms, s, m and h",
        "dependentResourceInfos[2].ref: names the same resource as dependentResourceInfos[1].ref",
        "nodeLeaseFailureFraction: must be more than 0 and at most 1, not 1.5",
        "initialDelay: \"-5s\" is negative; a duration here must be zero or more",
        "probeTimeout: \"30\" has no unit; write it like 30s, 500ms or 1m30s",
        "backoffJitterFactor: must be from 0 to 10, not 11",
        "kcmNodeMonitorGraceDuration: must be from 1s to 24h0m0s, not 0s",
        "failureThreshold: must be from 1 to 1000, not 0",
        "probIntervall: unknown field",
    ];
    assert_eq!(errors(BAD), expected);
    let named = parse(BAD.as_bytes()).unwrap_err().with_file("dep-config.yaml");
    let named = named.to_string();
    assert_eq!(named.lines().count(), expected.len());
    let begin = "dep-config.yaml: kubeConfigSecretName: must be";
    assert!(named.lines().next().unwrap().starts_with(begin), "{named}");
}

/// A line that is put before those of the file, and what is reported then.
const FAULTS: &str = "\
probeTimeout: [30s] => line 1, column 15: probeTimeout: must be a single value, not a list or a mapping
successThreshold: {a: 1} => line 1, column 19: successThreshold: must be a single value, not a list or a mapping
successThreshold: 1.5 => line 1, column 19: successThreshold: must be a whole number, 0 or more
successThreshold: 010 => line 1, column 19: successThreshold: must be a whole number, 0 or more
successThreshold: -1 => line 1, column 19: successThreshold: must be a whole number, 0 or more
successThreshold: true => line 1, column 19: successThreshold: must be a whole number, 0 or more
backoffJitterFactor: x => line 1, column 22: backoffJitterFactor: must be a number
internalKubeConfigSecretName: a => line 1, column 1: duplicate field `kubeConfigSecretName`
dependentResourceInfos: [] => line 2, column 1: duplicate mapping key: dependentResourceInfos not allowed here
color: blue => color: unknown field
probeIntervaL: 30s => probeIntervaL: unknown field
'a.b c': {d: blue} => [\"a.b c\"]: unknown field
probeInterval: 999ms => probeInterval: must be from 1s to 24h0m0s, not 999ms
probeInterval: 25h => probeInterval: must be from 1s to 24h0m0s, not 25h0m0s
backoffJitterFactor: -0.1 => backoffJitterFactor: must be from 0 to 10, not -0.1
backOffJitterFactor: .inf => backoffJitterFactor: must be from 0 to 10, not inf
backoffJitterFactor: .nan => backoffJitterFactor: must be from 0 to 10, not NaN
nodeLeaseFailureFraction: 0 => nodeLeaseFailureFraction: must be more than 0 and at most 1, not 0
nodeLeaseFailureFraction: .nan => nodeLeaseFailureFraction: must be more than 0 and at most 1, not NaN
";

#[test]
fn each_fault_names_its_field_and_one_of_form_its_place() {
    let lines = GARDENER.lines().filter(|line| !line.starts_with("probeInterval"));
    let rest: String = lines.map(|line| format!("{line}\n")).collect();
    let with = |line: &str| errors(&format!("{line}\n{rest}")).join("\n");
    for row in FAULTS.lines() {
        let (line, expected) = row.split_once(" => ").unwrap();
        assert_eq!(with(line), expected, "{line}");
    }
    for first in ["probes: []", "services: {}"] {
        let error = with(first);
        assert!(
            error.contains("this is a file for dependency-watchdog 0.x"),
            "{error}"
        );
    }
    let long = with(&format!("? {}\n: []", "k".repeat(100_000)));
    assert_eq!(long, format!("[\"{}…\"]: unknown field", "k".repeat(60)));
    let both = GARDENER.replace("- optional: true", "- optional: true\n  shouldExist: false");
    let [both] = errors(&both).try_into().unwrap();
    assert!(
        both.starts_with("dependentResourceInfos[2].shouldExist: is the older"),
        "{both}"
    );
}

#[test]
fn a_file_as_a_whole_may_be_wrong() {
    let resources = "dependentResourceInfos: must name 1 to 100 resources, not";
    let one = "- {ref: {apiVersion: v1, kind: A, name: NAME}, scaleUp: {}, scaleDown: {}}\n";
    let many: String = (0..101).map(|i| one.replace("NAME", &format!("n{i}"))).collect();
    let many = format!("kubeConfigSecretName: s\ndependentResourceInfos:\n{many}");
    for (text, expected) in [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("--- null\n", "the file is empty"),
        ("- a\n", "line 1, column 1: must be a mapping of fields"),
        ("just text", "line 1, column 1: must be a mapping of fields"),
        (
            "a: b: c",
            "line 1, column 5: mapping values are not allowed in this context",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "line 3, column 1: only single YAML document expected but multiple found",
        ),
        (
            "dependentResourceInfos: 7",
            "line 1, column 25: dependentResourceInfos: must be a list",
        ),
        (
            "dependentResourceInfos: [{ref: a}]",
            "line 1, column 32: dependentResourceInfos[0].ref: must be a mapping of fields",
        ),
        (
            "probeInterval: 30s",
            "kubeConfigSecretName: is required\ndependentResourceInfos: is required",
        ),
        // As Gardener writes it for a seed without dependants.
        (
            "kubeConfigSecretName: s\ndependentResourceInfos: null",
            "dependentResourceInfos: is required",
        ),
        (
            "kubeConfigSecretName: \"\"\ndependentResourceInfos: []",
            &format!("kubeConfigSecretName: must not be empty\n{resources} 0"),
        ),
        (&many, &format!("{resources} 101")),
        (
            "kubeConfigSecretName: s\ndependentResourceInfos: [{}]",
            "dependentResourceInfos[0].ref: is required\ndependentResourceInfos[0].scaleUp: is required\n\
             dependentResourceInfos[0].scaleDown: is required",
        ),
    ] {
        assert_eq!(errors(text).join("\n"), expected, "{text}");
        // A byte order mark is skipped.
        assert_eq!(errors(&format!("\u{feff}{text}")).join("\n"), expected, "{text}");
    }
    let broken = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
    assert_eq!(broken(b"kube\xff"), "the file is not UTF-8 after 4 bytes");
    let large = "the file has 2097152 bytes; the limit is 1048576";
    assert_eq!(broken(&vec![b'#'; 2 << 20]), large);
    let flood: String = (0..30_000).map(|i| format!("probeInterval{i}: 1s\n")).collect();
    let flood = errors(&flood);
    assert_eq!(flood.len(), 101);
    assert_eq!(flood.last().unwrap(), "more errors follow; they are not shown");
}

#[test]
fn unknown_fields_may_be_listed_instead() {
    let newer =
        GARDENER.replace("optional: true", "optional: true\n  color: blue") + "fromTheFuture: [{a: 1}]\n";
    let parsed = super::parse(newer.as_bytes(), UnknownFields::Ignored).unwrap();
    assert_eq!(parsed.config, config(GARDENER));
    let expected = [
        "dependentResourceInfos[2].color: unknown field",
        "fromTheFuture: unknown field",
    ];
    assert_eq!(parsed.ignored.unwrap().lines(), expected);
}

#[test]
fn booleans_are_read_as_gos_yaml_reads_them() {
    for (text, expected) in [
        ("true", true),
        ("yes", true),
        ("On", true),
        ("FALSE", false),
        ("no", false),
    ] {
        let config = config(&GARDENER.replace("optional: true", &format!("optional: {text}")));
        assert_eq!(config.dependent_resource_infos[2].optional, expected, "{text}");
    }
}
