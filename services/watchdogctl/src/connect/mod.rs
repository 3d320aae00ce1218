//! How the programs are reached: by address, or through the API server of the seed.

mod address;
pub(crate) mod inspect;
mod port_forward;
pub(crate) mod release;
pub(crate) mod seed;
pub(crate) mod seeds;
pub(crate) mod tls;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonic::transport::Channel;
use watchdog_client::failure::chain;
use watchdog_client::grpc_client::{ByteStream, Dialer};

use crate::args::ConnectArgs;
use crate::error::{CommandError, CommandResult};
use crate::pods::ProgramPods;
use crate::program::Program;

use port_forward::{GRPC_PORT, PortForward};
use seed::SeedReader;
use tls::CallerCertificate;

/// Opens channels to the programs.
#[derive(Clone)]
pub(crate) struct ProgramDialer {
    args: ConnectArgs,
    /// None if nothing of it is needed.
    seed: Option<SeedReader>,
    /// None if addresses are given.
    forward: Option<PortForward>,
    /// None for plaintext. A Secret that cannot be used fails calls only: what the API server of the seed says about
    /// the release is shown all the same.
    certificate: CommandResult<Option<CallerCertificate>>,
    /// The replicas that are left to try, in this order. All calls use the channel to the first one: a program accepts
    /// few connections of one certificate.
    channels: Arc<Mutex<BTreeMap<Program, VecDeque<OpenChannel>>>>,
}

/// A channel to a replica.
#[derive(Clone)]
pub(crate) struct OpenChannel {
    pub(crate) replica: String,
    pub(crate) channel: Channel,
}

impl ProgramDialer {
    /// Reads certificates and, where a port is forwarded, finds the release on the seed of the kubeconfig.
    ///
    /// # Errors
    /// When a file cannot be used, no release is found, or neither certificates nor plaintext are asked for.
    pub(crate) async fn open(args: &ConnectArgs) -> CommandResult<Self> {
        let seed = if args.has_addresses() && args.tls_secret.is_none() {
            None
        } else {
            Some(SeedReader::open(args).await?)
        };
        Self::on(seed, args.clone()).await
    }

    /// The same with the release and the certificate as they are now: a program fills the Secret of the chart late, and
    /// replaces it every 8 h. What they were before, while the seed does not say.
    pub(crate) async fn renewed(&self) -> Self {
        let renewed = Self::on(self.seed.clone(), self.args.clone()).await;
        renewed.unwrap_or_else(|_| self.clone())
    }

    async fn on(seed: Option<SeedReader>, args: ConnectArgs) -> CommandResult<Self> {
        let release = match &seed {
            Some(seed) if !args.has_addresses() => Some(release::find(seed, &args).await?),
            _ => None,
        };
        let certificate = CallerCertificate::read(&args, seed.as_ref(), release.as_ref()).await;
        if release.is_none() {
            certificate.clone()?;
        }
        let forward = seed.clone().zip(release.map(Arc::new));
        Ok(Self {
            args,
            seed,
            forward: forward.map(|(seed, release)| PortForward { seed, release }),
            certificate,
            channels: Arc::default(),
        })
    }

    /// The programs of the seed: those that were installed or, with addresses, those that are named.
    pub(crate) fn installed(&self) -> impl Iterator<Item = Program> {
        let is_known = move |program: &Program| match &self.forward {
            None => !self.args.addresses(*program).is_empty(),
            Some(forward) => forward.release.includes(*program),
        };
        Program::ALL.into_iter().filter(is_known)
    }

    /// Those of them that are not scaled to 0.
    pub(crate) fn programs(&self) -> impl Iterator<Item = Program> {
        let desired = move |program| self.forward.as_ref()?.release.desired(program).or(Some(0));
        self.installed()
            .filter(move |program| desired(*program) != Some(0))
    }

    /// All Pods of the release, whatever they do; none with addresses.
    ///
    /// # Errors
    /// When the API server of the seed does not list them.
    pub(crate) async fn pods(&self) -> CommandResult<Option<Vec<ProgramPods>>> {
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
    pub(crate) async fn replicas(&self, program: Program) -> CommandResult<Vec<String>> {
        match &self.forward {
            None => address::resolved(&self.args, program).await,
            Some(forward) => forward.answering_pods(program).await,
        }
    }

    /// The channel to the replica that is tried first. A lost connection is opened again.
    ///
    /// # Errors
    /// When there is no replica or the names cannot be used.
    pub(crate) async fn channel(&self, program: Program) -> CommandResult<OpenChannel> {
        let first = self.channels().get(&program).and_then(VecDeque::front).cloned();
        if let Some(first) = first {
            return Ok(first);
        }
        let replicas = self.replicas(program).await?.into_iter();
        let channels = replicas.map(|replica| {
            let channel = self.channel_to(program, &replica)?;
            Ok(OpenChannel { replica, channel })
        });
        let listed: VecDeque<OpenChannel> = channels.collect::<CommandResult<_>>()?;
        let mut channels = self.channels();
        let left = channels.entry(program).or_default();
        // Unless another call has listed them meanwhile: both use one connection.
        if left.is_empty() {
            *left = listed;
        }
        let none = || CommandError::unexpected("a program without replicas has no error");
        left.front().cloned().ok_or_else(none)
    }

    /// The next calls go to another replica than this one, which does not answer or refuses more. After the last one,
    /// the replicas are listed again.
    pub(crate) fn pass_over(&self, program: Program, replica: &str) {
        let mut channels = self.channels();
        let left = channels.entry(program).or_default();
        left.retain(|other| other.replica != replica);
    }

    fn channels(&self) -> MutexGuard<'_, BTreeMap<Program, VecDeque<OpenChannel>>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel to one replica, which connects at the first call.
    ///
    /// # Errors
    /// When the names cannot be used.
    pub(crate) fn channel_to(&self, program: Program, replica: &str) -> CommandResult<Channel> {
        // A channel holds no other channel.
        let this = Self {
            channels: Arc::default(),
            ..self.clone()
        };
        let dialer = Dialer {
            tls: self.certificate.clone()?.map(|certificate| certificate.tls),
            server_name: self.server_name(program),
        };
        let replica = replica.to_owned();
        let connect = move |_| {
            let (this, replica) = (this.clone(), replica.clone());
            async move { this.connect(&replica).await }
        };
        // Only a placeholder: `connect` knows the address.
        let authority = format!("{program}:{GRPC_PORT}");
        dialer.channel_over(&authority, connect).map_err(|error| {
            CommandError::usage(chain(&error), "correct --tls-server-name, --name or --namespace")
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
}

#[cfg(test)]
mod tests;
