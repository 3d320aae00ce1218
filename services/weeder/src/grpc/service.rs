//! `gardener.watchdog.weeder.v1.WeederService`.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use prost::Message as _;
use tonic::{Request, Response, Status};
use watchdog_api::names::is_dns_label;
use watchdog_proto::weeder::v1 as pb;
use watchdog_proto::weeder::v1::weeder_service_server::WeederService;
use watchdog_runtime::request;
use watchdog_watch_stream::stream::Streams;

use super::convert;
use crate::controller::shared::SharedState;
use crate::domain::namespaced_name::NamespacedName;

/// A page ends before it grows larger than this: clients take messages of 4 MiB by default, and a weeder that was
/// refused often may fill 20 KiB.
const MAX_PAGE_BYTES: usize = 2 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: Arc<SharedState>,
    pub(crate) streams: Streams,
    /// Name of this replica.
    pub(crate) identity: Arc<str>,
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WeederService for Service {
    type WatchEndpointReadinessStream = ResponseStream<pb::WatchEndpointReadinessResponse>;
    type WatchWeedersStream = ResponseStream<pb::WatchWeedersResponse>;

    async fn watch_endpoint_readiness(
        &self,
        request: Request<pb::WatchEndpointReadinessRequest>,
    ) -> Result<Response<Self::WatchEndpointReadinessStream>, Status> {
        let request = request.into_inner();
        let matches = filter(request.namespace, request.service)?;
        let identity = self.identity.clone();
        let encode = move |message| convert::readiness_response(message, &identity);
        let changes = self.state.services.subscribe(matches);
        Ok(Response::new(self.streams.serve(
            "WatchEndpointReadiness",
            changes,
            encode,
        )?))
    }

    async fn watch_weeders(
        &self,
        request: Request<pb::WatchWeedersRequest>,
    ) -> Result<Response<Self::WatchWeedersStream>, Status> {
        let request = request.into_inner();
        let matches = filter(request.namespace, request.service)?;
        let (identity, state) = (self.identity.clone(), self.state.clone());
        let encode = move |message| convert::weeders_response(message, &identity, state.now());
        let changes = self.state.weeders.subscribe(matches);
        Ok(Response::new(self.streams.serve(
            "WatchWeeders",
            changes,
            encode,
        )?))
    }

    async fn get_weeder(
        &self,
        _request: Request<pb::GetWeederRequest>,
    ) -> Result<Response<pb::GetWeederResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn list_endpoint_readiness(
        &self,
        _request: Request<pb::ListEndpointReadinessRequest>,
    ) -> Result<Response<pb::ListEndpointReadinessResponse>, Status> {
        Err(Status::unimplemented("not yet"))
    }

    async fn list_weeders(
        &self,
        request: Request<pb::ListWeedersRequest>,
    ) -> Result<Response<pb::ListWeedersResponse>, Status> {
        let request = request.into_inner();
        let matches = filter(request.namespace, request.service)?;
        let after = page_token(&request.page_token)?;
        let limit = request::page_size(request.page_size)?;
        let page = self
            .state
            .weeders
            .page(after.as_ref(), limit, |key, _| matches(key));
        let now = self.state.now();
        let mut response = pb::ListWeedersResponse {
            total_size: i32::try_from(page.total).unwrap_or(i32::MAX),
            ..Default::default()
        };
        let (mut bytes, mut last, mut more) = (0, None, page.more);
        for (key, weeder) in page.items {
            let weeder = convert::weeder_message(&weeder, &self.identity, now);
            bytes += weeder.encoded_len();
            if bytes > MAX_PAGE_BYTES && last.is_some() {
                more = true;
                break;
            }
            response.weeders.push(weeder);
            last = Some(key);
        }
        if let Some(last) = last.filter(|_| more) {
            response.next_page_token = request::next_page_token(&last.to_string());
        }
        Ok(Response::new(response))
    }
}

/// Matches the keys that a request asks for.
fn filter(
    namespace: String,
    service: String,
) -> Result<impl Fn(&NamespacedName) -> bool + Send + 'static, Status> {
    if !namespace.is_empty() {
        check("namespace", "namespace", &namespace)?;
    }
    if !service.is_empty() {
        check("service", "Service", &service)?;
    }
    let matches = |asked: &str, is: &str| asked.is_empty() || asked == is;
    Ok(move |key: &NamespacedName| matches(&namespace, &key.namespace) && matches(&service, &key.name))
}

/// Names of namespaces and of Services are DNS labels.
fn check(field: &str, kind: &str, name: &str) -> Result<(), Status> {
    if is_dns_label(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Status::invalid_argument(format!(
        "{field}: {shown:?} is not the name of a {kind}: lower-case letters, digits and -, at most 63 characters; \
         leave the field out for all"
    )))
}

fn page_token(token: &str) -> Result<Option<NamespacedName>, Status> {
    let Some(last) = request::page_token(token)? else {
        return Ok(None);
    };
    match last.split_once('/') {
        Some((namespace, service)) => Ok(Some(NamespacedName::new(namespace, service))),
        None => Err(Status::invalid_argument(
            "page_token: was not given out by this method: use next_page_token of the previous page, unchanged",
        )),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn filters() {
        let filter = |namespace: &str, service: &str| filter(namespace.to_owned(), service.to_owned());
        let key = NamespacedName::new("shoot--a--b", "etcd");
        assert!(filter("", "").unwrap()(&key));
        assert!(filter("shoot--a--b", "etcd").unwrap()(&key));
        assert!(!filter("shoot--a--c", "").unwrap()(&key));
        assert!(!filter("", "kube-apiserver").unwrap()(&key));
        for (namespace, service, field) in [
            ("A", "", "namespace: "),
            ("", "a.b", "service: "),
            ("-a", "", "namespace: "),
        ] {
            let status = filter(namespace, service).map(drop).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().starts_with(field), "{}", status.message());
        }
    }

    #[test]
    fn page_tokens() {
        let key = NamespacedName::new("shoot", "etcd");
        assert_eq!(
            page_token(&request::next_page_token(&key.to_string())).unwrap(),
            Some(key)
        );
        assert_eq!(page_token("").unwrap(), None);
        for bad in ["shoot/etcd", "after:shoot"] {
            assert_eq!(page_token(bad).unwrap_err().code(), Code::InvalidArgument);
        }
    }
}
