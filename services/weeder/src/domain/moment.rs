//! Points in time.

pub use watchdog_api::unix_time::UnixTime as Moment;
