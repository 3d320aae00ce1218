//! How often faults happen, and which.

/// How much goes wrong.
#[derive(Debug, Clone, Copy)]
pub(super) struct Faults {
    /// Expected number of faults per second and replica. At 0 no request is lost or late either.
    pub(super) rate: f64,
    /// True if no watch brings anything, ever.
    pub(super) deaf: bool,
    /// True if Leases are deleted by hand.
    pub(super) by_hand: bool,
}

/// Nothing goes wrong.
pub(super) const CALM: Faults = Faults {
    rate: 0.0,
    deaf: false,
    by_hand: false,
};
