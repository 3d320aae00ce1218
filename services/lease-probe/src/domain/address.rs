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
/// for an IPv4 address (mapped, translated, compatible, NAT64, 6to4, Teredo) is judged as that one.
#[must_use]
pub fn refused_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V6(v6) => match embedded(v6) {
            Some(v4) => kind(v4.into()),
            None => local_nat64(v6).or_else(|| kind(address)),
        },
        IpAddr::V4(_) => kind(address),
    }
}

fn kind(address: IpAddr) -> Option<&'static str> {
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

/// The IPv4 address for which an IPv6 address stands.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    match address.segments() {
        // :: and ::1 are IPv6's own.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // Compatible, mapped, translated (RFC 2765), NAT64.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        // 6to4: the router.
        [0x2002, high, low, ..] => v4(high, low),
        // Teredo: the client, inverted.
        [0x2001, 0, .., high, low] => v4(!high, !low),
        _ => None,
    }
}

/// The kind of an address in 64:ff9b:1::/48 (RFC 8215). It stands for an IPv4 address, but the length of the network's
/// prefix decides which bytes are that address (RFC 6052), and only the network knows it. So one dangerous reading is
/// enough. Zeros are none: they follow an address behind a short prefix.
fn local_nat64(address: Ipv6Addr) -> Option<&'static str> {
    let [0x64, 0xff9b, 1, ..] = address.segments() else {
        return None;
    };
    let [.., o6, o7, _, o9, o10, o11, o12, a, b, c] = address.octets();
    // Prefixes of 48, 56, 64 and 96 bits; the ninth byte is not used.
    let readings = [
        [o6, o7, o9, o10],
        [o7, o9, o10, o11],
        [o9, o10, o11, o12],
        [o12, a, b, c],
    ];
    let kinds = readings.into_iter().filter_map(|octets| kind(octets.into()));
    { kinds }.find(|kind| matches!(*kind, "loopback" | "link-local" | "metadata"))
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

    /// The same IPv4 address behind prefixes of 48, 56, 64 and 96 bits.
    #[test]
    fn an_ipv4_address_is_refused_behind_every_local_nat64() {
        for (address, expected) in [
            ("64:ff9b:1:a9fe:a9:fe00::", "link-local"),
            ("64:ff9b:1:aaa9:fe:a9fe::", "link-local"),
            ("64:ff9b:1:aaaa:a9:fea9:fe00:0", "link-local"),
            ("64:ff9b:1::169.254.169.254", "link-local"),
            ("64:ff9b:1:abcd::127.0.0.1", "loopback"),
            ("64:ff9b:1:6464:64:c800::", "metadata"),
        ] {
            assert_eq!(kind(address), Some(expected), "{address}");
        }
        for address in [
            "64:ff9b:1:a00:0:100::",
            "64:ff9b:1:aa0a:0:1::",
            "64:ff9b:1:aaaa:a:0:100::",
            "64:ff9b:1::10.0.0.1",
            "64:ff9b:1:abcd::10.0.0.1",
            "64:ff9b:1:e000::10.0.0.1",
        ] {
            assert_eq!(kind(address), None, "{address}");
        }
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
        /// In every notation but those of a local NAT64. `::1` is IPv6's own loopback address.
        #[test]
        fn an_embedded_address_is_judged_as_the_one_in_it(bits in 2_u32..) {
            let last = u128::from(bits);
            let [compatible, mapped, translated] = [last, 0xffff << 32 | last, 0xffff << 48 | last];
            let nat64 = 0x0064_ff9b << 96 | last;
            let sixtofour = 0x2002 << 112 | last << 80 | 1;
            let teredo = 0x2001_0000 << 96 | u128::from(!bits);
            for v6 in [compatible, mapped, translated, nat64, sixtofour, teredo] {
                let v6 = Ipv6Addr::from_bits(v6);
                prop_assert_eq!(refused_kind(v6.into()), refused_kind(Ipv4Addr::from_bits(bits).into()), "{}", v6);
            }
        }

        #[test]
        fn no_local_nat64_leads_to_what_is_dangerous(last in any::<u16>(), subnet in any::<u16>()) {
            let link_local = Ipv4Addr::from_bits(0xa9fe << 16 | u32::from(last));
            let [a, b, c, d] = link_local.octets().map(u128::from);
            let prefix = 0x0064_ff9b_0001 << 80;
            let subnet = u128::from(subnet);
            for embedded in [
                a << 72 | b << 64 | c << 48 | d << 40,
                subnet >> 8 << 72 | a << 64 | b << 48 | c << 40 | d << 32,
                subnet << 64 | a << 48 | b << 40 | c << 32 | d << 24,
                subnet << 64 | u128::from(link_local.to_bits()),
            ] {
                let v6 = Ipv6Addr::from_bits(prefix | embedded);
                prop_assert!(refused_kind(v6.into()).is_some(), "{}", v6);
            }
        }
    }
}
