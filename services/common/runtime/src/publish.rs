//! Publishes a value to those that follow it.

use tokio::sync::watch;

/// Publishes a value unless it is the same as before. True if it was published.
pub fn publish_if_changed<T: Clone + PartialEq>(published: &watch::Sender<T>, current: &T) -> bool {
    published.send_if_modified(|published| {
        let differs = published != current;
        if differs {
            published.clone_from(current);
        }
        differs
    })
}
