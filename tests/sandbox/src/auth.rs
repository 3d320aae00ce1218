//! Authentication (bearer tokens, client certificates) and authorisation.

use std::collections::HashMap;

use parking_lot::RwLock;
use rand::Rng;

use crate::status::ApiError;

/// The credentials that an API server accepts.
#[derive(Default)]
pub(crate) struct AcceptedCredentials {
    inner: RwLock<KnownUsers>,
}

impl std::fmt::Debug for AcceptedCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The tokens stay out of logs.
        f.debug_struct("AcceptedCredentials").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct KnownUsers {
    token_of_user: HashMap<String, String>,
    user_of_token: HashMap<String, String>,
    user_of_certificate: HashMap<Vec<u8>, String>,
}

impl AcceptedCredentials {
    /// The token of a user, made at the first call.
    pub(crate) fn token(&self, user: &str) -> String {
        let mut known = self.inner.write();
        if let Some(token) = known.token_of_user.get(user) {
            return token.clone();
        }
        let token = format!("{:032x}", rand::rng().random::<u128>());
        known.user_of_token.insert(token.clone(), user.to_owned());
        known.token_of_user.insert(user.to_owned(), token.clone());
        token
    }

    /// Forgets the token and the certificates of a user: the next call to `token` makes a new one.
    pub(crate) fn revoke(&self, user: &str) {
        let mut known = self.inner.write();
        known.token_of_user.remove(user);
        known.user_of_token.retain(|_, owner| owner != user);
        known.user_of_certificate.retain(|_, owner| owner != user);
    }

    /// Accepts a client certificate for a user.
    pub(crate) fn trust(&self, certificate: Vec<u8>, user: &str) {
        let mut known = self.inner.write();
        known.user_of_certificate.insert(certificate, user.to_owned());
    }

    /// The user of a client certificate.
    pub(crate) fn by_certificate(&self, der: &[u8]) -> Option<String> {
        self.inner.read().user_of_certificate.get(der).cloned()
    }

    /// The user of an Authorization header.
    pub(crate) fn by_header(&self, header: &str) -> Option<String> {
        let token = header.strip_prefix("Bearer ")?;
        self.inner.read().user_of_token.get(token.trim()).cloned()
    }
}

/// The action of a request, as RBAC sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) user: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub(crate) verb: String,
    /// API group.
    pub(crate) group: String,
    /// Plural; with a sub-resource `deployments/scale`. Empty for paths that name no resource.
    pub(crate) resource: String,
    /// Namespace; empty for cluster scope and for all namespaces.
    pub(crate) namespace: String,
    /// Object name; empty for collections.
    pub(crate) name: String,
}

impl Attributes {
    /// The permissions of every user: discovery, and asking what it may do (system:discovery and system:basic-user).
    fn is_basic(&self) -> bool {
        self.resource.is_empty() || self.resource == "selfsubjectaccessreviews"
    }

    fn forbidden(&self) -> ApiError {
        let Self {
            user,
            verb,
            group,
            resource,
            namespace,
            name,
        } = self;
        let message = format!(
            "{resource} \"{name}\" is forbidden: User \"{user}\" cannot {verb} resource \"{resource}\" in API group \
             \"{group}\" in the namespace \"{namespace}\""
        );
        ApiError::new(403, "Forbidden", message)
    }
}

/// Matches requests; an absent or empty field matches everything, `*` too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// The user; absent: everyone.
    pub user: Option<String>,
    /// Verbs; empty: all.
    pub verbs: Vec<String>,
    /// API groups; empty: all. The core group is the empty string.
    pub groups: Vec<String>,
    /// Plurals, sub-resources written `deployments/scale`; empty: all.
    pub resources: Vec<String>,
    /// Namespaces; empty: all. A request for all namespaces matches only a rule without namespaces.
    pub namespaces: Vec<String>,
    /// Object names (`resourceNames` of RBAC); empty: all. Lists carry one when they select by name.
    pub names: Vec<String>,
}

impl Rule {
    fn matches(&self, asked: &Attributes) -> bool {
        let one_of = |allowed: &[String], value: &str| {
            allowed.is_empty() || allowed.iter().any(|entry| entry == value || entry == "*")
        };
        self.user.as_deref().is_none_or(|user| user == asked.user)
            && one_of(&self.verbs, &asked.verb)
            && one_of(&self.groups, &asked.group)
            && one_of(&self.resources, &asked.resource)
            && one_of(&self.namespaces, &asked.namespace)
            && one_of(&self.names, &asked.name)
    }
}

/// Everything is allowed but what a rule denies; a user with grants is allowed only those.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    rules: RwLock<Rules>,
}

#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) denied: Vec<Rule>,
    pub(crate) granted: HashMap<String, Vec<Rule>>,
}

impl Policy {
    pub(crate) fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.rules.write());
    }

    /// True if the request may go on.
    pub(crate) fn allows(&self, asked: &Attributes) -> bool {
        let rules = self.rules.read();
        let is_denied = rules.denied.iter().any(|rule| rule.matches(asked));
        let is_granted = match rules.granted.get(&asked.user) {
            Some(granted) => asked.is_basic() || granted.iter().any(|rule| rule.matches(asked)),
            None => true,
        };
        is_granted && !is_denied
    }

    /// 403 if the request may not go on.
    pub(crate) fn check(&self, asked: &Attributes) -> Result<(), ApiError> {
        match self.allows(asked) {
            true => Ok(()),
            false => Err(asked.forbidden()),
        }
    }
}
