//! How the programs are reached: by address, or through the API server of the seed.

mod address;
pub(crate) mod inspect;
mod port_forward;
pub(crate) mod tls;

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tonic::transport::Channel;
use watchdog_certificates::ValidityPeriod;
use watchdog_client::failure::chain;
use watchdog_client::grpc_client::Dialer;
use watchdog_client::tls::ClientTls;

use crate::args::ConnectArgs;
use crate::error::CommandError;
use crate::program::Program;

use port_forward::PortForward;
pub(crate) use port_forward::seed;

/// The port of the gRPC API in a pod.
const GRPC_PORT: u16 = 9645;

/// A connection before TLS.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// One replica: its name for people, and how to connect to it.
#[derive(Debug, Clone)]
pub(crate) struct ReplicaEndpoint {
    /// The name of its pod, or its address.
    pub(crate) name: String,
    program: Program,
}

/// Opens channels to the programs.
#[derive(Clone)]
pub(crate) struct ProgramDialer {
    args: ConnectArgs,
    /// None if addresses are given.
    forward: Option<PortForward>,
    tls: Option<ClientTls>,
    /// From when to when the own certificate is valid, if that can be read.
    validity: Option<ValidityPeriod>,
}

impl ProgramDialer {
    /// Reads certificates and, where a port is forwarded, the kubeconfig.
    ///
    /// # Errors
    /// When a file cannot be used, or neither certificates nor plaintext are asked for.
    pub(crate) async fn open(args: &ConnectArgs) -> Result<Self, CommandError> {
        let has_addresses = Program::ALL
            .iter()
            .any(|program| !args.addresses(*program).is_empty());
        let seed = match &args.tls_secret {
            None if has_addresses => None,
            _ => Some(PortForward::open(args).await?),
        };
        let (tls, validity) = tls::of(args, seed.as_ref()).await?.unzip();
        Ok(Self {
            args: args.clone(),
            forward: seed.filter(|_| !has_addresses),
            tls,
            validity: validity.flatten(),
        })
    }

    /// The programs that can be asked: with addresses, only those that are named.
    pub(crate) fn programs(&self) -> impl Iterator<Item = Program> {
        let is_known =
            move |program: &Program| self.forward.is_some() || !self.args.addresses(*program).is_empty();
        Program::ALL.into_iter().filter(is_known)
    }

    /// All replicas that can be found: those behind the addresses, or the ready pods.
    ///
    /// # Errors
    /// When there is none, or the addresses or pods cannot be looked up.
    pub(crate) async fn replicas(&self, program: Program) -> Result<Vec<ReplicaEndpoint>, CommandError> {
        let names = match &self.forward {
            None => address::resolved(&self.args, program).await?,
            Some(forward) => forward.ready_pods(program).await?,
        };
        let endpoint = |name| ReplicaEndpoint { name, program };
        Ok(names.into_iter().map(endpoint).collect())
    }

    /// A channel to any replica. A lost connection goes to another one.
    ///
    /// # Errors
    /// When there is no replica or the names cannot be used.
    pub(crate) async fn channel(&self, program: Program) -> Result<Channel, CommandError> {
        match &self.forward {
            None => {
                let known: Arc<[String]> = address::required(&self.args, program)?.into();
                self.channel_over(program, move |_| address::connect_any(known.clone()))
            }
            Some(forward) => {
                // Now, because an error of this call says more than one within a connection.
                let first = forward.ready_pods(program).await?;
                let forward = forward.remembering(first);
                self.channel_over(program, move |_| forward.clone().connect_any(program))
            }
        }
    }

    /// A channel to one replica.
    ///
    /// # Errors
    /// When the names cannot be used.
    pub(crate) fn channel_to(&self, endpoint: &ReplicaEndpoint) -> Result<Channel, CommandError> {
        let (this, endpoint) = (self.clone(), endpoint.clone());
        self.channel_over(endpoint.program, move |_| {
            let (this, endpoint) = (this.clone(), endpoint.clone());
            async move { this.connect(&endpoint).await }
        })
    }

    /// A connection to one replica, before TLS.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) async fn connect(&self, endpoint: &ReplicaEndpoint) -> io::Result<Box<dyn Transport>> {
        match &self.forward {
            None => address::connect(&endpoint.name).await,
            Some(forward) => forward.connect(&endpoint.name).await,
        }
    }

    /// The validity of the own certificate; none with plaintext.
    pub(crate) const fn validity(&self) -> Option<ValidityPeriod> {
        self.validity
    }

    fn channel_over<C, F>(&self, program: Program, connect: C) -> Result<Channel, CommandError>
    where
        C: Fn(String) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<Box<dyn Transport>>> + Send,
    {
        let dialer = Dialer {
            tls: self.tls.clone(),
            server_name: server_name(&self.args, program),
        };
        // Shown nowhere: `connect` knows where to.
        let authority = format!("{program}:{GRPC_PORT}");
        dialer.channel_over(&authority, connect).map_err(|error| {
            CommandError::usage(chain(&error), "correct --tls-server-name, --name or --namespace")
        })
    }
}

/// The name that a program's certificate must carry.
pub(crate) fn server_name(args: &ConnectArgs, program: Program) -> String {
    let of_chart = || format!("{}-{program}.{}.svc", args.name, args.namespace);
    args.tls_server_name.clone().unwrap_or_else(of_chart)
}

#[cfg(test)]
mod tests;
