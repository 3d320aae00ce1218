use super::*;

const GARDENER: &str = include_str!("../../tests/fixtures/prober-gardener.yaml");
const OLDER: &str = include_str!("../../tests/fixtures/prober-older-names.yaml");
const FAULTS: &str = include_str!("../../tests/fixtures/prober-faults.txt");
const BAD: &str = include_str!("../../tests/fixtures/prober-bad.yaml");

fn parse(bytes: &[u8]) -> Result<ProberConfig, ConfigErrors> {
    super::parse(bytes, UnknownFields::Refused).map(|parsed| parsed.config)
}

fn config(text: &str) -> ProberConfig {
    parse(text.as_bytes()).unwrap()
}

/// `line:column: path: message` of each error.
fn shown(errors: &ConfigErrors) -> Vec<String> {
    errors.errors().iter().map(ToString::to_string).collect()
}

fn errors(text: &str) -> Vec<String> {
    shown(&parse(text.as_bytes()).unwrap_err())
}

/// A valid file with one line put before it.
fn with(line: &str) -> Vec<String> {
    let rest = GARDENER
        .lines()
        .filter(|kept| !kept.starts_with("probeInterval"))
        .collect::<Vec<_>>()
        .join("\n");
    errors(&format!("{line}\n{rest}\n"))
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
fn all_faults_of_content_are_reported_at_once_with_their_places() {
    let expected = [
        "1:23: kubeConfigSecretName: must be the name of an object: lower-case letters, digits, - and ., at most 253 \
         characters",
        "2:1: probIntervall: unknown field",
        "3:15: probeTimeout: \"30\" has no unit; write it like 30s, 500ms or 1m30s",
        "4:15: initialDelay: \"-5s\" is negative; a duration here must be zero or more",
        "5:22: backoffJitterFactor: must be from 0 to 10, not 11",
        "6:27: nodeLeaseFailureFraction: must be more than 0 and at most 1, not 1.5",
        "7:19: failureThreshold: must be from 1 to 1000, not 0",
        "8:30: kcmNodeMonitorGraceDuration: must be at least 1s, not 0s",
        "10:5: dependentResourceInfos[0].scaleDown: is required",
        "10:17: dependentResourceInfos[0].ref.kind: must be like Deployment, not \"deployment\"",
        "10:41: dependentResourceInfos[0].ref.apiVersion: must be like apps/v1, not \"apps\"",
        "10:53: dependentResourceInfos[0].ref.name: must not be empty",
        "11:22: dependentResourceInfos[0].scaleUp.level: must be from 0 to 1000, not -1",
        "11:35: dependentResourceInfos[0].scaleUp.timeout: must be at least 1ms, not 0s",
        "13:22: dependentResourceInfos[1].scaleUp.level: must be from 0 to 1000, not -7",
        "13:36: dependentResourceInfos[1].scaleUp.replicas: must be from 1 to 10000, not 0",
        "15:10: dependentResourceInfos[2].ref: apps/v1 Deployment kube-controller-manager is already named by \
         dependentResourceInfos[1].ref",
        "17:41: dependentResourceInfos[2].scaleDown.initialDelay: \"1d\" has the unknown unit \"d\"; the units are \
         ns, us, ms, s, m and h",
    ];
    assert_eq!(errors(BAD), expected);
    let shown = parse(BAD.as_bytes())
        .unwrap_err()
        .with_file("dep-config.yaml")
        .to_string();
    assert_eq!(shown.lines().count(), expected.len());
    assert!(
        shown.starts_with("dep-config.yaml:1:23: kubeConfigSecretName: must be"),
        "{shown}"
    );
}

#[test]
fn each_fault_names_its_field_and_its_place() {
    let rows = FAULTS.split("\n\n").filter(|row| !row.starts_with('#'));
    for row in rows {
        let (lines, error) = row.split_once("\n  ").unwrap();
        assert_eq!(with(lines), [error.trim_end()], "{lines}");
    }
    for (from, to, error) in [
        (
            "optional: true",
            "optional: maybe",
            "21:13: dependentResourceInfos[2].optional: must be true or false",
        ),
        (
            "- optional: true",
            "- optional: true\n  shouldExist: false",
            "22:16: dependentResourceInfos[2].shouldExist: is the older, opposite name of \"optional\", which is also \
             set; remove it",
        ),
    ] {
        assert_eq!(errors(&GARDENER.replace(from, to)), [error], "{to}");
    }
}

#[test]
fn a_file_as_a_whole_may_be_wrong() {
    for (text, expected) in [
        ("", "1:1: the file is empty"),
        ("# only a comment\n", "1:1: the file is empty"),
        ("--- null\n", "1:1: the file is empty"),
        ("- a\n", "1:1: the file must be a mapping of fields"),
        ("just text", "1:1: the file must be a mapping of fields"),
        ("{{ template }}: 1", "1:1: the name of a field must be text"),
        (
            "a: b: c",
            "1:5: the file is not valid YAML: mapping values are not allowed in this context",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "3:1: the file holds more than one YAML document",
        ),
        (
            "dependentResourceInfos: 7",
            "1:25: dependentResourceInfos: must be a list",
        ),
        (
            "dependentResourceInfos: [[]]",
            "1:26: dependentResourceInfos[0]: must be a mapping of fields",
        ),
        (
            "dependentResourceInfos: [{ref: a}]",
            "1:32: dependentResourceInfos[0].ref: must be a mapping of fields",
        ),
        (
            "probeInterval: 30s",
            "1:1: kubeConfigSecretName: is required\n1:1: dependentResourceInfos: is required",
        ),
        // As Gardener writes it for a seed without dependants.
        (
            "kubeConfigSecretName: s\ndependentResourceInfos: null",
            "2:25: dependentResourceInfos: is required",
        ),
        (
            "kubeConfigSecretName: \"\"\ndependentResourceInfos: []",
            "1:23: kubeConfigSecretName: must not be empty\n\
             2:25: dependentResourceInfos: must name at least one resource",
        ),
        (
            "kubeConfigSecretName: s\ndependentResourceInfos: [{}]",
            "2:26: dependentResourceInfos[0].scaleUp: is required\n\
             2:26: dependentResourceInfos[0].scaleDown: is required\n\
             2:26: dependentResourceInfos[0].ref: is required",
        ),
    ] {
        assert_eq!(errors(text).join("\n"), expected, "{text}");
        // A byte order mark is skipped.
        assert_eq!(errors(&format!("\u{feff}{text}")).join("\n"), expected, "{text}");
    }
    let broken = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
    assert_eq!(broken(b"kube\xff"), "<config>:1:5: the file is not UTF-8");
    let large = "<config>:1:1: the file has 2097152 bytes; the limit is 1048576";
    assert_eq!(broken(&vec![b'#'; 2 << 20]), large);
}

#[test]
fn unknown_fields_may_be_listed_instead() {
    let newer =
        GARDENER.replace("optional: true", "optional: true\n  color: blue") + "fromTheFuture: [{a: 1}]\n";
    let parsed = super::parse(newer.as_bytes(), UnknownFields::Ignored).unwrap();
    assert_eq!(parsed.config, config(GARDENER));
    let expected = [
        "22:3: dependentResourceInfos[2].color: unknown field",
        "33:1: fromTheFuture: unknown field",
    ];
    assert_eq!(shown(&parsed.ignored.unwrap()), expected);
}

/// Their places cost no more than the file: a long key is not repeated for everything below it.
#[test]
fn strange_keys_neither_cost_memory_nor_move_the_places_of_others() {
    let key = "k".repeat(100_000);
    let long = format!("? {key}\n: [{}]\n", vec!["[]"; 20_000].join(", "));
    let shown = format!("1:3: [\"{}…\"]: unknown field", "k".repeat(60));
    assert_eq!(with(&long), [shown]);
    let text = "color: {? [a, b] : {c: [d]}}\nprobeTimeout: 5x";
    let [unknown, fault] = with(text).try_into().unwrap();
    assert_eq!(unknown, "1:1: color: unknown field");
    assert!(fault.starts_with("2:15: probeTimeout: "), "{fault}");
}

/// The value that an alias or a merge stands for is written elsewhere, perhaps rightly for that place.
#[test]
fn what_an_alias_or_a_merge_stands_for_is_wrong_where_it_is_used() {
    let scales = "name: &text Big\nkubeConfigSecretName: s\ndependentResourceInfos:\n\
        - ref: {apiVersion: v1, kind: A, name: a}\n  scaleUp: &scale {level: -1, color: blue}\n  scaleDown: *scale\n\
        - ref: {<<: {name: B}, apiVersion: v1, kind: *text}\n  scaleUp: {timeout: *text}\n  scaleDown: {}\n";
    let expected = [
        "5:27: dependentResourceInfos[0].scaleUp.level: must be from 0 to 1000, not -1",
        "5:31: dependentResourceInfos[0].scaleUp.color: unknown field",
        "6:14: dependentResourceInfos[0].scaleDown.level: must be from 0 to 1000, not -1",
        "6:14: dependentResourceInfos[0].scaleDown.color: unknown field",
        "7:8: dependentResourceInfos[1].ref.name: must be the name of an object: lower-case letters, digits, - and \
         ., at most 253 characters",
        "8:22: dependentResourceInfos[1].scaleUp.timeout: \"Big\" is not a duration; write it like 1m30s, 500ms or 0s",
    ];
    assert_eq!(errors(scales), expected);
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

#[test]
fn the_number_of_resources_is_bounded() {
    let one = "- {ref: {apiVersion: v1, kind: A, name: NAME}, scaleUp: {}, scaleDown: {}}\n";
    let many: String = (0..101).map(|i| one.replace("NAME", &format!("n{i}"))).collect();
    let errors = errors(&format!(
        "kubeConfigSecretName: s\ndependentResourceInfos:\n{many}"
    ));
    assert_eq!(
        errors,
        ["3:3: dependentResourceInfos: must name at most 100 resources, not 101"]
    );
}

#[test]
fn a_file_of_another_kind_does_not_flood_the_log() {
    let many: String = (0..30_000).map(|i| format!("probeInterval{i}: 1s\n")).collect();
    let errors = errors(&many);
    assert_eq!(errors.len(), 103);
    assert!(
        errors.contains(&"101:1: more errors follow; they are not shown".to_owned()),
        "{errors:?}"
    );
}
