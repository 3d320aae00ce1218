//! etcd on loopback, without fsync: its data is thrown away.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::Assets;
use crate::http_exchange::exchange;
use crate::ports::{free_port, start_on_free_ports};
use crate::process::{ChildProcess, Command};
use crate::scratch::Scratch;

/// The keys of [`Etcd::fill`] begin with this, which stands for three other characters in base64.
const FILLER: &str = "ZmlsbGVy";

#[derive(Debug)]
pub struct Etcd {
    /// Of all members, separated by commas.
    pub(super) url: String,
    members: Vec<EtcdMember>,
    scratch: Arc<Scratch>,
}

#[derive(Debug)]
struct EtcdMember {
    url: String,
    data: PathBuf,
    command: Command,
    /// Held for its end: dropping it kills the member.
    process: Mutex<Arc<ChildProcess>>,
}

// === impl Etcd ===

impl Etcd {
    /// Starts this many members with these flags.
    pub(super) async fn start(
        assets: &Assets,
        scratch: &Arc<Scratch>,
        members: usize,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        start_on_free_ports(|| async {
            let etcd = Self::spawn(assets, scratch, members, flags)?;
            etcd.wait_listening().await?;
            Ok(etcd)
        })
        .await
    }

    fn spawn(
        assets: &Assets,
        scratch: &Arc<Scratch>,
        members: usize,
        flags: &[&str],
    ) -> anyhow::Result<Self> {
        let address = || anyhow::Ok(format!("http://127.0.0.1:{}", free_port()?));
        // One that starts again on other ports must not find the data of its first start.
        let start = rand::random::<u32>();
        let addresses = (0..members)
            .map(|index| anyhow::Ok((format!("etcd-{start}-{index}"), address()?, address()?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let cluster: Vec<_> = addresses
            .iter()
            .map(|(name, _, peer)| format!("{name}={peer}"))
            .collect();
        let start = |(name, url, peer): &(String, String, String)| {
            let data = scratch.join(name);
            let command = Command::new(name.clone(), &assets.etcd)
                .arg(format!("--name={name}"))
                .arg(format!("--data-dir={}", data.display()))
                .arg(format!("--listen-client-urls={url}"))
                .arg(format!("--advertise-client-urls={url}"))
                .arg(format!("--listen-peer-urls={peer}"))
                .arg(format!("--initial-advertise-peer-urls={peer}"))
                .arg(format!("--initial-cluster={}", cluster.join(",")))
                .args(["--unsafe-no-fsync", "--log-level=warn"])
                .args(flags);
            let process = Mutex::new(Arc::new(command.spawn(scratch)?));
            anyhow::Ok(EtcdMember {
                url: url.clone(),
                data,
                command,
                process,
            })
        };
        let members = addresses.iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let urls: Vec<_> = members.iter().map(|member| member.url.as_str()).collect();
        Ok(Self {
            url: urls.join(","),
            members,
            scratch: scratch.clone(),
        })
    }

    async fn wait_listening(&self) -> anyhow::Result<()> {
        for member in &self.members {
            let address = member.url.strip_prefix("http://").unwrap_or_default();
            let process = member.process.lock().clone();
            process
                .wait_until("it listens", || async {
                    Ok(TcpStream::connect(address).await.is_ok())
                })
                .await?;
        }
        Ok(())
    }

    fn member(&self) -> anyhow::Result<&EtcdMember> {
        self.members.first().context("etcd without members")
    }

    /// Forgets all revisions but the newest.
    pub async fn compact(&self) -> anyhow::Result<()> {
        let member = self.member()?;
        let range = json!({"key": "AA==", "range_end": "AA==", "limit": "1", "keys_only": true});
        let answer = call(&member.url, "/v3/kv/range", &range).await?;
        let revision = answer.pointer("/header/revision").and_then(Value::as_str);
        let revision = revision.context("etcd tells no revision")?;
        call(
            &member.url,
            "/v3/kv/compaction",
            &json!({"revision": revision, "physical": true}),
        )
        .await?;
        Ok(())
    }

    /// Writes until etcd refuses the writes of every client for want of space. Reads are answered as before.
    pub async fn fill(&self) -> anyhow::Result<()> {
        let member = self.member()?;
        // In base64, like the keys.
        let value = "AAAA".repeat(1 << 18);
        for number in 0..1_000 {
            let put = json!({"key": format!("{FILLER}{number:04}"), "value": value});
            match call(&member.url, "/v3/kv/put", &put).await {
                Ok(_) => {}
                Err(error) if error.to_string().contains("database space exceeded") => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        bail!("etcd takes a gigabyte")
    }

    /// Undoes [`fill`](Self::fill), as an operator does.
    pub async fn make_room(&self) -> anyhow::Result<()> {
        let member = self.member()?;
        let (url, begin, end) = (&member.url, format!("{FILLER}0000"), format!("{FILLER}9999"));
        call(
            url,
            "/v3/kv/deleterange",
            &json!({"key": begin, "range_end": end}),
        )
        .await?;
        self.compact().await?;
        call(url, "/v3/maintenance/defragment", &json!({})).await?;
        let status = call(url, "/v3/maintenance/status", &json!({})).await?;
        let member = status
            .pointer("/header/member_id")
            .context("etcd without an id")?;
        let disarm = json!({"action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE"});
        call(url, "/v3/maintenance/alarm", &disarm).await?;
        Ok(())
    }

    /// Copies the data of the only member. It is stopped meanwhile: etcd offers a snapshot while it runs, but what
    /// makes a member of one (etcdctl, etcdutl) is not among the assets.
    pub async fn back_up(&self, name: &str) -> anyhow::Result<EtcdBackup> {
        let backup = EtcdBackup(self.scratch.join(name));
        self.while_stopped(|data| copy_folder(data, &backup.0)).await?;
        Ok(backup)
    }

    /// Puts a copy back. Revisions go on from those of the backup, as after a restore from a snapshot.
    pub async fn restore(&self, backup: &EtcdBackup) -> anyhow::Result<()> {
        self.while_stopped(|data| {
            fs::remove_dir_all(data)?;
            copy_folder(&backup.0, data)
        })
        .await
    }

    async fn while_stopped(&self, act: impl FnOnce(&Path) -> std::io::Result<()>) -> anyhow::Result<()> {
        let [member] = self.members.as_slice() else {
            bail!("the backup of one member is no backup of several");
        };
        let running = member.process.lock().clone();
        running.kill_9().await?;
        act(&member.data).context("copy the data of etcd")?;
        *member.process.lock() = Arc::new(member.command.spawn(&self.scratch)?);
        self.wait_listening().await
    }

    /// Kills the leader and starts it again; the others have elected another one by then, or do now.
    pub async fn kill_leader(&self) -> anyhow::Result<()> {
        for member in &self.members {
            let status = call(&member.url, "/v3/maintenance/status", &json!({})).await?;
            let own = status.pointer("/header/member_id");
            if own.is_none() || own != status.pointer("/leader") {
                continue;
            }
            let leader = member.process.lock().clone();
            leader.kill_9().await?;
            *member.process.lock() = Arc::new(member.command.spawn(&self.scratch)?);
            return Ok(());
        }
        bail!("etcd has no leader")
    }
}

/// The data of etcd at an earlier time.
#[derive(Debug)]
pub struct EtcdBackup(PathBuf);

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir(to)?;
    // As etcd wants it.
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// A call of etcd's API in JSON.
async fn call(url: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
    let address = url.strip_prefix("http://").context("etcd without TLS")?;
    let tcp = TcpStream::connect(address).await?;
    let (code, body) = exchange(tcp, "POST", path, &body.to_string()).await?;
    anyhow::ensure!(code == 200, "{path}: {code}: {body}");
    // It may come in chunks.
    let begin = body.find('{').context("no JSON in the answer")?;
    let end = body.rfind('}').context("no JSON in the answer")?;
    Ok(serde_json::from_str(body.get(begin..=end).unwrap_or_default())?)
}
