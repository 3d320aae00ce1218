//! `gardener.watchdog.weeder.v1.WeederService`.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};
use watchdog_proto::stream::v1::{Completeness, Scope};
use watchdog_proto::weeder::v1 as pb;
use watchdog_proto::weeder::v1::weeder_service_server::WeederService;
use watchdog_runtime::request::{self, PageRequest};
use watchdog_runtime::rpc_error::{ErrorReason, error};
use watchdog_watch_stream::item::NamePair;
use watchdog_watch_stream::seed_view::{self, SeedView};
use watchdog_watch_stream::stream::Responses;

/// The gRPC service of a replica.
pub struct WeederApi {
    /// The readiness of all services of the seed.
    pub readiness: SeedView<pb::EndpointReadiness>,
    /// All weeders of the seed.
    pub weeders: SeedView<pb::Weeder>,
    /// The name of the leader; empty if this replica, which holds the Lease when it answers, must not act.
    pub leader: Box<dyn Fn() -> String + Send + Sync>,
}

#[tonic::async_trait]
impl WeederService for WeederApi {
    type WatchEndpointReadinessStream = Responses<pb::WatchEndpointReadinessResponse>;
    type WatchWeedersStream = Responses<pb::WatchWeedersResponse>;

    async fn watch_endpoint_readiness(
        &self,
        request: Request<pb::WatchEndpointReadinessRequest>,
    ) -> Result<Response<Self::WatchEndpointReadinessStream>, Status> {
        let request = request.into_inner();
        let filter = ServiceFilter::read(request.scope, request.namespace, request.service)?;
        let stream = self.readiness.watch(filter.scope, move |key| filter.matches(key));
        Ok(Response::new(stream?))
    }

    async fn get_endpoint_readiness(
        &self,
        request: Request<pb::GetEndpointReadinessRequest>,
    ) -> Result<Response<pb::GetEndpointReadinessResponse>, Status> {
        let key = service_key(request.into_inner().key)?;
        let answer = self.readiness.get(&key).await;
        let completeness = answer.completeness.as_ref();
        let readiness = answer.item.ok_or_else(|| {
            absent(&key, completeness, |service| {
                let message = format!(
                    "{service} has no slices, or is not configured: list the services that are known"
                );
                error(ErrorReason::ServiceNotFound, message)
            })
        })?;
        Ok(Response::new(pb::GetEndpointReadinessResponse {
            readiness: Some(readiness),
            position: answer.position,
            completeness: answer.completeness,
        }))
    }

    async fn list_endpoint_readiness(
        &self,
        request: Request<pb::ListEndpointReadinessRequest>,
    ) -> Result<Response<pb::ListEndpointReadinessResponse>, Status> {
        let request = request.into_inner();
        let filter = ServiceFilter::read(request.scope, request.namespace, request.service)?;
        let page = filter.page("ListEndpointReadiness", request.page_size, &request.page_token)?;
        let page = self
            .readiness
            .list(filter.scope, &page, |key, _| filter.matches(key));
        Ok(Response::new(page.await?.into()))
    }

    async fn watch_weeders(
        &self,
        request: Request<pb::WatchWeedersRequest>,
    ) -> Result<Response<Self::WatchWeedersStream>, Status> {
        let request = request.into_inner();
        let filter = ServiceFilter::read(request.scope, request.namespace, request.service)?;
        let stream = self.weeders.watch(filter.scope, move |key| filter.matches(key));
        Ok(Response::new(stream?))
    }

    async fn get_weeder(
        &self,
        request: Request<pb::GetWeederRequest>,
    ) -> Result<Response<pb::GetWeederResponse>, Status> {
        let key = service_key(request.into_inner().key)?;
        let answer = self.weeders.get(&key).await;
        let completeness = answer.completeness.as_ref();
        let weeder = answer.item.ok_or_else(|| {
            absent(&key, completeness, |service| {
                let message = format!(
                    "there is no weeder for {service}: it has not become ready recently, or is not configured"
                );
                error(ErrorReason::WeederNotFound, message)
            })
        })?;
        Ok(Response::new(pb::GetWeederResponse {
            weeder: Some(weeder),
            position: answer.position,
            completeness: answer.completeness,
        }))
    }

    async fn list_weeders(
        &self,
        request: Request<pb::ListWeedersRequest>,
    ) -> Result<Response<pb::ListWeedersResponse>, Status> {
        let request = request.into_inner();
        let filter = ServiceFilter::read(request.scope, request.namespace, request.service)?;
        let page = filter.page("ListWeeders", request.page_size, &request.page_token)?;
        let page = self
            .weeders
            .list(filter.scope, &page, |key, _| filter.matches(key));
        Ok(Response::new(page.await?.into()))
    }

    async fn get_seed_summary(
        &self,
        request: Request<pb::GetSeedSummaryRequest>,
    ) -> Result<Response<pb::GetSeedSummaryResponse>, Status> {
        let scope = seed_view::scope(request.into_inner().scope)?;
        // By the numbers of the enums.
        let (mut services, mut weeders) = (BTreeMap::<i32, u32>::new(), BTreeMap::<i32, u32>::new());
        let of_services = self.readiness.visit(scope, |service| {
            *services.entry(service.readiness).or_default() += 1;
        });
        let (position, completeness) = of_services.await;
        let of_weeders = self.weeders.visit(scope, |weeder| {
            *weeders.entry(weeder.state).or_default() += 1;
        });
        let (_, of_weeders) = of_weeders.await;
        let summary = pb::SeedSummary {
            services: services.values().sum(),
            readiness: services
                .into_iter()
                .map(|(readiness, services)| pb::ReadinessCount { readiness, services })
                .collect(),
            weeders: weeders
                .into_iter()
                .map(|(state, weeders)| pb::WeederStateCount { state, weeders })
                .collect(),
            leader: (self.leader)(),
        };
        Ok(Response::new(pb::GetSeedSummaryResponse {
            summary: Some(summary),
            position: Some(position),
            // Both are filled by the same watches, one right after the other.
            completeness: Some(if completeness.complete {
                of_weeders
            } else {
                completeness
            }),
        }))
    }
}

/// The error of an answer about a service without an item: `if_certain`, if the answer lacks nothing.
fn absent(
    NamePair(namespace, service): &NamePair,
    completeness: Option<&Completeness>,
    if_certain: impl FnOnce(&str) -> Status,
) -> Status {
    let service = format!("the Service {service} in {namespace}");
    if completeness.is_some_and(|completeness| completeness.complete) {
        return if_certain(&service);
    }
    let message = format!("nothing is known of {service} yet: try again in 1 s");
    error(ErrorReason::NotReported, message)
}

/// The key of the one service that a request asks for.
fn service_key(key: Option<pb::ServiceKey>) -> Result<NamePair, Status> {
    let key = key.unwrap_or_default();
    check("key.namespace", "namespace", &key.namespace)?;
    check("key.service", "Service", &key.service)?;
    Ok(NamePair(key.namespace.into(), key.service.into()))
}

/// The services that a request asks for; an empty name stands for all.
#[derive(Debug)]
struct ServiceFilter {
    scope: Scope,
    namespace: String,
    service: String,
}

impl ServiceFilter {
    fn read(scope: i32, namespace: String, service: String) -> Result<Self, Status> {
        for (field, kind, name) in [
            ("namespace", "namespace", &namespace),
            ("service", "Service", &service),
        ] {
            if !name.is_empty() {
                check(field, kind, name)?;
            }
        }
        Ok(Self {
            scope: seed_view::scope(scope)?,
            namespace,
            service,
        })
    }

    fn page(&self, rpc: &str, size: i32, token: &str) -> Result<PageRequest, Status> {
        let filter = [rpc, self.scope.as_str_name(), &self.namespace, &self.service];
        PageRequest::read(size, token, &filter)
    }

    fn matches(&self, NamePair(namespace, service): &NamePair) -> bool {
        let matches = |asked: &str, is: &str| asked.is_empty() || asked == is;
        matches(&self.namespace, namespace) && matches(&self.service, service)
    }
}

/// Names of namespaces and of Services are DNS labels.
fn check(field: &str, kind: &str, name: &str) -> Result<(), Status> {
    let expected = format!(
        "{kind}: lower-case letters, digits and -, at most 63 characters; omit the field for all, if the method \
         allows it"
    );
    request::dns_label(field, name, &expected)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn filters() {
        let filter =
            |namespace: &str, service: &str| ServiceFilter::read(0, namespace.to_owned(), service.to_owned());
        let key = NamePair("shoot--a--b".into(), "etcd".into());
        assert!(filter("", "").unwrap().matches(&key));
        assert!(filter("shoot--a--b", "etcd").unwrap().matches(&key));
        assert!(!filter("shoot--a--c", "").unwrap().matches(&key));
        assert!(!filter("", "kube-apiserver").unwrap().matches(&key));
        for (namespace, service, field) in [
            ("A", "", "namespace: "),
            ("", "a.b", "service: "),
            ("-a", "", "namespace: "),
        ] {
            let status = filter(namespace, service).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().starts_with(field), "{}", status.message());
        }
    }
}
