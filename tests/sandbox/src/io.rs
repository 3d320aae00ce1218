//! The wire under TLS: counts bytes, and can go silent as a black-holed network does.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// Bytes and connections of one API server since it was made.
#[derive(Debug, Default)]
pub struct WireCounters {
    /// Bytes received, TLS included.
    pub received: AtomicU64,
    /// Bytes sent, TLS included.
    pub sent: AtomicU64,
    /// TCP connections accepted.
    pub accepted: AtomicU64,
}

/// Shut, nothing passes in either direction on any connection; open again, everything goes on.
#[derive(Debug, Default)]
pub struct Gate {
    shut: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    /// Stops all traffic.
    pub fn shut(&self) {
        self.shut.store(true, Ordering::SeqCst);
    }

    /// Lets traffic pass again.
    pub fn open(&self) {
        self.shut.store(false, Ordering::SeqCst);
        for waker in std::mem::take(&mut *self.waiting.lock()) {
            waker.wake();
        }
    }

    /// True if traffic is stopped.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    fn poll_open(&self, context: &Context<'_>) -> Poll<()> {
        if !self.shut.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock();
        // `open` may have come between the check and the lock.
        if !self.shut.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// A TCP connection behind the gate and the counters.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    gate: Arc<Gate>,
    counters: Arc<WireCounters>,
}

impl Wire {
    /// Puts a connection behind `gate` and counts its bytes in `counters`.
    pub fn new(stream: TcpStream, gate: Arc<Gate>, counters: Arc<WireCounters>) -> Self {
        Self {
            stream,
            gate,
            counters,
        }
    }
}

/// `usize` always fits on the platforms that Rust supports today.
fn count(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        std::task::ready!(self.gate.poll_open(context));
        let before = buffer.filled().len();
        let result = std::task::ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        let read = buffer.filled().len().saturating_sub(before);
        self.counters.received.fetch_add(count(read), Ordering::Relaxed);
        Poll::Ready(result)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.gate.poll_open(context));
        let result = std::task::ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        if let Ok(written) = result {
            self.counters.sent.fetch_add(count(written), Ordering::Relaxed);
        }
        Poll::Ready(result)
    }

    // TLS hands over many records at once: one system call for all of them.
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.gate.poll_open(context));
        let result = std::task::ready!(Pin::new(&mut self.stream).poll_write_vectored(context, buffers));
        if let Ok(written) = result {
            self.counters.sent.fetch_add(count(written), Ordering::Relaxed);
        }
        Poll::Ready(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
