use super::*;

const GARDENER: &str = include_str!("../../tests/fixtures/weeder-gardener.yaml");

fn parse(bytes: &[u8]) -> Result<WeederConfig, ConfigErrors> {
    super::parse(bytes, UnknownFields::Refused).map(|parsed| parsed.config)
}

fn errors(text: &str) -> Vec<String> {
    parse(text.as_bytes())
        .unwrap_err()
        .errors()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn the_file_that_gardener_deploys_loads_unchanged() {
    let config = parse(GARDENER.as_bytes()).unwrap();
    assert_eq!(config.watch_duration, Duration::from_secs(300));
    let services: Vec<_> = config
        .services
        .iter()
        .map(|(name, selectors)| (name.as_str(), selectors.as_slice()))
        .collect();
    let [("etcd-main-client", [etcd]), ("kube-apiserver", [apiserver])] = services.as_slice() else {
        panic!("{services:?}")
    };
    assert_eq!(
        etcd.to_string(),
        "gardener.cloud/role in (controlplane),role in (apiserver)"
    );
    assert_eq!(
        apiserver.to_string(),
        "gardener.cloud/role in (controlplane),role notin (apiserver,main)"
    );
}

#[test]
fn all_faults_of_content_are_reported_at_once_with_their_places() {
    let text = "\
watchDuration: 0s
servicesAndDependentSelectors: {}
servicesAndDependantSelectors:
  Etcd_Main:
    podSelectors: [{matchLabels: {role: apiserver}}]
  empty:
    podSelectors: []
  missing: {}
  all:
    podSelectors:
      - {}
      - matchExpressions: []
  bad:
    podSelectors:
      - matchLabels: {\"-x\": \"a b\", ok: fine}
        matchExpression: []
      - matchExpressions:
          - {key: role, operator: in, values: [a]}
          - {key: role, operator: In}
          - {key: role, operator: Exists, values: [a]}
          - {operator: Exists}
          - {key: a/b/c, operator: NotIn, values: [x, a b]}
";
    assert_eq!(
        errors(text),
        [
            "1:16: watchDuration: must be at least 1s, not 0s",
            "2:1: servicesAndDependentSelectors: unknown field",
            "5:5: servicesAndDependantSelectors.Etcd_Main: the name of a service has lower-case letters, digits and \
             -, and at most 63 characters",
            "7:19: servicesAndDependantSelectors.empty.podSelectors: must hold at least one selector",
            "8:12: servicesAndDependantSelectors.missing.podSelectors: is required",
            "11:9: servicesAndDependantSelectors.all.podSelectors[0]: selects every pod of the namespace; name at \
             least one label in matchLabels or matchExpressions",
            "12:9: servicesAndDependantSelectors.all.podSelectors[1]: selects every pod of the namespace; name at \
             least one label in matchLabels or matchExpressions",
            "15:29: servicesAndDependantSelectors.bad.podSelectors[0].matchLabels.-x: \"-x\" is not the key of a \
             label, such as app or example.com/role",
            "15:29: servicesAndDependantSelectors.bad.podSelectors[0].matchLabels.-x: \"a b\" is not the value of a \
             label: letters, digits, -, _ and ., at most 63",
            "16:9: servicesAndDependantSelectors.bad.podSelectors[0].matchExpression: unknown field",
            "18:35: servicesAndDependantSelectors.bad.podSelectors[1].matchExpressions[0].operator: must be In, \
             NotIn, Exists or DoesNotExist, not \"in\"",
            "19:13: servicesAndDependantSelectors.bad.podSelectors[1].matchExpressions[1]: the operator In needs at \
             least one value",
            "20:51: servicesAndDependantSelectors.bad.podSelectors[1].matchExpressions[2].values: the operator \
             Exists takes no values",
            "21:13: servicesAndDependantSelectors.bad.podSelectors[1].matchExpressions[3].key: is required",
            "22:19: servicesAndDependantSelectors.bad.podSelectors[1].matchExpressions[4].key: \"a/b/c\" is not the \
             key of a label, such as app or example.com/role",
            "22:55: servicesAndDependantSelectors.bad.podSelectors[1].matchExpressions[4].values[1]: \"a b\" is not \
             the value of a label: letters, digits, -, _ and ., at most 63",
        ]
    );
    for (text, error) in [
        (
            "servicesAndDependantSelectors: {a: 7}",
            "1:36: servicesAndDependantSelectors.a: must be a mapping of fields",
        ),
        (
            "servicesAndDependantSelectors: {a: {podSelectors: [{matchLabels: {a: b, a: c}}]}}",
            "1:73: servicesAndDependantSelectors.a.podSelectors[0].matchLabels.a: is given twice",
        ),
        ("excludeKinds: [null]", "1:16: excludeKinds[0]: must be text"),
        // As Gardener writes it for a seed without dependants.
        (
            "servicesAndDependantSelectors: null",
            "1:32: servicesAndDependantSelectors: is required",
        ),
        (
            "watchDuration: 5m",
            "1:1: servicesAndDependantSelectors: is required",
        ),
        (
            "servicesAndDependantSelectors: {}",
            "1:32: servicesAndDependantSelectors: must name at least one service",
        ),
    ] {
        assert_eq!(errors(text), [error]);
    }
}

#[test]
fn what_is_deleted_can_be_narrowed_and_widened() {
    let defaults = GARDENER.replace("watchDuration: 5m0s", "watchDuration: null");
    let defaults = parse(defaults.as_bytes()).unwrap();
    assert_eq!(defaults.watch_duration, secs(300));
    assert_eq!(defaults.ready_for, Duration::ZERO);
    assert!(defaults.exclude_kinds.is_empty());
    assert!(!defaults.delete_pods_without_controller && !defaults.delete_pods_of_jobs);
    let own = "readyFor: 5s\nexcludeKinds: [StatefulSet]\ndeletePodsWithoutController: true\ndeletePodsOfJobs: true\n";
    let config = parse(format!("{own}{GARDENER}").as_bytes()).unwrap();
    assert_eq!(config.ready_for, Duration::from_secs(5));
    assert_eq!(config.exclude_kinds, BTreeSet::from(["StatefulSet".to_owned()]));
    assert!(config.delete_pods_without_controller && config.delete_pods_of_jobs);
    let wrong = "readyFor: -1s\nexcludeKinds: [statefulsets, Deployment, a b]\ndeletePodsOfJobs: true\n";
    assert_eq!(
        errors(&format!("{wrong}{GARDENER}"))
            .iter()
            .map(|error| error.split(": ").take(2).collect::<Vec<_>>().join(": "))
            .collect::<Vec<_>>(),
        [
            "1:11: readyFor",
            "2:16: excludeKinds[0]",
            "2:30: excludeKinds[1]",
            "2:42: excludeKinds[2]"
        ]
    );
}
