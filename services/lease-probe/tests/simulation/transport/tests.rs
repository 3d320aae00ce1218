use lease_probe::cluster::transport::{Connector, Link};

use super::*;
use crate::builder::Builder;
use crate::input_changes::{SecretChange, kubeconfig};
use crate::judge::unprotected;
use crate::other_writers::Writes;
use crate::timeline::Behaviour;

/// To a server that behaves like that from 70 s on, for 20 s.
fn connector(clock: VirtualClock, behaviour: Behaviour, http2: bool) -> SimConnector {
    let mut history = Builder::new("test", 1);
    history.shoot().server.speaks_http2 = http2;
    history.server(70 * SECOND, 20 * SECOND, behaviour);
    let script = history.build().shoots.remove(0);
    let history = unprotected(&script, 200 * SECOND);
    let shoot = PlayedShoot {
        name: "shoot-0".into(),
        writes: Writes::new(&script, &history, 200 * SECOND),
        history,
        script,
    };
    SimConnector {
        clock,
        shoot: Arc::new(shoot),
        external: false,
        probed: Arc::default(),
    }
}

/// When a connection that was opened at 60 s and is idle ends, and if it falls silent.
async fn idle_end(behaviour: Behaviour, http2: bool) -> Option<(f64, bool)> {
    let clock = VirtualClock::start();
    clock.sleep_until(60 * SECOND).await;
    let connector = connector(clock, behaviour, http2);
    let link = connector
        .open(&kubeconfig(SecretChange::Rotated(0)).unwrap())
        .await
        .unwrap();
    assert_eq!(link.end(), None);
    let limit = crate::virtual_time::duration(300 * SECOND);
    tokio::time::timeout(limit, link.ended()).await.ok()?;
    let end = link.end().unwrap();
    let ago = match end.silent {
        false => 0,
        // It was last known to be alive before the PING that was not answered.
        true => 10 * SECOND,
    };
    assert!(end.since.elapsed() < crate::virtual_time::duration(ago + 2 * MILLISECOND));
    Some((clock.now() as f64 / 1e6, end.silent))
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_closed_when_the_process_dies() {
    let (at, is_silent) = idle_end(Behaviour::Refuses, true).await.unwrap();
    assert_eq!((at.round(), is_silent), (70.0, false));
}

/// Up to 6 s after the last sign of life a PING is sent, and 4 s later given up.
#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_given_up_ten_seconds_after_its_last_sign() {
    for behaviour in [Behaviour::Hangs, Behaviour::BlackHole { forgets: 0.0 }] {
        let (at, is_silent) = idle_end(behaviour, true).await.unwrap();
        assert!(is_silent, "{behaviour:?}");
        assert!((74.0..80.1).contains(&at), "{behaviour:?}: {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn http1_has_no_pings() {
    assert_eq!(idle_end(Behaviour::Hangs, false).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_answers_pings() {
    assert_eq!(idle_end(Behaviour::Slow { by: 15 * SECOND }, true).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_request_ends_with_its_connection() {
    let clock = VirtualClock::start();
    clock.sleep_until(72 * SECOND).await;
    let mut link = SimLink {
        peer: connector(clock, Behaviour::Hangs, true),
        opened: 60 * SECOND,
        last_sign: 68 * SECOND,
        closed: None,
        requests: 0,
    };
    let request = ApiRequest {
        path: "/version".to_owned(),
        accept: "",
        most: 0,
    };
    assert!(link.send(&request).await.is_err());
    assert_eq!(clock.now() / SECOND, 78);
    assert!(link.end().is_some_and(|end| end.silent));
}
