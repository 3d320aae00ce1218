//! Membership of replicas.
