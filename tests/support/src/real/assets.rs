//! Where the real binaries are.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::tools;

/// The versions that the scripts under `tests/tools` are pinned to: the only place where they stand.
const VERSIONS: &str = include_str!("../../../tools/versions.env");

/// The ecosystem's convention for a folder with etcd and kube-apiserver.
const ASSETS_VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// The paths of etcd, kube-apiserver and kube-controller-manager.
#[derive(Clone, Debug)]
pub(super) struct Assets {
    pub etcd: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kube_controller_manager: PathBuf,
}

impl Assets {
    /// Looks into the folder that `KUBEBUILDER_ASSETS` names, if any, then into the cache of
    /// `tests/tools/real-kubernetes`.
    pub(super) fn find() -> anyhow::Result<Self> {
        let built = tools::cache_folder()?
            .join("real-kubernetes")
            .join(built_folder()?);
        Self::find_in(
            env::var_os(ASSETS_VARIABLE).filter(|folder| !folder.is_empty()),
            &built,
        )
    }

    fn find_in(assets: Option<OsString>, built: &Path) -> anyhow::Result<Self> {
        let folders: Vec<PathBuf> = assets
            .map(PathBuf::from)
            .into_iter()
            .chain([built.to_owned()])
            .collect();
        let find = |name: &str| {
            folders
                .iter()
                .map(|folder| folder.join(name))
                .find(|program| program.is_file())
                .with_context(|| {
                    format!(
                        "{name} is not in {folders:?}: run `tests/tools/real-kubernetes`, which builds it"
                    )
                })
        };
        Ok(Self {
            etcd: find("etcd")?,
            kube_apiserver: find("kube-apiserver")?,
            kube_controller_manager: find("kube-controller-manager")?,
        })
    }

    /// The minor version of the kube-controller-manager (20 for v1.20.2): its flags change over time.
    pub(super) fn controller_manager_minor(&self) -> anyhow::Result<u32> {
        minor_of(&self.kube_controller_manager)
    }

    /// The minor version of the kube-apiserver: which groups it knows and needs changes over time.
    pub(super) fn api_server_minor(&self) -> anyhow::Result<u32> {
        minor_of(&self.kube_apiserver)
    }
}

fn minor_of(program: &Path) -> anyhow::Result<u32> {
    let output = Command::new(program)
        .arg("--version")
        .output()
        .with_context(|| format!("run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    minor(&text).with_context(|| format!("{} --version prints {text:?}", program.display()))
}

/// "Kubernetes v1.20.2" -> 20
fn minor(text: &str) -> Option<u32> {
    text.trim().split_once(" v1.")?.1.split('.').next()?.parse().ok()
}

/// The name of the folder in which the script keeps what it built.
fn built_folder() -> anyhow::Result<String> {
    let value = |name: &str| {
        VERSIONS
            .lines()
            .find_map(|line| line.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
            .with_context(|| format!("tests/tools/versions.env lacks {name}"))
    };
    Ok(format!(
        "{}-{}",
        value("KUBERNETES_VERSION")?,
        value("KUBERNETES_BUILD")?
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_variable_wins_and_the_cache_fills_the_gaps() {
        let folder = tempfile::tempdir().unwrap();
        let (own, built) = (folder.path().join("own"), folder.path().join("built"));
        for (place, names) in [
            (&own, &["etcd", "kube-apiserver"][..]),
            (&built, &["etcd", "kube-controller-manager"]),
        ] {
            fs::create_dir(place).unwrap();
            for name in names {
                fs::write(place.join(name), "").unwrap();
            }
        }
        let found = Assets::find_in(Some(own.clone().into()), &built).unwrap();
        assert_eq!(found.etcd, own.join("etcd"));
        assert_eq!(
            found.kube_controller_manager,
            built.join("kube-controller-manager")
        );

        let error = Assets::find_in(None, &built).unwrap_err().to_string();
        assert!(error.contains("kube-apiserver is not in") && error.contains("tests/tools/real-kubernetes"));
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(minor("Kubernetes v1.20.2\n"), Some(20));
        assert_eq!(minor("Kubernetes v1.36.0-rc.1"), Some(36));
        assert_eq!(minor("nonsense"), None);
        assert!(built_folder().unwrap().starts_with("v1."));
    }
}
