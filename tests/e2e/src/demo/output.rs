//! The output of the demo.

use std::io::Write;
use std::time::Instant;

/// Prints lines with the time since the start.
#[derive(Debug, Clone, Copy)]
pub(super) struct TimedOutput {
    started: Instant,
}

impl TimedOutput {
    pub(super) fn start() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    pub(super) fn line(&self, text: impl AsRef<str>) {
        self.plain(&format!(
            "{:6.2} s  {}\n",
            self.started.elapsed().as_secs_f64(),
            text.as_ref()
        ));
    }

    pub(super) fn title(&self, text: &str) {
        self.plain(&format!("\n--- {text}\n"));
    }

    /// The demo goes on if the reader is gone.
    pub(super) fn plain(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}
