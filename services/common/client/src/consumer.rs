//! A client for each service: unary calls with a deadline, and streams that are followed until they are stopped.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Response, Status};
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_proto::weeder::v1 as weeder;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;

use crate::follow::{Received, Update, follow};
use crate::item::Keyed;
use crate::message::MAX_MESSAGE_BYTES;
use crate::open::open;
use crate::wire::WatchResponse;

/// A unary call may take this time. A replica waits at most 10 s for the others.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// Runs a unary call with [`CALL_TIMEOUT`]. Its answer counts as sent when the call began: never later than true.
async fn call<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<Received<T>, Status> {
    let sent_at = Instant::now();
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => Ok(Received {
            value: answer?.into_inner(),
            sent_at,
            set_at: sent_at,
        }),
        Err(_) => Err(Status::deadline_exceeded("no answer within 15 s")),
    }
}

macro_rules! unary {
    ($(#[$doc:meta])* $name:ident($request:ty) -> $answer:ty) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// The status of the server; DEADLINE_EXCEEDED after [`CALL_TIMEOUT`].
        pub async fn $name(&self, request: $request) -> Result<Received<$answer>, Status> {
            let mut api = self.api.clone();
            call(api.$name(request)).await
        }
    };
}

macro_rules! watch {
    ($(#[$doc:meta])* $name:ident($request:ty) -> $answer:ty) => {
        $(#[$doc])*
        /// Resumes lost streams until `stop` is cancelled or the future is dropped. `on_update` must not block.
        pub async fn $name(
            &self,
            request: $request,
            stop: &CancellationToken,
            on_update: impl FnMut(
                Update<
                    <<$answer as WatchResponse>::Item as Keyed>::Key,
                    <$answer as WatchResponse>::Item,
                >,
            ),
        ) {
            let open = || open::<_, $answer>(self.channel.clone(), request.clone());
            follow(open, stop, on_update).await;
        }
    };
}

macro_rules! consumer {
    ($(#[$doc:meta])* $name:ident of $client:ident { $($methods:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name {
            api: $client<Channel>,
            channel: Channel,
        }

        impl $name {
            /// A client over a channel, for example of [`crate::grpc_client::Dialer`].
            #[must_use]
            pub fn new(channel: Channel) -> Self {
                let api = $client::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
                Self { api, channel }
            }

            $($methods)*
        }
    };
}

consumer! {
    /// Verdicts on shoots. Cheap to clone.
    LeaseProbe of LeaseProbeServiceClient {
        unary! {
            /// The verdict on one shoot.
            get_verdict(probe::GetVerdictRequest) -> probe::GetVerdictResponse
        }
        unary! {
            /// One page of verdicts.
            list_verdicts(probe::ListVerdictsRequest) -> probe::ListVerdictsResponse
        }
        unary! {
            /// The shoots of the seed in numbers.
            get_seed_summary(probe::GetSeedSummaryRequest) -> probe::GetSeedSummaryResponse
        }
        unary! {
            /// One page of the replicas of lease-probe.
            list_replicas(probe::ListReplicasRequest) -> probe::ListReplicasResponse
        }
        watch! {
            /// Follows verdicts.
            follow(probe::WatchVerdictsRequest) -> probe::WatchVerdictsResponse
        }
    }
}

consumer! {
    /// The state of scaling. Cheap to clone.
    ScalingCoordinator of ScalingServiceClient {
        unary! {
            /// The state of one shoot.
            get_scaling(scaling::GetScalingRequest) -> scaling::GetScalingResponse
        }
        unary! {
            /// One page of states.
            list_scaling(scaling::ListScalingRequest) -> scaling::ListScalingResponse
        }
        unary! {
            /// The plan of a direction, as it would run now.
            plan_scaling(scaling::PlanScalingRequest) -> scaling::PlanScalingResponse
        }
        unary! {
            /// The scaling of the seed in numbers.
            get_seed_summary(scaling::GetSeedSummaryRequest) -> scaling::GetSeedSummaryResponse
        }
        watch! {
            /// Follows the state of shoots.
            follow(scaling::WatchScalingRequest) -> scaling::WatchScalingResponse
        }
    }
}

consumer! {
    /// Weeders and the readiness of services. Cheap to clone.
    WeederClient of WeederServiceClient {
        unary! {
            /// One page of weeders.
            list_weeders(weeder::ListWeedersRequest) -> weeder::ListWeedersResponse
        }
        unary! {
            /// The latest weeder of one service.
            get_weeder(weeder::GetWeederRequest) -> weeder::GetWeederResponse
        }
        unary! {
            /// The readiness of one service.
            get_endpoint_readiness(weeder::GetEndpointReadinessRequest)
                -> weeder::GetEndpointReadinessResponse
        }
        unary! {
            /// The services and weeders of the seed in numbers.
            get_seed_summary(weeder::GetSeedSummaryRequest) -> weeder::GetSeedSummaryResponse
        }
        unary! {
            /// One page of the readiness of services.
            list_endpoint_readiness(weeder::ListEndpointReadinessRequest)
                -> weeder::ListEndpointReadinessResponse
        }
        watch! {
            /// Follows weeders.
            follow(weeder::WatchWeedersRequest) -> weeder::WatchWeedersResponse
        }
        watch! {
            /// Follows the readiness of services.
            follow_readiness(weeder::WatchEndpointReadinessRequest)
                -> weeder::WatchEndpointReadinessResponse
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_counts_as_sent_when_its_call_began() {
        let began = Instant::now();
        let slow = async {
            tokio::time::sleep(CALL_TIMEOUT / 2).await;
            Ok(Response::new(7))
        };
        let received = call(slow).await.unwrap();
        assert!(began.elapsed() >= CALL_TIMEOUT / 2);
        let expected = Received {
            value: 7,
            sent_at: began,
            set_at: began,
        };
        assert_eq!(received, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_refused_or_not_answered_fails_with_a_status() {
        let refused = call(async { Err::<Response<()>, _>(Status::not_found("no shoot")) }).await;
        assert_eq!(refused.unwrap_err().message(), "no shoot");
        let silent = call(std::future::pending::<Result<Response<()>, _>>()).await;
        assert_eq!(silent.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    }
}
