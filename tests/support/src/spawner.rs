//! One thread that starts every child process.
//!
//! The kernel delivers a parent-death signal when the *thread* that forked ends, and a runtime may end a worker at
//! any time. This thread lives as long as the process, so a child is killed exactly when the test process is gone,
//! even if that one was killed with SIGKILL.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// In util-linux, which Debian always has. `exec`s the program, so the process id is the program's own.
const SETPRIV: &str = "/usr/bin/setpriv";

/// Runs the program unless this process ended before the parent-death signal was set: then the child has another
/// parent already, and the kernel will never send that signal.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

type Job = Box<dyn FnOnce() + Send>;

static JOBS: LazyLock<Sender<Job>> = LazyLock::new(|| {
    let (jobs, inbox) = channel::<Job>();
    thread::spawn(move || inbox.into_iter().for_each(|job| job()));
    jobs
});

/// A command that runs `program` so that it dies with this process, in a process group of its own (a Ctrl-C in the
/// terminal reaches the test alone, which then ends its children in order).
pub(crate) fn command(program: &Path) -> Command {
    let mut command = if Path::new(SETPRIV).exists() {
        let mut command = Command::new(SETPRIV);
        command
            .args(["--pdeathsig", "KILL", "--", "/bin/sh", "-c", UNLESS_ORPHANED])
            .arg(std::process::id().to_string())
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    command.process_group(0);
    command
}

/// Starts `command` from the thread that never ends.
pub(crate) fn spawn(mut command: Command) -> io::Result<Child> {
    let (reply, answer) = channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    JOBS.send(Box::new(move || {
        // This waits for exactly that.
        let _ = reply.send(command.spawn());
    }))
    .map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}
