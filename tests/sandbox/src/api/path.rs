//! From method, path and query to what is asked for, as k8s.io/apiserver's RequestInfo does.

use http::Method;

use crate::{auth::Attributes, resource::ResourceKey, store::selector};

/// The query of a request, decoded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    /// The value of a parameter; empty when it is absent.
    pub(crate) fn get(&self, key: &str) -> &str {
        self.0
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
            .unwrap_or_default()
    }

    /// True if a parameter is set to a truth.
    pub(crate) fn flag(&self, key: &str) -> bool {
        matches!(self.get(key), "true" | "1")
    }
}

/// An object, a collection or a sub-resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) resource: ResourceKey,
    /// Empty for cluster scope and all namespaces.
    pub(crate) namespace: String,
    /// Empty for a collection.
    pub(crate) name: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
}

/// The kinds of requests.
#[derive(Debug, Clone)]
pub(crate) struct RequestInfo {
    pub(crate) verb: &'static str,
    pub(crate) path: String,
    pub(crate) query: Query,
    /// `None` for discovery, health and unknown paths.
    pub(crate) target: Option<Target>,
}

impl RequestInfo {
    pub(crate) fn parse(method: &Method, path: &str, query: &str) -> Self {
        let query = Query::parse(query);
        let target = target(path);
        let named = target.as_ref().is_some_and(|target| !target.name.is_empty());
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if named || target.is_none() => "delete",
            Method::DELETE => "deletecollection",
            Method::GET | Method::HEAD if target.is_none() => "get",
            // Nothing is served for these.
            ref other if *other != Method::GET && *other != Method::HEAD => "unknown",
            // A watch of one object is a list with a field selector; `watch` on its own path is ignored.
            _ if named => "get",
            _ if query.flag("watch") => "watch",
            _ => "list",
        };
        Self {
            verb,
            path: path.to_owned(),
            query,
            target,
        }
    }

    /// The attributes that RBAC checks.
    pub(crate) fn attributes(&self, user: &str) -> Attributes {
        let mut attributes = Attributes {
            user: user.to_owned(),
            verb: self.verb.to_owned(),
            ..Attributes::default()
        };
        if let Some(target) = &self.target {
            attributes.group = target.resource.group.to_string();
            attributes.resource = with_subresource(&target.resource.plural, &target.subresource);
            attributes.namespace.clone_from(&target.namespace);
            attributes.name.clone_from(&target.name);
            if target.name.is_empty() && matches!(self.verb, "list" | "watch" | "deletecollection") {
                // A list by exact name is authorised like access to that object.
                let name = selector::selected_name(self.query.get("fieldSelector"));
                attributes.name = name.ok().flatten().unwrap_or_default();
            }
        }
        attributes
    }
}

/// As RBAC writes it.
pub(crate) fn with_subresource(resource: &str, subresource: &str) -> String {
    match subresource {
        "" => resource.to_owned(),
        subresource => format!("{resource}/{subresource}"),
    }
}

fn target(path: &str) -> Option<Target> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let (group, version, rest) = match parts.as_slice() {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        // `namespaces/x` and its sub-resources are the namespace itself.
        ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
        ["namespaces", namespace, rest @ ..] => (*namespace, rest),
        _ => ("", rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, "", ""),
        [plural, name] => (*plural, *name, ""),
        [plural, name, subresource] => (*plural, *name, *subresource),
        _ => return None,
    };
    Some(Target {
        resource: ResourceKey {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            plural: plural.to_owned().into(),
        },
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        subresource: subresource.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_by_name_is_authorised_by_name() {
        let query = "fieldSelector=metadata.name%3Dprobe&limit=500";
        let list = RequestInfo::parse(&Method::GET, "/api/v1/secrets", query);
        assert_eq!(list.attributes("u").name, "probe");
    }
}
