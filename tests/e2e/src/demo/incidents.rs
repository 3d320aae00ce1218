//! The incidents of the demo, and the checks of what the watchdog did about them.

use std::time::{Duration, Instant};

use anyhow::Context;
use watchdog_test_support::fixtures::{CA, KCM, MCM};
use watchdog_test_support::sandboxed::SandboxFixture;
use watchdog_test_support::simulation::{Cut, Sandbox, SimulatedShoot};
use watchdog_test_support::wait::{holds, until, until_true};

use super::output::TimedOutput;
use super::printer::ChangePrinter;
use super::{NODES, SHOOTS, Watchdog, timing};

/// One thing that had to be so.
struct Check {
    good: bool,
    what: String,
}

pub(super) struct Incidents<'a> {
    output: &'a TimedOutput,
    fixture: &'a SandboxFixture,
    shoot: SimulatedShoot,
    twin: SimulatedShoot,
    others: Vec<SimulatedShoot>,
    printer: ChangePrinter,
}

impl<'a> Incidents<'a> {
    pub(super) fn new(
        output: &'a TimedOutput,
        fixture: &'a SandboxFixture,
        unprotected: &Sandbox,
        watchdog: &Watchdog,
    ) -> anyhow::Result<Self> {
        let [first, rest @ ..] = SHOOTS;
        let shoot = fixture.shoot(first)?;
        let others: anyhow::Result<_> = rest.iter().map(|name| fixture.shoot(name)).collect();
        Ok(Self {
            output,
            fixture,
            twin: unprotected.shoot(first)?,
            others: others?,
            printer: ChangePrinter::start(*output, &fixture.setup, watchdog, &shoot)?,
            shoot,
        })
    }

    pub(super) async fn play(self) -> anyhow::Result<bool> {
        let mut checks = self.loss().await?;
        checks.extend(self.recovery().await?);
        checks.extend(self.crash_loop().await?);
        let untouched = self
            .others
            .iter()
            .all(|other| self.fixture.scale_writes(other).is_empty());
        checks.push(Check {
            good: untouched,
            what: "the other shoots were never written to".to_owned(),
        });
        let Self { output, printer, .. } = self;
        printer.stop().await;
        output.title("Summary");
        for check in &checks {
            output.plain(&format!(
                "  {}  {}\n",
                if check.good { "ok  " } else { "FAIL" },
                check.what
            ));
        }
        Ok(checks.iter().all(|check| check.good))
    }

    /// The network between the nodes and the API server breaks.
    async fn loss(&self) -> anyhow::Result<Vec<Check>> {
        let grace = timing().node_monitor_grace_period;
        self.printer.wait_healthy(SHOOTS.len()).await?;
        self.wait_renewed().await?;
        self.output.title(&format!(
            "The nodes of {} lose their API server; so do those of its twin on a seed without the watchdog",
            self.shoot.name()
        ));
        let cut = Instant::now();
        self.shoot.cut(Cut::All);
        self.twin.cut(Cut::All);
        let bound = Duration::from_secs(25);
        self.fixture.wait_replicas(&self.shoot, 0, bound).await?;
        let took = cut.elapsed();
        self.output.line(format!(
            "all dependants are at 0, {:.1} s after the cut; nodes would be Unknown after {} s",
            took.as_secs_f64(),
            grace.as_secs()
        ));
        let order = self.fixture.scale_writes(&self.shoot);
        let replaced = until(
            "the twin's machines are replaced",
            Duration::from_secs(40),
            || async {
                let replaced = self.twin.machines_replaced();
                Ok((replaced >= NODES as u64).then_some(replaced))
            },
        )
        .await?;
        self.output.line(format!(
            "without the watchdog: {} nodes Unknown, {replaced} machines replaced",
            self.twin.marked_unknown()
        ));
        let position = |name: &str| order.iter().position(|written| written == name);
        let kcm_last = position(KCM) > position(MCM) && position(KCM) > position(CA) && order.len() == 3;
        Ok(vec![
            Check {
                good: took < grace,
                what: format!(
                    "all dependants at 0 within {:.1} s, before the {} s after which nodes turn Unknown",
                    took.as_secs_f64(),
                    grace.as_secs()
                ),
            },
            Check {
                good: kcm_last,
                what: format!("scaled down in order: {}", order.join(", ")),
            },
            Check {
                good: self.shoot.marked_unknown() == 0 && self.shoot.machines_replaced() == 0,
                what: format!(
                    "with the watchdog: {} nodes Unknown, {} machines replaced",
                    self.shoot.marked_unknown(),
                    self.shoot.machines_replaced()
                ),
            },
            Check {
                good: self.twin.marked_unknown() > 0 && replaced > 0,
                what: format!(
                    "without the watchdog: {} nodes Unknown, {replaced} machines replaced",
                    self.twin.marked_unknown()
                ),
            },
        ])
    }

    /// Waits until every kubelet has renewed its lease in its own rhythm.
    async fn wait_renewed(&self) -> anyhow::Result<()> {
        let renewals = || -> Vec<String> {
            let nodes = self.shoot.nodes().into_iter();
            nodes.map(|node| node.renew_time).collect()
        };
        let first = renewals();
        until_true("all leases are renewed", Duration::from_secs(10), || async {
            Ok(renewals().iter().zip(&first).all(|(now, first)| now != first))
        })
        .await
    }

    /// The network is back.
    async fn recovery(&self) -> anyhow::Result<Vec<Check>> {
        self.output.title("The network is back");
        let before = self.fixture.scale_writes(&self.shoot).len();
        let healed = Instant::now();
        self.shoot.heal();
        let bound = Duration::from_secs(25);
        self.fixture.wait_replicas(&self.shoot, 1, bound).await?;
        self.output.line(format!(
            "all dependants are back, {:.1} s after the network",
            healed.elapsed().as_secs_f64()
        ));
        let order = self.fixture.scale_writes(&self.shoot).split_off(before);
        Ok(vec![
            Check {
                good: order == [KCM, MCM, CA],
                what: format!("restored in order: {}", order.join(", ")),
            },
            Check {
                good: self.shoot.marked_unknown() == 0 && self.shoot.machines_replaced() == 0,
                what: "still no node Unknown and no machine lost".to_owned(),
            },
        ])
    }

    /// A service that others need goes down and comes back.
    async fn crash_loop(&self) -> anyhow::Result<Vec<Check>> {
        self.output.title(&format!(
            "The kube-apiserver of {} goes down; what needs it crashes",
            self.shoot.name()
        ));
        self.shoot.service_down("kube-apiserver");
        until_true(
            "the dependants crash in a loop",
            Duration::from_secs(20),
            || async { Ok(self.crash_looping() >= 3) },
        )
        .await?;
        let looping = self.crash_looping();
        self.output.line(format!(
            "{looping} pods wait in CrashLoopBackOff; kubelet would start them again in 10 s and more"
        ));
        let before = self.pod_deletions();
        holds(
            "nothing is weeded while the service is down",
            Duration::from_secs(3),
            || async { Ok(self.pod_deletions() == before) },
        )
        .await
        .context("pods were deleted although what they need is down")?;
        let up = Instant::now();
        self.shoot.service_up("kube-apiserver");
        self.output.line("kube-apiserver is started again");
        until_true("the dependants run again", Duration::from_secs(25), || async {
            let pods = self.shoot.pods();
            Ok(pods.iter().all(|pod| pod.ready && pod.waiting.is_empty()))
        })
        .await?;
        let took = up.elapsed().as_secs_f64();
        self.output.line(format!("all pods run again, {took:.1} s later"));
        let deleted = self.pod_deletions() - before;
        Ok(vec![Check {
            good: deleted >= looping,
            what: format!(
                "{deleted} crash-looping pods were weeded, none before their service was back; all ran {took:.1} s \
                 after it was started"
            ),
        }])
    }

    fn crash_looping(&self) -> usize {
        self.shoot
            .pods()
            .iter()
            .filter(|pod| pod.waiting == "CrashLoopBackOff")
            .count()
    }

    fn pod_deletions(&self) -> usize {
        let prefix = format!("/api/v1/namespaces/{}/pods/", self.shoot.namespace());
        let audit = self.fixture.sandbox.seed().audit();
        audit
            .iter()
            .filter(|entry| entry.verb == "delete" && entry.code < 300 && entry.path.starts_with(&prefix))
            .count()
    }
}
