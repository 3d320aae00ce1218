//! How the programs are reached: by address, or through the API server of the seed.

mod address;
pub(crate) mod inspect;
mod port_forward;
pub(crate) mod release;
pub(crate) mod seed;
pub(crate) mod seeds;
pub(crate) mod tls;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tonic::transport::Channel;
use watchdog_client::failure::chain;
use watchdog_client::grpc_client::{ByteStream, Dialer};

use crate::args::ConnectArgs;
use crate::error::CommandError;
use crate::pods::ProgramPods;
use crate::program::Program;

use port_forward::PortForward;
use seed::SeedReader;
use tls::CallerCertificate;

/// The port of the gRPC API in a pod.
const GRPC_PORT: u16 = 9645;

/// A replica is given this time before the next one is tried beside it. It is enough for a distant seed.
const HEAD_START: Duration = Duration::from_secs(2);

/// Opens channels to the programs.
#[derive(Clone)]
pub(crate) struct ProgramDialer {
    args: ConnectArgs,
    /// None if addresses are given.
    forward: Option<PortForward>,
    /// None for plaintext. A Secret that cannot be used fails calls only: what the API server of the seed says about
    /// the release is shown all the same.
    certificate: Result<Option<CallerCertificate>, CommandError>,
    /// Those that are open. A program accepts few connections of one certificate.
    channels: Arc<Mutex<BTreeMap<Program, OpenChannel>>>,
}

/// A channel to any replica of a program.
#[derive(Clone)]
pub(crate) struct OpenChannel {
    pub(crate) channel: Channel,
    program: Program,
    /// The place of the replica that its connections try first.
    first: usize,
}

impl ProgramDialer {
    /// Reads certificates and, where a port is forwarded, finds the release on the seed of the kubeconfig.
    ///
    /// # Errors
    /// When a file cannot be used, no release is found, or neither certificates nor plaintext are asked for.
    pub(crate) async fn open(args: &ConnectArgs) -> Result<Self, CommandError> {
        let seed = if args.has_addresses() && args.tls_secret.is_none() {
            None
        } else {
            Some(SeedReader::open(args).await?)
        };
        let release = match &seed {
            Some(seed) if !args.has_addresses() => Some(release::find(seed, args).await?),
            _ => None,
        };
        let certificate = CallerCertificate::read(args, seed.as_ref(), release.as_ref()).await;
        if release.is_none() {
            certificate.clone()?;
        }
        Ok(Self {
            args: args.clone(),
            forward: seed
                .zip(release)
                .map(|(seed, release)| PortForward::new(seed, release)),
            certificate,
            channels: Arc::default(),
        })
    }

    /// The programs that can be asked: those with replicas or, with addresses, those that are named.
    pub(crate) fn programs(&self) -> impl Iterator<Item = Program> {
        let is_known = move |program: &Program| match &self.forward {
            None => !self.args.addresses(*program).is_empty(),
            Some(forward) => forward
                .release
                .desired(*program)
                .is_some_and(|desired| desired > 0),
        };
        Program::ALL.into_iter().filter(is_known)
    }

    /// All Pods of the release, whatever they do; none with addresses.
    ///
    /// # Errors
    /// When the API server of the seed does not list them.
    pub(crate) async fn pods(&self) -> Result<Option<Vec<ProgramPods>>, CommandError> {
        match &self.forward {
            None => Ok(None),
            Some(forward) => forward.programs().await.map(Some),
        }
    }

    /// The own certificate; none with plaintext.
    ///
    /// # Errors
    /// When it cannot be used, so the programs cannot be called.
    pub(crate) fn certificate(&self) -> Result<Option<&CallerCertificate>, &CommandError> {
        self.certificate.as_ref().map(Option::as_ref)
    }

    /// The replicas that take calls: the addresses of a program, or the names of its pods, the ready ones first.
    ///
    /// # Errors
    /// When there are none, or they are not known.
    pub(crate) async fn replicas(&self, program: Program) -> Result<Vec<String>, CommandError> {
        match &self.forward {
            None => address::resolved(&self.args, program).await,
            Some(forward) => forward.answering_pods(program).await,
        }
    }

    /// The channel to any replica. A lost connection goes to another one.
    ///
    /// # Errors
    /// When there is no replica or the names cannot be used.
    pub(crate) async fn channel(&self, program: Program) -> Result<OpenChannel, CommandError> {
        if let Some(open) = self.channels().get(&program) {
            return Ok(open.clone());
        }
        // Now, because within a connection there is less time to find out why there is none.
        self.replicas(program).await?;
        self.open_channel(program, 0)
    }

    /// The next calls go to another replica than those over this channel, which has refused one.
    ///
    /// # Errors
    /// When the names cannot be used.
    pub(crate) fn pass_over(&self, refused: &OpenChannel) -> Result<(), CommandError> {
        let open = self.channels().get(&refused.program).map(|open| open.first);
        // Unless another call has done so.
        if open == Some(refused.first) {
            self.open_channel(refused.program, refused.first + 1)?;
        }
        Ok(())
    }

    fn channels(&self) -> MutexGuard<'_, BTreeMap<Program, OpenChannel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_channel(&self, program: Program, first: usize) -> Result<OpenChannel, CommandError> {
        // A channel holds no other channel.
        let this = Self {
            channels: Arc::default(),
            ..self.clone()
        };
        let handshakes = self.dialer(program)?;
        let dialer = Dialer {
            tls: None,
            ..handshakes.clone()
        };
        let connect = move |_| this.clone().connect_any(program, first, handshakes.clone());
        let open = OpenChannel {
            channel: channel_over(&dialer, program, connect)?,
            program,
            first,
        };
        self.channels().insert(program, open.clone());
        Ok(open)
    }

    /// A connection to the first replica that takes one and proves who it is: behind a port-forward, a connection to a
    /// program that crashed or hangs is opened, too.
    async fn connect_any(
        self,
        program: Program,
        first: usize,
        handshakes: Dialer,
    ) -> io::Result<Box<dyn ByteStream>> {
        let mut replicas = self.replicas(program).await.map_err(io::Error::other)?;
        let first = first % replicas.len().max(1);
        replicas.rotate_left(first);
        let mut replicas = replicas.iter();
        let mut attempts = FuturesUnordered::new();
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        loop {
            let ended = match replicas.next() {
                Some(replica) => {
                    let connection = self.connect(replica);
                    attempts.push(async { handshakes.secure(connection.await?).await });
                    match timeout(HEAD_START, attempts.next()).await {
                        Ok(ended) => ended,
                        Err(_) => continue,
                    }
                }
                // Until the whole takes too long.
                None => attempts.next().await,
            };
            match ended {
                Some(Ok(connection)) => return Ok(connection),
                Some(Err(error)) => last = error,
                None => return Err(last),
            }
        }
    }

    /// A channel to one replica.
    ///
    /// # Errors
    /// When the names cannot be used.
    pub(crate) fn channel_to(&self, program: Program, replica: &str) -> Result<Channel, CommandError> {
        let (this, replica) = (self.clone(), replica.to_owned());
        channel_over(&self.dialer(program)?, program, move |_| {
            let (this, replica) = (this.clone(), replica.clone());
            async move { this.connect(&replica).await }
        })
    }

    /// A connection to one replica, before TLS.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) async fn connect(&self, replica: &str) -> io::Result<Box<dyn ByteStream>> {
        match &self.forward {
            None => address::connect(replica).await,
            Some(forward) => forward.connect(replica).await,
        }
    }

    /// The name that a program's certificate must carry.
    fn server_name(&self, program: Program) -> String {
        let (name, namespace) = match &self.forward {
            Some(forward) => (Some(&forward.release.name), Some(&forward.release.namespace)),
            None => (self.args.name.as_ref(), self.args.namespace.as_ref()),
        };
        let name = name.map_or(release::NAME, |name| name);
        let namespace = namespace.map_or(release::NAMESPACE, |namespace| namespace);
        let of_chart = || format!("{name}-{program}.{namespace}.svc");
        self.args.tls_server_name.clone().unwrap_or_else(of_chart)
    }

    fn dialer(&self, program: Program) -> Result<Dialer, CommandError> {
        Ok(Dialer {
            tls: self.certificate.clone()?.map(|certificate| certificate.tls),
            server_name: self.server_name(program),
        })
    }
}

fn channel_over<C, F, S>(dialer: &Dialer, program: Program, connect: C) -> Result<Channel, CommandError>
where
    C: Fn(String) -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<S>> + Send,
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Only a placeholder: `connect` knows the address.
    let authority = format!("{program}:{GRPC_PORT}");
    dialer.channel_over(&authority, connect).map_err(|error| {
        CommandError::usage(chain(&error), "correct --tls-server-name, --name or --namespace")
    })
}

#[cfg(test)]
mod tests;
