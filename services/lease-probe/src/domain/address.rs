//! The addresses that no shoot's API server has: what answers there is this machine, its network or its cloud.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Metadata services of clouds that have no link-local address.
const METADATA: [IpAddr; 6] = [
    // AWS.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    // Google.
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)),
    // Oracle.
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe)),
    // Alibaba.
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Azure.
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
    // Oracle, before.
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
];

/// The kind of an address to which no connection is opened; none for every other address. An IPv6 address that stands
/// for an IPv4 address (mapped, compatible, NAT64) is judged as that one.
#[must_use]
pub fn refused_kind(address: IpAddr) -> Option<&'static str> {
    let address = match address {
        IpAddr::V6(v6) => embedded(v6).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    let (is_link_local, is_unspecified) = match address {
        // Linux takes 0.0.0.0 as its own address; the rest of 0.0.0.0/8 means this network.
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[0] == 0),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.is_unspecified()),
    };
    match address {
        _ if is_unspecified => Some("unspecified"),
        _ if address.is_loopback() => Some("loopback"),
        _ if is_link_local => Some("link-local"),
        _ if address.is_multicast() || address == IpAddr::V4(Ipv4Addr::BROADCAST) => Some("multicast"),
        _ if METADATA.contains(&address) => Some("metadata"),
        _ => None,
    }
}

/// The IPv4 address in a mapped (::ffff:0:0/96), compatible (::/96) or NAT64 (64:ff9b::/96) one.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [prefix @ .., high, low] = address.segments();
    let stands_for_ipv4 = match prefix {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => true,
        // Except :: and ::1.
        [0, 0, 0, 0, 0, 0] => high != 0 || low > 1,
        _ => false,
    };
    let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
    stands_for_ipv4.then_some(Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kind(address: &str) -> Option<&'static str> {
        refused_kind(address.parse().unwrap())
    }

    #[test]
    fn own_link_local_and_metadata_addresses_are_refused() {
        for (address, expected) in [
            ("127.0.0.1", "loopback"),
            ("127.16.1.43", "loopback"),
            ("::1", "loopback"),
            ("0.0.0.0", "unspecified"),
            ("0.0.0.1", "unspecified"),
            ("::", "unspecified"),
            ("169.254.169.254", "link-local"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("224.0.0.1", "multicast"),
            ("255.255.255.255", "multicast"),
            ("ff02::1", "multicast"),
            ("fd00:ec2::254", "metadata"),
            ("fd20:ce::254", "metadata"),
            ("100.100.100.200", "metadata"),
            ("168.63.129.16", "metadata"),
        ] {
            assert_eq!(kind(address), Some(expected), "{address}");
        }
    }

    #[test]
    fn an_ipv4_address_is_refused_in_every_notation() {
        for address in ["::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::127.0.0.1"] {
            assert_eq!(kind(address), Some("loopback"), "{address}");
        }
        // 0.0.0.2, the smallest compatible one: ::1 is IPv6's own loopback address.
        assert_eq!(kind("::2"), Some("unspecified"));
        assert_eq!(kind("::ffff:169.254.169.254"), Some("link-local"));
        assert_eq!(kind("64:ff9b::a9fe:a9fe"), Some("link-local"));
        assert_eq!(kind("::ffff:100.100.100.200"), Some("metadata"));
        assert_eq!(kind("::ffff:10.0.0.1"), None);
    }

    #[test]
    fn addresses_of_seeds_and_shoots_are_not() {
        for address in [
            "10.0.0.1",
            "100.64.0.1",
            "172.16.0.1",
            "192.168.0.1",
            "34.1.2.3",
            "fd00:10::1",
            "2001:db8::1",
            "64:ff9b::10.0.0.1",
        ] {
            assert_eq!(kind(address), None, "{address}");
        }
    }

    proptest! {
        #[test]
        fn a_mapped_address_is_judged_as_the_one_in_it(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            prop_assert_eq!(refused_kind(v4.into()), refused_kind(v4.to_ipv6_mapped().into()));
        }
    }
}
