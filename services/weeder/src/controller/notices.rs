//! The Kubernetes Events of the weeder.

use k8s_openapi::api::core::v1::ObjectReference;
use watchdog_kube::events::Notice;

use super::deletion::Deletion;
use crate::domain::namespaced_name::NamespacedName;
use crate::domain::pods::Pod;

pub(super) fn deletion(deletion: &Deletion, observes: bool) -> Notice {
    let Deletion { pod, recovery, .. } = deletion;
    let (name, service, since) = (&pod.key.name, &deletion.service.name, recovery.at);
    let crash = &pod.crash;
    let (event, action) = match observes {
        true => ("DeletionKeptBack", "KeptBack"),
        false => ("WeededCrashLoopingPod", "Deleted"),
    };
    let what = match observes {
        true => format!("Would delete pod {name}, but the mode is observe: {crash} is"),
        false => format!("Deleted pod {name}: {crash} was"),
    };
    Notice {
        about: controller_of(pod),
        warning: false,
        reason: event,
        action,
        note: format!("{what} in CrashLoopBackOff, and service {service} has been ready since {since}."),
    }
}

pub(super) fn useless(service: &NamespacedName, pod: &Pod) -> Notice {
    let (name, service) = (&pod.key.name, &service.name);
    let crash = &pod.crash;
    let message = match &*crash.message {
        "" => "none",
        message => message,
    };
    Notice {
        about: controller_of(pod),
        warning: true,
        reason: "CrashesAlthoughServiceIsReady",
        action: "LeftAlone",
        note: format!(
            "Pod {name}: {crash} crashes within a minute although its service {service} is ready; last message: \
             {message}. Its predecessor was deleted; this pod is left alone."
        ),
    }
}

pub(super) fn held_back(service: &NamespacedName) -> Notice {
    Notice {
        about: reference(["v1", "Service", &service.name, ""], service),
        warning: true,
        reason: "ServiceFlapping",
        action: "Waiting",
        note: format!(
            "Service {} became ready four times in a minute. Its crash-looping dependants are deleted at most three \
             times a minute.",
            service.name
        ),
    }
}

/// The controller, because it outlives the pod.
fn controller_of(pod: &Pod) -> ObjectReference {
    let object: [&str; 4] = match &pod.owner {
        Some(owner) => [&*owner.api_version, &owner.kind, &owner.name, &owner.uid],
        None => ["v1", "Pod", &pod.key.name, &pod.uid],
    };
    reference(object, &pod.key)
}

/// An object of a namespace: its API version, kind, name, and UID if that is known.
fn reference(
    [api_version, kind, name, uid]: [&str; 4],
    NamespacedName { namespace, .. }: &NamespacedName,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(namespace.to_string()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()).filter(|uid| !uid.is_empty()),
        ..ObjectReference::default()
    }
}
