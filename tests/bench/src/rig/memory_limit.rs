//! A limit on the memory of a process, as kubelet sets it for a container: a cgroup.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;

/// Where the two versions of cgroups have their groups, and the names of their files: limit, most that was used.
const VERSIONS: [(&str, &str, &str); 2] = [
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
];

/// A cgroup with a limit. The kernel ends its process when it needs more. Removed when it is dropped.
#[derive(Debug)]
pub struct MemoryLimit {
    group: PathBuf,
    most_used: PathBuf,
}

impl MemoryLimit {
    /// Puts a running process into a group of its own; memory that it has already stays uncounted.
    pub fn of_process(pid: i32, mib: u64) -> anyhow::Result<Self> {
        let (root, limit, most_used) = VERSIONS
            .into_iter()
            .find(|(root, limit, _)| *limit == "memory.max" || PathBuf::from(root).join(limit).exists())
            .context("no cgroups")?;
        let group = PathBuf::from(root).join(format!("watchdog-bench-{pid}"));
        fs::create_dir(&group).with_context(|| format!("make {}", group.display()))?;
        let made = Self {
            most_used: group.join(most_used),
            group,
        };
        let write = |name: &str, value: String| {
            let path = made.group.join(name);
            fs::write(&path, value).with_context(|| format!("write {}", path.display()))
        };
        write(limit, (mib << 20).to_string())?;
        write("cgroup.procs", pid.to_string())?;
        Ok(made)
    }

    /// The most memory that the process had in it, in MiB.
    pub fn most_used_mib(&self) -> anyhow::Result<f64> {
        let text = fs::read_to_string(&self.most_used)
            .with_context(|| format!("read {}", self.most_used.display()))?;
        Ok(text.trim().parse::<f64>()? / f64::from(1 << 20))
    }
}

impl Drop for MemoryLimit {
    fn drop(&mut self) {
        // A group that still has a process cannot be removed; it costs nothing.
        let _ = fs::remove_dir(&self.group);
    }
}
