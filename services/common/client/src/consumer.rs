//! The requests of all services: unary calls with a deadline, and streams that are followed until they are stopped.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::codegen::StdError;
use tonic::transport::Channel;
use tonic::{Response, Status};
use watchdog_proto::probe::v1 as probe;
use watchdog_proto::probe::v1::lease_probe_service_client::LeaseProbeServiceClient;
use watchdog_proto::scaling::v1 as scaling;
use watchdog_proto::scaling::v1::scaling_service_client::ScalingServiceClient;
use watchdog_proto::weeder::v1 as weeder;
use watchdog_proto::weeder::v1::weeder_service_client::WeederServiceClient;

use crate::follow::{Received, Update};
use crate::item::StreamItem;
use crate::message::MAX_MESSAGE_BYTES;
use crate::open::open;
use crate::wire::{ItemPage, WatchResponse};

/// A unary call may take this time. A replica waits at most 10 s for the others.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// A request with one answer.
pub trait UnaryRequest: Send + 'static {
    /// The answer.
    type Answer: Send;

    /// Sends it once, without a deadline: see [`call`].
    fn send(self, channel: Channel) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;
}

/// A request for one page of a list.
pub trait ListRequest:
    UnaryRequest<Answer: From<ItemPage<Self::Item>> + Into<ItemPage<Self::Item>>> + Clone
{
    /// The items of the list.
    type Item;

    /// Makes it ask for another page.
    fn set_page(&mut self, page_size: i32, page_token: String);
}

macro_rules! unary {
    ($client:ident::$method:ident($request:ty) -> $answer:ty) => {
        impl UnaryRequest for $request {
            type Answer = $answer;

            async fn send(self, channel: Channel) -> Result<Response<$answer>, Status> {
                let client = $client::new(channel);
                let mut client = client.max_decoding_message_size(MAX_MESSAGE_BYTES);
                client.$method(self).await
            }
        }
    };
    ($client:ident::$method:ident($request:ty) -> $answer:ty, pages of $item:ty) => {
        unary!($client::$method($request) -> $answer);

        impl ListRequest for $request {
            type Item = $item;

            fn set_page(&mut self, page_size: i32, page_token: String) {
                (self.page_size, self.page_token) = (page_size, page_token);
            }
        }
    };
}

unary!(LeaseProbeServiceClient::get_verdict(probe::GetVerdictRequest) -> probe::GetVerdictResponse);
unary!(
    LeaseProbeServiceClient::list_verdicts(probe::ListVerdictsRequest) -> probe::ListVerdictsResponse,
    pages of probe::Verdict
);
unary!(LeaseProbeServiceClient::get_seed_summary(probe::GetSeedSummaryRequest) -> probe::GetSeedSummaryResponse);
unary!(
    LeaseProbeServiceClient::list_replicas(probe::ListReplicasRequest) -> probe::ListReplicasResponse,
    pages of probe::Replica
);
unary!(ScalingServiceClient::get_scaling(scaling::GetScalingRequest) -> scaling::GetScalingResponse);
unary!(
    ScalingServiceClient::list_scaling(scaling::ListScalingRequest) -> scaling::ListScalingResponse,
    pages of scaling::ShootScaling
);
unary!(ScalingServiceClient::plan_scaling(scaling::PlanScalingRequest) -> scaling::PlanScalingResponse);
unary!(ScalingServiceClient::get_seed_summary(scaling::GetSeedSummaryRequest) -> scaling::GetSeedSummaryResponse);
unary!(
    WeederServiceClient::list_weeders(weeder::ListWeedersRequest) -> weeder::ListWeedersResponse,
    pages of weeder::Weeder
);
unary!(WeederServiceClient::get_weeder(weeder::GetWeederRequest) -> weeder::GetWeederResponse);
unary!(
    WeederServiceClient::list_endpoint_readiness(weeder::ListEndpointReadinessRequest)
        -> weeder::ListEndpointReadinessResponse,
    pages of weeder::EndpointReadiness
);
unary!(
    WeederServiceClient::get_endpoint_readiness(weeder::GetEndpointReadinessRequest)
        -> weeder::GetEndpointReadinessResponse
);
unary!(WeederServiceClient::get_seed_summary(weeder::GetSeedSummaryRequest) -> weeder::GetSeedSummaryResponse);

/// Asks within [`CALL_TIMEOUT`]. The answer counts as sent when the call began: never later than true.
///
/// # Errors
/// The status of the server; DEADLINE_EXCEEDED after [`CALL_TIMEOUT`].
pub async fn call<R: UnaryRequest>(channel: Channel, request: R) -> Result<Received<R::Answer>, Status> {
    answered(request.send(channel)).await
}

async fn answered<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<Received<T>, Status> {
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

/// Follows the items of a Watch RPC over any number of streams, until `stop` is cancelled or the future is dropped.
/// `on_update` must not block.
pub async fn follow<M>(
    channel: impl GrpcService<
        Body,
        ResponseBody: http_body::Body<Data = bytes::Bytes, Error: Into<StdError> + Send> + Send + 'static,
    > + Clone,
    request: M::Request,
    stop: &CancellationToken,
    on_update: impl FnMut(Update<<M::Item as StreamItem>::Key, M::Item>),
) where
    M: WatchResponse + prost::Message + Default,
{
    let open = || open::<_, M>(channel.clone(), request.clone());
    crate::follow::follow(open, stop, on_update).await;
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
        let received = answered(slow).await.unwrap();
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
        let refused = answered(async { Err::<Response<()>, _>(Status::not_found("no shoot")) }).await;
        assert_eq!(refused.unwrap_err().message(), "no shoot");
        let silent = answered(std::future::pending::<Result<Response<()>, _>>()).await;
        assert_eq!(silent.unwrap_err().code(), tonic::Code::DeadlineExceeded);
    }
}
