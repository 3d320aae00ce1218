//! The seed: what a release consists of, its Secret, and the logs of its Pods. Reads only.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::api::ListParams;
use kube::core::{Request, Status};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use watchdog_api::list::{Item, ItemList};
use watchdog_api::text::printable;
use watchdog_kube::client::{RequestError, request};
use watchdog_kube::seed::connect_by_file;

use crate::args::ConnectArgs;
use crate::error::{CommandError, CommandResult};
use crate::output::note;

/// A person learns what is waited for after this time: a plugin may hang, or ask for something in a browser.
const NOTE_AFTER: Duration = Duration::from_secs(2);

/// The name that API servers have for a caller without credentials.
const ANONYMOUS: &str = "system:anonymous";

/// Pods of one program, and Deployments of all releases, at most.
const MAX_ITEMS: u32 = 500;

pub(super) fn unusable(error: &anyhow::Error) -> CommandError {
    CommandError::usage(
        format!("cannot reach the seed: {error:#}"),
        "set --kubeconfig and --context to the seed, or name the programs with --lease-probe, --scaling-coordinator \
         and --weeder",
    )
}

/// Reads from the API server of a seed.
#[derive(Clone)]
pub(crate) struct SeedReader {
    pub(crate) client: Client,
}

impl SeedReader {
    /// Reads the kubeconfig.
    ///
    /// # Errors
    /// When no kubeconfig can be used.
    pub(crate) async fn open(args: &ConnectArgs) -> CommandResult<Self> {
        let agent = concat!("watchdogctl/", env!("CARGO_PKG_VERSION"));
        let (kubeconfig, context) = (args.kubeconfig.as_deref(), args.context.as_deref());
        let variable = |name: &str| std::env::var(name).ok();
        let mut connecting = pin!(connect_by_file(kubeconfig, context, agent, &variable));
        let connected = match timeout(NOTE_AFTER, connecting.as_mut()).await {
            Ok(connected) => connected,
            Err(_) => {
                let context = context.map(|context| format!(", context {}", printable(context)));
                let context = context.unwrap_or_default();
                note(format_args!(
                    "waiting for the credentials of the kubeconfig{context}: its exec plugin or identity provider has \
                     not answered for 2 s"
                ));
                connecting.await
            }
        };
        let client = connected.map_err(|error| unusable(&error))?;
        Ok(Self { client })
    }

    /// The objects of a kind with these labels, in a namespace or in all of them. One that cannot be decoded hides no
    /// other.
    pub(super) async fn list<K>(&self, namespace: Option<&str>, labels: &str) -> CommandResult<Vec<Item<K>>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned,
    {
        let params = ListParams::default().labels(labels).limit(MAX_ITEMS);
        let list = Request::new(K::url_path(&(), namespace)).list(&params);
        let what = format!("list {} {}", K::plural(&()), place(namespace));
        let answered = async {
            self.client
                .request_text(list.map_err(kube::Error::BuildRequest)?)
                .await
        };
        let answer = self.request(&what, answered).await?;
        let page = ItemList::from_slice(answer.as_bytes());
        let page = page.map_err(|error| {
            let what_to_do = "check with kubectl what answers at the address of the kubeconfig";
            CommandError::unreachable(format!("cannot {what}: {error}"), what_to_do)
        })?;
        Ok(page.items)
    }

    /// The data of a Secret: `NAME`, or `NAMESPACE/NAME`.
    pub(super) async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> CommandResult<BTreeMap<String, ByteString>> {
        let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("read the Secret {name} {}", place(Some(namespace)));
        let secret = self.request(&what, secrets.get(name)).await?;
        Ok(secret.data.unwrap_or_default())
    }

    async fn request<T>(&self, what: &str, call: impl Future<Output = kube::Result<T>>) -> CommandResult<T> {
        request(call).await.map_err(|error| match error {
            RequestError::Refused(status) => refused(what, &status),
            error => CommandError::unreachable(
                format!("cannot {what}: {error}"),
                "check --kubeconfig, --context and the connection to the API server of the seed",
            ),
        })
    }
}

/// The API server of the seed refused a request.
fn refused(what: &str, status: &Status) -> CommandError {
    let what_to_do = if status.message.contains(ANONYMOUS) {
        "the user of the kubeconfig has no credentials: add them, or set --context to a context that has some"
    } else if status.code == 401 {
        "the seed does not accept the credentials of the kubeconfig: renew them, or set --context to another context"
    } else {
        "use a kubeconfig with this permission, or set addresses and certificate files"
    };
    CommandError::usage(format!("cannot {what}: {}", status.message), what_to_do)
}

fn place(namespace: Option<&str>) -> String {
    namespace.map_or_else(
        || "in all namespaces".to_owned(),
        |namespace| format!("in namespace {namespace}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_the_kubeconfig_lacks() {
        for (code, message, what_to_do) in [
            (
                403,
                "deployments.apps is forbidden: User \"system:anonymous\" cannot list resource",
                "the user of the kubeconfig has no credentials",
            ),
            (
                403,
                "User \"me\" cannot list resource",
                "use a kubeconfig with this permission",
            ),
            (401, "Unauthorized", "renew them"),
        ] {
            let status = Status {
                code,
                message: message.to_owned(),
                ..Status::default()
            };
            let error = refused("list deployments in all namespaces", &status);
            assert_eq!(error.code, crate::error::USAGE);
            assert_eq!(
                error.what,
                format!("cannot list deployments in all namespaces: {message}")
            );
            assert!(error.what_to_do.contains(what_to_do), "{error}");
        }
    }
}
