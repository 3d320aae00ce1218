//! Through which proxy the seed is reached, by the rules of Go's `httpproxy` and of client-go. Reasons never repeat a
//! value, because it may hold a password.

use std::net::IpAddr;

use http::Uri;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use secrecy::SecretString;

use super::{Result, field, refuse};

/// The value of a variable of the environment.
pub type Variable<'r> = &'r (dyn Fn(&str) -> Option<String> + Sync);

/// A proxy, through which connections are tunneled.
#[derive(Debug)]
pub struct Proxy {
    /// Its scheme is `http`, `https` or `socks5`; always with a port, and without credentials.
    pub address: Uri,
    /// The name and the password for it.
    pub user: Option<(String, SecretString)>,
    /// Where it is named: `proxy-url`, or a variable.
    pub source: &'static str,
}

/// The proxy for this server: that of `proxy-url`, to which `NO_PROXY` does not apply, else that of the environment.
///
/// # Errors
/// When the address of the proxy cannot be used; names where it comes from.
pub fn proxy_of(server: &Uri, proxy_url: Option<&str>, variable: Variable<'_>) -> Result<Option<Proxy>> {
    if let Some(url) = proxy_url {
        return read(url, "proxy-url").map(Some);
    }
    let names: [&'static str; 2] = match server.scheme_str() {
        Some("https") => ["HTTPS_PROXY", "https_proxy"],
        _ => ["HTTP_PROXY", "http_proxy"],
    };
    let Some((source, url)) = first_set(names, variable) else {
        return Ok(None);
    };
    let excluded = first_set(["NO_PROXY", "no_proxy"], variable);
    if is_excluded(server, excluded.as_ref().map_or("", |(_, list)| list)) {
        return Ok(None);
    }
    // Go takes an address without a scheme for one of HTTP.
    let url = url.trim();
    match url.contains("://") {
        true => read(url, source),
        false => read(&format!("http://{url}"), source),
    }
    .map(Some)
}

fn first_set(names: [&'static str; 2], variable: Variable<'_>) -> Option<(&'static str, String)> {
    let set = |name| {
        let value = variable(name).filter(|value| !value.is_empty());
        value.map(|value| (name, value))
    };
    names.into_iter().find_map(set)
}

fn read(url: &str, source: &'static str) -> Result<Proxy> {
    const WRONG: &str = "is not the address of a proxy, such as http://host:3128";
    let url = url.parse::<Uri>().unwrap_or_default();
    let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
        return refuse(source, WRONG);
    };
    if !field::has_valid_port(authority) {
        return refuse(source, WRONG);
    }
    let (scheme, default_port) = match scheme {
        "http" => ("http", 80),
        "https" => ("https", 443),
        // Either way the proxy looks up the name.
        "socks5" | "socks5h" => ("socks5", 1080),
        _ => {
            return refuse(
                source,
                "is a proxy address whose scheme is not http, https, or socks5",
            );
        }
    };
    let user = authority.as_str().rsplit_once('@').map(|(user, _)| {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        let decoded = |text| percent_decode_str(text).decode_utf8_lossy().into_owned();
        (decoded(name), SecretString::from(decoded(password)))
    });
    let (host, port) = (authority.host(), authority.port_u16().unwrap_or(default_port));
    match format!("{scheme}://{host}:{port}/").parse() {
        Ok(address) => Ok(Proxy {
            address,
            user,
            source,
        }),
        Err(_) => refuse(source, WRONG),
    }
}

/// True if the server is reached without the proxy of the environment: it is on this host, or in the list.
fn is_excluded(server: &Uri, list: &str) -> bool {
    let host = server.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let default_port = if server.scheme_str() == Some("https") {
        443
    } else {
        80
    };
    let port = server.port_u16().unwrap_or(default_port);
    list.split(',').any(|entry| {
        let entry = entry.trim().to_ascii_lowercase();
        entry == "*" || covers(&entry, &host, address, port)
    })
}

/// True if an entry of the list, such as `10.0.0.0/8`, `.example.org` or `host:6443`, is about the server.
fn covers(entry: &str, host: &str, address: Option<IpAddr>, port: u16) -> bool {
    if entry.contains('/') {
        let network = entry.parse::<IpNet>().ok().zip(address);
        return network.is_some_and(|(network, address)| network.contains(&address.to_canonical()));
    }
    let (name, wanted_port) = match entry.rsplit_once(':') {
        // An IPv6 address without brackets has more colons, and no port.
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        _ => (entry, None),
    };
    if wanted_port.is_some_and(|wanted| wanted != port.to_string()) {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(named) = name.parse::<IpAddr>() {
        return address == Some(named);
    }
    let name = name
        .strip_prefix('*')
        .filter(|rest| rest.starts_with('.'))
        .unwrap_or(name);
    match name.strip_prefix('.') {
        _ if name.is_empty() || address.is_some() => false,
        Some(_) => host.ends_with(name),
        None => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret as _;

    /// With an environment such as `HTTPS_PROXY=a NO_PROXY=b`, or a `proxy-url=a` of the kubeconfig.
    fn found(server: &str, settings: &str) -> Result<Option<Proxy>> {
        let set = |name: &str| {
            let mut set = settings.split(' ').filter_map(|set| set.split_once('='));
            let found = set.find(|(set, _)| *set == name);
            found.map(|(_, value)| value.to_owned())
        };
        proxy_of(&server.parse().unwrap(), set("proxy-url").as_deref(), &set)
    }

    #[test]
    fn the_proxy_of_the_kubeconfig_is_before_that_of_the_environment() {
        let shown = |server, settings| {
            let proxy = found(server, settings).unwrap();
            proxy.map(|proxy| format!("{} {}", proxy.source, proxy.address))
        };
        for (settings, expected) in [
            ("HTTPS_PROXY=http://a:1", "HTTPS_PROXY http://a:1/"),
            // NO_PROXY is about the environment only.
            (
                "HTTPS_PROXY=b proxy-url=http://a:3 NO_PROXY=*",
                "proxy-url http://a:3/",
            ),
            ("https_proxy=lower:8080", "https_proxy http://lower:8080/"),
            ("HTTPS_PROXY=a.test", "HTTPS_PROXY http://a.test:80/"),
            (
                "proxy-url=https://[2001:db8::1]",
                "proxy-url https://[2001:db8::1]:443/",
            ),
            ("proxy-url=socks5h://a/path", "proxy-url socks5://a:1080/"),
        ] {
            let found = shown("https://api.test:6443", settings);
            assert_eq!(found.as_deref(), Some(expected), "{settings}");
        }
        for none in [
            "",
            "HTTPS_PROXY=",
            "HTTP_PROXY=http://a:1",
            "HTTPS_PROXY=a NO_PROXY=*",
        ] {
            assert_eq!(shown("https://api.test:6443", none), None, "{none}");
        }
        let plain = shown("http://api.test", "http_proxy=a:1");
        assert_eq!(plain.as_deref(), Some("http_proxy http://a:1/"));
    }

    #[test]
    fn servers_are_excluded_as_go_does_it() {
        for (list, server, expected) in [
            ("", "https://localhost:6443", true),
            ("", "https://127.0.0.2", true),
            ("", "https://[::1]:6443", true),
            ("", "https://api.test", false),
            ("*", "https://api.test", true),
            ("api.test", "https://API.test:6443", true),
            ("test", "https://api.test", true),
            ("pi.test", "https://api.test", false),
            (".api.test", "https://api.test", false),
            (".test", "https://api.test", true),
            ("*.test", "https://api.test.", true),
            ("other,api.test:6443", "https://api.test:6443", true),
            ("api.test:443", "https://api.test:6443", false),
            ("api.test:443", "https://api.test", true),
            ("10.0.0.0/8", "https://10.1.2.3:6443", true),
            ("10.0.0.0/16", "https://10.1.2.3", false),
            ("0.0.0.0/0", "https://10.1.2.3", true),
            ("10.1.2.3:6443", "https://10.1.2.3:6443", true),
            ("10.1.2.3:443", "https://10.1.2.3:6443", false),
            ("2001:db8::1", "https://[2001:db8::1]:6443", true),
            ("[2001:db8::1]:6443", "https://[2001:db8::1]:6443", true),
            ("2001:db8::/32", "https://[2001:db8::1]", true),
            // None of these says anything; kube refuses some of them.
            (",,:443,/8,10.0.0.0/x,*.,http://a.test", "https://a.test", false),
        ] {
            let proxy = found(server, &format!("HTTPS_PROXY=http://proxy:1 NO_PROXY={list}")).unwrap();
            assert_eq!(proxy.is_none(), expected, "{list:?} {server}");
        }
    }

    #[test]
    fn credentials_are_no_part_of_the_address_and_never_shown() {
        let url = "proxy-url=http://me:hunter2%40%3A@proxy.test:3128";
        let proxy = found("https://api.test", url).unwrap().unwrap();
        assert_eq!(proxy.address, "http://proxy.test:3128/");
        assert!(!format!("{proxy:?}").contains("hunter2"));
        let (name, password) = proxy.user.unwrap();
        assert_eq!((&*name, password.expose_secret()), ("me", "hunter2@:"));
    }

    #[test]
    fn an_address_that_cannot_be_used_is_named_by_where_it_comes_from() {
        for (url, part) in [
            ("ftp://hunter2", "not http, https, or socks5"),
            ("http://hunter2:x", "is not the address of a proxy"),
            ("http://", "is not the address of a proxy"),
            ("hunter2^", "is not the address of a proxy"),
        ] {
            for source in ["proxy-url", "HTTPS_PROXY"] {
                let error = found("https://api.test", &format!("{source}={url}")).unwrap_err();
                assert_eq!(error.field, source, "{url}");
                assert!(
                    error.reason.contains(part) && !error.reason.contains("hunter2"),
                    "{error}"
                );
            }
        }
    }
}
