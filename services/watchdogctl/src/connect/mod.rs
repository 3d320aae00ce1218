//! How the programs are reached: by address, or through the API server of the seed.

mod address;
pub(crate) mod inspect;
mod pod_stream;
mod port_forward;
pub(crate) mod tls;

use std::fmt::{self, Display, Formatter};
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

use address::Addresses;
use port_forward::PortForward;

/// The port of the gRPC API in a pod.
const GRPC_PORT: u16 = 9645;

/// A program of the watchdog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Program {
    LeaseProbe,
    ScalingCoordinator,
    Weeder,
}

impl Program {
    pub(crate) const ALL: [Self; 3] = [Self::LeaseProbe, Self::ScalingCoordinator, Self::Weeder];

    /// Its name: of its image, its option and the last part of its objects.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseProbe => "lease-probe",
            Self::ScalingCoordinator => "scaling-coordinator",
            Self::Weeder => "weeder",
        }
    }

    /// The full name of its gRPC service.
    pub(crate) const fn grpc_service(self) -> &'static str {
        match self {
            Self::LeaseProbe => "gardener.watchdog.probe.v1.LeaseProbeService",
            Self::ScalingCoordinator => "gardener.watchdog.scaling.v1.ScalingService",
            Self::Weeder => "gardener.watchdog.weeder.v1.WeederService",
        }
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

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
    route: Route,
    tls: Option<ClientTls>,
    /// From when to when the own certificate is valid, if that can be read.
    validity: Option<ValidityPeriod>,
    /// The names that the programs' certificates must carry, in the order of [`Program::ALL`].
    server_names: [String; 3],
}

#[derive(Clone)]
enum Route {
    Addresses(Addresses),
    PortForward(PortForward),
}

impl ProgramDialer {
    /// Reads certificates and, where a port is forwarded, the kubeconfig.
    ///
    /// # Errors
    /// When a file cannot be used, or neither certificates nor plaintext are asked for.
    pub(crate) async fn open(args: &ConnectArgs) -> Result<Self, CommandError> {
        let addresses = Addresses::of(args);
        let forward = match (&addresses, &args.tls_secret) {
            (Some(_), None) => None,
            _ => Some(PortForward::open(args).await?),
        };
        let names = Program::ALL.map(|program| server_name(args, program));
        let (tls, validity) = tls::of(args, forward.as_ref(), &names).await?.unzip();
        let route = match (addresses, forward) {
            (Some(addresses), _) => Route::Addresses(addresses),
            (None, Some(forward)) => Route::PortForward(forward),
            (None, None) => {
                return Err(CommandError::usage(
                    "neither an address nor a kubeconfig",
                    "name one",
                ));
            }
        };
        Ok(Self {
            route,
            tls,
            validity: validity.flatten(),
            server_names: names,
        })
    }

    /// True if the program can be asked at all: with addresses, only those that are named.
    pub(crate) fn knows(&self, program: Program) -> bool {
        match &self.route {
            Route::Addresses(addresses) => !addresses.of_program(program).is_empty(),
            Route::PortForward(_) => true,
        }
    }

    /// All replicas that can be found: those behind the addresses, or the ready pods.
    ///
    /// # Errors
    /// When there is none, or the addresses or pods cannot be looked up.
    pub(crate) async fn replicas(&self, program: Program) -> Result<Vec<ReplicaEndpoint>, CommandError> {
        let names = match &self.route {
            Route::Addresses(addresses) => addresses.resolved(program).await?,
            Route::PortForward(forward) => forward.ready_pods(program).await?,
        };
        let endpoint = |name| ReplicaEndpoint { name, program };
        Ok(names.into_iter().map(endpoint).collect())
    }

    /// A channel to any replica. A lost connection goes to another one.
    ///
    /// # Errors
    /// When there is no replica or the names cannot be used.
    pub(crate) async fn channel(&self, program: Program) -> Result<Channel, CommandError> {
        match &self.route {
            Route::Addresses(addresses) => {
                let known: Arc<[String]> = addresses.required(program)?.into();
                self.channel_over(program, move |_| address::connect_any(known.clone()))
            }
            Route::PortForward(forward) => {
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
        match &self.route {
            Route::Addresses(_) => address::connect(&endpoint.name).await,
            Route::PortForward(forward) => forward.connect(&endpoint.name).await,
        }
    }

    /// The validity of the own certificate; none with plaintext.
    pub(crate) const fn validity(&self) -> Option<ValidityPeriod> {
        self.validity
    }

    /// The name that a program's certificate must carry.
    pub(crate) fn server_name(&self, program: Program) -> String {
        let [lease_probe, scaling_coordinator, weeder] = &self.server_names;
        match program {
            Program::LeaseProbe => lease_probe.clone(),
            Program::ScalingCoordinator => scaling_coordinator.clone(),
            Program::Weeder => weeder.clone(),
        }
    }

    fn channel_over<C, F>(&self, program: Program, connect: C) -> Result<Channel, CommandError>
    where
        C: Fn(String) -> F + Clone + Send + 'static,
        F: Future<Output = io::Result<Box<dyn Transport>>> + Send,
    {
        let dialer = Dialer {
            tls: self.tls.clone(),
            server_name: self.server_name(program),
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
