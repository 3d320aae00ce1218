//! Child processes that never outlive their test.
//!
//! A [`ChildProcess`] is killed when it is dropped, so also when its test panics, and by the kernel when the test
//! process itself is killed. It is always reaped, so no zombie stays either.

use std::ffi::OsString;
use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as StdCommand, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, kill_process_group, prlimit};
use tokio::time::sleep;

use crate::log::{self, LogReader, LogRecord};
use crate::scratch::Scratch;
use crate::spawner;
use crate::wait::{self, BOUND};

/// How often exits and logs are looked at.
const POLL: Duration = Duration::from_millis(10);

/// Variables that would let a program under test find another cluster than the one its test gives it.
const NOT_INHERITED: [&str; 3] = ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"];

/// The command to run. Can be kept, to start the same program again later.
#[derive(Clone, Debug)]
pub struct Command {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
}

impl Command {
    /// `name` is for people: it is in errors and names the log file.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Replaces the value of an option that was given before.
    pub fn option(mut self, name: &str, value: impl Into<OsString>) -> Self {
        let place = self.arguments.iter().position(|argument| argument == name);
        if let Some(old) = place.and_then(|place| self.arguments.get_mut(place + 1)) {
            *old = value.into();
        }
        self
    }

    /// Sends its output to a device that is always full, so that its log stays empty. A write into any file ends it.
    pub fn onto_full_disk(mut self) -> Self {
        let script = "ulimit -f 0; exec \"$0\" \"$@\" >/dev/full 2>&1";
        let program = std::mem::replace(&mut self.program, "/bin/sh".into());
        self.arguments
            .splice(0..0, ["-c".into(), script.into(), program.into()]);
        self
    }

    /// Sets an environment variable. The rest is inherited, save what names a cluster (`KUBECONFIG` and the like).
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Starts the program. Its standard output and error go to `NAME-N.log` in the scratch folder.
    pub fn spawn(&self, scratch: &Arc<Scratch>) -> anyhow::Result<ChildProcess> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let log = scratch.join(format!("{}-{count}.log", self.name));
        let output = File::create(&log).with_context(|| format!("make {}", log.display()))?;
        if !self.program.is_file() {
            bail!("{}: there is no program {}", self.name, self.program.display());
        }
        let mut command = spawner::command(&self.program);
        self.fill(&mut command, &output)?;
        let child = spawner::spawn(command)
            .with_context(|| format!("start {} ({})", self.name, self.program.display()))?;
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .context("a process id out of range")?;
        let state = Mutex::new(ProcessState { child, exit: None });
        Ok(ChildProcess {
            name: self.name.clone(),
            pid,
            log,
            state,
            scratch: Arc::clone(scratch),
        })
    }

    fn fill(&self, command: &mut StdCommand, output: &File) -> anyhow::Result<()> {
        command
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?);
        for name in NOT_INHERITED {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Ok(())
    }
}

/// A running (or ended) child process with its log. Killed when dropped; the end of its log is printed if the test is
/// panicking then.
#[derive(Debug)]
pub struct ChildProcess {
    name: String,
    pid: Pid,
    log: PathBuf,
    state: Mutex<ProcessState>,
    /// Keeps the folder of the log.
    scratch: Arc<Scratch>,
}

#[derive(Debug)]
struct ProcessState {
    child: Child,
    /// Set once the process was reaped: from then on its id may belong to somebody else.
    exit: Option<ExitStatus>,
}

impl ProcessState {
    fn reap(&mut self) -> std::io::Result<Option<ExitStatus>> {
        if self.exit.is_none() {
            self.exit = self.child.try_wait()?;
        }
        Ok(self.exit)
    }
}

// === impl ChildProcess ===

impl ChildProcess {
    /// The name given to the command.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id.
    pub fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The file that holds its standard output and error.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The test's folder.
    pub fn scratch(&self) -> &Arc<Scratch> {
        &self.scratch
    }

    /// A reader of its log from the first line on.
    pub fn log_reader(&self) -> anyhow::Result<LogReader> {
        LogReader::new(&self.log)
    }

    /// How it ended; `None` while it runs.
    pub fn exit_status(&self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.state.lock().reap()?)
    }

    /// Asks it to stop (SIGTERM). Does nothing when it has ended.
    pub fn sigterm(&self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Interrupts it (SIGINT), as Ctrl-C does. Does nothing when it has ended.
    pub fn sigint(&self) -> anyhow::Result<()> {
        self.signal(Signal::INT)
    }

    /// Freezes it (SIGSTOP): its connections stay open and nobody answers.
    pub fn sigstop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`ChildProcess::sigstop`].
    pub fn sigcont(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Lets it open no file whose number is this or above, and returns the limit until now. What is open stays open.
    pub fn limit_open_files(&self, limit: u64) -> anyhow::Result<u64> {
        let limited = Rlimit {
            current: Some(limit),
            // It has inherited this.
            maximum: getrlimit(Resource::Nofile).maximum,
        };
        prlimit(Some(self.pid), Resource::Nofile, limited)
            .map_err(anyhow::Error::from)
            .and_then(|before| before.current.context("there was no limit"))
            .with_context(|| format!("limit the open files of {}", self.name))
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        // Under the lock, so that nobody reaps it between the look and the signal.
        let mut state = self.state.lock();
        if state.reap()?.is_some() {
            return Ok(());
        }
        kill_process(self.pid, signal).with_context(|| format!("send {signal:?} to {}", self.name))
    }

    /// Kills it (SIGKILL) with everything it started in its process group, and waits until it is gone.
    pub async fn kill_9(&self) -> anyhow::Result<ExitStatus> {
        self.send_kill();
        self.wait_exit(BOUND).await
    }

    fn send_kill(&self) {
        let mut state = self.state.lock();
        if matches!(state.reap(), Ok(Some(_))) {
            return;
        }
        // The group exists from the start of the process until it is reaped, so this cannot fail in a way that
        // matters; if it does, the wait for the exit says so.
        let _ = kill_process_group(self.pid, Signal::KILL);
    }

    /// Waits until it ends, for at most `bound`.
    pub async fn wait_exit(&self, bound: Duration) -> anyhow::Result<ExitStatus> {
        let end = Instant::now() + bound;
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            if Instant::now() >= end {
                return Err(self.error(&format!("still runs after {bound:?}")));
            }
            sleep(POLL).await;
        }
    }

    /// Stops it as Kubernetes does: SIGTERM, `bound` to end, then SIGKILL.
    pub async fn stop(&self, bound: Duration) -> anyhow::Result<ExitStatus> {
        self.sigterm()?;
        let ended = self.wait_exit(bound).await;
        if ended.is_err() {
            self.kill_9().await?;
        }
        ended
    }

    /// Waits until a line of its log (from the first on) gives a value, for at most `bound`.
    pub async fn wait_for_line<T>(
        &self,
        what: &str,
        bound: Duration,
        mut pick: impl FnMut(LogRecord<'_>) -> Option<T>,
    ) -> anyhow::Result<T> {
        let end = Instant::now() + bound;
        let mut reader = self.log_reader()?;
        loop {
            // First the exit, then the log: what it wrote before it ended counts.
            let exit = self.exit_status()?;
            if let Some(value) = reader.find(&mut pick)? {
                return Ok(value);
            }
            if let Some(status) = exit {
                return Err(self.error(&format!("ended ({status}) before {what}")));
            }
            if Instant::now() >= end {
                return Err(self.error(&format!("no {what} within {bound:?}")));
            }
            sleep(POLL).await;
        }
    }

    /// Waits until `probe` holds, for at most [`BOUND`]. An error of the probe counts as "not yet".
    pub async fn wait_until<R>(&self, what: &str, mut probe: impl FnMut() -> R) -> anyhow::Result<()>
    where
        R: Future<Output = anyhow::Result<bool>>,
    {
        let waited = wait::until(what, BOUND, || {
            let look = probe();
            async {
                match self.exit_status()? {
                    Some(status) => Ok(Some(Err(anyhow!("ended ({status}) before {what}")))),
                    None => Ok(look.await?.then_some(Ok(()))),
                }
            }
        });
        let ended = waited.await.flatten();
        ended.map_err(|error| self.error(&format!("{error:#}")))
    }

    /// Waits for a line of its log that contains `text`.
    pub async fn wait_for_text(&self, text: &str, bound: Duration) -> anyhow::Result<()> {
        self.wait_for_line(&format!("line with {text:?}"), bound, |line| {
            line.text.contains(text).then_some(())
        })
        .await
    }

    /// Waits for a JSON log line with this `message` and returns its field `name`: how a test learns the address
    /// that a server bound.
    pub async fn wait_for_field(&self, message: &str, name: &str, bound: Duration) -> anyhow::Result<String> {
        let what = format!("line {message:?} with the field {name:?}");
        self.wait_for_line(&what, bound, |line| {
            if line.is_message(message) {
                line.field(name)
            } else {
                None
            }
        })
        .await
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        log::tail(&self.log)
    }

    fn error(&self, what: &str) -> anyhow::Error {
        anyhow!("{} {what}; its log ends:\n{}", self.name, self.log_tail())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let running = matches!(self.state.lock().reap(), Ok(None));
        self.send_kill();
        // Reaped here and now: a destructor cannot wait for a runtime, and a zombie would stay until the test
        // process ends.
        let end = Instant::now() + BOUND;
        while matches!(self.state.lock().reap(), Ok(None)) && Instant::now() < end {
            thread::sleep(POLL);
        }
        if thread::panicking() {
            let state = if running { "was running" } else { "had ended" };
            eprintln!(
                "--- {} ({state}), the end of its log:\n{}\n---",
                self.name,
                self.log_tail()
            );
        }
    }
}
