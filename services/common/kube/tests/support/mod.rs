//! Shared by the tests of this crate.

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use watchdog_sandbox::ApiServer;

/// A client of this user that, like those of the programs, tries nothing again by itself.
pub(crate) async fn client(api: &ApiServer, user: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(&api.kubeconfig(user)).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}
