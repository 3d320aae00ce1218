//! Deletes pods. The requests are sent as they are, because kube's client drops the Retry-After header.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use kube::Resource;
use kube::api::{DeleteParams, Preconditions};
use kube::client::Body;
use kube::core::Status;
use watchdog_api::text::printable_message;
use watchdog_api::trimmed_object::PodObject;
use watchdog_kube::client::retry_after;
use watchdog_kube::permissions::Permission;
use watchdog_runtime::failure::chain;

use crate::domain::deletion_result::DeletionResult;
use crate::domain::pods::Pod;

/// Largest answer: one pod, which etcd limits to 1.5 MiB.
const MAX_ANSWER_BYTES: usize = 4 * 1024 * 1024;

/// Deletes a pod if it is still the one that was seen, in the state in which it was seen. The answer must come `within`
/// this time.
pub(crate) async fn delete(client: &kube::Client, pod: &Pod, within: Duration) -> DeletionResult {
    match tokio::time::timeout(within, send(client, pod)).await {
        // The chain says what failed and why, in one line.
        Ok(Err(error)) => DeletionResult::Failed(printable_message(&chain(&*error))),
        Ok(Ok(answer)) => answer,
        Err(_) => DeletionResult::Failed(format!("no answer within {within:.1?}")),
    }
}

async fn send(
    client: &kube::Client,
    pod: &Pod,
) -> Result<DeletionResult, Box<dyn std::error::Error + Send + Sync>> {
    let namespace = &*pod.key.namespace;
    let params = DeleteParams::default().preconditions(Preconditions {
        uid: Some(pod.uid.clone()),
        resource_version: Some(pod.resource_version.clone()),
    });
    let request = kube::core::Request::new(PodObject::url_path(&(), Some(namespace)));
    let request = request.delete(&pod.key.name, &params)?;
    let (head, body) = client.send(request.map(Body::from)).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await?.to_bytes();
    if head.status.is_success() {
        return Ok(DeletionResult::Deleted);
    }
    let status = serde_json::from_slice::<Status>(&body).ok();
    let server_message = server_message(status.as_ref(), &body);
    Ok(match head.status {
        StatusCode::NOT_FOUND => DeletionResult::Gone,
        StatusCode::CONFLICT => DeletionResult::Changed,
        StatusCode::TOO_MANY_REQUESTS => {
            DeletionResult::Throttled(retry_after(&head.headers, status.as_ref()))
        }
        StatusCode::FORBIDDEN => {
            let missing = Permission::new("delete", "", "pods").in_namespace(namespace);
            DeletionResult::Forbidden(format!(
                "grant this service {missing}; the API server says: {server_message}"
            ))
        }
        code => DeletionResult::Failed(format!("{server_message} ({})", code.as_u16())),
    })
}

fn server_message(status: Option<&Status>, body: &Bytes) -> String {
    let text = match status {
        Some(status) => status.message.clone(),
        None => String::from_utf8_lossy(body).into_owned(),
    };
    match text.trim() {
        "" => "no reason given".to_owned(),
        text => printable_message(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use watchdog_kube::seed::connect;
    use watchdog_sandbox::resource::keys::PODS;
    use watchdog_sandbox::{ApiServer, Fault, FaultAction};
    use watchdog_test_support::in_process::{self, ServiceFiles};

    use super::*;
    use crate::cluster::objects;

    /// The pod as a watch shows it; created if it does not exist.
    fn pod(api: &ApiServer) -> Pod {
        let find = || api.store().find(&PODS, "shoot", "kcm");
        if find().is_none() {
            let crash = json!({
                "name": "main", "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            });
            let object = json!({
                "metadata": {"name": "kcm"}, "spec": {"containers": []},
                "status": {"containerStatuses": [crash]},
            });
            api.create(&PODS, "shoot", object).unwrap();
        }
        let object = find().unwrap().value().clone();
        objects::pod(serde_json::from_value(object).unwrap()).unwrap()
    }

    #[tokio::test]
    async fn each_answer_has_its_result() {
        let api = in_process::api_server(&["shoot"]).await.unwrap();
        let kubeconfig = ServiceFiles::new("").unwrap();
        let kubeconfig = kubeconfig.kubeconfig(&api, "weeder").unwrap();
        let client = connect(Some(&kubeconfig), "weeder").await.unwrap();
        let send = async |pod: &Pod| delete(&client, pod, Duration::from_secs(10)).await;

        assert_eq!(send(&pod(&api)).await, DeletionResult::Deleted);
        let seen = pod(&api);
        let runs = |pod: &mut serde_json::Value| pod["status"]["phase"] = "Running".into();
        in_process::modify(&api, &PODS, "shoot", "kcm", runs).unwrap();
        assert_eq!(
            send(&seen).await,
            DeletionResult::Changed,
            "it is in another state"
        );
        in_process::delete(&api, &PODS, "shoot", "kcm").unwrap();
        assert_eq!(send(&seen).await, DeletionResult::Gone);
        pod(&api);
        assert_eq!(send(&seen).await, DeletionResult::Changed, "it is another pod");

        for (action, result, message) in [
            // A success is a success, whatever its body says.
            (FaultAction::Garbage, "deleted", ""),
            (FaultAction::Cut, "failed", "connection"),
            (FaultAction::InternalError, "failed", "(500)"),
            (
                FaultAction::TooManyRequests { retry_after: 2 },
                "throttled",
                "asks to wait for 2s",
            ),
        ] {
            let seen = pod(&api);
            api.inject(Fault::always(action).verb("delete").times(1));
            let answer = send(&seen).await;
            assert_eq!(answer.as_str(), result, "{answer}");
            assert!(answer.to_string().contains(message), "{answer}");
        }

        let seen = pod(&api);
        api.inject(Fault::always(FaultAction::ApplyAndHang).verb("delete").times(1));
        let answer = delete(&client, &seen, Duration::from_millis(300)).await;
        assert_eq!(
            answer,
            DeletionResult::Failed("no answer within 300.0ms".to_owned())
        );
        let successor = pod(&api);
        assert_ne!(successor.uid, seen.uid);
        assert_eq!(send(&seen).await, DeletionResult::Changed, "it is another pod");

        api.deny(in_process::rule(&["delete"], &["pods"]));
        let answer = send(&successor).await;
        assert_eq!(answer.as_str(), "forbidden");
        let permission = "grant this service delete pods in namespace shoot";
        assert!(answer.to_string().contains(permission), "{answer}");
    }

    #[test]
    fn what_a_server_says_is_cut_and_printable() {
        let message = |body: String| server_message(None, &Bytes::from(body));
        assert_eq!(message("x".repeat(1_000)).chars().count(), 513, "with a mark");
        assert_eq!(message("too\nmany\u{202e}\n".to_owned()), "too many ");
        assert_eq!(message(String::new()), "no reason given");
    }
}
