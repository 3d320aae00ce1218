//! One thread that starts every child process.
//!
//! The kernel delivers a parent-death signal when the *thread* that forked ends, and a runtime may end a worker at
//! any time. This thread lives as long as the process, so a child is killed exactly when the test process is gone,
//! even if that one was killed with SIGKILL.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// In util-linux, which Debian always has. `exec`s the program, so the process id is the program's own.
const SETPRIV: &str = "/usr/bin/setpriv";

struct SpawnRequest {
    command: Command,
    reply: Sender<io::Result<Child>>,
}

static REQUESTS: OnceLock<Sender<SpawnRequest>> = OnceLock::new();

/// A command that runs `program` so that it dies with this process, in a process group of its own (a Ctrl-C in the
/// terminal reaches the test alone, which then ends its children in order).
pub(crate) fn command(program: &Path) -> Command {
    let mut command = if Path::new(SETPRIV).exists() {
        let mut command = Command::new(SETPRIV);
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.process_group(0);
    command
}

/// Starts `command` from the thread that never ends.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let (reply, answer) = channel();
    let gone = || io::Error::other("the thread that starts processes is gone");
    REQUESTS
        .get_or_init(start_thread)
        .send(SpawnRequest { command, reply })
        .map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn start_thread() -> Sender<SpawnRequest> {
    let (requests, inbox) = channel::<SpawnRequest>();
    let body = move || {
        for mut request in inbox {
            // The receiver waits for exactly this; if it is gone, nobody owns the child: dropping it here would
            // leave it running.
            if let Err(unsent) = request.reply.send(request.command.spawn())
                && let Ok(mut child) = unsent.0
            {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    };
    // Without a thread the inbox is dropped, and every spawn says so.
    let _ = thread::Builder::new()
        .name("process-spawner".to_owned())
        .spawn(body);
    requests
}
